"""How soon a test has an endpoint: the emulator beside a bare mock, as a process of its own and as a fixture in the test's.
Also how long the shortest command takes, beside a bare interpreter.

The mock is what people write instead: `http.server` and `json`, one document, none of the protocol's checks, no clock, no
log. Both are timed from the start to the first answer, in turns; a fixture also to its end. The emulator's first answer to an
operator is measured too, because the API is imported for it.

Ratios are of CPU time: on a shared machine a start may wait for a core longer than it computes.
"""

import http.client
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S

from bench.measure import exact_cpu_s, median_ratio
from bench.mock import Handler
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.size import Size
from forewarn.testing.emulator import Emulator

EMULATE = [sys.executable, "-m", "forewarn", "emulate", "--port", "0"]
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
MOCK_LIMIT, FIXTURE_LIMIT_S, VERSION_LIMIT = 4, 0.02, 2


def run(folder: Path, size: Size) -> list[Verdict]:
    # As installed: compiled once, before the first start that counts.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    emulators, operators, mocks, versions, interpreters = [], [], [], [], []
    for _ in range(1 + size.emulator_starts):
        versions.append(_to_its_end([sys.executable, "-m", "forewarn", "--version"], environment))
        interpreters.append(_to_its_end([sys.executable, "-c", "pass"], environment))
        emulators.append(_process(EMULATE, environment))
        operators.append(_process(EMULATE, environment, name="operator", path="/readyz"))
        mocks.append(_process([sys.executable, "-m", "bench.mock"], environment))
    del emulators[0], operators[0], mocks[0], versions[0], interpreters[0]
    fixtures, bare = [], []
    for _ in range(size.emulator_fixtures):
        fixtures.append(_fixture(_emulator))
        bare.append(_fixture(_mock))
    names = "forewarn emulate, to a guest", "forewarn emulate, to an operator", "bare mock"
    _report_processes("to its first answer", dict(zip(names, (emulators, operators, mocks), strict=True)))
    _report_processes("to its end", {"forewarn --version": versions, "bare interpreter": interpreters})
    _report_fixtures(fixtures, bare)
    return [
        at_most(
            "CPU from starting the emulator to its first answer over a bare mock's, medians",
            _cpu_ratio(emulators, mocks),
            MOCK_LIMIT,
        ),
        at_most(
            "seconds from asking for the fixture to its first answer, median",
            statistics.median(first_s for first_s, _ in fixtures),
            FIXTURE_LIMIT_S,
        ),
        at_most(
            "CPU of `forewarn --version` over that of a bare interpreter, medians",
            _cpu_ratio(versions, interpreters),
            VERSION_LIMIT,
        ),
    ]


def _cpu_ratio(over: list[tuple[float, float]], under: list[tuple[float, float]]) -> float:
    return median_ratio([cpu_s for _, cpu_s in over], [cpu_s for _, cpu_s in under])


def _process(
    command: list[str], environment: dict[str, str], *, name: str = "guest", path: str = PATH
) -> tuple[float, float]:
    """Wall and CPU seconds from the start of a process to its first answer; it prints where it is once it listens."""
    begun_s = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            _ask(process.stdout.readline().partition(f"{name}=")[2].split()[0], path)
            return time.perf_counter() - begun_s, exact_cpu_s(process.pid)
        finally:
            process.kill()


def _to_its_end(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process from its start to its end."""
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _fixture(start: Callable[[], AbstractContextManager[str]]) -> tuple[float, float]:
    """Seconds from the start to the first answer, and from the start to the end."""
    begun_s = time.perf_counter()
    with start() as url:
        _ask(url)
        first_s = time.perf_counter() - begun_s
    return first_s, time.perf_counter() - begun_s


@contextmanager
def _emulator() -> Iterator[str]:
    with Emulator() as emulator:
        yield emulator.endpoint


@contextmanager
def _mock() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(PATIENCE_S)


def _ask(url: str, path: str = PATH) -> None:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Metadata": "true"})
    answer = connection.getresponse()
    if answer.status != 200 or not answer.read().startswith((b'{"DocumentIncarnation":', b'{"ready":true')):
        raise RuntimeError(f"{url} gave no document")
    connection.close()


def _report_processes(until: str, starts: dict[str, list[tuple[float, float]]]) -> None:
    rows = []
    for name, runs in starts.items():
        walls, cpus = [wall_s for wall_s, _ in runs], [cpu_s for _, cpu_s in runs]
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        rows.append([name, milliseconds(wall), milliseconds(max(walls)), milliseconds(cpu)])
    title = f"A process, from its start {until}, {len(walls)} interleaved starts"
    print_table(title, ["what", "median", "most", "CPU, median"], rows)


def _report_fixtures(fixtures: list[tuple[float, float]], bare: list[tuple[float, float]]) -> None:
    rows = []
    for name, runs in (("emulator", fixtures), ("bare mock", bare)):
        firsts, wholes = [first_s for first_s, _ in runs], [whole_s for _, whole_s in runs]
        first, whole = statistics.median(firsts), statistics.median(wholes)
        rows.append([name, milliseconds(first), milliseconds(max(firsts)), milliseconds(whole)])
    title = f"A fixture in the test's own process, {len(fixtures)} in turns"
    print_table(title, ["what", "first answer, median", "most", "start to end, median"], rows)
