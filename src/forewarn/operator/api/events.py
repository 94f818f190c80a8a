"""List and show events, approve or cancel them, and decide what becomes of one whose order failed."""

from collections.abc import Callable
from datetime import datetime

from forewarn.core.errors import Forbidden
from forewarn.core.model import ApprovalMode, Event, EventType, Role, Source, Status
from forewarn.core.transitions import Verb
from forewarn.operator.api.access import Identity
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Number,
    Paged,
    Result,
    cursor_of,
    in_utc,
    ok,
    page_of,
    read_cursor,
)
from forewarn.store import EventQuery


class EventsQuery(Paged):
    """Which events; `since` leaves out those that had ended by then."""

    status: tuple[Status, ...] = ()
    scope: str = ""
    machine: str = ""
    type: tuple[EventType, ...] = ()
    since: datetime | None = None
    maintenance: str = ""


def list_events(api: Api, context: CallContext) -> Result:
    query = context.query
    before = read_cursor(query.cursor, tuple[Number])
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
            within=context.caller.within,
            limit=query.limit,
            before=before[0] if before else None,
        )
    )
    next_cursor = cursor_of(page.next_before) if page.next_before is not None else None
    return page_of(api.event_bodies(context, page.events), next_cursor)


def get_event(api: Api, context: CallContext) -> Result:
    return ok(api.event_body(context, api.event(context).id))


def not_to_approve(who: Identity, event: Event) -> str:
    """Why it is not theirs to approve, or ""."""
    if who.role is Role.OWNER and event.approval is ApprovalMode.OPERATOR:
        return f"event {event.id} is approved by operators alone: its scope has approval = operator"
    return ""


def not_to_cancel(who: Identity, event: Event) -> str:
    """Why it is not theirs to cancel, or ""."""
    if who.role is Role.OWNER and event.source is not Source.USER:
        return f"event {event.id} is the platform's: an owner cancels user events only"
    return ""


def approve_event(api: Api, context: CallContext) -> Result:
    event = api.event(context)
    if why := not_to_approve(context.caller, event):
        raise Forbidden(why)
    api.control.approve_event(event.id, context.caller.actor)
    return ok(api.event_body(context, event.id))


def cancel_event(api: Api, context: CallContext) -> Result:
    event = api.event(context)
    if why := not_to_cancel(context.caller, event):
        raise Forbidden(why)
    api.control.cancel_event(event.id, context.caller.actor)
    return ok(api.event_body(context, event.id))


def settle(verb: Verb) -> Callable[[Api, CallContext], Result]:
    def call(api: Api, context: CallContext) -> Result:
        event = api.event(context)
        api.control.settle_event(event.id, verb, context.caller.actor)
        return ok(api.event_body(context, event.id))

    return call
