"""Runs the parts of the tests, three at a time, and says how long each took. `make test` and `make soak` call it.

What a part said is shown when it ends. One that fails does not keep the others from running; the exit code tells.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SOAK_FACTOR = 10

PYTEST = [str(BIN / "pytest"), "-q", "-p", "no:cacheprovider"]
# After the quick ones the longest first, so that none is left alone at the end.
PARTS: dict[str, list[str]] = {
    "check": ["make", "--no-print-directory", "check"],
    "core": [
        *PYTEST,
        "tests/core",
        "--cov=forewarn.core",
        "--cov-branch",
        "--cov-report=term:skip-covered",
        "--cov-fail-under=100",
    ],
    # Most of it is waiting for others' programs.
    "handlers": [*PYTEST, "-n", "3", "--dist", "loadscope", "tests/integration/handlers"],
    "test kit": [*PYTEST, "tests/testing"],
    # Most of it is waiting for notices to run and leases to end.
    "chaos": [*PYTEST, "-n", "2", "tests/integration/chaos"],
    # Most of it is waiting for leases and time limits to end.
    "nodes": [*PYTEST, "-n", "3", "--dist", "loadscope", "tests/integration/nodes"],
    "browser": [*PYTEST, "-n", "2", "tests/integration/browser"],
    "guest": [*PYTEST, "tests/guest"],
    "cli": [*PYTEST, "tests/cli"],
    "store": [*PYTEST, "tests/store"],
    "simulation": [*PYTEST, "tests/sim"],
    "properties": [*PYTEST, "tests/properties"],
    "service": [*PYTEST, "tests/executors", "tests/service", "tests/app"],
    "bench, toy size": [str(BIN / "python"), "-m", "bench", "--toy"],
    "operator": [*PYTEST, "tests/operator"],
    "crash": [*PYTEST, "tests/integration/crash"],
    "dist": [*PYTEST, "tests/dist"],
    "endpoint": [*PYTEST, "tests/endpoint"],
    "demo": [*PYTEST, "tests/demo"],
    "isolation": [*PYTEST, "tests/integration/isolation"],
    "stories": [*PYTEST, "tests/stories"],
    "docs": [*PYTEST, "tests/docs"],
}
LONG = ("properties", "endpoint", "guest", "handlers", "test kit", "crash", "simulation", "chaos")
# More than there are cores: much of a part is waiting for programs to start and deadlines to pass.
LANES = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soak", action="store_true", help="only the long-running parts, with ten times the budget")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    names = asked.parts or (LONG if asked.soak else tuple(PARTS))
    environment = {**os.environ, "TEST_BUDGET": str(SOAK_FACTOR if asked.soak else 1)}
    begun = time.monotonic()
    took: dict[str, tuple[float, int]] = {}
    with ThreadPoolExecutor(LANES) as lanes:
        running = {lanes.submit(run, name, environment): name for name in names}
        for done in as_completed(running):
            seconds, code, said = done.result()
            took[running[done]] = (seconds, code)
            print(f"== {running[done]} ({len(took)} of {len(names)}, {seconds:.0f} s)\n{said}", flush=True)
    print("== time by part")
    for name in names:
        seconds, code = took[name]
        print(f"{name:<16} {seconds:6.1f} s  {'ok' if code == 0 else f'FAILED ({code})'}")
    failed = sum(code != 0 for _, code in took.values())
    print(f"{'all':<16} {time.monotonic() - begun:6.1f} s")
    print(f"{len(took) - failed} passed, {failed} failed")
    return 1 if failed else 0


def run(name: str, environment: Mapping[str, str]) -> tuple[float, int, str]:
    """How long it took, its exit code, and what it said."""
    print(f"-- {name} begins", flush=True)
    begun = time.monotonic()
    done = subprocess.run(
        PARTS[name], cwd=ROOT, env=environment, check=False, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return time.monotonic() - begun, done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
