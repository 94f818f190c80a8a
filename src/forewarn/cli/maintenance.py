"""`forewarn maintenance`: plan a maintenance, schedule it, follow it, cancel it."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from forewarn.cli import completion, plan_text
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.confirmation import NoHostOk, NoNoticeOk, Yes, confirm, refuse_without_host, refuse_without_notice
from forewarn.cli.formatting import (
    full_time,
    maintenance_state,
    progress,
    reasons,
    target_names,
    update_domain_name,
    waits_for,
    when,
)
from forewarn.cli.hints import maintenance_hints
from forewarn.cli.options import NewTime, moment, seconds, usage
from forewarn.cli.output import Rows
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core import formatting
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.formatting import names, span
from forewarn.core.model import EventType, GroupBy, HostMode, MaintenanceStatus, OnFailure

app = group("maintenance", "Plan, schedule, follow and cancel maintenance.")

COLUMNS = (
    "maintenance",
    "status",
    "type",
    "targets",
    "progress",
    "estimated end",
    "source",
    "created",
    "by",
    "not before",
    "earliest",
    "description",
)
HOST_COLUMNS = ("turn", "host", "order", "state", "machines", "waits for")
EVENT_COLUMNS = ("wave", "event", "status", "scope", "machines", "not before", "approved by", "waits for")


class Until(StrEnum):
    STARTED = "started"
    DONE = "done"


Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The maintenance's id, or at least its first 8 characters.",
        show_default=False,
        autocompletion=completion.maintenances,
    ),
]
Host = Annotated[
    str,
    typer.Argument(
        metavar="HOST", help="A host of the maintenance.", show_default=False, autocompletion=completion.hosts
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(help="Stop waiting after this time, like 30m; the maintenance continues.", metavar="DURATION"),
]


@command(app, "schedule")
def schedule(
    session: Session,
    type_: Annotated[
        EventType | None,
        typer.Option(
            "--type",
            help="What happens to the machines. [required, except: --evacuate: Freeze; --in-place: Reboot]",
            case_sensitive=False,
            show_default=False,
        ),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            help="A machine, like shop/web-0; may be repeated.", metavar="MACHINE", autocompletion=completion.machines
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="Every machine of this scope; may be repeated.", metavar="SCOPE", autocompletion=completion.scopes
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Machines with these labels, like rack=a3,!gpu, of the fleet or of each --scope; may be repeated.",
            metavar="SELECTOR",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Machines with a name like this, web-* or shop/web-*, of the fleet or of each --scope; may be repeated.",
            metavar="PATTERN",
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every machine of the fleet.", show_default=False)] = False,
    update_domain: Annotated[int | None, typer.Option(help="Only this update domain of the one scope.")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Every machine on this host, or on hosts like kvm-*; may be repeated.",
            metavar="HOST",
            autocompletion=completion.hosts,
        ),
    ] = None,
    host_label: Annotated[
        list[str] | None,
        typer.Option(
            help="Every machine on hosts with these labels, like rack=a3; may be repeated.", metavar="SELECTOR"
        ),
    ] = None,
    evacuate: Annotated[
        bool,
        typer.Option("--evacuate", help="Move the machines off the hosts, then work on the hosts.", show_default=False),
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Shut the machines down, work on the hosts, start them again.", show_default=False
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            help="With --evacuate: the host that all machines go to.", metavar="HOST", autocompletion=completion.hosts
        ),
    ] = None,
    return_: Annotated[
        bool,
        typer.Option("--return", help="With --evacuate: bring the machines back after the work.", show_default=False),
    ] = False,
    not_before: Annotated[
        str | None,
        typer.Option(
            help="Do not start before this time unless approved: 2030-01-31T22:00:00Z, or +2h.", metavar="TIME"
        ),
    ] = None,
    earliest: Annotated[
        str | None, typer.Option(help="Never start before this time, approved or not.", metavar="TIME")
    ] = None,
    not_after: Annotated[
        str | None,
        typer.Option(
            help="The deadline: what has not started by this time is cancelled, and the maintenance ends as Failed.",
            metavar="TIME",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help="How long each machine is expected to be interrupted, like 90s or 1h30m; not the work on a host.",
            metavar="DURATION",
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="The description that guests see.", show_default=False)] = "",
    emergency: Annotated[
        bool, typer.Option("--emergency", help="Start everything at once, without notice.", show_default=False)
    ] = False,
    on_failure: Annotated[
        OnFailure, typer.Option(help="What happens to the other events when the work of one event fails.")
    ] = OnFailure.HOLD,
    group_by: Annotated[
        str,
        typer.Option(
            help="What is worked on together: update-domain, host, fault-domain, scope, or label:KEY.", metavar="GROUPS"
        ),
    ] = GroupBy.UPDATE_DOMAIN,
    max_parallel: Annotated[int, typer.Option(help="How many groups a wave has at most.", min=1)] = 1,
    canary: Annotated[
        int, typer.Option(help="How many groups the first wave has; 0: as many as the others.", min=0)
    ] = 0,
    bake: Annotated[
        str | None,
        typer.Option(help="How long to wait after a wave before the next is published, like 30m.", metavar="DURATION"),
    ] = None,
    max_failures: Annotated[
        str,
        typer.Option(
            help="With --on-failure continue: hold when so many orders failed, like 3 or 5%.",
            metavar="AMOUNT",
            show_default=False,
        ),
    ] = "",
    pause_after: Annotated[
        int,
        typer.Option(
            help="After this wave, wait for `forewarn maintenance continue`.",
            metavar="WAVE",
            min=0,
            show_default=False,
        ),
    ] = 0,
    window: Annotated[
        list[str] | None,
        typer.Option(
            help="Start only in this window, and in a window of the scope; may be repeated.",
            metavar="WINDOW",
            autocompletion=completion.windows,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan and its calendar.", show_default=False)
    ] = False,
    yes: Yes = False,
    no_notice_ok: NoNoticeOk = False,
    no_host_ok: NoHostOk = False,
    wait: Annotated[
        Until | None, typer.Option(help="Follow the maintenance until its first wave has started, or until it is done.")
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Show the plan, ask for confirmation, and schedule it."""
    hosts = list(dict.fromkeys(host or []))
    host_labels = ",".join(host_label or ())
    host_mode = _host_mode([*hosts, *(host_label or ())], evacuate=evacuate, in_place=in_place, to=to, return_=return_)
    chosen = {"labels": ",".join(label or ()), "names": name or [], "everything": all_, "host_labels": host_labels}
    targets = _targets(machine or [], scope or [], update_domain, hosts, chosen)
    types = [each for each, rules in EVENT_TYPES.items() if host_mode is None or host_mode in rules.host_modes]
    if type_ is None and host_mode is None:
        raise usage("--type: say what happens to the machines, or work on hosts with --evacuate or --in-place")
    type_ = type_ or types[0]
    if type_ not in types:
        raise usage(f"--{host_mode}: use --type {' or '.join(types)}, not {type_}")
    timeout_s = seconds("--timeout", timeout) if timeout is not None else None
    duration_s = seconds("--duration", duration) if duration is not None else -1
    now = session.now()
    request = {
        "type": type_.value,
        "targets": targets,
        "not_before": moment("--not-before", not_before, now),
        "earliest": moment("--earliest", earliest, now),
        "not_after": moment("--not-after", not_after, now),
        "duration_s": duration_s,
        "description": description,
        "emergency": emergency,
        "on_failure": on_failure.value,
        "strategy": {
            "group_by": group_by,
            "max_parallel": max_parallel,
            "canary": canary,
            "bake_s": seconds("--bake", bake) if bake is not None else 0,
            "max_failures": max_failures,
            "pause_after": pause_after,
            "windows": window or [],
        },
    }
    if host_mode is not None:
        request |= {"host_mode": host_mode.value, "return_machines": return_, "to_host": to or ""}
    plan = session.api.post("/v1/maintenances", request, {"dry_run": True})
    if dry_run and session.out.as_json:
        session.out.json(plan)
        return
    _show_plan(session, plan, request, now)
    if dry_run:
        return
    refuse_without_notice(plan["warnings"], no_notice_ok=no_notice_ok)
    refuse_without_host(plan["warnings"], no_host_ok=no_host_ok)
    otherwise = "nothing was scheduled: the plan was not confirmed; --yes schedules without a question"
    confirm("Schedule this for EVERY machine of the fleet?" if all_ else "Schedule this?", yes=yes, otherwise=otherwise)
    maintenance = session.api.post("/v1/maintenances", request, creating=True)
    if plan_text.shape(maintenance) != plan_text.shape(plan):
        session.out.aside(
            "the fleet changed meanwhile, and the maintenance differs from the plan: see `maintenance show`"
        )
    session.out.say(f"maintenance {maintenance['id']} is scheduled")
    if wait is not None:
        _wait(session, maintenance["id"], wait, timeout_s)
    elif session.out.as_json:
        session.out.json(maintenance)


