"""`forewarn machine`: the inventory, and what a machine's user may ask for."""

from typing import Annotated

import typer

from forewarn.cli.event import show_event
from forewarn.cli.formatting import shown_time
from forewarn.cli.session import Cursor, Limit, Session, command, group

app = group("machine", "The machines, and restarting or redeploying one as its user.")

COLUMNS = ("machine", "update domain", "fault domain", "host", "addresses", "last seen")

Name = Annotated[
    str,
    typer.Argument(
        metavar="MACHINE", help="scope/name, or the name alone where only one machine has it.", show_default=False
    ),
]


@command(app, "list")
def list_machines(
    desk: Session,
    scope: Annotated[str | None, typer.Option(help="Only this scope's.")] = None,
    host: Annotated[str | None, typer.Option(help="Only those this host carries.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """The inventory by name, and when each machine was last seen."""
    page = desk.listed("/v1/machines", {"scope": scope, "host": host}, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    rows = [
        (
            f"{machine['scope']}/{machine['name']}",
            machine["update_domain"],
            machine["fault_domain"],
            machine["host"],
            " ".join(machine["addresses"]),
            shown_time(machine["last_seen"]) or "never",
        )
        for machine in page["items"]
    ]
    desk.out.table(COLUMNS, rows, empty="no machines")
    desk.more(page)


@command(app, "show")
def show(desk: Session, machine: Name) -> None:
    """One machine: its place, its identity, when it was last seen."""
    found = desk.api.get(desk.machine_path(machine))
    if desk.out.as_json:
        desk.out.json(found)
        return
    desk.out.facts(
        [
            ("machine", f"{found['scope']}/{found['name']}"),
            ("update domain", found["update_domain"]),
            ("fault domain", found["fault_domain"]),
            ("host", found["host"]),
            ("addresses", " ".join(found["addresses"])),
            ("interface", found["interface"]),
            ("instance id", found["instance_id"]),
            ("last seen", shown_time(found["last_seen"]) or "never"),
        ]
    )


@command(app, "restart")
def restart(desk: Session, machine: Name) -> None:
    """Restart it as its user would: an event of its own, with the notice its scope is due."""
    show_event(desk, desk.api.post(desk.machine_path(machine, "restart"), creating=True))


@command(app, "redeploy")
def redeploy(desk: Session, machine: Name) -> None:
    """Move it to another host as its user would: an event of its own, with the notice its scope is due."""
    show_event(desk, desk.api.post(desk.machine_path(machine, "redeploy"), creating=True))
