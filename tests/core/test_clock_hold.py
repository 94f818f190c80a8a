"""A clock that jumped forward: what time alone would let start waits for an operator, and nothing else does."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core.change import Snapshot
from forewarn.core.clock_hold import confirm_clock, hold_clock
from forewarn.core.errors import InvariantBroken, Refused
from forewarn.core.invariants import check_invariants
from forewarn.core.model import ClockHold, Order, Status
from tests.support.builders import OPERATOR, World, at, event, maintenance, scope, shop


def held(world: World, minutes: float) -> ClockHold:
    """The clock was right until so many minutes after the beginning, and jumped then."""
    hold = ClockHold(trusted=at(minutes), noticed=world.now, jumped_s=7_200)
    world.save(hold_clock(Snapshot(), hold, since=at(minutes), unread_s=0, now=world.now))
    return hold


def test_an_unapproved_event_does_not_start_by_a_clock_that_jumped() -> None:
    """Its NotBefore is after the last trusted time: it waits, gives the reason, and needs no more ticks."""
    world = shop()
    (published,) = world.submit("shop/web-0")
    world.now = at(120)
    held(world, 1)
    world.tick()
    assert world.status(published.id) is Status.SCHEDULED
    assert world.codes(published.id) == ["approval", "clock"]
    (_, reason) = world.waiting_for(published.id)
    assert "jumped forward by 7200 s after 2030-01-01T12:01:00Z" in reason.message
    assert reason.message.endswith("and no operator has confirmed it")
    assert world.maintenance(published.id).wake_at is None


def test_confirming_the_clock_lets_events_start() -> None:
    """Confirming wakes the waiting maintenances; a clock that is not held cannot be confirmed."""
    world = shop()
    (published,) = world.submit("shop/web-0")
    world.now = at(120)
    held(world, 1)
    world.tick()
    change = confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR)
    assert [(entry.who, entry.action) for entry in change.audit] == [("alice", "clock confirmed")]
    world.save(change)
    assert world.maintenance(published.id).wake_at == world.now
    world.tick()
    assert world.status(published.id) is Status.STARTED
    with pytest.raises(Refused, match="not held"):
        confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR)


@pytest.mark.parametrize(
    "since, unread_s, jumped_s, again",
    [
        (at(1), 60, 7_200, False),
        (at(1), 60, 7_230, False),
        (at(1), 60, 7_300, True),
        (at(2), 60, 7_200, True),
        (at(1), 59, 7_200, True),
    ],
    ids=["the same", "a little more", "more than that", "noticed after it", "read after the confirmation"],
)
def test_a_confirmed_jump_is_not_held_again(since: datetime, unread_s: float, jumped_s: int, again: bool) -> None:
    """A node that was cut off notices a jump after it was confirmed; only an unexplained rest is held."""
    world = shop()
    world.now = at(120)
    hold = held(world, 1)
    world.save(confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR))
    late = replace(hold, jumped_s=jumped_s, noticed=at(121))
    change = hold_clock(world.snapshot(), late, since=since, unread_s=unread_s, now=at(121))
    assert (change.hold is not None) == again


def test_an_approved_event_starts_while_the_clock_is_held() -> None:
    """An approval does not depend on the clock."""
    world = shop()
    (published,) = world.submit("shop/web-0")
    held(world, 1)
    world.start(published.id)
    assert world.status(published.id) is Status.STARTED


def test_an_event_due_before_the_jump_starts() -> None:
    """Its notice ended while the clock was right."""
    world = shop()
    (published,) = world.submit("shop/web-0")
    world.now = at(120)
    held(world, 16)
    world.tick()
    assert world.status(published.id) is Status.STARTED


def test_an_earliest_start_is_held_too() -> None:
    """Neither an approval nor a jump of the clock brings `earliest` forward."""
    world = shop()
    (published,) = world.submit("shop/web-0", earliest=at(60))
    world.now = at(120)
    held(world, 1)
    world.start(published.id)
    assert world.status(published.id) is Status.SCHEDULED
    assert world.codes(published.id) == ["earliest", "clock"]


def test_no_scope_is_disabled_while_the_clock_is_held() -> None:
    """A held clock does not show whether a day has passed: the scope stays enabled and keeps its notice."""
    world = shop()
    world.enable()
    held(world, 1)
    assert world.disable().empty
    assert world.scope().enabled


@pytest.mark.parametrize("limits", [{}, {"earliest": at(10)}])
def test_the_invariants_refuse_a_start_by_a_held_clock(limits: dict[str, Any]) -> None:
    """Invariant 1 is checked independently of the rules that should ensure it."""
    published = event(approvals=())
    whole = maintenance(**limits)
    before = Snapshot(
        scopes={"shop": scope(version=1)},
        maintenances={whole.id: whole},
        events={published.id: published},
        hold=ClockHold(trusted=at(1), noticed=at(60), jumped_s=3_600),
    )
    started = replace(published, status=Status.STARTED, started=at(60), needs_approval=not limits)
    grown = replace(before.scopes["shop"], incarnation=2, changed=at(60))
    after = replace(
        before,
        scopes={"shop": grown},
        events={published.id: started},
        orders={published.id: Order(id=published.id, issued=at(60), deadline=at(60) + timedelta(hours=1))},
    )
    with pytest.raises(InvariantBroken, match="by a clock that jumped"):
        check_invariants(before, after, at(60))
    check_invariants(replace(before, hold=None), replace(after, hold=None), at(60))
