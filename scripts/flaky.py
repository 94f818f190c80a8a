"""Run parts of the tests again and again beside busy loops, and report which tests failed how often.

`make flaky N=20` runs every part twenty times; `make flaky N=20 PART="guest nodes"` only these. Each run has as many
pytest processes as the machine has cores twice, and four busy loops compete with them.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.test_parts import BIN, LOGS, PARTS, ROOT, run

BUSY_LOOPS = 4
PROCESSES = 2 * (os.cpu_count() or 1)
# A loop ends when its parent is gone, however the parent ended.
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how often each part runs (20)")
    parser.add_argument("--busy", type=int, default=BUSY_LOOPS, metavar="N", help=f"busy loops ({BUSY_LOOPS})")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    failed: Counter[str] = Counter()
    names = arguments.parts or [name for name in PARTS if name != "check"]
    with busy_loops(arguments.busy):
        for name in names:
            failed += run_often(name, arguments.runs)
    print(f"== {arguments.runs} run(s) of {', '.join(names)} beside {arguments.busy} busy loops")
    for test, count in failed.most_common():
        print(f"failed {count} of {arguments.runs}: {test}")
    print("no test failed" if not failed else f"{len(failed)} test(s) failed; their output is in {LOGS}/flaky-*.log")
    return 1 if failed else 0


def run_often(name: str, runs: int) -> Counter[str]:
    """Run one part `runs` times; keep the output of each failed run."""
    failed: Counter[str] = Counter()
    LOGS.mkdir(exist_ok=True)
    for number in range(1, runs + 1):
        result = run(name, in_parallel(PARTS[name]), os.environ)
        print(
            f"{name} {number} of {runs}: {result.seconds:.0f} s, {'ok' if result.code == 0 else 'FAILED'}", flush=True
        )
        if result.code:
            (LOGS / f"flaky-{name}-{number}.log").write_text(result.output, "utf-8")
            failed.update(result.failures())
    return failed


def in_parallel(command: Sequence[str]) -> list[str]:
    """Return the command with twice as many pytest processes as cores; leave alone what is not pytest."""
    if command[0] != str(BIN / "pytest"):
        return list(command)
    plain = [word for word in command if not word.startswith("--cov")]
    return [*plain, "-n", str(PROCESSES)] if "-n" not in plain else plain


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep `count` processes computing until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP], cwd=ROOT) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main())
