"""Runs the demo's agents: real agents, each of which polls from the loopback address of its machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forewarn.core.model import Machine

# The user acts as this machine, so it has no agent.
USER_MACHINE = ("shop", "web-0")
NEVER_POLLS = ("legacy", "old-0")
NEVER_APPROVES = ("workers", "worker-3")

# The time that an agent takes to prepare, in seconds of the service clock and at most in real seconds.
DRAIN_S = 180.0
MAX_REAL_DRAIN_S = 3.0

AGENT_CONFIG = """\
approve = "{approve}"
endpoint = "{endpoint}"
source_address = "{address}"
state_dir = {state_dir}
log_level = "warning"

[[rules]]
when = {{ type = ["Freeze"], max_duration = "9s" }}
do = "approve"

[[steps]]
name = "drain"
timeout = "1m"
required = true
command = {{ prepare = {drain} }}
"""


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder of a demo. It is removed after the last process that holds the descriptor `in_use` has ended."""

    path: Path
    lifeline: Path
    in_use: int


def has_agent(machine: Machine) -> bool:
    return machine.key not in (USER_MACHINE, NEVER_POLLS)


def drain_command(lifeline: Path, drain_s: float) -> list[str]:
    """Return the program of the step.

    The shell runs it, because an agent refuses a program in a folder that others may write, and a checkout of this project
    often is such a folder.
    """
    drain = [sys.executable, "-m", "forewarn.demo.lifeline", str(lifeline), f"{drain_s:g}"]
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *drain]


@contextmanager
def running_agents(machines: Iterable[Machine], endpoint: str, *, folder: DemoFolder, rate: float) -> Iterator[None]:
    """Run an agent for each machine until the end of the block."""
    drain_s = min(MAX_REAL_DRAIN_S, DRAIN_S / rate)
    drain = json.dumps(drain_command(folder.lifeline, drain_s))
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for machine in machines:
            agent_folder = folder.path / f"{machine.scope}-{machine.name}"
            agent_folder.mkdir(mode=0o700)
            text = AGENT_CONFIG.format(
                approve="never" if machine.key == NEVER_APPROVES else "when-ready",
                endpoint=endpoint,
                address=machine.addresses[0],
                state_dir=json.dumps(str(agent_folder)),
                drain=drain,
            )
            config = agent_folder / "agent.toml"
            config.write_text(text, "utf-8")
            config.chmod(0o600)
            arguments = (str(folder.lifeline), str(config))
            log = agent_folder / "log"
            agents.append(start_helper("forewarn.demo.agent", *arguments, log=log, inherited=folder.in_use))
        yield
    finally:
        for agent in agents:
            agent.kill()
        for agent in agents:
            agent.wait()


def start_helper(module: str, *arguments: str, log: Path, inherited: int) -> "subprocess.Popen[bytes]":
    """Start a module as a process in its own session. It does not get the terminal's Ctrl-C, and ends with the demo.

    `inherited` is a descriptor that stays open in the helper.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            pass_fds=(inherited,),
        )
