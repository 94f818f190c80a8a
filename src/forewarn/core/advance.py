"""What a tick does: fail late orders, publish waves, start due waves, and derive the status of each maintenance.

Works on a Draft for the verbs of `lifecycle`; decides with the predicates of `waiting` and the table of `transitions`.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from forewarn.core.budgets import waits_for_fleet
from forewarn.core.cancelling import cancel
from forewarn.core.constraints import publication_waits, start_waits
from forewarn.core.deadline import deadline_ahead, is_past_deadline, missed_deadline, unstarted_events, unstarted_hosts
from forewarn.core.draft import Draft
from forewarn.core.drills import drill_end, drill_order, end_drill_events, is_drill, yield_to
from forewarn.core.fast_init import replace
from forewarn.core.formatting import iso_seconds
from forewarn.core.host_orders import OVER, current_host, departures, is_read, machines_to_start
from forewarn.core.host_work import DOWN_LIMIT_S, cordon, drop_host, fail_host, may_open_empty, move_hosts
from forewarn.core.model import (
    OPEN,
    UNFINISHED,
    UNSTARTED,
    ApprovalMode,
    Event,
    HostMode,
    Maintenance,
    MaintenanceStatus,
    OnFailure,
    Order,
    OrderState,
    Phase,
    Status,
)
from forewarn.core.planning import publication
from forewarn.core.replanning import plan_again
from forewarn.core.transitions import OrderVerb, Verb, order_after, status_after
from forewarn.core.waiting import (
    current_wave,
    due,
    host_not_before,
    host_planned_at,
    notice_end,
    obstacles,
    queue_key,
    ready,
    stopped,
)
from forewarn.core.window_rules import closing_time, first_start, why_missed

# States in which the deadline of an order counts. An order of a host that is planned has one once machines were shut down for it.
TIMED = frozenset({OrderState.PLANNED, OrderState.OPEN, OrderState.RUNNING})


def advance(draft: Draft, maintenance_ids: list[str], order_timeout_s: int, new_id: Callable[[], str]) -> None:
    """Move these maintenances as far as time, approvals and finished orders allow.

    What frees a budget comes first for all of them, so that another maintenance finds room in the same transaction.
    """
    for maintenance_id in maintenance_ids:
        _fail_late_orders(draft, maintenance_id, order_timeout_s)
        _cancel_past_deadline(draft, maintenance_id)
        end_drill_events(draft, draft.maintenances[maintenance_id])
    for maintenance_id in maintenance_ids:
        move_hosts(draft, maintenance_id, order_timeout_s, new_id)
        # After `move_hosts`: it may drop a host, and then the events of that host are not planned again.
        _plan_missed_wave_again(draft, maintenance_id, new_id)
    for maintenance_id in maintenance_ids:
        _note_published(draft, maintenance_id)
        _publish(draft, maintenance_id)
    waves = []
    for maintenance_id in maintenance_ids:
        maintenance = draft.maintenances[maintenance_id]
        wave = current_wave(draft, maintenance)
        if wave and due(draft, maintenance, wave):
            waves.append((queue_key(maintenance, wave), maintenance, wave))
    for _, maintenance, wave in sorted(waves, key=lambda row: row[0]):
        if not any(obstacles(draft, maintenance, wave)):
            for event in wave:
                _start(draft, event, order_timeout_s)
    for maintenance_id in maintenance_ids:
        refresh(draft, maintenance_id)


def wake_if_startable(draft: Draft, maintenance_id: str) -> None:
    """Wake a maintenance that nothing in the draft's scopes holds back: the wave that it waited for may have left the queue.

    That wave leaves the queue, or moves back in it, by a change in one of its scopes, which the draft may not contain.
    """
    maintenance = draft.maintenances[maintenance_id]
    wave = current_wave(draft, maintenance)
    if wave and due(draft, maintenance, wave) and not any(obstacles(draft, maintenance, wave)):
        draft.wake(maintenance_id)


def _fail_late_orders(draft: Draft, maintenance_id: str, order_timeout_s: int) -> None:
    """Fail orders past their deadline; with on_failure = cancel, cancel the rest of the maintenance.

    While the store is held, no deadline counts: no executor may take the order. When the store is resumed, every order that is
    not finished gets its whole time limit again.
    """
    maintenance = draft.maintenances[maintenance_id]
    resumed = draft.before.resumed.resumed if draft.before.resumed is not None else None
    orders = _orders_of(draft, maintenance_id)
    if not orders:
        return
    for order in orders:
        if order.state not in TIMED or order.deadline is None:
            continue
        now = draft.now if order.host else draft.now_in(draft.events[order.id].scope)
        if resumed is not None and order.issued <= resumed:
            again = resumed + timedelta(seconds=order_timeout_s or DOWN_LIMIT_S)
            order = replace(order, deadline=max(order.deadline, again))
            draft.put_order(order)
        if order.deadline is not None and now >= order.deadline and draft.before.store_hold is None:
            _fail_late_order(draft, order, now, iso_seconds(order.deadline))
    failed = [o for o in _orders_of(draft, maintenance_id) if o.state is OrderState.FAILED]
    failed = [o for o in failed if o.host or draft.events[o.id].status is Status.STARTED]
    if failed and maintenance.on_failure is OnFailure.CANCEL and not maintenance.cancelled:
        first = f"host {failed[0].host}" if failed[0].host else f"event {failed[0].id}"
        cancel_rest(draft, maintenance, f"the order of {first} failed")


def _cancel_past_deadline(draft: Draft, maintenance_id: str) -> None:
    maintenance = draft.maintenances[maintenance_id]
    if maintenance.not_after is None or not is_past_deadline(draft, maintenance):
        return
    deadline = iso_seconds(maintenance.not_after)
    reason = f"it had not started by the deadline of its maintenance, {deadline}"
    draft.note("deadline passed", maintenance_id=maintenance_id, detail=deadline)
    hosts = unstarted_hosts(draft, maintenance)
    for event in unstarted_events(draft, maintenance):
        cancel(draft, event, reason)
    for order in hosts:
        drop_host(draft, order, OrderVerb.CANCEL, reason)


def _orders_of(draft: Draft, maintenance_id: str) -> list[Order]:
    """Return the orders of the events and of the hosts of a maintenance."""
    if not draft.orders:
        return []
    of_events = [draft.orders[e.id] for e in draft.events_of(maintenance_id) if e.id in draft.orders]
    return [*of_events, *draft.host_orders_of(maintenance_id)]


def _fail_late_order(draft: Draft, order: Order, now: datetime, deadline: str) -> None:
    # What held back an open order tells an operator more than the time-out.
    reason = "; ".join(filter(None, [f"timed out: no result by {deadline}", order.reason]))
    if order.host and order.state is OrderState.PLANNED:
        fail_host(
            draft, order, f"its machines were shut down, and not all of them by {deadline}: they are started again"
        )
    elif order.host and order.state is OrderState.RUNNING and _is_in_place(draft, order.maintenance_id):
        _doubt_host(draft, order, f"{reason}; its machines stay shut down until an operator decides")
    elif order.host:
        fail_host(draft, order, reason)
    else:
        draft.put_order(replace(order, state=OrderState.FAILED, ended=now, reason=reason))
        draft.note("order failed", event=draft.events[order.id], detail=reason)


def _doubt_host(draft: Draft, order: Order, reason: str) -> None:
    """Put late work on a host in doubt: it may go on, so the machines on the host must not be started."""
    state = order_after(order, OrderVerb.DOUBT)
    draft.put_order(replace(order, state=state, deadline=None, reason=reason))
    draft.note("order in doubt", maintenance_id=order.maintenance_id, detail=f"host {order.host}: {reason}")


def _is_in_place(draft: Draft, maintenance_id: str) -> bool:
    return draft.maintenances[maintenance_id].host_mode is HostMode.IN_PLACE


def _plan_missed_wave_again(draft: Draft, maintenance_id: str, new_id: Callable[[], str]) -> None:
    """Cancel a published wave whose window has closed. It is announced again, under new ids, for the next window."""
    maintenance = draft.maintenances[maintenance_id]
    wave = [e for e in current_wave(draft, maintenance) if e.status is Status.SCHEDULED]
    if wave and (reason := why_missed(draft, maintenance, wave)):
        for event in wave:
            plan_again(draft, event, reason, new_id)
        draft.put_maintenance(replace(maintenance, observed_published_at=None))


def _note_published(draft: Draft, maintenance_id: str) -> None:
    """Record that the wave was read as published: guests can see it, and its minimum notice counts from now."""
    maintenance = draft.maintenances[maintenance_id]
    if maintenance.observed_published_at is not None:
        return
    wave = [e for e in current_wave(draft, maintenance) if e.status is Status.SCHEDULED]
    if wave:
        observed = max(draft.now_in(e.scope) for e in wave)
        draft.put_maintenance(replace(maintenance, observed_published_at=observed))


def _publish(draft: Draft, maintenance_id: str) -> None:
    """Publish the Planned events of the current wave. Guests see events approved at creation only once they have started."""
    maintenance = draft.maintenances[maintenance_id]
    planned = [e for e in current_wave(draft, maintenance) if e.status is Status.PLANNED]
    if not planned or stopped(draft, maintenance):
        return
    wave = [e for e in planned if not e.born_approved]
    if wave and publication_waits(draft, maintenance, wave):
        return
    if not maintenance.drill_hold_s and (wave or due(draft, maintenance, planned)):
        yield_to(draft, planned)
    if not wave:
        return
    draft.put_maintenance(replace(maintenance, observed_published_at=None))
    publications = publication(maintenance, wave, draft.scopes, draft.now_in)
    in_window = first_start(draft, maintenance, wave)
    one_per_scope = {event.scope: event for event in wave}
    sequences = {scope: _next_sequence(draft, event) for scope, event in one_per_scope.items()}
    for event in wave:
        fixed = publications[event.id]
        published = replace(
            event,
            status=status_after(event, Verb.PUBLISH),
            sequence=sequences[event.scope],
            approval_mode=ApprovalMode.ALL if maintenance.drill_hold_s else draft.scopes[event.scope].approval,
            published=fixed.published,
            not_before=max(fixed.not_before, in_window or fixed.not_before),
            minimum_notice_s=fixed.minimum_notice_s,
            needs_approval=fixed.needs_approval,
        )
        draft.put(published)
        draft.note("event published", event=published)
        _cordon_host_of(draft, event)


def _cordon_host_of(draft: Draft, event: Event) -> None:
    """Cordon the host that machines leave, or are shut down on: from its first published or started event on."""
    if event.host and not event.returns:
        cordon(draft, event.host, event.maintenance_id)


def _next_sequence(draft: Draft, event: Event) -> int:
    """Return the position in the document: after all visible events; the events of a wave share one sequence number."""
    wave = (event.maintenance_id, event.wave)
    others = (e.sequence for e in draft.events_in(event.scope) if (e.maintenance_id, e.wave) != wave)
    return 1 + max(others, default=0)


def _start(draft: Draft, event: Event, order_timeout_s: int) -> None:
    now = draft.now_in(event.scope)
    started = replace(event, status=status_after(event, Verb.START), started=now)
    if started.published is None:
        started = replace(started, published=now, not_before=now, sequence=_next_sequence(draft, event))
    draft.put(started)
    in_place = _is_in_place(draft, event.maintenance_id)
    deadline = now + timedelta(seconds=order_timeout_s) if order_timeout_s else None
    order = Order(id=event.id, issued=now, deadline=deadline, phase=Phase.STOP if in_place else Phase.NONE)
    draft.put_order(drill_order(event, now) if is_drill(draft, event) else order)
    draft.note("event started", event=event)
    _cordon_host_of(draft, event)


def cancel_rest(draft: Draft, maintenance: Maintenance, reason: str) -> None:
    for event in draft.events_of(maintenance.id):
        if event.status in UNSTARTED:
            cancel(draft, event, reason)
    for order in draft.host_orders_of(maintenance.id):
        if order.state in (OrderState.PLANNED, OrderState.OPEN):
            drop_host(draft, order, OrderVerb.CANCEL, reason)
    draft.put_maintenance(replace(maintenance, cancelled=True))


def refresh(draft: Draft, maintenance_id: str) -> None:
    """Derive the maintenance's status, its end, and when a tick must next examine it."""
    maintenance = draft.maintenances[maintenance_id]
    events = draft.events_of(maintenance_id)
    if maintenance_id in draft.before.unread and not any(e.status in OPEN for e in events):
        draft.wake(maintenance_id)  # the next tick finds no current wave, and reads all events
        return
    status = _status_of(draft, maintenance, events)
    ended = None if status in UNFINISHED else max((draft.now_in(e.scope) for e in events), default=draft.now)
    if ended is not None and maintenance.ended is None:
        draft.note("maintenance ended", maintenance_id=maintenance_id, detail=status)
    draft.put_maintenance(
        replace(
            maintenance,
            status=status,
            ended=ended,
            wake_at=_wake_at(draft, maintenance),
            waits_for_budget=ended is None and _waits_for_budget(draft, maintenance),
        ),
        refreshed=True,
    )


