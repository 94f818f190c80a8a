"""Live views of a maintenance: progress per wave on a terminal, a line per change elsewhere.

A view is shown the same maintenance again and again; what changed in between is its to tell.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forewarn.cli.change_stream import Changes
from forewarn.cli.client import Failed, NotReachable, Query, path_of
from forewarn.cli.formatting import ENDED, Json, count, distance, names, order_failed, place, plain, shown_time, when
from forewarn.cli.output import STYLES, Output
from forewarn.cli.plan_text import events_of
from forewarn.cli.session import Session

OVER = ("Completed", "Cancelled", "Failed")
# A service that restarts is waited for this long.
AWAY_S = 60.0
AWAY_RETRY_S = 1.0
MOST_WAVES = 12
BAR_CHARS = 24


class LiveView(Protocol):
    def show(self, maintenance: Json) -> None: ...


class Quiet:
    """For --json: the answer comes at the end."""

    def show(self, maintenance: Json) -> None:
        del maintenance


class JsonLinesView:
    """For --json with --follow: the whole maintenance at each change, one per line."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._before: Json | None = None

    def show(self, maintenance: Json) -> None:
        if maintenance != self._before:
            self._out.json(maintenance, line=True)
        self._before = maintenance


class Lines:
    def __init__(self, out: Output) -> None:
        self._out = out
        self._before: Json | None = None

    def show(self, maintenance: Json) -> None:
        for line in differences(self._before, maintenance):
            self._out.say(line)
        self._before = maintenance


class Screen:
    def __init__(self, live: Live, desk: Session) -> None:
        self._live = live
        self._desk = desk

    def show(self, maintenance: Json) -> None:
        now = settled_get(self._desk, "/v1/clock")["now"]
        self._live.update(picture(maintenance, now), refresh=True)


@contextlib.contextmanager
def view_of(desk: Session, *, lines_of_json: bool = False) -> Iterator[LiveView]:
    out = desk.out
    if out.as_json:
        yield JsonLinesView(out) if lines_of_json else Quiet()
    elif out.terminal:
        with Live(console=out.console, auto_refresh=False, transient=False) as live:
            yield Screen(live, desk)
    else:
        yield Lines(out)


def follow(
    desk: Session,
    maintenance_id: str,
    *,
    until: str = "done",
    timeout_s: int | None = None,
    lines_of_json: bool = False,
) -> Json:
    """Show it until it has `started` or is `done`; the maintenance as it then was. Failed when the time is over."""
    try:
        return _follow(desk, maintenance_id, until, timeout_s, lines_of_json)
    except KeyboardInterrupt:
        raise Failed(f"maintenance {maintenance_id} goes on without us") from None


def _follow(desk: Session, maintenance_id: str, until: str, timeout_s: int | None, lines_of_json: bool) -> Json:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    path = path_of("maintenances", maintenance_id)
    with Changes(desk.api) as changes, view_of(desk, lines_of_json=lines_of_json) as view:
        while True:
            maintenance = settled_get(desk, path)
            view.show(maintenance)
            if reached(maintenance, until):
                return maintenance
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise Failed(
                    f"maintenance {maintenance_id} is {maintenance['status']} and has not {_wanted(until)} in time:"
                    " it goes on without us"
                )
            changes.wait_for(lambda change: change["maintenance_id"] == maintenance_id, left_s)


def _wanted(until: str) -> str:
    return "started" if until == "started" else "ended"


def settled_get(desk: Session, path: str, query: Query | None = None) -> Json:
    """A service that is away for a moment is waited for."""
    begun_s = time.monotonic()
    told = False
    while True:
        try:
            answer: Json = desk.api.get(path, query)
            return answer
        except NotReachable as error:
            if time.monotonic() - begun_s > AWAY_S:
                raise
            if not told:
                desk.out.aside(f"{error}; trying again for {AWAY_S:g}s")
            told = True
            time.sleep(AWAY_RETRY_S)


def reached(maintenance: Json, until: str) -> bool:
    if maintenance["status"] in OVER:
        return True
    return until == "started" and any(event["started"] for event in events_of(maintenance))


