"""List, show, take and report orders."""

from forewarn.core.errors import NotFound
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import OrderState
from forewarn.operator.api import bodies, views
from forewarn.operator.api.context import (
    Answer,
    Api,
    Ask,
    Moment,
    Paged,
    cursor_of,
    said_cursor,
    split_page,
    told_ok,
    told_page,
)
from forewarn.store import Focus, OrderQuery


class OrdersQuery(Paged):
    """Which orders; with a maintenance, all of its own that are in these states."""

    state: tuple[OrderState, ...] = ()
    maintenance: str = ""


def list_orders(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    if query.maintenance:
        return _orders_of(api, ask)
    found = api.store.orders_page(
        OrderQuery(
            states=query.state or tuple(OrderState),
            within=ask.who.within,
            before=said_cursor(query.cursor, tuple[Moment, str]),
            limit=limit + 1,
        )
    )
    page, last = split_page(found, limit)
    events = api.store.snapshot(Focus(events=tuple(o.id for o in page), whole=False, shown=True)).events
    told = [views.order_out(o, events[o.id]) for o in page if o.id in events]
    return told_page(told, cursor_of(last.issued, last.id) if last else None)


def _orders_of(api: Api, ask: Ask) -> Answer:
    """At most as many as a maintenance has events, in their order: one page."""
    snapshot = api.control.told(maintenances=[ask.query.maintenance])
    wanted = ask.query.state or tuple(OrderState)
    told = [
        views.order_out(order, event)
        for event in sorted(snapshot.events.values(), key=lambda e: e.position)
        if event.maintenance_id == ask.query.maintenance and ask.who.sees(event.scope)
        if (order := snapshot.orders.get(event.id)) is not None and order.state in wanted
    ]
    return told_page(told, None)


def get_order(api: Api, ask: Ask) -> Answer:
    return told_ok(_order_out(api, api.event(ask).id))


def start_order(api: Api, ask: Ask) -> Answer:
    order = api.control.take_order(ask.path["id"], ask.who.actor, node=ask.who.name)
    return told_ok(_order_out(api, order.id))


def finish_order(api: Api, ask: Ask) -> Answer:
    new_hosts = {api.machine_key(name): host for name, host in ask.body.new_hosts.items()}
    return _report(api, ask, Outcome(True, output=ask.body.output, new_hosts=new_hosts or None))


def fail_order(api: Api, ask: Ask) -> Answer:
    return _report(api, ask, Outcome(False, reason=ask.body.reason, output=ask.body.output))


def _report(api: Api, ask: Ask, outcome: Outcome) -> Answer:
    api.control.report_order(ask.path["id"], outcome, ask.who.actor, attempt=ask.body.attempt)
    return told_ok(_order_out(api, ask.path["id"]))


def _order_out(api: Api, order_id: str) -> bodies.OrderOut:
    event, order = api.control.event(order_id)
    if order is None:
        raise NotFound(f"there is no order {order_id}")
    return views.order_out(order, event)
