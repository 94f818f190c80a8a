"""What an open event waits for. The same predicates decide whether a wave starts and explain why it does not.

Owns when an event is ready, when a wave is due, and what can hold back a due wave. It changes nothing. A wave is not due while
its maintenance is stopped, while an event of the wave is not ready, and while a rule of `constraints` holds it back. The
`obstacles` of a due wave are other events and the store. CONTRIBUTING.md says where a new reason belongs. A reason does not
suggest what to do about it: that depends on who reads it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice

from forewarn.core.amounts import parse_amount
from forewarn.core.approvals import approved
from forewarn.core.change import Snapshot
from forewarn.core.constraints import publication_waits, start_waits
from forewarn.core.draft import Draft
from forewarn.core.errors import NotFound
from forewarn.core.fast_init import replace
from forewarn.core.formatting import count
from forewarn.core.host_orders import departures, is_stopped, machines_on
from forewarn.core.model import (
    ENDED,
    OPEN,
    UNSTARTED,
    Actor,
    ApprovalMode,
    Event,
    Maintenance,
    OnFailure,
    Order,
    OrderState,
    Status,
    StoreHold,
)
from forewarn.core.reason import MAX_NAMED, Waiting, clock_held
from forewarn.core.requested_start import announcement


def waiting_for(snapshot: Snapshot, event_id: str, now: datetime) -> tuple[Waiting, ...]:
    """Return everything an open event waits for; nothing for an ended event."""
    return waiting_for_each(snapshot, [event_id], now)[event_id]


def waiting_for_each(snapshot: Snapshot, event_ids: Iterable[str], now: datetime) -> dict[str, tuple[Waiting, ...]]:
    """Return what each event waits for; the reasons shared by a maintenance's events are computed once."""
    draft = Draft(snapshot, now, Actor("reader"))
    shared: dict[str, _SharedReasons] = {}
    reasons = {}
    for event_id in event_ids:
        event = draft.events.get(event_id)
        if event is None:
            raise NotFound(f"there is no event {event_id}")
        if event.status in UNSTARTED and event.maintenance_id not in shared:
            shared[event.maintenance_id] = _SharedReasons(draft, draft.maintenances[event.maintenance_id])
        reasons[event_id] = _reasons(draft, event, shared.get(event.maintenance_id))
    return reasons


def wave_reasons(draft: Draft, maintenance: Maintenance) -> tuple[Waiting, ...]:
    """Return what the current wave of a maintenance waits for, as its first event shows it."""
    shared = _SharedReasons(draft, maintenance)
    return _reasons(draft, shared.wave[0], shared)


def host_not_before(draft: Draft, maintenance: Maintenance, order: Order) -> datetime | None:
    """Return the time before which the work on a host must not begin.

    `not_before` of the maintenance counts only for a host without events: otherwise its events wait for it.
    """
    requested = [
        maintenance.earliest,
        order.requested_not_before,
        None if departures(draft, order) else maintenance.not_before,
    ]
    return max((moment for moment in requested if moment is not None), default=None)


def host_planned_at(draft: Draft, maintenance: Maintenance, order: Order) -> datetime | None:
    """Return when the events of a rescheduled host are planned: the requested time minus the longest notice of its machines."""
    if order.requested_not_before is None:
        return None
    scopes = [draft.scopes[machine.scope] for machine in machines_on(draft, order.host)]
    return announcement(order.requested_not_before, maintenance.type, scopes)


class _SharedReasons:
    """The reasons that all unstarted events of a maintenance share. Those of its current wave are computed when needed."""

    def __init__(self, draft: Draft, maintenance: Maintenance) -> None:
        self._draft, self._maintenance = draft, maintenance
        self.wave = current_wave(draft, maintenance)
        self.ids = {e.id for e in self.wave}
        self.stopped = why_stopped(draft, maintenance)

    @cached_property
    def earlier_wave(self) -> Waiting:
        return _earlier_wave(self._draft, self.wave)

    @cached_property
    def unready(self) -> dict[str, None]:
        """The ids of the events that are not ready."""
        draft, maintenance = self._draft, self._maintenance
        return dict.fromkeys(e.id for e in self.wave if not ready(maintenance, e, draft.trusted_in(e.scope)))

    @cached_property
    def publication_reasons(self) -> list[Waiting]:
        """What holds back the publication of the wave."""
        planned = [e for e in self.wave if e.status is Status.PLANNED]
        return publication_waits(self._draft, self._maintenance, planned)

    @cached_property
    def obstacles(self) -> list[Waiting]:
        """What holds back the start of the wave."""
        draft, maintenance = self._draft, self._maintenance
        found = [*start_waits(draft, maintenance, self.wave), *obstacles(draft, maintenance, self.wave)]
        if _before_earliest(draft, maintenance, self.wave):
            earliest = Waiting(
                code="earliest",
                message="its maintenance has an earliest start: even an approved event waits",
                until=maintenance.earliest,
            )
            found.insert(0, earliest)
            hold = draft.before.hold
            if hold is not None and maintenance.earliest is not None and draft.now >= maintenance.earliest:
                found.append(clock_held(hold))
        return found


