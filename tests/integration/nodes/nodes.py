"""Real nodes for the tests: `forewarn serve` processes on one database, guests on plain sockets, and a wire that can be cut.

A guest is known by its source address, so each request is sent from the address of a machine.
"""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE_S, first_accepted

TOKEN = "an-operator-of-these-tests"
URL = "/metadata/scheduledevents?api-version=2020-07-01"
WEB_0, WEB_1 = "127.0.0.10", "127.0.0.11"
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[scopes]]
name = "blog"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
host = "rack1-a"
addresses = ["127.0.0.10"]
[[machines]]
scope = "blog"
name = "web-1"
addresses = ["127.0.0.11"]
"""


@dataclass(frozen=True)
class Answer:
    status: int
    etag: str
    body: bytes

    @property
    def events(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self.body)["Events"]
        return found

    @property
    def statuses(self) -> list[object] | None:
        """The status of each event; None if the node did not answer with a document, as on 503."""
        return [event["EventStatus"] for event in self.events] if self.status == 200 else None


class Node:
    """One `forewarn serve` process."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self.log = process, log
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready "):
                break
        else:
            process.wait()
            raise AssertionError(f"it ended before it was ready: {log.read_text()}")
        addresses = dict(pair.split("=", 1) for pair in line.split()[1:])
        self.guest, self.operator = addresses["guest"], addresses["operator"]

    def poll(self, source: str = WEB_0, etag: str = "", wait_s: int = 0) -> Answer:
        headers = {"Metadata": "true"}
        if etag:
            headers["If-None-Match"] = etag
        if wait_s:
            headers["Prefer"] = f"wait={wait_s}"
        return self._ask("GET", source, headers, wait_s=wait_s)

    def document(self, source: str = WEB_0, etag: str = "", wait_s: int = 0) -> Answer:
        """Poll until the answer is not 503, which a node gives as long as its database is too slow for its time limits."""
        return first_accepted(lambda: self.poll(source, etag, wait_s), lambda answer: answer.status != 503)

    def approve(self, *event_ids: object, source: str = WEB_0) -> Answer:
        body = json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]})
        return self._ask("POST", source, {"Metadata": "true"}, body)

    def approved(self, *event_ids: object) -> Answer:
        """Approve until the answer is not 503, as `document` polls: to repeat an approval is safe."""
        return first_accepted(lambda: self.approve(*event_ids), lambda answer: answer.status != 503)

    def _ask(
        self, method: str, source: str, headers: dict[str, str], body: str | None = None, wait_s: int = 0
    ) -> Answer:
        host, _, port = self.guest.removeprefix("http://").rpartition(":")
        within_s = PATIENCE_S + wait_s
        connection = http.client.HTTPConnection(host, int(port), timeout=within_s, source_address=(source, 0))
        try:
            connection.request(method, URL, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers.get("ETag", ""), answer.read())
        finally:
            connection.close()

    def api(self, method: str, path: str, body: object = None, key: str = "") -> tuple[int, dict[str, object]]:
        host, _, port = self.operator.removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            sent = None if body is None else json.dumps(body)
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            if key:
                headers["Idempotency-Key"] = key
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else {}
        finally:
            connection.close()

    def answered(self, method: str, path: str, body: object = None, key: str = "") -> tuple[int, dict[str, object]]:
        """Repeat a request that reads or creates while the answer is 503, "try again", as clients do; return the answer.

        All requests have one key, so at most one of them creates something.
        """
        key = key or str(uuid.uuid4())
        return first_accepted(lambda: self.api(method, path, body, key), lambda answer: answer[0] != 503)

    def change(self, path: str, body: object = None) -> None:
        """Change an object, for which there are no keys: repeat the request while the answer is 503.

        A change may be saved although the answer is 503. Its repeat may then be refused, because it is done already.
        """
        first = self.api("POST", path, body)
        status, answer = self.answered("POST", path, body) if first[0] == 503 else first
        assert status == 200 or (first[0], status) == (503, 409), answer

    def ready(self) -> tuple[int, dict[str, object]]:
        return self.api("GET", "/readyz")

    def reboot(self, scope: str = "shop", machine: str = "web-0") -> str:
        """Schedule one; its maintenance's id."""
        request = {"type": "Reboot", "targets": {"machines": [f"{scope}/{machine}"]}}
        status, body = self.answered("POST", "/v1/maintenances", request)
        assert status == 201, body
        return str(body["id"])

    def event(self, event_id: object) -> dict[str, object]:
        return self.answered("GET", f"/v1/events/{event_id}")[1]

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM):
            self.process.wait(PATIENCE_S)


class Nodes:
    """As many as a test asks for; all gone at its end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._count = 0
        (folder / "fleet.toml").write_text(FLEET)

    def start(self, address: str, *arguments: str, **environment: str) -> Node:
        return self._told(self.begin(address, *arguments, **environment))

    def begin(self, address: str, *arguments: str, **environment: str) -> "tuple[subprocess.Popen[str], Path]":
        """A process that may not be ready yet."""
        self._count += 1
        own = ("--state-dir", str(self._folder / f"node-{self._count}"))
        state_dir = () if "--state-dir" in arguments else own
        log = self._folder / f"node-{self._count}.log"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")}
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "forewarn", "serve", "--store", address, *state_dir,
                    "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--fleet", str(self._folder / "fleet.toml"),
                    *arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**clean, "FOREWARN_TOKEN": TOKEN, "FOREWARN_RATE_LIMIT": "0", **environment},
            )  # fmt: skip
        self._stack.callback(_end, process)
        return process, log

    def _told(self, begun: "tuple[subprocess.Popen[str], Path]") -> Node:
        return Node(*begun)


def _end(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


@contextmanager
def some_nodes(folder: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(folder, stack)


class Wire:
    """A small TCP proxy in front of the database that can be cut, or fall silent with every connection still open."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open, self._open_lock = True, threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._stopping = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Every connection ends, and none comes about, until it is mended."""
        with self._open_lock:
            self._open = False
            for pair in self._pairs:
                _shut(*pair)
            self._pairs.clear()

    def stall(self) -> None:
        """Nothing moves, nothing ends."""
        self._flowing.clear()

    def mend(self) -> None:
        with self._open_lock:
            self._open = True
        self._flowing.set()

    def close(self) -> None:
        self._stopping = True
        self.mend()
        self.cut()
        _shut(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._open_lock:  # the wire may have been cut since
                if not self._open:
                    near.close()
                    far.close()
                    continue
                self._pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with suppress(OSError, ValueError):
            while True:
                for one in select.select([near, far], [], [])[0]:
                    data = one.recv(65_536)
                    self._flowing.wait()
                    if not data:
                        raise OSError
                    other[one].sendall(data)
        _shut(near, far)
        near.close()
        far.close()


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()
