"""`forewarn drill`: rehearse maintenance, and see which machines were ready."""

from typing import Annotated, Any

import typer

from forewarn.cli import completion, plan_text
from forewarn.cli.api import Failed, Json
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.formatting import full_time
from forewarn.cli.options import moment, seconds, usage
from forewarn.cli.output import Rows
from forewarn.cli.session import Cursor, Limit, Session, command, group
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.formatting import names, span
from forewarn.core.model import EventType

app = group("drill", "Rehearse maintenance: machines prepare and approve, and nothing touches them.")

COLUMNS = ("drill", "status", "type", "scopes", "ready", "slowest", "created", "by", "ended", "description")
MACHINE_COLUMNS = ("machine", "ready", "needed", "first saw it")
READY = {True: "yes", False: "no", None: "not measured"}


@command(app, "schedule")
def schedule(
    session: Session,
    type_: Annotated[EventType, typer.Option("--type", help="What the machines prepare for.", case_sensitive=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="All machines of this scope; may be repeated.", autocompletion=completion.scopes),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(help="This machine, like shop/web-0; may be repeated.", autocompletion=completion.machines),
    ] = None,
    hold: Annotated[
        str, typer.Option(help="How long an event lasts after its start, like 1m.", metavar="DURATION")
    ] = "1m",
    not_before: Annotated[
        str | None,
        typer.Option(
            help="Do not start before this time unless all approve: 2030-01-31T22:00:00Z, or +2h.", metavar="TIME"
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="The description that guests see.", show_default=False)] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan and its calendar.", show_default=False)
    ] = False,
    yes: Yes = False,
) -> None:
    """Schedule a drill. The machines really drain and fail over, and nothing touches them.

    Guests see ordinary events, update domain after update domain. Every machine must approve for itself, or the event starts at
    its NotBefore. A real event in a scope ends the drill of the scope at once.
    """
    types = [each for each, rules in EVENT_TYPES.items() if rules.one_domain_at_a_time]
    if type_ not in types:
        raise usage(f"--type: a drill is of type {' or '.join(types)}, not {type_}")
    if bool(scope) == bool(machine):
        raise usage("choose the machines in exactly one way: --scope S or --machine M; each may be repeated")
    targets: dict[str, Any] = {"scopes": scope} if scope else {"machines": machine}
    request = {
        "type": type_.value,
        "targets": targets,
        "hold_s": seconds("--hold", hold),
        "not_before": moment("--not-before", not_before, session.now()),
        "description": description,
    }
    plan = session.api.post("/v1/drills", request, {"dry_run": True})
    if dry_run and session.out.as_json:
        session.out.json(plan)
        return
    session.out.say(plan_text.summary(plan))
    session.out.table(plan_text.COLUMNS, plan_text.rows(plan), empty="no machines")
    plan_text.show_calendar(session.out, plan)
    session.out.say("These machines really drain and fail over. Nothing touches them.")
    if dry_run:
        return
    otherwise = "no drill was scheduled: it was not confirmed; --yes schedules without a question"
    confirm("Schedule this drill?", yes=yes, otherwise=otherwise)
    drill = session.api.post("/v1/drills", request, creating=True)
    session.out.result(drill, f"drill {drill['id']} is scheduled: see `forewarn drill report {drill['id'][:8]}`")


@command(app, "list")
def list_drills(session: Session, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List drills and how many machines were ready, newest first."""
    page = session.api.page("/v1/drills", {}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda drills: _rows(session, drills), empty="no drills")


@command(app, "report")
def report(
    session: Session,
    drill: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The drill's id, or at least its first 8 characters; by default the newest drill.",
            show_default=False,
            autocompletion=completion.maintenances,
        ),
    ] = None,
) -> None:
    """Show which machines approved in time, how long they needed, and which never polled."""
    if drill is None:
        newest = session.api.get("/v1/drills", {"limit": 1})["items"]
        if not newest:
            raise Failed("there is no drill yet: see `forewarn drill schedule --help`")
        drill = newest[0]["id"]
    found = session.api.get(f"/v1/drills/{session.id_of('maintenance', drill)}")
    if session.out.as_json:
        session.out.json(found)
        return
    facts = [
        ("drill", found["id"]),
        ("status", found["status"]),
        ("type", found["type"]),
        ("scopes", names(found["scopes"])),
        ("ready", _share(found["readiness"])),
        ("slowest", _needed(found["readiness"]["slowest_s"])),
        ("created", f"{full_time(found['created'])} by {found['created_by']}"),
        ("ended", full_time(found["ended"])),
    ]
    session.out.facts(found, facts)
    rows = [
        (
            f"{each['scope']}/{each['name']}",
            READY[each["ready"]],
            _needed(each["needed_s"]),
            full_time(each["seen"]) or ("" if each["ready"] is None else "never"),
        )
        for each in found["machines"]
    ]
    session.out.table(MACHINE_COLUMNS, rows)


@command(app, "cancel")
def cancel(
    session: Session,
    drill: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The drill's id, or at least its first 8 characters.",
            show_default=False,
            autocompletion=completion.maintenances,
        ),
    ],
) -> None:
    """Cancel the events of a drill that have not started; started events run to their end."""
    found = session.api.post(f"/v1/drills/{session.id_of('maintenance', drill)}/cancel")
    session.out.result(found, f"drill {found['id']} is {found['status']}")


def _rows(session: Session, drills: list[Json]) -> Rows:
    id_texts = session.out.id_texts(each["id"] for each in drills)
    return [
        (
            id_texts[each["id"]],
            each["status"],
            each["type"],
            names(each["scopes"]),
            _share(each["readiness"]),
            _needed(each["readiness"]["slowest_s"]),
            full_time(each["created"]),
            each["created_by"],
            full_time(each["ended"]),
            each["description"],
        )
        for each in drills
    ]


def _share(readiness: Json) -> str:
    if readiness["share"] is None:
        return f"not measured ({readiness['machines']} machines)"
    return f"{readiness['share']:.0%} ({readiness['ready']} of {readiness['measured']})"


def _needed(needed_s: int | None) -> str:
    return "" if needed_s is None else span(needed_s)
