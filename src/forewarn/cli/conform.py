"""`forewarn conform`: test an agent, as a program, against the behaviours that an agent should have."""

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.options import cannot_write, seconds, usage
from forewarn.cli.output import Output
from forewarn.core.errors import Invalid

if TYPE_CHECKING:
    from forewarn.testing.conform.report import Report

# The latest entries of the emulator's timeline; the JSON file has more.
MAX_TIMELINE_LINES = 25


def conform(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            help="The agent, after `--`; the command replaces {endpoint}, {machine}, {folder}, {prepared} and {recovered}.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        str, typer.Option(metavar="CLAIM,…", help="Claims that the agent does not make; they are not tested.")
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Test only this behaviour; may be repeated.", show_default=False),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="A kind of event that the agent handles, like type=Terminate,source=User or type=Freeze,duration=5s; may be"
            " repeated. Without it the run finds out.",
            show_default=False,
        ),
    ] = None,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the agent's machine, such as vmss_3.")
    ] = "vm-0",
    restarts: Annotated[
        bool,
        typer.Option(
            "--restarts", help="Let the agent end: it is started again, as by a supervisor.", show_default=False
        ),
    ] = False,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="The address at which every emulator listens, for an agent with a built-in address: 169.254.169.254:80. Run"
            " the command in a network namespace that has this address. To create one, and to use a port below 1024, takes"
            " root (CAP_SYS_ADMIN and CAP_NET_ADMIN, CAP_NET_BIND_SERVICE) or `unshare --map-root-user --net`.",
            show_default=False,
        ),
    ] = "",
    parallel: Annotated[int, typer.Option(help="How many behaviours to test at once; with --listen always one.")] = 4,
    real_time: Annotated[
        bool,
        typer.Option(
            "--real-time",
            help="Use the documented times: 410 and 404 for 70 seconds, a first response after 120; else shorter ones.",
            show_default=False,
        ),
    ] = False,
    patience: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the agent may take for each thing that it must do.")
    ] = "10s",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result as JSON.", show_default=False)
    ] = None,
    junit_file: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write the result as JUnit XML.", show_default=False),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Only list what is tested, and why.", show_default=False)
    ] = False,
) -> None:
    """Test an agent, in any language, against the behaviours that keep a machine safe.

    The exit code is 0 if the agent has every behaviour that it claims, 1 if it lacks one, 4 if one was not reached, and 5 if one
    was not shown.
    """
    from forewarn.testing import conform as kit

    out = Output()
    if listing:
        _list_behaviours(out)
        return
    _clean_up_at_signals()
    _write(json_file, b"")  # fail now, not after the tests, if the file cannot be written
    _write(junit_file, b"")
    claims = [each for each in without.split(",") if each]
    try:
        report = kit.conform(
            command or [],
            without=claims,
            only=only or [],
            events=event or [],
            machine=machine,
            listen=listen,
            restarts=restarts,
            parallel=parallel,
            patience_s=seconds("--patience", patience),
            delays=kit.REAL_TIME if real_time else kit.SHORTENED,
            on_row=lambda row: out.aside(f"{row.outcome:<11} {row.behaviour.name}"),
        )
    except Invalid as error:
        raise usage(str(error)) from None
    _print_report(out, report)
    _write(json_file, json.dumps(report.json(), indent=2).encode() + b"\n")
    _write(junit_file, report.junit())
    raise typer.Exit(report.exit_code)


def _list_behaviours(out: Output) -> None:
    from forewarn.testing.conform.behaviours import BEHAVIOURS
    from forewarn.testing.conform.trial import CLAIMS

    rows = [(each.name, ", ".join(each.claims), each.checks, each.why) for each in BEHAVIOURS]
    out.table(("name", "claims", "what is tested", "why"), rows)
    out.heading("Claims")
    out.table(("claim", "means that"), list(CLAIMS.items()))


def _print_report(out: Output, report: "Report") -> None:
    from forewarn.testing.conform.outcomes import FAILED, NOT_REACHED

    if report.events:
        events = [(each.kind, each.approved, each.prepared, each.reason) for each in report.events]
        out.table(("event of its own", "approved", "prepared", "what was missing"), events)
        out.say("")
    table = [(row.behaviour.name, row.outcome, f"{row.seconds:.1f}", row.reason) for row in report.rows]
    out.table(("behaviour", "outcome", "seconds", "what was seen"), table)
    failed = [row for row in report.rows if row.outcome == FAILED]
    # All rows that were not reached have the same reason; a failed row explains it better.
    for row in failed or [row for row in report.rows if row.outcome == NOT_REACHED][:1]:
        out.heading(f"{row.behaviour.name}: {row.reason}")
        out.say(f"It {row.behaviour.checks}: {row.behaviour.why}.")
        for line in row.output.splitlines():
            out.say(f"  | {line}")
        for line in row.timeline[-MAX_TIMELINE_LINES:]:
            out.say(f"  {line}")
    out.heading(str(report))


def _clean_up_at_signals() -> None:
    """End agents and remove folders at SIGTERM and when the terminal is closed."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, end)


def _write(path: Path | None, data: bytes) -> None:
    if path is not None:
        try:
            path.write_bytes(data)
        except OSError as error:
            raise cannot_write(path, error) from None
