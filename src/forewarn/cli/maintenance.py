"""`forewarn maintenance`: plan it, look at the plan, schedule it, follow it, call it off."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from forewarn.cli import plan_text
from forewarn.cli.client import Failed, path_of
from forewarn.cli.event import resolve
from forewarn.cli.formatting import Json, names, place, reasons, shortened, shown_time, span, when
from forewarn.cli.live_maintenance import follow
from forewarn.cli.session import Cursor, Limit, Session, command, group, usage
from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.model import EventType, MaintenanceStatus, OnFailure

app = group("maintenance", "Plan maintenance and see it through.")

COLUMNS = ("maintenance", "status", "type", "source", "created", "by", "not before", "earliest", "description")
EVENT_COLUMNS = ("wave", "event", "status", "scope", "machines", "not before", "approved by", "waits for")


class Until(StrEnum):
    STARTED = "started"
    DONE = "done"


Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The maintenance's id, or 8 characters of its beginning or more.", show_default=False
    ),
]
Timeout = Annotated[
    str | None, typer.Option(help="Give up waiting after so long, like 30m; it goes on without us.", metavar="DURATION")
]


@command(app, "schedule")
def schedule(
    desk: Session,
    type_: Annotated[
        EventType,
        typer.Option("--type", help="What is done to the machines.", case_sensitive=False, show_default=False),
    ],
    machine: Annotated[
        list[str] | None, typer.Option(help="A machine, like shop/web-0; may be repeated.", metavar="MACHINE")
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Every machine of this scope.")] = None,
    update_domain: Annotated[int | None, typer.Option(help="Of the scope only this update domain.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Every machine on this host; may be repeated.", metavar="HOST")
    ] = None,
    not_before: Annotated[
        str | None, typer.Option(help="Not before then unless approved: 2030-01-31T22:00:00Z, or +2h.", metavar="TIME")
    ] = None,
    earliest: Annotated[str | None, typer.Option(help="Never before then, approved or not.", metavar="TIME")] = None,
    duration: Annotated[
        str | None, typer.Option(help="How long it is expected to take, like 90s or 15m.", metavar="DURATION")
    ] = None,
    description: Annotated[str, typer.Option(help="What guests are told.", show_default=False)] = "",
    emergency: Annotated[
        bool, typer.Option("--emergency", help="Everything at once, without notice.", show_default=False)
    ] = False,
    on_failure: Annotated[
        OnFailure, typer.Option(help="What becomes of the rest when the work of one event fails.")
    ] = OnFailure.HOLD,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and end.", show_default=False)] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.", show_default=False)] = False,
    no_notice_ok: Annotated[
        bool, typer.Option("--no-notice-ok", help="Go on where the plan gives no notice.", show_default=False)
    ] = False,
    wait: Annotated[
        Until | None, typer.Option(help="Follow it until its first wave has started, or until it is done.")
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Show the plan, ask, and schedule it: the plan shown is the plan that happens."""
    targets = _targets(machine or [], scope, update_domain, host or [])
    timeout_s = _seconds("--timeout", timeout)
    duration_s = _seconds("--duration", duration)
    now = desk.now()
    request = {
        "type": type_.value,
        "targets": targets,
        "not_before": resolve("--not-before", not_before, now),
        "earliest": resolve("--earliest", earliest, now),
        "duration_s": -1 if duration_s is None else duration_s,
        "description": description,
        "emergency": emergency,
        "on_failure": on_failure.value,
    }
    plan = desk.api.post("/v1/maintenances", request, {"dry_run": True})
    if dry_run and desk.out.as_json:
        desk.out.json(plan)
        return
    _show_plan(desk, plan, request, now)
    if dry_run:
        return
    _make_sure(plan, yes=yes, no_notice_ok=no_notice_ok)
    made = desk.api.post("/v1/maintenances", request, creating=True)
    if plan_text.shape(made) != plan_text.shape(plan):
        desk.out.aside("the fleet changed meanwhile, so it is not quite the plan shown: `maintenance show` shows it")
    desk.out.say(f"maintenance {made['id']} is scheduled")
    if wait is not None:
        _finish(desk, follow(desk, made["id"], until=wait.value, timeout_s=timeout_s), wait)
    elif desk.out.as_json:
        desk.out.json(made)


