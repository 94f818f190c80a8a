"""Budgets: what counts as unavailable, what waits for room, and who can make room."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.budgets import scope_limit, set_budget, split_by_budget
from forewarn.core.change import Change, Snapshot
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import apply_difference, difference
from forewarn.core.fleet_rules import FleetRules, Window
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import EventType, Host, HostMode, OnFailure, OrderState, Source, Status, Strategy, Targets
from forewarn.core.needs_operator import needs_operator
from forewarn.core.strategy import PlannedEvent
from forewarn.core.transitions import Verb
from tests.support.builders import OPERATOR, START, World, at, machine, maintenance, request, scope, shop, two_scopes

CAPACITY = "max_unavailable allows 1 machine of shop at once"


def one_at_a_time(domains: int = 3) -> World:
    """Return a scope with a machine in each update domain, of which one may be unavailable."""
    return shop(domains=domains, max_unavailable="1")


@pytest.mark.parametrize("text, machines, limit", [("", 9, None), ("3", 9, 3), ("50%", 9, 4), ("10%", 9, 1)])
def test_the_limit_of_a_scope(text: str, machines: int, limit: int | None) -> None:
    """A number, or a share of the machines that is rounded down and is at least one."""
    assert scope_limit(scope(max_unavailable=text), machines) == limit


def test_a_published_event_has_reserved_its_share() -> None:
    """The next wave waits unpublished, names the event that uses the budget, and goes on when that event ends."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-1")
    (reason,) = world.waiting_for(second.id)
    assert (reason.code, reason.events) == ("budget", (first.id,))
    assert reason.message == f"{CAPACITY}: 1 in use, and 1 more needed"
    assert (world.status(second.id), world.maintenance(second.id).wake_at) == (Status.PLANNED, None)
    change = world.cancel_event(first.id)
    assert second.maintenance_id in change.wakes
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


def test_the_end_of_an_event_wakes_a_wave_with_an_earliest_start() -> None:
    """A wave that waits for its budget is woken for that too, not only by its earliest start."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-1", earliest=START.replace(day=2))
    assert second.maintenance_id in world.cancel_event(first.id).wakes
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


@pytest.mark.parametrize(
    "options",
    [
        {"source": Source.USER},
        {"type": EventType.REDEPLOY, "source": Source.USER},
        {"emergency": True},
    ],
)
def test_other_events_count_but_never_wait(options: dict[str, object]) -> None:
    """User events and emergencies find no room and are not held back; rolling maintenance then waits for them."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (other,) = world.submit("shop/web-1", **options)
    assert world.status(other.id) in (Status.SCHEDULED, Status.STARTED)
    world.cancel_event(first.id)
    (second,) = world.submit("shop/web-2")
    (reason,) = world.waiting_for(second.id)
    assert (reason.code, reason.events) == ("budget", (other.id,))


def test_a_machine_in_two_events_counts_once() -> None:
    """A wave for a machine that is unavailable fits beside it, but not into a budget that an emergency has exceeded."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (again,) = world.submit("shop/web-0", type=EventType.FREEZE)
    assert (world.status(first.id), world.status(again.id)) == (Status.SCHEDULED, Status.SCHEDULED)
    world.submit("shop/web-1", emergency=True)
    (third,) = world.submit("shop/web-1", type=EventType.FREEZE)
    assert world.codes(third.id) == ["budget"]


def test_what_is_published_beside_a_waiting_wave_makes_no_room_for_it() -> None:
    """A user's event for the machine of the wave counts as well: only what ends makes room, and wakes the wave."""
    world = one_at_a_time()
    world.submit("shop/web-0")
    (waiting,) = world.submit("shop/web-1")
    world.submit("shop/web-1", source=Source.USER)
    assert world.codes(waiting.id) == ["budget"]


def test_a_wave_waits_for_the_budget_of_each_of_its_scopes() -> None:
    """The events of a wave are published together, so one scope without room holds back the others."""
    world = two_scopes(max_unavailable="1")
    world.submit("ship/web-0")
    wave = world.submit("ship/web-1", "shop/web-0")
    assert [world.codes(event.id) for event in wave] == [["budget"], ["budget"]]


