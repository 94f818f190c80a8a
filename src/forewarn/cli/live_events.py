"""Live views of events: the open ones on a terminal, a line per change elsewhere, JSON lines for programs."""

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from forewarn.cli.audit import line
from forewarn.cli.change_stream import Changes
from forewarn.cli.client import path_of
from forewarn.cli.formatting import ENDED, Json, count, distance, names, place, plain, reasons, shown_time, why
from forewarn.cli.live_maintenance import settled_get
from forewarn.cli.output import rich_table
from forewarn.cli.session import Session

COLUMNS = ("event", "status", "type", "scope", "machines", "not before", "waits for")
MOST_EVENTS = 30
MOST_CHANGES = 8
NEXT_S = 1.0
OPEN = ("Scheduled", "Started")


def watch_all(desk: Session, scope: str | None) -> None:
    """Until somebody presses Ctrl-C."""
    try:
        with Changes(desk.api) as changes:
            if desk.out.terminal and not desk.out.as_json:
                _on_screen(desk, changes, scope)
            else:
                _as_lines(desk, changes, scope)
    except KeyboardInterrupt:
        return


def _concerns(change: Json, scope: str | None) -> bool:
    return bool(change["event_id"] or change["maintenance_id"]) and scope in (None, change["scope"])


def _as_lines(desk: Session, changes: Changes, scope: str | None) -> None:
    if not desk.out.as_json:
        desk.out.aside(f"watching {desk.api.place.url}")
    while True:
        change = changes.next(NEXT_S)
        if change is None or not _concerns(change, scope):
            continue
        if desk.out.as_json:
            desk.out.json(change, line=True)
        else:
            desk.out.say(line(change))


def _on_screen(desk: Session, changes: Changes, scope: str | None) -> None:
    recent: list[Json] = []
    with Live(console=desk.out.console, auto_refresh=False) as live:
        while True:
            query = {"status": OPEN, "scope": scope, "limit": MOST_EVENTS}
            page = settled_get(desk, "/v1/events", query)
            live.update(picture(page, recent, desk.now()), refresh=True)
            changes.wait_for(lambda change: _remember(recent, change, scope))


def _remember(recent: list[Json], change: Json, scope: str | None) -> bool:
    """Whether it is one to look at anew for; the newest are kept for the screen."""
    if not _concerns(change, scope):
        return False
    recent.append(change)
    del recent[:-MOST_CHANGES]
    return True


def picture(page: Json, recent: list[Json], now: str) -> RenderableType:
    rows = [
        (
            event["id"][:8],
            event["status"],
            event["type"],
            place(event),
            names(event["resources"]),
            distance(event["not_before"], now) if event["status"] == "Scheduled" else "",
            reasons(event, now),
        )
        for event in page["items"]
    ]
    more = " and more" if page["next_cursor"] else ""
    head = Text(f"{shown_time(now)}  {count(len(rows), 'open event')}{more}", style="bold")
    told = [Text(plain(line(change)), style="dim") for change in recent]
    return Group(head, rich_table(COLUMNS, rows) if rows else Text("no open events"), *told)


def watch_one(desk: Session, event_id: str) -> None:
    """Until it has ended: the sentence about it, each time it becomes another."""
    path = path_of("events", event_id)
    before = ""
    with Changes(desk.api) as changes:
        while True:
            event = settled_get(desk, path)
            told = _stands(event)
            if told != before and desk.out.as_json:
                desk.out.json(event, line=True)
            elif told != before:
                desk.out.say(why(event, desk.now()))
            before = told
            if event["status"] in ENDED:
                return
            changes.wait_for(bool)  # what it waits for may be anybody's doing


def _stands(event: Json) -> str:
    """What makes two looks at an event different; not that time went by."""
    waits = [(each["code"], each["message"]) for each in event["waiting_for"]]
    return repr((event["status"], event["approved_by"], waits))
