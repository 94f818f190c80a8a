"""The verbs of operators, guests and the ticker. Each is a function from a Snapshot to a Change.

A verb reads only its arguments and saves nothing; a verb that raises has changed nothing. Only `submit` and `tick`
publish and start events (see `advance`); the other verbs record what happened and wake the maintenances concerned.
The verbs of executors are in `order_verbs`, those on single hosts in `host_verbs`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime

from forewarn.core.advance import advance, cancel_rest, refresh, wake_if_startable
from forewarn.core.cancelling import cancel
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.drills import is_drill, refuse_beside_others
from forewarn.core.errors import IllegalTransition, Invalid, MachineBusy, Refused, RequestError, TooManyUserOperations
from forewarn.core.fast_init import replace
from forewarn.core.formatting import full_time
from forewarn.core.host_orders import current_host, is_read, machines_on
from forewarn.core.host_verbs import retry_host
from forewarn.core.host_work import reissued, repeated_phase, why_not_in_place
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    MAX_OPEN_USER_EVENTS,
    OPEN,
    Actor,
    Approval,
    ApprovalMode,
    Event,
    HostMode,
    Maintenance,
    MaintenanceRequest,
    OrderState,
    Phase,
    Source,
    Status,
)
from forewarn.core.planning import plan
from forewarn.core.transitions import OrderVerb, Verb, order_after, require_legal, status_after
from forewarn.core.verb_steps import complete, find, machines_stopped, open_maintenance, wake
from forewarn.core.waiting import awaits_continue, current_wave, order_failed, order_in_doubt

# -- operators and guests


def submit(
    snapshot: Snapshot,
    request: MaintenanceRequest,
    *,
    now: datetime,
    actor: Actor,
    new_id: Callable[[], str],
    order_timeout_s: int,
) -> tuple[str, Change]:
    """Plan a new maintenance, publish its first wave, and start the wave if no notice is due."""
    draft = Draft(snapshot, now, actor)
    maintenance, events, host_orders = plan(snapshot, request, now=now, created_by=actor.name, new_id=new_id)
    if request.not_after is not None and request.not_after <= max([now, *(draft.now_in(e.scope) for e in events)]):
        raise Refused(f"not_after has passed ({full_time(request.not_after)}): nothing of this maintenance could start")
    for order in host_orders:
        refusal = why_not_in_place(snapshot, maintenance, order.host, machines_on(draft, order.host))
        if refusal:
            raise Refused(refusal)
    if request.emergency:
        _refuse_busy(draft, events)
    if request.drill_hold_s:
        refuse_beside_others(draft, events)
    if request.source is Source.USER:
        _refuse_second_operation(draft, events)
        _refuse_too_many(draft, events)
    draft.put_maintenance(maintenance)
    for event in events:
        draft.put(event)
    for order in host_orders:
        draft.put_order(order)
    what = f"drill of a {request.type}" if request.drill_hold_s else f"{request.type} by {request.source}"
    draft.note("maintenance submitted", maintenance_id=maintenance.id, detail=what)
    advance(draft, [maintenance.id], order_timeout_s, new_id)
    return maintenance.id, draft.change()


def _refuse_busy(draft: Draft, events: Iterable[Event]) -> None:
    for event in events:
        for other in draft.events_in(event.scope):
            busy = set(event.resources) & set(other.resources)
            if other.status is Status.STARTED and busy and not is_drill(draft, other):
                raise MachineBusy(
                    f"machine {event.scope}/{min(busy)} is in event {other.id}, which has started: wait until it ends"
                )


def _refuse_second_operation(draft: Draft, events: Iterable[Event]) -> None:
    """Refuse a user operation on a machine that has an open one of the same type."""
    planned = {(e.scope, name): e.type for e in events for name in e.resources}
    for scope in sorted({scope for scope, _ in planned}):
        for other in draft.events_in(scope):
            for name in other.resources if other.source is Source.USER else ():
                if planned.get((scope, name)) is other.type:
                    raise MachineBusy(
                        f"machine {scope}/{name} already has an open {other.type} by its user, event {other.id}:"
                        " cancel it or wait until it ends"
                    )


def _refuse_too_many(draft: Draft, events: Iterable[Event]) -> None:
    for name, count in Counter(event.scope for event in events).items():
        limit = min(draft.scopes[name].max_user_operations or MAX_OPEN_USER_EVENTS, MAX_OPEN_USER_EVENTS)
        already_open = sum(e.source is Source.USER for e in draft.events_in(name))
        if already_open + count > limit:
            raise TooManyUserOperations(
                f"scope {name} allows {limit} user operations at once and {already_open} are open: wait until one ends"
            )


@dataclass(frozen=True, slots=True)
class GuestApproval:
    """The StartRequests of one machine: all of them are recorded, or none if one id is not an event of its scope."""

    scope: str
    machine: str
    event_ids: tuple[str, ...]
    actor: Actor


def approve(
    snapshot: Snapshot, approvals: Iterable[GuestApproval], *, now: datetime
) -> tuple[Change, list[RequestError | None]]:
    """Record the approvals of some machines; return for each why it is refused, or None. One error stops no other."""
    draft, errors = Draft(snapshot, now, Actor("service")), list[RequestError | None]()
    for approval in approvals:
        draft.actor = approval.actor
        try:
            _approve(draft, approval)
        except RequestError as error:
            errors.append(error)
        else:
            errors.append(None)
    return draft.change(), errors


def _approve(draft: Draft, approval: GuestApproval) -> None:
    events = []
    for event_id in dict.fromkeys(approval.event_ids):
        event = draft.events.get(event_id)
        if event is None or event.scope != approval.scope or event.published is None:
            raise Invalid(f"Bad request. EventId {event_id} is not an event of this machine's scope")
        require_legal(event, Verb.APPROVE)
        events.append(event)
    for event in events:
        if event.status is Status.SCHEDULED and _has_effect(draft, event, approval.machine):
            _record_approval(draft, event, approval.machine)


def _has_effect(draft: Draft, event: Event, machine: str) -> bool:
    """Whether this machine's approval changes anything. Any other machine's request is accepted but has no effect."""
    approved_by = draft.approvers(event)
    if event.approval_mode is ApprovalMode.ALL:
        return machine in event.resources and machine not in approved_by
    return event.approval_mode is ApprovalMode.ANY and not approved_by


def approve_as_operator(snapshot: Snapshot, event_id: str, *, now: datetime, actor: Actor) -> Change:
    """Record an operator's approval, which counts for all machines."""
    draft = Draft(snapshot, now, actor)
    event = find(draft.events, event_id, "event")
    require_legal(event, Verb.APPROVE)
    if event.status is Status.SCHEDULED and all(a.machine for a in event.approvals):
        _record_approval(draft, event, "")
    return draft.change()


