"""A held store: nothing starts and no order is handed out, and everything else goes on."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.errors import InvariantBroken, Refused, StoreHeld
from forewarn.core.invariants import check_invariants
from forewarn.core.model import HoldCause, OrderState, Status, StoreHold
from forewarn.core.store_hold import hold_store, replaced, restored, resume_store, starts_after_resuming
from tests.support.builders import (
    OPERATOR,
    ORDER_TIMEOUT_S,
    World,
    at,
    shop,
)


def hold(world: World, reason: str = "the disk was changed") -> StoreHold:
    """Hold the store as an operator."""
    made = world.save(hold_store(world.snapshot(), reason, now=world.now, actor=OPERATOR)).store_hold
    assert made is not None
    return made


def resume(world: World) -> None:
    held = world.snapshot().store_hold
    assert held is not None
    world.save(resume_store(world.snapshot(), held.held, now=world.now, actor=OPERATOR))


def test_nothing_starts_while_the_store_is_held() -> None:
    """Guests see and approve the event, and the reason names the hold; resuming lets it start."""
    world = shop()
    (published,) = world.submit("shop/web-0")
    hold(world)
    world.approve("shop/web-0", published.id)
    world.now = at(120)
    world.tick()
    assert world.status(published.id) is Status.SCHEDULED
    (reason,) = world.waiting_for(published.id)
    assert reason.code == "store-held"
    assert reason.message == "the store is held: alice requested it: the disk was changed"
    assert world.maintenance(published.id).wake_at is None
    resume(world)
    assert world.maintenance(published.id).wake_at == world.now
    world.tick()
    assert world.status(published.id) is Status.STARTED


@pytest.mark.parametrize(
    ("settings", "options"), [({}, {"emergency": True}), ({"enabled": False}, {})], ids=["emergency", "no notice"]
)
def test_not_even_what_needs_no_notice_starts(settings: dict[str, bool], options: dict[str, bool]) -> None:
    """A submission is saved; neither an emergency nor an event of a scope without guests starts at once."""
    world = shop(**settings)
    hold(world)
    (planned,) = world.submit("shop/web-0", **options)
    world.now = at(60)
    world.tick()
    assert world.status(planned.id) is not Status.STARTED
    assert "store-held" in world.codes(planned.id)
    assert not world.snapshot().orders


def started(world: World) -> str:
    (published,) = world.submit("shop/web-0")
    world.start(published.id)
    return published.id


@pytest.mark.parametrize("hand_out", [World.take, World.take_over], ids=["take", "take over"])
def test_no_order_is_handed_out(hand_out: Callable[[World, str], object]) -> None:
    """An executor can take neither an open order nor the order of a dead node; it can report what it has."""
    world = shop()
    order_id = started(world)
    if hand_out is World.take_over:
        world.take(order_id)
    hold(world)
    with pytest.raises(StoreHeld, match="no order is handed out"):
        hand_out(world, order_id)
    assert world.codes(order_id) == (["executor"] if hand_out is World.take_over else ["store-held"])
    world.finish(order_id)
    assert world.status(order_id) is Status.COMPLETED


def test_no_order_times_out_while_nobody_may_take_it() -> None:
    """A deadline that passes during the hold does not count; after resuming, the order has its whole time limit."""
    world = shop()
    order_id = started(world)
    hold(world)
    world.now = at(600)
    world.tick()
    assert world.order(order_id).state is OrderState.OPEN
    assert world.maintenance(order_id).wake_at is None
    resume(world)
    world.tick()
    limit = at(600) + timedelta(seconds=ORDER_TIMEOUT_S)
    assert (world.order(order_id).state, world.order(order_id).deadline) == (OrderState.OPEN, limit)
    assert world.maintenance(order_id).wake_at == limit
    world.now = limit
    world.tick()
    assert world.order(order_id).state is OrderState.FAILED


def test_an_operator_resumes_only_the_hold_that_was_shown() -> None:
    """A hold that began meanwhile must be shown first; a store that is not held cannot be resumed."""
    world = shop()
    with pytest.raises(Refused, match="not held"):
        resume_store(world.snapshot(), None, now=world.now, actor=OPERATOR)
    held = hold(world)
    with pytest.raises(Refused, match="not the hold that you saw"):
        resume_store(world.snapshot(), at(-1), now=world.now, actor=OPERATOR)
    with pytest.raises(Refused, match="already held: alice requested it"):
        hold_store(world.snapshot(), "", now=world.now, actor=OPERATOR)
    change = resume_store(world.snapshot(), held.held, now=world.now, actor=OPERATOR)
    assert [(entry.who, entry.origin, entry.action) for entry in change.audit] == [
        ("alice", "console", "store resumed")
    ]


def test_the_events_that_would_start_are_known_before() -> None:
    """The preview lists what the next tick after resuming starts, and changes nothing."""
    world = shop()
    (ready,) = world.submit("shop/web-0")
    world.approve("shop/web-0", ready.id)
    hold(world)
    world.submit("shop/web-1")
    snapshot = world.snapshot()
    found = starts_after_resuming(snapshot, now=world.now, order_timeout_s=ORDER_TIMEOUT_S)
    assert [event.id for event in found] == [ready.id]
    assert world.snapshot() == snapshot
    resume(world)
    world.tick()
    assert [e.id for e in world.snapshot().events.values() if e.status is Status.STARTED] == [ready.id]


@pytest.mark.parametrize(
    ("change", "cause", "actions"),
    [
        (restored("/backup.db", now=at(1), actor=OPERATOR), HoldCause.RESTORED, ["database restored", "store held"]),
        (replaced("it is older", now=at(1), actor=OPERATOR), HoldCause.REPLACED, ["database replaced", "store held"]),
    ],
    ids=["restored", "replaced"],
)
def test_a_restored_database_is_held_and_the_audit_says_why(change, cause, actions) -> None:  # type: ignore[no-untyped-def]
    """The entry names who did it and from where."""
    assert (change.store_hold.cause, change.store_hold.held) == (cause, at(1))
    assert [entry.action for entry in change.audit] == actions
    assert {(entry.who, entry.origin, entry.at) for entry in change.audit} == {("alice", "console", at(1))}


@pytest.mark.parametrize(
    ("state", "node", "number"), [(OrderState.OPEN, "", 1), (OrderState.RUNNING, "n", 11)], ids=["start", "hand out"]
)
def test_the_invariants_refuse_work_while_the_store_is_held(state: OrderState, node: str, number: int) -> None:
    """Invariants 1 and 11 are checked independently of the rules that should ensure them."""
    world = shop()
    order_id = started(world)
    after = world.snapshot()
    held = StoreHold(cause=HoldCause.REQUESTED, detail="x", who="alice", held=at(0))
    order = replace(after.orders[order_id], state=state, node=node)
    before = replace(after, store_hold=held)
    if number == 1:
        event = replace(after.events[order_id], status=Status.SCHEDULED, started=None)
        grown = replace(after.scopes["shop"], incarnation=after.scopes["shop"].incarnation - 1)
        before = replace(before, events={order_id: event}, orders={}, scopes={"shop": grown})
    after = replace(after, orders={order_id: order})
    with pytest.raises(InvariantBroken, match=rf"invariant {number}: .* while the store is held"):
        check_invariants(before, after, world.now)
    check_invariants(replace(before, store_hold=None), after, world.now)