def _reasons(draft: Draft, event: Event, shared: _SharedReasons | None) -> tuple[Waiting, ...]:
    if event.status is Status.STARTED:
        return (order_progress(draft, event),)
    if shared is None or event.status in ENDED:
        return ()
    reasons = list(shared.stopped)
    if event.id not in shared.ids:
        reasons.append(shared.earlier_wave)
    elif event.status is Status.SCHEDULED or event.born_approved:
        reasons += _not_ready(draft, event)
        reasons += _rest_of_wave(event, shared.unready)
        reasons += shared.obstacles
    else:
        reasons += shared.publication_reasons
    ticker = Waiting(code="ticker", message="nothing holds it back: the ticker moves it in its next cycle")
    return tuple(reasons) or (ticker,)


def _earlier_wave(draft: Draft, wave: list[Event]) -> Waiting:
    """Return the reason of a later wave: the current wave has not ended.

    It names orders in doubt. A failed order holds the whole maintenance and is a reason of its own.
    """
    number = wave[0].wave
    doubtful = [e for e in wave if order_in_doubt(draft, e)]
    events = tuple(e.id for e in (doubtful or wave)[:MAX_NAMED])
    if not doubtful:
        return Waiting(code="earlier-wave", message=f"wave {number} has not ended", events=events)
    started = Waiting(code="earlier-wave", message=f"event {events[0]} of wave {number} has started", events=events)
    return _with_cause(draft, doubtful[0], started)


def current_wave(draft: Draft, maintenance: Maintenance) -> list[Event]:
    """Return the open events of the lowest wave that has not ended; nothing when every wave has ended.

    With on_failure = continue, an event whose order failed does not hold back later waves.
    """
    known = draft.current_waves.get(maintenance.id)
    if known is not None:
        return known
    skip_failed = maintenance.on_failure is OnFailure.CONTINUE and draft.has_failures
    open_events = [
        e for e in draft.events_of(maintenance.id) if e.status in OPEN and not (skip_failed and order_failed(draft, e))
    ]
    wave = open_events
    if len(open_events) > 1:
        lowest = min([e.wave for e in open_events])
        wave = [e for e in open_events if e.wave == lowest]
    draft.current_waves[maintenance.id] = wave
    return wave


def order_failed(draft: Draft, event: Event) -> bool:
    return _state_of_started(draft, event) is OrderState.FAILED


def order_in_doubt(draft: Draft, event: Event) -> bool:
    return _state_of_started(draft, event) is OrderState.IN_DOUBT


def _state_of_started(draft: Draft, event: Event) -> OrderState | None:
    """Return the state of the order of a Started event."""
    if event.status is not Status.STARTED or event.id not in draft.orders:
        return None
    return draft.orders[event.id].state


def _with_cause(draft: Draft, other: Event, reason: Waiting) -> Waiting:
    """Return the reason to wait for the event `other`. If the order of `other` failed or is in doubt, name that as the cause."""
    if not order_failed(draft, other) and not order_in_doubt(draft, other):
        return reason
    order = draft.orders[other.id]
    what = "failed" if order.state is OrderState.FAILED else "is in doubt"
    return replace(reason, code="unresolved", message=f"{reason.message}, and its order {what} ({order.reason})")


def blocking_failures(draft: Draft, maintenance: Maintenance) -> list[Event]:
    """Return the events whose failed orders hold the rest of the maintenance."""
    return _failed_events(draft, maintenance) if _failures_hold(draft, maintenance) else []


