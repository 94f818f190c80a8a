"""Why an event has not started, or not ended: every code, and that explanation and decision never disagree."""

from dataclasses import replace

import pytest

from forewarn.core.model import (
    OPEN,
    ApprovalMode,
    EventType,
    OnFailure,
    Source,
    Status,
    Targets,
)
from forewarn.core.reason import MAX_NAMED, Waiting
from forewarn.core.transitions import Verb
from forewarn.core.waiting import listed
from tests.support.builders import World, at, machine, scope, shop, two_scopes


def only(world: World, event_id: str) -> Waiting:
    """The one thing an event waits for."""
    (reason,) = world.waiting_for(event_id)
    return reason


# -- code by code


def test_notice_and_approval() -> None:
    """A published event waits for approval or until its notice ends, with the time."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    approval, notice = world.waiting_for(event.id)
    assert (approval.code, approval.message) == ("approval", "no machine of shop has approved")
    assert approval.machines == ("web-0",)
    assert (notice.code, notice.message, notice.until) == ("notice", "its notice runs", at(15))


def test_approval_names_the_machines_that_are_missing() -> None:
    """approval = all: the machines that have not approved are named."""
    world = World(scope(approval=ApprovalMode.ALL), machines=[machine(f"shop/web-{i}") for i in range(3)])
    (event,) = world.submit("shop/web-0", "shop/web-1", "shop/web-2")
    world.approve("shop/web-1", event.id)
    approval = world.waiting_for(event.id)[0]
    assert (approval.code, approval.message) == ("approval", "not approved by web-0, web-2")
    assert approval.machines == ("web-0", "web-2")


def test_approval_may_be_an_operators() -> None:
    """approval = operator: the event waits for an operator, not for a machine."""
    world = shop(approval=ApprovalMode.OPERATOR)
    (event,) = world.submit("shop/web-0")
    approval = world.waiting_for(event.id)[0]
    assert (approval.code, approval.message, approval.machines) == ("approval", "an operator has not approved", ())


def test_wave() -> None:
    """An approved event waits for the other events of its wave, which are named."""
    world = two_scopes()
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    world.approve("shop/web-0", shop_0.id)
    reason = only(world, shop_0.id)
    assert (reason.code, reason.events) == ("wave", (ship.id,))
    assert reason.message == "the events of a wave start together, and 1 other event(s) of this wave are not ready"
    assert world.codes(ship.id) == ["approval", "notice"]


def test_earlier_wave() -> None:
    """A planned event waits for the end of the wave before it."""
    world = shop(domains=3)
    first, second, third = world.submit(targets=Targets(scope="shop"))
    for each in (second, third):
        reason = only(world, each.id)
        assert (reason.code, reason.message, reason.events) == ("earlier-wave", "wave 1 has not ended", (first.id,))


def test_update_domain() -> None:
    """A due platform event waits for a started event in another update domain, which is named."""
    world = shop(domains=2)
    (running,) = world.submit("shop/web-0")
    world.start(running.id)
    (event,) = world.submit("shop/web-1")
    world.start(event.id)
    reason = only(world, event.id)
    assert (reason.code, reason.events) == ("update-domain", (running.id,))
    assert reason.message == f"event {running.id} has started in update domain 0 of shop"


def test_machine() -> None:
    """A due event waits for a started event with one of its machines; machine and event are named."""
    world = World(scope(), machines=[machine(f"shop/web-{i}") for i in range(2)])
    (running,) = world.submit("shop/web-1", type=EventType.PREEMPT)
    world.start(running.id)
    (event,) = world.submit("shop/web-0", "shop/web-1")
    world.start(event.id)
    reason = only(world, event.id)
    assert (reason.code, reason.machines, reason.events) == ("machine", ("web-1",), (running.id,))
    assert reason.message == f"web-1 in shop is in event {running.id}, which has started"


def test_queue() -> None:
    """A due wave waits for the first of the due waves ahead of it in its scope."""
    world = two_scopes()
    (busy,) = world.submit("ship/web-1")
    world.start(busy.id)
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    world.now = at(1)
    (second,) = world.submit("shop/web-1", source=Source.USER)
    (third,) = world.submit("shop/web-1", source=Source.USER, type=EventType.REDEPLOY, not_before=at(17))
    world.start(ship.id, shop_0.id, second.id, third.id)
    for each in (second, third):
        reason = only(world, each.id)
        assert (reason.code, reason.events) == ("queue", (ship.id, shop_0.id))
        assert reason.message == f"maintenance {ship.maintenance_id} is due in this scope and is ahead in the queue"


def test_only_waves_of_a_shared_scope_queue() -> None:
    """A maintenance that is due only in other scopes is not ahead in the queue."""
    world = two_scopes()
    (busy,) = world.submit("ship/web-1")
    world.start(busy.id)
    first, shop_0, _ = world.submit("ship/web-0", "shop/web-0", "shop/web-1")
    world.cancel_event(shop_0.id)  # what is left of wave 1 is in ship, where it is blocked
    world.now = at(1)
    (event,) = world.submit("shop/web-0", source=Source.USER)
    world.start(first.id, event.id)
    assert world.status(first.id) is Status.SCHEDULED
    assert world.status(event.id) is Status.STARTED


def test_earliest() -> None:
    """An approved event waits for the earliest start, with the time."""
    world = shop()
    (event,) = world.submit("shop/web-0", earliest=at(45))
    world.approve("shop/web-0", event.id)
    reason = only(world, event.id)
    assert (reason.code, reason.until) == ("earliest", at(45))
    assert reason.message == "its maintenance has an earliest start: even an approved event waits"
    world.now = at(45)
    assert only(world, event.id).code == "ticker"


def test_paused() -> None:
    """Every event of a paused maintenance lists the pause, and what else it waits for."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.pause(first.maintenance_id)
    assert world.codes(first.id) == ["paused", "approval", "notice"]
    assert world.codes(second.id) == ["paused", "earlier-wave"]
    assert world.waiting_for(first.id)[0].message == "the maintenance is paused"


