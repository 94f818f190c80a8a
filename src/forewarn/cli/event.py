"""`forewarn event`: show events and why they wait, approve and cancel them, resolve those whose order failed or is in doubt."""

from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.formatting import full_time, missing_approvals, update_domain_name, waits_for, when, why
from forewarn.cli.hints import event_hints
from forewarn.cli.options import NewTime, moment
from forewarn.cli.output import Rows
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.errors import NotFound
from forewarn.core.formatting import action_by, span
from forewarn.core.model import EventType, Status

app = group(
    "event", "Show events and why they wait, approve and cancel them, resolve those whose order failed or is in doubt."
)

COLUMNS = ("event", "status", "type", "scope", "machines", "not before", "not approved by", "waits for")

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The event's id, or at least its first 8 characters.",
        show_default=False,
        autocompletion=completion.events,
    ),
]
Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Ids of events, or at least their first 8 characters.",
        show_default=False,
        autocompletion=completion.events,
    ),
]


@command(app, "list")
def list_events(
    session: Session,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only events with this status; may be repeated.", case_sensitive=False)
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="Only events of this scope.", autocompletion=completion.scopes)
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(help="Only events of this machine, like shop/web-0.", autocompletion=completion.machines),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Only events of machines that are on this host now.", autocompletion=completion.hosts),
    ] = None,
    type_: Annotated[
        EventType | None, typer.Option("--type", help="Only events of this type.", case_sensitive=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Leave out events that ended before this time; -12h also works.", metavar="TIME")
    ] = None,
    match: Match = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List open and ended events, newest first."""
    now = session.now()
    name = None
    if machine is not None:
        scope, name = session.machine(machine)
    query = {
        "status": [each.value for each in status or ()],
        "scope": scope,
        "machine": name,
        "host": host,
        "q": match,
        "type": type_.value if type_ else None,
        "since": moment("--since", since, now),
    }
    page = session.api.page("/v1/events", query, limit=limit, cursor=cursor)
    session.refuse_unknown(page, scope=scope, machine=name, host=host)
    session.show_page(page, COLUMNS, lambda events: _rows(session, events, now), empty="no events")


@command(app, "show")
def show(session: Session, event: Id) -> None:
    """Show an event, what it waits for, and its history."""
    show_event(session, _read(session, event))


@command(app, "why")
def why_event(session: Session, event: Id) -> None:
    """Print one sentence: why an event waits, or how it ended. Standard error says what you can do about it."""
    _print_sentence(session, _read(session, event))


def _read(session: Session, event: str) -> Json:
    """Return an event. For the id of a host's order, raise an error with the command that shows the order."""
    try:
        return session.api.get(session.path_to("event", event))  # type: ignore[no-any-return]
    except (Failed, NotFound) as error:
        try:
            order = session.api.get(session.path_to("order", event))
        except (Failed, NotFound):
            raise error from None
        raise Failed(
            f"{order['id']} is the work on host {order['host']}, not an event: run `forewarn order show {order['id']}`"
        ) from None


@command(app, "watch")
def watch(
    session: Session,
    event: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Only this event, until it has ended.",
            show_default=False,
            autocompletion=completion.events,
        ),
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="Only events of this scope.", autocompletion=completion.scopes)
    ] = None,
) -> None:
    """Show changes as they happen: the open events on a terminal, a line per change elsewhere. Ctrl-C ends it."""
    from forewarn.cli.live_events import watch_all, watch_one

    if event is None:
        if scope is not None:
            session.api.get(path_of("scopes", scope))  # refuses a scope that does not exist
        watch_all(session, scope)
    else:
        watch_one(session, session.id_of("event", event))


@command(app, "approve")
def approve(session: Session, event: Id) -> None:
    """Approve an event for all its machines; it starts once it waits for nothing else."""
    approved = session.api.post(session.path_to("event", event, "approve"))
    if not session.out.as_json:
        session.out.say(f"event {approved['id']} is approved")
    _print_sentence(session, approved)


@command(app, "cancel")
def cancel(session: Session, event: Id) -> None:
    """Cancel an event that has not started; its wave no longer waits for it."""
    _apply(session, event, "cancel")


