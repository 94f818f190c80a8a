"""The verbs of executors: they take an order, take over the order of a dead node, and report what became of orders."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import IllegalTransition, Invalid, Refused, StoreHeld
from forewarn.core.fast_init import fast_init, replace
from forewarn.core.host_work import fail_host, finish_host
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import UNSTARTED, Actor, Event, Order, OrderState, Phase
from forewarn.core.transitions import OrderVerb, Verb, order_after, require_legal
from forewarn.core.verb_steps import complete, find, machines_stopped, note_order, refuse_not_empty
from forewarn.core.waiting import held_because

MAX_NOTED_OUTPUT = 4_000


@fast_init
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


@fast_init
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


def take(snapshot: Snapshot, order_id: str, *, now: datetime, actor: Actor, node: str, order_timeout_s: int) -> Change:
    """Record that an executor takes an order, before it does any work. The time limit counts from now."""
    _refuse_while_held(snapshot)
    draft = Draft(snapshot, now, actor)
    order = find(draft.orders, order_id, "order")
    state = order_after(order, OrderVerb.TAKE)
    if order.host:
        refuse_not_empty(draft, order)
    now = _time_of(draft, order)
    deadline = _deadline(now, order_timeout_s)
    draft.put_order(replace(order, state=state, node=node, taken=now, deadline=deadline, reason=""))
    note_order(draft, "order taken", order, f"attempt {order.attempt} by {node}")
    return draft.change()


def take_over(
    snapshot: Snapshot, order_id: str, *, now: datetime, actor: Actor, node: str, of: str, order_timeout_s: int
) -> Change:
    """Let a node take over the order of a dead node: same order, same attempt, same deadline.

    An order in doubt is under way again, because the node knows its work. Its time limit counts from now. Late work on a host
    stays in doubt if the same node still does it: otherwise it would be in doubt again after each time limit.
    """
    _refuse_while_held(snapshot)
    draft = Draft(snapshot, now, actor)
    order = find(draft.orders, order_id, "order")
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
    note_order(draft, "order taken over", order, f"attempt {order.attempt} by {node}, taken by {of}")
    return draft.change()


def _refuse_while_held(snapshot: Snapshot) -> None:
    if snapshot.store_hold is not None:
        raise StoreHeld(f"the store is held, and no order is handed out: {held_because(snapshot.store_hold)}")


def _time_of(draft: Draft, order: Order) -> datetime:
    """Return the time of the scope of an order's event. The order of a host lies in no scope."""
    return draft.now if order.host else draft.now_in(draft.events[order.id].scope)


def _deadline(now: datetime, order_timeout_s: int) -> datetime | None:
    return now + timedelta(seconds=order_timeout_s) if order_timeout_s else None


def report(snapshot: Snapshot, reports: Iterable[OrderReport], *, now: datetime, actor: Actor) -> Change:
    """Record the ends of orders in one change. A failed order, or one in doubt, leaves its event Started and visible."""
    draft = Draft(snapshot, now, actor)
    for order_report in reports:
        _report(draft, order_report)
    return draft.change()


def _report(draft: Draft, end: OrderReport) -> None:
    order_id, attempt, outcome = end.order_id, end.attempt, end.outcome
    order = find(draft.orders, order_id, "order")
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
        note_order(draft, "order finished", order, outcome.reason)
    else:
        detail = "\n".join(filter(None, [outcome.reason, outcome.output[-MAX_NOTED_OUTPUT:]]))
        fail_host(draft, replace(order, output=outcome.output), outcome.reason, detail)


def _report_event(draft: Draft, event: Event, order: Order, outcome: Outcome) -> None:
    require_legal(event, Verb.FINISH if outcome.ok else Verb.FAIL)
    if outcome.ok and order.phase is Phase.STOP:
        machines_stopped(draft, event, replace(order, reason=outcome.reason, output=outcome.output))
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
    complete(draft, event, outcome.reason)


def _doubt(draft: Draft, order: Order, reason: str) -> None:
    """Put an order in doubt. It keeps the name of the node that has its work, and has no time limit."""
    state = order_after(order, OrderVerb.DOUBT)
    draft.put_order(replace(order, state=state, deadline=None, reason=reason))
    note_order(draft, "order in doubt", order, f"attempt {order.attempt} by {order.node}: {reason}")


def _move_machines(draft: Draft, event: Event, new_hosts: Mapping[tuple[str, str], str]) -> None:
    for key, host in new_hosts.items():
        machine = draft.machines.get(key)
        if machine is None or key[0] != event.scope or key[1] not in event.resources:
            raise Invalid(f"new_hosts names {key[0]}/{key[1]}, which is not a machine of event {event.id}")
        draft.put_machine(replace(machine, host=host))
    # A machine has the labels of its host: other no-go times may bind it now.
    moved = {name for _, name in new_hosts}
    for other in draft.events_in(event.scope):
        if other.status in UNSTARTED and not moved.isdisjoint(other.resources):
            draft.wake(other.maintenance_id)
