"""`forewarn no-go`: times at which no maintenance starts."""

from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Json, path_of
from forewarn.cli.formatting import full_time
from forewarn.cli.options import moment, usage
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group

app = group("no-go", "Show and change the times at which no maintenance starts.")

COLUMNS = ("no-go time", "when", "binds", "active", "reason")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a no-go time.", show_default=False)]


@command(app, "list")
def list_no_go_times(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List no-go times by name."""
    page = session.api.page("/v1/no-go-times", {"q": match}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda found: [_row(each) for each in found], empty="no no-go times")


@command(app, "add")
def add(
    session: Session,
    name: Name,
    reason: Annotated[str, typer.Option(help="Why nothing may start.", metavar="TEXT")],
    start: Annotated[str | None, typer.Option(help="When it begins, if it comes once.", metavar="TIME")] = None,
    end: Annotated[str | None, typer.Option(help="When it ends, if it comes once.", metavar="TIME")] = None,
    times: Annotated[
        list[str] | None,
        typer.Option(
            "--when",
            help="If it comes every week: a time like 'Mon-Fri 08:00-18:00'; may be repeated.",
            metavar="TIMES",
        ),
    ] = None,
    zone: Annotated[str, typer.Option(help="The time zone of weekly times, like Europe/Berlin.")] = "UTC",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Bind this scope; may be repeated.", autocompletion=completion.scopes),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Bind machines with these labels, like rack=a3,!gpu; may be repeated.", metavar="SELECTOR"),
    ] = None,
) -> None:
    """Add a no-go time, or change one. Without --scope and --label it binds the whole fleet."""
    if bool(times) == bool(start and end) or bool(start) != bool(end):
        raise usage("say when: --start and --end for one time, or --when for a time of every week")
    now = session.now() if start else ""
    body = {
        "reason": reason,
        "start": moment("--start", start, now),
        "end": moment("--end", end, now),
        "when": times or [],
        "zone": zone,
        "scopes": scope or [],
        "labels": ",".join(label or ()),
    }
    found = session.api.put(path_of("no-go-times", name), body).json()
    session.out.facts(found, list(zip(COLUMNS, _row(found), strict=True)))


@command(app, "remove")
def remove(session: Session, name: Name) -> None:
    """Remove a no-go time: what waited for its end may start."""
    session.api.delete(path_of("no-go-times", name))
    session.out.result({}, f"no-go time {name} is removed")


def _row(no_go: Json) -> tuple[object, ...]:
    once = f"{full_time(no_go['start'])} to {full_time(no_go['end'])}" if no_go["start"] else ""
    weekly = f"{', '.join(no_go['when'])} {no_go['zone']}"
    scopes = ", ".join(no_go["scopes"])
    binds = scopes or "the whole fleet"
    if no_go["labels"]:
        binds = f"machines with {no_go['labels']}" + (f" of {scopes}" if scopes else "")
    return no_go["name"], once or weekly, binds, "yes" if no_go["active"] else "no", no_go["reason"]
