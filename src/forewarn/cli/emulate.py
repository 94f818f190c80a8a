"""`forewarn emulate`: the emulator as a program, for guests and tests in any language."""

import os
import sys
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


def emulate(
    machines: Annotated[
        int | None,
        typer.Option(
            help="How many machines: vm-0 is 127.0.0.1, vm-1 is 127.0.0.2 … [default: 1, and every caller is vm-0]"
        ),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="A fleet file (TOML) instead of --machines.", show_default=False)
    ] = None,
    clock: Annotated[str, typer.Option(help="`manual`, `system`, or a speed like `60x`.")] = "60x",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Fix the ids and the random choices of faults; a manual clock then starts at 2030-01-01T00:00:00Z.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port for guests on 127.0.0.1; operators use the next one. 0 takes any two.")
    ] = PORT,
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
    faults: Annotated[Path | None, typer.Option(help="A playbook of faults (TOML).", show_default=False)] = None,
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

    It prints a line that begins with `ready` once it accepts connections, then lines to paste into a shell.
    """
    _check_combination(machines, fleet, scenario, replay)
    import signal

    from forewarn.app.server import StopSignal, tune_process
    from forewarn.service import logs
    from forewarn.testing.emulator import Emulator

    options: dict[str, Any] = {"clock": clock, "seed": seed, "port": port, "guest": guest, "operator": operator}
    options |= {"faults": faults, "log_level": log_level}
    if scenario is None:
        played, emulator = None, Emulator(machines, fleet=fleet, replay=replay, **options)
    else:
        from forewarn.testing.scenarios.player import emulator_for, play_on

        played = read_scenario(scenario, machines)
        emulator = emulator_for(played, **options)
    with emulator:
        stopping = StopSignal(signal.SIGTERM, signal.SIGINT)
        logs.set_up(log_level)
        tune_process()
        _print_introduction(emulator, replay)
        if emulator.replay is not None:
            emulator.replay.say = _say
        if faults is not None and seed is None:
            _say(f"# to repeat the same faults of {faults}: --seed {emulator.seed}")
        if played is not None:
            play_on(emulator.service, played, say=_say)
        stopping.wait()


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
