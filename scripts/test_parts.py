"""Run the parts of the tests, five at a time, and print how long each took. `make test`, `quick` and `soak` call it.

A part that passes prints one line; its output is kept in `test-logs/`. A part that fails does not stop the others: the
end of its output is printed when all have ended. The last lines name every failed test, how to run one alone, and where
the logs are.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.caller import MASK, neutral
from tests.folders import folder_for_every_user

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LOGS = ROOT / "test-logs"
SOAK_FACTOR = 10

TOOLS = [str(ROOT / "scripts/test_tools")]
PYTEST = [str(BIN / "pytest"), "-q", "-p", "no:cacheprovider"]
COVERED = ["--cov=forewarn.core", "--cov-branch", "--cov-report=term:skip-covered", "--cov-fail-under=100"]
# These run while `scripts/test_tools` still installs what the others need.
WITHOUT_TOOLS = ("check", "core", "simulation")
# First those without tools, then the longest, so that none is left alone at the end. Parts that mostly wait (for other programs,
# for notices to run, for leases and time limits to end) alternate with parts that compute, so that no core is idle.
PARTS: dict[str, list[str]] = {
    # Whatever has changed meanwhile, the environment that the other parts run in is not made anew.
    "check": ["make", "--no-print-directory", "--old-file=.venv/.ready", "check"],
    "core": [*PYTEST, "tests/core", *COVERED],
    "simulation": [*PYTEST, "tests/sim"],
    "handlers": [*PYTEST, "-n", "3", "--dist", "loadscope", "tests/integration/handlers"],
    "testing": [*PYTEST, "tests/testing"],
    "windows": [*PYTEST, "tests/integration/windows"],
    "kvm": [*PYTEST, "-n", "6", "--dist", "loadscope", "tests/integration/kvm"],
    "browser": [*PYTEST, "-n", "2", "tests/integration/browser"],
    "chaos": [*PYTEST, "-n", "2", "tests/integration/chaos"],
    "operator": [*PYTEST, "tests/operator"],
    "nodes": [*PYTEST, "-n", "3", "--dist", "loadscope", "tests/integration/nodes"],
    "guest": [*PYTEST, "tests/guest"],
    "bench": [str(BIN / "python"), "-m", "bench", "--toy"],
    "store": [*PYTEST, "tests/store"],
    "properties": [*PYTEST, "tests/properties"],
    "service": [*PYTEST, "tests/executors", "tests/libvirt", "tests/service", "tests/app"],
    "cli": [*PYTEST, "tests/cli"],
    "crash": [*PYTEST, "tests/integration/crash"],
    "dist": [*PYTEST, "tests/dist"],
    "demo": [*PYTEST, "tests/demo"],
    "isolation": [*PYTEST, "tests/integration/isolation"],
    "docs": [*PYTEST, "tests/docs", "tests/scripts"],
    "endpoint": [*PYTEST, "tests/endpoint"],
    "stories": [*PYTEST, "tests/stories"],
}
# What `make quick` runs: no other program than Python, no fuzzing, nothing that takes long.
QUICK: dict[str, list[str]] = {
    "check": PARTS["check"],
    "core": [*PYTEST, "tests/core"],
    "stories": [*PYTEST, "tests/stories", "-k", "not postgres"],
    "store": [*PYTEST, "tests/store", "-k", "not postgres"],
    "guest": [*PYTEST, "tests/guest", "-m", "not slow"],
    "endpoint": [*PYTEST, "tests/endpoint", "-m", "not slow"],
}
LONG = ("properties", "endpoint", "guest", "handlers", "testing", "crash", "simulation", "chaos", "kvm")
STARTING = threading.Lock()
UNDER_WAY: "set[subprocess.Popen[bytes]]" = set()
WAKE_EVERY_S = 1.0
INTERRUPTED = threading.Event()  # no more parts begin
TERMINATED = threading.Event()  # by SIGTERM; an exception of its handler would leave locks of `wait` locked
# More than twice the cores: most parts wait for more than half of their time, for programs to start and deadlines to pass.
LANES = 5
# How much of a failed part is printed: the tracebacks of a few tests and pytest's summary.
SHOWN_LINES = 200
# As pytest's summary prints them: "FAILED tests/x.py::test_y[z] - reason".
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s:]+(?:::[^\s\[]+)*(?:\[.*?\](?= - |$))?)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    seconds: float
    code: int
    output: str
    cpu_s: float = 0.0  # of the part and the programs it waited for
    started_s: float = 0.0  # on the monotonic clock

    def line(self) -> str:
        """Say in one line how the part ended: its own last line tells how many tests there were."""
        last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "")
        state = "ok" if self.code == 0 else f"FAILED ({self.code})"
        return f"{self.name}, {self.seconds:.0f} s, {self.cpu_s:.0f} s of CPU, {state}: {last.strip()}"

    def failures(self) -> list[str]:
        """Return the failed tests by their ids, or the part's own name where no test can be named."""
        if self.code == 0:
            return []
        return list(dict.fromkeys(_FAILED.findall(self.output))) or [f"part {self.name}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soak", action="store_true", help="run only the long parts, with ten times the budget")
    parser.add_argument("--quick", action="store_true", help="run only what takes little time and no other program")
    parser.add_argument("--tools", action="store_true", help="install what the parts need beside the first parts")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"run only these: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    commands = QUICK if arguments.quick else PARTS
    names = arguments.parts or (LONG if arguments.soak else tuple(commands))
    signal.signal(signal.SIGTERM, lambda *_: TERMINATED.set())
    started_s = time.monotonic()
    with environment_of_a_run(SOAK_FACTOR if arguments.soak else 1) as environment:
        results = run_all({name: commands[name] for name in names}, environment, TOOLS if arguments.tools else ())
    failed = [result for result in results.values() if result.code != 0]
    for result in failed:
        print(f"== {result.name} failed: the end of test-logs/{result.name}.log")
        print("\n".join(result.output.splitlines()[-SHOWN_LINES:]))
    print("== time by part")
    for name in names:
        result = results[name]
        state = "ok" if result.code == 0 else f"FAILED ({result.code})"
        begun_s = result.started_s - started_s
        print(f"{name:<16} {result.seconds:6.1f} s from {begun_s:5.1f} s  {result.cpu_s:6.1f} s of CPU  {state}")
    cpu_s = sum(result.cpu_s for result in results.values())
    print(f"{'all':<16} {time.monotonic() - started_s:6.1f} s               {cpu_s:6.1f} s of CPU")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    print_failures(failed)
    return 1 if failed else 0


