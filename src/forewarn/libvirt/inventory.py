"""Decides what the domains of libvirt's hosts mean for the fleet: which machines to write, which to remove, what is wrong.

Pure: what the hosts show, the fleet, the machines in open events, and the time come in; a Decision comes out. A domain is the
machine with its UUID as instance id. Scope, kind and domains come from the domain's metadata, or from rules about its name; what
neither states stays as the fleet has it. A machine that is no domain is never touched.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forewarn.core.errors import Invalid
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import MAX_REMOVED_UNASKED, Difference, difference
from forewarn.core.model import MAX_ADDRESSES_PER_MACHINE, Host, Machine, Scope, ScopeKind
from forewarn.libvirt.statements import Rule, Statement, statement_of

# How long a domain must be gone from all hosts before its machine leaves the fleet.
GONE_AFTER = timedelta(hours=1)
# How long a domain may be defined on two hosts, as it is while it moves, before that is an alarm.
DOUBLED_AFTER = timedelta(minutes=1)

# Who keeps an address or an interface that several machines have: the machine with the lowest of these ranks. A guest answers
# ARP as it likes unless its host stops spoofing, and its agent can say anything: such a claim is worth less than possession.
STATED, LEASED, POSSESSED, SEEN, CLAIMED = range(5)
SOURCES = {SEEN: "ARP", CLAIMED: "guest agent"}

# As libvirt writes it.
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A domain as libvirt shows it.

    `migrating` says that libvirt holds it still for a migration, as its source or its target. Its addresses come from libvirt's
    DHCP server (`leases`), from the host's ARP table (`arp`), and from the guest itself (`agent`). `metadata` is forewarn's
    element.
    """

    uuid: str
    name: str
    active: bool = True
    migrating: bool = False
    metadata: str = ""
    leases: tuple[str, ...] = ()
    arp: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    interface: str = ""

    def sources(self) -> dict[str, int]:
        """Return the addresses, those of the most trusted source first, with the rank of their source."""
        by_rank = {LEASED: self.leases, SEEN: self.arp, CLAIMED: self.agent}
        found: dict[str, int] = {}
        for rank, addresses in by_rank.items():
            for address in addresses:
                found.setdefault(address, rank)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """What a host shows. With a `problem` nothing is known about its domains."""

    name: str
    connection: str
    domains: tuple[Domain, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when domains are gone, and since when they are on several hosts, by UUID."""

    gone: Mapping[str, datetime] = field(default_factory=dict)
    doubled: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to change, and what an operator should know.

    `hosts` are those that were read, as rows of the fleet. `removed` are machines that leave, because their domain is gone or
    has another name or scope. `doubled` says which domains are on several hosts. `unassigned` are the names of domains without
    a scope, which are no machines. `unproven` are the new addresses of wanted machines that no DHCP server gave, with their rank.
    """

    wanted: Fleet
    hosts: tuple[Host, ...] = ()
    removed: tuple[Key, ...] = ()
    problems: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    unassigned: tuple[str, ...] = ()
    unproven: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def remarks(self) -> dict[Key, str]:
        """Return for each machine with unproven addresses a sentence that names them."""
        return {
            key: "check what no DHCP lease proves: "
            + ", ".join(f"{address} ({SOURCES[rank]})" for address, rank in sorted(addresses.items()))
            for key, addresses in self.unproven.items()
        }


@dataclass(frozen=True, slots=True)
class _Sighting:
    host: HostReading
    domain: Domain


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A domain that is a machine: where it is, what is stated about it, its machine in the fleet, and the key it should have."""

    sighting: _Sighting
    statement: Statement
    known: Machine | None
    wish: Key

    @property
    def uuid(self) -> str:
        return self.sighting.domain.uuid

    def moves(self, key: Key) -> bool:
        return self.known is not None and self.known.key != key


def decide(
    readings: Iterable[HostReading],
    fleet: Fleet,
    rules: Iterable[Rule],
    *,
    now: datetime,
    by_interface: bool = False,
    busy: Mapping[Key, int] | None = None,
    memory: Memory | None = None,
) -> Decision:
    """`busy` are the machines in open events, with the update domain of the event. `by_interface` says that each machine has
    an interface of its own, which identifies it."""
    return _Deciding(tuple(readings), fleet, tuple(rules), now, by_interface, busy or {}, memory or Memory()).decision()


class _Deciding:
    def __init__(
        self,
        readings: tuple[HostReading, ...],
        fleet: Fleet,
        rules: tuple[Rule, ...],
        now: datetime,
        by_interface: bool,
        busy: Mapping[Key, int],
        memory: Memory,
    ) -> None:
        self._readings, self._fleet, self._rules, self._now = readings, fleet, rules, now
        self._by_interface, self._busy, self._memory = by_interface, busy, memory
        self._known = {machine.instance_id: machine for machine in fleet.machines.values() if machine.instance_id}
        self._members: dict[str, set[Key]] = defaultdict(set)
        for key in fleet.machines:
            self._members[key[0]].add(key)
        self._sightings: dict[str, list[_Sighting]] = defaultdict(list)
        for reading in readings:
            for domain in reading.domains:
                self._sightings[domain.uuid].append(_Sighting(reading, domain))
        self._problems = [reading.problem for reading in readings if reading.problem]
        self._alarms: list[str] = []
        self._doubled: dict[str, datetime] = {}
        self._unassigned: list[str] = []
        self._removed: dict[Key, None] = {}
        self._machines: dict[Key, Machine] = {}
        self._sources: dict[Key, dict[str, int]] = {}
        self._possessed: dict[Key, tuple[tuple[str, str], ...]] = {}
        self._kinds: dict[str, ScopeKind] = {}

    def decision(self) -> Decision:
        candidates = [each for uuid in sorted(self._sightings) if (each := self._candidate(uuid)) is not None]
        self._note_kinds(candidates)
        keys = self._keys(candidates)
        self._removed.update(
            (c.known.key, None) for key, c in keys.items() if c.known is not None and c.known.key not in keys
        )
        vacated = {c.known.key for key, c in keys.items() if c.known is not None and c.moves(key)}
        for key, candidate in keys.items():
            self._machines[key] = self._machine(
                candidate, key, None if key in vacated else self._fleet.machines.get(key)
            )
        gone = self._gone()
        self._without_contested_identities(gone)
        return Decision(
            wanted=Fleet(self._scopes(), self._machines),
            hosts=self._hosts(),
            removed=tuple(self._removed),
            problems=tuple(self._problems),
            doubled=tuple(self._alarms),
            unassigned=tuple(sorted(self._unassigned)),
            unproven=self._unproven(),
            memory=Memory(gone, self._doubled),
        )

    # -- one domain

    def _candidate(self, uuid: str) -> _Candidate | None:
        known = self._known.get(uuid)
        sighting = self._located(self._sightings[uuid], known)
        if sighting is None:
            return None
        domain = sighting.domain
        try:
            statement = statement_of(domain.name, domain.metadata, self._rules)
            scope = statement.scope or (known.scope if known is not None else "")
            if not scope:
                self._unassigned.append(domain.name)
                return None
            key = Machine(scope=scope, name=domain.name).key
        except Invalid as error:
            self._refuse(sighting, str(error))
            if known is None:
                return None
            statement, key = Statement(), known.key  # its host and its addresses are facts all the same
        if known is not None and key != known.key and known.key in self._busy:
            self._problems.append(f"machine {known} is in an open event: it becomes {'/'.join(key)} after the event")
            key = known.key
        return _Candidate(sighting, statement, known, key)

    def _refuse(self, sighting: _Sighting, reason: str) -> None:
        self._problems.append(f"domain {sighting.domain.name[:64]!r} on {sighting.host.name}: {reason}")

    # -- names

    def _keys(self, candidates: list[_Candidate]) -> dict[Key, _Candidate]:
        """Return which domain is which machine. A domain that cannot have its new name keeps the old one."""
        staying: dict[str, str] = {}
        while True:
            wishes = {c.uuid: c.known.key if c.known is not None and c.uuid in staying else c.wish for c in candidates}
            vacated = {c.known.key for c in candidates if c.known is not None and c.moves(wishes[c.uuid])}
            # Those that stay come first, then those that move: a new domain does not take the name of a machine.
            order = sorted(candidates, key=lambda c: (c.known is None, c.moves(wishes[c.uuid]), c.uuid))
            taken: dict[Key, _Candidate] = {}
            refused: list[tuple[_Candidate, str]] = []
            loser = None
            for candidate in order:
                key = wishes[candidate.uuid]
                obstacle = self._obstacle(candidate, key, taken, vacated)
                if not obstacle:
                    taken[key] = candidate
                elif candidate.known is None:
                    refused.append((candidate, obstacle))
                else:
                    loser = candidate
                    staying[candidate.uuid] = obstacle
                    break
            if loser is None:
                refused += [(c, staying[c.uuid]) for c in candidates if c.uuid in staying]
                for candidate, reason in refused:
                    self._refuse(candidate.sighting, reason)
                return taken

    def _obstacle(self, candidate: _Candidate, key: Key, taken: Mapping[Key, _Candidate], vacated: set[Key]) -> str:
        """Return why a domain cannot be the machine with this key, or ""."""
        if candidate.known is not None and candidate.known.key == key:
            return ""
        if key in taken:
            return f"there is another domain for machine {'/'.join(key)}: give one of them another name"
        namesake = self._fleet.machines.get(key)
        if namesake is not None and key not in vacated and not self._may_take(namesake):
            return f"machine {namesake} has the instance id {namesake.instance_id!r}: remove one of them"
        if self._kind_of(key[0]) is ScopeKind.STANDALONE:
            others = {*self._members[key[0]] - vacated, *(each for each in taken if each[0] == key[0])} - {key}
            if others:
                return f"the standalone scope {key[0]} has the machine {others.pop()[1]} already"
        return ""

    def _kind_of(self, scope: str) -> ScopeKind:
        in_fleet = self._fleet.scopes.get(scope)
        return in_fleet.kind if in_fleet is not None else self._kinds.get(scope, ScopeKind.AVAILABILITY_SET)

    def _note_kinds(self, candidates: list[_Candidate]) -> None:
        for each in candidates:
            kind, scope = each.statement.kind, each.statement.scope
            if kind is not None and scope:
                self._kinds.setdefault(scope, kind)
                if self._kind_of(scope) is not kind:
                    self._problems.append(
                        f"domain {each.sighting.domain.name[:64]!r} says that scope {scope} is of the kind {kind}, and it is"
                        f" {self._kind_of(scope)}: correct the domain, or change the kind with `forewarn fleet apply`"
                    )

    # -- where, and the rest

    def _located(self, sightings: list[_Sighting], known: Machine | None) -> _Sighting | None:
        """Return where the machine is. While a domain runs on several hosts, or on none of several, it stays where it was."""
        if len(sightings) == 1:
            return sightings[0]
        running = [each for each in sightings if each.domain.active and not each.domain.migrating]
        before = next((each for each in sightings if known is not None and each.host.name == known.host), None)
        located = running[0] if len(running) == 1 else before
        # While it moves there is a second domain, which libvirt holds still until the first one has ended.
        if len(running) > 1 or not any(each.domain.migrating for each in sightings):
            self._note_doubled(sightings, at_once=len(running) > 1, located=located)
        return located

    def _note_doubled(self, sightings: list[_Sighting], *, at_once: bool, located: _Sighting | None) -> None:
        each = sightings[0].domain.uuid
        since = self._doubled[each] = self._memory.doubled.get(each, self._now)
        if not at_once and self._now - since < DOUBLED_AFTER:
            return
        hosts = " and ".join(sorted(sighting.host.name for sighting in sightings))
        verb = "runs" if at_once else "is defined"
        stays = f"forewarn counts it on {located.host.name}" if located is not None else "forewarn does not count it"
        self._alarms.append(
            f"domain {sightings[0].domain.name[:64]!r} ({each}) {verb} on {hosts}: {stays};"
            " stop and undefine it on all hosts but one"
        )

    def _machine(self, candidate: _Candidate, key: Key, namesake: Machine | None) -> Machine:
        domain, statement = candidate.sighting.domain, candidate.statement
        base = candidate.known or namesake or Machine(scope=key[0], name=key[1])
        self._sources[key], self._possessed[key] = domain.sources(), base.identities
        machine = Machine(
            scope=key[0],
            name=key[1],
            update_domain=base.update_domain if statement.update_domain is None else statement.update_domain,
            fault_domain=base.fault_domain if statement.fault_domain is None else statement.fault_domain,
            host=candidate.sighting.host.name,
            addresses=self._addresses(domain, base),
            interface=(domain.interface or base.interface) if self._by_interface else base.interface,
            instance_id=domain.uuid,
            labels=base.labels if statement.labels is None else statement.labels,
        )
        if machine.update_domain != self._busy.get(key, machine.update_domain):
            self._problems.append(
                f"machine {machine} is in an open event: its update domain becomes {machine.update_domain} after the event"
            )
            machine = replace(machine, update_domain=self._busy[key])
        return machine

    def _may_take(self, namesake: Machine) -> bool:
        """Whether a new domain is this machine of the same name: it has no instance id, or that of a domain that is gone."""
        return not namesake.instance_id or (
            UUID.fullmatch(namesake.instance_id) is not None
            and namesake.instance_id not in self._sightings
            and self._sees_all()
        )

    def _addresses(self, domain: Domain, base: Machine) -> tuple[str, ...]:
        if self._by_interface:
            return base.addresses
        found = domain.sources()
        # A machine that is off, or has been silent, shows no address and keeps those it had; so it does without a lease.
        kept = () if domain.leases else base.addresses
        return tuple(dict.fromkeys((*found, *kept)))[:MAX_ADDRESSES_PER_MACHINE]

    # -- all machines

    def _sees_all(self) -> bool:
        return not any(reading.problem for reading in self._readings)

    def _gone(self) -> dict[str, datetime]:
        """Return since when domains are gone, and remove the machines of those that are gone for long."""
        hosts = {reading.name for reading in self._readings}
        absent = {
            machine.instance_id: machine
            for machine in self._fleet.machines.values()
            if machine.host in hosts
            and UUID.fullmatch(machine.instance_id)
            and machine.instance_id not in self._sightings
            and machine.key not in self._machines
        }
        if not self._sees_all():  # they may be on the host that cannot be reached
            return {each: since for each, since in self._memory.gone.items() if each in absent}
        gone = {each: self._memory.gone.get(each, self._now) for each in absent}
        leaving = [
            machine.key
            for each, machine in absent.items()
            if self._now - gone[each] >= GONE_AFTER and machine.key not in self._busy
        ]
        if len(leaving) > MAX_REMOVED_UNASKED:
            self._problems.append(
                f"the domains of {len(leaving)} machines are gone, {'/'.join(leaving[0])} among them: they stay in the fleet;"
                " check the connections of the hosts; to remove them, apply a fleet file without them with `fleet apply --prune`"
            )
        else:
            self._removed.update(dict.fromkeys(leaving))
        return gone

    def _without_contested_identities(self, gone: Mapping[str, datetime]) -> None:
        """Leave each address and interface to the machine with the best rank; to none if new claims of guests are equal."""
        claims: dict[tuple[str, str], list[tuple[int, bool, Key]]] = defaultdict(list)
        for machine in {**self._fleet.machines, **self._machines}.values():
            if machine.key not in self._removed:
                for identity in machine.identities:
                    new = identity not in self._possessed.get(machine.key, ())
                    claims[identity].append((self._rank(machine, identity, gone), new, machine.key))
        for identity, claimants in claims.items():
            (best, _, owner), *others = sorted(claimants)
            equal = [key for rank, _, key in claimants if rank == best]
            if best >= SEEN and len(equal) > 1:
                reason = f"is claimed by {' and '.join(map('/'.join, sorted(equal)))}: none of them gets it"
                self._lose(owner, identity, reason)
            else:
                reason = f"belongs to {'/'.join(owner)} already"
            for _, _, key in others:
                self._lose(key, identity, reason)

    def _rank(self, machine: Machine, identity: tuple[str, str], gone: Mapping[str, datetime]) -> int:
        if machine.key not in self._machines:
            return POSSESSED if machine.instance_id in gone else STATED
        rank = self._sources[machine.key].get(identity[1], SEEN)
        return min(rank, POSSESSED) if identity in self._possessed[machine.key] else rank

    def _unproven(self) -> dict[Key, dict[str, int]]:
        found: dict[Key, dict[str, int]] = defaultdict(dict)
        for key, sources in self._sources.items():
            had = {address for _, address in self._possessed[key]}
            for address in set(self._machines[key].addresses) - had:
                if sources[address] > LEASED:
                    found[key][address] = sources[address]
        return dict(found)

    def _lose(self, key: Key, identity: tuple[str, str], reason: str) -> None:
        machine = self._machines.get(key) or self._fleet.machines[key]
        interface, address = identity
        self._machines[key] = (
            replace(machine, addresses=tuple(each for each in machine.addresses if each != address))
            if address
            else replace(machine, interface="")
        )
        if machine.instance_id in self._sightings:
            self._problems.append(f"{address or interface} of machine {machine} {reason}")

    def _scopes(self) -> dict[str, Scope]:
        """Return the scopes that are new."""
        names = {machine.scope for machine in self._machines.values()} - self._fleet.scopes.keys()
        return {name: Scope(name=name, kind=self._kind_of(name)) for name in sorted(names)}

    def _hosts(self) -> tuple[Host, ...]:
        return tuple(Host(name=reading.name, connection=reading.connection, listed=True) for reading in self._readings)


def difference_of(decision: Decision, fleet: Fleet) -> Difference:
    """Return what must change in the fleet. A standalone scope leaves with its machine: it cannot be empty."""
    removed = set(decision.removed)
    rest = {key: machine for key, machine in fleet.machines.items() if key not in removed}
    diff = difference(Fleet(fleet.scopes, rest), decision.wanted)
    left = {scope for scope, _ in (*rest, *decision.wanted.machines)}
    emptied = tuple(
        scope
        for scope in dict.fromkeys(scope for scope, _ in decision.removed)
        if scope not in left and fleet.scopes[scope].kind is ScopeKind.STANDALONE
    )
    lines = (*(f"- machine {scope}/{name}" for scope, name in decision.removed), *(f"- scope {s}" for s in emptied))
    return replace(diff, removed_machines=decision.removed, removed_scopes=emptied, lines=(*lines, *diff.lines))
