"""What the domains of hosts mean for the fleet, decided without libvirt."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.fleet import Fleet
from forewarn.core.model import Host, Machine, Scope, ScopeKind
from forewarn.libvirt.inventory import (
    DOUBLED_AFTER,
    GONE_AFTER,
    Decision,
    Domain,
    HostReading,
    Memory,
    decide,
    difference_of,
)
from forewarn.libvirt.statements import METADATA_URI

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
WEB_0, WEB_1, DB_0 = (f"5ca1ab1e-0000-4000-8000-00000000000{n}" for n in range(3))
SHOP = {"shop": Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)}


def stated(scope: str = "shop", **attributes: object) -> str:
    more = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<forewarn:machine xmlns:forewarn="{METADATA_URI}" scope="{scope}" {more}/>'


def domain(uuid: str = WEB_0, name: str = "web-0", **more: object) -> Domain:
    return replace(Domain(uuid=uuid, name=name, metadata=stated()), **more)  # type: ignore[arg-type]


def host(name: str, *domains: Domain, problem: str = "") -> HostReading:
    return HostReading(name=name, connection=f"qemu+ssh://{name}/system", domains=domains, problem=problem)


def machine(uuid: str = WEB_0, name: str = "web-0", **more: object) -> Machine:
    return replace(Machine(scope="shop", name=name, host="kvm-a", instance_id=uuid), **more)  # type: ignore[arg-type]


def fleet(*machines: Machine, scopes: Iterable[Scope] = SHOP.values()) -> Fleet:
    return Fleet({scope.name: scope for scope in scopes}, {each.key: each for each in machines})


def lines(decision: Decision, before: Fleet) -> tuple[str, ...]:
    return difference_of(decision, before).lines


def test_a_new_domain_becomes_a_machine() -> None:
    """Name, host, addresses and UUID come from libvirt; scope, kind and domains from its metadata."""
    metadata = stated(kind="placement-group", update_domain=1, fault_domain=2)
    seen = domain(metadata=metadata, leases=("10.88.0.11",), arp=("10.88.0.11", "10.99.0.11"), interface="vnet0")
    decision = decide([host("kvm-a", seen)], Fleet({}, {}), (), now=NOW)
    assert decision.wanted.scopes == {"shop": Scope(name="shop", kind=ScopeKind.PLACEMENT_GROUP)}
    assert list(decision.wanted.machines.values()) == [
        machine(update_domain=1, fault_domain=2, addresses=("10.88.0.11", "10.99.0.11"))
    ]
    assert decision.hosts == (Host(name="kvm-a", connection="qemu+ssh://kvm-a/system", listed=True),)
    assert lines(decision, Fleet({}, {})) == ("+ scope shop (placement-group)", "+ machine shop/web-0")
    by_interface = decide([host("kvm-a", seen)], Fleet({}, {}), (), now=NOW, by_interface=True)
    assert by_interface.wanted.machines["shop", "web-0"].identities == (("vnet0", ""),)


def test_a_domain_without_a_scope_is_no_machine() -> None:
    """It is only named; if the fleet has its UUID already, the fleet's scope holds."""
    seen = domain(metadata="")
    decision = decide([host("kvm-a", seen)], Fleet({}, {}), (), now=NOW)
    assert (decision.wanted, decision.unassigned, decision.problems) == (Fleet({}, {}), ("web-0",), ())
    before = fleet(machine(update_domain=4, host="kvm-b", labels={"env": "prod"}))
    decision = decide([host("kvm-a", seen), host("kvm-b")], before, (), now=NOW)
    assert lines(decision, before) == ("~ machine shop/web-0: host kvm-b -> kvm-a",)


def test_labels_that_metadata_states_replace_those_of_the_fleet() -> None:
    """A domain whose metadata states no labels keeps those of its machine."""
    before = fleet(machine(labels={"env": "prod"}))
    stays = decide([host("kvm-a", domain())], before, (), now=NOW)
    assert stays.wanted.machines["shop", "web-0"].labels == {"env": "prod"}
    decision = decide([host("kvm-a", domain(metadata=stated(labels="env=test,gpu=")))], before, (), now=NOW)
    assert lines(decision, before) == ('~ machine shop/web-0: labels {env prod} -> {env test, gpu ""}',)


