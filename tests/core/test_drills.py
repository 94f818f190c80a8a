"""Drills: events that guests see, prepare for and approve, and that nothing carries out; and how ready the machines were."""

from typing import Any

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import IllegalTransition, Invalid, Refused
from forewarn.core.model import (
    Approval,
    ApprovalMode,
    ClockHold,
    EventType,
    HostMode,
    MaintenanceStatus,
    OrderState,
    Source,
    Status,
    Targets,
)
from forewarn.core.needs_operator import needs_operator
from forewarn.core.readiness import drill_result, machine_readiness
from tests.support.builders import World, at, event, machine, request, scope, shop


def drill(world: World, *machines: str, hold_s: int = 60, **options: Any) -> list[Any]:
    return world.submit(*machines, drill_hold_s=hold_s, **options)


def test_a_drill_asks_every_machine_and_ends_by_itself() -> None:
    """Approval is `all`, the order is done from the beginning, and the event ends after the hold."""
    world = World(scope(), machines=[machine("shop/web-0"), machine("shop/web-1")])
    (subject,) = drill(world, targets=Targets(scope="shop"))
    assert world.event(subject.id).approval_mode is ApprovalMode.ALL
    assert "drill" in subject.description
    world.approve("shop/web-0", subject.id)
    world.tick()
    assert world.status(subject.id) is Status.SCHEDULED
    world.approve("shop/web-1", subject.id)
    world.tick()
    assert (world.status(subject.id), world.order(subject.id).state) == (Status.STARTED, OrderState.DONE)
    assert [(r.code, r.until) for r in world.waiting_for(subject.id)] == [("drill", at(1))]
    assert needs_operator(world.snapshot(), subject.maintenance_id, world.now) == ()
    assert world.maintenance(subject.id).wake_at == at(1)
    with pytest.raises(IllegalTransition):
        world.take(subject.id)
    with pytest.raises(IllegalTransition):
        world.finish(subject.id)
    world.tick_at(1)
    assert world.status(subject.id) is Status.COMPLETED
    assert world.maintenance(subject.id).status is MaintenanceStatus.COMPLETED


def test_a_held_clock_does_not_end_a_drill() -> None:
    """Nobody knows whether the time has passed; the confirmation wakes the drill."""
    world = shop()
    (subject,) = drill(world, "shop/web-0")
    world.start(subject.id)
    world.now = at(60)
    hold = ClockHold(trusted=at(0), noticed=world.now, jumped_s=3_600)
    world.save(Change(at=world.now, hold=hold))
    world.tick()
    assert (world.status(subject.id), world.maintenance(subject.id).wake_at) == (Status.STARTED, None)
    world.save(Change(at=world.now, releases_hold=hold))
    world.tick()
    assert world.status(subject.id) is Status.COMPLETED


@pytest.mark.parametrize("options", [{}, {"source": Source.USER}, {"emergency": True}])
def test_a_real_event_ends_the_drill_of_its_scope(options: dict[str, Any]) -> None:
    """In the same change: a started event is completed, the others are cancelled."""
    world = shop(approve_user_events=True)
    first, second, third = drill(world, targets=Targets(scope="shop"), hold_s=600)
    world.start(first.id)
    (real,), change = world.submit_request(request("shop/web-0", **options))
    ended = {e.id: e.status for e in change.events if e.id != real.id}
    assert ended == {first.id: Status.COMPLETED, second.id: Status.CANCELLED, third.id: Status.CANCELLED}
    assert world.event(first.id).reason == f"the drill ended for event {real.id}"
    world.tick()
    assert world.maintenance(first.id).status is MaintenanceStatus.COMPLETED


def test_an_event_that_cannot_start_yet_ends_no_drill() -> None:
    """A user event approved at creation that waits for its earliest start."""
    world = shop(approve_user_events=True)
    (subject,) = drill(world, "shop/web-0")
    world.submit("shop/web-0", source=Source.USER, earliest=at(30))
    assert world.status(subject.id) is Status.SCHEDULED


def test_a_drill_waits_beside_nothing() -> None:
    """It is refused while guests see a real event, and while another drill is open in the scope."""
    world = shop()
    (subject,) = drill(world, "shop/web-0")
    with pytest.raises(Refused, match="of another drill is open in scope shop"):
        drill(world, "shop/web-1")
    world.cancel_event(subject.id)
    world.tick()
    (real,) = world.submit("shop/web-0")
    with pytest.raises(Refused, match=f"event {real.id} is Scheduled in scope shop"):
        drill(world, "shop/web-1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": EventType.PREEMPT}, "a drill must be a Platform event of type Freeze or Reboot or Redeploy"),
        ({"source": Source.USER}, "a drill must be a Platform event"),
        ({"emergency": True}, "a drill is no emergency"),
        ({"drill_hold_s": 3_601}, "use 0 .no drill. or up to 3600"),
        (
            {"host_mode": HostMode.IN_PLACE, "targets": Targets(hosts=("a",))},
            "a drill touches no host",
        ),
    ],
)
def test_what_a_drill_cannot_be(options: dict[str, Any], message: str) -> None:
    """Only rolling maintenance can be rehearsed."""
    with pytest.raises(Invalid, match=message):
        request("shop/web-0", **{"drill_hold_s": 60, **options})


def test_a_drill_begins_beside_a_real_event_that_is_not_announced() -> None:
    """The real event ends it when it is published."""
    world = shop()
    first, second, _ = world.submit(targets=Targets(scope="shop"))
    world.start(first.id)
    world.pause(first.maintenance_id)
    world.finish(first.id)
    world.tick()
    (subject,) = drill(world, "shop/web-0")
    assert world.status(subject.id) is Status.SCHEDULED
    world.resume(first.maintenance_id)
    world.tick()
    assert (world.status(subject.id), world.status(second.id)) == (Status.CANCELLED, Status.SCHEDULED)


# -- readiness


def approved(name: str, minutes: float) -> Approval:
    return Approval(event_id="", machine=name, who=name, at=at(minutes))


def test_a_machine_is_ready_if_it_approved_before_not_before() -> None:
    """With the time that it needed; a machine that did not is named, with when it first saw the event."""
    subject = event(
        resources=("web-0", "web-1", "web-2"),
        status=Status.COMPLETED,
        started=at(15),
        approvals=(approved("web-0", 2), approved("web-1", 15)),
    )
    found = machine_readiness([subject], {subject.id: {"web-0": at(1)}})
    assert [(m.name, m.ready, m.needed_s, m.seen) for m in found] == [
        ("web-0", True, 120, at(1)),
        ("web-1", False, 900, None),
        ("web-2", False, None, None),
    ]
    counted = drill_result(found)
    assert (counted.machines, counted.measured, counted.ready, counted.slowest_s) == (3, 3, 1, 120)
    assert counted.share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "facts",
    [
        {"status": Status.CANCELLED},
        {"status": Status.PLANNED, "published": None, "not_before": None},
        {"status": Status.COMPLETED, "started": at(3), "approvals": (approved("", 3),)},
    ],
)
def test_a_machine_that_did_not_have_its_notice_is_not_measured(facts: dict[str, Any]) -> None:
    """Its event was cancelled, has not begun, or an operator approved it."""
    (found,) = machine_readiness([event(**facts)], {})
    assert (found.ready, drill_result([found]).share) == (None, None)