@command(app, "list")
def list_maintenances(
    desk: Session,
    status: Annotated[
        list[MaintenanceStatus] | None,
        typer.Option(help="Only with this status; may be repeated.", case_sensitive=False),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """What was asked for, newest first."""
    page = desk.listed("/v1/maintenances", {"status": [each.value for each in status or ()]}, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    short = shortened(row["id"] for row in page["items"]) if desk.out.terminal else {}
    desk.out.table(COLUMNS, [_row(row, short) for row in page["items"]], empty="no maintenances")
    desk.more(page)


@command(app, "show")
def show(
    desk: Session,
    maintenance: Id,
    follow_it: Annotated[
        bool, typer.Option("--follow", help="Go on showing it until it is done.", show_default=False)
    ] = False,
) -> None:
    """One maintenance with its waves, now or until it is done."""
    maintenance_id = desk.maintenance_id(maintenance)
    if follow_it:
        follow(desk, maintenance_id, lines_of_json=True)
    else:
        _show(desk, desk.api.get(path_of("maintenances", maintenance_id)))


@command(app, "wait")
def wait_for(
    desk: Session,
    maintenance: Id,
    until: Annotated[Until, typer.Option(help="Until its first wave has started, or until it is done.")] = Until.DONE,
    timeout: Timeout = None,
) -> None:
    """Follow it to its end; exit code 0 only if it was completed."""
    timeout_s = _seconds("--timeout", timeout)
    _finish(desk, follow(desk, desk.maintenance_id(maintenance), until=until.value, timeout_s=timeout_s), until)


@command(app, "cancel")
def cancel(desk: Session, maintenance: Id) -> None:
    """Call off what has not started; what has started runs to its end."""
    _say(desk, maintenance, "cancel")


@command(app, "pause")
def pause(desk: Session, maintenance: Id) -> None:
    """Hold what has not started, until it is resumed."""
    _say(desk, maintenance, "pause")


@command(app, "resume")
def resume(desk: Session, maintenance: Id) -> None:
    """Go on with a paused maintenance, at once."""
    _say(desk, maintenance, "resume")


def _targets(machines: list[str], scope: str | None, update_domain: int | None, hosts: list[str]) -> dict[str, Any]:
    if sum((bool(machines), bool(scope), bool(hosts))) != 1:
        raise usage("say what it is about, one way: --machine M (again and again), --scope S, or --host H")
    if update_domain is not None and not scope:
        raise usage("--update-domain: an update domain belongs to a scope: say --scope as well")
    if machines:
        return {"machines": machines}
    if hosts:
        return {"hosts": hosts}
    return {"scope": scope} if update_domain is None else {"scope": scope, "update_domain": update_domain}


def _seconds(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except Invalid as error:
        raise usage(f"{option}: {error}") from None


def _show_plan(desk: Session, plan: Json, request: Json, now: str) -> None:
    desk.out.say(plan_text.summary(plan))
    if request["not_before"]:
        desk.out.say(f"not before {when(request['not_before'], now)}, unless approved")
    if request["earliest"]:
        desk.out.say(f"never before {when(request['earliest'], now)}, approved or not")
    desk.out.table(plan_text.COLUMNS, plan_text.rows(plan))
    if warning := plan_text.warning(plan):
        desk.out.say(warning)


def _make_sure(plan: Json, *, yes: bool, no_notice_ok: bool) -> None:
    scopes = plan_text.without_notice(plan)
    if scopes and not no_notice_ok:
        raise usage(
            f"nothing was scheduled: this plan gives no notice to {names(scopes)}; if that is all right, say"
            " --no-notice-ok as well"
        )
    if yes:
        return
    try:
        agreed = typer.confirm("Schedule this?", err=True)
    except typer.Abort:
        agreed = False
        typer.echo(err=True)  # nobody pressed return after the question
    if not agreed:
        raise Failed("nothing was scheduled: the plan was not confirmed; --yes goes on without asking")


def _finish(desk: Session, maintenance: Json, until: Until) -> None:
    if desk.out.as_json:
        desk.out.json(maintenance)
    status = maintenance["status"]
    if status in ("Cancelled", "Failed") and not (until is Until.STARTED and _started(maintenance)):
        raise Failed(f"maintenance {maintenance['id']} ended as {status}: `maintenance show` tells what happened")


def _started(maintenance: Json) -> bool:
    return any(event["started"] for event in plan_text.events_of(maintenance))


def _say(desk: Session, maintenance: str, verb: str) -> None:
    changed = desk.api.post(path_of("maintenances", desk.maintenance_id(maintenance), verb))
    if desk.out.as_json:
        desk.out.json(changed)
    else:
        desk.out.say(f"maintenance {changed['id']} is {changed['status']}")


def _row(maintenance: Json, short: dict[str, str]) -> tuple[object, ...]:
    return (
        short.get(maintenance["id"], maintenance["id"]),
        maintenance["status"],
        maintenance["type"] + (" (emergency)" if maintenance["emergency"] else ""),
        maintenance["source"],
        shown_time(maintenance["created"]),
        maintenance["created_by"],
        shown_time(maintenance["not_before"]),
        shown_time(maintenance["earliest"]),
        maintenance["description"],
    )


def _show(desk: Session, maintenance: Json) -> None:
    if desk.out.as_json:
        desk.out.json(maintenance)
        return
    now = desk.now()
    emergency = ", emergency" if maintenance["emergency"] else ""
    desk.out.facts(
        [
            ("maintenance", maintenance["id"]),
            ("status", maintenance["status"]),
            ("type", f"{maintenance['type']} by {maintenance['source']}{emergency}"),
            ("description", maintenance["description"]),
            ("duration", "unknown" if maintenance["duration_s"] < 0 else span(maintenance["duration_s"])),
            ("created", f"{shown_time(maintenance['created'])} by {maintenance['created_by']}"),
            ("not before", when(maintenance["not_before"], now)),
            ("earliest", when(maintenance["earliest"], now)),
            ("on failure", maintenance["on_failure"]),
            ("ended", shown_time(maintenance["ended"])),
        ]
    )
    desk.out.heading(plan_text.summary(maintenance))
    events = plan_text.events_of(maintenance)
    short = shortened(event["id"] for event in events) if desk.out.terminal else {}
    rows = [
        (
            event["wave"],
            short.get(event["id"], event["id"]),
            event["status"],
            place(event),
            names(event["resources"], most=1_000),
            shown_time(event["not_before"]),
            ", ".join(approval["who"] for approval in event["approved_by"]),
            reasons(event, now) or event["reason"],
        )
        for event in events
    ]
    desk.out.table(EVENT_COLUMNS, rows)
