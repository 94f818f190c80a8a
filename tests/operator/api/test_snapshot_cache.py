"""A cached snapshot is never older than the last change, whichever node made the change."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forewarn.app.service import Service, new_id
from forewarn.core.change import Change, Snapshot
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, AuditEntry, EventType, MaintenanceRequest, Source, Targets
from forewarn.core.operator_model import Hook, Role, Token
from forewarn.operator.api.snapshot_cache import UNRELATED, SnapshotCache
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.store import AuditQuery, EventQuery, Focus, MaintenanceQuery
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import play
from tests.support.running_service import FLEET, OPERATOR, START, RunningService, running_service

STORIES = sorted((Path(__file__).parents[2] / "stories").glob("*.txt"))


class ComparingStore(MemoryStore):
    """After every so many changes, read everything through the cache and anew; `stale` lists what differs."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self.changes = 0
        self.cache = SnapshotCache(self)
        self.stale: list[str] = []

    def apply(self, change: Change) -> None:
        super().apply(change)
        if change.audit and all(entry.action in UNRELATED for entry in change.audit):
            only = Change(
                at=change.at,
                audit=change.audit,
                tokens=change.tokens,
                removed_tokens=change.removed_tokens,
                hooks=change.hooks,
                removed_hooks=change.removed_hooks,
            )
            assert change == only
        self.changes += 1
        if self.changes % self.every == 0:
            self.compare()

    def compare(self) -> None:
        page = self.events(EventQuery(limit=1_000)).events
        wanted: list[dict[str, Any]] = [{"maintenances": [m.id]} for m in self.maintenances(MaintenanceQuery())]
        wanted += [{"events": page}, *({"events": [event]} for event in page)]
        for each in wanted:
            cached, fresh = self.cache.around(**each), SnapshotCache(self).around(**each)
            statuses = [
                (cached.maintenances[i].status, fresh.maintenances[i].status) for i in each.get("maintenances", ())
            ]
            if _shown(cached) != _shown(fresh) or any(old is not new for old, new in statuses):
                self.stale.append(str(each))
        for scope in self.inventory().scopes:
            focus = Focus(scopes=(scope,), inventory=True)
            old, new = (
                (each.machines, each.hold, _shown(each)) for each in (self.cache.of(focus), self.snapshot(focus))
            )
            if old != new:
                self.stale.append(f"plan of {scope}")


def _shown(snapshot: Snapshot) -> object:
    """What callers are shown of a snapshot; of scopes and other maintenances only what they allow, not when they were saved."""
    scopes = {
        name: (s.enabled, s.approval, dict(s.minimum_notice_s), s.max_unavailable)
        for name, s in snapshot.scopes.items()
    }
    maintenances = {key: (m.paused, m.cancelled, m.on_failure, m.earliest) for key, m in snapshot.maintenances.items()}
    rules = replace(snapshot.fleet_rules, reservations=0)
    counted = (snapshot.machine_counts, snapshot.fleet_use)
    return scopes, maintenances, snapshot.events, snapshot.orders, rules, counted


def test_the_stories_are_found() -> None:
    """The next test needs them."""
    assert len(STORIES) > 10


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_cached_snapshot_equals_a_fresh_one(story: Path) -> None:
    """In every story, after every single change."""
    store = ComparingStore()
    play(story.read_text("utf-8"), store)
    assert store.stale == []


