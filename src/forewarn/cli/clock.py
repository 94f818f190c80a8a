"""`forewarn clock`: show the service's time, and move a manual or scaled clock."""

from typing import Annotated

import typer

from forewarn.cli.api import Json
from forewarn.cli.formatting import full_time
from forewarn.cli.hints import HINTS
from forewarn.cli.options import seconds
from forewarn.cli.session import Session, command, group

app = group("clock", "Show and move the service's clock.")


@command(app, "show")
def show(session: Session) -> None:
    """Show the service's time and the kind of its clock."""
    _show(session, session.api.get("/v1/clock"))


@command(app, "advance")
def advance(
    session: Session,
    by: Annotated[str, typer.Argument(metavar="DURATION", help="How far, like 90s, 15m or 1h30m.", show_default=False)],
) -> None:
    """Move a manual or scaled clock forward; everything that becomes due on the way happens."""
    _show(session, session.api.post("/v1/clock/advance", {"seconds": seconds("DURATION", by)}))


@command(app, "confirm")
def confirm(session: Session) -> None:
    """Confirm that a clock that jumped forward is right; events that waited for this can start."""
    _show(session, session.api.post("/v1/clock/confirm"))


def _show(session: Session, clock: Json) -> None:
    kind = f" ({clock['kind']})" if "kind" in clock else ""
    lines = [f"{full_time(clock['now'])}{kind}"]
    if held := clock.get("held"):
        roles, confirm = HINTS["clock"]
        hint = f"; {confirm}" if session.role in roles else ""
        lines.append(
            f"held: it jumped forward by {held['jumped_s']} s after {full_time(held['trusted'])}, and no event"
            f" starts by time alone{hint}"
        )
    session.out.result(clock, *lines)
