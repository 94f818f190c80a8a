"""`forewarn host`: show the hosts that carry machines, and cordon or uncordon one."""

from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Json, path_of
from forewarn.cli.formatting import label_texts, when
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group

app = group("host", "Show hosts, and cordon or uncordon one.")

# The states of an order of a host whose work is neither over nor still to come.
UNENDED = ["open", "running", "in-doubt", "failed"]
MAX_ORDERS = 500
IN_MAINTENANCE = "in-maintenance"
COLUMNS = ("host", "state", "machines", "fault domain", "labels", "connection")

HostArgument = Annotated[
    str, typer.Argument(metavar="HOST", help="A host's name.", show_default=False, autocompletion=completion.hosts)
]


@command(app, "list")
def list_hosts(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List hosts by name: those that carry machines, those that the fleet lists, and those that are cordoned.

    An owner sees the hosts of the owner's machines, without the rest."""
    page = session.api.page("/v1/hosts", {"q": match}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda hosts: [_row(host) for host in hosts], empty="no hosts")


@command(app, "show")
def show(session: Session, host: HostArgument) -> None:
    """Show what is known of a host. `machine list --host` lists its machines."""
    found = session.api.get(path_of("hosts", host))
    facts: list[tuple[str, object]] = [("host", found["name"]), ("machines", found["machines"])]
    if "state" in found:
        facts += [
            ("state", found["state"]),
            ("fault domain", found["fault_domain"]),
            ("labels", label_texts(found)),
            ("connection", found["connection"]),
            ("listed", found["listed"]),
        ]
        if found["cordoned"]:
            who = f"maintenance {found['cordoned_by']}" if found["cordoned_by"] else "an operator"
            ended = ", which has ended" if found["cordon_left"] else ""
            facts.append(("cordoned", f"{when(found['cordoned'], session.now())} by {who}{ended}"))
        if found["state"] == IN_MAINTENANCE:
            orders = session.api.page("/v1/orders", {"state": UNENDED, "q": host}, limit=MAX_ORDERS)["items"]
            facts += [("work", _work(order)) for order in orders if order["host"] == host]
    session.out.facts(found, facts)


@command(app, "cordon")
def cordon(session: Session, host: HostArgument) -> None:
    """Cordon a host: forewarn sends no machine to it until it is uncordoned. Its machines stay."""
    found = session.api.post(path_of("hosts", host, "cordon"))
    session.out.result(found, f"host {found['name']} is cordoned; it carries {found['machines']} machine(s)")


@command(app, "uncordon")
def uncordon(session: Session, host: HostArgument) -> None:
    """Lift the cordon of a host: forewarn may send machines to it again."""
    found = session.api.post(path_of("hosts", host, "uncordon"))
    but = ", but it stays in maintenance: forewarn sends no machine there" if found["state"] == IN_MAINTENANCE else ""
    session.out.result(found, f"host {found['name']} is not cordoned any more{but}")


def _work(order: Json) -> str:
    reason = f" ({order['reason']})" if order["reason"] else ""
    return f"order {order['id']} is {order['state']}{reason}"


def _row(host: Json) -> tuple[object, ...]:
    """Return a row; an owner's has only the name and the number of machines."""
    return (
        host["name"],
        f"{host.get('state', '')}{' (maintenance ended)' if host.get('cordon_left') else ''}",
        host["machines"],
        host.get("fault_domain", ""),
        label_texts(host),
        host.get("connection", ""),
    )
