"""How two fleets differ, and what applying the difference changes or refuses."""

from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import InvalidFleet, LargeRemoval, MachineBusy, Refused
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import (
    MAX_AUDIT_LINES,
    MAX_REMOVED_UNASKED,
    Difference,
    apply_difference,
    difference,
    hosts_of_the_inventory,
    refuse_large_removal,
)
from forewarn.core.model import (
    MAX_MACHINES_PER_SCOPE,
    ApprovalMode,
    Event,
    EventType,
    Host,
    Machine,
    Scope,
    ScopeKind,
    Status,
)
from tests.support.builders import OPERATOR, START, at, event, guid, machine, scope

NOTHING = Fleet({}, {})


def fleet(*things: Scope | Machine | Host) -> Fleet:
    return Fleet(
        {each.name: each for each in things if isinstance(each, Scope)},
        {each.key: each for each in things if isinstance(each, Machine)},
        {each.name: each for each in things if isinstance(each, Host)},
    )


# -- the difference


def test_a_new_fleet_is_added_line_by_line() -> None:
    """Every new scope and machine is a line."""
    wanted = fleet(scope("shop"), machine("shop/web-0"), machine("shop/web-1"))
    diff = difference(NOTHING, wanted)
    assert diff.lines == ("+ scope shop (availability-set)", "+ machine shop/web-0", "+ machine shop/web-1")
    assert diff.scopes == tuple(wanted.scopes.values())
    assert diff.machines == tuple(wanted.machines.values())
    assert diff.touched == ("shop",)


def test_applying_the_same_fleet_again_changes_nothing() -> None:
    """There is no difference to the same fleet, whatever its scopes' epochs and incarnations are."""
    stated = fleet(
        Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET, minimum_notice_s={EventType.REBOOT: 1_800}),
        machine("shop/web-0", addresses=("FD00:0::4", "10.0.0.4")),
    )
    lived = Fleet(
        {"shop": replace(stated.scopes["shop"], enabled=True, epoch=3, incarnation=42, version=9, changed=at(5))},
        stated.machines,
    )
    for prune in (False, True):
        diff = difference(lived, stated, prune=prune)
        assert diff == Difference()
        assert diff.touched == ()


def test_a_changed_scope_keeps_its_epoch_and_incarnation() -> None:
    """Only the settings come from the file."""
    lived = scope("shop", epoch=3, incarnation=42, version=9, changed=at(5))
    diff = difference(fleet(lived), fleet(scope("shop", enabled=False, epoch=0, max_user_operations=5)))
    assert diff.scopes == (replace(lived, max_user_operations=5),)


@pytest.mark.parametrize(
    "facts, line",
    [
        ({"kind": ScopeKind.PLACEMENT_GROUP}, "kind availability-set -> placement-group"),
        ({"approval": ApprovalMode.ALL}, "approval any -> all"),
        ({"approve_user_events": True}, "approve_user_events false -> true"),
        ({"max_user_operations": 10}, "max_user_operations 0 -> 10"),
        ({"max_unavailable": "10%"}, 'max_unavailable "" -> 10%'),
        ({"terminate_notice_s": 600}, "terminate_notice 5m -> 10m"),
        (
            {"minimum_notice_s": {EventType.REBOOT: 1_800, EventType.FREEZE: 5_400}},
            "minimum_notice {} -> {Freeze 90m, Reboot 30m}",
        ),
        (
            {"approval": ApprovalMode.OPERATOR, "terminate_notice_s": 900},
            "approval any -> operator, terminate_notice 5m -> 15m",
        ),
    ],
)
def test_a_changed_setting_is_printed(facts: dict[str, Any], line: str) -> None:
    """A line names the changed settings with the old and the new value."""
    assert difference(fleet(scope("shop")), fleet(scope("shop", **facts))).lines == (f"~ scope shop: {line}",)


