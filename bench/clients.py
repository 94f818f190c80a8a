"""Starting the load from a bench: our own generator as a process, and wrk for one thing it does best."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.waiting import PATIENCE_S

from bench.guests import PATH
from bench.load import Task, arguments
from bench.subjects import LOAD_CORE

_WRK_REQUESTS = re.compile(r"(\d+) requests in")
_WRK_WRONG = re.compile(r"Non-2xx|Socket errors")


class Client:
    """A generator that is ready; `begin` lets it go, `result` waits for what it saw."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._expect("ready")

    def begin(self) -> None:
        self._say()

    def end(self) -> None:
        """For clients that run until they are stopped."""
        self._say()

    def result(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(self._expect("{"))
        return seen

    def run(self) -> dict[str, Any]:
        self.begin()
        return self.result()

    def _say(self) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the load has no input")
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def _expect(self, beginning: str) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.startswith(beginning):
            raise RuntimeError(f"the load said {line!r} where {beginning!r} was expected")
        return line


@contextmanager
def load(task: Task) -> Iterator[Client]:
    command = arguments(task)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Client(process)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def wrk(port: int, *, connections: int, seconds: float) -> int:
    """How many requests were answered, all with 200."""
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s"]
    command += ["-H", "Metadata: true", "-H", "Host: 169.254.169.254", f"http://127.0.0.1:{port}{PATH}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = _WRK_REQUESTS.search(output)
    if found is None or _WRK_WRONG.search(output):
        raise RuntimeError(f"wrk did not see answers only: {output}")
    return int(found[1])
