"""Decisions on a snapshot that has only the current wave of a maintenance."""

from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.advance import refresh
from forewarn.core.change import Snapshot, UnreadEvents
from forewarn.core.draft import Draft
from forewarn.core.model import (
    ENDED,
    Event,
    HostMode,
    Maintenance,
    MaintenanceStatus,
    OnFailure,
    Status,
    Strategy,
)
from forewarn.core.replanning import plan_again
from forewarn.core.strategy import bake_waits
from tests.support.builders import TICKER, at, guid, maintenance, shop


@pytest.mark.parametrize(
    "facts",
    [
        {"on_failure": OnFailure.CANCEL},
        {"host_mode": HostMode.EVACUATE},
        {"not_after": at(60)},
        {"strategy": Strategy(pause_after=2), "continued_after": 1},
    ],
    ids=str,
)
def test_some_maintenances_are_ticked_with_all_their_events(facts: dict[str, Any]) -> None:
    """A tick of these may cancel the rest, or must know which wave is the last."""
    assert maintenance(**facts).ticks_need_all_events
    others = Strategy(pause_after=2, bake_s=1, max_failures="1")
    assert not maintenance(on_failure=OnFailure.CONTINUE, strategy=others, continued_after=2).ticks_need_all_events


def second_wave() -> tuple[Maintenance, list[Event], Snapshot]:
    """Return a maintenance of three waves, its events, and the snapshot of its second wave, which is published."""
    world = shop(3)
    events = world.submit("shop/web-0", "shop/web-1", "shop/web-2")
    world.start(events[0].id)
    world.finish(events[0].id)
    world.tick()
    whole = world.snapshot()
    known = whole.maintenances[events[0].maintenance_id]
    return known, list(whole.events.values()), whole


def only_second(known: Maintenance, events: list[Event], whole: Snapshot) -> Snapshot:
    present = {e.id: e for e in events if e.status not in ENDED and e.wave == 2}
    return replace(whole, events=present, orders={}, unread={known.id: UnreadEvents(2, at(1))})


def test_a_maintenance_is_running_if_an_unread_event_has_started() -> None:
    """The first wave has ended and is not present; its end says that the maintenance has begun."""
    known, events, whole = second_wave()
    draft = Draft(only_second(known, events, whole), at(1), TICKER)
    refresh(draft, known.id)
    assert draft.maintenances[known.id].status is MaintenanceStatus.RUNNING
    nothing_begun = replace(draft.before, unread={known.id: UnreadEvents(2)})
    draft = Draft(nothing_begun, at(1), TICKER)
    refresh(draft, known.id)
    assert draft.maintenances[known.id].status is MaintenanceStatus.PLANNED


def test_a_maintenance_does_not_end_before_all_its_events_are_read() -> None:
    """When the current wave ends within a tick, the next tick reads the rest and decides."""
    known, events, whole = second_wave()
    draft = Draft(only_second(known, events, whole), at(1), TICKER)
    (second,) = draft.events.values()
    draft.put(replace(second, status=Status.CANCELLED, ended=at(1)))
    refresh(draft, known.id)
    change = draft.change()
    assert change.wakes == (known.id,)
    assert change.maintenances == ()


def test_the_next_position_counts_unread_events() -> None:
    """A new event comes after all others, read or not."""
    known, events, whole = second_wave()
    assert Draft(whole, at(1), TICKER).next_position(known.id) == 3
    assert Draft(only_second(known, events, whole), at(1), TICKER).next_position(known.id) == 3
    assert Draft(Snapshot(), at(1), TICKER).next_position(known.id) == 0


def test_an_event_that_another_replaces_is_not_counted() -> None:
    """Read or not: a share of failures counts the machines of an event once."""
    known, events, whole = second_wave()
    (second,) = (e for e in events if e.wave == 2)
    for snapshot, expected in [(whole, 3), (only_second(known, events, whole), 3)]:
        draft = Draft(snapshot, at(1), TICKER)
        assert draft.number_of_events(known.id) == expected
        plan_again(draft, second, "for the test", lambda: guid(99))
        assert draft.number_of_events(known.id) == expected
    unread = {known.id: UnreadEvents(4, at(1), replaced=2)}
    assert Draft(replace(snapshot, unread=unread), at(1), TICKER).number_of_events(known.id) == 3


def test_the_bake_time_counts_from_the_last_end_that_was_not_read() -> None:
    """The earlier waves are not present: their last end is, and the wave before the planned one is named."""
    known, events, whole = second_wave()
    baking = replace(known, strategy=Strategy(bake_s=600))
    snapshot = replace(only_second(known, events, whole), maintenances={known.id: baking})
    draft = Draft(snapshot, at(2), TICKER)
    (wait,) = bake_waits(draft, baking, list(draft.events.values()))
    assert (wait.until, wait.message) == (at(11), "the bake time of 10m after wave 1 runs")
    nothing_ended = replace(snapshot, unread={known.id: UnreadEvents(2)})
    assert bake_waits(Draft(nothing_ended, at(2), TICKER), baking, list(draft.events.values())) == []