@pytest.mark.parametrize(
    "facts, line",
    [
        ({"update_domain": 2}, "update_domain 0 -> 2"),
        ({"fault_domain": 1}, "fault_domain 0 -> 1"),
        ({"host": "h1"}, 'host "" -> h1'),
        ({"addresses": ("10.0.0.9", "10.0.0.4")}, "addresses [] -> [10.0.0.4, 10.0.0.9]"),
        ({"interface": "tap0"}, 'interface "" -> tap0'),
        ({"instance_id": "i-0"}, 'instance_id "" -> i-0'),
        ({"labels": {"rack": "b4"}}, "labels {} -> {rack b4}"),
    ],
)
def test_a_changed_machine_is_printed(facts: dict[str, Any], line: str) -> None:
    """A line names what changes; the whole machine is written."""
    before = fleet(scope("shop"), machine("shop/web-0"))
    diff = difference(before, fleet(scope("shop"), machine("shop/web-0", **facts)))
    assert diff.lines == (f"~ machine shop/web-0: {line}",)
    assert diff.machines == (machine("shop/web-0", **facts),)
    assert (diff.scopes, diff.touched) == ((), ("shop",))


def test_without_prune_nothing_is_removed() -> None:
    """With prune, what the file does not contain is removed."""
    current = fleet(scope("shop"), scope("ship"), machine("shop/web-0"), machine("shop/web-1"), machine("ship/app-0"))
    wanted = fleet(scope("shop"), machine("shop/web-0"))
    assert difference(current, wanted).lines == ()
    diff = difference(current, wanted, prune=True)
    assert diff.lines == ("- machine shop/web-1", "- machine ship/app-0", "- scope ship")
    assert diff.removed_machines == (("shop", "web-1"), ("ship", "app-0"))
    assert diff.removed_scopes == ("ship",)
    assert diff.touched == ("ship", "shop")


def listed(name: str, **facts: Any) -> Host:
    """A host that the fleet lists."""
    return Host(name=name, listed=True, **facts)


def test_hosts_are_added_and_changed() -> None:
    """A host gets what the file says and keeps its cordon; a host that has a row only for its cordon is new to the fleet."""
    current = fleet(
        listed("h1", labels={"rack": "a1"}, version=3, cordoned=START), Host(name="h2", cordoned=START, version=1)
    )
    wanted = fleet(
        listed("h1", labels={"rack": "a2", "cpu": ""}, fault_domain=2, connection="qemu:///system"),
        listed("h2"),
        listed("h3"),
    )
    diff = difference(current, wanted)
    assert diff.lines == (
        '~ host h1: labels {rack a1} -> {cpu "", rack a2}, fault_domain 0 -> 2, connection "" -> qemu:///system',
        "+ host h2",
        "+ host h3",
    )
    assert diff.hosts == (
        replace(wanted.hosts["h1"], version=3, cordoned=START),
        listed("h2", cordoned=START, version=1),
        listed("h3"),
    )
    assert diff.touched == ()
    assert difference(fleet(*diff.hosts), wanted, prune=True) == Difference()
    assert applied(diff).hosts == diff.hosts


def test_a_host_that_leaves_the_fleet_stays_cordoned() -> None:
    """With prune, a host that the file does not list loses its row, unless it is cordoned; a row for a cordon alone stays."""
    cordoned = listed(
        "h2", labels={"rack": "a1"}, connection="qemu:///h2", version=5, cordoned=START, cordoned_by=guid(900)
    )
    current = fleet(listed("h1", version=4), cordoned, Host(name="h3", cordoned=START, version=1))
    assert difference(current, NOTHING) == Difference()
    diff = difference(current, NOTHING, prune=True)
    assert diff.lines == ("- host h1", "- host h2")
    assert diff.removed_hosts == (current.hosts["h1"], cordoned)
    change = applied(diff)
    assert change.removed_hosts == (("h1", 4),)
    left = Host(name="h2", connection="qemu:///h2", version=5, cordoned=START, cordoned_by=guid(900))
    assert change.hosts == (left,)
    assert [entry.detail for entry in change.audit] == ["- host h1", "- host h2"]


def test_removed_hosts_count_for_a_large_removal() -> None:
    """Many hosts are not removed without a question either."""
    many = fleet(*(listed(f"h{number}") for number in range(MAX_REMOVED_UNASKED + 1)))
    diff = difference(many, NOTHING, prune=True)
    assert diff.warnings == ("it removes 11 hosts that the file does not contain",)