def test_renamed_and_moved_domains_are_followed_by_their_uuid() -> None:
    """A new name or scope replaces the machine; a new host changes it; what metadata does not state stays."""
    before = fleet(machine(update_domain=3, addresses=("10.88.0.11",)), machine(WEB_1, "web-1"))
    readings = [host("kvm-a"), host("kvm-b", domain(name="web-9"), domain(WEB_1, "web-1"))]
    decision = decide(readings, before, (), now=NOW)
    assert lines(decision, before) == (
        "- machine shop/web-0",
        "~ machine shop/web-1: host kvm-a -> kvm-b",
        "+ machine shop/web-9",
    )
    assert decision.wanted.machines["shop", "web-9"] == machine(
        name="web-9", host="kvm-b", update_domain=3, addresses=("10.88.0.11",)
    )
    moved = decide([host("kvm-a", domain(metadata=stated("api")), domain(WEB_1, "web-1"))], before, (), now=NOW)
    assert lines(moved, before)[:3] == ("- machine shop/web-0", "+ scope api (availability-set)", "+ machine api/web-0")


def test_a_machine_in_an_open_event_keeps_its_name_and_update_domain() -> None:
    """Its host and addresses are facts and change at once; the rest waits for the event, and the decision says so."""
    before = fleet(machine())
    seen = domain(name="web-9", metadata=stated(update_domain=7), leases=("10.88.0.11",))
    decision = decide([host("kvm-a"), host("kvm-b", seen)], before, (), now=NOW, busy={("shop", "web-0"): 0})
    assert lines(decision, before) == ("~ machine shop/web-0: host kvm-a -> kvm-b, addresses [] -> [10.88.0.11]",)
    assert decision.problems == (
        "machine shop/web-0 is in an open event: it becomes shop/web-9 after the event",
        "machine shop/web-0 is in an open event: its update domain becomes 7 after the event",
    )


def test_a_domain_that_is_gone_leaves_after_an_hour() -> None:
    """Not before, not with an open event, and not while a host cannot be read; a machine that was no domain stays."""
    other = Machine(scope="shop", name="metal-0", host="kvm-a")
    before = fleet(machine(), other)
    first = decide([host("kvm-a")], before, (), now=NOW)
    assert first.memory.gone == {WEB_0: NOW}
    assert lines(first, before) == ()
    almost = decide([host("kvm-a")], before, (), now=NOW + GONE_AFTER - timedelta(seconds=1), memory=first.memory)
    assert lines(almost, before) == ()
    late = NOW + GONE_AFTER
    busy = decide([host("kvm-a")], before, (), now=late, memory=almost.memory, busy={("shop", "web-0"): 0})
    away = decide([host("kvm-a"), host("kvm-b", problem="away")], before, (), now=late, memory=almost.memory)
    assert lines(busy, before) == lines(away, before) == ()
    assert away.problems == ("away",)
    assert lines(decide([host("kvm-a")], before, (), now=late, memory=away.memory), before) == ("- machine shop/web-0",)
    back = decide([host("kvm-a", domain())], before, (), now=late, memory=away.memory)
    assert (back.memory, lines(back, before)) == (Memory(), ())


def test_a_machine_of_a_host_that_is_not_read_never_leaves() -> None:
    """Hosts without a connection are no affair of the inventory; neither is an instance id that is no UUID."""
    elsewhere, proxied = machine(host="metal"), machine("i-0042", "db-0")
    before = fleet(elsewhere, proxied)
    memory = Memory(gone={WEB_0: NOW - 2 * GONE_AFTER, "i-0042": NOW - 2 * GONE_AFTER})
    decision = decide([host("kvm-a")], before, (), now=NOW, memory=memory)
    assert (lines(decision, before), decision.memory.gone) == ((), {})


