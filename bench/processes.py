"""Real processes from outside: how soon `forewarn serve` is ready and how much memory it holds, beside bare peers.

The peer of a start with a fleet reads the rows of its scopes and machines into lists of tuples and does nothing else.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from bench.measure import Cost, median, median_ratio, resident_bytes, spent_cpu_s
from bench.memory import MOST_BYTES
from bench.report import Verdict, at_most, print_table
from bench.size import Size

# What any service of this kind must at least do: start Python and import the web framework.
PEER = "import starlette.applications, uvicorn; print('ready', flush=True); input()"
PEER_NAME = "bare peer: Python, uvicorn, starlette"
EMPTY_NAME = "serve, empty"
BARE = """
import sqlite3
with sqlite3.connect({path!r}) as connection:
    scopes = connection.execute("SELECT * FROM scopes").fetchall()
    machines = connection.execute(
        "SELECT m.*, a.interface, a.address FROM machines m JOIN machine_addresses a USING (scope, name)").fetchall()
print("ready", flush=True)
input()
"""
MOST_READY_RATIO = 2.5
SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class Start:
    """What one process had cost when it was ready, and the memory it held when it had settled."""

    ready: Cost
    memory_bytes: int


def measure_processes(databases: Mapping[int, Path], size: Size) -> list[Verdict]:
    folder = next(iter(databases.values())).parent
    commands = {PEER_NAME: [sys.executable, "-c", PEER], EMPTY_NAME: serve_command(folder / "empty.db")}
    for machines, path in databases.items():
        commands[_bare_name(machines)] = [sys.executable, "-c", BARE.format(path=str(path))]
        commands[_name(machines)] = serve_command(path)
    starts: dict[str, list[Start]] = {name: [] for name in commands}
    for _ in range(size.spawns):
        for name, command in commands.items():
            starts[name].append(start_of(command))
    _report(starts, tuple(databases))
    largest = max(databases)
    return [
        ready_verdict(largest, "SQLite", starts[_name(largest)], starts[_bare_name(largest)]),
        at_most(f"bytes per machine, service with {largest:,}", _per_machine(starts, largest), MOST_BYTES),
    ]


def ready_verdict(machines: int, store: str, serve: Sequence[Start], bare: Sequence[Start]) -> Verdict:
    ratio = median_ratio([s.ready.wall_s for s in serve], [s.ready.wall_s for s in bare])
    return at_most(f"ready with {machines:,} machines on {store} / a bare SELECT", ratio, MOST_READY_RATIO)


def _name(machines: int) -> str:
    return f"serve, {machines:,} machines"


def _bare_name(machines: int) -> str:
    return f"bare SELECT, {machines:,} machines"


def serve_command(path: Path, guest: str = "127.0.0.1:0") -> list[str]:
    flags = ["--store", f"sqlite:{path}", "--operator", "127.0.0.1:0", "--guest", guest]
    return [sys.executable, "-m", "forewarn", "serve", *flags, "--state-dir", str(path.parent), "--log-level", "error"]


def start_of(command: Sequence[str]) -> Start:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    began_s = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            return _watched(process, began_s)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _watched(process: "subprocess.Popen[str]", began_s: float) -> Start:
    if process.stdout is None:
        raise RuntimeError("the process has no output to read")
    line = process.stdout.readline()
    ready = Cost(time.perf_counter() - began_s, spent_cpu_s(process.pid))
    if not line.startswith("ready"):
        raise RuntimeError(f"the process said {line!r} instead of ready")
    time.sleep(SETTLE_S)
    return Start(ready, resident_bytes(process.pid))


def _report(starts: Mapping[str, Sequence[Start]], sizes: Sequence[int]) -> None:
    peer = [s.ready.cpu_s for s in starts[PEER_NAME]]
    per_machine = {_name(n): f"{_per_machine(starts, n):.1f} B" for n in sizes}
    rows = []
    for name, each in starts.items():
        ready = median([s.ready for s in each])
        ratio = median_ratio([s.ready.cpu_s for s in each], peer)
        rows.append(
            [
                name,
                f"{ready.wall_s:.2f} s",
                f"{ready.cpu_s:.2f} s",
                f"{ratio:.1f}",
                f"{_memory(each) / 2**20:.1f} MiB",
                per_machine.get(name, ""),
            ]
        )
    title = f"From spawn to ready, and resident memory then; median of {len(peer)} interleaved spawns"
    print_table(title, ["process", "wall", "CPU", "CPU ratio", "memory", "per machine"], rows)


def _per_machine(starts: Mapping[str, Sequence[Start]], machines: int) -> float:
    return (_memory(starts[_name(machines)]) - _memory(starts[EMPTY_NAME])) / machines


def _memory(starts: Sequence[Start]) -> float:
    return statistics.median(s.memory_bytes for s in starts)
