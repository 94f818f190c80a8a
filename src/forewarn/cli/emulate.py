"""`forewarn emulate`: the emulator as a program, for guests and tests in any language."""

import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.scenario import read_scenario
from forewarn.core.document import NEWEST
from forewarn.core.errors import InvalidSettings
from forewarn.core.formatting import printable

if TYPE_CHECKING:
    from forewarn.testing.emulator import Emulator

PORT = 8169
DOCUMENT_PATH = "/metadata/scheduledevents?api-version="
# The signals that a command gets if the emulator gets them.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# Python ignores these, and a command would inherit that.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def emulate(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...]",
            help="Run this command, after `--`, with FOREWARN_ENDPOINT and FOREWARN_SERVER set, and end with its exit code.",
            show_default=False,
        ),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(
            help="How many machines: vm-0 is 127.0.0.1, vm-1 is 127.0.0.2 … [default: 1, and every caller is vm-0]"
        ),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="A fleet file (TOML) instead of --machines.", show_default=False)
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(help="`manual`, `system`, or a speed like `60x` [default: 60x; with a command, manual]"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Fix the ids and the random choices of faults; a manual clock then starts at 2030-01-01T00:00:00Z.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The port for guests on 127.0.0.1; operators use the next one. 0 takes any two"
            " [default: 8169; with a command, 0]"
        ),
    ] = None,
    guest: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Another address for guests, like 169.254.169.254:80 or 0.0.0.0:8169."),
    ] = "",
    operator: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Another address for operators; outside loopback they need the token in FOREWARN_TOKEN.",
        ),
    ] = "",
    faults: Annotated[Path | None, typer.Option(help="A file of faults (TOML).", show_default=False)] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="A scenario, by name or file; it begins with the first poll. `forewarn scenario list` lists them.",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="A file of `forewarn record` to replay from the first request on; every caller is its machine.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="`debug`, `info`, `warning` or `error`.")] = "warning",
) -> None:
    """Run the service in memory for tests, without tokens and on this machine alone, until SIGTERM.

    It prints a line that begins with `ready` once it accepts connections, then lines to paste into a shell. With a command it
    prints neither; it ends with the command, and prints the timeline if the command fails.
    """
    _check_combination(machines, fleet, scenario, replay)
    from forewarn.app.server import StopSignal, tune_process
    from forewarn.service import logs
    from forewarn.testing.emulator import Emulator

    options: dict[str, Any] = {
        "clock": clock or ("manual" if command else "60x"),
        "port": port if port is not None else 0 if command else PORT,
    }
    options |= {"seed": seed, "guest": guest, "operator": operator, "faults": faults, "log_level": log_level}
    if scenario is None:
        played, emulator = None, Emulator(machines, fleet=fleet, replay=replay, **options)
    else:
        from forewarn.testing.scenarios.player import emulator_for, play_on

        played = read_scenario(scenario, machines)
        emulator = emulator_for(played, **options)
    say = _say_on_stderr if command else _say
    # Blocked before any thread starts: `_run_command` takes them, one after the other.
    usual_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD)) if command else set()
    with emulator:
        logs.set_up(log_level)
        tune_process()
        if not command:
            stopping = StopSignal(signal.SIGTERM, signal.SIGINT)
            _print_introduction(emulator, replay)
        if emulator.replay is not None:
            emulator.replay.say = say
        if faults is not None and seed is None:
            say(f"# to repeat the same faults of {faults}: --seed {emulator.seed}")
        if played is not None:
            play_on(emulator.service, played, say=say)
        if not command:
            stopping.wait()
        elif code := _run_command(command, emulator, usual_mask):
            say(f"forewarn: {command[0]} ended with {code}; timeline (real time, service time, what happened):")
            for line in emulator.log.timeline():
                say(line)
            raise typer.Exit(code)


def _run_command(command: list[str], emulator: "Emulator", mask: Collection[int]) -> int:
    """Run the command to its end, passing signals on; return its exit code, or 128 + the signal that ended it."""
    environment = {**os.environ, **emulator.environment}
    if emulator.service.settings.token_free:
        environment.pop("FOREWARN_TOKEN", None)  # it would be the token of another server
    try:
        pid = os.posix_spawnp(command[0], command, environment, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)
    except OSError as error:
        raise InvalidSettings(f"{command[0]}: cannot be started: {error.strerror}") from None
    while True:
        received = signal.sigwaitinfo((*PASSED_ON, signal.SIGCHLD))
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif received.si_pid:  # 0 is the terminal, which signals the command too
            os.kill(pid, received.si_signo)


def _check_combination(machines: int | None, fleet: Path | None, scenario: str | None, replay: Path | None) -> None:
    if machines is not None and fleet is not None:
        raise InvalidSettings("--machines: the machines are those of the fleet file: leave out --machines or --fleet")
    if scenario is not None and fleet is not None:
        raise InvalidSettings(
            "--scenario: the machines are those of the scenario: leave out --fleet, or use --machines"
        )
    for name, value in (("--machines", machines), ("--fleet", fleet), ("--scenario", scenario)):
        if replay is not None and value is not None:
            raise InvalidSettings(
                f"--replay: the recording determines all events and its one machine: leave out {name}"
            )


def _print_introduction(emulator: "Emulator", replay: Path | None) -> None:
    """Print that all is ready, and lines to paste into a shell."""
    print(f"ready guest={emulator.endpoint} operator={emulator.operator_url}")
    for name, value in emulator.environment.items():
        print(f"export {name}={value}")
    replayed = emulator.replay
    version = replayed.recording.head.api_version if replayed is not None else NEWEST
    print(f"curl -H Metadata:true '{emulator.endpoint}{DOCUMENT_PATH}{version}'")
    machine = emulator.machine_names()[0]
    if replayed is None:
        _say(f"forewarn maintenance schedule --type Reboot --machine {machine} --yes")
    else:
        _say(f"# replays {replay} for {machine}, beginning with the first poll")


def _say(line: str) -> None:
    """Print a line. If the reader has closed the pipe, as `head -1` does, print nothing from now on and keep running."""
    try:
        print(printable(line), flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_on_stderr(line: str) -> None:
    """Print a line, and leave the output to the command."""
    print(printable(line), file=sys.stderr, flush=True)
