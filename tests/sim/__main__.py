"""Run the simulation: `python -m tests.sim --seed 17 --trace` replays one seed, `--seeds 0-999` runs many."""

import argparse
import sys
import time

from tests.sim.run import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this seed")
    which.add_argument("--seeds", metavar="FIRST-LAST", help="run all of these seeds")
    parser.add_argument("--trace", action="store_true", help="print each step of the run")
    options = parser.parse_args()
    first, _, last = (options.seeds or str(options.seed)).partition("-")
    failed, promised, held = [], 0, 0
    start_s = time.monotonic()
    for seed in range(int(first), int(last or first) + 1):
        run = run_seed(seed)
        if options.trace:
            print("\n".join(run.trace))
        promised, held = promised + run.notice.promised, held + run.notice.held
        if run.complaints:
            failed.append(seed)
            print(f"seed {seed}: python -m tests.sim --seed {seed} --trace")
            print("".join(f"  {sentence}\n" for sentence in run.complaints), end="")
    count = int(last or first) + 1 - int(first)
    print(
        f"{count} seed(s) in {time.monotonic() - start_s:.1f} s, {len(failed)} failed; notice held by {held} of {promised} guests"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
