"""`forewarn status`: failed, doubtful, started, scheduled and paused work on one screen, and why events wait."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from forewarn.cli.client import Json
from forewarn.cli.formatting import (
    distance,
    full_time,
    missing_approvals,
    order_doubt,
    order_failure,
    reasons,
    unresolved,
    update_domain_name,
    when,
)
from forewarn.cli.session import Session
from forewarn.core.formatting import SHORT_ID_CHARS, iso, names
from forewarn.core.model import ENDED

MAX_ITEMS = 500
HISTORY = timedelta(hours=24)
EVENT_COLUMNS = ("event", "type", "scope", "machines")

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def read(session: Session) -> Json:
    """Return everything that the command shows; with --json this is the output."""
    api, clock = session.api, session.api.get("/v1/clock")
    since = iso(datetime.fromisoformat(clock["now"]) - HISTORY)
    return {
        "server": api.server.url,
        "clock": clock,
        "store": api.get("/v1/store"),
        "complaints": api.failed_checks(),
        "open": api.page("/v1/events", {"status": ["Scheduled", "Started"]}, limit=MAX_ITEMS),
        "planned": api.page("/v1/events", {"status": ["Planned"]}, limit=MAX_ITEMS),
        "ended": api.page("/v1/events", {"status": sorted(ENDED), "since": since}, limit=MAX_ITEMS),
        "paused": api.page("/v1/maintenances", {"status": ["Paused"]}, limit=MAX_ITEMS),
    }


def status(session: Session) -> None:
    """Show what failed, what is in doubt, what is in progress, what is scheduled, who has not approved, and why events wait."""
    state = read(session)
    if session.out.as_json:
        session.out.json(state)
        return
    for line in headline(state):
        session.out.say(line)
    now = state["clock"]["now"]
    events = state["open"]["items"]
    failed = [event for event in events if order_failure(event)]
    doubtful = [event for event in events if order_doubt(event)]
    started = [event for event in events if event["status"] == "Started" and not unresolved(event)]
    scheduled = [event for event in events if event["status"] == "Scheduled"]
    abandoned = [event for event in state["ended"]["items"] if event["status"] == "Abandoned"]
    paused = state["paused"]["items"]
    ids = session.out.id_texts(each["id"] for key in ("open", "ended", "paused") for each in state[key]["items"])
    _section(session, "FAILED: use `forewarn event retry`, `finish` or `abandon`", _failed(failed, ids))
    _section(
        session,
        "IN DOUBT: check the machines, then use `forewarn event retry`, `finish` or `abandon`",
        _failed(doubtful, ids),
    )
    _section(session, "IN PROGRESS", _started(started, ids, now))
    _section(session, "SCHEDULED", _scheduled(scheduled, ids, now))
    _section(session, "PAUSED MAINTENANCES", _paused(paused, ids, {event["maintenance_id"] for event in failed}))
    _section(session, "ABANDONED IN THE LAST 24 HOURS", _failed(abandoned, ids))


def headline(state: Json) -> list[str]:
    """Return the server, the problems of the service itself, and the numbers of events."""
    events, ended = state["open"]["items"], state["ended"]["items"]
    open_counts = Counter(_kind(event) for event in events)
    ended_counts = Counter(event["status"].lower() for event in ended)
    unapproved = sum(bool(missing_approvals(event)) for event in events)
    planned = len(state["planned"]["items"])
    problems = [f"NOT READY: {check}: {message}" for check, message in state["complaints"].items()]
    if held := state["clock"].get("held"):
        problems.append(
            f"CLOCK HELD: it jumped forward by {held['jumped_s']} s; check it, then run `forewarn clock confirm`"
        )
    if hold := state["store"]["held"]:
        problems.append(
            f"STORE HELD: {hold['detail']}; nothing starts until you run `forewarn db resume`, which shows what would happen"
        )
    return [
        f"{state['server']}  {full_time(state['clock']['now'])} ({state['clock']['kind']} clock)",
        *problems,
        f"now: {open_counts['failed']} failed,{_doubtful(open_counts['in doubt'])} {open_counts['started']} in progress,"
        f" {_at_least(state['open'], open_counts['scheduled'])} scheduled ({unapproved} not approved),"
        f" {_at_least(state['planned'], planned)} in later waves",
        f"last 24 hours: {_at_least(state['ended'], ended_counts['completed'])} completed,"
        f" {ended_counts['cancelled']} cancelled, {ended_counts['abandoned']} abandoned",
    ]


def _kind(event: Json) -> str:
    if order_failure(event):
        return "failed"
    return "in doubt" if order_doubt(event) else str(event["status"]).lower()


def _doubtful(number: int) -> str:
    return f" {number} in doubt," if number else ""


def _at_least(page: Json, number: int) -> str:
    """Return the number, with a plus if the page is not the whole list."""
    return f"{number}+" if page["next_cursor"] else str(number)


def _section(session: Session, title: str, table: Table) -> None:
    columns, rows = table
    if rows:
        session.out.heading(title)
        session.out.table(columns, rows)


def _event_cells(event: Json, ids: dict[str, str]) -> tuple[object, ...]:
    return ids[event["id"]], event["type"], update_domain_name(event), names(event["resources"])


def _failed(events: list[Json], ids: dict[str, str]) -> Table:
    rows = [(*_event_cells(event, ids), unresolved(event) or event["reason"]) for event in events]
    return (*EVENT_COLUMNS, "why"), rows


def _started(events: list[Json], ids: dict[str, str], now: str) -> Table:
    rows = [(*_event_cells(e, ids), distance(e["started"], now), reasons(e, now)) for e in events]
    return (*EVENT_COLUMNS, "started", "waits for"), rows


def _scheduled(events: list[Json], ids: dict[str, str], now: str) -> Table:
    columns = (*EVENT_COLUMNS, "not before", "not approved by", "why it has not started")
    return columns, [
        (*_event_cells(e, ids), when(e["not_before"], now), missing_approvals(e), reasons(e, now)) for e in events
    ]


def _paused(maintenances: list[Json], ids: dict[str, str], with_failed_event: set[str]) -> Table:
    columns = ("maintenance", "type", "created", "by", "description", "to continue")
    return columns, [
        (
            ids[each["id"]],
            each["type"],
            full_time(each["created"]),
            each["created_by"],
            each["description"],
            "resolve its failed event"
            if each["id"] in with_failed_event
            else f"forewarn maintenance resume {each['id'][:SHORT_ID_CHARS]}",
        )
        for each in maintenances
    ]
