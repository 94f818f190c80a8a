"""The verbs on the hosts of a maintenance: skip one, resolve its failed work, note why its order is not handed out."""

from datetime import datetime

from forewarn.core.advance import refresh
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import IllegalTransition, Invalid, NotFound, Refused
from forewarn.core.fast_init import replace
from forewarn.core.host_orders import OVER
from forewarn.core.host_work import DOWN_LIMIT_S, drop_host, finish_host, reissued
from forewarn.core.model import Actor, HostMode, Order, OrderState
from forewarn.core.transitions import OrderVerb, Verb
from forewarn.core.verb_steps import find, note_order, open_maintenance, refuse_not_empty, wake


def skip_host(snapshot: Snapshot, maintenance_id: str, host: str, *, now: datetime, actor: Actor) -> Change:
    """Leave one host out: its events that have not started and its work are cancelled. The host stays cordoned."""
    draft = Draft(snapshot, now, actor)
    open_maintenance(draft, maintenance_id)
    order = next((o for o in draft.host_orders_of(maintenance_id) if o.host == host), None)
    if order is None:
        raise NotFound(f"maintenance {maintenance_id} does not work on host {host!r}")
    if order.state is OrderState.CANCELLED:
        return draft.change()
    if order.state not in (OrderState.PLANNED, OrderState.OPEN):
        raise Refused(f"the work on host {host} is {order.state}: it can be skipped only before it is taken")
    drop_host(draft, order, OrderVerb.CANCEL, f"skipped by {actor.name}")
    refresh(draft, maintenance_id)
    wake(draft, maintenance_id)
    return draft.change()


def resolve_host(
    snapshot: Snapshot, order_id: str, verb: Verb, *, now: datetime, actor: Actor, order_timeout_s: int
) -> Change:
    """Retry, finish or abandon the work on a host that failed or is in doubt, as an operator decides."""
    draft = Draft(snapshot, now, actor)
    order = find(draft.orders, order_id, "order")
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
        retry_host(draft, order, order_timeout_s)
        return draft.change()
    draft.note(f"host {verb} by operator", maintenance_id=order.maintenance_id, detail=f"host {order.host}")
    if verb is Verb.FINISH:
        finish_host(draft, order, reason=f"finished by {actor.name}", output=order.output)
    elif verb is Verb.ABANDON:
        drop_host(draft, order, OrderVerb.ABANDON, f"abandoned by {actor.name}; it was {order.state}: {order.reason}")
    else:
        raise Invalid(f"a failed order can be resolved by retry, finish or abandon, not by {verb}")
    return draft.change()


def retry_host(draft: Draft, order: Order, order_timeout_s: int) -> None:
    in_place = draft.maintenances[order.maintenance_id].host_mode is HostMode.IN_PLACE
    if in_place and order.state is OrderState.FAILED:
        raise Refused(
            f"the work on host {order.host} cannot be retried while its machines run: finish or abandon its order, and"
            " submit a new maintenance"
        )
    refuse_not_empty(draft, order)
    draft.note(f"host {Verb.RETRY} by operator", maintenance_id=order.maintenance_id, detail=f"host {order.host}")
    draft.put_order(reissued(order, draft.now, order_timeout_s or (DOWN_LIMIT_S if in_place else 0)))


def note_host(snapshot: Snapshot, order_id: str, reason: str, *, now: datetime, actor: Actor) -> Change:
    """Record why the open order of a host is not handed out, or with "" that nothing is in its way any more."""
    draft = Draft(snapshot, now, actor)
    order = find(draft.orders, order_id, "order")
    if order.state is OrderState.OPEN and order.reason != reason:
        draft.put_order(replace(order, reason=reason))
        note_order(draft, "host waiting", order, reason or "nothing is in the way any more")
    return draft.change()
