"""Whatever hosts show, the difference is a valid one, and keeps the promises of docs/guide/libvirt-inventory.md."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.fleet import Fleet, stated_fleet
from forewarn.core.model import Machine, Scope, ScopeKind
from forewarn.libvirt.inventory import UUID, Domain, HostReading, Memory, decide, difference_of
from forewarn.libvirt.statements import METADATA_URI, parse_rules
from tests.support.budget import BUDGET

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
UUIDS = [f"5ca1ab1e-0000-4000-8000-00000000000{n}" for n in range(5)]
NAMES, SCOPES, HOSTS = ["web-0", "web-1", "db-0"], ["shop", "solo"], ["kvm-a", "kvm-b"]
ADDRESSES = [f"10.88.0.{n}" for n in range(11, 15)]
RULES = parse_rules("[[rules]]\nmatch = 'db-(?P<update_domain>[0-9])'\nscope = 'shop'", "rules")

metadata = st.one_of(
    st.just(""),
    st.just("<machine"),
    st.builds(
        lambda scope, kind: f"<f:machine xmlns:f='{METADATA_URI}' scope='{scope}' kind='{kind}'/>",
        st.sampled_from(SCOPES),
        st.sampled_from(["standalone", "availability-set"]),
    ),
)
domains = st.builds(
    Domain,
    uuid=st.sampled_from(UUIDS),
    name=st.sampled_from([*NAMES, "no name"]),
    active=st.booleans(),
    migrating=st.booleans(),
    metadata=metadata,
    leases=st.lists(st.sampled_from(ADDRESSES), max_size=2).map(tuple),
    arp=st.lists(st.sampled_from(ADDRESSES), max_size=2).map(tuple),
    agent=st.lists(st.sampled_from(ADDRESSES), max_size=2).map(tuple),
    interface=st.sampled_from(["", "tap0", "tap1"]),
)


@st.composite
def readings(draw: st.DrawFn) -> list[HostReading]:
    """Draw what the hosts show. A host has a UUID at most once; some hosts cannot be read."""
    return [
        HostReading(
            name=name,
            connection=name,
            domains=tuple(draw(st.lists(domains, max_size=4, unique_by=lambda each: each.uuid))),
        )
        if draw(st.integers(0, 5))
        else HostReading(name=name, connection=name, problem="away")
        for name in HOSTS
    ]


MANUAL = Machine(scope="shop", name="web-1", host="kvm-a", addresses=("10.88.0.11",))
FLEETS = [
    Fleet({}, {}),
    Fleet({"shop": Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)}, {MANUAL.key: MANUAL}),
]


def after(fleet: Fleet, wanted: Fleet, removed: frozenset[tuple[str, str]], scopes: frozenset[str]) -> Fleet:
    machines = {key: machine for key, machine in fleet.machines.items() if key not in removed} | dict(wanted.machines)
    kept = {name: scope for name, scope in {**fleet.scopes, **wanted.scopes}.items() if name not in scopes}
    return Fleet(kept, machines)


@settings(max_examples=300 * BUDGET, deadline=None)
@given(st.sampled_from(FLEETS), st.lists(readings(), min_size=1, max_size=4), st.booleans(), st.data())
def test_every_series_of_looks_leads_to_valid_fleets(
    fleet: Fleet, series: list[list[HostReading]], by_interface: bool, data: st.DataObject
) -> None:
    """After each reading the fleet is valid; machines of open events, and machines that are no domains, stay.

    Only a lease takes an address from a machine.
    """
    memory, now = Memory(), NOW
    for seen in series:
        keys = sorted(fleet.machines)
        busy = {key: fleet.machines[key].update_domain for key in keys if data.draw(st.booleans())}
        decision = decide(seen, fleet, RULES, now=now, by_interface=by_interface, busy=busy, memory=memory)
        diff = difference_of(decision, fleet)
        removed, scopes = frozenset(diff.removed_machines), frozenset(diff.removed_scopes)
        assert not removed & busy.keys()
        assert all(fleet.machines[key].instance_id for key in removed)
        assert all(machine.update_domain == busy[machine.key] for machine in diff.machines if machine.key in busy)
        shown = {domain.uuid for reading in seen for domain in reading.domains}
        if any(reading.problem for reading in seen):
            gone = {fleet.machines[key].instance_id for key in removed} - shown
            assert not gone, "a machine left while a host could not be read"
        for key, machine in fleet.machines.items():
            if not UUID.fullmatch(machine.instance_id):
                new = decision.wanted.machines.get(key, machine)
                assert new.addresses == machine.addresses or new.instance_id in shown
        leases = {domain.uuid: domain.leases for reading in seen for domain in reading.domains if domain.leases}
        leased = {("", address) for addresses in leases.values() for address in addresses}
        stolen = [
            (str(machine), identity)
            for identity, owner in ((each, m) for m in fleet.machines.values() for each in m.identities)
            for machine in decision.wanted.machines.values()
            if identity in machine.identities
            and identity not in leased
            and owner.instance_id not in leases  # a lease replaces what the machine had
            and (owner.key not in removed or owner.instance_id in shown)
            and not _replaces(machine, owner, shown)
        ]
        assert stolen == [], "a guest took what another machine had"
        fleet, memory = after(fleet, decision.wanted, removed, scopes), decision.memory
        stated_fleet(
            [
                scope
                for scope in fleet.scopes.values()
                if scope.kind is not ScopeKind.STANDALONE or _members(fleet, scope)
            ],
            fleet.machines.values(),
            (),
        )
        ids = [machine.instance_id for machine in fleet.machines.values() if machine.instance_id]
        assert len(ids) == len(set(ids))
        now += timedelta(minutes=40)


def _replaces(machine: Machine, owner: Machine, shown: set[str]) -> bool:
    """Whether this is the same machine, or one with the name of a machine that was no domain or whose domain is gone."""
    return machine.instance_id == owner.instance_id or (machine.key == owner.key and owner.instance_id not in shown)


def _members(fleet: Fleet, scope: Scope) -> int:
    return sum(1 for name, _ in fleet.machines if name == scope.name)
