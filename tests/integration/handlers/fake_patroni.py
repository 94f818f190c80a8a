"""A Patroni cluster over real HTTP that answers what a test says."""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support.fake_endpoint import http_server, respond

Reply = Callable[[BaseHTTPRequestHandler, bytes], None]
NAMES = ("pg0", "pg1", "pg2")
STEP = """
[[steps]]
name = "hand over"
required = true
timeout = "20s"
patroni = {{ url = "{url}", member = "pg0" }}
"""


class FakePatroni:
    """Three members, of which the first leads; each test has its way with them."""

    def __init__(self) -> None:
        self.leader = "pg0"
        self.urls: dict[str, str] = {}
        self.candidates: list[str] = []
        self.looks = 0
        # What each believes of who leads, where it is not the truth.
        self.believes: dict[str, str] = {}
        self.more: dict[str, dict[str, object]] = {}
        self.streams_to = ["pg0", "pg1", "pg2"]
        self.on_switch: Callable[[str], tuple[int, str]] = self.obey
        self.before_answer: Callable[[str, BaseHTTPRequestHandler], None] = lambda _name, _handler: None

    def obey(self, candidate: str) -> tuple[int, str]:
        self.leader = candidate
        return 200, f"Successfully switched over to {candidate!r}"

    def reply(self, name: str) -> Reply:
        def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
            with contextlib.suppress(OSError):  # who asked may be gone
                if handler.command == "POST":
                    self.candidates.append(json.loads(body)["candidate"])
                    status, text = self.on_switch(self.candidates[-1])
                    respond(handler, status, text.encode())
                    return
                self.looks += 1
                self.before_answer(name, handler)
                state = self._cluster(name) if handler.path == "/cluster" else self._itself(name)
                respond(handler, 200, json.dumps(state).encode())

        return answer

    def _cluster(self, name: str) -> object:
        leader = self.believes.get(name, self.leader)
        return {
            "members": [
                {
                    "name": each, "role": "replica", "state": "running", "api_url": self.urls[each] + "/patroni",
                    "lag": 0, **self.more.get(each, {}), **({"role": "leader"} if each == leader else {}),
                }
                for each in NAMES
            ]
        }  # fmt: skip

    def _itself(self, name: str) -> object:
        leads = name == self.leader
        senders = [{"application_name": each, "state": "streaming"} for each in self.streams_to if each != name]
        return {"state": "running", "role": "master" if leads else "replica", "replication": senders if leads else []}


@contextmanager
def fake_patroni() -> Iterator[FakePatroni]:
    cluster = FakePatroni()
    with ExitStack() as stack:
        for name in NAMES:
            cluster.urls[name] = stack.enter_context(http_server(cluster.reply(name)))
        yield cluster
