"""How a strategy turns machines into groups, and groups into waves."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.change import Change, Snapshot
from forewarn.core.clock_hold import confirm_clock, hold_clock
from forewarn.core.errors import Invalid, Refused
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import (
    ClockHold,
    Event,
    EventType,
    Host,
    HostMode,
    Machine,
    Maintenance,
    MaintenanceRequest,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    Source,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.needs_operator import needs_operator
from forewarn.core.planning import plan_events
from forewarn.core.strategy import PlannedWave, group_of, planned_waves
from forewarn.core.transitions import Verb
from tests.core.test_planning import planned, snapshot
from tests.core.test_planning import waves as waves_of_events
from tests.support.builders import OPERATOR, World, at, machine, scope, shop

# Neighbouring hosts carry different update domains of the scope shop.
FLEET = [
    machine("shop/a", 0, host="h1"),
    machine("shop/b", 1, host="h2"),
    machine("ship/c", 0, host="h1"),
    machine("ship/d", 0, host="h2"),
    machine("shop/e", 1, host="h3"),
    machine("shop/f", 2, host="h3"),
]


def waves(strategy: Strategy, machines: Sequence[Machine] = FLEET, *hosts: Host) -> list[str]:
    """Each wave as its events, written as `group:scope#domain names`."""
    planned = planned_waves(strategy, machines, {host.name: host for host in hosts})
    return [
        "  ".join(
            f"{event.group}:{event.scope}#{event.update_domain} {','.join(m.name for m in event.machines)}"
            for event in wave
        )
        for wave in planned
    ]


def test_by_update_domain() -> None:
    """By default, wave k holds the k-th update domain of every scope, and all machines are one group without a name."""
    assert waves(Strategy()) == [":ship#0 c,d  :shop#0 a", ":shop#1 b,e", ":shop#2 f"]


def test_by_host() -> None:
    """One host after another: each host has a wave for each of its steps."""
    assert waves(Strategy(group_by="host")) == [
        "h1:ship#0 c  h1:shop#0 a",
        "h2:ship#0 d  h2:shop#1 b",
        "h3:shop#1 e",
        "h3:shop#2 f",
    ]


def test_neighbouring_hosts_in_parallel() -> None:
    """An event whose scope already has another update domain in the wave moves to the next wave."""
    assert waves(Strategy(group_by="host", max_parallel=2)) == [
        "h1:ship#0 c  h1:shop#0 a  h2:ship#0 d",
        "h2:shop#1 b",
        "h3:shop#1 e",
        "h3:shop#2 f",
    ]


def test_an_event_that_moved_shares_the_wave_of_the_next_step() -> None:
    """What moved comes first in the next wave. Groups beyond max_parallel wait until the batch has ended."""
    assert waves(Strategy(group_by="host", max_parallel=3)) == [
        "h1:ship#0 c  h1:shop#0 a  h2:ship#0 d",
        "h2:shop#1 b  h3:shop#1 e",
        "h3:shop#2 f",
    ]


def test_the_canary_comes_first_and_together() -> None:
    """The first wave has the canary groups, also if max_parallel is smaller; the rest follows."""
    fleet = [machine(f"solo-{n}/vm", host=f"h{n}") for n in range(1, 8)]
    strategy = Strategy(group_by="host", canary=2, max_parallel=3)
    assert [wave.count("vm") for wave in waves(strategy, fleet)] == [2, 3, 2]
    assert [wave.count("vm") for wave in waves(Strategy(group_by="host", canary=2), fleet)] == [2, 1, 1, 1, 1, 1]
    assert [wave.count("vm") for wave in waves(Strategy(group_by="host", canary=9), fleet)] == [7]


def test_by_scope_and_by_fault_domain() -> None:
    """A scope is a group, or all machines of a fault domain are."""
    assert waves(Strategy(group_by="scope", max_parallel=2)) == [
        "ship:ship#0 c,d  shop:shop#0 a",
        "shop:shop#1 b,e",
        "shop:shop#2 f",
    ]
    fleet = [machine("shop/a", fault_domain=1), machine("ship/b", fault_domain=0), machine("shop/c", fault_domain=1)]
    assert waves(Strategy(group_by="fault-domain"), fleet) == ["0:ship#0 b", "1:shop#0 a,c"]


def test_by_label() -> None:
    """A label of the machine counts, or else that of its host. Machines without the label come last."""
    fleet = [
        machine("shop/a", host="h1"),
        machine("shop/b", host="h2", labels={"rack": "r10"}),
        machine("shop/c", host="h1", labels={"rack": "r2"}),
        machine("shop/d"),
        machine("shop/e", host="h3"),
    ]
    hosts = Host(name="h1", labels={"rack": "r1"}), Host(name="h2", labels={"rack": "r1"})
    assert waves(Strategy(group_by="label:rack"), fleet, *hosts) == [
        "r1:shop#0 a",
        "r2:shop#0 c",
        "r10:shop#0 b",
        ":shop#0 d,e",
    ]


def test_a_label_that_no_machine_has_is_refused() -> None:
    """A misspelt key would put all machines into one group, and the canary would cover all of them."""
    by_rak = Strategy(group_by="label:rak", canary=1)
    with pytest.raises(Refused, match="group_by: none of these machines has a label rak, and no host of them has it"):
        planned("shop/web-0", "shop/web-1", strategy=by_rak)


def test_no_machines_have_no_waves() -> None:
    """A host without machines has no wave."""
    assert waves(Strategy(), []) == []


@pytest.mark.parametrize(
    "facts, complaint",
    [
        ({"group_by": "row"}, "group_by is 'row': use update-domain, host, fault-domain, scope, label:KEY"),
        ({"group_by": "label:KEY!"}, "label 'KEY!' is not a name"),
        ({"group_by": "host", "max_parallel": 0}, "max_parallel is 0: use a whole number from 1 to 10000"),
        ({"group_by": "host", "canary": -1}, "canary is -1: use a whole number from 0 to 10000"),
        ({"bake_s": -1}, "bake_s is -1: use a whole number from 0 to 2592000"),
        ({"pause_after": -1}, "pause_after is -1: use a whole number from 0 to 100000"),
        ({"max_parallel": 2}, "use max_parallel 1 and canary 0 or 1, or another group_by"),
        ({"canary": 2}, "use max_parallel 1 and canary 0 or 1, or another group_by"),
        ({"max_failures": "half"}, "'half' is not an amount"),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused(facts: dict[str, Any], complaint: str) -> None:
    """The message names the field and what it may be."""
    with pytest.raises(Invalid, match=complaint):
        Strategy(**facts)


BAKE = Strategy(bake_s=60)


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"type": EventType.PREEMPT, "strategy": BAKE}, "a strategy needs several waves"),
        ({"emergency": True, "strategy": BAKE}, "a strategy needs several waves"),
        ({"source": Source.USER, "strategy": BAKE}, "a strategy needs several waves"),
        ({"strategy": Strategy(max_failures="3")}, "max_failures needs on_failure continue"),
        (
            {
                "targets": Targets(hosts=("h1",)),
                "host_mode": HostMode.IN_PLACE,
                "strategy": Strategy(group_by="host"),
            },
            "host_mode in-place works on one host after another: leave out group_by, max_parallel and canary",
        ),
    ],
)
def test_a_strategy_that_does_not_fit_the_maintenance_is_refused(options: dict[str, Any], complaint: str) -> None:
    """A strategy is for rolling platform maintenance; a limit of failures is for maintenance that goes on after one."""
    with pytest.raises(Invalid, match=complaint):
        planned("shop/web-0", **options)


def test_the_events_of_a_maintenance_follow_its_strategy() -> None:
    """Planning numbers the waves, names the group of each event, and keeps the strategy."""
    strategy = Strategy(group_by="host", max_failures="2")
    names = ("shop/web-0", "shop/web-1", "shop/web-2")
    kept, events = planned(*names, strategy=strategy, on_failure=OnFailure.CONTINUE)
    assert kept.strategy == strategy
    assert waves_of_events(events) == ["1 shop#0 web-0", "2 shop#0 web-2", "3 shop#1 web-1"]
    assert [event.group for event in events] == ["h1", "h2", "h2"]


def test_other_rules_split_planned_waves() -> None:
    """Each splitter gets every wave that the one before it returned; the waves are numbered after all of them."""

    def one_event_each(_: Snapshot, of: Maintenance, wave: PlannedWave) -> list[PlannedWave]:
        assert of.type is EventType.REBOOT
        return [[event] for event in wave]

    def reversed_waves(_: Snapshot, of: Maintenance, wave: PlannedWave) -> list[PlannedWave]:
        return [wave[::-1]]

    def split(**options: Any) -> list[Event]:
        names = ("shop/web-0", "shop/web-1", "ship/app-0")
        maintenance, _ = planned(*names, **options)
        machines = [each for each in snapshot().machines.values() if str(each) in names]
        ids = map(str, count(1))
        return plan_events(
            snapshot(), maintenance, machines, new_id=ids.__next__, splitters=(reversed_waves, one_event_each)
        )

    assert waves_of_events(split()) == ["1 shop#0 web-0", "2 ship#5 app-0", "3 shop#1 web-1"]
    assert {event.wave for event in split(emergency=True)} == {1}


@given(
    places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=12),
    group_by=st.sampled_from(["host", "fault-domain", "scope", "label:rack"]),
    max_parallel=st.integers(1, 4),
    canary=st.integers(0, 3),
)
def test_every_machine_is_in_one_event_and_no_wave_mixes_update_domains(
    places: list[tuple[int, int, int]], group_by: str, max_parallel: int, canary: int
) -> None:
    """In a wave, a scope has one update domain; a batch has no more groups than allowed and ends before the next begins."""
    fleet = [
        machine(f"s{scope}/m{n}", domain, host=f"h{host}", fault_domain=host, labels={"rack": f"r{host % 2}"})
        for n, (scope, domain, host) in enumerate(places)
    ]
    strategy = Strategy(group_by=group_by, max_parallel=max_parallel, canary=canary)
    found = planned_waves(strategy, fleet, {})
    assert sorted(str(m) for wave in found for event in wave for m in event.machines) == sorted(map(str, fleet))
    assert all(wave for wave in found)
    keys = [(event.group, event.scope, event.update_domain) for wave in found for event in wave]
    assert len(set(keys)) == len(keys)
    for wave in found:
        assert len({event.scope for event in wave}) == len({(event.scope, event.update_domain) for event in wave})
        assert all(
            group_of(strategy, m, {}) == e.group and (m.scope, m.update_domain) == (e.scope, e.update_domain)
            for e in wave
            for m in e.machines
        )
    batches = [{event.group for event in wave} for wave in found]
    canaries = sorted({group_of(strategy, m, {}) for m in fleet})[:canary]
    for groups in batches:
        assert groups <= set(canaries) or (not groups & set(canaries) and len(groups) <= max_parallel)


def test_the_default_strategy_ignores_hosts() -> None:
    """The groups of the default strategy have no name."""
    _, events = planned("shop/web-0", "shop/web-1", within=snapshot())
    assert {event.group for event in events} == {""}


# -- the bake time


def test_a_wave_waits_for_the_bake_time() -> None:
    """It is published when the bake time after the end of the last event of the wave before it has passed, not earlier."""
    world = World(scope("ship"), scope("shop"), machines=[machine("ship/a"), machine("shop/a"), machine("shop/b", 1)])
    ship, first, second = world.submit("ship/a", "shop/a", "shop/b", strategy=Strategy(bake_s=600))
    world.start(ship.id, first.id)
    world.finish(first.id)
    world.tick_at(4)
    world.finish(ship.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert (reason.code, reason.until) == ("bake", at(14))
    assert reason.message == "the bake time of 10m after wave 1 runs"
    assert world.maintenance(second.id).wake_at == at(14)
    world.tick_at(13.9)
    assert world.status(second.id) is Status.PLANNED
    world.tick_at(14)
    assert world.status(second.id) is Status.SCHEDULED


def test_the_bake_time_counts_from_a_failure_too() -> None:
    """With on_failure = continue, a failed event has ended for the waves after it."""
    world = shop(domains=2)
    first, second = world.submit(
        "shop/web-0", "shop/web-1", strategy=Strategy(bake_s=600), on_failure=OnFailure.CONTINUE
    )
    world.start(first.id)
    world.now = at(2)
    world.fail(first.id)
    world.tick_at(11.9)
    assert world.codes(second.id) == ["bake"]
    world.tick_at(12)
    assert world.status(second.id) is Status.SCHEDULED


def test_an_event_that_never_started_needs_no_bake_time() -> None:
    """If a wave was cancelled before it started, the next wave does not wait."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1", strategy=Strategy(bake_s=600))
    world.cancel_event(first.id)
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