def removing(machines: int, wanted: Fleet, scopes: int = 1, *, prune: bool = True) -> Difference:
    """Return the difference from a fleet with this many machines, spread over some scopes."""
    every = [scope(f"s-{number}") for number in range(scopes)]
    current = fleet(*every, *(machine(f"s-{number % scopes}/m-{number}") for number in range(machines)))
    return difference(current, wanted, prune=prune)


def test_a_removal_above_the_limit_is_large() -> None:
    """Scopes and machines count together; without prune nothing is removed."""
    kept = fleet(scope("kept"), machine("kept/m"))
    assert not removing(MAX_REMOVED_UNASKED - 1, kept).large_removal
    large = removing(MAX_REMOVED_UNASKED, kept)
    assert large.large_removal
    assert large.warnings == ("it removes 10 machines and 1 scope that the file does not contain",)
    assert not removing(MAX_REMOVED_UNASKED, kept, prune=False).large_removal


def test_a_large_removal_is_refused_where_nobody_can_be_asked() -> None:
    """The message says what would be removed; a small removal passes."""
    kept = fleet(scope("kept"), machine("kept/m"))
    refuse_large_removal(removing(1, kept))
    with pytest.raises(LargeRemoval, match="it removes 10 machines and 1 scope"):
        refuse_large_removal(removing(MAX_REMOVED_UNASKED, kept))


def test_removing_the_last_machine_is_large() -> None:
    """A file without machines would empty the fleet, however small the fleet is."""
    assert removing(1, NOTHING).large_removal
    assert removing(1, fleet(scope("s-0"))).large_removal
    assert not difference(NOTHING, NOTHING, prune=True).large_removal


def test_identities_are_unique_over_the_whole_fleet() -> None:
    """An address of a machine that is not in the file is refused, unless that machine is removed."""
    current = fleet(scope("shop"), scope("ship"), machine("ship/app-0", addresses=("10.0.0.4",)))
    wanted = fleet(scope("shop"), machine("shop/web-0", addresses=("10.0.0.4",)))
    with pytest.raises(InvalidFleet, match=r"machine shop/web-0: addresses: 10\.0\.0\.4 belongs to ship/app-0 already"):
        difference(current, wanted)
    assert difference(current, wanted, prune=True).removed_machines == (("ship", "app-0"),)


def test_two_machines_may_swap_addresses() -> None:
    """Addresses must be unique in the fleet after the change."""
    current = fleet(
        scope("shop"),
        machine("shop/web-0", addresses=("10.0.0.4",)),
        machine("shop/web-1", addresses=("10.0.0.5",)),
    )
    wanted = fleet(
        scope("shop"),
        machine("shop/web-0", addresses=("10.0.0.5",)),
        machine("shop/web-1", addresses=("10.0.0.4",)),
    )
    assert len(difference(current, wanted).machines) == 2


def test_a_standalone_scope_does_not_gain_a_second_machine() -> None:
    """A machine that is not in the file counts too."""
    alone = scope("solo", kind=ScopeKind.STANDALONE)
    current, wanted = fleet(alone, machine("solo/old")), fleet(alone, machine("solo/new"))
    with pytest.raises(
        InvalidFleet, match="scope solo: kind: a standalone scope has one machine, and this one would have 2"
    ):
        difference(current, wanted)
    assert difference(current, wanted, prune=True).lines == ("+ machine solo/new", "- machine solo/old")


def test_a_scope_does_not_grow_past_its_limit() -> None:
    """The limit applies to the fleet after the change, not to the file alone."""
    current = fleet(scope("shop"), *(machine(f"shop/web-{i}") for i in range(MAX_MACHINES_PER_SCOPE)))
    assert difference(current, fleet(scope("shop"), machine("shop/web-0", host="h1"))).machines
    wanted = fleet(scope("shop"), machine("shop/one-more"))
    with pytest.raises(InvalidFleet, match="scope shop: 1001 machines: a scope has at most 1000"):
        difference(current, wanted)


