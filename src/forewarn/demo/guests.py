"""The demo's guests: a real agent for each machine that has one, asking from that machine's own loopback address."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.core.model import Machine

# The machine of whoever sits at this computer; one that never asks; one that asks and never approves.
YOURS = ("shop", "web-0")
SILENT = ("legacy", "old-0")
UNWILLING = ("workers", "worker-3")

# Getting ready takes three minutes of the service's time, and never long enough to bore anybody.
DRAIN_S = 180.0
MAX_REAL_DRAIN_S = 3.0

AGENT = """\
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


def has_agent(machine: Machine) -> bool:
    return machine.key not in (YOURS, SILENT)


@contextmanager
def answering(
    machines: Iterable[Machine], endpoint: str, *, folder: Path, lifeline: Path, rate: float
) -> Iterator[None]:
    """An agent per machine, until the end of the block."""
    drain_s = min(MAX_REAL_DRAIN_S, DRAIN_S / rate)
    drain = json.dumps([sys.executable, "-m", "forewarn.demo.lifeline", str(lifeline), f"{drain_s:g}"])
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for machine in machines:
            own = folder / f"{machine.scope}-{machine.name}"
            own.mkdir(mode=0o700)
            text = AGENT.format(
                approve="never" if machine.key == UNWILLING else "when-ready",
                endpoint=endpoint,
                address=machine.addresses[0],
                state_dir=json.dumps(str(own)),
                drain=drain,
            )
            config = own / "agent.toml"
            config.write_text(text, "utf-8")
            config.chmod(0o600)
            agents.append(helper("forewarn.demo.guest", str(lifeline), str(config), log=own / "log"))
        yield
    finally:
        for agent in agents:
            agent.kill()
        for agent in agents:
            agent.wait()


def helper(module: str, *arguments: str, log: Path) -> "subprocess.Popen[bytes]":
    """A process of ours beside the demo. Ctrl-C at the terminal is not for it: it ends with the demo."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=clean,
            start_new_session=True,
        )
