"""Live views of events: the open events on a terminal, a line per change elsewhere, JSON lines for programs."""

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from forewarn.cli import live
from forewarn.cli.api import Json, path_of
from forewarn.cli.audit import line
from forewarn.cli.change_stream import Changes
from forewarn.cli.formatting import distance, full_time, reasons, update_domain_name, why
from forewarn.cli.output import rich_table
from forewarn.cli.session import Session
from forewarn.core.formatting import SHORT_ID_CHARS, count, names, printable
from forewarn.core.model import ENDED

COLUMNS = ("event", "status", "type", "scope", "machines", "not before", "waits for")
MAX_EVENTS = 30
MAX_CHANGES = 8
POLL_S = 1.0


def watch_all(session: Session, scope: str | None) -> None:
    """Show all events, or those of a scope, until Ctrl-C."""
    try:
        if session.out.terminal and not session.out.as_json:
            _watch_on_terminal(session, scope)
        else:
            _print_changes(session, scope)
    except KeyboardInterrupt:
        return


def _concerns(change: Json, scope: str | None) -> bool:
    return bool(change["event_id"] or change["maintenance_id"]) and scope in (None, change["scope"])


def _print_changes(session: Session, scope: str | None) -> None:
    with Changes(session.api) as changes:
        if not session.out.as_json:
            session.out.aside(f"watching {session.api.server.url}")
        while True:
            change = changes.next(POLL_S)
            if change is None or not _concerns(change, scope):
                continue
            if session.out.as_json:
                session.out.json(change, line=True)
            else:
                session.out.say(line(change))


def _watch_on_terminal(session: Session, scope: str | None) -> None:
    recent: list[Json] = []

    def concerns(change: Json) -> bool:
        if not _concerns(change, scope):
            return False
        recent.append(change)
        del recent[:-MAX_CHANGES]
        return True

    with Live(console=session.out.console, auto_refresh=False) as screen:
        live.follow(
            session,
            "/v1/events",
            lambda _, page: screen.update(picture(page, recent, session.now()), refresh=True),
            lambda _: False,
            query={"status": ("Scheduled", "Started"), "scope": scope, "limit": MAX_EVENTS},
            concerns=concerns,
        )


def picture(page: Json, recent: list[Json], now: str) -> RenderableType:
    """Return a page of open events and the most recent changes for a terminal."""
    rows = [
        (
            event["id"][:SHORT_ID_CHARS],
            event["status"],
            event["type"],
            update_domain_name(event),
            names(event["resources"]),
            distance(event["not_before"], now) if event["status"] == "Scheduled" else "",
            reasons(event, now),
        )
        for event in page["items"]
    ]
    more = " and more" if page["next_cursor"] else ""
    head = Text(f"{full_time(now)}  {count(len(rows), 'open event')}{more}", style="bold")
    changes = [Text(printable(line(change)), style="dim") for change in recent]
    return Group(head, rich_table(COLUMNS, rows) if rows else Text("no open events"), *changes)


def watch_one(session: Session, event_id: str) -> None:
    """Print the sentence about an event each time it changes, until the event has ended."""

    def show(before: Json | None, event: Json) -> None:
        if before is not None and _state(before) == _state(event):
            return
        if session.out.as_json:
            session.out.json(event, line=True)
        else:
            session.out.say(why(event, session.now()))

    # Changes of other events concern it too: it may wait for them.
    live.follow(session, path_of("events", event_id), show, lambda event: event["status"] in ENDED)


def _state(event: Json) -> object:
    """Return what makes an event worth printing again; the passing of time does not."""
    waits = [(reason["code"], reason["message"]) for reason in event["waiting_for"]]
    return event["status"], event["approved_by"], waits
