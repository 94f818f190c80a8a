"""The simulation: how many seeds run per second beside a bare loop of plain Python, which costs about as much on every machine.

Both rows are in bare loops, so that runs on different machines can be compared. The first row is the wall time of
`python -m tests.sim --seeds`, which uses all cores, beside the loop on one core. The second row is the CPU time of a seed.
"""

from pathlib import Path

from tests.sim.__main__ import reports
from tests.sim.run import run_seed

from bench.measure import NOTHING, cost_of
from bench.report import Verdict, at_least, milliseconds, print_table
from bench.size import Size

RECORDS = 40_000
ROUNDS = 5
# Twice what this bench measured when one process ran all seeds, before the work on the speed of the core and the simulation.
GOAL = 2.4


def bare_loop() -> int:
    """Make, sort and print records, as the simulation does most of the time."""
    records = [{"at": number * 7919 % RECORDS, "name": f"machine-{number % 97}"} for number in range(RECORDS)]
    records.sort(key=lambda record: (record["name"], record["at"]))
    return sum(len(f"{record['name']} at {record['at']}") for record in records)


def run(_: Path, size: Size) -> list[Verdict]:
    seeds = range(size.simulation_seeds)
    run_seed(0)
    alone = loops = together = NOTHING
    # Seeds differ much, so their sum counts, not the median of the rounds.
    for start in seeds[:: size.simulation_seeds // ROUNDS or 1]:
        some = seeds[start : start + size.simulation_seeds // ROUNDS]
        alone += cost_of(lambda: [run_seed(seed) for seed in some])  # noqa: B023 - called at once
        loops += cost_of(lambda: [bare_loop() for _ in some])  # noqa: B023 - called at once
        together += cost_of(lambda: list(reports(some)))  # noqa: B023 - called at once
    ratios = {
        "`python -m tests.sim --seeds`, wall time": (together.wall_s, loops.wall_s),
        "one process, CPU time": (alone.cpu_s, loops.cpu_s),
    }
    rows = [
        [how, milliseconds(seeds_s / len(seeds)), milliseconds(loops_s / len(seeds)), f"{loops_s / seeds_s:.2f}"]
        for how, (seeds_s, loops_s) in ratios.items()
    ]
    title = (
        f"A seed of the simulation beside a bare loop on one core, mean of {len(seeds)} in {ROUNDS} interleaved rounds"
    )
    print_table(title, ["how", "a seed", "bare loop", "loops / seed"], rows)
    return [at_least("simulation seeds per second of a bare loop,", loops.wall_s / together.wall_s, GOAL)]