def test_a_failed_event_keeps_its_share_until_it_is_resolved() -> None:
    """With on_failure = continue the next wave still waits, and only an operator can free the budget."""
    world = one_at_a_time()
    first, second, _ = world.submit(targets=Targets(scope="shop"), on_failure=OnFailure.CONTINUE)
    world.start(first.id)
    world.fail(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert reason.message == (
        f"{CAPACITY}: 1 in use, and 1 more needed; event {first.id} keeps its share until its failure is resolved"
    )
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == (reason,)
    world.resolve_failure(first.id, Verb.ABANDON)
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == ()


def test_a_budget_in_use_by_work_that_goes_on_needs_no_operator() -> None:
    """Time and executors end that work."""
    world = shop(domains=3, max_unavailable="2")
    (failed,) = world.submit("shop/web-0")
    world.start(failed.id)
    world.fail(failed.id)
    world.submit("shop/web-1")
    (third,) = world.submit("shop/web-2")
    (reason,) = world.waiting_for(third.id)
    assert (reason.events[0], len(reason.events)) == (failed.id, 2)
    assert needs_operator(world.snapshot(), third.maintenance_id, world.now) == ()


def test_a_wave_larger_than_the_budget_needs_an_operator() -> None:
    """The budget was lowered after planning: the wave is not published, and says what to do."""
    machines = [machine("shop/web-0"), machine("shop/web-1"), machine("shop/web-2", 1)]
    world = World(scope(max_unavailable="2"), machines=machines)
    (first,) = world.submit("shop/web-2")
    (second,) = world.submit("shop/web-0", "shop/web-1")
    snapshot = world.snapshot()
    diff = difference(Fleet(snapshot.scopes, snapshot.machines), Fleet({"shop": scope(max_unavailable="1")}, {}))
    versions = {"shop": snapshot.scopes["shop"].version}
    change = world.save(apply_difference(snapshot, diff, versions=versions, now=world.now, actor=OPERATOR))
    assert change.wakes == (second.maintenance_id,)
    world.cancel_event(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert reason.message == f"{CAPACITY}, and this wave has 2: it cannot be published before the budget is raised"
    assert reason.events == (second.id,)
    assert needs_operator(world.snapshot(), second.maintenance_id, world.now) == (reason,)


# -- the fleet


def limited(world: World, **limits: int) -> World:
    """Set the budgets of the fleet."""
    given = {"max_hosts_down": None, "max_machines_down": None, **limits}
    world.save(set_budget(world.snapshot(), **given, now=world.now, actor=OPERATOR))
    return world


def test_the_budget_of_the_fleet_is_set_in_part() -> None:
    """What is not given stays; the audit names what changed, and setting the same again changes nothing."""
    world = limited(shop(), max_hosts_down=2)
    change = set_budget(world.snapshot(), max_hosts_down=None, max_machines_down=7, now=world.now, actor=OPERATOR)
    assert change.fleet_rules == FleetRules(max_hosts_down=2, max_machines_down=7, version=1)
    assert [(entry.action, entry.detail) for entry in change.audit] == [("budget changed", "max_machines_down 0 -> 7")]
    assert set_budget(world.snapshot(), max_hosts_down=2, max_machines_down=0, now=world.now, actor=OPERATOR).empty


def test_a_wave_waits_for_the_machines_of_other_scopes() -> None:
    """It says how many are down and which events use the budget; the end of one of these wakes it in the store."""
    world = limited(two_scopes(), max_machines_down=1)
    (first,) = world.submit("ship/web-0")
    events, change = world.submit_request(request("shop/web-0"))
    (reason,) = world.waiting_for(events[0].id)
    assert (reason.code, reason.events) == ("budget", (first.id,))
    assert reason.message == "max_machines_down allows 1 machine of the fleet at once: 1 in use, and 1 more needed"
    (waiting,) = change.maintenances
    assert (waiting.waits_for_budget, waiting.wake_at) == (True, None)
    world.cancel_event(first.id)
    assert world.maintenance(events[0].id).wake_at == world.now
    world.tick()
    found = world.maintenance(events[0].id)
    assert (world.status(events[0].id), found.waits_for_budget) == (Status.SCHEDULED, False)


def test_a_change_relies_on_what_is_down_if_it_takes_from_the_budget_or_waits_for_it() -> None:
    """Then it names the number of reservations that it read; a user's operation does not depend on it, and adds one."""
    world = limited(two_scopes(), max_machines_down=1)
    _, taking = world.submit_request(request("ship/web-0"))
    assert taking.reservations == 0
    _, waiting = world.submit_request(request("shop/web-0"))
    assert waiting.reservations == 1
    _, users = world.submit_request(request("shop/web-1", source=Source.USER))
    assert users.reservations is None
    assert world.snapshot().fleet_rules.reservations == 3
    _, free = two_scopes().submit_request(request("ship/web-0"))
    assert free.reservations is None


def test_one_tick_gives_each_part_of_the_budget_once() -> None:
    """A tick that publishes one wave counts its machines when it decides about the next."""
    world = limited(two_scopes(), max_machines_down=1)
    (emergency,) = world.submit("ship/web-1", emergency=True)
    waiting = [world.submit(name)[0] for name in ("ship/web-0", "shop/web-0")]
    world.finish(emergency.id)
    world.tick()
    assert sorted(world.status(event.id) for event in waiting) == [Status.PLANNED, Status.SCHEDULED]


def test_a_paused_maintenance_does_not_wait_for_the_budget() -> None:
    """It is not woken for nothing; when it is resumed, the next tick examines it."""
    world = limited(two_scopes(), max_machines_down=1)
    (first,) = world.submit("ship/web-0")
    (second,) = world.submit("shop/web-0")
    world.pause(second.maintenance_id)
    assert not world.maintenance(second.id).waits_for_budget
    world.cancel_event(first.id)
    assert world.maintenance(second.id).wake_at is None


def test_a_wave_larger_than_the_budget_of_the_fleet_needs_an_operator() -> None:
    """It is woken by a change of the budget only."""
    world = limited(two_scopes(), max_machines_down=2)
    world.submit("ship/web-1")
    wave = world.submit("ship/web-0", "shop/web-0")
    assert world.maintenance(wave[0].id).waits_for_budget
    limited(world, max_machines_down=1)
    world.tick()
    (reason,) = world.waiting_for(wave[0].id)
    assert reason.message == (
        "max_machines_down allows 1 machine of the fleet at once, and this wave has 2: it cannot be published before the"
        " budget is raised"
    )
    assert needs_operator(world.snapshot(), wave[0].maintenance_id, world.now) == (reason,)
    assert not world.maintenance(wave[0].id).waits_for_budget


def test_a_budget_of_the_fleet_that_failures_keep_needs_an_operator() -> None:
    """The wave would not fit beside the failed event, whatever else ends; resolving the failure wakes it."""
    world = limited(two_scopes(), max_machines_down=1)
    first, second = world.submit("ship/web-0", "ship/web-1", on_failure=OnFailure.CONTINUE)
    world.start(first.id)
    world.fail(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert reason.message == (
        "max_machines_down allows 1 machine of the fleet at once: 1 in use, and 1 more needed;"
        f" event {first.id} keeps its share until its failure is resolved"
    )
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == (reason,)
    assert world.maintenance(second.id).waits_for_budget
    world.resolve_failure(first.id, Verb.ABANDON)
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


def test_failures_that_leave_enough_room_in_the_fleet_need_no_operator() -> None:
    """The event of another maintenance ends by itself, and then the wave fits beside the failed event."""
    world = limited(two_scopes(), max_machines_down=2)
    first, second = world.submit("ship/web-0", "ship/web-1", on_failure=OnFailure.CONTINUE)
    world.start(first.id)
    (other,) = world.submit("shop/web-0")
    world.fail(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert (reason.code, reason.events) == ("budget", (first.id, other.id))
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == ()


def test_hosts_that_failures_keep_need_an_operator() -> None:
    """The failed event took its host down as a whole. A failed event of machines alone keeps no host."""
    world, strategy = by_host(), Strategy(group_by="host", max_parallel=1)
    (alone,) = world.submit("shop/web-2")
    world.start(alone.id)
    world.fail(alone.id)
    first, second = world.submit("shop/web-0", "shop/web-1", strategy=strategy, on_failure=OnFailure.CONTINUE)
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == ()
    world.start(first.id)
    world.fail(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert (reason.events[0], alone.id in reason.events[1:]) == (first.id, True)
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == (reason,)


def by_host() -> World:
    """Return machines on three hosts, of which one may be down."""
    machines = [machine(f"shop/web-{n}", host=f"kvm-{n}") for n in range(3)]
    return limited(World(scope(), machines=machines), max_hosts_down=1)


def test_a_maintenance_that_goes_from_host_to_host_takes_hosts_down() -> None:
    """Its groups are hosts; maintenance that groups otherwise is not bound by the budget of hosts."""
    world, strategy = by_host(), Strategy(group_by="host", max_parallel=1)
    (first,) = world.submit("shop/web-0", strategy=strategy)
    (second,) = world.submit("shop/web-1", strategy=strategy)
    (other,) = world.submit("shop/web-2")
    (reason,) = world.waiting_for(second.id)
    assert reason.message == "max_hosts_down allows 1 host of the fleet at once: 1 in use, and 1 more needed"
    assert world.status(other.id) is Status.SCHEDULED
    (again,) = world.submit("shop/web-0", type=EventType.FREEZE, strategy=strategy)
    assert world.status(again.id) is Status.SCHEDULED  # its host is down already
    world.cancel_event(first.id)
    world.cancel_event(again.id)
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


def test_a_wave_of_more_hosts_than_the_budget_needs_an_operator() -> None:
    """The budget was lowered after planning."""
    world = limited(by_host(), max_hosts_down=2)
    world.submit("shop/web-0", strategy=Strategy(group_by="host"))
    wave = world.submit("shop/web-1", "shop/web-2", strategy=Strategy(group_by="host", max_parallel=2))
    assert world.maintenance(wave[0].id).waits_for_budget
    limited(world, max_hosts_down=1)
    world.tick()
    (reason,) = world.waiting_for(wave[0].id)
    assert reason.message.startswith("max_hosts_down allows 1 host of the fleet at once, and this wave has 2:")
    assert reason.events == tuple(event.id for event in wave)
    assert needs_operator(world.snapshot(), wave[0].maintenance_id, world.now) == (reason,)


def test_the_work_on_an_empty_host_waits_for_the_budget() -> None:
    """In both modes; an emergency does not wait."""
    for mode in HostMode:
        world = by_host()
        world.hosts += ("kvm-8", "kvm-9")
        type_ = EventType.REDEPLOY if mode is HostMode.EVACUATE else EventType.REBOOT
        world.save(Change(at=START, hosts=(Host(name="kvm-8", listed=True), Host(name="kvm-9", listed=True))))
        (first,) = world.submit("shop/web-0", strategy=Strategy(group_by="host"))
        on_host = {"type": type_, "host_mode": mode, "targets": Targets(hosts=("kvm-9",))}
        _, change = world.submit_request(request(**on_host))
        (order,) = change.orders
        assert (order.state, change.maintenances[0].waits_for_budget) == (OrderState.PLANNED, True)
        (reason,) = waiting_for_hosts(world.snapshot(), order.maintenance_id, world.now)["kvm-9"]
        assert reason.code == "budget"
        _, urgent = world.submit_request(request(**{**on_host, "targets": Targets(hosts=("kvm-8",))}, emergency=True))
        assert urgent.orders[0].state is OrderState.OPEN
        world.cancel_event(first.id)
        world.tick()
        assert world.order(order.id).state is OrderState.PLANNED  # the emergency has the budget
        world.cancel_maintenance(urgent.orders[0].maintenance_id)
        world.tick()
        assert world.order(order.id).state is OrderState.OPEN


def test_a_drill_that_ends_for_another_wave_frees_its_share_in_the_same_tick() -> None:
    """The tick had examined the waiting wave before that, so the next tick comes at once."""
    machines = [machine("shop/web-0"), machine("shop/web-1"), machine("ship/web-0")]
    world = World(scope("shop"), scope("ship"), machines=machines)
    afternoon = Window(name="afternoon", spans=("daily 13:00-15:00",))
    rules = FleetRules(windows={"afternoon": afternoon}, max_machines_down=2)
    world.save(Change(at=START, fleet_rules=rules))
    world.submit("shop/web-0", "shop/web-1", drill_hold_s=3_600)
    (waiting,) = world.submit("ship/web-0")
    (real,) = world.submit("shop/web-0", strategy=Strategy(windows=("afternoon",)))
    change = world.tick_at(50)
    assert {m.id: m.wake_at for m in change.maintenances}[waiting.maintenance_id] == world.now
    assert waiting.id not in {event.id for event in change.events}
    assert (world.status(real.id), world.status(waiting.id)) == (Status.SCHEDULED, Status.SCHEDULED)


@pytest.mark.parametrize("limits", [{"max_hosts_down": 1}, {"max_hosts_down": 9, "max_machines_down": 1}], ids=str)
def test_a_real_wave_does_not_wait_for_a_drill_in_its_scope(limits: dict[str, int]) -> None:
    """It ends the drill, and the hosts and machines of the drill with it."""
    world, strategy = limited(by_host(), **limits), Strategy(group_by="host", max_parallel=1)
    (drill,) = world.submit("shop/web-0", strategy=strategy, drill_hold_s=60)
    (real,) = world.submit("shop/web-1", strategy=strategy)
    assert (world.status(drill.id), world.status(real.id)) == (Status.CANCELLED, Status.SCHEDULED)


def test_a_host_that_is_dropped_frees_its_share_in_the_same_tick() -> None:
    """The tick had examined the empty host before that, so the next tick comes at once."""
    machines = [machine("shop/web-0", 0, host="kvm-1"), machine("shop/web-1", 1, host="kvm-1")]
    world = limited(World(scope(), machines=machines), max_hosts_down=1)
    world.hosts += ("kvm-9",)
    world.save(Change(at=START, hosts=(Host(name="kvm-9", listed=True),)))
    evacuation = {"type": EventType.REDEPLOY, "host_mode": HostMode.EVACUATE}
    empty = request(**evacuation, targets=Targets(hosts=("kvm-9",)), not_before=at(60))
    (order,) = world.submit_request(empty)[1].orders
    first, second = world.submit(**evacuation, targets=Targets(hosts=("kvm-1",)))
    world.start(first.id)
    world.move(first.id, "kvm-2")
    world.tick()
    world.cancel_event(second.id)
    change = world.tick_at(60)
    assert {m.id: m.wake_at for m in change.maintenances}[order.maintenance_id] == world.now
    assert order.id not in {order.id for order in change.orders}
    assert world.order(order.id).state is OrderState.OPEN


# -- splitting at planning


@given(
    waves=st.lists(
        st.tuples(
            st.sampled_from(["kvm-1", "kvm-2", "kvm-3", ""]), st.sampled_from(["shop", "ship"]), st.integers(1, 6)
        ),
        min_size=1,
        max_size=6,
    ),
    unavailable=st.sampled_from(["", "1", "3", "40%"]),
    max_hosts_down=st.integers(0, 2),
    max_machines_down=st.integers(0, 4),
    by_host=st.booleans(),
)
def test_a_split_wave_fits_and_loses_no_machine(
    waves: list[tuple[str, str, int]], unavailable: str, max_hosts_down: int, max_machines_down: int, by_host: bool
) -> None:
    """Every part fits into every budget; a wave that fits already is not split."""
    rules = FleetRules(max_hosts_down=max_hosts_down, max_machines_down=max_machines_down)
    scopes = {"shop": scope("shop", max_unavailable=unavailable), "ship": scope("ship")}
    snapshot = Snapshot(scopes=scopes, fleet_rules=rules, machine_counts={"shop": 10})
    names = count()
    wave = [
        PlannedEvent(group, name, 0, tuple(machine(f"{name}/m{next(names):02}") for _ in range(size)))
        for group, name, size in waves
    ]
    strategy = Strategy(group_by="host" if by_host else "scope", max_parallel=9)
    parts = split_by_budget(snapshot, maintenance(strategy=strategy), wave)
    keys = [m.key for part in parts for event in part for m in event.machines]
    assert sorted(keys) == sorted(m.key for event in wave for m in event.machines)
    limits = {"": 99, "1": 1, "3": 3, "40%": 4}[unavailable], max_machines_down or 99, max_hosts_down or 99
    fits = []
    for part in [*parts, wave]:
        machines = [m for event in part for m in event.machines]
        hosts = {event.group for event in part if by_host} - {""}
        found = sum(m.scope == "shop" for m in machines), len(machines), len(hosts)
        fits.append(all(number <= limit for number, limit in zip(found, limits, strict=True)))
    assert all(fits[:-1])
    assert not fits[-1] or parts == [wave]


def test_machines_that_are_shut_down_in_place_are_not_split() -> None:
    """The work on their host needs all of them shut down together: such a wave waits, and an operator must decide."""
    wave = [PlannedEvent("", "shop", 0, (machine("shop/web-0"), machine("shop/web-1")))]
    snapshot = Snapshot(scopes={"shop": scope(max_unavailable="1")})
    assert split_by_budget(snapshot, maintenance(host_mode=HostMode.IN_PLACE), wave) == [wave]
    assert len(split_by_budget(snapshot, maintenance(host_mode=HostMode.EVACUATE), wave)) == 2