def test_many_machines_do_not_leave_at_once() -> None:
    """More than ten stay: a connection that shows no domains is more likely than their end."""
    gone = [f"5ca1ab1e-0000-4000-8000-0000000001{n:02}" for n in range(11)]
    before = fleet(*(machine(each, f"web-{n}") for n, each in enumerate(gone)))
    memory = Memory(gone=dict.fromkeys(gone, NOW - GONE_AFTER))
    decision = decide([host("kvm-a")], before, (), now=NOW, memory=memory)
    assert decision.removed == ()
    assert "the domains of 11 machines are gone" in decision.problems[0]
    fewer = fleet(*(before.machines["shop", f"web-{n}"] for n in range(10)))
    assert len(decide([host("kvm-a")], fewer, (), now=NOW, memory=memory).removed) == 10


def test_a_domain_that_runs_on_two_hosts_is_an_alarm_and_no_move() -> None:
    """It stays where the fleet has it, at once and for as long as it lasts; a new one is not counted."""
    before = fleet(machine())
    readings = [host("kvm-a", domain()), host("kvm-b", domain())]
    decision = decide(readings, before, (), now=NOW)
    assert lines(decision, before) == ()
    (alarm,) = decision.doubled
    assert alarm.startswith(f"domain 'web-0' ({WEB_0}) runs on kvm-a and kvm-b: forewarn counts it on kvm-a;")
    new = decide(readings, Fleet({}, {}), (), now=NOW)
    assert "forewarn does not count it" in new.doubled[0]
    assert new.wanted.machines == {}


def test_a_definition_that_stays_behind_is_an_alarm_after_a_minute() -> None:
    """The machine is where it runs; the second definition is an alarm unless it goes soon."""
    before = fleet(machine())
    readings = [host("kvm-a", domain(active=False)), host("kvm-b", domain())]
    decision = decide(readings, before, (), now=NOW)
    assert lines(decision, before) == ("~ machine shop/web-0: host kvm-a -> kvm-b",)
    assert decision.doubled == ()
    later = decide(readings, before, (), now=NOW + DOUBLED_AFTER, memory=decision.memory)
    assert "is defined on kvm-a and kvm-b: forewarn counts it on kvm-b" in later.doubled[0]
    off = decide([host(name, domain(active=False)) for name in ("kvm-a", "kvm-b")], before, (), now=NOW)
    assert lines(off, before) == ()


@pytest.mark.parametrize(
    ("source", "target", "counted_on"),
    [
        (domain(), domain(migrating=True), "kvm-a"),
        (domain(migrating=True), domain(migrating=True), "kvm-a"),
        (domain(migrating=True), domain(), "kvm-b"),
    ],
)
def test_a_migration_under_way_is_no_alarm(source: Domain, target: Domain, counted_on: str) -> None:
    """While libvirt holds one of the two domains still, the machine is where the other one runs."""
    readings = [host("kvm-a", source), host("kvm-b", target)]
    memory = Memory(doubled={WEB_0: NOW - DOUBLED_AFTER})
    decision = decide(readings, fleet(machine()), (), now=NOW, memory=memory)
    assert (decision.doubled, decision.memory.doubled) == ((), {})
    assert decision.wanted.machines["shop", "web-0"].host == counted_on


def test_an_address_belongs_to_one_machine() -> None:
    """A lease beats what a guest says; a machine of another source, and one that has the address already, keep it."""
    metal = Machine(scope="shop", name="metal-0", addresses=("10.88.0.50",))
    before = fleet(metal, machine(addresses=("10.88.0.11",)))
    claimed = ("10.88.0.11", "10.88.0.12", "10.88.0.50")
    readings = [host("kvm-a", domain(), domain(WEB_1, "web-1", arp=claimed), domain(DB_0, "db-0", leases=claimed[1:2]))]
    decision = decide(readings, before, (), now=NOW)
    after = {key[1]: each.addresses for key, each in decision.wanted.machines.items()}
    assert after == {"web-0": ("10.88.0.11",), "web-1": (), "db-0": ("10.88.0.12",)}
    assert sorted(decision.problems) == [
        "10.88.0.11 of machine shop/web-1 belongs to shop/web-0 already",
        "10.88.0.12 of machine shop/web-1 belongs to shop/db-0 already",
        "10.88.0.50 of machine shop/web-1 belongs to shop/metal-0 already",
    ]
    difference_of(decision, before)