def test_a_host_that_spans_update_domains_is_warned_of() -> None:
    """A host with several update domains of a scope is allowed, with a warning."""
    wanted = fleet(
        scope("shop"),
        scope("ship"),
        machine("shop/web-0", 0, host="h1"),
        machine("shop/web-1", 2, host="h1"),
        machine("shop/web-2", 1, host="h1"),
        machine("shop/web-3", 1, host="h2"),
        machine("shop/web-4", 1, host="h2"),
        machine("ship/app-0", 5, host="h2"),
        machine("ship/app-1", 6),
        machine("ship/app-2", 7),
    )
    assert difference(NOTHING, wanted).warnings == (
        "host h1 carries update domains 0, 1, 2 of scope shop: maintenance of the host takes 3 waves",
    )


def test_a_warning_counts_machines_that_are_not_in_the_file() -> None:
    """Machines that the host already carries count; a difference without machines gives no warning."""
    current = fleet(scope("shop"), machine("shop/web-0", 0, host="h1"))
    wanted = fleet(scope("shop"), machine("shop/web-1", 1, host="h1"))
    assert len(difference(current, wanted).warnings) == 1
    both = fleet(*current.scopes.values(), *current.machines.values(), *wanted.machines.values())
    assert difference(both, wanted).warnings == ()


def test_a_host_that_the_inventory_decides_is_warned_of() -> None:
    """Only for machines that are domains and are on a host already: new ones, and others, have the host of the file."""
    current = fleet(
        scope("shop"),
        machine("shop/moved", host="h1", instance_id="uuid-0"),
        machine("shop/same", host="h1", instance_id="uuid-1"),
        machine("shop/nowhere", instance_id="uuid-2"),
        machine("shop/no-domain", host="h1"),
    )
    wanted = fleet(
        scope("shop"),
        machine("shop/moved", host="h2", instance_id="uuid-0"),
        machine("shop/same", host="h1", instance_id="uuid-1", fault_domain=1),
        machine("shop/nowhere", host="h2", instance_id="uuid-2"),
        machine("shop/no-domain", host="h2"),
        machine("shop/new", host="h2", instance_id="uuid-3"),
    )
    assert hosts_of_the_inventory(current, difference(current, wanted)) == (
        "the file changes the host of shop/moved, but the inventory decides it, and sets it as libvirt shows it",
    )
    assert hosts_of_the_inventory(current, difference(current, current)) == ()


# -- applying it


def applied(diff: Difference, *events: Event, known: Fleet = NOTHING) -> Change:
    """The change that applies the difference to a known fleet with these events."""
    snapshot = Snapshot(scopes=known.scopes, events={e.id: e for e in events})
    versions = {name: each.version for name, each in known.scopes.items()}
    return apply_difference(snapshot, diff, versions=versions, now=at(9), actor=OPERATOR)


def test_a_fleet_is_applied_in_one_change() -> None:
    """The change has the scopes, the machines, the expected versions, and a line of audit each."""
    wanted = fleet(scope("shop"), machine("shop/web-0"))
    change = applied(difference(NOTHING, wanted))
    assert (change.at, change.expect) == (at(9), (("shop", 0),))
    assert change.scopes == (scope("shop", changed=at(9)),)
    assert change.machines == (machine("shop/web-0"),)
    assert [(a.who, a.origin, a.at, a.action, a.detail) for a in change.audit] == [
        ("alice", "console", at(9), "fleet changed", "+ scope shop (availability-set)"),
        ("alice", "console", at(9), "fleet changed", "+ machine shop/web-0"),
    ]


def test_a_changed_machine_raises_its_scopes_version() -> None:
    """A scope whose machines change is written too, so that decisions based on it are made again."""
    current = fleet(scope("shop", version=4, changed=START), scope("ship", version=2), machine("shop/web-0"))
    diff = difference(current, fleet(scope("shop"), machine("shop/web-0", host="h1")))
    change = applied(diff, known=current)
    assert change.expect == (("shop", 4),)
    assert change.scopes == (scope("shop", version=4, changed=at(9)),)


