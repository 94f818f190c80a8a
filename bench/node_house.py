"""What the benches of several nodes run on: a real PostgreSQL that waits for its disk, and real `forewarn serve` nodes.

Owns how they are started, and where guests and operators find them. Nothing is pinned to a core: a node, the database and
whoever asks share what there is.
"""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres_servers import Server
from tests.support.waiting import PATIENCE_S

from bench.measure import resident_bytes, spent_cpu_s
from bench.subjects import LIMITS

TOKEN = "an-operator-of-these-benches"
# As durable as it comes out of the box, and large enough for a million machines.
DURABLE = {
    "fsync": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
}


@contextmanager
def database_server(folder: Path, *, durable: bool) -> Iterator[Server]:
    """In the bench's own folder, which is on a disk. A busy disk may take longer for a commit than a node waits."""
    folder.chmod(0o755)  # the server is another user's where this one is root
    server = Server(folder / "postgres", **(DURABLE if durable else {})).make().start()
    try:
        yield server
    finally:
        server.close()


class Node:
    """One `forewarn serve` that is ready."""

    def __init__(self, process: "subprocess.Popen[str]", addresses: Mapping[str, str]) -> None:
        self.pid = process.pid
        self.operator_port = _port(addresses["operator"])
        self.guest_port = _port(addresses["guest"])

    def cpu_s(self) -> float:
        return spent_cpu_s(self.pid)

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def api(self, method: str, path: str, body: object = None) -> dict[str, object]:
        operator = Operator(self.operator_port)
        try:
            return operator.ask(method, path, body)
        finally:
            operator.close()


class Operator:
    """One who keeps a connection to a node's API."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {content.decode()}")
        found: dict[str, object] = json.loads(content) if content else {}
        return found

    def close(self) -> None:
        self._connection.close()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def serve_command(store: str, state: Path) -> list[str]:
    flags = ["--store", store, "--state-dir", str(state), "--operator", "127.0.0.1:0", "--log-level", "error"]
    return [sys.executable, "-m", "forewarn", "serve", *flags, "--guest", "127.0.0.1:0"]


@contextmanager
def node_on(store: str, state: Path, **settings: str) -> Iterator[Node]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    environment = clean | LIMITS | {"FOREWARN_TOKEN": TOKEN} | settings
    with subprocess.Popen(serve_command(store, state), stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith("ready "):
                raise RuntimeError(f"forewarn serve said {line!r} instead of ready")
            yield Node(process, dict(pair.split("=", 1) for pair in line.split()[1:]))
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
