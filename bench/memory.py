"""What a machine costs in the memory store. Run as a program, it fills one in this fresh process and prints bytes."""

import gc
import subprocess
import sys
from collections.abc import Sequence

from bench.fleet import fill
from bench.measure import resident_bytes
from bench.report import Verdict, at_most, print_table
from forewarn.store.memory import MemoryStore

MOST_BYTES = 400


def measure_memory(sizes: Sequence[int]) -> list[Verdict]:
    rows, verdicts = [], []
    for machines in sizes:
        command = [sys.executable, "-m", "bench.memory", str(machines)]
        grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append([f"{machines:,}", f"{grown / 2**20:.1f} MiB", f"{grown / machines:.0f} B"])
        verdicts.append(at_most(f"bytes per machine, memory store with {machines:,}", grown / machines, MOST_BYTES))
    print_table("Resident memory of the memory store holding the fleet", ["machines", "grown by", "per machine"], rows)
    return verdicts


def grown_bytes(machines: int) -> int:
    store = MemoryStore()
    gc.collect()
    before = resident_bytes()
    fill(store, machines)
    gc.collect()
    return resident_bytes() - before


if __name__ == "__main__":
    print(grown_bytes(int(sys.argv[1])))
