"""Warnings about a submitted maintenance: what may surprise the person who requests it.

A warning never refuses anything. The API returns the warnings with a dry run and with the result; the command line and the
portal ask for confirmation because of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from forewarn.core.budgets import scope_limit
from forewarn.core.change import Snapshot
from forewarn.core.formatting import count, full_time, names
from forewarn.core.host_orders import OVER
from forewarn.core.model import OPEN, Event, HostMode, Maintenance, Scope
from forewarn.core.placement import Hosts
from forewarn.core.planning import due_notice_s
from forewarn.core.progress import WaveProgress, wave_progress

NO_NOTICE: Final = "no-notice"
PAST_NOT_BEFORE: Final = "past-not-before"
PAST_EARLIEST: Final = "past-earliest"
MISSES_DEADLINE: Final = "misses-deadline"
ALREADY_OPEN: Final = "already-open"
NO_TARGET: Final = "no-target"
NO_RETURN: Final = "no-return"
HOST_BUSY: Final = "host-busy"
OVER_BUDGET: Final = "over-budget"
UNREPORTED_MOVES: Final = "unreported-moves"
MAX_ALREADY_OPEN = 20


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """One warning: a stable code for programs, a sentence for people."""

    code: str
    message: str


def plan_warnings(before: Snapshot, after: Snapshot, maintenance_id: str, now: datetime) -> tuple[PlanWarning, ...]:
    """Return the warnings about a maintenance that was submitted at `now`. It is in `after` but not in `before`."""
    maintenance = after.maintenances[maintenance_id]
    events = [event for event in after.events.values() if event.maintenance_id == maintenance_id]
    return (
        *_without_notice(events, after.scopes),
        *_past_times(maintenance, now),
        *_misses_deadline(maintenance, wave_progress(events, after.orders)),
        *_already_open(before, events),
        *_no_return(before, after, maintenance),
        *_busy_hosts(before, after, maintenance_id),
        *_over_budget(before, after, maintenance),
    )


# -- no notice


def _without_notice(events: Iterable[Event], scopes: Mapping[str, Scope]) -> list[PlanWarning]:
    causes: dict[str, set[str]] = defaultdict(set)
    waves: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        waves[event.wave].append(event)
    for wave in waves.values():
        due_s = due_notice_s(wave, scopes)
        for event in wave:
            if not _notice_s(event, due_s):
                causes[_cause(event)].add(event.scope)
    return [
        PlanWarning(NO_NOTICE, f"this plan gives no notice to {names(sorted(scopes_there))}: {cause}")
        for cause, scopes_there in causes.items()
    ]


def _notice_s(event: Event, due_s: int | None) -> int | None:
    if event.published is not None and event.not_before is not None:
        return int((event.not_before - event.published) / timedelta(seconds=1))
    return due_s


def _cause(event: Event) -> str:
    if event.emergency:
        return "an emergency starts at once"
    if event.born_approved:
        return "user events are approved there by a setting of the scope"
    return "no machine there has polled for events lately"


# -- times that have passed


def _past_times(maintenance: Maintenance, now: datetime) -> list[PlanWarning]:
    past = []
    if maintenance.not_before is not None and maintenance.not_before < now:
        text = f"not_before has passed ({full_time(maintenance.not_before)}): only the minimum notice delays the start"
        past.append(PlanWarning(PAST_NOT_BEFORE, text))
    if maintenance.earliest is not None and maintenance.earliest < now:
        text = f"earliest has passed ({full_time(maintenance.earliest)}): it has no effect"
        past.append(PlanWarning(PAST_EARLIEST, text))
    return past


# -- the deadline


def _misses_deadline(maintenance: Maintenance, waves: Sequence[WaveProgress]) -> list[PlanWarning]:
    """Return a warning if waves could not start before the deadline without approvals, as far as their notice tells it."""
    first = waves[0].not_before if waves else None
    if maintenance.not_after is None or first is None:
        return []
    step = timedelta(seconds=waves[0].notice_s + max(0, maintenance.duration_s))
    late = sum(first + number * step >= maintenance.not_after for number in range(len(waves)))
    if not late:
        return []
    text = (
        f"without approvals {late} of {len(waves)} wave(s) cannot start before not_after"
        f" ({full_time(maintenance.not_after)}), and what has not started by then is cancelled"
    )
    return [PlanWarning(MISSES_DEADLINE, text)]


# -- hosts


def target_warnings(
    targets: Mapping[str, Iterable[str]], hosts: Hosts, *, host: str, to_host: str
) -> list[PlanWarning]:
    """Return a warning about the machines of a host to be evacuated that may go nowhere as the hosts are now."""
    stranded = sorted(machine for machine, found in targets.items() if not found)
    if not stranded:
        return []
    why = hosts.why_not(to_host) if to_host else "every other host is cordoned or in maintenance"
    message = f"{names(stranded)} on host {host} cannot go to {to_host or 'any host'}: {why}"
    return [PlanWarning(NO_TARGET, message)]


def _no_return(before: Snapshot, after: Snapshot, maintenance: Maintenance) -> list[PlanWarning]:
    if not maintenance.return_machines:
        return []
    rows = (before.hosts.get(order.host) for order in after.orders.values() if order.maintenance_id == maintenance.id)
    cordoned = [host.name for host in rows if host is not None and host.cordoned is not None]
    return [
        PlanWarning(
            NO_RETURN,
            f"host {name} is cordoned already, and this maintenance does not uncordon it: its machines cannot come back"
            " until an operator does",
        )
        for name in cordoned
    ]


# -- machines that are already in open events


def _already_open(before: Snapshot, events: Iterable[Event]) -> list[PlanWarning]:
    """Return a warning per other maintenance that has open events with the same machines."""
    planned: dict[str, set[str]] = defaultdict(set)
    for event in events:
        planned[event.scope].update(event.resources)
    others: dict[str, list[Event]] = defaultdict(list)
    for event in before.events.values():
        if event.status in OPEN and not planned[event.scope].isdisjoint(event.resources):
            others[event.maintenance_id].append(event)
    warnings = [_open_warning(planned, others[maintenance_id]) for maintenance_id in sorted(others)[:MAX_ALREADY_OPEN]]
    if len(others) > MAX_ALREADY_OPEN:
        more = f"and {len(others) - MAX_ALREADY_OPEN} more maintenances already have open events of these machines"
        warnings.append(PlanWarning(ALREADY_OPEN, more))
    return warnings


def _open_warning(planned: Mapping[str, set[str]], others: list[Event]) -> PlanWarning:
    shared = sorted({f"{e.scope}/{name}" for e in others for name in planned[e.scope].intersection(e.resources)})
    first = others[0]
    what = f"event {first.id} ({first.type}) is already {first.status.lower()}"
    if len(others) > 1:
        what = (
            f"maintenance {first.maintenance_id} ({first.type}) already has {len(others)} open events of these machines"
        )
    return PlanWarning(ALREADY_OPEN, f"{names(shared)}: {what}")


# -- hosts that another maintenance works on too


def _busy_hosts(before: Snapshot, after: Snapshot, maintenance_id: str) -> list[PlanWarning]:
    """Return a warning per host that an open maintenance works on already, or will."""
    hosts = {order.host for order in after.orders.values() if order.maintenance_id == maintenance_id}
    others: dict[str, set[str]] = defaultdict(set)
    for order in before.orders.values():
        if order.host in hosts and order.state not in OVER:
            others[order.host].add(order.maintenance_id)
    return [
        PlanWarning(
            HOST_BUSY, f"host {host} is already in maintenance {names(sorted(ids))}: the work on it waits for that"
        )
        for host, ids in sorted(others.items())
    ]


# -- budgets that are smaller than the work on a host


def _over_budget(before: Snapshot, after: Snapshot, maintenance: Maintenance) -> list[PlanWarning]:
    """Return a warning per budget and host with too many machines to be shut down together. Other waves are split."""
    if maintenance.host_mode is not HostMode.IN_PLACE or maintenance.emergency:
        return []
    carried: dict[str, Counter[str]] = defaultdict(Counter)
    for machine in before.machines.values():
        carried[machine.host][machine.scope] += 1
    warnings = []
    for host in sorted(o.host for o in after.orders.values() if o.maintenance_id == maintenance.id):
        scopes = carried[host]
        limits = [
            (f"max_unavailable of {name}", number, scope_limit(before.scopes[name], before.machine_counts.get(name, 0)))
            for name, number in sorted(scopes.items())
        ]
        limits.append(("max_machines_down of the fleet", scopes.total(), before.fleet_rules.max_machines_down or None))
        warnings += [
            f"host {host} carries {count(number, 'machine')} to be shut down together, and {budget} allows {limit}:"
            " they are not announced before the budget is raised"
            for budget, number, limit in limits
            if limit is not None and number > limit
        ]
    return [PlanWarning(OVER_BUDGET, message) for message in warnings]
