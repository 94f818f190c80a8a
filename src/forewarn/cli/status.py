"""`forewarn status`: one look. What failed, what is under way, what is scheduled and why it has not started, what ended."""

from collections import Counter
from datetime import timedelta
from typing import Any

from forewarn.cli.formatting import (
    Json,
    distance,
    iso,
    missing,
    names,
    order_failed,
    place,
    read_iso,
    reasons,
    shortened,
    shown_time,
    when,
)
from forewarn.cli.session import Session

MOST = 500
LOOK_BACK = timedelta(hours=24)
ENDED = ("Completed", "Cancelled", "Abandoned")


def look(desk: Session) -> Json:
    """Everything the answer needs; as JSON it is the answer."""
    api, clock = desk.api, desk.api.get("/v1/clock")
    since = iso(read_iso(clock["now"]) - LOOK_BACK)
    return {
        "server": api.place.url,
        "clock": clock,
        "complaints": api.complaints(),
        "open": api.page("/v1/events", {"status": ["Scheduled", "Started"]}, limit=MOST),
        "planned": api.page("/v1/events", {"status": ["Planned"]}, limit=MOST),
        "ended": api.page("/v1/events", {"status": list(ENDED), "since": since}, limit=MOST),
        "paused": api.page("/v1/maintenances", {"status": ["Paused"]}, limit=MOST),
    }


def status(desk: Session) -> None:
    """Answer in one look: what is scheduled, who has not approved, why it has not started, what failed."""
    seen = look(desk)
    if desk.out.as_json:
        desk.out.json(seen)
        return
    for line in headline(seen):
        desk.out.say(line)
    now = seen["clock"]["now"]
    events = seen["open"]["items"]
    failed = [event for event in events if order_failed(event)]
    started = [event for event in events if event["status"] == "Started" and not order_failed(event)]
    waiting = [event for event in events if event["status"] == "Scheduled"]
    abandoned = [event for event in seen["ended"]["items"] if event["status"] == "Abandoned"]
    short = _ids(desk, seen)
    _part(desk, "FAILED: settle with `forewarn event retry`, `finish` or `abandon`", _failed(failed, short))
    _part(desk, "UNDER WAY", _started(started, short, now))
    _part(desk, "SCHEDULED", _scheduled(waiting, short, now))
    _part(desk, "PAUSED MAINTENANCES", _paused(seen["paused"]["items"], short, {e["maintenance_id"] for e in failed}))
    _part(desk, "ABANDONED IN THE LAST 24 HOURS", _failed(abandoned, short))


def headline(seen: Json) -> list[str]:
    """Where, what is wrong with the service itself, and the numbers."""
    events, ended = seen["open"]["items"], seen["ended"]["items"]
    kinds = Counter("failed" if order_failed(e) else e["status"].lower() for e in events)
    over = Counter(e["status"].lower() for e in ended)
    unapproved = sum(bool(missing(e)) for e in events)
    planned = len(seen["planned"]["items"])
    complaints = [f"NOT READY: {part}: {told}" for part, told in seen["complaints"].items()]
    if held := seen["clock"].get("held"):
        complaints.append(
            f"CLOCK HELD: it jumped forward by {held['jumped_s']} s; check it, then say `forewarn clock confirm`"
        )
    return [
        f"{seen['server']}  {shown_time(seen['clock']['now'])} ({seen['clock']['kind']} clock)",
        *complaints,
        f"now: {kinds['failed']} failed, {kinds['started']} under way, {_up_to(seen['open'], kinds['scheduled'])} scheduled"
        f" ({unapproved} not approved), {_up_to(seen['planned'], planned)} in later waves",
        f"last 24 hours: {_up_to(seen['ended'], over['completed'])} completed, {over['cancelled']} cancelled,"
        f" {over['abandoned']} abandoned",
    ]


def _up_to(page: Json, number: int) -> str:
    """A count of a list that goes on is only a beginning."""
    return f"{number}+" if page["next_cursor"] else str(number)


def _ids(desk: Session, seen: Json) -> dict[str, str]:
    if not desk.out.terminal:
        return {}
    return shortened(each["id"] for key in ("open", "ended", "paused") for each in seen[key]["items"])


def _part(desk: Session, title: str, table: tuple[tuple[str, ...], list[tuple[Any, ...]]]) -> None:
    columns, rows = table
    if rows:
        desk.out.heading(title)
        desk.out.table(columns, rows)


def _about(event: Json, short: dict[str, str]) -> tuple[object, ...]:
    return short.get(event["id"], event["id"]), event["type"], place(event), names(event["resources"])


ABOUT = ("event", "type", "scope", "machines")


def _failed(events: list[Json], short: dict[str, str]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    return (*ABOUT, "why"), [(*_about(e, short), order_failed(e) or e["reason"]) for e in events]


def _started(events: list[Json], short: dict[str, str], now: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    rows = [(*_about(e, short), distance(e["started"], now), reasons(e, now)) for e in events]
    return (*ABOUT, "started", "waits for"), rows


def _scheduled(events: list[Json], short: dict[str, str], now: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    columns = (*ABOUT, "not before", "not approved by", "why it has not started")
    return columns, [(*_about(e, short), when(e["not_before"], now), missing(e), reasons(e, now)) for e in events]


def _paused(rows: list[Json], short: dict[str, str], held: set[str]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    columns = ("maintenance", "type", "created", "by", "description", "to go on")
    return columns, [
        (
            short.get(m["id"], m["id"]),
            m["type"],
            shown_time(m["created"]),
            m["created_by"],
            m["description"],
            "settle what failed" if m["id"] in held else f"forewarn maintenance resume {m['id'][:8]}",
        )
        for m in rows
    ]
