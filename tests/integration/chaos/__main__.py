"""Three nodes under load and chaos: run a seed, or check a history that was kept.

python -m tests.integration.chaos --seed 17
python -m tests.integration.chaos --check FOLDER/history.jsonl
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.chaos.checker import check
from tests.integration.chaos.faults import schedule
from tests.integration.chaos.history import read
from tests.integration.chaos.run import DISTURBED_S, run_three_nodes
from tests.support.postgres_servers import server


def main() -> int:
    keep = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.integration.chaos", description=__doc__, formatter_class=keep
    )
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seconds", type=float, default=DISTURBED_S, help="how long the nodes are disturbed")
    parser.add_argument("--folder", type=Path, help="where logs and history go; by default a new temporary folder")
    parser.add_argument("--check", type=Path, metavar="FILE", help="check this history instead of running anything")
    options = parser.parse_args()
    if options.check:
        history = read(options.check)
    else:
        seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
        folder = options.folder or Path(tempfile.mkdtemp(prefix=f"forewarn-chaos-{seed}-"))
        folder.mkdir(parents=True, exist_ok=True)
        print(f"seed {seed}, in {folder}")
        for fault in schedule(seed, options.seconds):
            print(f"  {fault.at_s:5.1f} s  {fault.what} {fault.node} for {fault.for_s:.1f} s")
        with server() as database:
            history = run_three_nodes(database, folder, seed, options.seconds)
    found = check(history)
    print(found)
    return 1 if found.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
