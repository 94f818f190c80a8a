"""The verbs of operators, guests, executors and the ticker. Each is a function from a Snapshot to a Change.

A verb reads only its arguments and saves nothing; a verb that raises has changed nothing. Only `submit` and `tick`
publish and start events (see `advance`); the other verbs record what happened and wake the maintenances concerned.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from forewarn.core.advance import advance, cancel_rest, refresh, wake_if_startable
from forewarn.core.cancelling import cancel
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import (
    IllegalTransition,
    Invalid,
    MachineBusy,
    NotFound,
    Refused,
    StoreHeld,
    TooManyUserOperations,
)
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.formatting import names
from forewarn.core.host_orders import OVER, current_host, is_read, machines_in_the_way, machines_on
from forewarn.core.host_work import (
    DOWN_LIMIT_S,
    drop_host,
    fail_host,
    finish_host,
    reissued,
    repeated_phase,
    several_domains,
)
from forewarn.core.model import (
    MAX_OPEN_USER_EVENTS,
    OPEN,
    UNSTARTED,
    Actor,
    Approval,
    ApprovalMode,
    Event,
    HostMode,
    Maintenance,
    MaintenanceRequest,
    Order,
    OrderState,
    Phase,
    Source,
    Status,
)
from forewarn.core.planning import plan
from forewarn.core.transitions import OrderVerb, Verb, order_after, require_legal, status_after
from forewarn.core.waiting import held_because, order_failed, order_in_doubt

MAX_NOTED_OUTPUT = 4_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an order: whether it succeeded, its output, and the new hosts of machines that moved."""

    ok: bool
    reason: str = ""
    output: str = ""
    new_hosts: Mapping[tuple[str, str], str] | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The executor cannot tell what became of an order: its work may have been done, in part or not at all."""

    reason: str = "the executor does not know what became of it"


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
    for order in host_orders:
        refusal = several_domains(
            request.host_mode, order.host, machines_on(draft, order.host), emergency=request.emergency
        )
        if refusal:
            raise Refused(refusal)
    if request.emergency:
        _refuse_busy(draft, events)
    if request.source is Source.USER:
        _refuse_second_operation(draft, events)
        _refuse_too_many(draft, events)
    draft.put_maintenance(maintenance)
    for event in events:
        draft.put(event)
    for order in host_orders:
        draft.put_order(order)
    draft.note("maintenance submitted", maintenance_id=maintenance.id, detail=f"{request.type} by {request.source}")
    advance(draft, [maintenance.id], order_timeout_s, new_id)
    return maintenance.id, draft.change()


def _refuse_busy(draft: Draft, events: Iterable[Event]) -> None:
    for event in events:
        for other in draft.events_in(event.scope):
            busy = set(event.resources) & set(other.resources)
            if other.status is Status.STARTED and busy:
                raise MachineBusy(
                    f"machine {event.scope}/{min(busy)} is in event {other.id}, which has started: wait until it ends"
                )


def _refuse_second_operation(draft: Draft, events: Iterable[Event]) -> None:
    """Refuse a user operation on a machine that has an open one of the same type."""
    planned = {(e.scope, name): e.type for e in events for name in e.resources}
    for scope in {scope for scope, _ in planned}:
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


def approve(
    snapshot: Snapshot, event_ids: Iterable[str], *, scope: str, machine: str, now: datetime, actor: Actor
) -> Change:
    """Record a guest's approvals: all of them, or none if one id is not an event of its scope."""
    draft = Draft(snapshot, now, actor)
    events = []
    for event_id in dict.fromkeys(event_ids):
        event = draft.events.get(event_id)
        if event is None or event.scope != scope or event.published is None:
            raise Invalid(f"Bad request. EventId {event_id} is not an event of this machine's scope")
        require_legal(event, Verb.APPROVE)
        events.append(event)
    for event in events:
        if event.status is Status.SCHEDULED and _has_effect(event, machine):
            _record_approval(draft, event, machine)
    return draft.change()


