"""How a wanted fleet differs from the current one, and what may not change while events are open.

Owns the difference as data and as lines to print, and the refusals that depend on open events.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter

from forewarn.core.amounts import is_share
from forewarn.core.change import Change, Snapshot
from forewarn.core.durations import duration_text
from forewarn.core.errors import InvalidFleet, LargeRemoval, MachineBusy, Refused
from forewarn.core.fast_init import replace
from forewarn.core.fleet import HOST_SETTINGS, MACHINE_SETTINGS, SCOPE_SETTINGS, Fleet, check_identities
from forewarn.core.formatting import count, names
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    MAX_MACHINES_PER_SCOPE,
    OPEN,
    UNSTARTED,
    Actor,
    AuditEntry,
    Host,
    Machine,
    Scope,
    ScopeKind,
    Status,
)

MAX_AUDIT_LINES = 1_000
# A difference that removes more scopes, machines and hosts than this is applied only after a question.
MAX_REMOVED_UNASKED = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """The scopes, machines and hosts to write and to remove, as data and as lines to print.

    A host that leaves the fleet while it is cordoned is written, so that it stays cordoned. `large_removal` says that the
    difference removes more than MAX_REMOVED_UNASKED scopes, machines and hosts, or the last machine of the fleet.
    """

    scopes: tuple[Scope, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_scopes: tuple[str, ...] = ()
    removed_machines: tuple[tuple[str, str], ...] = ()
    hosts: tuple[Host, ...] = ()
    removed_hosts: tuple[Host, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    large_removal: bool = False

    @property
    def touched(self) -> tuple[str, ...]:
        """The names of the scopes that the difference changes."""
        scopes = {s.name for s in self.scopes} | {m.scope for m in self.machines} | set(self.removed_scopes)
        return tuple(sorted(scopes | {scope for scope, _ in self.removed_machines}))


def difference(current: Fleet, wanted: Fleet, *, prune: bool = False) -> Difference:
    """Return what must change to get the wanted fleet; with `prune`, the rest of the current fleet is removed."""
    lines: list[str] = []
    scopes = []
    for name, scope in wanted.scopes.items():
        known = current.scopes.get(name)
        merged = scope if known is None else replace(known, **{key: getattr(scope, key) for key in SCOPE_SETTINGS})
        if merged != known:
            scopes.append(merged)
            lines.append(_line(f"scope {name}", f" ({scope.kind})", known, scope, SCOPE_SETTINGS))
    machines = []
    for key, machine in wanted.machines.items():
        present = current.machines.get(key)
        if present is None:
            machines.append(machine)
            lines.append(f"+ machine {machine.scope}/{machine.name}")
        elif machine != present:
            machines.append(machine)
            lines.append(_line(f"machine {machine}", "", present, machine, MACHINE_SETTINGS))
    hosts = []
    for name, host in wanted.hosts.items():
        row = current.hosts.get(name, Host(name=name))
        listed = replace(row, listed=True, **{key: getattr(host, key) for key in HOST_SETTINGS})
        if listed != row:
            hosts.append(listed)
            lines.append(_line(f"host {name}", "", row if row.listed else None, host, HOST_SETTINGS))
    removed_hosts = [host for host in current.hosts.values() if prune and host.listed and host.name not in wanted.hosts]
    hosts += [_unlisted(host) for host in removed_hosts if host.cordoned is not None]
    removed = [key for key in current.machines if prune and key not in wanted.machines]
    removed_scopes = [name for name in current.scopes if prune and name not in wanted.scopes]
    lines += [
        *(f"- machine {scope}/{name}" for scope, name in removed),
        *(f"- scope {name}" for name in removed_scopes),
        *(f"- host {host.name}" for host in removed_hosts),
    ]
    after = {**current.machines, **wanted.machines}
    for key in removed:
        del after[key]
    check_identities(after.values(), lambda machine: f"machine {machine}")
    _check_members(after.values(), {**current.scopes, **wanted.scopes})
    emptied = bool(removed) and not after
    diff = Difference(
        scopes=tuple(scopes),
        machines=tuple(machines),
        removed_scopes=tuple(removed_scopes),
        removed_machines=tuple(removed),
        hosts=tuple(hosts),
        removed_hosts=tuple(removed_hosts),
        lines=tuple(lines),
        warnings=spanning_hosts(after.values()) if machines else (),
        large_removal=emptied or len(removed) + len(removed_scopes) + len(removed_hosts) > MAX_REMOVED_UNASKED,
    )
    return replace(diff, warnings=(*diff.warnings, _removal_warning(diff))) if diff.large_removal else diff


def changes_labels(current: Fleet, diff: Difference) -> bool:
    """Whether a machine that exists has other labels after the difference, or other labels of its host."""
    moved = any(
        (known.labels, known.host) != (machine.labels, machine.host)
        for machine in diff.machines
        if (known := current.machines.get(machine.key)) is not None
    )
    labelled = any(host.labels != current.hosts.get(host.name, Host(name=host.name)).labels for host in diff.hosts)
    return moved or labelled or any(host.labels for host in diff.removed_hosts)


def _unlisted(host: Host) -> Host:
    """Return the host as it is after it left the fleet while it was cordoned: work on it may still need its connection."""
    return replace(host, listed=False, fault_domain=0, labels={})


def _removal_warning(diff: Difference) -> str:
    removed = removal_text(len(diff.removed_machines), len(diff.removed_scopes), len(diff.removed_hosts))
    return f"it removes {removed} that the file does not contain"


def removal_text(machines: int, scopes: int, hosts: int) -> str:
    """Return `12 machines and 1 scope`, without what is 0."""
    numbers = ((machines, "machine"), (scopes, "scope"), (hosts, "host"))
    return " and ".join(count(number, name) for number, name in numbers if number)


def refuse_large_removal(diff: Difference) -> None:
    """Refuse a difference that a person should confirm, where no person can."""
    if diff.large_removal:
        raise LargeRemoval(_removal_warning(diff))


def _line(what: str, detail: str, known: object | None, wanted: object, keys: Iterable[str]) -> str:
    if known is None:
        return f"+ {what}{detail}"
    changes = [
        f"{key.removesuffix('_s')} {_value_text(key, getattr(known, key))} -> {_value_text(key, getattr(wanted, key))}"
        for key in keys
        if getattr(known, key) != getattr(wanted, key)
    ]
    return f"~ {what}: {', '.join(changes)}"


def _value_text(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} {_value_text(key, v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    if key.endswith("_s") and isinstance(value, int):
        return duration_text(value)
    return str(value).lower() if isinstance(value, bool) else (str(value) or '""')


def _check_members(machines: Iterable[Machine], scopes: Mapping[str, Scope]) -> None:
    members = Counter(map(attrgetter("scope"), machines))
    for name, number in members.items():
        if scopes[name].kind is ScopeKind.STANDALONE and number > 1:
            raise InvalidFleet(
                f"scope {name}: kind: a standalone scope has one machine, and this one would have {number}"
            )
        if number > MAX_MACHINES_PER_SCOPE:
            raise InvalidFleet(f"scope {name}: {number} machines: a scope has at most {MAX_MACHINES_PER_SCOPE}")


def spanning_hosts(machines: Iterable[Machine]) -> tuple[str, ...]:
    """Warn of hosts that span update domains of a scope: this is allowed, but maintenance of them takes several waves."""
    # By scope and host: no pair is made for each of very many machines.
    first: dict[str, dict[str, int]] = defaultdict(dict)
    several: dict[tuple[str, str], set[int]] = defaultdict(set)
    for machine in machines:
        host, update_domain = machine.host, machine.update_domain
        if host and (known := first[machine.scope].setdefault(host, update_domain)) != update_domain:
            several[host, machine.scope] |= {known, update_domain}
    return tuple(
        f"host {host} carries update domains {', '.join(map(str, sorted(numbers)))} of scope {scope}:"
        f" maintenance of the host takes {len(numbers)} waves"
        for (host, scope), numbers in sorted(several.items())
    )


def hosts_of_the_inventory(current: Fleet, diff: Difference) -> tuple[str, ...]:
    """Warn of domains whose host the difference changes, although an inventory shows where they are."""
    moved = [
        str(machine)
        for machine in diff.machines
        if (known := current.machines.get(machine.key)) is not None
        and known.instance_id
        and known.host not in ("", machine.host)
    ]
    text = f"the file changes the host of {names(moved)}, but the inventory decides it, and sets it as libvirt shows it"
    return (text,) if moved else ()


def apply_difference(
    snapshot: Snapshot, diff: Difference, *, versions: Mapping[str, int], now: datetime, actor: Actor
) -> Change:
    """Return the Change that applies the difference. `versions` are those of the scopes it was computed from.

    A dry run calls this too and does not save the Change, so it is refused whenever applying would be.
    """
    _refuse_open_events(snapshot, diff)
    written = {scope.name: scope for scope in diff.scopes}
    touched = diff.touched
    for name in touched:
        if name not in written and name not in diff.removed_scopes:
            written[name] = snapshot.scopes[name]
    lines = diff.lines[:MAX_AUDIT_LINES]
    if len(diff.lines) > MAX_AUDIT_LINES:
        lines = (*lines, f"and {len(diff.lines) - MAX_AUDIT_LINES} more")
    audit = [AuditEntry(at=now, who=actor.name, origin=actor.origin, action="fleet changed", detail=d) for d in lines]
    return Change(
        at=now,
        expect=tuple((name, versions.get(name, 0)) for name in touched),
        scopes=tuple(_with_time(snapshot, scope, now) for scope in written.values()),
        removed_scopes=diff.removed_scopes,
        machines=diff.machines,
        removed_machines=diff.removed_machines,
        hosts=diff.hosts,
        removed_hosts=tuple((host.name, host.version) for host in diff.removed_hosts if host.cordoned is None),
        audit=tuple(audit),
        wakes=tuple(sorted(_waiting_for_windows(snapshot, diff.scopes) | _waiting_for_budgets(snapshot, diff))),
    )


def _waiting_for_windows(snapshot: Snapshot, scopes: Iterable[Scope]) -> set[str]:
    """Return the maintenances that may start at another time because a scope has other windows now."""
    known = snapshot.scopes
    changed = {s.name for s in scopes if s.name in known and _window_settings(s) != _window_settings(known[s.name])}
    return {e.maintenance_id for e in snapshot.events.values() if e.scope in changed and e.status in UNSTARTED}


def _window_settings(scope: Scope) -> tuple[object, ...]:
    return scope.windows, scope.approval_opens_window


def _waiting_for_budgets(snapshot: Snapshot, diff: Difference) -> set[str]:
    """Return the maintenances that may have waited for a budget that the difference changes."""
    scopes = {scope.name for scope in diff.scopes}
    scopes |= {name for name, scope in snapshot.scopes.items() if is_share(scope.max_unavailable)}
    waiting = (e for e in snapshot.events.values() if e.status is Status.PLANNED and e.scope in scopes)
    return {event.maintenance_id for event in waiting}


def _with_time(snapshot: Snapshot, scope: Scope, now: datetime) -> Scope:
    known = snapshot.scopes.get(scope.name)
    return replace(scope, changed=now if known is None or known.changed is None else max(now, known.changed))


def _refuse_open_events(snapshot: Snapshot, diff: Difference) -> None:
    """Refuse to remove a machine or scope with open events, to move the machine, and to change the scope's kind."""
    open_events = {event.scope: event for event in snapshot.events.values() if event.status in OPEN}
    for name in diff.removed_scopes:
        if name in open_events:
            raise Refused(f"scope {name} has open event {open_events[name].id}: cancel it or wait until it ends")
    for scope in diff.scopes:
        # The oldest api-version shows the kind in the document.
        if scope.name in open_events and snapshot.scopes[scope.name].kind is not scope.kind:
            raise Refused(
                f"scope {scope.name} has open event {open_events[scope.name].id}: its kind cannot change until that ends"
            )
    busy = {
        (event.scope, name): event
        for event in snapshot.events.values()
        if event.status in OPEN
        for name in event.resources
    }
    for key in diff.removed_machines:
        if key in busy:
            raise MachineBusy(
                f"machine {'/'.join(key)} is in open event {busy[key].id}: cancel it or wait until it ends"
            )
    for machine in diff.machines if busy else ():
        event = busy.get(machine.key)
        if event is not None and machine.update_domain != event.update_domain:
            raise MachineBusy(
                f"machine {machine} is in open event {event.id}: its update domain cannot change until that ends"
            )
