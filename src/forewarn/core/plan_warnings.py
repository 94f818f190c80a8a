"""Warnings about a submitted maintenance: what may surprise the person who requests it.

A warning never refuses anything. The API returns the warnings with a dry run and with the result; the command line and the
portal ask for confirmation because of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from forewarn.core.budgets import scope_limit
from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.formatting import count, full_time, names
from forewarn.core.host_orders import OVER
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import OPEN, Actor, Event, GroupBy, HostMode, Maintenance, Scope
from forewarn.core.placement import Hosts
from forewarn.core.planning import due_notice_s
from forewarn.core.progress import wave_progress
from forewarn.core.window_rules import first_start, limits_of

NO_NOTICE: Final = "no-notice"
PAST_NOT_BEFORE: Final = "past-not-before"
PAST_EARLIEST: Final = "past-earliest"
MISSES_DEADLINE: Final = "misses-deadline"
NO_PAUSE: Final = "no-pause"
PAUSE_IN_CANARY: Final = "pause-in-canary"
CANARY_IS_ALL: Final = "canary-is-all"
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
        *_misses_deadline(after, maintenance, events, now),
        *_pointless_strategy(maintenance, events),
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


def _misses_deadline(
    after: Snapshot, maintenance: Maintenance, events: Sequence[Event], now: datetime
) -> list[PlanWarning]:
    """Return a warning if waves without approvals, by their notice and duration, could not start before the deadline."""
    waves = wave_progress(events, after.orders)
    if maintenance.not_after is None or not waves:
        return []
    first, notice_s = waves[0].not_before, waves[0].notice_s
    if first is None:
        draft, wave = Draft(after, now, Actor("reader")), [event for event in events if event.wave == waves[0].wave]
        first, notice_s = first_start(draft, maintenance, wave), due_notice_s(wave, after.scopes) or 0
        if limits_of(draft, maintenance, wave) is not None and (first is None or first >= maintenance.not_after):
            return [_opens_too_late(maintenance.not_after, first)]
    if first is None:
        return []
    step = timedelta(seconds=notice_s + max(0, maintenance.duration_s))
    late = sum(first + number * step >= maintenance.not_after for number in range(len(waves)))
    if not late:
        return []
    text = (
        f"without approvals {late} of {len(waves)} wave(s) cannot start before not_after"
        f" ({full_time(maintenance.not_after)}), and what has not started by then is cancelled"
    )
    return [PlanWarning(MISSES_DEADLINE, text)]


def _opens_too_late(not_after: datetime, first: datetime | None) -> PlanWarning:
    opens = f"allow the first start at {full_time(first)}" if first is not None else "allow no start"
    text = (
        f"no wave can start before not_after ({full_time(not_after)}): windows and no-go times {opens},"
        " and what has not started by then is cancelled"
    )
    return PlanWarning(MISSES_DEADLINE, text)


# -- the strategy


def _pointless_strategy(maintenance: Maintenance, events: Sequence[Event]) -> list[PlanWarning]:
    """Return warnings about a pause that does not come or comes too early, and about a canary without other groups."""
    strategy, last = maintenance.strategy, max((event.wave for event in events), default=0)
    # The groups of the canary have the first waves.
    groups = list(dict.fromkeys(event.group for event in sorted(events, key=lambda event: event.wave)))
    canary = max((event.wave for event in events if event.group in groups[: strategy.canary]), default=0)
    is_all = strategy.group_by != GroupBy.UPDATE_DOMAIN and 0 < len(groups) <= strategy.canary
    warnings = []
    if is_all:
        text = (
            f"canary is {strategy.canary}, and the plan has {count(len(groups), 'group')}: all of them are the canary"
        )
        warnings.append(PlanWarning(CANARY_IS_ALL, text))
    # The events of a host are planned when it has its turn.
    if events and maintenance.host_mode is None and strategy.pause_after >= last:
        text = f"pause_after is {strategy.pause_after}, and the plan has {count(last, 'wave')}: it does not pause"
        warnings.append(PlanWarning(NO_PAUSE, text))
    elif 0 < strategy.pause_after < canary < last:
        text = f"it pauses after wave {strategy.pause_after}, but the canary ends with wave {canary}"
        warnings.append(PlanWarning(PAUSE_IN_CANARY, text))
    return warnings


# -- hosts


def target_warnings(
    targets: Mapping[str, Iterable[str]], hosts: Hosts, *, host: str, to_host: str
) -> list[PlanWarning]:
    """Return a warning if machines of a host to be evacuated can go to no other host now."""
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
