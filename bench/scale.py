"""What the size of the fleet costs: memory, time to ready, a tick, and starts when very many are due at once."""

from collections.abc import Sequence
from pathlib import Path

from bench.fleet import fill, scopes_of
from bench.fleet_file import measure_fleet_file
from bench.lateness import measure_lateness
from bench.loading import measure_loading
from bench.measure import Cost, cost_of
from bench.memory import measure_memory
from bench.processes import measure_processes
from bench.report import Verdict, print_table
from bench.rules import measure_rules
from bench.size import Size
from bench.ticking import measure_ticks
from forewarn.store.sqlite.store import SqliteStore


def run(folder: Path, size: Size) -> list[Verdict]:
    databases = _build(folder, size.machines)
    largest = max(size.machines)
    verdicts = measure_memory(size.machines) + measure_processes(databases, size) + measure_loading(databases[largest])
    verdicts += measure_fleet_file(folder, largest)
    verdicts += measure_ticks(databases, size) + measure_rules(folder, size)
    return verdicts + measure_lateness(databases[largest], scopes_of(largest), size)


def _build(folder: Path, sizes: Sequence[int]) -> dict[int, Path]:
    databases = {machines: folder / f"{machines}.db" for machines in sizes}
    rows = []
    for machines, path in databases.items():
        cost = cost_of(lambda machines=machines, path=path: _fill(path, machines))  # type: ignore[misc]
        rows.append(_built(machines, cost, path))
    head = ["machines", "wall", "CPU", "per machine", "file", "per machine"]
    print_table("Building the fleet in SQLite, through the store's own apply", head, rows)
    return databases


def _fill(path: Path, machines: int) -> None:
    store = SqliteStore(path)
    try:
        fill(store, machines)
    finally:
        store.close()


def _built(machines: int, cost: Cost, path: Path) -> list[str]:
    file_bytes = path.stat().st_size
    return [
        f"{machines:,}",
        f"{cost.wall_s:.1f} s",
        f"{cost.cpu_s:.1f} s",
        f"{cost.cpu_s / machines * 1e6:.1f} us",
        f"{file_bytes / 2**20:.1f} MiB",
        f"{file_bytes / machines:.0f} B",
    ]
