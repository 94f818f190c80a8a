"""The load of the benches: it notices the line that ends it, however late it wakes up."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.load import Task, arguments
from bench.subjects import LOAD_CORE

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SERVER = """
import socket
from bench.bare_loop import serve
with socket.create_server(("127.0.0.1", 0)) as listening:
    listening.setblocking(False)
    print(listening.getsockname()[1], flush=True)
    serve(listening, b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
"""


@contextmanager
def started(command: list[str], output: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a program with its output in a file, and kill it at the end of the block."""
    with (
        output.open("w") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, text=True, cwd=ROOT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def lines(output: Path, count: int) -> list[str]:
    until(lambda: output.read_text().count("\n") == count)
    return output.read_text().splitlines()


@pytest.mark.parametrize("mode", ["probe", "flood"])
def test_a_load_that_begins_late_ends_all_the_same(mode: str, tmp_path: Path) -> None:
    """Both lines, the one that begins it and the one that ends it, are there when the load reads the first."""
    port, output = tmp_path / "port", tmp_path / "output"
    with started([sys.executable, "-c", SERVER], port):
        task = Task(mode=mode, port=int(lines(port, 1)[0]), core=LOAD_CORE, connections=1)
        with started(arguments(task), output) as load:
            assert load.stdin is not None
            load.stdin.write("\n\n")
            load.stdin.flush()
            ready, seen = lines(output, 2)
    assert ready == "ready"
    assert mode == "flood" or json.loads(seen)["probes_s"], "a probe asks at least once"