def _has_effect(event: Event, machine: str) -> bool:
    """Whether this machine's approval changes anything. Any other machine's request is accepted but has no effect."""
    approved_by = {a.machine for a in event.approvals}
    if event.approval_mode is ApprovalMode.ALL:
        return machine in event.resources and machine not in approved_by
    return event.approval_mode is ApprovalMode.ANY and not approved_by


def approve_as_operator(snapshot: Snapshot, event_id: str, *, now: datetime, actor: Actor) -> Change:
    """Record an operator's approval, which counts for all machines."""
    draft = Draft(snapshot, now, actor)
    event = _find(draft.events, event_id, "event")
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
    cancel(draft, _find(draft.events, event_id, "event"), f"cancelled by {actor.name}")
    return draft.change()


def cancel_maintenance(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Cancel all events that have not started; a Started event runs to its end."""
    draft = Draft(snapshot, now, actor)
    maintenance = _open_maintenance(draft, maintenance_id)
    if maintenance.cancelled:
        return draft.change()
    draft.note("maintenance cancelled", maintenance_id=maintenance_id)
    cancel_rest(draft, maintenance, f"maintenance cancelled by {actor.name}")
    refresh(draft, maintenance_id)
    if maintenance.host_mode is not None:
        _wake(draft, maintenance_id)  # machines that are shut down must be started again
    return draft.change()


def skip_host(snapshot: Snapshot, maintenance_id: str, host: str, *, now: datetime, actor: Actor) -> Change:
    """Leave one host out: its events that have not started and its work are cancelled. The host stays cordoned."""
    draft = Draft(snapshot, now, actor)
    _open_maintenance(draft, maintenance_id)
    order = next((o for o in draft.host_orders_of(maintenance_id) if o.host == host), None)
    if order is None:
        raise NotFound(f"maintenance {maintenance_id} does not work on host {host!r}")
    if order.state is OrderState.CANCELLED:
        return draft.change()
    if order.state not in (OrderState.PLANNED, OrderState.OPEN):
        raise Refused(f"the work on host {host} is {order.state}: it can be skipped only before it is taken")
    drop_host(draft, order, OrderVerb.CANCEL, f"skipped by {actor.name}")
    refresh(draft, maintenance_id)
    _wake(draft, maintenance_id)
    return draft.change()


def pause(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Stop publishing and starting events of the maintenance; NotBefore stays as it is."""
    return _set_paused(snapshot, maintenance_id, True, now, actor)


def resume(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Let a paused maintenance go on at the next tick."""
    return _set_paused(snapshot, maintenance_id, False, now, actor)


def _set_paused(snapshot: Snapshot, maintenance_id: str, paused: bool, now: datetime, actor: Actor) -> Change:
    draft = Draft(snapshot, now, actor)
    maintenance = _open_maintenance(draft, maintenance_id)
    if maintenance.paused == paused:
        return draft.change()
    draft.note("maintenance paused" if paused else "maintenance resumed", maintenance_id=maintenance_id)
    draft.put_maintenance(replace(maintenance, paused=paused))
    refresh(draft, maintenance_id)
    # A pause keeps no machine shut down: a tick still sees the work on its host to its end.
    if not paused or maintenance.host_mode is not None:
        _wake(draft, maintenance_id)
    return draft.change()


def _wake(draft: Draft, maintenance_id: str) -> None:
    """Let the next tick examine a maintenance that was refreshed, unless it has ended."""
    refreshed = draft.maintenances[maintenance_id]
    if refreshed.ended is None:
        draft.put_maintenance(replace(refreshed, wake_at=draft.now))


def resolve_failure(
    snapshot: Snapshot, event_id: str, verb: Verb, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """Retry, finish or abandon an event whose order failed or is in doubt, as an operator decides."""
    draft = Draft(snapshot, now, actor)
    event = _find(draft.events, event_id, "event")
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
        _machines_stopped(draft, event, replace(order, reason=f"finished by {actor.name}"))
    elif verb is Verb.FINISH:
        draft.put_order(replace(order, state=order_after(order, OrderVerb.FINISH), ended=draft.now_in(event.scope)))
        _complete(draft, event, f"finished by {actor.name}")
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


def resolve_host(
    snapshot: Snapshot, order_id: str, verb: Verb, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """Retry, finish or abandon the work on a host that failed or is in doubt, as an operator decides."""
    draft = Draft(snapshot, now, actor)
    order = _find(draft.orders, order_id, "order")
    if not order.host:
        raise Invalid(f"order {order_id} is the order of an event: {verb} the event")
    if order.state in OVER:
        raise IllegalTransition(
            f"the work on host {order.host} is {order.state}, and nothing is left to {verb}: schedule a new maintenance to"
            " work on the host again"
        )
    if order.state not in (OrderState.FAILED, OrderState.IN_DOUBT):
        raise IllegalTransition(
            f"the work on host {order.host} has not failed: wait for its executor, or report the order as failed first"
        )
    if verb is Verb.RETRY:
        _retry_host(draft, order, order_timeout_s)
        return draft.change()
    draft.note(f"host {verb} by operator", maintenance_id=order.maintenance_id, detail=f"host {order.host}")
    if verb is Verb.FINISH:
        finish_host(draft, order, reason=f"finished by {actor.name}", output=order.output)
    elif verb is Verb.ABANDON:
        drop_host(draft, order, OrderVerb.ABANDON, f"abandoned by {actor.name}; it was {order.state}: {order.reason}")
    else:
        raise Invalid(f"a failed order can be resolved by retry, finish or abandon, not by {verb}")
    return draft.change()


def _retry_host(draft: Draft, order: Order, order_timeout_s: int) -> None:
    in_place = draft.maintenances[order.maintenance_id].host_mode is HostMode.IN_PLACE
    if in_place and order.state is OrderState.FAILED:
        raise Refused(
            f"the work on host {order.host} cannot be retried while its machines run: finish or abandon its order, and"
            " submit a new maintenance"
        )
    _refuse_not_empty(draft, order)
    draft.note(f"host {Verb.RETRY} by operator", maintenance_id=order.maintenance_id, detail=f"host {order.host}")
    draft.put_order(reissued(order, draft.now, order_timeout_s or (DOWN_LIMIT_S if in_place else 0)))


def _refuse_not_empty(draft: Draft, order: Order) -> None:
    """Refuse work that would hit machines on its host."""
    maintenance = draft.maintenances[order.maintenance_id]
    machines = machines_in_the_way(draft, maintenance, order)
    if machines or not is_read(draft, order):
        raise Refused(f"host {order.host} is not empty: {names([str(m) for m in machines])}: move them first")


def note_host(snapshot: Snapshot, order_id: str, reason: str, *, now: datetime, actor: Actor) -> Change:
    """Record why the open order of a host is not handed out, or with "" that nothing is in its way any more."""
    draft = Draft(snapshot, now, actor)
    order = _find(draft.orders, order_id, "order")
    if order.state is OrderState.OPEN and order.reason != reason:
        draft.put_order(replace(order, reason=reason))
        _note_order(draft, "host waiting", order, reason or "nothing is in the way any more")
    return draft.change()


def retry_failed(
    snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """Retry every failed order of the maintenance. Orders in doubt stay: an operator must check their machines first.

    Failed work in place stays too, unless nothing else has failed: then the refusal says why.
    """
    draft = Draft(snapshot, now, actor)
    in_place = _open_maintenance(draft, maintenance_id).host_mode is HostMode.IN_PLACE
    failed = [event for event in draft.events_of(maintenance_id) if order_failed(draft, event)]
    hosts = [order for order in draft.host_orders_of(maintenance_id) if order.state is OrderState.FAILED]
    if not failed and not hosts:
        raise Refused(f"no order of maintenance {maintenance_id} has failed: there is nothing to retry")
    for event in failed:
        _retry(draft, event, order_timeout_s)
    for order in hosts if not in_place or not failed else ():
        _retry_host(draft, order, order_timeout_s)
    refresh(draft, maintenance_id)
    _wake(draft, maintenance_id)
    return draft.change()


# -- executors


def take(snapshot: Snapshot, order_id: str, *, now: datetime, actor: Actor, node: str, order_timeout_s: int) -> Change:
    """Record that an executor takes an order, before it does any work. The time limit counts from now."""
    _refuse_while_held(snapshot)
    draft = Draft(snapshot, now, actor)
    order = _find(draft.orders, order_id, "order")
    state = order_after(order, OrderVerb.TAKE)
    if order.host:
        _refuse_not_empty(draft, order)
    now = _time_of(draft, order)
    deadline = _deadline(now, order_timeout_s)
    draft.put_order(replace(order, state=state, node=node, taken=now, deadline=deadline, reason=""))
    _note_order(draft, "order taken", order, f"attempt {order.attempt} by {node}")
    return draft.change()


def _time_of(draft: Draft, order: Order) -> datetime:
    """Return the time of the scope of an order's event. The order of a host lies in no scope."""
    return draft.now if order.host else draft.now_in(draft.events[order.id].scope)


def _note_order(draft: Draft, action: str, order: Order, detail: str) -> None:
    if order.host:
        about = f"host {order.host}: {detail}" if detail else f"host {order.host}"
        draft.note(action, maintenance_id=order.maintenance_id, detail=about)
    else:
        draft.note(action, event=draft.events[order.id], detail=detail)


def _deadline(now: datetime, order_timeout_s: int) -> datetime | None:
    return now + timedelta(seconds=order_timeout_s) if order_timeout_s else None


def take_over(
    snapshot: Snapshot, order_id: str, *, now: datetime, actor: Actor, node: str, of: str, order_timeout_s: int
) -> Change:
    """Let a node take over the order of a dead node: same order, same attempt, same deadline.

    An order in doubt is under way again, because the node knows its work. Its time limit counts from now. Late work on a host
    stays in doubt if the same node still does it: otherwise it would be in doubt again after each time limit.
    """
    _refuse_while_held(snapshot)
    draft = Draft(snapshot, now, actor)
    order = _find(draft.orders, order_id, "order")
    state = order_after(order, OrderVerb.TAKE_OVER)
    if order.node != of:
        raise Refused(f"order {order_id} belongs to {order.node} now, not to {of}")
    taken_over = replace(order, state=state, node=node)
    late = order.taken is not None and 0 < order_timeout_s <= (_time_of(draft, order) - order.taken).total_seconds()
    if order.state is OrderState.IN_DOUBT and order.host and late and node == of:
        raise Refused(
            f"the work on host {order.host} goes on and has no result in time: it stays in doubt until it ends"
        )
    if order.state is OrderState.IN_DOUBT:
        taken_over = replace(taken_over, deadline=_deadline(_time_of(draft, order), order_timeout_s), reason="")
    draft.put_order(taken_over)
    _note_order(draft, "order taken over", order, f"attempt {order.attempt} by {node}, taken by {of}")
    return draft.change()


def _refuse_while_held(snapshot: Snapshot) -> None:
    if snapshot.store_hold is not None:
        raise StoreHeld(f"the store is held, and no order is handed out: {held_because(snapshot.store_hold)}")


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The end of an order, as an executor reports it, or that the executor cannot tell what became of it.

    `attempt` is the attempt that ended: a late report of an earlier attempt is refused. `node` is the reporting node,
    if given: a node whose order was taken over can no longer report it.
    """

    order_id: str
    attempt: int | None
    outcome: Outcome | Unknown
    node: str = ""


def report(snapshot: Snapshot, reports: Iterable[OrderReport], *, now: datetime, actor: Actor) -> Change:
    """Record the ends of orders in one change. A failed order, or one in doubt, leaves its event Started and visible."""
    draft = Draft(snapshot, now, actor)
    for order_report in reports:
        _report(draft, order_report)
    return draft.change()


def _report(draft: Draft, end: OrderReport) -> None:
    order_id, attempt, outcome = end.order_id, end.attempt, end.outcome
    order = _find(draft.orders, order_id, "order")
    if attempt is not None and attempt != order.attempt:
        raise Refused(f"order {order_id} is at attempt {order.attempt}: a report of attempt {attempt} no longer counts")
    if end.node and end.node != order.node:
        raise Refused(f"order {order_id} belongs to {order.node} now: a report of {end.node} no longer counts")
    if order.state is OrderState.PLANNED:
        raise IllegalTransition(f"order {order_id} is planned: no executor has it, and there is nothing to report")
    if isinstance(outcome, Unknown):
        _doubt(draft, order, outcome.reason)
    elif order.host:
        _report_host(draft, order, outcome)
    else:
        _report_event(draft, draft.events[order_id], order, outcome)


def _report_host(draft: Draft, order: Order, outcome: Outcome) -> None:
    if outcome.new_hosts:
        raise Invalid(f"order {order.id} is the order of a host: it moves no machine")
    if outcome.ok:
        finish_host(draft, order, reason=outcome.reason, output=outcome.output)
        _note_order(draft, "order finished", order, outcome.reason)
    else:
        detail = "\n".join(filter(None, [outcome.reason, outcome.output[-MAX_NOTED_OUTPUT:]]))
        fail_host(draft, replace(order, output=outcome.output), outcome.reason, detail)


def _report_event(draft: Draft, event: Event, order: Order, outcome: Outcome) -> None:
    require_legal(event, Verb.FINISH if outcome.ok else Verb.FAIL)
    if outcome.ok and order.phase is Phase.STOP:
        _machines_stopped(draft, event, replace(order, reason=outcome.reason, output=outcome.output))
        return
    state = order_after(order, OrderVerb.FINISH if outcome.ok else OrderVerb.FAIL)
    draft.put_order(
        replace(order, state=state, ended=draft.now_in(event.scope), reason=outcome.reason, output=outcome.output)
    )
    # Also of an order that failed: where its machines are now is a fact.
    _move_machines(draft, event, outcome.new_hosts or {})
    if not outcome.ok:
        # A later attempt overwrites the output of the order, so the audit keeps the end of this output.
        draft.note(
            "order failed",
            event=event,
            detail="\n".join(filter(None, [outcome.reason, outcome.output[-MAX_NOTED_OUTPUT:]])),
        )
        return
    draft.note("order finished", event=event, detail=outcome.reason)
    _complete(draft, event, outcome.reason)


def _machines_stopped(draft: Draft, event: Event, order: Order) -> None:
    """Record that the machines are shut down. The order waits, without a time limit, until it may start them again."""
    state = order_after(order, OrderVerb.STOP)
    draft.put_order(replace(order, state=state, phase=Phase.START, node="", deadline=None, ended=None))
    draft.note("machines stopped", event=event, detail=order.reason)


def _doubt(draft: Draft, order: Order, reason: str) -> None:
    """Put an order in doubt. It keeps the name of the node that has its work, and has no time limit."""
    state = order_after(order, OrderVerb.DOUBT)
    draft.put_order(replace(order, state=state, deadline=None, reason=reason))
    _note_order(draft, "order in doubt", order, f"attempt {order.attempt} by {order.node}: {reason}")


def _move_machines(draft: Draft, event: Event, new_hosts: Mapping[tuple[str, str], str]) -> None:
    for key, host in new_hosts.items():
        machine = draft.machines.get(key)
        if machine is None or key[0] != event.scope or key[1] not in event.resources:
            raise Invalid(f"new_hosts names {key[0]}/{key[1]}, which is not a machine of event {event.id}")
        draft.put_machine(replace(machine, host=host))


def _complete(draft: Draft, event: Event, reason: str) -> None:
    draft.put(replace(event, status=status_after(event, Verb.FINISH), ended=draft.now_in(event.scope), reason=reason))
    draft.note("event completed", event=draft.events[event.id])
    if EVENT_TYPES[event.type].removes_machines:
        for name in event.resources:
            draft.remove_machine((event.scope, name))
        remaining = {name for scope, name in draft.machines if scope == event.scope}
        for other in draft.events_in(event.scope):
            if other.status in UNSTARTED and remaining.isdisjoint(other.resources):
                cancel(draft, other, f"its machines were removed: {', '.join(other.resources)}")


# -- the ticker


def tick(snapshot: Snapshot, *, now: datetime, actor: Actor, order_timeout_s: int, new_id: Callable[[], str]) -> Change:
    """Advance each open maintenance that a tick can move and whose scopes are all in the snapshot.

    Wake the others that nothing in these scopes holds back: a tick with all their scopes decides.
    """
    draft = Draft(snapshot, now, actor)
    movable = [m.id for m in draft.maintenances.values() if m.ended is None and _can_move(draft, m)]
    within = {each: _lies_within(draft, each) for each in movable}
    advance(draft, [each for each in movable if within[each]], order_timeout_s, new_id)
    for maintenance_id in movable:
        if not within[maintenance_id]:
            wake_if_startable(draft, maintenance_id)
    return draft.change()


def _can_move(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether the maintenance is to be woken by now, has no published event, or has one that may wait for other events."""
    if maintenance.wake_at is not None and maintenance.wake_at <= draft.now:
        return True
    open_events = [event for event in draft.events_of(maintenance.id) if event.status in OPEN]
    unpublished = all(event.status is Status.PLANNED for event in open_events)
    return unpublished or any(draft.may_be_ready(event) for event in open_events)


def _lies_within(draft: Draft, maintenance_id: str) -> bool:
    maintenance = draft.maintenances[maintenance_id]
    host = current_host(draft, maintenance) if maintenance.host_mode is not None else None
    if host is not None and not is_read(draft, host):
        return False
    return all(e.scope in draft.scopes for e in draft.events_of(maintenance_id) if e.status in OPEN)


# -- enabling scopes


def enable(snapshot: Snapshot, scope: str, *, now: datetime, actor: Actor) -> Change:
    """Enable a scope at the first request of one of its guests: its epoch grows by one, its incarnation is 1 again."""
    draft = Draft(snapshot, now, actor)
    known = _find(draft.scopes, scope, "scope")
    if not known.enabled:
        draft.put_scope(replace(known, enabled=True, epoch=known.epoch + 1))
        draft.note("scope enabled", scope=scope)
    return draft.change()


def disable(snapshot: Snapshot, scope: str, *, now: datetime, actor: Actor) -> Change:
    """Disable a scope whose guests sent no request for a day. Published events keep their NotBefore."""
    draft = Draft(snapshot, now, actor)
    known = _find(draft.scopes, scope, "scope")
    if known.enabled and snapshot.hold is None:  # a held clock does not show whether a day has passed
        draft.put_scope(replace(known, enabled=False))
        draft.note("scope disabled", scope=scope)
    return draft.change()


def _find(things: Mapping[str, T], key: str, what: str) -> T:
    if key not in things:
        raise NotFound(f"there is no {what} {key}")
    return things[key]


def _open_maintenance(draft: Draft, maintenance_id: str) -> Maintenance:
    maintenance = _find(draft.maintenances, maintenance_id, "maintenance")
    if maintenance.ended is not None:
        raise Refused(f"maintenance {maintenance_id} has ended: it is {maintenance.status}")
    return maintenance
