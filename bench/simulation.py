"""The simulation: how many seeds run while a bare loop of plain Python runs, which costs about as much on every machine.

The first row is the wall time of `python -m tests.sim --seeds`, which uses all cores, beside the loop on one core. The second
row is the CPU time of a seed in one process, which does not depend on the number of cores.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.sim.__main__ import reports
from tests.sim.run import run_seed

from bench.measure import NOTHING, cost_of
from bench.report import Verdict, at_least, milliseconds, print_table
from bench.size import Size

RECORDS = 40_000
ROUNDS = 5
# Twice what this bench measured before the work on the speed of the core and the simulation. The command used one core then.
GOAL = 2.4
# A seed in one process: a little more than before that work, so that more cores do not hide a slower simulation.
CPU_GOAL = 1.4


def bare_loop() -> int:
    """Make, sort and print records, as the simulation does most of the time."""
    records = [{"at": number * 7919 % RECORDS, "name": f"machine-{number % 97}"} for number in range(RECORDS)]
    records.sort(key=lambda record: (record["name"], record["at"]))
    return sum(len(f"{record['name']} at {record['at']}") for record in records)


def run_one_by_one(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_seed(seed)


def run_with_command(seeds: range) -> None:
    for _ in reports(seeds):
        pass


def run_bare_loops(count: int) -> None:
    for _ in range(count):
        bare_loop()


def run(_: Path, size: Size) -> list[Verdict]:
    each_round = size.simulation_seeds_per_round
    run_seed(0)
    one_process = command = loops = NOTHING
    # Seeds differ much, so their sum counts, not the median of the rounds.
    for start in range(0, ROUNDS * each_round, each_round):
        seeds = range(start, start + each_round)
        one_process += cost_of(partial(run_one_by_one, seeds))
        loops += cost_of(partial(run_bare_loops, each_round))
        command += cost_of(partial(run_with_command, seeds))
    times = {
        "`python -m tests.sim --seeds`, wall time": (command.wall_s, loops.wall_s),
        "one process, CPU time": (one_process.cpu_s, loops.cpu_s),
    }
    count = ROUNDS * each_round
    rows = [
        [how, milliseconds(seeds_s / count), milliseconds(loops_s / count), f"{loops_s / seeds_s:.2f}"]
        for how, (seeds_s, loops_s) in times.items()
    ]
    title = (
        f"A seed of the simulation on {os.cpu_count()} cores beside a bare loop on one, mean of {count} in {ROUNDS}"
        " interleaved rounds"
    )
    print_table(title, ["how", "a seed", "bare loop", "seeds in the time of a loop"], rows)
    return [
        at_least("simulation seeds in the time of a bare loop,", loops.wall_s / command.wall_s, GOAL),
        at_least("simulation seeds in the CPU time of a bare loop,", loops.cpu_s / one_process.cpu_s, CPU_GOAL),
    ]
