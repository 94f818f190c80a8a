"""`forewarn clock`: the service's time; a manual or scaled clock can be moved."""

from typing import Annotated

import typer

from forewarn.cli.desk import Desk, command, group, usage
from forewarn.cli.words import shown_time
from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid

app = group("clock", "The service's time.")


@command(app, "show")
def show(desk: Desk) -> None:
    """What time it is for the service, and what kind of clock it has."""
    _show(desk, desk.api.get("/v1/clock"))


@command(app, "advance")
def advance(
    desk: Desk,
    by: Annotated[str, typer.Argument(metavar="DURATION", help="How far, like 90s, 15m or 2h.", show_default=False)],
) -> None:
    """Move a manual or scaled clock forward; everything that is due on the way happens."""
    try:
        seconds = parse_duration(by)
    except Invalid as error:
        raise usage(str(error)) from None
    _show(desk, desk.api.post("/v1/clock/advance", {"seconds": seconds}))


def _show(desk: Desk, answer: dict[str, str]) -> None:
    if desk.out.as_json:
        desk.out.json(answer)
    else:
        kind = f" ({answer['kind']})" if "kind" in answer else ""
        desk.out.say(f"{shown_time(answer['now'])}{kind}")
