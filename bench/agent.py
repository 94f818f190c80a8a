"""The agent from outside, as a real process against a real guest listener: its cost while nothing happens, and how soon it acts.

Idle memory is a ratio to a bare interpreter that holds `http.client` and `json`. Both run compiled files, as installed.
Wake-ups are voluntary context switches while a long poll is open: there is nothing to wake up for. The delay runs from asking
for the change to the first step's program running.
"""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from bench.measure import quantile, resident_bytes
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.service import OPERATOR, reboot
from bench.size import Size
from forewarn.app.guest_server import GuestServer
from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Targets
from forewarn.service.clock import SystemClock
from forewarn.service.settings import load
from forewarn.store.memory import MemoryStore

FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
addresses = ["127.0.0.10"]
"""
CONFIG = """
endpoint = "http://127.0.0.1:{port}"
source_address = "127.0.0.10"
approve = "never"
state_dir = "{folder}/state"
log_level = "error"
[[steps]]
name = "first"
[steps.command]
prepare = ["/bin/sh", "-c", "date +%s.%N > {folder}/new && mv {folder}/new {folder}/began"]
recover = ["true"]
"""
PEER = "import http.client, json, sys; print('ready', flush=True); sys.stdin.read()"
SEED = 5
MEMORY_LIMIT = 1.3
LONG_POLL_LIMIT_S, PLAIN_LIMIT_S = 0.1, 1.1


def run(folder: Path, size: Size) -> list[Verdict]:
    with endpoint(long_poll=True) as (service, port):
        ratios, agents, peers = _memory(folder, port, size)
        wake_ups = _wake_ups(folder, port, size.agent_idle_s)
        long_poll = _delays(folder / "long", service, port, size.agent_changes)
    with endpoint(long_poll=False) as (service, port):
        plain = _delays(folder / "plain", service, port, size.agent_changes)
    _report(agents, peers, long_poll, plain, wake_ups, size)
    return [
        at_most("idle memory of the agent over a bare interpreter", statistics.median(ratios), MEMORY_LIMIT),
        Verdict("no wake-ups of an idle agent beyond the poll", str(wake_ups), met=wake_ups == 0),
        at_most("seconds from change to first step by long poll, p99", quantile(long_poll, 0.99), LONG_POLL_LIMIT_S),
        at_most("seconds from change to first step by plain poll, p99", quantile(plain, 0.99), PLAIN_LIMIT_S),
    ]


@contextmanager
def endpoint(*, long_poll: bool) -> Iterator[tuple[Service, int]]:
    """A service in this process with a real listener; without long polls it answers at once, as the cloud's does."""
    flags = {"store": "memory:", "guest": "127.0.0.1:0", "guest_waiting": 4 if long_poll else 0}
    service = Service(load(flags, {}), clock=SystemClock(), store=MemoryStore())
    service.control.apply_fleet(parse_fleet(FLEET, "the bench"), OPERATOR)
    service.control.enable("shop", OPERATOR)
    side = GuestServer(service)
    side.start()
    try:
        yield service, int(side.listener.urls[0].rpartition(":")[2])
    finally:
        side.stop()
        service.close()


@contextmanager
def agent(folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    folder.mkdir(exist_ok=True)
    config = folder / "agent.toml"
    config.write_text(CONFIG.format(port=port, folder=folder))
    config.chmod(0o600)
    command = [sys.executable, "-m", "forewarn.guest", "run", "--config", str(config)]
    process = subprocess.Popen(command, env=_environment(folder.parent))
    try:
        _until(lambda: (folder / "state" / "status.json").exists())
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _memory(folder: Path, port: int, size: Size) -> tuple[list[float], list[int], list[int]]:
    """Interleaved, each fresh: the ratio of each pair, and both sides of it."""
    agents, peers = [], []
    for number in range(1 + size.spawns):
        with agent(folder / f"idle-{number}", port) as process:
            time.sleep(size.agent_settle_s)
            agents.append(resident_bytes(process.pid))
        command = [sys.executable, "-c", PEER]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=_environment(folder)) as peer:
            assert peer.stdout is not None
            peer.stdout.readline()
            time.sleep(size.agent_settle_s)
            peers.append(resident_bytes(peer.pid))
            peer.kill()
    del agents[0], peers[0]  # they compiled
    return [a / b for a, b in zip(agents, peers, strict=True)], agents, peers


def _environment(folder: Path) -> dict[str, str]:
    """As installed: compiled files are kept in the folder and used again."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def _wake_ups(folder: Path, port: int, idle_s: float) -> int:
    """How often it ran while one long poll was open."""
    with agent(folder / "asleep", port) as process:
        time.sleep(1.5)  # the first answers are in, and a request waits
        before = _switches(process.pid)
        time.sleep(idle_s)
        return _switches(process.pid) - before


def _switches(pid: int) -> int:
    status = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in status)


def _delays(folder: Path, service: Service, port: int, changes: int) -> list[float]:
    choose, delays = random.Random(SEED), []
    with agent(folder, port):
        began = folder / "began"
        time.sleep(1.5)
        for _ in range(changes):
            time.sleep(choose.uniform(0.3, 1.3))  # at any moment between two polls
            asked_s = time.time()
            (maintenance_id,) = reboot(service, [Targets(scope="shop")])
            _until(began.exists)
            delays.append(float(began.read_text("ascii")) - asked_s)
            began.unlink()
            service.control.cancel_maintenance(maintenance_id, OPERATOR)
            _until(lambda: b'"in_service": true' in (folder / "state" / "status.json").read_bytes())
    return delays


def _until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline_s:
            raise RuntimeError("the agent did not do its part in time")
        time.sleep(0.01)


def _report(
    agents: list[int], peers: list[int], long_poll: list[float], plain: list[float], wake_ups: int, size: Size
) -> None:
    rows = [
        [
            name,
            f"{statistics.median(values) / 2**20:.1f} MiB",
            f"{statistics.median(values) / statistics.median(peers):.2f}",
        ]
        for name, values in (("agent, idle", agents), ("bare peer: Python, http.client, json", peers))
    ]
    print_table(f"Resident memory, median of {len(agents)} interleaved spawns", ["process", "memory", "ratio"], rows)
    rows = [
        [name, milliseconds(quantile(values, 0.5)), milliseconds(quantile(values, 0.99)), milliseconds(max(values))]
        for name, values in (("long poll", long_poll), ("plain poll, once a second", plain))
    ]
    title = f"From the change to the first step's program running, {len(plain)} changes each"
    print_table(title, ["how it asks", "p50", "p99", "most"], rows)
    print(f"Wake-ups of an idle agent in {size.agent_idle_s:g} s of an open long poll: {wake_ups}\n")