@command(app, "list")
def list_maintenances(
    session: Session,
    status: Annotated[
        list[MaintenanceStatus] | None,
        typer.Option(help="Only maintenances with this status; may be repeated.", case_sensitive=False),
    ] = None,
    match: Match = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List maintenances, newest first."""
    query = {"status": [each.value for each in status or ()], "q": match}
    page = session.api.page("/v1/maintenances", query, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda maintenances: _rows(session, maintenances), empty="no maintenances")


@command(app, "show")
def show(
    session: Session,
    maintenance: Id,
    follow_it: Annotated[
        bool, typer.Option("--follow", help="Keep showing it until it is done.", show_default=False)
    ] = False,
) -> None:
    """Show a maintenance and its waves, once or until it is done."""
    maintenance_id = session.id_of("maintenance", maintenance)
    if follow_it:
        from forewarn.cli.live_maintenance import follow

        follow(session, maintenance_id, json_lines=True)
    else:
        _show(session, session.api.get(path_of("maintenances", maintenance_id)))


@command(app, "wait")
def wait_for(
    session: Session,
    maintenance: Id,
    until: Annotated[
        Until, typer.Option(help="Wait until the first wave has started, or until it is done.")
    ] = Until.DONE,
    timeout: Timeout = None,
) -> None:
    """Follow a maintenance to its end; the exit code is 0 only if it completed.

    The command ends with 1 and the reason when only an operator can move the maintenance. It waits through a pause.
    """
    timeout_s = seconds("--timeout", timeout) if timeout is not None else None
    _wait(session, session.id_of("maintenance", maintenance), until, timeout_s)


@command(app, "cancel")
def cancel(session: Session, maintenance: Id) -> None:
    """Cancel the events that have not started; started events run to their end."""
    _apply(session, maintenance, "cancel", unended=": what had not started is cancelled, the rest runs to its end")


@command(app, "pause")
def pause(session: Session, maintenance: Id) -> None:
    """Pause a maintenance: publish and start none of its events until it is resumed."""
    _apply(session, maintenance, "pause")


@command(app, "resume")
def resume(session: Session, maintenance: Id) -> None:
    """Continue a paused maintenance at once."""
    _apply(session, maintenance, "resume")


@command(app, "continue")
def continue_(session: Session, maintenance: Id) -> None:
    """Continue a maintenance that pauses after the wave of its --pause-after."""
    _apply(session, maintenance, "continue")


def _targets(
    machines: list[str], scopes: list[str], update_domain: int | None, hosts: list[str], chosen: dict[str, Any]
) -> dict[str, Any]:
    for option, given in (("--machine", machines), ("--scope", scopes), ("--host", hosts)):
        for name in given:
            if "," in name:
                raise usage(f"{option}: {name!r} is a list: write one name per {option}, and repeat the option")
    selected = {key: value for key, value in chosen.items() if value}
    of_scopes = bool(scopes or selected.keys() & {"labels", "names"})
    ways = (bool(machines), of_scopes, bool(hosts or "host_labels" in selected), "everything" in selected)
    if sum(ways) != 1:
        raise usage(
            "choose the machines in exactly one way: --machine M; --scope S, --label L and --name N, alone or together;"
            " --host H and --host-label L; or --all"
        )
    if update_domain is not None and len(scopes) != 1:
        raise usage("--update-domain: it needs exactly one --scope, the scope that contains the update domain")
    if machines:
        return {"machines": machines}
    if hosts or not scopes:
        return {"hosts": hosts, **selected} if hosts else selected
    if len(scopes) > 1:
        return {"scopes": scopes, **selected}
    domain = {} if update_domain is None else {"update_domain": update_domain}
    return {"scope": scopes[0], **domain, **selected}


def _host_mode(hosts: list[str], *, evacuate: bool, in_place: bool, to: str | None, return_: bool) -> HostMode | None:
    if evacuate and in_place:
        raise usage("--evacuate and --in-place exclude each other: choose one of them")
    if (to or return_) and not evacuate:
        raise usage("--to and --return need --evacuate, which moves the machines away before the work on their host")
    if (evacuate or in_place) and not hosts:
        raise usage(f"{'--evacuate' if evacuate else '--in-place'}: name the hosts with --host H or --host-label L")
    if to in hosts:
        raise usage(f"--to: {to} is one of the hosts to evacuate: choose another host")
    return HostMode.EVACUATE if evacuate else HostMode.IN_PLACE if in_place else None


def _show_plan(session: Session, plan: Json, request: Json, now: str) -> None:
    session.out.say(plan_text.summary(plan))
    session.out.say(f"targets: {target_names(plan)}")
    unknown = "unknown, because the work on hosts takes a time of its own" if plan["host_mode"] else "unknown"
    if steps := formatting.strategy(**plan["strategy"]):
        session.out.say(f"strategy: {steps}")
    session.out.say(f"estimated end: {when(plan['estimated_end'], now) or unknown}")
    if request["not_before"]:
        session.out.say(f"not before {when(request['not_before'], now)}, unless approved")
    if request["earliest"]:
        session.out.say(f"never before {when(request['earliest'], now)}, approved or not")
    if request["not_after"]:
        session.out.say(f"what has not started by {when(request['not_after'], now)} is cancelled")
    if plan["host_mode"]:
        session.out.table(plan_text.HOST_COLUMNS[plan["host_mode"]], plan_text.host_rows(plan))
        if len(plan["hosts"]) > 1:
            session.out.say("the events of the first host; those of the others are planned when their turn comes:")
    session.out.table(plan_text.COLUMNS, plan_text.rows(plan), empty="no machines")
    plan_text.show_calendar(session.out, plan)
    for warning in plan["warnings"]:
        session.out.say(f"! {warning['message']}")
    for message in plan_text.blockers(plan):
        session.out.say(f"! blocked: {message}")


def _wait(session: Session, maintenance_id: str, until: Until, timeout_s: int | None) -> None:
    """Follow a maintenance, and print it if JSON is wanted. Raise Failed unless it came to what the command waited for."""
    from forewarn.cli.live_maintenance import follow, reached, why_operator

    maintenance = follow(session, maintenance_id, until=until.value, timeout_s=timeout_s, stop_for_operator=True)
    if session.out.as_json:
        session.out.json(maintenance)
    status = maintenance["status"]
    if not reached(maintenance, until.value):
        hints = "".join(f"; {line}" for line in maintenance_hints(maintenance, session.role))
        raise Failed(
            f"only an operator can move maintenance {maintenance_id}, {maintenance_state(maintenance)}:"
            f" {why_operator(maintenance)}{hints}"
        )
    started = any(event["started"] for event in plan_text.events_of(maintenance))
    if status in ("Cancelled", "Failed") and not (until is Until.STARTED and started):
        raise Failed(f"maintenance {maintenance['id']} ended as {status}: see `forewarn maintenance show`")


@command(app, "skip-host")
def skip_host(
    session: Session,
    maintenance: Id,
    host: Host,
    yes: Yes = False,
) -> None:
    """Leave one host out: its events that have not started and its work are cancelled.

    Machines that left the host stay away, also with --return. The host stays cordoned if its turn had begun.
    """
    otherwise = "no host was skipped: this was not confirmed; --yes skips without a question"
    confirm(
        f"Leave host {host} out? Machines that left it stay away, and it stays cordoned if its turn had begun.",
        yes=yes,
        otherwise=otherwise,
    )
    path = session.path_to("maintenance", maintenance, "hosts", host, "skip")
    changed = session.api.post(path)
    session.out.result(changed, f"host {host} is skipped; maintenance {changed['id']} is {maintenance_state(changed)}")
    if session.api.get(path_of("hosts", host)).get("cordoned"):
        session.out.aside(f"host {host} is cordoned: `forewarn host uncordon {host}` lets machines go there again")
    if changed["return_machines"]:
        session.out.aside(
            "machines that left it stay where they are: to empty host OTHER into it, run"
            f" `forewarn maintenance schedule --host OTHER --evacuate --to {host}`"
        )


@command(app, "reschedule-host")
def reschedule_host(session: Session, maintenance: Id, host: Host, not_before: NewTime) -> None:
    """Reschedule a host whose machines have not begun to leave. Hosts that were not rescheduled come before it."""
    body = {"not_before": moment("--not-before", not_before, session.now())}
    changed = session.api.post(session.path_to("maintenance", maintenance, "hosts", host, "reschedule"), body)
    session.out.result(changed, f"host {host} has its turn at {full_time(body['not_before'])} or later")


@command(app, "retry-failed")
def retry_failed(session: Session, maintenance: Id) -> None:
    """Retry every order of a maintenance that failed; orders in doubt stay as they are."""
    _apply(session, maintenance, "retry-failed")


def _apply(session: Session, maintenance: str, verb: str, *, unended: str = "") -> None:
    """Change a maintenance and print its state, with `unended` if it has not ended."""
    changed = session.api.post(session.path_to("maintenance", maintenance, verb))
    more = "" if changed["ended"] else unended
    session.out.result(changed, f"maintenance {changed['id']} is {maintenance_state(changed)}{more}")


def _rows(session: Session, maintenances: list[Json]) -> Rows:
    id_texts = session.out.id_texts(each["id"] for each in maintenances)
    return [
        (
            id_texts[each["id"]],
            maintenance_state(each),
            each["type"] + (" (emergency)" if each["emergency"] else ""),
            target_names(each),
            progress(each),
            full_time(each["estimated_end"]),
            each["source"],
            full_time(each["created"]),
            each["created_by"],
            full_time(each["not_before"]),
            full_time(each["earliest"]),
            each["description"],
        )
        for each in maintenances
    ]


def _show(session: Session, maintenance: Json) -> None:
    if session.out.as_json:
        session.out.json(maintenance)
        return
    now = session.now()
    emergency = ", emergency" if maintenance["emergency"] else ""
    session.out.facts(
        maintenance,
        [
            ("maintenance", maintenance["id"]),
            ("status", maintenance_state(maintenance)),
            *(("to do", line) for line in maintenance_hints(maintenance, session.role)),
            ("type", f"{maintenance['type']} by {maintenance['source']}{emergency}"),
            ("targets", target_names(maintenance) or "not kept"),
            ("progress", progress(maintenance)),
            ("estimated end", when(maintenance["estimated_end"], now) or ("" if maintenance["ended"] else "unknown")),
            ("description", maintenance["description"]),
            ("duration", "unknown" if maintenance["duration_s"] < 0 else span(maintenance["duration_s"])),
            ("created", f"{full_time(maintenance['created'])} by {maintenance['created_by']}"),
            ("not before", when(maintenance["not_before"], now)),
            ("earliest", when(maintenance["earliest"], now)),
            ("drill", "nothing touches the machines" if maintenance["drill_hold_s"] else ""),
            ("deadline", _deadline(maintenance, now)),
            ("on failure", maintenance["on_failure"]),
            ("strategy", formatting.strategy(**maintenance["strategy"])),
            ("ended", full_time(maintenance["ended"])),
        ],
    )
    session.out.heading(plan_text.summary(maintenance))
    _show_hosts(session, maintenance, now)
    events = plan_text.events_of(maintenance)
    id_texts = session.out.id_texts(event["id"] for event in events)
    rows = [
        (
            event["wave"],
            id_texts[event["id"]],
            event["status"],
            update_domain_name(event),
            ", ".join(event["resources"]),
            full_time(event["not_before"]),
            ", ".join(approval["who"] for approval in event["approved_by"]),
            waits_for(event, now),
        )
        for event in events
    ]
    session.out.table(EVENT_COLUMNS, rows)


def _deadline(maintenance: Json, now: str) -> str:
    deadline, ended = maintenance["not_after"], maintenance["ended"]
    passed = ", passed: what had not started by then was cancelled" if deadline and ended and ended >= deadline else ""
    return when(deadline, now) + passed


def _show_hosts(session: Session, maintenance: Json, now: str) -> None:
    if not maintenance["hosts"]:
        return
    id_texts = session.out.id_texts(host["order_id"] for host in maintenance["hosts"])
    rows = [
        (
            turn,
            host["host"],
            id_texts[host["order_id"]],
            host["state"],
            names(host["machines"]),
            host["reason"] if host["ended"] else reasons(host, now),
        )
        for turn, host in enumerate(maintenance["hosts"], start=1)
    ]
    session.out.table(HOST_COLUMNS, rows)
