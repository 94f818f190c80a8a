"""The verbs: what operators, guests, executors and time do to events. Each is a function from a Snapshot to a Change.

A verb reads nothing but its arguments, saves nothing, and raises without having changed anything. Only `submit` and
`tick` publish and start (see advance); the other verbs record what happened and wake the maintenances it concerns.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forewarn.core.advance import advance, cancel, cancel_rest, issue, refresh
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import (
    IllegalTransition,
    Invalid,
    MachineBusy,
    NotFound,
    Refused,
    TooManyUserOperations,
)
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import (
    OPEN,
    UNSTARTED,
    Actor,
    Approval,
    ApprovalMode,
    Event,
    Maintenance,
    MaintenanceRequest,
    Order,
    Scope,
    Source,
    Status,
)
from forewarn.core.planning import plan
from forewarn.core.transitions import OrderVerb, Verb, after, order_after
from forewarn.core.waiting import order_failed

MAX_NOTED_OUTPUT = 4_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor reports of an order: its output, and what became of the machines."""

    ok: bool
    reason: str = ""
    output: str = ""
    new_hosts: Mapping[tuple[str, str], str] | None = None


# -- what operators and guests say


def submit(
    snapshot: Snapshot,
    request: MaintenanceRequest,
    *,
    now: datetime,
    actor: Actor,
    new_id: Callable[[], str],
    order_timeout_s: int,
) -> tuple[str, Change]:
    """A new maintenance: planned, its first wave published, and started where no notice is due."""
    draft = Draft(snapshot, now, actor)
    maintenance, events = plan(snapshot, request, now=now, created_by=actor.name, new_id=new_id)
    if request.emergency:
        _refuse_busy(draft, events)
    if request.source is Source.USER:
        _refuse_too_many(draft, events)
    draft.put_maintenance(maintenance)
    for event in events:
        draft.put(event)
    draft.note("maintenance submitted", maintenance_id=maintenance.id, detail=f"{request.type} by {request.source}")
    advance(draft, [maintenance.id], order_timeout_s)
    return maintenance.id, draft.change()


def _refuse_busy(draft: Draft, events: Iterable[Event]) -> None:
    for event in events:
        for other in draft.events_in(event.scope):
            taken = set(event.resources) & set(other.resources)
            if other.status is Status.STARTED and taken:
                raise MachineBusy(
                    f"{event.scope}/{min(taken)} is in event {other.id}, which has started: wait for its end"
                )


def _refuse_too_many(draft: Draft, events: Iterable[Event]) -> None:
    asked: dict[str, int] = {}
    for event in events:
        asked[event.scope] = asked.get(event.scope, 0) + 1
    for name, count in asked.items():
        limit = draft.scopes[name].max_user_operations
        opened = sum(e.source is Source.USER for e in draft.events_in(name))
        if limit and opened + count > limit:
            raise TooManyUserOperations(
                f"scope {name} allows {limit} user operations at once and {opened} are open: wait for one to end"
            )


def approve(
    snapshot: Snapshot, event_ids: Iterable[str], *, scope: str, machine: str, now: datetime, actor: Actor
) -> Change:
    """A guest's StartRequests: all of them or, if one id was never this scope's, none."""
    draft = Draft(snapshot, now, actor)
    found = []
    for event_id in dict.fromkeys(event_ids):
        event = draft.events.get(event_id)
        if event is None or event.scope != scope or event.published is None:
            raise Invalid(f"Bad request. EventId {event_id} is not an event of this machine's scope")
        after(event, Verb.APPROVE)
        found.append(event)
    for event in found:
        if event.status is Status.SCHEDULED and _counts(event, machine):
            _record_approval(draft, event, machine)
    return draft.change()


def _counts(event: Event, machine: str) -> bool:
    """Whether this machine's approval adds anything: "another machine's request is accepted and without effect"."""
    given = {a.machine for a in event.approvals}
    if event.approval is ApprovalMode.ALL:
        return machine in event.resources and machine not in given
    return event.approval is ApprovalMode.ANY and not given


def approve_as_operator(snapshot: Snapshot, event_id: str, *, now: datetime, actor: Actor) -> Change:
    """An operator's approval counts for all."""
    draft = Draft(snapshot, now, actor)
    event = _event(draft, event_id)
    after(event, Verb.APPROVE)
    if event.status is Status.SCHEDULED and all(a.machine for a in event.approvals):
        _record_approval(draft, event, "")
    return draft.change()


def _record_approval(draft: Draft, event: Event, machine: str) -> None:
    approval = Approval(
        event_id=event.id,
        machine=machine,
        who=draft.actor.name,
        at=draft.now_in(event.scope),
        origin=draft.actor.origin,
    )
    draft.approve(event, approval)
    draft.note("event approved", event=event)


