"""Applying a fleet file, as `forewarn serve --fleet` does, beside a bare peer, each in a fresh process.

The peer splits the same file at its quotes, checks nothing, and inserts the same rows into the same tables with the same
durable settings. Run as a program, it does one of the two and prints wall time, CPU time and the most memory held.
"""

import gc
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.fleet import new_machines, new_scope, scopes_of
from bench.measure import cost_of
from bench.report import Verdict, at_most, print_table
from forewarn.app.service import Service
from forewarn.core.fleet import Fleet, fleet_text
from forewarn.service.settings import load
from forewarn.store.sqlite.store import SqliteStore

MOST_S = 15.0
MOST_RATIO = 1.5
SCOPE = """INSERT INTO scopes (name, kind, approval, approve_user_events, max_user_operations, terminate_notice_s,
    minimum_notice_s, enabled, epoch, incarnation, version)
VALUES (?, ?, 'any', 0, 0, 300, '{}', 0, 0, 1, 1)"""
MACHINE = "INSERT INTO machines VALUES (?, ?, ?, 0, ?, '', '', '{}')"
ADDRESS = "INSERT INTO machine_addresses VALUES ('', ?, ?, ?)"
TITLE = "Applying a fleet file to an empty SQLite store"


def measure_fleet_file(folder: Path, machines: int) -> list[Verdict]:
    file = folder / "fleet.toml"
    file.write_text(_text(machines))
    bare, ours = (_run(how, file, folder / f"{how}.db") for how in ("bare", "ours"))
    rows = [
        [name, f"{wall_s:.1f} s", f"{cpu_s:.1f} s", f"{cpu_s / bare[1]:.2f}", f"{most_bytes / machines:.0f} B"]
        for name, (wall_s, cpu_s, most_bytes) in (("bare inserts", bare), ("forewarn", ours))
    ]
    print_table(f"{TITLE}: {machines:,} machines", ["by", "wall", "CPU", "CPU ratio", "most memory per machine"], rows)
    return [
        at_most(f"seconds to apply a fleet file of {machines:,} machines", ours[0], MOST_S),
        at_most(f"seconds of CPU to apply a fleet file of {machines:,} machines", ours[1], MOST_S),
        at_most("CPU of applying a fleet file / of bare inserts", ours[1] / bare[1], MOST_RATIO),
    ]


def _text(machines: int) -> str:
    numbers = range(scopes_of(machines))
    return "\n".join(
        fleet_text(Fleet({"": new_scope(number)}, {m.key: m for m in new_machines(number)})) for number in numbers
    )


def _run(how: str, file: Path, database: Path) -> tuple[float, float, float]:
    command = [sys.executable, "-m", "bench.fleet_file", how, str(file), str(database)]
    wall_s, cpu_s, most_bytes = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return wall_s, cpu_s, most_bytes


def _apply(file: Path, database: Path) -> None:
    flags = {"store": f"sqlite:{database}", "state_dir": str(database.parent), "guest": "127.0.0.1:0"}
    service = Service(load(flags, {}))
    try:
        service.apply_fleet_file(file)
    finally:
        service.close()


def _insert(file: Path, database: Path) -> None:
    store = SqliteStore(database)
    text = file.read_text("utf-8")
    with store._writing():
        store._writer.executemany(SCOPE, ((each[1], each[3]) for each in _tables(text, "[[scopes]]")))
        store._writer.executemany(MACHINE, ((p[1], p[3], _domain(p[4]), p[5]) for p in _tables(text, "[[machines]]")))
        store._writer.executemany(ADDRESS, ((p[7], p[1], p[3]) for p in _tables(text, "[[machines]]")))
    store.close()


def _tables(text: str, head: str) -> Iterator[list[str]]:
    start = text.find(head)
    while start >= 0:
        end = text.find("\n[[", start)
        yield text[start : end if end >= 0 else len(text)].split('"')
        start = text.find(head, end) if end >= 0 else -1


def _domain(part: str) -> int:
    """Read the update domain, which a file leaves out if it is 0."""
    return int(part.split()[2]) if "update_domain" in part else 0


if __name__ == "__main__":
    gc.disable()  # as the command does at its start
    do = _apply if sys.argv[1] == "ours" else _insert
    cost = cost_of(lambda: do(Path(sys.argv[2]), Path(sys.argv[3])))
    print(json.dumps([cost.wall_s, cost.cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