def differences(before: Json | None, after: Json) -> list[str]:
    """What changed, a line each; first of all where it stands."""
    if before is None:
        waves = count(len(after["waves"]), "wave")
        lines = [f"maintenance {after['id']} {after['type']} {after['status']}: {waves}"]
        return lines + [f"{_label(event)}: {_state(event)}" for event in events_of(after)]
    lines = []
    known = {event["id"]: event for event in events_of(before)}
    for event in events_of(after):
        lines += _event_differences(known[event["id"]], event)
    if before["status"] != after["status"]:
        lines.append(f"maintenance {after['id']}: {before['status']} -> {after['status']}")
    return lines


def _event_differences(before: Json, after: Json) -> list[str]:
    lines = [
        f"{shown_time(approval['when'])} {_label(after)}: approved by {approval['who']}"
        for approval in after["approved_by"]
        if approval not in before["approved_by"]
    ]
    if before["status"] != after["status"]:
        at = shown_time(after["ended"] or after["started"] or after["published"])
        because = f" ({after['reason']})" if after["reason"] else ""
        lines.append(f"{at} {_label(after)}: {before['status']} -> {after['status']}{because}")
    failed = order_failed(after)
    if failed and failed != order_failed(before):
        lines.append(f"{_label(after)}: {failed}")
    return lines


def _label(event: Json) -> str:
    return f"wave {event['wave']} {place(event)} {names(event['resources'])} [{event['id']}]"


def _state(event: Json) -> str:
    if event["status"] == "Scheduled" and event["not_before"]:
        return f"Scheduled, not before {shown_time(event['not_before'])}"
    return order_failed(event) or str(event["status"])


def picture(maintenance: Json, now: str) -> RenderableType:
    """The maintenance on a terminal: a bar per wave, and what each wave is about."""
    head = Text()
    head.append(f"{maintenance['type']} ", style="bold")
    head.append(str(maintenance["status"]), style=STYLES.get(maintenance["status"], ""))
    head.append(f"  {maintenance['id']}", style="dim")
    if maintenance["description"]:
        head.append(f"  {plain(maintenance['description'])}")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    waves, hidden = _in_view(maintenance["waves"])
    for wave in waves:
        table.add_row(*_wave_row(wave, now))
    more = [Text(f"and {count(hidden, 'more wave')}", style="dim")] if hidden else []
    return Group(head, table, *more)


def _in_view(waves: list[Json]) -> tuple[list[Json], int]:
    """The waves around the one under way: a terminal is not endless."""
    open_at = next((i for i, wave in enumerate(waves) if not _ended(wave)), len(waves))
    first = max(0, min(open_at - 2, len(waves) - MOST_WAVES))
    shown = waves[first : first + MOST_WAVES]
    return shown, len(waves) - len(shown)


def _ended(wave: Json) -> bool:
    return all(event["status"] in ENDED for event in wave["events"])


def _wave_row(wave: Json, now: str) -> list[RenderableType]:
    events = wave["events"]
    # A started event is half way: somebody should see that something moves.
    halves = sum(2 if e["status"] in ENDED else 1 if e["status"] == "Started" else 0 for e in events)
    done = sum(e["status"] in ENDED for e in events)
    bar = ProgressBar(total=2 * len(events), completed=halves, width=BAR_CHARS)
    about = Text()
    for position, event in enumerate(events[:MOST_WAVES]):
        about.append("\n" if position else "")
        about.append(f"{place(event)} {names(event['resources'])} ")
        about.append(str(event["status"]), style=STYLES.get(event["status"], ""))
        about.append(plain(_beside(event, now)), style="red" if order_failed(event) else "dim")
    if len(events) > MOST_WAVES:
        about.append(f"\nand {len(events) - MOST_WAVES} more", style="dim")
    return [Text(f"wave {wave['number']}"), bar, Text(f"{done}/{len(events)}"), about]


def _beside(event: Json, now: str) -> str:
    if failed := order_failed(event):
        return f": {failed}"
    if event["status"] == "Scheduled" and event["not_before"]:
        approved = ", approved" if event["approved_by"] else ""
        others = "".join(f"; {w['message']}" for w in event["waiting_for"] if w["code"] not in ("approval", "notice"))
        return f", not before {when(event['not_before'], now)}{approved}{others}"
    if event["status"] == "Started":
        return f" {distance(event['started'], now)}"
    return ""
