"""`forewarn conform`: any agent, as a program, against the behaviours an agent should have."""

import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.output import Output
from forewarn.cli.session import usage
from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid


def conform(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            help="The agent, after `--`; {endpoint}, {machine}, {folder}, {prepared} and {recovered} are filled in.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        str, typer.Option(metavar="CLAIM,…", help="What the agent does not claim, and is not tried for.")
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this behaviour; may be repeated.", show_default=False)
    ] = None,
    parallel: Annotated[int, typer.Option(help="How many behaviours at once.")] = 4,
    real_time: Annotated[
        bool,
        typer.Option(
            "--real-time",
            help="410 and 404 for 70 real seconds, a first answer after 120, as documented; else shorter.",
            show_default=False,
        ),
    ] = False,
    patience: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the agent may take for whatever it is to do.")
    ] = "10s",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.", show_default=False)
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write it as JUnit XML.", show_default=False)
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Say what is tried, and why; try nothing.", show_default=False)
    ] = False,
) -> None:
    """Try an agent, in any language, against the behaviours that keep a machine safe; 1 if it lacks any that it claims."""
    from forewarn.testing import conform as kit
    from forewarn.testing.conform.behaviours import BEHAVIOURS
    from forewarn.testing.conform.report import FAILED, NOT_REACHED, BehaviourRow
    from forewarn.testing.conform.trial import CLAIMS

    out = Output()
    if listing:
        rows = [(each.name, ", ".join(each.claims), each.checks, each.why) for each in BEHAVIOURS]
        out.table(("name", "claims", "what is tried", "why"), rows)
        out.heading("Claims")
        out.table(("claim", "means that"), list(CLAIMS.items()))
        return

    def said(row: BehaviourRow) -> None:
        out.aside(f"{row.outcome:<11} {row.behaviour.name}")

    _end_in_order()
    _write(json_file, b"")  # what cannot be written is told before, not after
    _write(junit_file, b"")
    claims = [each for each in without.split(",") if each]
    try:
        report = kit.conform(
            command or [],
            without=claims,
            only=only or [],
            parallel=parallel,
            patience_s=parse_duration(patience),
            delays=kit.REAL_TIME if real_time else kit.SHORTENED,
            on_row=said,
        )
    except Invalid as error:
        raise usage(str(error)) from None
    table = [(row.behaviour.name, row.outcome, f"{row.seconds:.1f}", row.reason) for row in report.rows]
    out.table(("behaviour", "outcome", "seconds", "what was seen"), table)
    failed = [row for row in report.rows if row.outcome == FAILED]
    # Rows that were not reached were so for one and the same reason, which a failed row tells better.
    for row in failed or [row for row in report.rows if row.outcome == NOT_REACHED][:1]:
        out.heading(f"{row.behaviour.name}: {row.reason}")
        out.say(f"It {row.behaviour.checks}: {row.behaviour.why}.")
        for line in row.output.splitlines():
            out.say(f"  | {line}")
    out.heading(str(report))
    _write(json_file, json.dumps(report.json(), indent=2).encode() + b"\n")
    _write(junit_file, report.junit())
    raise typer.Exit(0 if report.ok else 1)


def _end_in_order() -> None:
    """When told to end, or the terminal is gone, no agent and no folder is left behind."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
        signal.signal(signal.SIGHUP, end)


def _write(path: Path | None, data: bytes) -> None:
    if path is not None:
        try:
            path.write_bytes(data)
        except OSError as error:
            raise usage(f"{path}: cannot be written: {error.strerror}") from None
