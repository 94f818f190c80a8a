"""Budgets: how many machines of a scope, and how many machines and hosts of the fleet, may be down at once.

Owns what counts as down, and when a planned wave finds room. A machine counts while it is in a Started event, or in a published
one: its agent may have drained it. A host counts while a maintenance works on it or empties it. Budgets hold back the
publication of Platform Freeze, Reboot and Redeploy, and the work on an empty host. Other events and emergencies count, but
never wait. Drills count too, but not for a real wave in their scope: they end when it is published. These predicates change
nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from forewarn.core.amounts import parse_amount
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.fleet_rules import MAX_LIMIT
from forewarn.core.formatting import count
from forewarn.core.hosts import IN_MAINTENANCE
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    VISIBLE,
    Actor,
    AuditEntry,
    Event,
    GroupBy,
    HostMode,
    Maintenance,
    Order,
    OrderState,
    Scope,
    Status,
)
from forewarn.core.reason import MAX_NAMED, Waiting
from forewarn.core.strategy import PlannedWave

_UNRESOLVED = frozenset({OrderState.FAILED, OrderState.IN_DOUBT})


def budget_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return the budgets that have no room for a planned wave."""
    return [shortage.reason for shortage in _shortages(draft, maintenance, wave)]


def host_budget_waits(draft: Draft, maintenance: Maintenance, order: Order) -> list[Waiting]:
    """Return the budget that has no room for the work on a host, unless the host is down already."""
    if maintenance.emergency:
        return []
    return [shortage.reason for shortage in _host_shortages(draft, maintenance, {order.host}, ())]


