"""Runs every part of the tests one after the other and says how long each took. `make test` and `make soak` call it.

A part that fails does not keep the others from running; the exit code tells.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SOAK_FACTOR = 10

PYTEST = [str(BIN / "pytest"), "-q", "-p", "no:cacheprovider"]
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
    "store": [*PYTEST, "tests/store"],
    "stories": [*PYTEST, "tests/scenarios"],
    "properties": [*PYTEST, "tests/properties"],
    "service": [*PYTEST, "tests/executors", "tests/e2e"],
    "web": [*PYTEST, "tests/web"],
    "cli": [*PYTEST, "tests/cli"],
    "demo": [*PYTEST, "tests/demo"],
    "isolation": [*PYTEST, "tests/isolation"],
    "guest": [*PYTEST, "tests/guest"],
    "api": [*PYTEST, "tests/api"],
    "docs": [*PYTEST, "tests/docs"],
    "crash": [*PYTEST, "tests/crash"],
    "bench, toy size": [str(BIN / "python"), "-m", "bench", "--toy"],
}
LONG = ("properties", "web", "guest", "crash")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soak", action="store_true", help="only the long-running parts, with ten times the budget")
    soak = parser.parse_args().soak
    environment = {**os.environ, "TEST_BUDGET": str(SOAK_FACTOR if soak else 1)}
    took: dict[str, tuple[float, int]] = {}
    for name, command in PARTS.items():
        if soak and name not in LONG:
            continue
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        took[name] = (time.monotonic() - begun, code)
    print("\n== time by part")
    for name, (seconds, code) in took.items():
        print(f"{name:<16} {seconds:6.1f} s  {'ok' if code == 0 else f'FAILED ({code})'}")
    failed = sum(code != 0 for _, code in took.values())
    print(f"{'all':<16} {sum(seconds for seconds, _ in took.values()):6.1f} s")
    print(f"{len(took) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
