"""Rescheduling: an event is planned again under a new id, a host has its turn later; neither moves past the deadline."""

from dataclasses import replace
from datetime import datetime

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import IllegalTransition, Invalid, NotFound, Refused
from forewarn.core.fleet_rules import FleetRules, Window
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import ClockHold, EventType, Host, HostMode, OrderState, Source, Status, Targets
from forewarn.core.rescheduling import reschedule_event, reschedule_host
from forewarn.core.store_hold import hold_store
from tests.support.builders import OPERATOR, World, at, guid, machine, request, scope, shop, two_scopes


def move(world: World, event_id: str, minutes: float, *, most: int = 3) -> str:
    """Reschedule an event; return the id of the event that replaces it."""
    return move_to(world, event_id, at(minutes), most=most)


def move_to(world: World, event_id: str, not_before: datetime, *, most: int = 3) -> str:
    change, moved = reschedule_event(
        world.snapshot(),
        event_id,
        not_before,
        now=world.now,
        actor=OPERATOR,
        new_id=lambda: guid(7_000 + len(world.snapshot().events)),
        max_reschedules=most,
    )
    world.save(change)
    return moved


def move_host(world: World, maintenance_id: str, host: str, minutes: float, *, most: int = 1) -> Change:
    return world.save(
        reschedule_host(
            world.snapshot(), maintenance_id, host, at(minutes), now=world.now, actor=OPERATOR, max_reschedules=most
        )
    )


# -- events


def test_a_rescheduled_event_is_planned_again_as_the_last_wave() -> None:
    """Under a new id, without the approvals; both events name each other."""
    world = two_scopes()
    first, other, *_ = world.submit(targets=Targets(scopes=("shop", "ship")))
    world.approve(f"{first.scope}/{first.resources[0]}", first.id)
    moved = world.event(move(world, first.id, 60))
    before = world.event(first.id)
    assert (before.status, before.replaced_by, before.ended) == (Status.CANCELLED, moved.id, world.now)
    assert (moved.status, moved.replaces, moved.reschedules) == (Status.PLANNED, first.id, 1)
    assert (moved.requested_not_before, moved.approvals, moved.published) == (at(60), (), None)
    assert moved.wave == 1 + max(e.wave for e in world.snapshot().events.values() if e.id != moved.id)
    assert (moved.resources, moved.scope, moved.type) == (first.resources, first.scope, first.type)
    assert world.status(other.id) is Status.SCHEDULED


def test_rescheduled_events_come_in_the_order_of_their_times() -> None:
    """A planned wave with a later time moves back; one that is announced keeps its number."""
    world = shop(4)
    first, second, third, fourth = world.submit(*(f"shop/web-{n}" for n in range(4)))
    late, early = move(world, third.id, 300), move(world, second.id, 100)
    between = move(world, fourth.id, 200)
    assert [world.event(each).wave for each in (first.id, early, between, late)] == [1, 5, 6, 7]
    world.start(first.id)
    world.finish(first.id)
    world.tick_at(85)
    assert world.status(early) is Status.SCHEDULED
    again = move(world, between, 99)
    assert [world.event(each).wave for each in (early, again, late)] == [5, 6, 8]


def test_a_later_wave_moves_behind_the_numbers_of_ended_events() -> None:
    """An event that was moved twice leaves a high number behind: the moved event and a later one do not share a wave."""
    world = shop(3)
    _, second, third = world.submit(*(f"shop/web-{n}" for n in range(3)))
    late = move(world, second.id, 200)
    left_behind = move(world, third.id, 300)
    again = move(world, left_behind, 100)
    assert world.event(left_behind).wave == world.event(late).wave
    early = move(world, again, 50)
    assert world.event(left_behind).wave < world.event(early).wave < world.event(late).wave


def test_a_change_of_a_wave_counts_as_a_change_of_its_scope() -> None:
    """Otherwise a decision of the same time could undo it."""
    world = two_scopes()
    first, other, *_ = world.submit(targets=Targets(scopes=("shop", "ship")))
    move(world, first.id, 300)
    change, _ = reschedule_event(
        world.snapshot(),
        other.id,
        at(200),
        now=world.now,
        actor=OPERATOR,
        new_id=lambda: guid(7_999),
        max_reschedules=1,
    )
    assert {each.name for each in change.scopes} == {"shop", "ship"}


