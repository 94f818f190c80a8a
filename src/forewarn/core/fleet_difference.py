"""How a wanted fleet differs from the current one, and what may not change while events are open.

Owns the difference as data and as lines to print, and the refusals that depend on open events.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from forewarn.core.change import Change, Snapshot
from forewarn.core.durations import duration_text
from forewarn.core.errors import InvalidFleet, MachineBusy, Refused
from forewarn.core.fleet import MACHINE_SETTINGS, SCOPE_SETTINGS, Fleet, check_identities
from forewarn.core.model import MAX_MACHINES_PER_SCOPE, OPEN, Actor, AuditEntry, Machine, Scope, ScopeKind

MAX_AUDIT_LINES = 1_000


@dataclass(frozen=True, slots=True)
class Difference:
    """What applying a fleet would do; the scopes and machines are those to write."""

    scopes: tuple[Scope, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_scopes: tuple[str, ...] = ()
    removed_machines: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """The scopes whose version it must see unchanged."""
        names = {s.name for s in self.scopes} | {m.scope for m in self.machines} | set(self.removed_scopes)
        return tuple(sorted(names | {scope for scope, _ in self.removed_machines}))


def difference(current: Fleet, wanted: Fleet, *, prune: bool = False) -> Difference:
    """What must change for the fleet to be as stated; with `prune`, what is not stated goes."""
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
        if machine != current.machines.get(key):
            machines.append(machine)
            lines.append(_line(f"machine {machine}", "", current.machines.get(key), machine, MACHINE_SETTINGS))
    gone = [key for key in current.machines if prune and key not in wanted.machines]
    gone_scopes = [name for name in current.scopes if prune and name not in wanted.scopes]
    lines += [f"- machine {scope}/{name}" for scope, name in gone] + [f"- scope {name}" for name in gone_scopes]
    after = {key: m for key, m in current.machines.items() if key not in set(gone)} | dict(wanted.machines)
    check_identities(after.values(), lambda machine: f"machine {machine}")
    _check_members(after.values(), {**current.scopes, **wanted.scopes})
    warnings = _spanning_hosts(after.values()) if machines else ()
    return Difference(tuple(scopes), tuple(machines), tuple(gone_scopes), tuple(gone), tuple(lines), warnings)


def _line(what: str, detail: str, known: object | None, wanted: object, keys: Iterable[str]) -> str:
    if known is None:
        return f"+ {what}{detail}"
    changes = [
        f"{key.removesuffix('_s')} {_shown(key, getattr(known, key))} -> {_shown(key, getattr(wanted, key))}"
        for key in keys
        if getattr(known, key) != getattr(wanted, key)
    ]
    return f"~ {what}: {', '.join(changes)}"


def _shown(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} {duration_text(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    if key.endswith("_s") and isinstance(value, int):
        return duration_text(value)
    return str(value).lower() if isinstance(value, bool) else (str(value) or '""')


def _check_members(machines: Iterable[Machine], scopes: Mapping[str, Scope]) -> None:
    members = Counter(machine.scope for machine in machines)
    for name, count in members.items():
        if scopes[name].kind is ScopeKind.STANDALONE and count > 1:
            raise InvalidFleet(f"scope {name}: kind: standalone means one machine, and {count} would be in it")
        if count > MAX_MACHINES_PER_SCOPE:
            raise InvalidFleet(f"scope {name}: {count} machines: at most {MAX_MACHINES_PER_SCOPE} share a document")


def _spanning_hosts(machines: Iterable[Machine]) -> tuple[str, ...]:
    """A host that spans update domains of one scope is legal, and maintenance of it takes several waves."""
    domains: dict[tuple[str, str], set[int]] = defaultdict(set)
    for machine in machines:
        if machine.host:
            domains[machine.host, machine.scope].add(machine.update_domain)
    return tuple(
        f"host {host} carries update domains {', '.join(map(str, sorted(found)))} of scope {scope}:"
        f" maintenance of it takes {len(found)} waves"
        for (host, scope), found in sorted(domains.items())
        if len(found) > 1
    )


def apply_difference(
    snapshot: Snapshot, diff: Difference, *, versions: Mapping[str, int], now: datetime, actor: Actor
) -> Change:
    """The change that makes it so. `versions` are those the difference was computed from."""
    _refuse_open(snapshot, diff)
    written = {scope.name: scope for scope in diff.scopes}
    for name in diff.touched:
        if name not in written and name not in diff.removed_scopes:
            written[name] = snapshot.scopes[name]
    lines = diff.lines[:MAX_AUDIT_LINES]
    if len(diff.lines) > MAX_AUDIT_LINES:
        lines = (*lines, f"and {len(diff.lines) - MAX_AUDIT_LINES} more")
    audit = [AuditEntry(at=now, who=actor.name, origin=actor.origin, action="fleet changed", detail=d) for d in lines]
    return Change(
        at=now,
        expect=tuple((name, versions.get(name, 0)) for name in diff.touched),
        scopes=tuple(_moved_on(snapshot, scope, now) for scope in written.values()),
        removed_scopes=diff.removed_scopes,
        machines=diff.machines,
        removed_machines=diff.removed_machines,
        audit=tuple(audit),
    )


def _moved_on(snapshot: Snapshot, scope: Scope, now: datetime) -> Scope:
    known = snapshot.scopes.get(scope.name)
    return replace(scope, changed=now if known is None or known.changed is None else max(now, known.changed))


def _refuse_open(snapshot: Snapshot, diff: Difference) -> None:
    """Machines with open events cannot be removed or moved, and their scope can neither go nor change its kind."""
    told = {event.scope: event for event in snapshot.events.values() if event.status in OPEN}
    for name in diff.removed_scopes:
        if name in told:
            raise Refused(f"scope {name} has open event {told[name].id}: cancel it or wait for its end")
    for scope in diff.scopes:
        # The kind shows in the oldest version of the document.
        if scope.name in told and snapshot.scopes[scope.name].kind is not scope.kind:
            raise Refused(
                f"scope {scope.name} has open event {told[scope.name].id}: its kind cannot change before that ends"
            )
    busy = {
        (event.scope, name): event
        for event in snapshot.events.values()
        if event.status in OPEN
        for name in event.resources
    }
    for key in diff.removed_machines:
        if key in busy:
            raise MachineBusy(f"machine {'/'.join(key)} is in open event {busy[key].id}: cancel it or wait for its end")
    for machine in diff.machines:
        event = busy.get(machine.key)
        if event is not None and machine.update_domain != event.update_domain:
            raise MachineBusy(
                f"machine {machine} is in open event {event.id}: its update domain cannot change before that ends"
            )
