"""Run parts of the tests again and again on a machine made slow, and report which tests failed how often.

`make flaky N=20` runs every part twenty times; `make flaky N=20 PART="guest nodes"` only these. Each run has as many
pytest processes as the machine has cores twice, and four busy loops compete with them. Besides, one process of the run
after another is stopped for up to `--pause-ms` and then continued. A busy machine does the same, but seldom at the
moment that shows a race.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.test_parts import BIN, LOGS, PARTS, ROOT, environment_of_a_run, run

BUSY_LOOPS = 4
MAX_PAUSE_MS = 400
# How long after a process was stopped the next one is. Several can be stopped at a time.
NEXT_PAUSE_S = 0.05
# Marks the processes of a run: programs that leave their parent keep the environment.
MARK = "FLAKY_RUN"
PROCESSES = 2 * (os.cpu_count() or 1)
# A loop ends when its parent is gone, however the parent ended.
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how often each part runs (20)")
    parser.add_argument("--busy", type=int, default=BUSY_LOOPS, metavar="N", help=f"busy loops ({BUSY_LOOPS})")
    parser.add_argument(
        "--pause-ms", type=int, default=MAX_PAUSE_MS, metavar="MS", help=f"longest pause ({MAX_PAUSE_MS})"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    failed: Counter[str] = Counter()
    names = arguments.parts or [name for name in PARTS if name != "check"]
    with busy_loops(arguments.busy):
        for name in names:
            failed += run_often(name, arguments.runs, arguments.pause_ms / 1000)
    print(
        f"== {arguments.runs} run(s) of {', '.join(names)} beside {arguments.busy} busy loops,"
        f" with pauses of up to {arguments.pause_ms} ms"
    )
    for test, count in failed.most_common():
        print(f"failed {count} of {arguments.runs}: {test}")
    print("no test failed" if not failed else f"{len(failed)} test(s) failed; their output is in {LOGS}/flaky-*.log")
    return 1 if failed else 0


def run_often(name: str, runs: int, max_pause_s: float) -> Counter[str]:
    """Run one part `runs` times; keep the output of each failed run."""
    failed: Counter[str] = Counter()
    LOGS.mkdir(exist_ok=True)
    for number in range(1, runs + 1):
        mark = f"{MARK}={uuid.uuid4()}"
        with environment_of_a_run() as environment, pauses(mark, max_pause_s):
            result = run(name, in_parallel(PARTS[name]), {**environment, MARK: mark.partition("=")[2]})
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


@contextmanager
def pauses(mark: str, max_pause_s: float) -> Iterator[None]:
    """Until the block ends, stop random processes that have `mark` in their environment, each for a short time."""
    ended = threading.Event()
    thread = threading.Thread(target=_pause_processes, args=(mark.encode(), max_pause_s, ended))
    if max_pause_s > 0:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def _pause_processes(mark: bytes, max_pause_s: float, ended: threading.Event) -> None:
    choose = random.Random()
    while not ended.wait(NEXT_PAUSE_S):
        if processes := marked_processes(mark):
            threading.Thread(
                target=_pause, args=(choose.choice(processes), choose.uniform(0, max_pause_s), ended)
            ).start()


def _pause(process_id: int, seconds: float, ended: threading.Event) -> None:
    try:
        os.kill(process_id, signal.SIGSTOP)
        ended.wait(seconds)
        os.kill(process_id, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it has ended


def marked_processes(mark: bytes) -> list[int]:
    """Return the ids of the processes that have `mark` in their environment and may be stopped."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0") and _may_be_stopped(folder):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or belongs to someone else
    return found


def _may_be_stopped(folder: Path) -> bool:
    """Whether the process runs or sleeps, and has no parent that would notice a stop.

    A shell with job control notices it of its jobs. nsenter stops itself when its child is stopped, and nobody continues it.
    """
    # The name of the program, in parentheses before this, may hold any character.
    state, parent, group, session, *_ = (folder / "stat").read_text("utf-8", "replace").rpartition(") ")[2].split()
    is_job = group == folder.name != session
    return state in "RSD" and not is_job and (Path("/proc") / parent / "comm").read_text() != "nsenter\n"


if __name__ == "__main__":
    sys.exit(main())