def test_time_does_not_run_backwards_for_a_scope() -> None:
    """A scope whose last change is ahead of the clock keeps that time."""
    current = fleet(scope("shop", changed=at(60)))
    change = applied(difference(current, fleet(scope("shop", max_user_operations=1))), known=current)
    assert [s.changed for s in change.scopes] == [at(60)]


def test_a_pruned_scope_is_removed_and_not_written() -> None:
    """A removed scope is checked against its version."""
    current = fleet(scope("shop", version=3), scope("ship", version=2), machine("ship/app-0"), machine("shop/web-0"))
    change = applied(difference(current, fleet(scope("shop")), prune=True), known=current)
    assert change.expect == (("ship", 2), ("shop", 3))
    assert change.removed_scopes == ("ship",)
    assert change.removed_machines == (("ship", "app-0"), ("shop", "web-0"))
    assert [s.name for s in change.scopes] == ["shop"]


def test_a_long_difference_is_summed_up_in_the_audit() -> None:
    """The audit gets at most a thousand lines of one change, and the number of the rest."""
    lines = tuple(f"+ machine shop/web-{i}" for i in range(MAX_AUDIT_LINES))
    assert len(applied(Difference(lines=lines)).audit) == 1_000
    longer = applied(Difference(lines=(*lines, "+ machine shop/x", "+ machine shop/y"))).audit
    assert len(longer) == 1_001
    assert longer[-1].detail == "and 2 more"


@pytest.mark.parametrize("status", Status)
def test_a_machine_with_an_open_event_is_not_removed(status: Status) -> None:
    """Machines with open events cannot be removed; ended events do not matter."""
    current = fleet(scope("shop"), machine("shop/web-0"), machine("shop/web-1"))
    diff = difference(current, fleet(scope("shop"), machine("shop/web-1")), prune=True)
    subject = event(status=status, resources=("web-0",))
    if status in ("Planned", "Scheduled", "Started"):
        with pytest.raises(
            MachineBusy, match=f"shop/web-0 is in open event {guid(1)}: cancel it or wait until it ends"
        ):
            applied(diff, subject, known=current)
    else:
        assert applied(diff, subject, known=current).removed_machines == (("shop", "web-0"),)


def test_a_machine_with_an_open_event_stays_in_its_update_domain() -> None:
    """The machine cannot move to another update domain; its other fields may change."""
    current = fleet(scope("shop"), machine("shop/web-0"))
    moved = difference(current, fleet(scope("shop"), machine("shop/web-0", 1)))
    with pytest.raises(MachineBusy, match=f"shop/web-0 is in open event {guid(1)}: its update domain cannot change"):
        applied(moved, event(), known=current)
    assert applied(moved, event(resources=("web-1",)), known=current).machines == (machine("shop/web-0", 1),)
    rehosted = difference(current, fleet(scope("shop"), machine("shop/web-0", host="h2")))
    assert applied(rehosted, event(), known=current).machines == (machine("shop/web-0", host="h2"),)


def test_a_scope_with_an_open_event_keeps_its_kind_and_stays() -> None:
    """The oldest api-version shows the kind, and a document must not change without a new incarnation."""
    current = fleet(scope("shop"))
    gone = difference(current, fleet(), prune=True)
    with pytest.raises(Refused, match=f"scope shop has open event {guid(1)}: cancel it"):
        applied(gone, event(), known=current)
    other = difference(current, fleet(scope("shop", kind=ScopeKind.CLOUD_SERVICE)))
    with pytest.raises(Refused, match="its kind cannot change"):
        applied(other, event(), known=current)
    ended = event(status=Status.COMPLETED)
    assert applied(gone, ended, known=current).removed_scopes == ("shop",)
    assert applied(other, ended, known=current).scopes[0].kind is ScopeKind.CLOUD_SERVICE


def test_a_machine_of_the_same_name_in_another_scope_is_another() -> None:
    """An open event concerns only machines of its own scope."""
    current = fleet(scope("shop"), scope("ship"), machine("ship/web-0"))
    diff = difference(current, fleet(scope("shop")), prune=True)
    assert applied(diff, event(scope="shop"), known=current).removed_machines == (("ship", "web-0"),)
