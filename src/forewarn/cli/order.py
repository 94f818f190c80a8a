"""`forewarn order`: the work of started events, for whoever does it: take an order, do it, report its end."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.client import path_of
from forewarn.cli.formatting import Json, names, shortened, shown_time
from forewarn.cli.session import Cursor, Limit, Session, command, group, usage

app = group("order", "The work of started events, for whoever does it.")

COLUMNS = ("order", "state", "type", "scope", "machines", "issued", "deadline", "attempt", "by", "reason")
MAX_OUTPUT_CHARS = 65_536


class OrderStateOption(StrEnum):
    OPEN = "open"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ALL = "all"


Id = Annotated[str, typer.Argument(metavar="ID", help="The order's id, which is its event's.", show_default=False)]
Output = Annotated[Path | None, typer.Option(help="A file whose end is kept with the order, such as the work's log.")]


@command(app, "list")
def list_orders(
    desk: Session,
    state: Annotated[OrderStateOption, typer.Option(help="Only those in this state.")] = OrderStateOption.OPEN,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """The orders that wait to be taken, or those in another state."""
    page = desk.listed("/v1/orders", {"state": None if state is OrderStateOption.ALL else state.value}, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    short = shortened(order["id"] for order in page["items"]) if desk.out.terminal else {}
    desk.out.table(COLUMNS, [_row(order, short) for order in page["items"]], empty=f"no {state} orders")
    desk.more(page)


@command(app, "start")
def start(desk: Session, order: Id) -> None:
    """Take an order: from now on it is yours to do."""
    _show(desk, desk.api.post(path_of("orders", desk.event_id(order), "start")))


@command(app, "finish")
def finish(
    desk: Session,
    order: Id,
    new_host: Annotated[
        list[str] | None,
        typer.Option(help="Where a machine is now, like shop/web-0=rack2-b; may be repeated.", metavar="MACHINE=HOST"),
    ] = None,
    output: Output = None,
) -> None:
    """Report that the work is done, and where machines are now if they moved."""
    body = {"new_hosts": _new_hosts(new_host or []), "output": _output(output)}
    _show(desk, desk.api.post(path_of("orders", desk.event_id(order), "finish"), body))


@command(app, "fail")
def fail(
    desk: Session,
    order: Id,
    reason: Annotated[str, typer.Option(help="Why, in a sentence.", show_default=False)],
    output: Output = None,
) -> None:
    """Report that the work failed; the maintenance's on_failure says what becomes of the rest."""
    body = {"reason": reason, "output": _output(output)}
    _show(desk, desk.api.post(path_of("orders", desk.event_id(order), "fail"), body))


def _new_hosts(said: list[str]) -> dict[str, str]:
    hosts = {}
    for text in said:
        machine, equals, host = text.partition("=")
        if not (machine and equals and host):
            raise usage(f"--new-host: {text!r}: write a machine and a host, like shop/web-0=rack2-b")
        hosts[machine] = host
    return hosts


def _output(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text("utf-8", "replace")[-MAX_OUTPUT_CHARS:]
    except OSError as error:
        raise usage(f"--output: {path}: cannot be read: {error.strerror}") from None


def _row(order: Json, short: dict[str, str]) -> tuple[object, ...]:
    return (
        short.get(order["id"], order["id"]),
        order["state"],
        order["type"],
        order["scope"],
        names(order["machines"], most=1_000),
        shown_time(order["issued"]),
        shown_time(order["deadline"]),
        order["attempt"],
        order["node"],
        order["reason"],
    )


def _show(desk: Session, order: Json) -> None:
    if desk.out.as_json:
        desk.out.json(order)
        return
    because = f": {order['reason']}" if order["reason"] else ""
    desk.out.say(
        f"order {order['id']} is {order['state']}{because}"
        f" ({order['type']} of {names(order['machines'])} in {order['scope']}, attempt {order['attempt']})"
    )