def _failed_events(draft: Draft, maintenance: Maintenance) -> list[Event]:
    return [e for e in draft.events_of(maintenance.id) if e.status is Status.STARTED and order_failed(draft, e)]


def _failed_hosts(draft: Draft, maintenance: Maintenance) -> list[Order]:
    return [order for order in draft.host_orders_of(maintenance.id) if order.state is OrderState.FAILED]


def _failures_hold(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether failed orders hold the maintenance. With on_failure = hold one is enough, with `continue` max_failures are."""
    if maintenance.on_failure is not OnFailure.CONTINUE or not maintenance.strategy.max_failures:
        return maintenance.on_failure is OnFailure.HOLD
    failed = len(_failed_events(draft, maintenance)) + len(_failed_hosts(draft, maintenance))
    return failed >= _failure_limit(draft, maintenance)


def _failure_limit(draft: Draft, maintenance: Maintenance) -> int:
    """Return the number of failed orders at which the maintenance holds. A share, like 5%, is one of all orders so far."""
    orders = draft.number_of_events(maintenance.id) + len(draft.host_orders_of(maintenance.id))
    return parse_amount(maintenance.strategy.max_failures).of(orders)


def ready(maintenance: Maintenance, event: Event, now: datetime) -> bool:
    """Whether the event by itself may start: it is approved, needs no approval, or its notice is over."""
    if event.born_approved or not event.needs_approval or approved(event):
        return True
    end = notice_end(maintenance, event)
    return end is not None and now >= end


def notice_end(maintenance: Maintenance, event: Event) -> datetime | None:
    """Return when an event may start without approval.

    This is the later of NotBefore and (first tick that read the saved publication + minimum notice); None until such a tick.
    The store may save a publication much later than it was decided.
    """
    if event.not_before is None or not event.minimum_notice_s:
        return event.not_before
    if maintenance.observed_published_at is None:
        return None
    return max(event.not_before, maintenance.observed_published_at + timedelta(seconds=event.minimum_notice_s))


def blocking_hosts(draft: Draft, maintenance: Maintenance) -> list[Order]:
    """Return the failed orders of hosts that hold the rest of the maintenance."""
    return _failed_hosts(draft, maintenance) if _failures_hold(draft, maintenance) else []


def awaits_continue(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether the wave `pause_after` of the strategy has ended, and no operator has let the maintenance continue."""
    pause_after = maintenance.strategy.pause_after
    if not pause_after or maintenance.continued_after >= pause_after:
        return False
    wave = current_wave(draft, maintenance)
    reached = wave[0].wave if wave else 1 + max((e.wave for e in draft.events_of(maintenance.id)), default=0)
    return reached > pause_after


def stopped(draft: Draft, maintenance: Maintenance) -> bool:
    return (
        maintenance.paused
        or (draft.has_failures and bool(blocking_failures(draft, maintenance) or blocking_hosts(draft, maintenance)))
        or (maintenance.strategy.pause_after > 0 and awaits_continue(draft, maintenance))
    )


def due(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> bool:
    """Whether the wave should start unless an obstacle blocks it.

    Its events are published and ready, `earliest` has passed, no constraint holds it back, and its maintenance is not stopped.
    """
    return (
        not stopped(draft, maintenance)
        and all(startable(e) and ready(maintenance, e, draft.trusted_in(e.scope)) for e in wave)
        and not _before_earliest(draft, maintenance, wave)
        and not start_waits(draft, maintenance, wave)
    )


def startable(event: Event) -> bool:
    return event.status is Status.SCHEDULED or (event.status is Status.PLANNED and event.born_approved)


def queue_key(maintenance: Maintenance, wave: Iterable[Event]) -> tuple[datetime, str]:
    """Return the position of a due wave in the queue: (NotBefore, id)."""
    return min(e.not_before or maintenance.created for e in wave), maintenance.id


def obstacles(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> Iterator[Waiting]:
    """Yield what holds back a due wave: a held store, started events with its machines or domains, or a wave ahead.

    The wave ahead comes last: to find it takes as long as the queue of the scope is, and one obstacle is enough to wait.
    """
    yield from store_held(draft)
    yield from _failures_first(_blocked_by_started(draft, wave))
    if ahead := _due_wave_ahead(draft, maintenance, wave):
        yield _queued(draft, ahead)


def _failures_first(reasons: Iterable[Waiting]) -> list[Waiting]:
    """Return at most MAX_NAMED of these reasons. Only an operator ends the wait for a failure, so it comes first."""
    return sorted(reasons, key=lambda reason: reason.code != "unresolved")[:MAX_NAMED]


def _queued(draft: Draft, ahead: list[Event]) -> Waiting:
    """Return the wait for a wave ahead; if that wave waits for a failure, name the failure."""
    message = f"maintenance {ahead[0].maintenance_id} is due in this scope and is ahead in the queue"
    for cause in _failures_first(_blocked_by_started(draft, ahead))[:1]:
        if cause.code == "unresolved":
            return replace(cause, machines=(), message=f"{message}; it cannot start because {cause.message}")
    return Waiting(code="queue", message=message, events=tuple(e.id for e in ahead[:MAX_NAMED]))


def _blocked_by_started(draft: Draft, wave: list[Event]) -> Iterator[Waiting]:
    """Yield the machines and update domains of the wave that started events hold; reads each scope once."""
    started = {
        scope: [e for e in draft.events_in(scope) if e.status is Status.STARTED] for scope in {e.scope for e in wave}
    }
    event_of_machine = {(e.scope, name): e for events in started.values() for e in events for name in e.resources}
    for event in wave if event_of_machine else ():
        held = {
            other.id: other
            for name in event.resources
            if (other := event_of_machine.get((event.scope, name))) is not None
        }
        others = started[event.scope] if event.one_domain_at_a_time else held.values()
        for other in others:
            if other.id in held:
                yield _with_cause(draft, other, _machine_busy(event, other))
            if event.one_domain_at_a_time and other.update_domain != event.update_domain:
                yield _with_cause(draft, other, _domain_busy(event, other))


def _machine_busy(event: Event, other: Event) -> Waiting:
    names = set(other.resources)
    shared = tuple(name for name in event.resources if name in names)
    return Waiting(
        code="machine",
        message=f"{listed(shared)} in {event.scope} is in event {other.id}, which has started",
        machines=shared,
        events=(other.id,),
    )


def _domain_busy(event: Event, other: Event) -> Waiting:
    return Waiting(
        code="update-domain",
        message=f"event {other.id} has started in update domain {other.update_domain} of {event.scope}",
        events=(other.id,),
    )


def listed(names: Sequence[str]) -> str:
    """Join the names; beyond the limit, name the first ones and count the rest."""
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"


def _due_wave_ahead(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Event]:
    """Return the first due wave of another maintenance that shares a scope and is earlier in the queue.

    An emergency does not queue: it starts at once.
    """
    if maintenance.emergency:
        return []
    rivals = {
        other.maintenance_id
        for event in wave
        for other in draft.events_in(event.scope)
        if other.status in UNSTARTED and other.maintenance_id != maintenance.id
    }
    if not rivals:
        return []
    key = queue_key(maintenance, wave)
    waves = [(rival, current_wave(draft, rival)) for rival in (draft.maintenances[i] for i in rivals)]
    ahead = [row for row in waves if queue_key(*row) < key and _share_scope(wave, row[1])]
    ahead.sort(key=lambda row: queue_key(*row))
    return next((rival_wave for rival, rival_wave in ahead if due(draft, rival, rival_wave)), [])


def _share_scope(wave: Iterable[Event], other: Iterable[Event]) -> bool:
    return not {e.scope for e in wave}.isdisjoint(e.scope for e in other)


def _before_earliest(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> bool:
    if maintenance.earliest is None:
        return False
    return min(draft.trusted_in(e.scope) for e in wave) < maintenance.earliest


def why_stopped(draft: Draft, maintenance: Maintenance) -> list[Waiting]:
    reasons: list[Waiting] = []
    failed = blocking_failures(draft, maintenance)
    if maintenance.on_failure is OnFailure.CONTINUE:
        reasons += _limit_reached(draft, maintenance, failed, blocking_hosts(draft, maintenance))
    elif failed:
        first, reason = failed[0].id, draft.orders[failed[0].id].reason
        message = f"the order of event {first} failed ({reason}) and holds the maintenance"
        if len(failed) > 1:
            message = f"{len(failed)} orders failed and hold the maintenance, the first in event {first} ({reason})"
        reasons.append(Waiting(code="unresolved", message=message, events=tuple(e.id for e in failed[:MAX_NAMED])))
    for order in blocking_hosts(draft, maintenance) if maintenance.on_failure is OnFailure.HOLD else ():
        message = f"the work on host {order.host} failed ({order.reason}) and holds the maintenance"
        reasons.append(Waiting(code="unresolved", message=message, orders=(order.id,)))
    if maintenance.paused:
        reasons.append(Waiting(code="paused", message="the maintenance is paused"))
    if awaits_continue(draft, maintenance):
        reasons.append(not_continued(maintenance))
    return reasons


def not_continued(maintenance: Maintenance) -> Waiting:
    after = maintenance.strategy.pause_after
    return Waiting(code="continue", message=f"wave {after} has ended, and an operator has not let it continue")


def _limit_reached(
    draft: Draft, maintenance: Maintenance, events: list[Event], hosts: list[Order]
) -> Iterable[Waiting]:
    """Yield the wait for failures to be resolved, if there are as many as the strategy allows."""
    if events or hosts:
        message = (
            f"{count(len(events) + len(hosts), 'order')} failed, and the maintenance holds at"
            f" {_failure_limit(draft, maintenance)} (max_failures = {maintenance.strategy.max_failures})"
        )
        named = tuple(e.id for e in events[:MAX_NAMED])
        yield Waiting(code="failures", message=message, events=named, orders=tuple(o.id for o in hosts[:MAX_NAMED]))


def _rest_of_wave(event: Event, unready: Collection[str]) -> list[Waiting]:
    named = tuple(islice((event_id for event_id in unready if event_id != event.id), MAX_NAMED))
    if not named:
        return []
    return [
        Waiting(
            code="wave",
            message=f"the events of a wave start together, and {len(unready) - (event.id in unready)} other event(s)"
            " of this wave are not ready",
            events=named,
        )
    ]


def store_held(draft: Draft) -> list[Waiting]:
    hold = draft.before.store_hold
    if hold is None:
        return []
    return [Waiting(code="store-held", message=f"the store is held: {hold.detail}")]


def held_because(hold: StoreHold) -> str:
    """Return why the store is held and what to do, as the end of a sentence."""
    return f"{hold.detail}; see what would happen, then run `forewarn db resume`"


def _not_ready(draft: Draft, event: Event) -> list[Waiting]:
    maintenance = draft.maintenances[event.maintenance_id]
    if ready(maintenance, event, draft.trusted_in(event.scope)):
        return []
    hold = draft.before.hold
    if hold is not None and ready(maintenance, event, draft.now_in(event.scope)):
        return [_missing_approval(event), clock_held(hold)]
    until = notice_end(maintenance, event) or event.not_before
    return [_missing_approval(event), Waiting(code="notice", message="its notice runs", until=until)]


def _missing_approval(event: Event) -> Waiting:
    approved_by = {a.machine for a in event.approvals}
    if event.approval_mode is ApprovalMode.OPERATOR:
        return Waiting(code="approval", message="an operator has not approved")
    missing = tuple(name for name in event.resources if name not in approved_by)
    if event.approval_mode is ApprovalMode.ALL:
        return Waiting(code="approval", message=f"not approved by {listed(missing)}", machines=missing)
    return Waiting(code="approval", message=f"no machine of {event.scope} has approved", machines=missing)


def order_progress(draft: Draft, event: Event) -> Waiting:
    hold_s = draft.maintenances[event.maintenance_id].drill_hold_s
    if hold_s and event.started is not None:
        end = event.started + timedelta(seconds=hold_s)
        return Waiting(code="drill", message="it is a drill: nothing touches its machines", until=end)
    if is_stopped(draft, event):
        return Waiting(
            code="host-work",
            message=f"its machines are shut down until the work on host {event.host} has ended",
        )
    return progress_of(draft, draft.orders[event.id])


def progress_of(draft: Draft, order: Order) -> Waiting:
    if order.state is OrderState.FAILED:
        return Waiting(code="order-failed", message=f"its order failed ({order.reason})")
    if order.state is OrderState.IN_DOUBT:
        return Waiting(
            code="in-doubt",
            message=f"its work may have begun, and its end is not known ({order.reason}); it was taken by {order.node}",
        )
    if order.state is OrderState.OPEN and (held := store_held(draft)):
        return held[0]
    progress = "is being carried out" if order.state is OrderState.RUNNING else "waits for an executor to take it"
    return Waiting(code="executor", message=f"its order {progress}", until=order.deadline)
