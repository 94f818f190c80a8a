"""Ask before something that may surprise. `--yes` answers the question; a plan without notice needs `--no-notice-ok` too."""

from collections.abc import Iterable
from typing import Annotated

import typer

from forewarn.cli.api import Failed, Json
from forewarn.cli.options import usage

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.", show_default=False)]
NoNoticeOk = Annotated[
    bool, typer.Option("--no-notice-ok", help="Also schedule a plan that gives no notice.", show_default=False)
]
NoHostOk = Annotated[
    bool,
    typer.Option("--no-host-ok", help="Also schedule a plan in which a machine can go to no host.", show_default=False),
]


def refuse_without_notice(warnings: Iterable[Json], *, no_notice_ok: bool) -> None:
    """End the command if the plan gives no notice, unless the user accepted this beforehand."""
    from forewarn.core.plan_warnings import NO_NOTICE  # here, because it imports most of the core

    _refuse(warnings, NO_NOTICE, "--no-notice-ok", accepted=no_notice_ok)


def refuse_without_host(warnings: Iterable[Json], *, no_host_ok: bool) -> None:
    """End the command if a machine can go to no host in the plan, unless the user accepted this beforehand."""
    from forewarn.core.plan_warnings import NO_TARGET

    _refuse(warnings, NO_TARGET, "--no-host-ok", accepted=no_host_ok)


def _refuse(warnings: Iterable[Json], code: str, option: str, *, accepted: bool) -> None:
    messages = [warning["message"] for warning in warnings if warning["code"] == code]
    if messages and not accepted:
        raise usage(f"nothing was scheduled: {'; '.join(messages)}; add {option} to schedule it anyway")


def confirm(question: str, *, yes: bool, otherwise: str) -> None:
    """Ask on the terminal; without a yes the command fails with `otherwise`."""
    if yes:
        return
    try:
        confirmed = typer.confirm(question, err=True)
    except typer.Abort:
        confirmed = False
        typer.echo(err=True)  # the cursor is still on the line of the question
    if not confirmed:
        raise Failed(otherwise)