def budgets_only_an_operator_frees(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return the budgets that have no room for a planned wave until an operator acts.

    Either failed orders and orders in doubt keep so much that the wave does not fit, or the wave is larger than the budget.
    """
    return [shortage.reason for shortage in _shortages(draft, maintenance, wave) if shortage.is_stuck]


def waits_for_fleet(draft: Draft, maintenance: Maintenance, wave: list[Event], order: Order | None) -> bool:
    """Whether a planned wave, or the work on a host, waits until something in the fleet is up again."""
    if order is not None and host_budget_waits(draft, maintenance, order):
        return True
    return any(not shortage.is_too_large for shortage in _fleet_shortages(draft, maintenance, wave))


def set_budget(
    snapshot: Snapshot, *, max_hosts_down: int | None, max_machines_down: int | None, now: datetime, actor: Actor
) -> Change:
    """Change the budgets of the fleet; None leaves one as it is, 0 removes it."""
    known = snapshot.fleet_rules
    hosts = known.max_hosts_down if max_hosts_down is None else max_hosts_down
    machines = known.max_machines_down if max_machines_down is None else max_machines_down
    changes = [
        ("max_hosts_down", known.max_hosts_down, hosts),
        ("max_machines_down", known.max_machines_down, machines),
    ]
    detail = ", ".join(f"{key} {before} -> {after}" for key, before, after in changes if before != after)
    if not detail:
        return Change(at=now)
    rules = replace(known, max_hosts_down=hosts, max_machines_down=machines)
    entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="budget changed", detail=detail)
    return Change(at=now, fleet_rules=rules, audit=(entry,))


# -- planning


def split_by_budget(snapshot: Snapshot, maintenance: Maintenance, wave: PlannedWave) -> list[PlannedWave]:
    """Split a planned wave into parts that fit into the budgets. An event that is larger than a budget is split, too.

    First split by scope: each part has as many machines of a scope as the budget of the scope allows. Then split each part by
    the budgets of the fleet. In-place maintenance shuts all machines of a host down together, so its waves stay whole.
    """
    if maintenance.host_mode is HostMode.IN_PLACE:
        return [wave]
    layers: dict[int, PlannedWave] = defaultdict(list)
    filled: dict[str, tuple[int, int]] = {}
    for event in wave:
        limit = scope_limit(snapshot.scopes[event.scope], snapshot.machine_counts.get(event.scope, 0))
        most = min(limit or len(event.machines), snapshot.fleet_rules.max_machines_down or len(event.machines))
        machines = sorted(event.machines, key=lambda machine: machine.name)
        for first in range(0, len(machines), most):
            part = replace(event, machines=tuple(machines[first : first + most]))
            layer, used = filled.get(event.scope, (0, 0))
            if limit is not None and used + len(part.machines) > limit:
                layer, used = layer + 1, 0
            layers[layer].append(part)
            filled[event.scope] = layer, used + len(part.machines)
    return [part for _, layer in sorted(layers.items()) for part in _within_fleet(snapshot, maintenance, layer)]


def _within_fleet(snapshot: Snapshot, maintenance: Maintenance, wave: PlannedWave) -> Iterator[PlannedWave]:
    """Yield the parts of a wave, in order, each within the budgets of the fleet."""
    rules, by_host = snapshot.fleet_rules, maintenance.strategy.group_by == GroupBy.HOST
    part: PlannedWave = []
    machines, hosts = 0, set[str]()
    for event in wave:
        host = {event.group} - {""} if by_host else set()
        too_many_machines = machines + len(event.machines) > (rules.max_machines_down or MAX_LIMIT)
        too_many_hosts = len(hosts | host) > (rules.max_hosts_down or MAX_LIMIT)
        if part and (too_many_machines or too_many_hosts):
            yield part
            part, machines, hosts = [], 0, set()
        part.append(event)
        machines, hosts = machines + len(event.machines), hosts | host
    yield part


# -- what is down


def scope_limit(scope: Scope, machines: int) -> int | None:
    """Return how many of the scope's `machines` may be unavailable at once, or None for any number."""
    return parse_amount(scope.max_unavailable).of(machines) if scope.max_unavailable else None


def machines_down(draft: Draft) -> int:
    """Return how many machines of the fleet are down, as the draft has them now."""
    return draft.before.fleet_use.machines + draft.more_unavailable()


def _users(draft: Draft, maintenance: Maintenance, scope: str) -> list[Event]:
    """Return the events in a scope that count for a wave of this maintenance."""
    visible = [event for event in draft.events_in(scope) if event.status in VISIBLE]
    if maintenance.drill_hold_s:
        return visible
    return [event for event in visible if not draft.maintenances[event.maintenance_id].drill_hold_s]


def _machines(events: Iterable[Event]) -> set[str]:
    return {name for event in events for name in event.resources}


def _hosts_down(draft: Draft, no_drills_in: Collection[str]) -> set[str]:
    """Return the hosts of the fleet that are down, as the draft has them now. Drills in `no_drills_in` do not count."""
    others = {host for maintenance, host in draft.before.fleet_use.hosts if maintenance not in draft.maintenances}
    return others.union(*(_hosts_taken_down(draft, each, no_drills_in) for each in draft.maintenances.values()))


def _hosts_taken_down(draft: Draft, maintenance: Maintenance, no_drills_in: Collection[str] = ()) -> set[str]:
    """Return the hosts that a maintenance works on or empties, or whose machines it groups by their host."""
    if maintenance.host_mode is None and maintenance.strategy.group_by != GroupBy.HOST:
        return set()
    events = draft.events_of(maintenance.id)
    if maintenance.drill_hold_s:
        events = [event for event in events if event.scope not in no_drills_in]
    begun = {event.host for event in events if event.status in VISIBLE or event.status is Status.COMPLETED}
    hosts = hosts_of(maintenance, (event for event in events if event.status in VISIBLE))
    return hosts | {
        order.host
        for order in draft.host_orders_of(maintenance.id)
        if order.state in IN_MAINTENANCE or (order.state is OrderState.PLANNED and order.host in begun)
    }


def hosts_of(maintenance: Maintenance, events: Iterable[Event]) -> set[str]:
    """Return the hosts that these events take down as a whole."""
    by_host = maintenance.strategy.group_by == GroupBy.HOST
    return {event.host or (event.group if by_host else "") for event in events} - {""}


# -- what finds no room


@dataclass(frozen=True, slots=True)
class _Shortage:
    """A budget without room for a wave, as a reason to wait; `is_stuck` says that only an operator can end the wait."""

    reason: Waiting
    is_stuck: bool
    is_too_large: bool = False


def _shortages(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[_Shortage]:
    found = list(_scope_shortages(draft, maintenance, wave))
    if draft.before.fleet_rules.has_budget:
        of_fleet = _fleet_shortages(draft, maintenance, wave)
        # Owners must not learn what is down in the fleet.
        found += [replace(shortage, reason=replace(shortage.reason, rules_of=((),))) for shortage in of_fleet]
    return found


def _scope_shortages(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> Iterator[_Shortage]:
    bound: dict[str, list[Event]] = defaultdict(list)
    for event in wave:
        if event.one_domain_at_a_time and draft.scopes[event.scope].max_unavailable:
            bound[event.scope].append(event)
    for name, events in sorted(bound.items()):
        users = _users(draft, maintenance, name)
        unavailable = _machines(users)
        limit = scope_limit(draft.scopes[name], draft.before.machine_counts.get(name, 0)) or 0
        needed = _machines(events)
        more = len(needed - unavailable)
        if len(unavailable) + more <= limit:
            continue
        allowed = f"max_unavailable allows {count(limit, 'machine')} of {name} at once"
        if len(needed) > limit:
            yield _too_large(allowed, len(needed), events)
            continue
        users.sort(key=lambda event: not _is_unresolved(draft, event))
        unresolved = [event for event in users if _is_unresolved(draft, event)]
        kept = {machine for event in unresolved for machine in event.resources}
        reason = _in_use(allowed, len(unavailable), more, _ids(users))
        yield _Shortage(_with_unresolved(reason, unresolved), is_stuck=len(kept | needed) > limit)


def _fleet_shortages(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> Iterator[_Shortage]:
    limit = draft.before.fleet_rules.max_machines_down
    bound = [event for event in wave if event.one_domain_at_a_time]
    if limit and bound:
        needed = {(event.scope, name) for event in bound for name in event.resources}
        scopes = {event.scope for event in bound}
        unavailable = {scope: _machines(_users(draft, maintenance, scope)) for scope in scopes}
        more = sum(name not in unavailable[scope] for scope, name in needed)
        in_drills = sum(len(draft.unavailable_in(scope) - names) for scope, names in unavailable.items())
        down = machines_down(draft) - in_drills
        if down + more > limit:
            allowed = f"max_machines_down allows {count(limit, 'machine')} of the fleet at once"
            if len(needed) > limit:
                yield _too_large(allowed, len(needed), bound)
            else:
                unresolved = _unresolved_events(draft)
                kept = {(event.scope, name) for event in unresolved for name in event.resources}
                reason = _in_use(allowed, down, more, draft.before.fleet_use.events)
                yield _Shortage(_with_unresolved(reason, unresolved), is_stuck=len(kept | needed) > limit)
    yield from _host_shortages(draft, maintenance, hosts_of(maintenance, bound), bound)


def _host_shortages(
    draft: Draft, maintenance: Maintenance, hosts: Collection[str], wave: Collection[Event]
) -> Iterator[_Shortage]:
    """Yield the shortage of hosts. A host that the maintenance itself has taken down needs no further room."""
    limit = draft.before.fleet_rules.max_hosts_down
    if not limit or _hosts_taken_down(draft, maintenance).issuperset(hosts):
        return
    down = _hosts_down(draft, () if maintenance.drill_hold_s else {event.scope for event in wave})
    more = len(set(hosts) - down)
    if len(down) + more > limit:
        allowed = f"max_hosts_down allows {count(limit, 'host')} of the fleet at once"
        if len(hosts) > limit:
            yield _too_large(allowed, len(hosts), wave)
        else:
            reason = _in_use(allowed, len(down), more, draft.before.fleet_use.events)
            kept, unresolved = _hosts_kept(draft)
            yield _Shortage(_with_unresolved(reason, unresolved), is_stuck=len(kept | set(hosts)) > limit)


def _too_large(allowed: str, needed: int, events: Iterable[Event]) -> _Shortage:
    message = f"{allowed}, and this wave has {needed}: it cannot be published before the budget is raised"
    return _Shortage(Waiting(code="budget", message=message, events=_ids(events)), is_stuck=True, is_too_large=True)


def _in_use(allowed: str, used: int, more: int, events: tuple[str, ...]) -> Waiting:
    message = f"{allowed}: {used} in use, and {more} more needed"
    return Waiting(code="budget", message=message, events=events)


def _with_unresolved(reason: Waiting, unresolved: list[Event]) -> Waiting:
    """Return the reason with the unresolved events first, and a sentence about the first of them."""
    if not unresolved:
        return reason
    events = tuple(dict.fromkeys([*_ids(unresolved), *reason.events]))[:MAX_NAMED]
    keeps = f"event {events[0]} keeps its share until its failure is resolved"
    return replace(reason, message=f"{reason.message}; {keeps}", events=events)


def _unresolved_events(draft: Draft) -> list[Event]:
    """Return the events whose failure keeps machines down, as far as the draft has read the fleet."""
    return [event for event in draft.events.values() if event.status in VISIBLE and _is_unresolved(draft, event)]


def _hosts_kept(draft: Draft) -> tuple[set[str], list[Event]]:
    """Return the hosts that failures keep down, as far as the draft has read the fleet, and the events that failed."""
    events = [
        event
        for event in _unresolved_events(draft)
        if event.maintenance_id in draft.maintenances and hosts_of(draft.maintenances[event.maintenance_id], [event])
    ]
    hosts = {order.host for order in draft.orders.values() if order.host and order.state in _UNRESOLVED}
    return hosts.union(*(hosts_of(draft.maintenances[event.maintenance_id], [event]) for event in events)), events


def _is_unresolved(draft: Draft, event: Event) -> bool:
    order = draft.orders.get(event.id)
    return order is not None and order.state in _UNRESOLVED


def _ids(events: Iterable[Event]) -> tuple[str, ...]:
    return tuple(event.id for event in events)[:MAX_NAMED]