@pytest.mark.parametrize("every", [1, 3, 8])
def test_a_cached_snapshot_equals_a_fresh_one_beside_other_work(every: int, tmp_path: Path) -> None:
    """Submissions into other scopes, into the same, into both; and every action that saves nothing of a snapshot."""
    store = ComparingStore(every)
    settings = load({"store": "memory:", "state_dir": str(tmp_path), "executor": "simulated"}, {})
    service = Service(settings, clock=ManualClock(START), store=store)
    control = service.control
    control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
    for scope in ("shop", "blog"):
        control.enable(scope, OPERATOR)
    targets = (
        Targets(machines=(("shop", "web-0"),)),
        Targets(scope="blog"),
        Targets(scope="shop"),
        Targets(hosts=("rack1-a",)),
    )
    for each in targets:
        control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=each), OPERATOR)
        _change_unrelated(service)
        service.ticker.cycle_until_idle()
    user = MaintenanceRequest(type=EventType.REDEPLOY, targets=Targets(scopes=("shop", "blog")), source=Source.USER)
    control.cancel_maintenance(control.submit(user, OPERATOR), OPERATOR)
    for _ in range(20):
        service.ticker.advance(1_000)
    assert not any(maintenance.ended is None for maintenance in store.maintenances(MaintenanceQuery()))
    assert {entry.action for entry in store.audit(AuditQuery(limit=1_000))} >= UNRELATED
    assert store.stale == []
    service.close()


def _change_unrelated(service: Service) -> None:
    """Make a change of every action in UNRELATED."""
    control = service.control
    for number, scope in enumerate(("", "shop")):
        token = Token(id=new_id(), name=f"token {number}", role=Role.VIEWER, digest="0" * 64, created=START)
        control.add_token(token, OPERATOR)
        control.revoke_token(token.id, OPERATOR)
        control.record_failed_authentication("1 request")
        hook = Hook(
            id=new_id(), url="https://example.org/", scope=scope, kinds=("started",), secrets=("secret",), created=START
        )
        hook = control.add_hook(hook, OPERATOR)
        control.rotate_hook(hook.id, "another", OPERATOR, keep_s=60)
        control.note_hook(control.hook(hook.id), "hook gap", "entries are missing")
        control.note_hook(replace(control.hook(hook.id), disabled=START), "hook disabled", "it fails")
        control.enable_hook(hook.id, OPERATOR)
        control.replay_hook(hook.id, service.store.audit_chain().head.id, OPERATOR)
        control.remove_hook(hook.id, OPERATOR)


