"""A clock that jumped forward: what time alone would let start waits for an operator, and nothing else does."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core.change import Snapshot
from forewarn.core.clock_hold import confirm_clock, hold_clock
from forewarn.core.errors import InvariantBroken, Refused
from forewarn.core.invariants import check_invariants
from forewarn.core.model import Hold, Order, Status
from tests.support.builders import OPERATOR, World, at, event, maintenance, scope, shop


def held(world: World, minutes: float) -> Hold:
    """The clock was right until so many minutes after the beginning, and jumped then."""
    hold = Hold(trusted=at(minutes), noticed=world.now, jumped_s=7_200)
    world.save(hold_clock(Snapshot(), hold, since=at(minutes), now=world.now))
    return hold


def test_an_unapproved_event_does_not_start_on_a_clock_that_jumped() -> None:
    """Its NotBefore lies behind the last moment the clock was trusted: it waits, says why, and wants no more ticks."""
    world = shop()
    (told,) = world.submit("shop/web-0")
    world.now = at(120)
    held(world, 1)
    world.tick()
    assert world.status(told.id) is Status.SCHEDULED
    assert world.codes(told.id) == ["approval", "clock"]
    (_, reason) = world.waiting_for(told.id)
    assert "jumped forward by 7200 s after 2030-01-01T12:01:00Z" in reason.message
    assert "`forewarn clock confirm`" in reason.message
    assert world.maintenance(told.id).wake_at is None


def test_a_confirmed_clock_goes_on() -> None:
    """An operator's word wakes what waited, and it starts; a clock that is not held cannot be confirmed."""
    world = shop()
    (told,) = world.submit("shop/web-0")
    world.now = at(120)
    held(world, 1)
    world.tick()
    change = confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR)
    assert [(entry.who, entry.action) for entry in change.audit] == [("alice", "clock confirmed")]
    world.save(change)
    assert world.maintenance(told.id).wake_at == world.now
    world.tick()
    assert world.status(told.id) is Status.STARTED
    with pytest.raises(Refused, match="not held"):
        confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR)


@pytest.mark.parametrize(
    "since, jumped_s, again",
    [(at(1), 7_200, False), (at(1), 7_230, False), (at(1), 7_300, True), (at(2), 7_200, True)],
    ids=["the same", "a little more", "more than that", "looked after it"],
)
def test_a_jump_that_was_confirmed_is_not_held_again(since: datetime, jumped_s: int, again: bool) -> None:
    """A node that was cut off meanwhile notices what others had confirmed; what that does not explain is held."""
    world = shop()
    world.now = at(120)
    hold = held(world, 1)
    world.save(confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR))
    late = replace(hold, jumped_s=jumped_s, noticed=at(121))
    change = hold_clock(world.snapshot(), late, since=since, now=at(121))
    assert (change.hold is not None) == again


def test_an_approved_event_starts_all_the_same() -> None:
    """Whoever is prepared need not wait for a clock."""
    world = shop()
    (told,) = world.submit("shop/web-0")
    held(world, 1)
    world.start(told.id)
    assert world.status(told.id) is Status.STARTED


def test_what_was_due_before_the_jump_starts() -> None:
    """Its notice had run out while the clock was right."""
    world = shop()
    (told,) = world.submit("shop/web-0")
    world.now = at(120)
    held(world, 16)
    world.tick()
    assert world.status(told.id) is Status.STARTED


def test_a_hard_earliest_start_is_held_too() -> None:
    """Approval does not bring it forward, and neither does a jump."""
    world = shop()
    (told,) = world.submit("shop/web-0", earliest=at(60))
    world.now = at(120)
    held(world, 1)
    world.start(told.id)
    assert world.status(told.id) is Status.SCHEDULED
    assert world.codes(told.id) == ["earliest", "clock"]


def test_nobody_falls_silent_on_a_clock_that_jumped() -> None:
    """Whether it was a day cannot be said: the scope stays enabled, and keeps its notice."""
    world = shop()
    world.enable()
    held(world, 1)
    assert world.disable().empty
    assert world.scope().enabled


@pytest.mark.parametrize("asked", [{}, {"earliest": at(10)}])
def test_the_judge_refuses_a_start_on_a_held_clock(asked: dict[str, Any]) -> None:
    """Invariant 1 is checked apart from the rules that are meant to keep it."""
    told = event(approvals=())
    whole = maintenance(**asked)
    before = Snapshot(
        scopes={"shop": scope(version=1)},
        maintenances={whole.id: whole},
        events={told.id: told},
        hold=Hold(trusted=at(1), noticed=at(60), jumped_s=3_600),
    )
    started = replace(told, status=Status.STARTED, started=at(60), needs_approval=not asked)
    grown = replace(before.scopes["shop"], incarnation=2, changed=at(60))
    after = replace(
        before,
        scopes={"shop": grown},
        events={told.id: started},
        orders={told.id: Order(id=told.id, issued=at(60), deadline=at(60) + timedelta(hours=1))},
    )
    with pytest.raises(InvariantBroken, match="by a clock that jumped"):
        check_invariants(before, after, at(60))
    check_invariants(replace(before, hold=None), replace(after, hold=None), at(60))
