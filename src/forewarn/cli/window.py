"""`forewarn window`: the times of the week at which maintenance may start."""

from datetime import datetime
from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.formatting import when
from forewarn.cli.options import moment, usage
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.errors import Refused
from forewarn.core.formatting import names
from forewarn.core.model import UNFINISHED

app = group("window", "Show and change the windows in which maintenance starts.")

COLUMNS = ("window", "when", "zone", "state", "opens", "closes", "extended until")

Name = Annotated[
    str,
    typer.Argument(metavar="WINDOW", help="A window's name.", show_default=False, autocompletion=completion.windows),
]
WHEN = typer.Option("--when", help="A time of the week, like 'Mon-Fri 22:00-05:00'; may be repeated.", metavar="TIMES")
ZONE = typer.Option("--zone", help="The time zone of these times, like Europe/Berlin.")
When = Annotated[list[str], WHEN]
Zone = Annotated[str, ZONE]
# Of the scopes and of the open maintenances, so many are examined for a window.
MAX_EXAMINED = 1_000


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
    """Add a window. `scope set --window` lets a scope use it."""
    path, settings = path_of("windows", window), {"when": times, "zone": zone}
    try:
        known = session.api.get(path)
    except Failed as error:
        if error.http_status != 404:
            raise
        known = None
    if known is not None and {key: known[key] for key in settings} != settings:
        raise Refused(f"there is a window {window!r} already: `forewarn window set {window}` changes it")
    _show(session, session.api.put(path, settings).json())


@command(app, "set")
def set_window(
    session: Session,
    window: Name,
    times: Annotated[list[str] | None, WHEN] = None,
    zone: Annotated[str | None, ZONE] = None,
) -> None:
    """Change a window's times or time zone, and say what uses the window."""
    if times is None and zone is None:
        raise usage("nothing to change: use --when or --zone")
    path = path_of("windows", window)
    known = session.api.get(path)
    changed = session.api.put(path, {"when": times or known["when"], "zone": zone or known["zone"]}).json()
    if users := _users(session, window):
        session.out.aside(
            f"window {window} is used by {names(users)}: what was announced for a time that is closed now is cancelled"
            " and announced again"
        )
    _show(session, changed)


@command(app, "extend")
def extend(
    session: Session,
    window: Name,
    until: Annotated[str, typer.Option(help="Stay open until this time, like +2h.", metavar="TIME")],
) -> None:
    """Keep an open window open for longer."""
    body = {"until": moment("--until", until, session.now())}
    _show(session, session.api.post(path_of("windows", window, "extend"), body))


@command(app, "remove")
def remove(session: Session, window: Name) -> None:
    """Remove a window that no scope and no open maintenance uses."""
    session.api.delete(path_of("windows", window))
    session.out.result({}, f"window {window} is removed")


def _users(session: Session, window: str) -> list[str]:
    """Return the scopes and the open maintenances that use the window."""
    scopes = session.api.page("/v1/scopes", {}, limit=MAX_EXAMINED)["items"]
    open_ones = session.api.page("/v1/maintenances", {"status": sorted(UNFINISHED)}, limit=MAX_EXAMINED)["items"]
    found = [f"scope {scope['name']}" for scope in scopes if window in scope["windows"]]
    return found + [f"maintenance {each['id']}" for each in open_ones if window in each["strategy"]["windows"]]


def _row(window: Json, now: str) -> tuple[object, ...]:
    state = "open" if window["open"] else "closed"
    extended = window["extended_until"]
    # An extension that is over says nothing about the window.
    is_extended = extended and datetime.fromisoformat(extended) > datetime.fromisoformat(now)
    times = (when(window["opens"], now), when(window["closes"], now), when(extended, now) if is_extended else "")
    return (window["name"], ", ".join(window["when"]), window["zone"], state, *times)


def _show(session: Session, window: Json) -> None:
    now = session.now()
    session.out.facts(window, list(zip(COLUMNS, _row(window, now), strict=True)))
