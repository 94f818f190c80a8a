"""How a strategy turns machines into groups, and groups into waves."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core import planning
from forewarn.core.change import Snapshot
from forewarn.core.errors import Invalid
from forewarn.core.model import EventType, Host, HostMode, Machine, Maintenance, OnFailure, Source, Strategy, Targets
from forewarn.core.strategy import PlannedWave, group_of, planned_waves
from tests.core.test_planning import planned, snapshot
from tests.core.test_planning import waves as waves_of_events
from tests.support.builders import machine

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


def test_other_rules_split_planned_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each splitter gets every wave that the one before it returned; the waves are numbered after all of them."""

    def one_event_each(_: Snapshot, of: Maintenance, wave: PlannedWave) -> list[PlannedWave]:
        assert of.type is EventType.REBOOT
        return [[event] for event in wave]

    def reversed_waves(_: Snapshot, of: Maintenance, wave: PlannedWave) -> list[PlannedWave]:
        return [wave[::-1]]

    monkeypatch.setattr(planning, "SPLITTERS", (reversed_waves, one_event_each))
    _, events = planned("shop/web-0", "shop/web-1", "ship/app-0")
    assert waves_of_events(events) == ["1 shop#0 web-0", "2 ship#5 app-0", "3 shop#1 web-1"]
    _, urgent = planned("shop/web-0", "shop/web-1", "ship/app-0", emergency=True)
    assert {event.wave for event in urgent} == {1}


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
