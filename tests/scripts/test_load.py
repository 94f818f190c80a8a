"""The load of the benches: it notices the line that ends it, however late it wakes up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.load import Task, arguments
from bench.subjects import LOAD_CORE

ROOT = Path(__file__).parents[2]
SERVER = """
import socket
from bench.bare_loop import serve
with socket.create_server(("127.0.0.1", 0)) as listening:
    listening.setblocking(False)
    print(listening.getsockname()[1], flush=True)
    serve(listening, b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
"""


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("mode", ["probe", "flood"])
def test_a_load_that_begins_late_ends_all_the_same(mode: str) -> None:
    """Both lines, the one that begins it and the one that ends it, are there when the load reads the first."""
    with start([sys.executable, "-c", SERVER]) as server:
        assert server.stdout is not None
        task = Task(mode=mode, port=int(server.stdout.readline()), core=LOAD_CORE, connections=1)
        with start(arguments(task)) as load:
            assert load.stdin is not None
            assert load.stdout is not None
            load.stdin.write("\n\n")
            load.stdin.flush()
            try:
                assert load.stdout.readline() == "ready\n"
                seen = json.loads(load.stdout.readline())
                assert mode == "flood" or seen["probes_s"], "a probe asks at least once"
            finally:
                load.kill()
                server.kill()