def test_what_guests_claim_takes_no_address_from_another_machine() -> None:
    """A lease counts more than possession, possession more than ARP, and ARP more than the guest agent. Equal claims fail."""
    address = ("10.88.0.11",)
    seen, named = domain(WEB_1, "web-1", arp=address), domain(DB_0, "db-0", agent=address)

    def owners(before: Fleet, *domains: Domain) -> list[str]:
        decision = decide([host("kvm-a", *domains)], before, (), now=NOW)
        difference_of(decision, before)
        return [name for (_, name), each in {**before.machines, **decision.wanted.machines}.items() if each.addresses]

    empty = Fleet({}, {})
    assert owners(empty, named) == ["db-0"]
    assert owners(empty, named, seen) == ["web-1"]
    assert owners(empty, named, seen, domain(leases=address)) == ["web-0"]
    assert owners(empty, seen, domain(arp=address)) == []
    # The owner of the address is off, has another name, or has been gone for a moment.
    before = fleet(machine(addresses=address))
    assert owners(before, seen, named, domain(active=False)) == ["web-0"]
    assert owners(before, seen, domain(name="web-9")) == ["web-0", "web-9"]
    assert owners(before, seen) == ["web-0"]
    equal = decide([host("kvm-a", seen, domain(arp=address))], empty, (), now=NOW)
    assert equal.problems == (
        "10.88.0.11 of machine shop/web-0 is claimed by shop/web-0 and shop/web-1: none of them gets it",
        "10.88.0.11 of machine shop/web-1 is claimed by shop/web-0 and shop/web-1: none of them gets it",
    )


def test_addresses_that_no_lease_proves_are_named() -> None:
    """New ones only, with the source that shows them: an operator reads them in an imported file."""
    seen = domain(leases=("10.88.0.11",), arp=("10.88.0.11", "10.88.0.12"), agent=("10.88.0.12", "10.88.0.13"))
    decision = decide([host("kvm-a", seen)], Fleet({}, {}), (), now=NOW)
    assert decision.remarks() == {
        ("shop", "web-0"): "check what no DHCP lease proves: 10.88.0.12 (ARP), 10.88.0.13 (guest agent)"
    }
    known = fleet(machine(addresses=("10.88.0.11", "10.88.0.12", "10.88.0.13")))
    assert decide([host("kvm-a", seen)], known, (), now=NOW).remarks() == {}


def test_a_lease_moves_the_address_of_a_machine_that_is_gone() -> None:
    """The old machine, which may still leave, loses the address to the new one."""
    before = fleet(machine(addresses=("10.88.0.11",)))
    decision = decide([host("kvm-a", domain(WEB_1, "web-1", leases=("10.88.0.11",)))], before, (), now=NOW)
    assert lines(decision, before) == (
        "+ machine shop/web-1",
        "~ machine shop/web-0: addresses [10.88.0.11] -> []",
    )


def test_a_machine_without_a_lease_keeps_its_addresses() -> None:
    """A machine that is off, or silent, shows none; a lease replaces what was known."""
    before = fleet(machine(addresses=("10.88.0.11",)))
    for silent in (domain(active=False), domain()):
        assert lines(decide([host("kvm-a", silent)], before, (), now=NOW), before) == ()
    leased = decide([host("kvm-a", domain(leases=("10.88.0.12",)))], before, (), now=NOW)
    assert lines(leased, before) == ("~ machine shop/web-0: addresses [10.88.0.11] -> [10.88.0.12]",)


def test_two_domains_of_one_name_are_a_problem_of_the_second() -> None:
    """The machine that is known stays; a domain made again under its name takes its place when the old one is gone."""
    before = fleet(machine())
    both = decide([host("kvm-a", domain()), host("kvm-b", domain(WEB_1))], before, (), now=NOW)
    assert lines(both, before) == ()
    assert both.problems == (
        "domain 'web-0' on kvm-b: there is another domain for machine shop/web-0: give one of them another name",
    )
    again = decide([host("kvm-a", domain(WEB_1))], before, (), now=NOW)
    assert lines(again, before) == (f"~ machine shop/web-0: instance_id {WEB_0} -> {WEB_1}",)
    hidden = decide([host("kvm-a", domain(WEB_1)), host("kvm-b", problem="away")], before, (), now=NOW)
    assert lines(hidden, before) == ()
    stated_by_hand = fleet(Machine(scope="shop", name="web-0", update_domain=2))
    adopted = decide([host("kvm-a", domain())], stated_by_hand, (), now=NOW)
    assert adopted.wanted.machines["shop", "web-0"] == machine(update_domain=2)


