"""`forewarn machine`: show machines, and restart or redeploy one as its user."""

from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Json
from forewarn.cli.confirmation import NoNoticeOk, Yes, confirm, refuse_without_notice
from forewarn.cli.event import show_event
from forewarn.cli.formatting import full_time, label_texts
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group

app = group("machine", "Show machines, and restart or redeploy one as its user.")

COLUMNS = ("machine", "update domain", "fault domain", "host", "addresses", "labels", "last seen")

Name = Annotated[
    str,
    typer.Argument(
        metavar="MACHINE",
        help="scope/name, or the name alone if only one machine has it.",
        show_default=False,
        autocompletion=completion.machines,
    ),
]


@command(app, "list")
def list_machines(
    session: Session,
    scope: Annotated[
        str | None, typer.Option(help="Only machines of this scope.", autocompletion=completion.scopes)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Only machines on this host.", autocompletion=completion.hosts)
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Only machines with these labels, like rack=a3,!gpu; may be repeated.", metavar="SELECTOR"),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Only machines with a name like web-* or shop/*; may be repeated.", metavar="PATTERN"),
    ] = None,
    match: Match = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List machines by name, and when each was last seen."""
    query = {"scope": scope, "host": host, "labels": ",".join(label or ()) or None, "names": name, "q": match}
    page = session.api.page("/v1/machines", query, limit=limit, cursor=cursor)
    session.refuse_unknown(page, scope=scope, host=host)
    session.show_page(page, COLUMNS, lambda machines: [_row(machine) for machine in machines], empty="no machines")


@command(app, "show")
def show(session: Session, machine: Name) -> None:
    """Show where a machine is, how it is identified, and when it was last seen."""
    facts = session.api.get(session.machine_path(machine))
    session.out.facts(
        facts,
        [
            ("machine", f"{facts['scope']}/{facts['name']}"),
            ("update domain", facts["update_domain"]),
            ("fault domain", facts["fault_domain"]),
            ("host", facts["host"]),
            ("addresses", " ".join(facts["addresses"])),
            ("interface", facts["interface"]),
            ("instance id", facts["instance_id"]),
            ("labels", label_texts(facts)),
            ("last seen", full_time(facts["last_seen"]) or "never"),
        ],
    )


@command(app, "restart")
def restart(session: Session, machine: Name, yes: Yes = False, no_notice_ok: NoNoticeOk = False) -> None:
    """Restart a machine as its user: an event of the source User, with the notice that its scope requires."""
    _request(session, machine, "restart", yes=yes, no_notice_ok=no_notice_ok)


@command(app, "redeploy")
def redeploy(session: Session, machine: Name, yes: Yes = False, no_notice_ok: NoNoticeOk = False) -> None:
    """Move a machine to another host as its user: an event of the source User, with the notice its scope requires."""
    _request(session, machine, "redeploy", yes=yes, no_notice_ok=no_notice_ok)


def _request(session: Session, machine: str, verb: str, *, yes: bool, no_notice_ok: bool) -> None:
    """Create the event; ask first if the plan has warnings other than an accepted lack of notice."""
    from forewarn.core.plan_warnings import NO_NOTICE  # here, because it imports most of the core

    path = session.machine_path(machine, verb)
    planned = session.api.post(path, query={"dry_run": True})["warnings"]
    for warning in planned:
        session.out.aside(f"! {warning['message']}")
    refuse_without_notice(planned, no_notice_ok=no_notice_ok)
    if any(warning["code"] != NO_NOTICE for warning in planned):
        otherwise = f"nothing was scheduled: it was not confirmed; --yes {verb}s without a question"
        confirm(f"{verb.capitalize()} {machine}?", yes=yes, otherwise=otherwise)
    event = session.api.post(path, creating=True)
    for warning in event["warnings"]:
        if warning not in planned:
            session.out.aside(f"! meanwhile: {warning['message']}")
    show_event(session, event)


def _row(machine: Json) -> tuple[object, ...]:
    return (
        f"{machine['scope']}/{machine['name']}",
        machine["update_domain"],
        machine["fault_domain"],
        machine["host"],
        " ".join(machine["addresses"]),
        label_texts(machine),
        full_time(machine["last_seen"]) or "never",
    )