def test_a_held_clock_does_not_end_the_bake_time() -> None:
    """Time that no operator confirmed does not count, and the wait wakes no tick; the confirmation does."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1", strategy=Strategy(bake_s=600))
    world.start(first.id)
    world.finish(first.id)
    world.tick()
    world.now = at(120)
    hold = ClockHold(trusted=at(1), noticed=world.now, jumped_s=7_140)
    world.save(hold_clock(Snapshot(), hold, since=at(1), unread_s=0, now=world.now))
    world.tick()
    assert world.status(second.id) is Status.PLANNED
    assert world.maintenance(second.id).wake_at is None
    world.save(confirm_clock(world.snapshot(), now=world.now, actor=OPERATOR))
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


# -- pause_after


def needs(world: World, event: Event) -> list[str]:
    return [each.code for each in needs_operator(world.snapshot(), event.maintenance_id, world.now)]


def test_a_maintenance_pauses_after_a_wave_until_an_operator_lets_it_continue() -> None:
    """It is Paused meanwhile, only an operator can move it, and it continues once."""
    world = shop(domains=3)
    first, second, third = world.submit("shop/web-0", "shop/web-1", "shop/web-2", strategy=Strategy(pause_after=1))
    with pytest.raises(Refused, match="does not wait for an operator to continue: wave 1 has not ended"):
        world.continue_maintenance(first.maintenance_id)
    world.start(first.id)
    assert needs(world, first) == []
    world.finish(first.id)
    world.tick()
    assert world.maintenance(first.id).status is MaintenanceStatus.PAUSED
    assert world.maintenance(first.id).wake_at is None
    assert world.codes(second.id) == ["continue"]
    assert world.codes(third.id) == ["continue", "earlier-wave"]
    assert needs(world, first) == ["continue"]
    with pytest.raises(Refused, match="pauses after wave 1: use `maintenance continue`"):
        world.resume(first.maintenance_id)
    assert [each.action for each in world.continue_maintenance(first.maintenance_id).audit] == ["maintenance continued"]
    assert world.maintenance(first.id).status is MaintenanceStatus.RUNNING
    assert world.continue_maintenance(first.maintenance_id).empty
    world.tick()
    world.start(second.id)
    world.finish(second.id)
    world.tick()
    assert world.status(third.id) is Status.SCHEDULED


def test_a_pause_after_the_last_wave_holds_nothing() -> None:
    """A maintenance ends with its last wave. One without pause_after cannot be continued."""
    world = shop(domains=1)
    (only,) = world.submit("shop/web-0", strategy=Strategy(pause_after=1))
    world.start(only.id)
    world.finish(only.id)
    world.tick()
    assert world.maintenance(only.id).status is MaintenanceStatus.COMPLETED
    (other,) = world.submit("shop/web-0")
    with pytest.raises(Refused, match="does not wait for an operator to continue: its strategy has no pause_after"):
        world.continue_maintenance(other.maintenance_id)
    world.pause(other.maintenance_id)
    with pytest.raises(Refused, match="was paused by an operator: use `maintenance resume`"):
        world.continue_maintenance(other.maintenance_id)


# -- the limit of failures


def solos(count: int) -> World:
    """A world of machines that are scopes of their own, each on a host of its own."""
    names = [f"solo-{n}" for n in range(count)]
    return World(*(scope(name) for name in names), machines=[machine(f"{name}/vm", host=name) for name in names])


def test_a_maintenance_goes_on_until_the_limit_of_failures() -> None:
    """At the limit it holds. It goes on when fewer failures than the limit are unresolved."""
    world = solos(4)
    strategy = Strategy(group_by="host", max_failures="2")
    names = [f"solo-{n}/vm" for n in range(4)]
    events = world.submit(*names, strategy=strategy, on_failure=OnFailure.CONTINUE)
    for each in events[:2]:
        assert world.maintenance(each.id).status is not MaintenanceStatus.PAUSED
        world.start(each.id)
        world.fail(each.id)
        world.tick()
    assert world.maintenance(events[0].id).status is MaintenanceStatus.PAUSED
    (reason,) = world.waiting_for(events[2].id)
    assert (reason.code, reason.events) == ("failures", (events[0].id, events[1].id))
    assert reason.message == "2 orders failed, and the maintenance holds at 2 (max_failures = 2)"
    assert needs(world, events[0]) == ["order-failed", "order-failed"]
    world.resolve_failure(events[0].id, Verb.ABANDON)
    world.tick()
    assert world.status(events[2].id) is Status.SCHEDULED


def test_a_failed_host_counts_too() -> None:
    """The work on a host is one order of the maintenance: its failure counts, and the next host waits."""
    world = World(scope(), machines=[machine("shop/web-0", host="h9")])
    world.hosts = ("h1", "h2", "h9")
    world.save(Change(at=world.now, hosts=(Host(name="h1"), Host(name="h2"))))
    _, submitted = world.submit_request(
        MaintenanceRequest(
            type=EventType.FREEZE,
            targets=Targets(hosts=("h1", "h2")),
            host_mode=HostMode.EVACUATE,
            on_failure=OnFailure.CONTINUE,
            strategy=Strategy(max_failures="1"),
        )
    )
    first, second = submitted.orders
    world.take(first.id)
    world.fail(first.id)
    world.tick()
    (maintenance_id,) = (m.id for m in submitted.maintenances)
    snapshot = world.snapshot()
    assert snapshot.maintenances[maintenance_id].status is MaintenanceStatus.PAUSED
    (reason,) = waiting_for_hosts(snapshot, maintenance_id, world.now)["h2"]
    assert (reason.code, reason.orders) == ("failures", (first.id,))
    world.resolve_host(first.id, Verb.ABANDON)
    world.tick()
    assert world.snapshot().orders[second.id].state is OrderState.OPEN
