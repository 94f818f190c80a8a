"""List and show events, approve or cancel them, and decide what becomes of one whose order failed."""

from collections.abc import Callable
from datetime import datetime

from forewarn.core.errors import Forbidden
from forewarn.core.model import ApprovalMode, Event, EventType, Role, Source, Status
from forewarn.core.transitions import Verb
from forewarn.operator.api.access import Asking
from forewarn.operator.api.context import (
    Answer,
    Api,
    Ask,
    Number,
    Paged,
    cursor_of,
    in_utc,
    said_cursor,
    told_ok,
    told_page,
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
