"""`forewarn event`: what scopes are told, why it has not moved, and an operator's word on it."""

from typing import Annotated

import typer

from forewarn.cli.client import path_of
from forewarn.cli.formatting import (
    Json,
    deed,
    missing,
    names,
    place,
    reasons,
    resolve_time,
    shortened,
    shown_time,
    span,
    when,
    why,
)
from forewarn.cli.live_events import watch_all, watch_one
from forewarn.cli.session import Cursor, Limit, Session, command, group, usage
from forewarn.core.errors import Invalid
from forewarn.core.model import EventType, Status

app = group("event", "What scopes are told, and what became of it.")

COLUMNS = ("event", "status", "type", "scope", "machines", "not before", "not approved by", "waits for")

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="The event's id, or 8 characters of its beginning or more.", show_default=False),
]


@command(app, "list")
def list_events(
    desk: Session,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only with this status; may be repeated.", case_sensitive=False)
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Only this scope's.")] = None,
    machine: Annotated[str | None, typer.Option(help="Only those of this machine, like shop/web-0.")] = None,
    type_: Annotated[EventType | None, typer.Option("--type", help="Only of this type.", case_sensitive=False)] = None,
    since: Annotated[
        str | None, typer.Option(help="Not those that had ended by then: a time, or -12h.", metavar="TIME")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """Open and ended events, newest first."""
    now = desk.now()
    query = {
        "status": [each.value for each in status or ()],
        "scope": scope,
        "type": type_.value if type_ else None,
        "since": resolve("--since", since, now),
    }
    if machine is not None:
        query["scope"], query["machine"] = desk.machine(machine)
    page = desk.listed("/v1/events", query, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    show_events(desk, page["items"], now)
    desk.more(page)


@command(app, "show")
def show(desk: Session, event: Id) -> None:
    """One event: what it is, what it waits for, and everything that happened to it."""
    show_event(desk, desk.api.get(path_of("events", desk.event_id(event))))


@command(app, "why")
def why_event(desk: Session, event: Id) -> None:
    """Say in one sentence why an event has not moved on, or what became of it."""
    found = desk.api.get(path_of("events", desk.event_id(event)))
    if desk.out.as_json:
        desk.out.json(found)
    else:
        desk.out.say(why(found, desk.now()))


@command(app, "watch")
def watch(
    desk: Session,
    event: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this event, until it has ended.", show_default=False)
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Only this scope's events.")] = None,
) -> None:
    """Show what happens as it happens: the open events on a terminal, a line per change elsewhere. Ctrl-C ends it."""
    if event is None:
        watch_all(desk, scope)
    else:
        watch_one(desk, desk.event_id(event))


@command(app, "approve")
def approve(desk: Session, event: Id) -> None:
    """Say go for every machine of it; it starts once nothing else is in its way."""
    _say(desk, event, "approve")


@command(app, "cancel")
def cancel(desk: Session, event: Id) -> None:
    """Call off an event that has not started; its wave no longer waits for it."""
    _say(desk, event, "cancel")


@command(app, "retry")
def retry(desk: Session, event: Id) -> None:
    """Hand out the order of an event again after it failed."""
    _say(desk, event, "retry")


@command(app, "finish")
def finish(desk: Session, event: Id) -> None:
    """Say that the work of a failed order was done after all."""
    _say(desk, event, "finish")


@command(app, "abandon")
def abandon(desk: Session, event: Id) -> None:
    """Give up an event whose order failed; the maintenance goes on, and ends as Failed."""
    _say(desk, event, "abandon")


def resolve(option: str, text: str | None, now: str) -> str | None:
    """A time of the command line as the API reads it; distances are from the service's own time."""
    if text is None:
        return None
    try:
        return resolve_time(text, now)
    except (Invalid, OverflowError) as error:
        raise usage(f"{option}: {error}") from None


def _say(desk: Session, event: str, verb: str) -> None:
    changed = desk.api.post(path_of("events", desk.event_id(event), verb))
    if desk.out.as_json:
        desk.out.json(changed)
    else:
        desk.out.say(why(changed, desk.now()))


def show_events(desk: Session, events: list[Json], now: str) -> None:
    short = shortened(event["id"] for event in events) if desk.out.terminal else {}
    rows = [
        (
            short.get(event["id"], event["id"]),
            event["status"],
            event["type"],
            place(event),
            names(event["resources"], most=1_000),
            when(event["not_before"], now) if event["status"] == "Scheduled" else shown_time(event["not_before"]),
            missing(event),
            reasons(event, now) or event["reason"],
        )
        for event in events
    ]
    desk.out.table(COLUMNS, rows, empty="no events")


def show_event(desk: Session, event: Json) -> None:
    if desk.out.as_json:
        desk.out.json(event)
        return
    now = desk.now()
    desk.out.facts(
        [
            ("event", event["id"]),
            ("status", event["status"]),
            ("type", f"{event['type']} by {event['source']}"),
            ("scope", f"{event['scope']}, update domain {event['update_domain']}"),
            ("machines", names(event["resources"], most=1_000)),
            ("maintenance", f"{event['maintenance_id']}, wave {event['wave']}"),
            ("description", event["description"]),
            ("duration", "unknown" if event["duration_s"] < 0 else span(event["duration_s"])),
            ("published", shown_time(event["published"])),
            ("not before", when(event["not_before"], now)),
            ("notice", "" if event["notice_s"] is None else span(event["notice_s"]) if event["notice_s"] else "none"),
            ("approved by", ", ".join(f"{a['who']} at {shown_time(a['when'])}" for a in event["approved_by"])),
            ("why", why(event, now)),
        ]
    )
    if event["timeline"]:
        desk.out.heading("what happened")
    for entry in event["timeline"]:
        head, *rest = (entry.get("detail") or "").split("\n")
        desk.out.say(
            f"{shown_time(entry['at'])}  {deed(entry['what'], entry.get('who', ''))}{': ' + head if head else ''}"
        )
        for line in rest:
            desk.out.say(f"                      | {line}")
