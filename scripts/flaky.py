"""Run parts of the tests again and again on a machine made slow, and report which tests failed how often.

`make flaky N=20` runs every part twenty times; `make flaky N=20 PART="guest nodes"` only these. Five parts run at a time and
are each other's load; where fewer parts are left, busy loops take their place. Besides, random processes of the parts are
stopped, each for up to `--pause-ms`, so that each stands still for about a tenth of the time. A busy machine does the same,
but seldom at the moment that shows a race.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.test_parts import LANES, LOGS, PARTS, ROOT, environment_of_a_run, run

MAX_PAUSE_MS = 1_000
# How much of the time each process stands still, and how often it is decided which ones to stop.
STILL_SHARE = 0.1
EVERY_S = 0.05
MAX_PAUSED = 64
# Marks the processes of a run: programs that leave their parent keep the environment.
MARK = "FLAKY_RUN"
# A loop ends when its parent is gone, however the parent ended.
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how often each part runs (20)")
    parser.add_argument(
        "--at-once", type=int, default=LANES, metavar="N", help=f"how many parts and busy loops compete ({LANES})"
    )
    parser.add_argument(
        "--pause-ms", type=int, default=MAX_PAUSE_MS, metavar="MS", help=f"longest pause ({MAX_PAUSE_MS})"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    names = arguments.parts or [name for name in PARTS if name != "check"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # after the runs under way, and nothing stays stopped
    mark = f"{MARK}={uuid.uuid4()}"
    with environment_of_a_run() as environment, pauses(mark, arguments.pause_ms / 1000):
        environment = {**environment, MARK: mark.partition("=")[2]}
        commands = {name: without_coverage(PARTS[name]) for name in names}
        failed = run_side_by_side(commands, arguments.at_once, arguments.runs, environment)
    print(
        f"== {arguments.runs} run(s) of {', '.join(names)}; {arguments.at_once} parts or busy loops at a time,"
        f" with pauses of up to {arguments.pause_ms} ms"
    )
    for test, count in failed.most_common():
        print(f"failed {count} of {arguments.runs}: {test}")
    print("no test failed" if not failed else f"{len(failed)} test(s) failed; their output is in {LOGS}/flaky-*.log")
    return 1 if failed else 0


def run_side_by_side(
    commands: Mapping[str, Sequence[str]], at_once: int, runs: int, environment: Mapping[str, str], logs: Path = LOGS
) -> Counter[str]:
    """Run each part `runs` times, `at_once` parts at a time; compute in the place of parts that are missing."""
    logs.mkdir(exist_ok=True)
    ended = threading.Event()
    with ThreadPoolExecutor(at_once) as lanes:
        parts = [
            lanes.submit(run_often, name, command, runs, environment, logs, ended) for name, command in commands.items()
        ]
        for _ in range(at_once):
            lanes.submit(compute, ended)  # begins when no part needs the lane
        try:
            return sum((part.result() for part in parts), Counter())
        finally:
            ended.set()


def run_often(
    name: str,
    command: Sequence[str],
    runs: int,
    environment: Mapping[str, str],
    logs: Path,
    interrupted: threading.Event,
) -> Counter[str]:
    """Run one part `runs` times; keep the output of each failed run, and count the tests that failed."""
    failed: Counter[str] = Counter()
    for number in range(1, runs + 1):
        if interrupted.is_set():
            break
        result = run(name, command, environment)
        print(
            f"{name} {number} of {runs}: {result.seconds:.0f} s, {'ok' if result.code == 0 else 'FAILED'}", flush=True
        )
        if result.code:
            (logs / f"flaky-{name}-{number}.log").write_text(result.output, "utf-8")
            failed.update(result.failures())
    return failed


def without_coverage(command: Sequence[str]) -> list[str]:
    """Return the command of a part without what only a report needs."""
    return [word for word in command if not word.startswith("--cov")]


def compute(ended: threading.Event) -> None:
    """Keep a process computing until `ended` is set."""
    with subprocess.Popen([sys.executable, "-c", LOOP], cwd=ROOT) as loop:
        ended.wait()
        loop.kill()


@contextmanager
def pauses(mark: str, max_pause_s: float, still_share: float = STILL_SHARE) -> Iterator[None]:
    """Until the block ends, stop each process that has `mark` in its environment now and then, for a random time."""
    ended = threading.Event()
    thread = threading.Thread(target=_pause_processes, args=(mark.encode(), max_pause_s, still_share, ended))
    if max_pause_s > 0:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def _pause_processes(mark: bytes, max_pause_s: float, still_share: float, ended: threading.Event) -> None:
    choose = random.Random()
    running_s = max_pause_s / 2 * (1 - still_share) / still_share  # on average, between two pauses of a process
    stopped: set[int] = set()  # by us: a process on a busy machine may take a while to stop

    def pause(process_id: int) -> None:
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
            os.kill(process_id, signal.SIGSTOP)
            ended.wait(choose.uniform(0, max_pause_s))
            if not stopped_twice(process_id):
                os.kill(process_id, signal.SIGCONT)
        stopped.discard(process_id)

    with ThreadPoolExecutor(MAX_PAUSED) as pool:
        while not ended.wait(EVERY_S):
            for process_id in marked_processes(mark):
                if process_id not in stopped and choose.random() < EVERY_S / running_s:
                    stopped.add(process_id)
                    pool.submit(pause, process_id)


def stopped_twice(process_id: int) -> bool:
    """Whether a process was stopped again while it was stopped, by a test that wants it frozen: that SIGSTOP is still pending."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{process_id}/status").read_text("utf-8", "replace").splitlines()
    )
    return "T" in status["State"] and bool(int(status["ShdPnd"], 16) & 1 << signal.SIGSTOP - 1)


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
    """Whether the process runs or sleeps, and neither it nor its parent notices that it was stopped.

    A shell with job control notices it of its jobs. nsenter stops itself when its child is stopped, and nobody continues it.
    Wine reports an internal error when a program that it starts was stopped meanwhile.
    """
    # The name of the program, in parentheses, may hold any character.
    _, _, name_and_more = (folder / "stat").read_text("utf-8", "replace").partition("(")
    name, _, more = name_and_more.rpartition(") ")
    state, parent, group, session, *_ = more.split()
    is_job = group == folder.name != session
    is_wine = name.startswith("wine") or name.endswith(".exe")
    return (
        state in "RSD" and not is_job and not is_wine and (Path("/proc") / parent / "comm").read_text() != "nsenter\n"
    )


if __name__ == "__main__":
    sys.exit(main())