def _record_approval(draft: Draft, event: Event, machine: str) -> None:
    who, origin = draft.actor.name, draft.actor.origin
    draft.approve(
        event, Approval(event_id=event.id, machine=machine, who=who, at=draft.now_in(event.scope), origin=origin)
    )
    draft.note("event approved", event=event)


def cancel_event(snapshot: Snapshot, event_id: str, *, now: datetime, actor: Actor) -> Change:
    """Cancel one event that has not started; the rest of its maintenance goes on."""
    draft = Draft(snapshot, now, actor)
    cancel(draft, find(draft.events, event_id, "event"), f"cancelled by {actor.name}")
    return draft.change()


def cancel_maintenance(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Cancel all events that have not started; a Started event runs to its end."""
    draft = Draft(snapshot, now, actor)
    maintenance = open_maintenance(draft, maintenance_id)
    if maintenance.cancelled:
        return draft.change()
    draft.note("maintenance cancelled", maintenance_id=maintenance_id)
    cancel_rest(draft, maintenance, f"maintenance cancelled by {actor.name}")
    refresh(draft, maintenance_id)
    if maintenance.host_mode is not None:
        wake(draft, maintenance_id)  # machines that are shut down must be started again
    return draft.change()


def pause(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Stop publishing and starting events of the maintenance; NotBefore stays as it is."""
    return _set_paused(snapshot, maintenance_id, True, now, actor)


def resume(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Let a paused maintenance go on at the next tick."""
    return _set_paused(snapshot, maintenance_id, False, now, actor)


def _set_paused(snapshot: Snapshot, maintenance_id: str, paused: bool, now: datetime, actor: Actor) -> Change:
    draft = Draft(snapshot, now, actor)
    maintenance = open_maintenance(draft, maintenance_id)
    if maintenance.paused == paused:
        if not paused and awaits_continue(draft, maintenance):
            after = maintenance.strategy.pause_after
            raise Refused(f"maintenance {maintenance_id} pauses after wave {after}: use `maintenance continue`")
        return draft.change()
    draft.note("maintenance paused" if paused else "maintenance resumed", maintenance_id=maintenance_id)
    draft.put_maintenance(replace(maintenance, paused=paused))
    refresh(draft, maintenance_id)
    # A pause keeps no machine shut down: ticks still complete the work on its host.
    if not paused or maintenance.host_mode is not None:
        wake(draft, maintenance_id)
    return draft.change()


def continue_maintenance(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Let a maintenance go on that its strategy stopped after a wave."""
    draft = Draft(snapshot, now, actor)
    maintenance = open_maintenance(draft, maintenance_id)
    after = maintenance.strategy.pause_after
    if after and maintenance.continued_after >= after:
        return draft.change()
    if not awaits_continue(draft, maintenance):
        if maintenance.paused:
            raise Refused(f"maintenance {maintenance_id} was paused by an operator: use `maintenance resume`")
        what = f"wave {after} has not ended" if after else "its strategy has no pause_after"
        raise Refused(f"maintenance {maintenance_id} does not wait for an operator to continue: {what}")
    draft.note("maintenance continued", maintenance_id=maintenance_id, detail=f"after wave {after}")
    draft.put_maintenance(replace(maintenance, continued_after=after))
    refresh(draft, maintenance_id)
    wake(draft, maintenance_id)
    return draft.change()


def resolve_failure(
    snapshot: Snapshot, event_id: str, verb: Verb, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """Retry, finish or abandon an event whose order failed or is in doubt, as an operator decides."""
    draft = Draft(snapshot, now, actor)
    event = find(draft.events, event_id, "event")
    status = status_after(event, verb)
    if verb not in (Verb.RETRY, Verb.FINISH, Verb.ABANDON):
        raise Invalid(f"a failed order can be resolved by retry, finish or abandon, not by {verb}")
    if not order_failed(draft, event) and not order_in_doubt(draft, event):
        raise IllegalTransition(
            f"the order of event {event_id} has not failed: wait for its executor, or report the order as failed first"
        )
    order = draft.orders[event_id]
    if verb is Verb.RETRY:
        _retry(draft, event, order_timeout_s)
        return draft.change()
    draft.note(f"event {verb} by operator", event=event)
    if verb is Verb.FINISH and order.phase is Phase.STOP:
        machines_stopped(draft, event, replace(order, reason=f"finished by {actor.name}"))
    elif verb is Verb.FINISH:
        draft.put_order(replace(order, state=order_after(order, OrderVerb.FINISH), ended=draft.now_in(event.scope)))
        complete(draft, event, f"finished by {actor.name}")
    else:
        reason, now = f"abandoned by {actor.name}", draft.now_in(event.scope)
        if order_in_doubt(draft, event):
            failed = order_after(order, OrderVerb.FAIL)
            draft.put_order(
                replace(order, state=failed, ended=now, reason=f"{reason}; it was in doubt: {order.reason}")
            )
        draft.put(replace(event, status=status, ended=now, reason=reason))
    return draft.change()


def _retry(draft: Draft, event: Event, order_timeout_s: int) -> None:
    order = draft.orders[event.id]
    order_after(order, OrderVerb.RETRY)
    draft.note(f"event {Verb.RETRY} by operator", event=event)
    again = replace(order, phase=repeated_phase(draft, order))
    draft.put_order(reissued(again, draft.now_in(event.scope), order_timeout_s))


def retry_failed(
    snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """Retry every failed order of the maintenance. Orders in doubt stay: an operator must check their machines first.

    Failed work in place cannot be retried. It is left out if events failed too; if nothing else failed, the refusal says why.
    """
    draft = Draft(snapshot, now, actor)
    in_place = open_maintenance(draft, maintenance_id).host_mode is HostMode.IN_PLACE
    failed = [event for event in draft.events_of(maintenance_id) if order_failed(draft, event)]
    hosts = [order for order in draft.host_orders_of(maintenance_id) if order.state is OrderState.FAILED]
    if not failed and not hosts:
        raise Refused(f"no order of maintenance {maintenance_id} has failed: there is nothing to retry")
    for event in failed:
        _retry(draft, event, order_timeout_s)
    for order in hosts if not in_place or not failed else ():
        retry_host(draft, order, order_timeout_s)
    refresh(draft, maintenance_id)
    wake(draft, maintenance_id)
    return draft.change()


# -- the ticker


def tick(snapshot: Snapshot, *, now: datetime, actor: Actor, order_timeout_s: int, new_id: Callable[[], str]) -> Change:
    """Advance each open maintenance that a tick can move and whose scopes are all in the snapshot.

    Wake the other maintenances that nothing in these scopes holds back: a tick that reads all their scopes decides about them.
    """
    draft = Draft(snapshot, now, actor)
    within: list[str] = []
    beyond: list[str] = []
    for maintenance in draft.maintenances.values():
        if maintenance.ended is None and _can_move(draft, maintenance):
            (within if _lies_within(draft, maintenance) else beyond).append(maintenance.id)
    advance(draft, within, order_timeout_s, new_id)
    for maintenance_id in beyond:
        wake_if_startable(draft, maintenance_id)
    return draft.change()


def _can_move(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether the maintenance is due (`wake_at`), has no published event, or has an event that may wait for other events."""
    if maintenance.wake_at is not None and maintenance.wake_at <= draft.now:
        return True
    open_events = [event for event in draft.events_of(maintenance.id) if event.status in OPEN]
    unpublished = all(event.status is Status.PLANNED for event in open_events)
    return unpublished or any(draft.may_be_ready(event) for event in open_events)


def _lies_within(draft: Draft, maintenance: Maintenance) -> bool:
    host = current_host(draft, maintenance) if maintenance.host_mode is not None else None
    if host is not None and not is_read(draft, host):
        return False
    return not [e for e in draft.events_of(maintenance.id) if e.status in OPEN and e.scope not in draft.scopes]


# -- enabling scopes


def enable(snapshot: Snapshot, scope: str, *, now: datetime, actor: Actor) -> Change:
    """Enable a scope at the first request of one of its guests: its epoch grows by one, its incarnation is 1 again."""
    draft = Draft(snapshot, now, actor)
    known = find(draft.scopes, scope, "scope")
    if not known.enabled:
        draft.put_scope(replace(known, enabled=True, epoch=known.epoch + 1))
        draft.note("scope enabled", scope=scope)
        _wake_planned(draft, scope)
    return draft.change()


def disable(snapshot: Snapshot, scope: str, *, now: datetime, actor: Actor) -> Change:
    """Disable a scope whose guests have sent no request for long. Published events keep their NotBefore."""
    draft = Draft(snapshot, now, actor)
    known = find(draft.scopes, scope, "scope")
    if known.enabled and snapshot.hold is None:  # a held clock does not show how much time has passed
        draft.put_scope(replace(known, enabled=False))
        draft.note("scope disabled", scope=scope)
        _wake_planned(draft, scope)
    return draft.change()


def _wake_planned(draft: Draft, scope: str) -> None:
    """Wake the maintenances whose next wave has events in this scope, because the notice of these events has changed.

    The notice decides how long before its window a wave is published. A later wave needs no wake-up: its notice counts when
    its turn comes. The draft has the events of this scope alone, so it may wake a maintenance too early: that does no harm.
    """
    for maintenance_id in {event.maintenance_id for event in draft.events_in(scope)}:
        wave = current_wave(draft, draft.maintenances[maintenance_id])
        if any(event.status is Status.PLANNED for event in wave):
            draft.wake(maintenance_id)
