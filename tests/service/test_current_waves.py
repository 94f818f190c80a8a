"""A tick that reads only the current waves decides about its maintenances what it would decide with all their events."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forewarn.core import lifecycle
from forewarn.core.change import Change, Snapshot
from forewarn.store import Focus
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import Player, play

STORIES = sorted((Path(__file__).parents[1] / "stories").glob("*.txt"))


class ComparingStore(MemoryStore):
    """Remembers, with each snapshot of current waves, the snapshot of the whole maintenances."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = Snapshot()
        self.ids: Collection[str] = ()

    def snapshot(self, focus: Focus) -> Snapshot:
        found = super().snapshot(focus)
        if focus.current_waves:
            self.whole, self.ids = super().snapshot(replace(focus, current_waves=False)), focus.maintenances
        return found

    def saved_ids(self) -> list[str]:
        return list(self._maintenances)

    def tick(self, snapshot: Snapshot, *, new_id: Callable[[], str], **more: Any) -> Change:
        """Tick on both snapshots, with the same new ids, and compare what happens to the maintenances of the focus."""
        made: list[str] = []
        change = lifecycle_tick(snapshot, new_id=lambda: made.append(new_id()) or made[-1], **more)  # type: ignore[func-returns-value]
        again = iter(made)
        whole = lifecycle_tick(self.whole, new_id=lambda: next(again), **more)
        assert self._own(change) == self._own(whole)
        return change

    def _own(self, change: Change) -> object:
        """Return what the change does to the maintenances of the focus. The rest depends on which scopes were read."""
        return (
            {e.id: e for e in change.events if e.maintenance_id in self.ids},
            {m.id: m for m in change.maintenances if m.id in self.ids},
            {i for i in change.wakes if i in self.ids},
            [a.action for a in change.audit if a.maintenance_id in self.ids],
        )


lifecycle_tick = lifecycle.tick


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story_ticks_the_same_on_current_waves(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tick of every story changes the same with the current waves as with all events."""
    store = ComparingStore()
    monkeypatch.setattr("forewarn.service.control.lifecycle.tick", store.tick)
    text = story.read_text("utf-8")
    assert play(text, store) == text


def test_waves_that_are_not_current_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fifty waves a tick reads one, until the last; the maintenance ends as with all events."""
    store = ComparingStore()
    monkeypatch.setattr("forewarn.service.control.lifecycle.tick", store.tick)
    player = Player(store)
    machines = [f"machine shop/web-{n} ud={n}" for n in range(50)]
    player.play("fleet", ["scope shop availability-set", *machines])
    player.play("schedule Reboot scope=shop")
    read = []
    for number in range(1, 51):
        read.append(len(store.snapshot(Focus(maintenances=tuple(store.saved_ids()), current_waves=True)).events))
        player.play(f"order take E{number}")
        player.play(f"order finish E{number}")
    assert read == [2] * 49 + [1]
    assert player.play("maintenance M1") == "M1 Completed\n"