@contextmanager
def environment_of_a_run(budget: int = 1) -> Iterator[dict[str, str]]:
    """Yield the variables for the parts of a run, and remove in the end what the parts shared."""
    shared = folder_for_every_user("forewarn-tests-")
    try:
        yield {**os.environ, "TEST_BUDGET": str(budget), "TEST_SHARED_FOLDER": str(shared)}
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def run_all(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], tools: Sequence[str] = (), logs: Path = LOGS
) -> dict[str, Result]:
    """Run the parts in lanes and print a line when each ends. The command `tools` installs what most of them need."""
    results: dict[str, Result] = {}
    logs.mkdir(exist_ok=True)
    with ThreadPoolExecutor(1) as installer, ThreadPoolExecutor(LANES) as lanes, ended_together():
        installation = installer.submit(run, "tools", tools, environment) if tools else None

        def run_part(name: str) -> Result:
            if installation is not None and name not in WITHOUT_TOOLS and (installed := installation.result()).code:
                return replace(installed, name=name)
            return run(name, commands[name], environment)

        for done in as_they_end({lanes.submit(run_part, name) for name in commands}):
            result = results[done.result().name] = done.result()
            (logs / f"{result.name}.log").write_text(result.output, "utf-8")
            print(f"== {len(results)} of {len(commands)}: {result.line()}", flush=True)
    return results


def as_they_end(left: "set[Future[Result]]") -> "Iterator[Future[Result]]":
    """Yield each part when it has ended.

    The handler of a signal runs in the main thread. It does not wake up if another thread has received the signal.
    """
    while left:
        done, left = wait(left, timeout=WAKE_EVERY_S, return_when=FIRST_COMPLETED)
        if TERMINATED.is_set():
            sys.exit(143)
        yield from done


@contextmanager
def ended_together() -> Iterator[None]:
    """If the block is interrupted, begin no more parts, and let those under way end their programs."""
    try:
        yield
    except BaseException as error:
        with STARTING:
            INTERRUPTED.set()
            if not isinstance(error, KeyboardInterrupt):  # the terminal has sent Ctrl-C to the parts too
                for process in UNDER_WAY:
                    process.send_signal(signal.SIGINT)
        raise


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Result:
    """Run one part to its end. The caller's settings, those for Python and pytest included, do not change its result."""
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as output:
        with STARTING:
            if INTERRUPTED.is_set():
                return Result(name, 0.0, 1, "not begun: the run was interrupted")
            process = subprocess.Popen(
                command, cwd=ROOT, env=neutral(environment), umask=MASK,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            UNDER_WAY.add(process)
        _, status, used = os.wait4(process.pid, 0)
        with STARTING:
            UNDER_WAY.remove(process)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    code = process.returncode = os.waitstatus_to_exitcode(status)
    return Result(name, time.monotonic() - started_s, code, text, used.ru_utime + used.ru_stime, started_s)


def print_failures(failed: Sequence[Result]) -> None:
    """Print three lines: which tests failed, how to run one alone, where the full output is."""
    if not failed:
        return
    tests = [test for result in failed for test in result.failures()]
    alone = next((f"{BIN.relative_to(ROOT)}/pytest '{test}'" for test in tests if test.startswith("tests/")), "")
    print(f"failed: {'  '.join(tests)}")
    print(f"run one alone: {alone or f'{BIN.relative_to(ROOT)}/python scripts/test_parts.py {failed[0].name}'}")
    print(f"full output: {'  '.join(str((LOGS / f'{result.name}.log').relative_to(ROOT)) for result in failed)}")


if __name__ == "__main__":
    sys.exit(main())
