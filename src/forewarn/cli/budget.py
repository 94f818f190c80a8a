"""`forewarn budget`: how many hosts and machines of the fleet may be down at once, and how many are."""

from typing import Annotated

import typer

from forewarn.cli.api import Json
from forewarn.cli.session import Session, command, group
from forewarn.core.fleet_rules import MAX_LIMIT
from forewarn.core.formatting import names

app = group("budget", "Show and set how many hosts and machines of the fleet may be down at once.")


@command(app, "show")
def show(session: Session) -> None:
    """Show the budgets of the fleet, and what uses them."""
    _show(session, session.api.get("/v1/budget"))


@command(app, "set")
def set_budget(
    session: Session,
    max_hosts_down: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_LIMIT, help="How many hosts may be down at once; 0 for any number."),
    ] = None,
    max_machines_down: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_LIMIT, help="How many machines may be down at once; 0 for any number."),
    ] = None,
) -> None:
    """Change the budgets named by options. What is published stays published."""
    given = {"max_hosts_down": max_hosts_down, "max_machines_down": max_machines_down}
    body = {key: value for key, value in given.items() if value is not None}
    _show(session, session.api.post("/v1/budget", body))


def _show(session: Session, budget: Json) -> None:
    session.out.facts(
        budget,
        [
            ("max hosts down", budget["max_hosts_down"] or "no limit"),
            ("hosts down", _with_names(budget["hosts_down"], budget["hosts"])),
            ("max machines down", budget["max_machines_down"] or "no limit"),
            ("machines down", budget["machines_down"]),
            ("in events", names(budget["events"]) or "none"),
        ],
    )


def _with_names(number: int, hosts: list[str]) -> str:
    return f"{number} ({names(hosts)})" if hosts else "0"
