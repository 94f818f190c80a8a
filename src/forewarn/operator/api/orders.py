"""List, show, take and report orders."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.errors import NotFound, Refused
from forewarn.core.model import Event, Maintenance, Order, OrderState, Status
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.operator.api import bodies, views
from forewarn.operator.api.context import (
    DEFAULT_LIMIT,
    Api,
    CallContext,
    Moment,
    Number,
    Result,
    Searched,
    cursor_of,
    page_of,
    read_cursor,
    searched,
)
from forewarn.service.placement import FleetHosts, no_target
from forewarn.store import Focus, OrderQuery, folded

Key = tuple[datetime, str]


class OrdersQuery(Searched):
    """Which orders. Without a limit, a page has 50 of them, or all orders of the maintenance.

    With a state, orders of abandoned events are left out: they failed, and nothing is left to do about them.
    """

    state: tuple[OrderState, ...] = ()
    maintenance: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] | None = None  # type: ignore[assignment]


def list_orders(api: Api, context: CallContext) -> Result:
    query = context.query
    if query.maintenance:
        return _orders_of_maintenance(api, context)
    states = _offered(api, query.state)

    def read(before: Key | None, limit: int) -> list[tuple[Key, bodies.OrderOut | None]]:
        page = api.store.orders_page(
            OrderQuery(
                states=states, abandoned=not query.state, within=context.caller.within, before=before, limit=limit
            )
        )
        events = api.store.snapshot(
            Focus(events=tuple(o.id for o in page), whole_maintenances=False, open_events=False, document_only=True)
        ).events
        of: dict[str, Event | Maintenance] = {**events, **_maintenances(api, page)}
        # An order whose event or maintenance was removed meanwhile still counts as read.
        return [((o.issued, o.id), views.order_out(o, of[o.id]) if o.id in of else None) for o in page]

    start = read_cursor(query.cursor, tuple[Moment, str])
    items, last = searched(read, _text, text=query.text, start=start, limit=query.limit or DEFAULT_LIMIT)
    found = [item for item in items if item is not None]
    return page_of(_with_hosts(api, found), cursor_of(*last) if last else None)


def _maintenances(api: Api, orders: Iterable[Order]) -> dict[str, Maintenance]:
    """Return the maintenances of those orders that are orders of hosts, by order."""
    of_hosts = {order.id: order.maintenance_id for order in orders if order.host}
    found = {each: api.store.maintenance(each) for each in set(of_hosts.values())}
    return {order_id: known for order_id, each in of_hosts.items() if (known := found[each]) is not None}


def _text(order: bodies.OrderOut | None) -> str:
    """Return the text that a search looks through for an order."""
    if order is None:
        return ""
    return "\n".join((order.id, order.type, order.reason, order.node, order.host, *order.machines))


def _orders_of_maintenance(api: Api, context: CallContext) -> Result:
    """Return a page: the orders of events, then those of hosts. The cursor is the number of orders before it."""
    query, text, caller = context.query, context.query.text, context.caller
    snapshot = api.snapshots.around(maintenances=[query.maintenance])
    states = _offered(api, query.state)
    items = [
        views.order_out(order, event)
        for event in sorted(snapshot.events.values(), key=lambda e: e.position)
        if event.maintenance_id == query.maintenance
        and caller.sees(event.scope)
        and not (query.state and event.status is Status.ABANDONED)
        if (order := snapshot.orders.get(event.id)) is not None and order.state in states
    ]
    maintenance = snapshot.maintenances.get(query.maintenance)
    items += [
        views.order_out(order, maintenance)
        for order in sorted(snapshot.orders.values(), key=lambda o: o.position)
        if maintenance is not None
        and caller.within is None
        and order.host
        and order.maintenance_id == query.maintenance
        and order.state in states
    ]
    (begin,) = read_cursor(query.cursor, tuple[Number]) or (0,)
    found = [item for item in items if text in folded(_text(item))][begin:]
    page = found[: query.limit]
    return page_of(_with_hosts(api, page), cursor_of(begin + len(page)) if len(page) < len(found) else None)


def _with_hosts(api: Api, orders: list[bodies.OrderOut]) -> list[bodies.OrderOut]:
    """Add the hosts of their machines to orders."""
    keys = {name: api.machine_key(name) for order in orders for name in order.machines}
    focus = Focus(machines=tuple(keys.values()), whole_maintenances=False, open_events=False, document_only=True)
    machines = api.store.snapshot(focus).machines if keys else {}
    for order in orders:
        found = (machines.get(keys[name]) for name in order.machines)
        on = {machine.host for machine in found if machine is not None and machine.host}
        order.hosts = sorted(on) if not order.host else [order.host]
    return orders


def _offered(api: Api, states: tuple[OrderState, ...]) -> tuple[OrderState, ...]:
    """Return the states to list, all by default. Leave out open orders while the store is held: programs begin open orders."""
    held = api.control.store_hold() is not None
    return tuple(state for state in states or OrderState if not (held and state is OrderState.OPEN))


def get_order(api: Api, context: CallContext) -> Result:
    return _result(api, context, context.path["id"])


def start_order(api: Api, context: CallContext) -> Result:
    _, _, event = api.control.order(context.path["id"])
    if event is not None and (why := no_target(api.store, event)):
        raise Refused(why)
    order = api.control.take_order(context.path["id"], context.caller.actor, node=context.caller.name)
    return _result(api, context, order.id)


def finish_order(api: Api, context: CallContext) -> Result:
    order, _, _ = api.control.order(context.path["id"])
    if order.host and order.state is OrderState.OPEN:
        # Taking it checks that the host is empty.
        raise Refused(f"the order of host {order.host} is not taken yet: start the order first, then do the work")
    new_hosts = {api.machine_key(name): host for name, host in context.body.new_hosts.items()}
    return _report(api, context, Outcome(True, output=context.body.output, new_hosts=new_hosts or None))


def fail_order(api: Api, context: CallContext) -> Result:
    return _report(api, context, Outcome(False, reason=context.body.reason, output=context.body.output))


def resolve_host(verb: Verb) -> Callable[[Api, CallContext], Result]:
    """Return the call that retries or abandons the work on a host."""

    def call(api: Api, context: CallContext) -> Result:
        api.control.resolve_host(context.path["id"], verb, context.caller.actor)
        return _result(api, context, context.path["id"])

    return call


def _report(api: Api, context: CallContext, outcome: Outcome) -> Result:
    order_id = context.path["id"]
    api.control.report_order(order_id, outcome, context.caller.actor, attempt=context.body.attempt)
    return _result(api, context, order_id)


def _result(api: Api, context: CallContext, order_id: str) -> Result:
    order, maintenance, event = api.control.order(order_id)
    if not context.caller.sees(event.scope if event is not None else ""):
        raise NotFound(f"there is no order {order_id}")
    (body,) = _with_hosts(api, [views.order_out(order, event or maintenance)])
    if event is not None and context.caller.within is None and order.ended is None:
        targets = FleetHosts(api.store).targets(event)
        body.targets = {f"{event.scope}/{name}": list(hosts) for name, hosts in targets.items()}
    return Result(200, body)
