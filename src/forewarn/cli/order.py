"""`forewarn order`: take the orders of started events and of hosts, and report how the work ended."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Json
from forewarn.cli.formatting import full_time
from forewarn.cli.options import cannot_read, usage
from forewarn.cli.output import Rows
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.formatting import names

app = group("order", "Take the orders of started events and of hosts, and report how the work ended.")

COLUMNS = ("order", "state", "type", "scope", "machines", "hosts", "issued", "deadline", "attempt", "by", "reason")
MAX_OUTPUT_CHARS = 65_536


class OrderStateOption(StrEnum):
    PLANNED = "planned"
    OPEN = "open"
    RUNNING = "running"
    IN_DOUBT = "in-doubt"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    ALL = "all"


Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The order's id; of an event's order it is the event's id.",
        show_default=False,
        autocompletion=completion.orders,
    ),
]
OutputFile = Annotated[
    Path | None, typer.Option(help="A file, such as a log of the work; its end is kept with the order.")
]


@command(app, "list")
def list_orders(
    session: Session,
    state: Annotated[
        OrderStateOption | None, typer.Option(help="Only orders in this state. [default: open; with --match all]")
    ] = None,
    match: Match = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List the open orders, which can be taken, or those in another state."""
    state = state or (OrderStateOption.OPEN if match is None else OrderStateOption.ALL)
    query = {"state": None if state is OrderStateOption.ALL else state.value, "q": match}
    page = session.api.page("/v1/orders", query, limit=limit, cursor=cursor)
    empty = "no orders" if state is OrderStateOption.ALL else f"no {state} orders"
    session.show_page(page, COLUMNS, lambda orders: _rows(session, orders), empty=empty)


@command(app, "start")
def start(session: Session, order: Id) -> None:
    """Take an order, before you begin its work."""
    _show(session, session.api.post(session.path_to("order", order, "start")))


@command(app, "finish")
def finish(
    session: Session,
    order: Id,
    new_host: Annotated[
        list[str] | None,
        typer.Option(
            help="The new host of a machine that moved, like shop/web-0=rack2-b; may be repeated.",
            metavar="MACHINE=HOST",
        ),
    ] = None,
    output: OutputFile = None,
) -> None:
    """Report that the work is done, and the new hosts of machines that moved."""
    body = {"new_hosts": _new_hosts(new_host or []), "output": _read_end(output)}
    _show(session, session.api.post(session.path_to("order", order, "finish"), body))


@command(app, "fail")
def fail(
    session: Session,
    order: Id,
    reason: Annotated[str, typer.Option(help="Why the work failed, in one sentence.", show_default=False)],
    output: OutputFile = None,
) -> None:
    """Report that the work failed; the maintenance's on_failure decides how the rest continues."""
    body = {"reason": reason, "output": _read_end(output)}
    _show(session, session.api.post(session.path_to("order", order, "fail"), body))


@command(app, "show")
def show(session: Session, order: Id) -> None:
    """Show an order: what to do, where machines may go, and how it ended."""
    found = session.api.get(session.path_to("order", order))
    targets = (f"{machine}: {' '.join(hosts)}" for machine, hosts in found.get("targets", {}).items())
    session.out.facts(
        found,
        [
            ("order", found["id"]),
            ("state", found["state"]),
            ("maintenance", found["maintenance_id"]),
            ("work", _work(found)),
            *((("phase", found["phase"]),) if found["phase"] else ()),
            ("hosts", " ".join(found["hosts"])),
            *(("target", each) for each in targets),
            ("attempt", found["attempt"]),
            ("issued", full_time(found["issued"])),
            ("deadline", full_time(found["deadline"])),
            ("taken", f"{full_time(found['taken'])} by {found['node']}" if found["taken"] else ""),
            ("ended", full_time(found["ended"])),
            ("reason", found["reason"]),
            ("output", found["output"]),
        ],
    )


@command(app, "retry")
def retry(session: Session, order: Id) -> None:
    """Retry an order of a host that failed or is in doubt. For the order of an event, use `forewarn event retry`."""
    _show(session, session.api.post(session.path_to("order", order, "retry")))


@command(app, "abandon")
def abandon(session: Session, order: Id) -> None:
    """Abandon an order of a host that failed or is in doubt. Its work stays undone, and the host stays cordoned."""
    _show(session, session.api.post(session.path_to("order", order, "abandon")))


def _new_hosts(options: list[str]) -> dict[str, str]:
    hosts = {}
    for text in options:
        machine, equals, host = text.partition("=")
        if not (machine and equals and host):
            raise usage(f"--new-host: {text!r}: write a machine and a host, like shop/web-0=rack2-b")
        hosts[machine] = host
    return hosts


def _read_end(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text("utf-8", "replace")[-MAX_OUTPUT_CHARS:]
    except OSError as error:
        raise cannot_read(f"--output: {path}", error) from None


def _rows(session: Session, orders: list[Json]) -> Rows:
    id_texts = session.out.id_texts(order["id"] for order in orders)
    return [
        (
            id_texts[order["id"]],
            order["state"],
            "work on host" if order["host"] else order["type"],
            order["scope"],
            ", ".join(order["machines"]),
            ", ".join(order["hosts"]),
            full_time(order["issued"]),
            full_time(order["deadline"]),
            order["attempt"],
            order["node"],
            order["reason"],
        )
        for order in orders
    ]


def _show(session: Session, order: Json) -> None:
    reason = f": {order['reason']}" if order["reason"] else ""
    session.out.result(
        order,
        f"order {order['id']} is {order['state']}{reason} ({_work(order)}, attempt {order['attempt']})",
    )


def _work(order: Json) -> str:
    if order["host"]:
        return f"the work on host {order['host']}"
    return f"{order['type']} of {names(order['machines'])} in {order['scope']}"
