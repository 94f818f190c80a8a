"""`forewarn window`: the times of the week at which maintenance may start."""

from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.client import Json, path_of
from forewarn.cli.formatting import when
from forewarn.cli.options import moment
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group

app = group("window", "Show and change the windows in which maintenance starts.")

COLUMNS = ("window", "when", "zone", "state", "opens", "closes")

Name = Annotated[
    str,
    typer.Argument(metavar="WINDOW", help="A window's name.", show_default=False, autocompletion=completion.windows),
]
When = Annotated[
    list[str],
    typer.Option("--when", help="A time of the week, like 'Mon-Fri 22:00-05:00'; may be repeated.", metavar="TIMES"),
]
Zone = Annotated[str, typer.Option(help="The time zone of these times, like Europe/Berlin.")]


@command(app, "list")
def list_windows(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List windows by name."""
    page = session.api.page("/v1/windows", {"q": match}, limit=limit, cursor=cursor)
    now = session.now() if page["items"] else ""
    session.show_page(page, COLUMNS, lambda windows: [_row(each, now) for each in windows], empty="no windows")


@command(app, "show")
def show(session: Session, window: Name) -> None:
    """Show a window, and when it opens and closes next."""
    _show(session, session.api.get(path_of("windows", window)))


@command(app, "add")
def add(session: Session, window: Name, times: When, zone: Zone = "UTC") -> None:
    """Add a window, or change the times of one. `scope set --window` lets a scope use it."""
    _show(session, session.api.put(path_of("windows", window), {"when": times, "zone": zone}).json())


@command(app, "extend")
def extend(
    session: Session,
    window: Name,
    until: Annotated[str, typer.Option(help="Stay open until this time, like +2h.", metavar="TIME")],
) -> None:
    """Keep a window open longer that is open now."""
    body = {"until": moment("--until", until, session.now())}
    _show(session, session.api.post(path_of("windows", window, "extend"), body))


@command(app, "remove")
def remove(session: Session, window: Name) -> None:
    """Remove a window that no scope and no open maintenance uses."""
    session.api.delete(path_of("windows", window))
    session.out.result({}, f"window {window} is removed")


def _row(window: Json, now: str) -> tuple[object, ...]:
    state = "open" if window["open"] else "closed"
    times = when(window["opens"], now), when(window["closes"], now)
    return (window["name"], ", ".join(window["when"]), window["zone"], state, *times)


def _show(session: Session, window: Json) -> None:
    now = session.now()
    session.out.facts(
        window,
        [
            *zip(COLUMNS, _row(window, now), strict=True),
            ("extended until", when(window["extended_until"], now)),
        ],
    )