def cancel_event(snapshot: Snapshot, event_id: str, *, now: datetime, actor: Actor, reason: str = "") -> Change:
    """End one event that has not started; its wave no longer waits for it, later waves go on."""
    draft = Draft(snapshot, now, actor)
    cancel(draft, _event(draft, event_id), reason or f"cancelled by {actor.name}")
    return draft.change()


def cancel_maintenance(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """End everything that has not started; a Started event runs to its end."""
    draft = Draft(snapshot, now, actor)
    maintenance = _open_maintenance(draft, maintenance_id)
    if maintenance.cancelled:
        return draft.change()
    draft.note("maintenance cancelled", maintenance_id=maintenance_id)
    cancel_rest(draft, maintenance, f"maintenance cancelled by {actor.name}")
    refresh(draft, maintenance_id)
    return draft.change()


def pause(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Hold publication and start of what has not started; NotBefore stays."""
    return _set_paused(snapshot, maintenance_id, True, now, actor)


def resume(snapshot: Snapshot, maintenance_id: str, *, now: datetime, actor: Actor) -> Change:
    """Let a paused maintenance go on, at once."""
    return _set_paused(snapshot, maintenance_id, False, now, actor)


def _set_paused(snapshot: Snapshot, maintenance_id: str, paused: bool, now: datetime, actor: Actor) -> Change:
    draft = Draft(snapshot, now, actor)
    maintenance = _open_maintenance(draft, maintenance_id)
    if maintenance.paused == paused:
        return draft.change()
    draft.note("maintenance paused" if paused else "maintenance resumed", maintenance_id=maintenance_id)
    draft.put_maintenance(replace(maintenance, paused=paused))
    refresh(draft, maintenance_id)
    resumed = draft.maintenances[maintenance_id]
    if not paused and resumed.ended is None:
        draft.put_maintenance(replace(resumed, wake_at=now))
    return draft.change()


def settle(
    snapshot: Snapshot, event_id: str, verb: Verb, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """An operator's word on an event whose order failed: retry, finish or abandon."""
    draft = Draft(snapshot, now, actor)
    event = _event(draft, event_id)
    status = after(event, verb)
    if verb not in (Verb.RETRY, Verb.FINISH, Verb.ABANDON):
        raise Invalid(f"an event is settled by retry, finish or abandon, not {verb}")
    if not order_failed(draft, event):
        raise IllegalTransition(
            f"the order of event {event_id} has not failed: let its executor finish, or report it failed first"
        )
    order = draft.orders[event_id]
    draft.note(f"event {verb} by operator", event=event)
    if verb is Verb.RETRY:
        draft.put_order(issue(draft, event, order_timeout_s, attempt=order.attempt + 1))
    elif verb is Verb.FINISH:
        draft.put_order(replace(order, state=order_after(order, OrderVerb.FINISH), ended=draft.now_in(event.scope)))
        _complete(draft, event, f"finished by {actor.name}")
    else:
        draft.put(replace(event, status=status, ended=draft.now_in(event.scope), reason=f"abandoned by {actor.name}"))
    return draft.change()


# -- what executors report


def take(snapshot: Snapshot, order_id: str, *, now: datetime, actor: Actor, node: str, order_timeout_s: int) -> Change:
    """An executor begins: saved before anything happens outside. Its time counts from here."""
    draft = Draft(snapshot, now, actor)
    order = _order(draft, order_id)
    event = draft.events[order_id]
    now = draft.now_in(event.scope)
    deadline = now + timedelta(seconds=order_timeout_s) if order_timeout_s else None
    state = order_after(order, OrderVerb.TAKE)
    draft.put_order(replace(order, state=state, node=node, taken=now, deadline=deadline))
    draft.note("order taken", event=event, detail=f"attempt {order.attempt} by {node}")
    return draft.change()


def take_over(snapshot: Snapshot, order_id: str, *, now: datetime, actor: Actor, node: str, of: str) -> Change:
    """Another executor goes on with what one began that is no longer there: same order, same attempt, same deadline."""
    draft = Draft(snapshot, now, actor)
    order = _order(draft, order_id)
    state = order_after(order, OrderVerb.TAKE_OVER)
    if order.node != of:
        raise Refused(f"order {order_id} is with {order.node} by now, not with {of}")
    draft.put_order(replace(order, state=state, node=node))
    detail = f"attempt {order.attempt} by {node}, begun by {of}"
    draft.note("order taken over", event=draft.events[order_id], detail=detail)
    return draft.change()


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The end of an order. `attempt` says which one it is about: a late word about the first is not the second's.

    `node` says who tells it, if given: one from whom the order was taken over cannot speak for whoever goes on with it.
    """

    order_id: str
    attempt: int | None
    outcome: Outcome
    node: str = ""


def report(snapshot: Snapshot, reports: Iterable[OrderReport], *, now: datetime, actor: Actor) -> Change:
    """Executors are done, one way or the other, all in one change. A failed order leaves its event Started and visible."""
    draft = Draft(snapshot, now, actor)
    for each in reports:
        _report(draft, each)
    return draft.change()


def _report(draft: Draft, told: OrderReport) -> None:
    order_id, attempt, outcome = told.order_id, told.attempt, told.outcome
    order = _order(draft, order_id)
    event = draft.events[order_id]
    if attempt is not None and attempt != order.attempt:
        raise Refused(f"order {order_id} is at attempt {order.attempt}: the end of attempt {attempt} no longer matters")
    if told.node and told.node != order.node:
        raise Refused(f"order {order_id} is with {order.node} by now: what {told.node} did of it no longer matters")
    after(event, Verb.FINISH if outcome.ok else Verb.FAIL)
    state = order_after(order, OrderVerb.FINISH if outcome.ok else OrderVerb.FAIL)
    draft.put_order(
        replace(order, state=state, ended=draft.now_in(event.scope), reason=outcome.reason, output=outcome.output)
    )
    if not outcome.ok:
        # The order will have another attempt's output one day: the end of this one is kept with the failure.
        texts = [outcome.reason, outcome.output[-MAX_NOTED_OUTPUT:]]
        draft.note("order failed", event=event, detail="\n".join(text for text in texts if text))
        return
    _move_machines(draft, event, outcome.new_hosts or {})
    draft.note("order finished", event=event, detail=outcome.reason)
    _complete(draft, event, outcome.reason)


def _move_machines(draft: Draft, event: Event, new_hosts: Mapping[tuple[str, str], str]) -> None:
    for key, host in new_hosts.items():
        machine = draft.machines.get(key)
        if machine is None or key[0] != event.scope or key[1] not in event.resources:
            raise Invalid(f"new_hosts names {key[0]}/{key[1]}, which is not a machine of event {event.id}")
        draft.put_machine(replace(machine, host=host))


def _complete(draft: Draft, event: Event, reason: str) -> None:
    draft.put(replace(event, status=after(event, Verb.FINISH), ended=draft.now_in(event.scope), reason=reason))
    draft.note("event completed", event=draft.events[event.id])
    if EVENT_TYPES[event.type].removes_machines:
        for name in event.resources:
            draft.remove_machine((event.scope, name))
        left = {name for scope, name in draft.machines if scope == event.scope}
        for other in draft.events_in(event.scope):
            if other.status in UNSTARTED and left.isdisjoint(other.resources):
                cancel(draft, other, f"nothing of it is left: {', '.join(other.resources)} terminated")


# -- what time brings


def tick(snapshot: Snapshot, *, now: datetime, actor: Actor, order_timeout_s: int) -> Change:
    """Everything that time, approvals and ended work allow, for each maintenance that lies wholly in the snapshot."""
    draft = Draft(snapshot, now, actor)
    whole = [m.id for m in draft.maintenances.values() if m.ended is None and _lies_within(draft, m.id)]
    advance(draft, whole, order_timeout_s)
    return draft.change()


def _lies_within(draft: Draft, maintenance_id: str) -> bool:
    return all(e.scope in draft.scopes for e in draft.events_of(maintenance_id) if e.status in OPEN)


# -- enabling


def enable(snapshot: Snapshot, scope: str, *, now: datetime, actor: Actor) -> Change:
    """The first request of a scope's guests: a new epoch, its incarnation begins again at 1."""
    draft = Draft(snapshot, now, actor)
    known = _scope(draft, scope)
    if not known.enabled:
        draft.put_scope(replace(known, enabled=True, epoch=known.epoch + 1))
        draft.note("scope enabled", scope=scope)
    return draft.change()


def disable(snapshot: Snapshot, scope: str, *, now: datetime, actor: Actor) -> Change:
    """Nobody asked for a day: no more notice until somebody does. What was published keeps its NotBefore."""
    draft = Draft(snapshot, now, actor)
    known = _scope(draft, scope)
    if known.enabled and snapshot.hold is None:  # whether it was a day a held clock cannot say
        draft.put_scope(replace(known, enabled=False))
        draft.note("scope disabled", scope=scope)
    return draft.change()


def _scope(draft: Draft, name: str) -> Scope:
    try:
        return draft.scopes[name]
    except KeyError:
        raise NotFound(f"there is no scope {name!r}") from None


def _event(draft: Draft, event_id: str) -> Event:
    try:
        return draft.events[event_id]
    except KeyError:
        raise NotFound(f"there is no event {event_id}") from None


def _order(draft: Draft, order_id: str) -> Order:
    try:
        return draft.orders[order_id]
    except KeyError:
        raise NotFound(f"there is no order {order_id}: an order bears the id of its started event") from None


def _open_maintenance(draft: Draft, maintenance_id: str) -> Maintenance:
    maintenance = draft.maintenances.get(maintenance_id)
    if maintenance is None:
        raise NotFound(f"there is no maintenance {maintenance_id}")
    if maintenance.ended is not None:
        raise Refused(f"maintenance {maintenance_id} is {maintenance.status}: it has ended")
    return maintenance
