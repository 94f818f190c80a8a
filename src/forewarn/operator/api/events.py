"""List and show events, approve or cancel them, and retry, finish or abandon one whose order failed or is in doubt."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.model import OPEN, EventType, Status
from forewarn.core.transitions import Verb
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import (
    MAX_SEARCH_CHARS,
    Api,
    CallContext,
    Number,
    Result,
    Searched,
    cursor_of,
    in_utc,
    page_of,
    read_cursor,
    search_text,
)
from forewarn.store import EventQuery, OpenWavesQuery

MAX_OPEN_WAVES = 100


class EventsQuery(Searched):
    """Which events; `host` names the machines that are on it now, `since` leaves out events that had ended by then."""

    status: tuple[Status, ...] = ()
    scope: str = ""
    machine: str = ""
    host: str = ""
    type: tuple[EventType, ...] = ()
    since: datetime | None = None
    maintenance: str = ""


class OpenWavesParameters(RequestBody):
    """Which open events; `host` names the machines that are on it now, `q` is a text to find."""

    status: tuple[Status, ...] = ()
    scope: str = ""
    host: str = ""
    type: tuple[EventType, ...] = ()
    q: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARS)] = ""


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
            host=query.host,
            maintenance_id=query.maintenance,
            statuses=query.status or tuple(Status),
            types=query.type or tuple(EventType),
            since=in_utc(query.since, "since"),
            text=query.text,
            within=context.caller.within,
            limit=query.limit,
            before=before[0] if before else None,
        )
    )
    next_cursor = cursor_of(page.next_before) if page.next_before is not None else None
    return page_of(api.event_bodies(context.caller, page.events), next_cursor)


def list_open_waves(api: Api, context: CallContext) -> Result:
    query = context.query
    waves, known = api.store.open_waves(
        OpenWavesQuery(
            scope=query.scope,
            host=query.host,
            statuses=query.status or tuple(OPEN),
            types=query.type or tuple(EventType),
            text=search_text(query.q),
            within=context.caller.within,
            limit=MAX_OPEN_WAVES + 1,
        )
    )
    counts = dict.fromkeys((Status.STARTED, Status.SCHEDULED, Status.PLANNED), 0) | known
    shown = [views.body_of(bodies.OpenWaveOut, wave) for wave in waves[:MAX_OPEN_WAVES]]
    return Result(200, bodies.OpenWavesOut(counts=counts, waves=shown, more=len(waves) > MAX_OPEN_WAVES))


def get_event(api: Api, context: CallContext) -> Result:
    return _result(api, context, api.event(context.caller, context.path["id"]).id)


def approve_event(api: Api, context: CallContext) -> Result:
    api.control.approve_event(context.path["id"], context.caller.actor)
    return _result(api, context, context.path["id"])


def cancel_event(api: Api, context: CallContext) -> Result:
    api.control.cancel_event(context.path["id"], context.caller.actor)
    return _result(api, context, context.path["id"])


def reschedule_event(api: Api, context: CallContext) -> Result:
    """Return the event that replaces the rescheduled one."""
    event = api.event(context.caller, context.path["id"])
    not_before = in_utc(context.body.not_before, "not_before")
    return _result(api, context, api.control.reschedule_event(event.id, not_before, context.caller.actor))


def resolve_failure(verb: Verb) -> Callable[[Api, CallContext], Result]:
    """Return the call that retries, finishes or abandons an event and returns it."""

    def call(api: Api, context: CallContext) -> Result:
        event = api.event(context.caller, context.path["id"])
        api.control.resolve_failure(event.id, verb, context.caller.actor)
        return _result(api, context, event.id)

    return call


def _result(api: Api, context: CallContext, event_id: str) -> Result:
    return Result(200, api.event_body(context.caller, event_id))