def test_two_domains_may_swap_their_names() -> None:
    """Each machine follows its UUID; a domain whose new name is not free keeps the old one, with its new host."""
    before = fleet(machine(update_domain=1), machine(WEB_1, "web-1", update_domain=2))
    swapped = decide([host("kvm-a", domain(name="web-1"), domain(WEB_1, "web-0"))], before, (), now=NOW)
    after = swapped.wanted.machines
    assert (after["shop", "web-0"].instance_id, after["shop", "web-1"].instance_id) == (WEB_1, WEB_0)
    assert (after["shop", "web-0"].update_domain, swapped.removed, swapped.problems) == (2, (), ())
    readings = [host("kvm-a", domain(WEB_1, "web-1")), host("kvm-b", domain(name="web-1"))]
    kept = decide(readings, before, (), now=NOW)
    assert lines(kept, before) == ("~ machine shop/web-0: host kvm-a -> kvm-b",)
    assert "there is another domain for machine shop/web-1" in kept.problems[0]
    wrong = decide([host("kvm-a", domain(WEB_1, "web-1")), host("kvm-b", domain(metadata="<m"))], before, (), now=NOW)
    assert lines(wrong, before) == ("~ machine shop/web-0: host kvm-a -> kvm-b",)


def test_a_wrong_domain_stops_no_other() -> None:
    """A name, metadata or kind that cannot be used is a problem of this domain alone."""
    readings = [
        host(
            "kvm-a",
            domain(name="web 0\n" + "x" * 1000),
            domain(WEB_1, "web-1", metadata="<machine"),
            domain(DB_0, "db-0"),
        )
    ]
    decision = decide(readings, Fleet({}, {}), (), now=NOW)
    assert list(decision.wanted.machines) == [("shop", "db-0")]
    assert len(decision.problems) == 2
    assert max(map(len, decision.problems)) < 1_500
    kinds = decide([host("kvm-a", domain(metadata=stated(kind="placement-group")))], fleet(machine()), (), now=NOW)
    assert "scope shop is of the kind placement-group, and it is availability-set" in kinds.problems[0]


def test_a_standalone_scope_has_one_machine_and_leaves_with_it() -> None:
    """A second domain of the scope is a problem; a renamed domain takes its scope along."""
    solo = {"metadata": stated("solo", kind="standalone")}
    readings = [host("kvm-a", domain(**solo), domain(WEB_1, "web-1", **solo))]
    decision = decide(readings, Fleet({}, {}), (), now=NOW)
    assert list(decision.wanted.machines) == [("solo", "web-0")]
    assert decision.problems == ("domain 'web-1' on kvm-a: the standalone scope solo has the machine web-0 already",)
    difference_of(decision, Fleet({}, {}))
    before = Fleet({"solo": Scope(name="solo", kind=ScopeKind.STANDALONE)}, {("solo", "web-0"): machine(scope="solo")})
    moved = decide([host("kvm-a", domain(metadata=stated("duo", kind="standalone")))], before, (), now=NOW)
    assert lines(moved, before) == (
        "- machine solo/web-0",
        "- scope solo",
        "+ scope duo (standalone)",
        "+ machine duo/web-0",
    )


def test_an_unreachable_host_changes_nothing() -> None:
    """Its machines stay as they are, and the decision says why."""
    before = fleet(machine(), machine(WEB_1, "web-1", host="kvm-b"))
    decision = decide(
        [host("kvm-a", problem="host kvm-a: away"), host("kvm-b", domain(WEB_1, "web-1"))], before, (), now=NOW
    )
    assert lines(decision, before) == ()
    assert decision.problems == ("host kvm-a: away",)
    assert decision.memory == Memory()
