"""Maintenances, their events and the orders these become: planned, watched, settled, carried out."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.change import Snapshot
from forewarn.core.errors import Forbidden, NotFound
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import (
    Actor,
    ApprovalMode,
    Event,
    EventType,
    MaintenanceRequest,
    MaintenanceStatus,
    OrderState,
    Role,
    Source,
    Status,
)
from forewarn.core.transitions import Verb
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import Asking
from forewarn.operator.api.bodies import Said
from forewarn.operator.api.context import (
    Answer,
    Api,
    Ask,
    Moment,
    Number,
    Paged,
    cursor_of,
    in_utc,
    said_cursor,
    split_page,
    told_ok,
    told_page,
)
from forewarn.service.control import Control
from forewarn.store import (
    EventQuery,
    Focus,
    MaintenanceQuery,
    OrderQuery,
)

# -- maintenances


class MaintenancesQuery(Paged):
    """Which maintenances."""

    status: tuple[MaintenanceStatus, ...] = ()


def post_maintenance(api: Api, ask: Ask) -> Answer:
    said: bodies.MaintenanceIn = ask.body
    request = MaintenanceRequest(
        type=said.type,
        targets=api.targets(said.targets),
        source=said.source,
        not_before=in_utc(said.not_before, "not_before"),
        earliest=in_utc(said.earliest, "earliest"),
        duration_s=said.duration_s,
        description=said.description,
        emergency=said.emergency,
        on_failure=said.on_failure,
    )
    if ask.query.dry_run:
        return told_ok(api.told_plan(ask, request))
    told: list[bytes] = []

    def answer(maintenance_id: str, snapshot: Snapshot) -> tuple[int, str]:
        told.append(msgspec.json.encode(api.told_maintenance(ask, maintenance_id, snapshot)))
        return 201, told[-1].decode()

    api.control.submit(request, ask.who.actor, once=ask.once, answer=answer)
    return Answer(201, told[-1])


def list_maintenances(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    found = api.store.maintenances(
        MaintenanceQuery(
            statuses=query.status or tuple(MaintenanceStatus),
            within=ask.who.within,
            before=said_cursor(query.cursor, tuple[Moment, str]),
            limit=limit + 1,
        )
    )
    page, last = split_page(found, limit)
    return told_page(map(views.maintenance_row, page), cursor_of(last.created, last.id) if last else None)


class PartQuery(Said):
    """Of its events, `limit` after the first `skip`; by default all."""

    skip: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


def get_maintenance(api: Api, ask: Ask) -> Answer:
    skip, limit = ask.query.skip, ask.query.limit
    part = slice(skip, None if limit is None else skip + limit)
    return told_ok(api.told_maintenance(ask, ask.path["id"], part=part))


def maintenance_verb(do: Callable[[Control, str, Actor], None]) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        do(api.control, ask.path["id"], ask.who.actor)
        return told_ok(api.told_maintenance(ask, ask.path["id"]))

    return call


# -- events


class EventsQuery(Paged):
    """Which events; `since` leaves out those that had ended by then."""

    status: tuple[Status, ...] = ()
    scope: str = ""
    machine: str = ""
    type: tuple[EventType, ...] = ()
    since: datetime | None = None
    maintenance: str = ""


def list_events(api: Api, ask: Ask) -> Answer:
    query = ask.query
    before = said_cursor(query.cursor, tuple[Number])
    scope, machine = query.scope, query.machine
    if "/" in machine and not scope:
        scope, _, machine = machine.partition("/")
    page = api.store.events(
        EventQuery(
            scope=scope,
            machine=machine,
            maintenance_id=query.maintenance,
            statuses=query.status or tuple(Status),
            types=query.type or tuple(EventType),
            since=in_utc(query.since, "since"),
            within=ask.who.within,
            limit=query.limit,
            before=before[0] if before else None,
        )
    )
    next_cursor = cursor_of(page.next_before) if page.next_before is not None else None
    return told_page(api.told_events(ask, page.events), next_cursor)


def get_event(api: Api, ask: Ask) -> Answer:
    return told_ok(api.told_event(ask, api.event(ask).id))


def not_to_approve(who: Asking, event: Event) -> str:
    """Why it is not theirs to approve, or ""."""
    if who.role is Role.OWNER and event.approval is ApprovalMode.OPERATOR:
        return f"event {event.id} is approved by operators alone: its scope has approval = operator"
    return ""


def not_to_cancel(who: Asking, event: Event) -> str:
    """Why it is not theirs to cancel, or ""."""
    if who.role is Role.OWNER and event.source is not Source.USER:
        return f"event {event.id} is the platform's: an owner cancels user events only"
    return ""


def approve_event(api: Api, ask: Ask) -> Answer:
    event = api.event(ask)
    if why := not_to_approve(ask.who, event):
        raise Forbidden(why)
    api.control.approve_event(event.id, ask.who.actor)
    return told_ok(api.told_event(ask, event.id))


def cancel_event(api: Api, ask: Ask) -> Answer:
    event = api.event(ask)
    if why := not_to_cancel(ask.who, event):
        raise Forbidden(why)
    api.control.cancel_event(event.id, ask.who.actor)
    return told_ok(api.told_event(ask, event.id))


def settle(verb: Verb) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        event = api.event(ask)
        api.control.settle_event(event.id, verb, ask.who.actor)
        return told_ok(api.told_event(ask, event.id))

    return call


# -- orders


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
