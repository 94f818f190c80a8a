"""What is kept of a look is never older than the last change, whoever made it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.change import Change, Snapshot
from forewarn.core.model import Actor
from forewarn.operator.api import snapshot_cache
from forewarn.service.clock import ManualClock
from forewarn.service.control import Control
from forewarn.store import EventQuery, Focus, MaintenanceQuery
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import play
from tests.operator.api.house import START, House, house

STORIES = sorted((Path(__file__).parent.parent.parent / "scenarios").glob("*.txt"))


class Watched(MemoryStore):
    """After every change everything is looked at in both ways, kept and anew; what differs is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.control = Control(self, ManualClock(START), new_id=str, order_timeout_s=0)
        self.looks = snapshot_cache.Looks(self.control, self)
        self.stale: list[str] = []

    def apply(self, change: Change) -> None:
        super().apply(change)
        page = self.events(EventQuery(limit=1_000)).events
        asked: list[dict[str, Any]] = [{"maintenances": [m.id]} for m in self.maintenances(MaintenanceQuery())]
        asked += [{"events": page}, *({"events": [event]} for event in page)]
        for each in asked:
            kept, anew = self.looks.told(**each), self.control.told(**each)
            ends = [(kept.maintenances[i].status, anew.maintenances[i].status) for i in each.get("maintenances", ())]
            if _shown(kept) != _shown(anew) or any(old is not new for old, new in ends):
                self.stale.append(str(each))
        for scope in self.inventory().scopes:
            focus = Focus(scopes=(scope,), inventory=True)
            seen, seen_anew = self.looks.at(focus), self.snapshot(focus)
            facts = [(each.machines, each.hold, _shown(each)) for each in (seen, seen_anew)]
            if facts[0] != facts[1]:
                self.stale.append(f"plan of {scope}")


def _shown(snapshot: Snapshot) -> object:
    """What is told of it; of scopes and of maintenances in the way it matters what they allow, not when they were saved."""
    scopes = {name: (s.enabled, s.approval, dict(s.minimum_notice_s)) for name, s in snapshot.scopes.items()}
    maintenances = {key: (m.paused, m.cancelled, m.on_failure, m.earliest) for key, m in snapshot.maintenances.items()}
    return scopes, maintenances, snapshot.events, snapshot.orders


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_kept_look_is_what_a_new_one_would_be(story: Path) -> None:
    """In every story, after every single change."""
    store = Watched()
    play(story.read_text("utf-8"), store)
    assert store.stale == []


@pytest.fixture
def service() -> Iterator[House]:
    with house(executor="simulated") as running:
        running.enable("shop")
        yield running


def test_a_look_is_kept_until_something_changes(service: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for twice it is read once; after any change it is read again."""
    reads: list[object] = []
    told = service.control.told

    def counted(**asked: Any) -> Snapshot:
        reads.append(asked)
        return told(**asked)

    monkeypatch.setattr(service.control, "told", counted)
    made = service.schedule("shop/web-0")
    service.service.ticker.cycle_until_idle()
    path = f"/v1/maintenances/{made['id']}"
    first = service.get(path)
    assert service.get(path) == first
    assert len(reads) == 1
    service.post(f"{path}/pause")
    assert service.get(path)["status"] == "Paused"
    service.post(f"{path}/resume")
    event = f"/v1/events/{made['waves'][0]['events'][0]['id']}"
    assert service.get(event)["approved_by"] == []
    service.post(f"{event}/approve")
    assert len(service.get(event)["approved_by"]) == 1
    service.service.ticker.advance(1)
    assert service.get(event)["status"] == "Started"


def test_a_plan_is_looked_at_from_what_is_kept(service: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second dry run reads no fleet; after a change it does, and shows it."""
    reads: list[object] = []
    read = service.service.store.snapshot

    def counted(focus: Focus) -> Snapshot:
        reads.append(focus)
        return read(focus)

    monkeypatch.setattr(service.service.store, "snapshot", counted)
    asked = {"type": "Reboot", "targets": {"scope": "shop"}}

    def notice() -> int:
        plan = service.post("/v1/maintenances?dry_run=true", asked)
        return int(plan["waves"][0]["events"][0]["notice_s"])

    assert notice() == notice() == 900
    assert len(reads) == 1
    service.control.disable("shop", Actor("operator"))
    reads.clear()
    assert notice() == 0
    assert len(reads) == 1


def test_what_depends_on_the_time_is_not_kept(service: House) -> None:
    """The notice that runs out is told as it is now, though nothing changed."""
    made = service.schedule("shop/web-0", earliest="2030-01-01T02:00:00Z")
    path = f"/v1/events/{made['waves'][0]['events'][0]['id']}"
    assert [w["code"] for w in service.get(path)["waiting_for"]] == ["approval", "notice", "earliest"]
    service.service.ticker.advance(1_000)
    assert [w["code"] for w in service.get(path)["waiting_for"]] == ["earliest"]


def test_looks_are_bounded(service: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many, and so many events in them; the oldest are forgotten."""
    monkeypatch.setattr(snapshot_cache, "MAX_LOOKS", 3)
    kept = snapshot_cache.Looks(service.control, service.service.store)
    made = [service.schedule(f"shop/web-{n}")["id"] for n in (0, 1)] + [service.schedule("blog/db")["id"]]
    service.service.ticker.cycle_until_idle()
    for maintenance in made * 2:
        kept.told(maintenances=[maintenance])
    kept.told()
    assert len(kept._kept) == 3
    monkeypatch.setattr(snapshot_cache, "MAX_EVENTS", 1)
    kept.told(maintenances=made)
    assert sum(len(each.events) for each in kept._kept.values()) <= 1