@command(app, "reschedule")
def reschedule(session: Session, event: Id, not_before: NewTime) -> None:
    """Move an event that has not started to another time.

    The event is cancelled and planned again under a new id, after other waves. Approvals are not kept. Guests see the
    new event when its notice begins, and it never starts before the new time. The event of a host moves with its host: see
    `maintenance reschedule-host`.
    """
    body = {"not_before": moment("--not-before", not_before, session.now())}
    moved = session.api.post(session.path_to("event", event, "reschedule"), body)
    if not session.out.as_json:
        start = when(moved["requested_not_before"], session.now())
        session.out.say(f"event {moved['id']} replaces event {moved['replaces']}, and starts at {start} or later")
    _print_sentence(session, moved)


@command(app, "retry")
def retry(session: Session, event: Id) -> None:
    """Retry an order that failed or is in doubt, as a new attempt."""
    _apply(session, event, "retry")


@command(app, "finish")
def finish(session: Session, event: Id) -> None:
    """Complete an event whose order failed or is in doubt, because its work was done after all."""
    _apply(session, event, "finish")


@command(app, "abandon")
def abandon(session: Session, events: Ids) -> None:
    """Abandon events whose order failed or is in doubt; their maintenance continues and ends as Failed."""
    for event in events:
        _apply(session, event, "abandon")


def _apply(session: Session, event: str, verb: str) -> None:
    _print_sentence(session, session.api.post(session.path_to("event", event, verb)))


def _print_sentence(session: Session, event: Json) -> None:
    """Print one sentence about the event, and as remarks what the caller can do about it."""
    if session.out.as_json:
        session.out.json(event)
        return
    session.out.say(why(event, session.now()))
    for line in _hints(session, event):
        session.out.aside(line)


def _hints(session: Session, event: Json) -> list[str]:
    """Return what the caller can do about an event. Only its maintenance says how many of several causes are failures."""
    failed = 0
    if any(
        reason["code"] in ("unresolved", "failures") and len(reason.get("events", ())) > 1
        for reason in event["waiting_for"]
    ):
        maintenance = session.api.get(path_of("maintenances", event["maintenance_id"]), {"limit": 0})
        failed = maintenance["progress"]["failed"]
    return event_hints(event, session.role, failed)


def _rows(session: Session, events: list[Json], now: str) -> Rows:
    id_texts = session.out.id_texts(event["id"] for event in events)
    return [
        (
            id_texts[event["id"]],
            event["status"],
            event["type"],
            update_domain_name(event),
            ", ".join(event["resources"]),
            when(event["not_before"], now) if event["status"] == "Scheduled" else full_time(event["not_before"]),
            missing_approvals(event),
            waits_for(event, now),
        )
        for event in events
    ]


def show_event(session: Session, event: Json) -> None:
    if session.out.as_json:
        session.out.json(event)
        return
    now = session.now()
    notice_s = event["notice_s"]
    session.out.facts(
        event,
        [
            ("event", event["id"]),
            ("status", event["status"]),
            ("type", f"{event['type']} by {event['source']}"),
            ("scope", f"{event['scope']}, update domain {event['update_domain']}"),
            ("machines", ", ".join(event["resources"])),
            ("maintenance", f"{event['maintenance_id']}, wave {event['wave']}"),
            *((key.replace("_", " "), event[key]) for key in ("replaces", "replaced_by") if event[key]),
            *([("rescheduled to", when(moved_to, now))] if (moved_to := event["requested_not_before"]) else []),
            ("description", event["description"]),
            ("duration", "unknown" if event["duration_s"] < 0 else span(event["duration_s"])),
            ("published", full_time(event["published"])),
            ("not before", when(event["not_before"], now)),
            ("notice", "" if notice_s is None else span(notice_s) if notice_s else "none"),
            ("approved by", ", ".join(f"{a['who']} at {full_time(a['when'])}" for a in event["approved_by"])),
            ("why", why(event, now)),
            *(("to do", line) for line in _hints(session, event)),
        ],
    )
    if event["timeline"]:
        session.out.heading("history")
    for entry in event["timeline"]:
        first, *rest = (entry.get("detail") or "").rstrip("\n").split("\n")
        action = action_by(entry["what"], entry.get("who", ""))
        session.out.say(f"{full_time(entry['at'])}  {action}{': ' + first if first else ''}")
        for line in rest:
            session.out.say(f"                      | {line}")