def test_a_rescheduled_event_is_announced_by_its_notice_and_starts_at_the_requested_time() -> None:
    """Not earlier, approved or not."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    moved = move(world, event.id, 60)
    world.tick()
    assert (world.codes(moved), world.maintenance(moved).wake_at) == (["requested-start"], at(45))
    world.tick_at(45)
    assert (world.status(moved), world.event(moved).not_before) == (Status.SCHEDULED, at(60))
    world.start(moved)
    assert (world.codes(moved), world.maintenance(moved).wake_at) == (["requested-start"], at(60))
    world.tick_at(60)
    assert world.status(moved) is Status.STARTED


def test_an_event_without_notice_can_be_rescheduled() -> None:
    """A user event that its scope approves, while a machine is busy; a disabled scope."""
    world = shop(approve_user_events=True)
    (busy,) = world.submit("shop/web-0")
    world.start(busy.id)
    (event,) = world.submit("shop/web-0", source=Source.USER)
    moved = move(world, event.id, 30)
    world.finish(busy.id)
    world.tick()
    assert (world.status(moved), world.maintenance(moved).wake_at) == (Status.PLANNED, at(30))
    world.tick_at(30)
    assert world.status(moved) is Status.STARTED
    silent = shop(enabled=False)
    (event,) = silent.submit("shop/web-0", not_before=at(10))
    moved = move(silent, event.id, 30)
    silent.tick_at(29)
    assert silent.status(moved) is Status.PLANNED
    silent.tick_at(30)
    assert silent.status(moved) is Status.STARTED


@pytest.mark.parametrize(
    ("minutes", "message"),
    [(0, "not_before has passed"), (60, "the deadline of its maintenance"), (61, "the deadline of its maintenance")],
)
def test_times_that_are_refused(minutes: float, message: str) -> None:
    """A time that has passed, and the deadline or later."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(60))
    with pytest.raises(Refused, match=message):
        move(world, event.id, minutes)
    move(world, event.id, 59)


def test_the_notice_alone_may_reach_the_deadline() -> None:
    """The new event could not start in time without approval."""
    world = shop()
    (event,) = world.submit("shop/web-0", not_after=at(15))
    with pytest.raises(Refused, match="the deadline of its maintenance"):
        move(world, event.id, 5)


def test_a_window_must_open_before_the_deadline() -> None:
    """Of an event, and of the machines on a host."""
    nights = FleetRules(windows={"nights": Window(name="nights", spans=("daily 13:00-14:00",))})
    world = shop(windows=("nights",))
    world.save(Change(at=world.now, fleet_rules=nights))
    (event,) = world.submit("shop/web-0", not_after=at(24 * 60))
    with pytest.raises(Refused, match="its windows and no-go times leave no start between"):
        move(world, event.id, 120)
    move(world, event.id, 119)
    world, maintenance_id = farm(not_after=at(24 * 60), windows=("nights",))
    world.save(Change(at=world.now, fleet_rules=nights))
    with pytest.raises(Refused, match="its windows and no-go times leave no start between"):
        move_host(world, maintenance_id, "kvm-1", 120)
    move_host(world, maintenance_id, "kvm-1", 119)


def test_what_cannot_be_rescheduled() -> None:
    """A started event, one that was moved too often, an emergency, a time without a zone."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    with pytest.raises(Invalid, match="must be a time in UTC"):
        move_to(world, event.id, at(60).replace(tzinfo=None))
    with pytest.raises(Refused, match="was rescheduled 0 times, and max_reschedules is 0"):
        move(world, event.id, 60, most=0)
    with pytest.raises(NotFound):
        move(world, guid(999), 60)
    world.start(event.id)
    with pytest.raises(IllegalTransition):
        move(world, event.id, 60)
    world.save(hold_store(world.snapshot(), "", now=world.now, actor=OPERATOR))
    (emergency,) = world.submit("shop/web-1", emergency=True)
    with pytest.raises(Refused, match="is an emergency"):
        move(world, emergency.id, 60)


def test_a_held_clock_does_not_reach_the_requested_start() -> None:
    """Neither an approval nor a jump of the clock brings it forward."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    moved = move(world, event.id, 20)
    world.tick_at(10)
    world.now = at(60)
    world.save(Change(at=world.now, hold=ClockHold(trusted=at(11), noticed=world.now, jumped_s=3_000)))
    world.start(moved)
    assert (world.status(moved), world.codes(moved)) == (Status.SCHEDULED, ["requested-start", "clock"])
    assert world.maintenance(moved).wake_at is None


