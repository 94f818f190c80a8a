"""`forewarn clock`: the service's time; a manual or scaled clock can be moved."""

from typing import Annotated

import typer

from forewarn.cli.formatting import Json, shown_time
from forewarn.cli.session import Session, command, group, usage
from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid

app = group("clock", "The service's time.")


@command(app, "show")
def show(desk: Session) -> None:
    """What time it is for the service, and what kind of clock it has."""
    _show(desk, desk.api.get("/v1/clock"))


@command(app, "advance")
def advance(
    desk: Session,
    by: Annotated[str, typer.Argument(metavar="DURATION", help="How far, like 90s, 15m or 2h.", show_default=False)],
) -> None:
    """Move a manual or scaled clock forward; everything that is due on the way happens."""
    try:
        seconds = parse_duration(by)
    except Invalid as error:
        raise usage(str(error)) from None
    _show(desk, desk.api.post("/v1/clock/advance", {"seconds": seconds}))


@command(app, "confirm")
def confirm(desk: Session) -> None:
    """Say that a clock which jumped forward is right: events that waited for this start by it."""
    _show(desk, desk.api.post("/v1/clock/confirm"))


def _show(desk: Session, answer: Json) -> None:
    if desk.out.as_json:
        desk.out.json(answer)
    else:
        kind = f" ({answer['kind']})" if "kind" in answer else ""
        desk.out.say(f"{shown_time(answer['now'])}{kind}")
        if held := answer.get("held"):
            desk.out.say(
                f"held: it jumped forward by {held['jumped_s']} s after {shown_time(held['trusted'])}; what waits for time alone"
                " does not start: check the clock, then say `forewarn clock confirm`"
            )