class CountingStore(MemoryStore):
    """Notes the focus of every snapshot that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Focus] = []

    def snapshot(self, focus: Focus) -> Snapshot:
        self.reads.append(focus)
        return super().snapshot(focus)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def service(store: CountingStore) -> Iterator[RunningService]:
    with running_service(in_store=store, executor="simulated") as running:
        running.enable("shop")
        yield running


def test_a_snapshot_is_cached_until_something_changes(service: RunningService, store: CountingStore) -> None:
    """Two identical requests read the store once; a request after a change reads it again."""
    maintenance = service.schedule("shop/web-0")
    service.service.ticker.cycle_until_idle()
    path = f"/v1/maintenances/{maintenance['id']}"
    store.reads.clear()
    first = service.get(path)
    assert service.get(path) == first
    assert len(store.reads) == 1
    service.post(f"{path}/pause")
    assert service.get(path)["status"] == "Paused"
    service.post(f"{path}/resume")
    event = f"/v1/events/{maintenance['waves'][0]['events'][0]['id']}"
    assert service.get(event)["approved_by"] == []
    service.post(f"{event}/approve")
    assert len(service.get(event)["approved_by"]) == 1
    service.service.ticker.advance(1)
    assert service.get(event)["status"] == "Started"


def test_after_a_change_only_what_changed_is_read(store: CountingStore, tmp_path: Path) -> None:
    """An approval reads one event, a pause the maintenance through an event, a submission the new maintenance.

    A change elsewhere, or of what no snapshot holds, reads nothing of it. An entry of an unknown action reads everything.
    """
    settings = load({"store": "memory:", "state_dir": str(tmp_path)}, {})
    service = Service(settings, clock=ManualClock(START), store=store)
    control = service.control
    control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
    for scope in ("shop", "blog"):
        control.enable(scope, OPERATOR)
    ids = [
        control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope=scope)), OPERATOR)
        for scope in ("shop", "blog")
    ]
    service.ticker.cycle_until_idle()
    cache = SnapshotCache(store)
    events = sorted(cache.around(maintenances=ids[:1]).events.values(), key=lambda event: event.wave)

    def parts_read() -> list[tuple[str, ...]]:
        store.reads.clear()
        cache.around(events=events)
        assert not any(read.open_events for read in store.reads)
        return [read.events for read in store.reads]

    control.pause_maintenance(ids[1], OPERATOR)
    assert parts_read() == [()]
    control.approve_event(events[0].id, OPERATOR)
    assert parts_read() == [(events[0].id,)]
    control.pause_maintenance(ids[0], OPERATOR)
    assert len(parts_read()) == 1
    assert parts_read() == []
    snapshot = cache.around(events=events)
    assert snapshot.maintenances[ids[0]].paused
    assert len(snapshot.events[events[0].id].approvals) == 1
    _change_unrelated(service)
    assert parts_read() == [()]
    control.submit(MaintenanceRequest(type=EventType.FREEZE, targets=Targets(scope="blog")), OPERATOR)
    assert parts_read() == [()]
    added = control.submit(MaintenanceRequest(type=EventType.FREEZE, targets=Targets(scope="shop")), OPERATOR)
    assert parts_read() == [(), ()]
    assert [read.maintenances for read in store.reads] == [(), (added,)]
    assert added in cache.around(events=events).maintenances
    service.ticker.cycle_until_idle()
    cache.around(events=events)
    store.reads.clear()
    store.apply(Change(at=START, audit=(AuditEntry(at=START, who="service", action="something new"),)))
    cache.around(events=events)
    assert [read.open_events for read in store.reads] == [True]
    service.close()


def test_a_plan_uses_the_cache(service: RunningService, store: CountingStore) -> None:
    """A second dry run reads nothing; a dry run after a change reads the store and shows the change."""
    body = {"type": "Reboot", "targets": {"scope": "shop"}}

    def notice_s() -> int:
        plan = service.post("/v1/maintenances?dry_run=true", body)
        return int(plan["waves"][0]["events"][0]["notice_s"])

    store.reads.clear()
    assert notice_s() == notice_s() == 900
    assert len(store.reads) == 1
    service.control.disable("shop", Actor("operator"))
    store.reads.clear()
    assert notice_s() == 0
    assert len(store.reads) == 1


def test_what_depends_on_the_time_is_not_cached(service: RunningService) -> None:
    """An event's reasons to wait follow the clock, though nothing was saved."""
    maintenance = service.schedule("shop/web-0", earliest="2030-01-01T02:00:00Z")
    path = f"/v1/events/{maintenance['waves'][0]['events'][0]['id']}"
    assert [w["code"] for w in service.get(path)["waiting_for"]] == ["approval", "notice", "earliest"]
    service.service.ticker.advance(1_000)
    assert [w["code"] for w in service.get(path)["waiting_for"]] == ["earliest"]


def test_the_cache_is_bounded(service: RunningService, store: CountingStore) -> None:
    """It holds so many snapshots, and so many events in all of them; the oldest are dropped."""
    ids = [service.schedule(name)["id"] for name in ("shop/web-0", "shop/web-1", "blog/db")]
    service.service.ticker.cycle_until_idle()

    def reads_of(cache: SnapshotCache, maintenances: list[str]) -> int:
        store.reads.clear()
        cache.around(maintenances=maintenances)
        return len(store.reads)

    cache = SnapshotCache(store, max_snapshots=2)
    assert [reads_of(cache, [i]) for i in ids] == [1, 1, 1]
    assert [reads_of(cache, [i]) for i in (ids[2], ids[1], ids[0])] == [0, 0, 1]
    few_events = SnapshotCache(store, max_events=1)
    assert [reads_of(few_events, ids) for _ in range(2)] == [1, 1]