def test_a_held_clock_does_not_announce_a_rescheduled_event() -> None:
    """The jump may be false: the event would be announced long before its requested time."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    moved = move(world, event.id, 1_000)
    world.now = at(990)
    hold = ClockHold(trusted=at(11), noticed=world.now, jumped_s=58_000)
    world.save(Change(at=world.now, hold=hold))
    world.tick()
    assert (world.status(moved), world.codes(moved)) == (Status.PLANNED, ["requested-start", "clock"])
    world.save(Change(at=world.now, releases_hold=hold))
    world.tick()
    assert world.status(moved) is Status.SCHEDULED


# -- hosts


def farm(windows: tuple[str, ...] = (), **options: object) -> tuple[World, str]:
    """Submit a maintenance of two hosts with one machine each; return its id too."""
    world = World(scope(windows=windows), machines=[machine(f"shop/web-{n}", n, host=f"kvm-{n}") for n in range(2)])
    options = {"type": EventType.FREEZE, "host_mode": HostMode.EVACUATE, **options}
    (first, *_), _ = world.submit_request(request(targets=Targets(hosts=("kvm-0", "kvm-1")), **options))
    return world, first.maintenance_id


def test_a_host_moves_behind_the_others() -> None:
    """Its event is cancelled, its cordon is lifted, and its order keeps its id."""
    world, maintenance_id = farm()
    first = next(iter(world.snapshot().events.values()))
    with pytest.raises(Refused, match="is part of the work on host kvm-0: an operator reschedules the host"):
        move(world, first.id, 120)
    move_host(world, maintenance_id, "kvm-0", 120)
    order = next(o for o in world.snapshot().orders.values() if o.host == "kvm-0")
    assert (order.position, order.reschedules, order.requested_not_before) == (3, 1, at(120))
    assert (world.status(first.id), world.event(first.id).replaced_by) == (Status.CANCELLED, maintenance_id)
    assert world.snapshot().hosts["kvm-0"].cordoned is None
    world.tick()
    assert [e.host for e in world.snapshot().events.values() if e.status is Status.SCHEDULED] == ["kvm-1"]
    with pytest.raises(Refused, match="host kvm-0 was rescheduled 1 times, and max_reschedules is 1"):
        move_host(world, maintenance_id, "kvm-0", 180)


def test_rescheduled_hosts_come_in_the_order_of_their_times() -> None:
    """A host whose turn has begun keeps it."""
    world, maintenance_id = farm()
    move_host(world, maintenance_id, "kvm-0", 120)
    move_host(world, maintenance_id, "kvm-1", 60)

    def turns() -> list[str]:
        orders = (order for order in world.snapshot().orders.values() if order.host)
        return [order.host for order in sorted(orders, key=lambda order: order.position)]

    assert turns() == ["kvm-1", "kvm-0"]
    world.tick_at(45)
    assert [e.host for e in world.snapshot().events.values() if e.status is Status.SCHEDULED] == ["kvm-1"]
    move_host(world, maintenance_id, "kvm-0", 59, most=2)
    assert turns() == ["kvm-1", "kvm-0"]


def test_a_held_clock_does_not_plan_a_rescheduled_host() -> None:
    """Its events would be announced at once."""
    world, maintenance_id = farm()
    move_host(world, maintenance_id, "kvm-0", 1_000)
    world.skip_host(maintenance_id, "kvm-1")
    world.now = at(990)
    hold = ClockHold(trusted=at(11), noticed=world.now, jumped_s=58_000)
    world.save(Change(at=world.now, hold=hold))
    world.tick()
    assert {e.status for e in world.snapshot().events.values()} == {Status.CANCELLED}
    world.save(Change(at=world.now, releases_hold=hold))
    world.tick()
    assert [e.host for e in world.snapshot().events.values() if e.status is Status.SCHEDULED] == ["kvm-0"]


def test_an_empty_host_waits_for_its_requested_time() -> None:
    """It has no events that could wait."""
    world = World(scope(), machines=[machine("shop/web-0", host="kvm-0")])
    world.hosts = ("kvm-0", "kvm-1")
    world.save(
        Change(at=world.now, hosts=(replace(world.snapshot().hosts.get("kvm-1") or Host(name="kvm-1"), listed=True),))
    )
    (event, *_), _ = world.submit_request(
        request(type=EventType.FREEZE, targets=Targets(hosts=("kvm-0", "kvm-1")), host_mode=HostMode.EVACUATE)
    )
    move_host(world, event.maintenance_id, "kvm-1", 60)
    world.skip_host(event.maintenance_id, "kvm-0")
    world.tick()
    order = next(o for o in world.snapshot().orders.values() if o.host == "kvm-1")
    assert (order.state, world.maintenance(event.id).wake_at) == (OrderState.PLANNED, at(60))
    (reason,) = waiting_for_hosts(world.snapshot(), event.maintenance_id, world.now)["kvm-1"]
    assert (reason.code, reason.until) == ("requested-start", at(60))
    world.tick_at(60)
    assert world.snapshot().orders[order.id].state is OrderState.OPEN


def test_hosts_that_cannot_be_rescheduled() -> None:
    """A host of another maintenance, one whose machines leave, one past the deadline, an emergency."""
    world, maintenance_id = farm(not_after=at(60))
    with pytest.raises(NotFound, match="does not work on host 'kvm-9'"):
        move_host(world, maintenance_id, "kvm-9", 30)
    with pytest.raises(Refused, match="the deadline of its maintenance"):
        move_host(world, maintenance_id, "kvm-1", 60)
    world.start(next(iter(world.snapshot().events)))
    with pytest.raises(Refused, match="the turn of host kvm-0 has begun"):
        move_host(world, maintenance_id, "kvm-0", 30)
    world, maintenance_id = farm(type=EventType.REBOOT, host_mode=HostMode.IN_PLACE, emergency=True)
    with pytest.raises(Refused, match="is an emergency"):
        move_host(world, maintenance_id, "kvm-1", 30)
