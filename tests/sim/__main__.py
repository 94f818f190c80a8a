"""Replays a seed, or runs many: `python -m tests.sim --seed 17 --trace`, `python -m tests.sim --seeds 0-999`."""

import argparse
import sys
import time

from tests.sim.run import Simulation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this one")
    which.add_argument("--seeds", metavar="FIRST-LAST", help="run all of these")
    parser.add_argument("--trace", action="store_true", help="print what happened, line by line")
    asked = parser.parse_args()
    first, _, last = (asked.seeds or str(asked.seed)).partition("-")
    failed, promised, held = [], 0, 0
    begun = time.monotonic()
    for seed in range(int(first), int(last or first) + 1):
        run = Simulation(seed).run()
        if asked.trace:
            print("\n".join(run.trace))
        promised, held = promised + run.notice.promised, held + run.notice.held
        if run.complaints:
            failed.append(seed)
            print(f"seed {seed}: python -m tests.sim --seed {seed} --trace")
            print("".join(f"  {sentence}\n" for sentence in run.complaints), end="")
    count = int(last or first) + 1 - int(first)
    print(
        f"{count} seed(s) in {time.monotonic() - begun:.1f} s, {len(failed)} failed; notice held by {held} of {promised} guests"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
