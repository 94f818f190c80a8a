"""Conformance: runs an agent in any language as a program, and tests the behaviours that an agent should have.

`behaviours` is the table of behaviours and `checks` has their checks. `probe` finds out which kinds of events the agent handles,
`selection` chooses among them for a behaviour, `trial` runs the agent for one behaviour, `run` runs all of them, and `report`
formats the results. The test knows only the agent's requests and the lines that its hooks write.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from forewarn.core.errors import Invalid
from forewarn.testing.conform.behaviours import BEHAVIOURS, Behaviour
from forewarn.testing.conform.event_kinds import EventKind, parse_event
from forewarn.testing.conform.report import BehaviourRow, Report
from forewarn.testing.conform.run import Run
from forewarn.testing.conform.trial import CLAIMS, MACHINE, PATIENCE_S, AgentSetup, Delays
from forewarn.testing.conform.trial_emulator import TrialFleet

PARALLEL = 4
MAX_PARALLEL = 32
MAX_EVENTS = 20
MAX_PORT = 65_535
# As long as the protocol documents, and as short as still shows most failures.
REAL_TIME = Delays(first_answer_s=120, outage_s=70.0)
SHORTENED = Delays(first_answer_s=4, outage_s=0.0)


def conform(
    command: Sequence[str],
    *,
    without: Collection[str] = (),
    only: Collection[str] = (),
    events: Collection[str] = (),
    machine: str = MACHINE,
    listen: str = "",
    restarts: bool = False,
    parallel: int = PARALLEL,
    patience_s: float = PATIENCE_S,
    silence_s: float | None = None,
    delays: Delays = SHORTENED,
    on_row: Callable[[BehaviourRow], None] = lambda _: None,
) -> Report:
    """Test the agent that `command` starts, and call `on_row` with the result of each behaviour.

    The agent fails if it has not acted after `patience_s` and several polls, or if it has not polled for `silence_s`
    (by default `patience_s`). `events` are the kinds that the agent handles, such as `type=Terminate`; without them the run
    finds out. With `listen` (HOST:PORT) all behaviours use one address, one after the other.
    """
    chosen = _choose(only)
    _check_names(without, CLAIMS, "--without")
    if not 1 <= parallel <= MAX_PARALLEL:
        raise Invalid(f"--parallel: {parallel} behaviours at once: use 1 to {MAX_PARALLEL}")
    _check_command(command)
    _check_machine(machine)
    if listen:
        _check_address(listen)
    setup = AgentSetup(
        command=command,
        claims=frozenset(CLAIMS) - set(without),
        environment=os.environ,
        delays=delays,
        patience_s=patience_s,
        silence_s=patience_s if silence_s is None else silence_s,
        machine=machine,
        listen=listen,
        restarts=restarts,
        declared=_parse_events(events),
    )
    begun_s = time.monotonic()
    run = Run(setup, on_row)
    with ThreadPoolExecutor(1 if listen else parallel, thread_name_prefix="conform") as pool:
        rows = run.test(chosen, pool)
    return Report(tuple(command), tuple(rows), time.monotonic() - begun_s, run.events)


def _choose(only: Collection[str]) -> list[Behaviour]:
    _check_names(only, [each.name for each in BEHAVIOURS], "--only")
    return [each for each in BEHAVIOURS if not only or each.name in only]


def _check_names(names: Collection[str], known: Collection[str], option: str) -> None:
    for name in names:
        if name not in known:
            raise Invalid(f"{option}: {name!r} is unknown: use {', '.join(known)}")


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise Invalid(
            "the command is missing: write it after `--`, like `forewarn conform -- my-agent --endpoint {endpoint}`"
        )
    if "{" not in command[0] and shutil.which(command[0]) is None:
        raise Invalid(f"{command[0]}: there is no such program, or it is not executable")


def _check_machine(machine: str) -> None:
    try:
        TrialFleet(machine)
    except Invalid as error:
        raise Invalid(f"--machine: {error}") from None


def _check_address(listen: str) -> None:
    """Raise Invalid if the emulator cannot listen there, because otherwise every row would fail for that reason."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise Invalid(f"--listen: {listen!r} is not an address: write it like 169.254.169.254:80")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        raise Invalid(
            f"--listen: cannot listen on {listen}: {os.strerror(error.errno or 0)}: add the address to an interface of this"
            " network namespace; a port below 1024 needs root"
        ) from None


def _parse_events(events: Collection[str]) -> tuple[EventKind, ...]:
    if len(events) > MAX_EVENTS:
        raise Invalid(f"--event: {len(events)} kinds of events: at most {MAX_EVENTS} are allowed")
    try:
        return tuple(dict.fromkeys(map(parse_event, events)))
    except Invalid as error:
        raise Invalid(f"--event: {error}") from None
