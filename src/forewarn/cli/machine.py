"""`forewarn machine`: show machines, and restart or redeploy one as its user."""

from typing import Annotated

import typer

from forewarn.cli.client import Json
from forewarn.cli.event import show_event
from forewarn.cli.formatting import full_time
from forewarn.cli.session import Cursor, Limit, Session, command, group

app = group("machine", "Show machines, and restart or redeploy one as its user.")

COLUMNS = ("machine", "update domain", "fault domain", "host", "addresses", "last seen")

Name = Annotated[
    str,
    typer.Argument(
        metavar="MACHINE",
        help="scope/name, or the name alone if only one machine has it.",
        show_default=False,
    ),
]


@command(app, "list")
def list_machines(
    session: Session,
    scope: Annotated[str | None, typer.Option(help="Only machines of this scope.")] = None,
    host: Annotated[str | None, typer.Option(help="Only machines on this host.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List machines by name, and when each was last seen."""
    page = session.api.page("/v1/machines", {"scope": scope, "host": host}, limit=limit, cursor=cursor)
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
            ("last seen", full_time(facts["last_seen"]) or "never"),
        ],
    )


@command(app, "restart")
def restart(session: Session, machine: Name) -> None:
    """Restart a machine as its user: an event of the source User, with the notice that its scope requires."""
    show_event(session, session.api.post(session.machine_path(machine, "restart"), creating=True))


@command(app, "redeploy")
def redeploy(session: Session, machine: Name) -> None:
    """Move a machine to another host as its user: an event of the source User, with the notice its scope requires."""
    show_event(session, session.api.post(session.machine_path(machine, "redeploy"), creating=True))


def _row(machine: Json) -> tuple[object, ...]:
    return (
        f"{machine['scope']}/{machine['name']}",
        machine["update_domain"],
        machine["fault_domain"],
        machine["host"],
        " ".join(machine["addresses"]),
        full_time(machine["last_seen"]) or "never",
    )