def test_held_by_a_failed_order() -> None:
    """on_failure = hold: the rest of the maintenance waits; the failed event and its reason are named."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.fail(first.id)
    reasons = world.waiting_for(second.id)
    assert [reason.code for reason in reasons] == ["unresolved", "earlier-wave"]
    assert reasons[0].events == (first.id,)
    assert reasons[0].message == f"the order of event {first.id} failed (burnt) and holds the maintenance"


def test_held_by_several_failed_orders() -> None:
    """The failures are counted, and the first is described."""
    world = two_scopes()
    ship, shop_0, later, _ = world.submit("ship/web-0", "shop/web-0", "ship/web-1", "shop/web-1")
    world.start(ship.id, shop_0.id)
    for each in (ship, shop_0):
        world.fail(each.id)
    held, _ = world.waiting_for(later.id)
    assert (held.code, held.events) == ("unresolved", (ship.id, shop_0.id))
    assert held.message == f"2 orders failed and hold the maintenance, the first in event {ship.id} (burnt)"


def test_an_earlier_wave_with_an_order_in_doubt() -> None:
    """An order in doubt holds nothing but the end of its wave; later waves name it as the cause."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.take(first.id)
    world.doubt(first.id)
    reason = only(world, second.id)
    assert (reason.code, reason.events) == ("unresolved", (first.id,))
    assert reason.message == f"event {first.id} of wave 1 has started, and its order is in doubt (its node is gone)"


def test_another_maintenance_whose_order_failed() -> None:
    """A failed order keeps its machine and its update domain: the events that wait for them name the failure."""
    world = shop()
    (failed,) = world.submit("shop/web-0")
    world.start(failed.id)
    world.fail(failed.id)
    (other_domain,) = world.submit("shop/web-1")
    world.now = at(1)
    (same_machine,) = world.submit("shop/web-0", source=Source.USER)
    (behind,) = world.submit("shop/web-2", source=Source.USER)
    world.tick_at(60)
    domain_busy = only(world, other_domain.id)
    assert (domain_busy.code, domain_busy.events) == ("unresolved", (failed.id,))
    because = f"event {failed.id} has started in update domain 0 of shop, and its order failed (burnt)"
    assert domain_busy.message == because
    machine_busy, queued = world.waiting_for(same_machine.id)
    assert (machine_busy.code, machine_busy.machines, machine_busy.events) == ("unresolved", ("web-0",), (failed.id,))
    assert machine_busy.message == (
        f"web-0 in shop is in event {failed.id}, which has started, and its order failed (burnt)"
    )
    assert queued == only(world, behind.id)
    assert (queued.code, queued.machines, queued.events) == ("unresolved", (), (failed.id,))
    assert queued.message == (
        f"maintenance {other_domain.maintenance_id} is due in this scope and is ahead in the queue;"
        f" it cannot start because {because}"
    )


def test_a_failure_is_named_before_waits_that_end_by_themselves() -> None:
    """However many running events hold the machines of an event, the failed one is among the few that are named."""
    names = [f"shop/web-{i}" for i in range(MAX_NAMED + 2)]
    world = World(scope(), machines=[machine(name) for name in names])
    running = world.submit(*names, type=EventType.PREEMPT)
    world.start(*(event.id for event in running))
    world.fail(running[-1].id)
    (event,) = world.submit(*names)
    world.start(event.id)
    reasons = world.waiting_for(event.id)
    assert (len(reasons), reasons[0].code, reasons[0].events) == (MAX_NAMED, "unresolved", (running[-1].id,))
    assert {reason.code for reason in reasons[1:]} == {"machine"}