def _waits_for_budget(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether the maintenance waits until something in the fleet is up again."""
    if not draft.before.fleet_rules.has_budget or stopped(draft, maintenance):
        return False
    order = current_host(draft, maintenance) if maintenance.host_mode is not None else None
    planned = [e for e in current_wave(draft, maintenance) if e.status is Status.PLANNED and not e.born_approved]
    waiting = order is not None and order.state is OrderState.PLANNED and not departures(draft, order)
    return waits_for_fleet(draft, maintenance, planned, order if waiting else None)


def _status_of(draft: Draft, maintenance: Maintenance, events: list[Event]) -> MaintenanceStatus:
    statuses, hosts = {e.status for e in events}, {o.state for o in draft.host_orders_of(maintenance.id)}
    if statuses & OPEN or not hosts <= OVER or _has_more_to_do(draft, maintenance):
        if stopped(draft, maintenance):
            return MaintenanceStatus.PAUSED
        unread = draft.before.unread.get(maintenance.id)
        begun = unread is not None and unread.last_ended is not None
        started = begun or any(e.started for e in events) or bool(hosts - {OrderState.PLANNED})
        return MaintenanceStatus.RUNNING if started else MaintenanceStatus.PLANNED
    if Status.ABANDONED in statuses or OrderState.ABANDONED in hosts:
        return MaintenanceStatus.FAILED
    if any(_was_interrupted(draft, maintenance, order) for order in draft.host_orders_of(maintenance.id)):
        return MaintenanceStatus.FAILED
    if missed_deadline(draft, maintenance):
        return MaintenanceStatus.FAILED
    if maintenance.cancelled:
        return MaintenanceStatus.CANCELLED
    if hosts:
        return MaintenanceStatus.FAILED if OrderState.CANCELLED in hosts else MaintenanceStatus.COMPLETED
    return MaintenanceStatus.COMPLETED if Status.COMPLETED in statuses else MaintenanceStatus.CANCELLED


def _was_interrupted(draft: Draft, maintenance: Maintenance, order: Order) -> bool:
    """Whether the work on a host was cancelled after its turn had begun: the host was cordoned for it, and still is."""
    if order.state is not OrderState.CANCELLED:
        return False
    # An empty host has no events: its turn began when its order opened, which may be in the submission itself.
    known = draft.before.orders.get(order.id)
    opened = order.issued > maintenance.created or (known is not None and known.state is OrderState.OPEN)
    # Events that missed their window were published too. Those of a host that was rescheduled do not count.
    events = (
        e for e in draft.events_of(order.maintenance_id) if e.host == order.host and e.replaced_by != maintenance.id
    )
    return opened or any(e.published is not None for e in events if not e.returns)


def _has_more_to_do(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether machines are still to be brought back to a host."""
    return maintenance.host_mode is not None and current_host(draft, maintenance) is not None


def _wake_at(draft: Draft, maintenance: Maintenance) -> datetime | None:
    """Return when passing time alone could next change something; every other change wakes the maintenance itself."""
    moments = [
        order.deadline
        for order in _orders_of(draft, maintenance.id)
        if draft.before.store_hold is None and order.state in TIMED and order.deadline is not None
    ]
    if maintenance.host_mode is not None:
        moments += [draft.now for order in draft.host_orders_of(maintenance.id) if machines_to_start(draft, order)]
    moments += _drill_ends(draft, maintenance)
    deadline = deadline_ahead(draft, maintenance)
    moments += [deadline] if deadline is not None else []
    wave = [e for e in current_wave(draft, maintenance) if e.status in UNSTARTED]
    closing = closing_time(draft, maintenance, wave)
    moments += [closing] if closing is not None and any(e.published for e in wave) else []
    if not stopped(draft, maintenance):
        moments += _wake_for_wave(draft, maintenance, wave) if wave else []
        moments += _wake_for_host(draft, maintenance) if maintenance.host_mode is not None else []
    return min(moments, default=None)


def _wake_for_wave(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[datetime]:
    """Return when the unstarted events of the current wave could be published or start."""
    unready = [e for e in wave if e.not_before and not ready(maintenance, e, draft.now_in(e.scope))]
    moments = [notice_end(maintenance, e) or draft.now_in(e.scope) for e in unready]
    if maintenance.earliest is not None and maintenance.earliest > draft.now:
        moments.append(maintenance.earliest)
    planned = [e for e in wave if e.status is Status.PLANNED]
    waits = publication_waits(draft, maintenance, planned) if planned else start_waits(draft, maintenance, wave)
    if not waits and any(not e.born_approved for e in planned):
        moments.append(draft.now)  # what held it back ended after it was examined
    # A time that has passed by a held clock wakes nothing: the end of the hold does.
    return moments + [reason.until for reason in waits if reason.until is not None and reason.until > draft.now]


def _drill_ends(draft: Draft, maintenance: Maintenance) -> list[datetime]:
    """Return when the started events of a drill end, without ends that have passed: only a held clock delays those."""
    if not maintenance.drill_hold_s:
        return []
    started = [e for e in draft.events_of(maintenance.id) if e.status is Status.STARTED]
    ends = [(event, drill_end(maintenance, event)) for event in started]
    return [end for event, end in ends if end is not None and end > draft.now_in(event.scope)]


def _wake_for_host(draft: Draft, maintenance: Maintenance) -> list[datetime]:
    """Return when the next host could move: now if it was not read, so that the next tick reads it; or its earliest start."""
    order = current_host(draft, maintenance)
    if order is None or (order.state is not OrderState.PLANNED and order.state is not OrderState.DONE):
        return []
    if not is_read(draft, order):
        return [draft.now]
    if may_open_empty(draft, maintenance, order):
        return [draft.now]  # what held it back ended after it was examined
    planned_at = None if departures(draft, order) else host_planned_at(draft, maintenance, order)
    floors = [planned_at, host_not_before(draft, maintenance, order)]
    return [floor for floor in floors if floor is not None and floor > draft.now]
