"""`forewarn emulate`: the emulator as a program, for guests and tests in any language."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.formatting import plain
from forewarn.cli.scenario import found
from forewarn.core.document import NEWEST
from forewarn.core.errors import InvalidSettings

PORT = 8169
ASK = "/metadata/scheduledevents?api-version="


def emulate(
    machines: Annotated[
        int | None,
        typer.Option(help="How many: vm-0 is 127.0.0.1, vm-1 127.0.0.2 … [default: 1, and every caller is vm-0]"),
    ] = None,
    fleet: Annotated[Path | None, typer.Option(help="A fleet file (TOML) instead.", show_default=False)] = None,
    clock: Annotated[str, typer.Option(help="`manual`, `system`, or a rate like `60x`.")] = "60x",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Fixes ids and the dice of faults; a manual clock then starts at 2030-01-01T00:00:00Z.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Guests ask on this port of 127.0.0.1, operators on the next; 0 takes any two.")
    ] = PORT,
    guest: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where guests ask, if not there: 169.254.169.254:80, 0.0.0.0:8169.")
    ] = "",
    operator: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="And operators; off loopback they need the token in FOREWARN_TOKEN."),
    ] = "",
    faults: Annotated[
        Path | None, typer.Option(help="A playbook (TOML) of what goes wrong.", show_default=False)
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="A scenario, by name or file, that begins when a machine first asks; `forewarn scenario list` has them.",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="A file of `forewarn record`, served again from the first request on; every caller is its machine.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="`debug`, `info`, `warning` or `error`.")] = "warning",
) -> None:
    """Pretend maintenance for tests: the service in memory, without tokens, on this machine alone, until SIGTERM.

    Prints one line beginning with `ready` when everything listens, then lines to paste.
    """
    if machines is not None and fleet is not None:
        raise InvalidSettings("--machines: a fleet file says which machines there are: leave one of the two out")
    if scenario is not None and fleet is not None:
        raise InvalidSettings("--scenario: it says which machines there are: leave out --fleet, or use --machines")
    for name, given in (("--machines", machines), ("--fleet", fleet), ("--scenario", scenario)):
        if replay is not None and given is not None:
            raise InvalidSettings(f"--replay: a recording says all that happens, to one machine: leave out {name}")
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

        played = found(scenario, machines)
        emulator = emulator_for(played, **options)
    with emulator:
        stopping = StopSignal(signal.SIGTERM, signal.SIGINT)
        logs.set_up(log_level)
        tune_process()
        print(f"ready guest={emulator.endpoint} operator={emulator.operator_url}")
        for name, value in emulator.environment.items():
            print(f"export {name}={value}")
        replayed = emulator.replay
        version = replayed.recording.head.api_version if replayed is not None else NEWEST
        print(f"curl -H Metadata:true '{emulator.endpoint}{ASK}{version}'")
        machine = emulator.machine_names()[0]
        if replayed is None:
            _say(f"forewarn maintenance schedule --type Reboot --machine {machine} --yes")
        else:
            replayed.say = _say
            _say(f"# replays {replay} for {machine}; it begins when a machine first asks")
        if faults is not None and seed is None:
            _say(f"# the same dice for {faults}: --seed {emulator.seed}")
        if played is not None:
            play_on(emulator.service, played, say=_say)
        stopping.wait()


def _say(line: str) -> None:
    """Guests and the clock go on when nobody reads any more, as after `| head -1`."""
    try:
        print(plain(line), flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