def test_executor() -> None:
    """A started event waits until its order is taken and then done, with the deadline."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    reason = only(world, event.id)
    assert (reason.code, reason.message) == ("executor", "its order waits for an executor to take it")
    assert reason.until == at(60)
    world.take(event.id)
    assert only(world, event.id) == replace(reason, message="its order is being carried out")


def test_order_failed() -> None:
    """A started event with a failed order waits for an operator, with the reason of the failure."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.fail(event.id)
    reason = only(world, event.id)
    assert reason.code == "order-failed"
    assert reason.message == "its order failed (burnt)"


def test_in_doubt() -> None:
    """A Started event whose order is in doubt waits for an operator, without an end."""
    world = shop(domains=1)
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.take(event.id)
    world.doubt(event.id)
    reason = only(world, event.id)
    assert (reason.code, reason.until) == ("in-doubt", None)
    assert reason.message == (
        "its work may have begun, and its end is not known (its node is gone); it was taken by node-1"
    )


def test_ticker() -> None:
    """An event that nothing holds back waits for the ticker to publish or start it."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.approve("shop/web-0", first.id)
    assert only(world, first.id).code == "ticker"
    assert only(world, first.id).message == "nothing holds it back: the ticker moves it in its next cycle"
    world.tick()
    world.finish(first.id)
    assert only(world, second.id).code == "ticker"


def test_an_event_approved_at_creation_lists_its_obstacles() -> None:
    """The event is invisible to guests and waits for neither approval nor notice."""
    world = shop(approve_user_events=True)
    (running,) = world.submit("shop/web-0", source=Source.USER)
    (event,) = world.submit("shop/web-0", source=Source.USER, type=EventType.REDEPLOY)
    assert event.status is Status.PLANNED
    assert only(world, event.id).code == "machine"
    world.finish(running.id)
    assert only(world, event.id).code == "ticker"


def test_a_disabled_scopes_event_waits_for_its_wave_only() -> None:
    """An event that needs no approval names the events of its wave that do."""
    world = two_scopes(enabled=False)
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    reason = only(world, ship.id)
    assert (reason.code, reason.events) == ("wave", (shop_0.id,))


@pytest.mark.parametrize("verb", [Verb.FINISH, Verb.ABANDON])
def test_an_ended_event_waits_for_nothing(verb: Verb) -> None:
    """Completed, Cancelled and Abandoned events wait for nothing."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.fail(first.id)
    world.resolve_failure(first.id, verb)
    world.cancel_event(second.id)
    assert world.waiting_for(first.id) == world.waiting_for(second.id) == ()


def test_all_obstacles_are_listed_at_once() -> None:
    """An event lists every obstacle, not only the first."""
    world = shop(domains=2)
    (running,) = world.submit("shop/web-0", type=EventType.PREEMPT)
    world.start(running.id)
    (event,) = world.submit("shop/web-1", earliest=at(60))
    world.pause(event.maintenance_id)
    assert world.codes(event.id) == ["paused", "approval", "notice", "earliest", "update-domain"]


# -- explanation and decision


def test_an_event_moves_exactly_when_it_waits_for_the_ticker() -> None:
    """Each tick moves the events whose reason was `ticker`, and no others."""
    world = World(
        scope("shop"),
        scope("ship", approval=ApprovalMode.ALL),
        machines=[machine(f"{name}/web-{i}", i) for name in ("shop", "ship") for i in range(2)],
    )
    every = [
        *world.submit(*(f"{name}/web-{i}" for name in ("shop", "ship") for i in range(2)), earliest=at(20)),
        *world.submit("shop/web-1", source=Source.USER),
        *world.submit("ship/web-1", type=EventType.PREEMPT, on_failure=OnFailure.CONTINUE),
    ]
    moved_by_ticks = 0
    for minute in range(90):
        world.now = at(minute)
        expected = {e.id for e in every if "ticker" in world.codes(e.id)}
        before = {e.id: world.status(e.id) for e in every}
        world.tick()
        moved = {event_id for event_id, status in before.items() if world.status(event_id) is not status}
        assert moved == expected
        moved_by_ticks += len(moved)
        for each in every:
            if minute % 7 == 0 and world.status(each.id) is Status.STARTED:
                world.finish(each.id)
    assert moved_by_ticks >= 6
    assert not any(world.status(e.id) in OPEN for e in every)


def test_a_long_list_of_names_is_shortened() -> None:
    """A reason names at most MAX_NAMED machines and counts the rest."""
    names = [f"vm-{n}" for n in range(MAX_NAMED + 2)]
    assert listed(names[:2]) == "vm-0, vm-1"
    assert listed(names[:MAX_NAMED]).endswith("vm-9")
    assert listed(names).endswith("vm-9 and 2 more")
