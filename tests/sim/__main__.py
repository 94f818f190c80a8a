"""Run the simulation: `python -m tests.sim --seed 17 --trace` replays one seed, `--seeds 0-999` runs many on all cores."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.sim.guest_checks import Notice
from tests.sim.run import run_seed

# How many seeds a process gets at a time.
BATCH = 10


class Report(NamedTuple):
    """What to print about a seed, whether the judge complained, and how many guests had notice."""

    text: str
    failed: bool
    notice: Notice


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this seed")
    which.add_argument("--seeds", metavar="FIRST-LAST", help="run all of these seeds")
    parser.add_argument("--trace", action="store_true", help="print each step of the run")
    options = parser.parse_args()
    first, _, last = (options.seeds or str(options.seed)).partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if not seeds:
        parser.error(f"--seeds {options.seeds} names no seed: write the lower number first")
    failed = promised = held = 0
    start_s = time.monotonic()
    for each in reports(seeds, trace=options.trace):
        print(each.text, end="", flush=True)
        failed, promised, held = failed + each.failed, promised + each.notice.promised, held + each.notice.held
    print(
        f"{len(seeds)} seed(s) in {time.monotonic() - start_s:.1f} s, {failed} failed;"
        f" notice held by {held} of {promised} guests"
    )
    return 1 if failed else 0


def reports(seeds: Sequence[int], *, trace: bool = False) -> Iterator[Report]:
    """Run seeds on all cores and yield their reports in the order of the seeds."""
    with ProcessPoolExecutor() as pool:
        yield from pool.map(partial(report, trace=trace), seeds, chunksize=BATCH)


def report(seed: int, *, trace: bool) -> Report:
    """Run a seed and return its report."""
    run = run_seed(seed)
    lines = run.trace if trace else []
    if run.complaints:
        lines = [*lines, f"seed {seed}: python -m tests.sim --seed {seed} --trace"]
        lines += [f"  {sentence}" for sentence in run.complaints]
    return Report("".join(f"{line}\n" for line in lines), bool(run.complaints), run.notice)


if __name__ == "__main__":
    sys.exit(main())
