"""The simulation: the CPU of a seed beside a bare loop of plain Python, which costs about as much on every machine.

The row is seeds per CPU time, in bare loops, so that runs on different machines can be compared.
"""

import time
from pathlib import Path

from tests.sim.run import run_seed

from bench.report import Verdict, at_least, milliseconds, print_table
from bench.size import Size

RECORDS = 40_000
# Twice what this bench measured before the work on the speed of the core and the simulation.
GOAL = 2.4


def bare_loop() -> int:
    """Make, sort and print records, as the simulation does most of the time."""
    records = [{"at": number * 7919 % RECORDS, "name": f"machine-{number % 97}"} for number in range(RECORDS)]
    records.sort(key=lambda record: (record["name"], record["at"]))
    return sum(len(f"{record['name']} at {record['at']}") for record in records)


def run(_: Path, size: Size) -> list[Verdict]:
    seeds_s, loops_s = [], []
    run_seed(0)
    for seed in range(size.simulation_seeds):
        before_s = time.process_time()
        run_seed(seed)
        between_s = time.process_time()
        bare_loop()
        seeds_s.append(between_s - before_s)
        loops_s.append(time.process_time() - between_s)
    # Seeds differ much, so their sum counts, not the median of the rounds.
    ratio = sum(loops_s) / sum(seeds_s)
    row = [milliseconds(sum(seeds_s) / len(seeds_s)), milliseconds(sum(loops_s) / len(loops_s)), f"{ratio:.2f}"]
    title = f"CPU of a seed of the simulation, mean of {len(seeds_s)} interleaved with a bare loop"
    print_table(title, ["a seed", "bare loop", "loops / seed"], [row])
    return [at_least("simulation seeds per CPU time of a bare loop,", ratio, GOAL)]
