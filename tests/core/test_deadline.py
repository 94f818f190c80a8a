"""The deadline of a maintenance: what has not started by then is cancelled, and the maintenance ends as Failed."""

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import Refused
from forewarn.core.model import ClockHold, EventType, HostMode, MaintenanceStatus, OrderState, Status, Targets
from forewarn.core.store_hold import hold_store, resume_store
from tests.support.builders import OPERATOR, World, at, machine, request, scope, shop


def test_what_has_not_started_is_cancelled_at_the_deadline() -> None:
    """Not before it; the published wave and the planned one alike."""
    world = shop()
    first, second, third = world.submit(targets=Targets(scope="shop"), not_after=at(20))
    world.start(first.id)
    world.finish(first.id)
    world.tick_at(10)
    assert (world.status(second.id), world.maintenance(first.id).wake_at) == (Status.SCHEDULED, at(20))
    world.pause(first.maintenance_id)
    assert world.maintenance(first.id).wake_at == at(20)
    world.tick_at(19)
    assert world.status(second.id) is Status.SCHEDULED
    change = world.tick_at(20)
    assert [world.status(each.id) for each in (second, third)] == [Status.CANCELLED] * 2
    assert world.event(third.id).reason == "it had not started by the deadline of its maintenance, 2030-01-01T12:20:00Z"
    assert (change.audit[0].action, change.audit[0].detail) == ("deadline passed", "2030-01-01T12:20:00Z")
    ended = world.maintenance(first.id)
    assert (ended.status, ended.ended, ended.wake_at) == (MaintenanceStatus.FAILED, at(20), None)


def test_a_maintenance_that_has_started_everything_keeps_no_deadline() -> None:
    """Work that has started runs to its end, and the maintenance completes."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(20))
    world.start(event.id)
    assert world.maintenance(event.id).wake_at == at(60)  # the time limit of its order
    world.tick_at(30)
    world.finish(event.id)
    world.tick()
    assert world.maintenance(event.id).status is MaintenanceStatus.COMPLETED


def test_a_cancelled_maintenance_does_not_become_failed() -> None:
    """An operator cancelled it before the deadline."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(20))
    world.cancel_maintenance(event.maintenance_id)
    assert world.maintenance(event.id).status is MaintenanceStatus.CANCELLED


def test_a_deadline_that_has_passed_is_refused() -> None:
    """Nothing of the maintenance could start."""
    world = shop()
    world.now = at(20)
    with pytest.raises(Refused, match="not_after has passed"):
        world.submit("shop/web-0", not_after=at(20))


def test_a_request_after_the_deadline_wakes_the_maintenance() -> None:
    """A pause between the deadline and the next tick must not lose the end of the maintenance."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(20), earliest=at(19))
    world.now = at(21)
    world.pause(event.maintenance_id)
    assert world.maintenance(event.id).wake_at == at(21)


def held(world: World, trusted_minutes: float) -> ClockHold:
    """Hold the clock: it is trusted up to this minute."""
    hold = ClockHold(trusted=at(trusted_minutes), noticed=world.now, jumped_s=3_600)
    world.save(Change(at=world.now, hold=hold))
    return hold


def test_a_held_clock_neither_cancels_nor_starts() -> None:
    """By the clock that jumped the deadline has passed: an approved event waits until an operator confirms the clock."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(20))
    world.now = at(60)
    hold = held(world, 5)
    world.start(event.id)
    assert (world.status(event.id), world.codes(event.id)) == (Status.SCHEDULED, ["clock"])
    assert world.maintenance(event.id).wake_at is None
    world.save(Change(at=world.now, releases_hold=hold))
    world.tick()
    assert world.status(event.id) is Status.CANCELLED


def test_a_held_clock_before_the_deadline_starts_what_is_approved() -> None:
    """The deadline is in the future by both clocks."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(90))
    world.now = at(60)
    held(world, 5)
    world.start(event.id)
    assert world.status(event.id) is Status.STARTED


def test_a_held_store_cancels_nothing() -> None:
    """The store may be an old copy: an operator resumes it first."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(20))
    made = world.save(hold_store(world.snapshot(), "", now=world.now, actor=OPERATOR)).store_hold
    assert made is not None
    world.tick_at(30)
    assert world.status(event.id) is Status.SCHEDULED
    world.save(resume_store(world.snapshot(), made.held, now=world.now, actor=OPERATOR))
    world.tick()
    assert world.status(event.id) is Status.CANCELLED


def test_a_scope_whose_time_is_ahead_reaches_the_deadline_first() -> None:
    """After the clock was set back: nothing can be submitted there, and what a host needs now does not start."""
    world = farm()
    world.now = at(20)
    (first,) = world.submit("shop/web-0")  # the time of the scope does not run backwards from here on
    world.cancel_event(first.id)
    world.now = at(5)
    with pytest.raises(Refused, match="not_after has passed"):
        world.submit("shop/web-0", not_after=at(10))
    events, change = world.submit_request(
        request(targets=Targets(hosts=("kvm-1",)), host_mode=HostMode.IN_PLACE, emergency=True, not_after=at(10))
    )
    assert (change.events[0].status, change.maintenances[0].wake_at) == (Status.PLANNED, at(5))
    assert world.status(events[0].id) is Status.CANCELLED
    assert world.maintenance(events[0].id).status is MaintenanceStatus.FAILED


def farm() -> World:
    return World(scope(), machines=[machine("shop/web-0", host="kvm-1")])


def test_machines_are_brought_back_after_the_deadline() -> None:
    """The deadline cancels what has not begun. It strands no machine."""
    world = farm()
    ((event,), _) = world.submit_request(
        request(
            type=EventType.FREEZE,
            targets=Targets(hosts=("kvm-1",)),
            host_mode=HostMode.EVACUATE,
            return_machines=True,
            not_after=at(10),
        )
    )
    world.start(event.id)
    (order,) = (o for o in world.snapshot().orders.values() if o.host)
    world.tick_at(11)
    assert world.snapshot().orders[order.id].state is OrderState.PLANNED
    world.move(event.id, "kvm-2")
    world.tick()
    world.take(order.id)
    world.finish(order.id)
    world.tick()
    (back,) = (e for e in world.snapshot().events.values() if e.returns)
    world.start(back.id)
    world.move(back.id, "kvm-1")
    world.tick()
    assert world.maintenance(event.id).status is MaintenanceStatus.COMPLETED
