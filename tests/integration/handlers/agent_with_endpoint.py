"""An agent as a process, and an endpoint that announces one event to it."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.integration.handlers.agent_process import Agent
from tests.support.fake_endpoint import E1, document, event, http_server, respond

ROOT = Path(__file__).parents[3]
WITHIN_S = 60.0


class Platform:
    """Serves one document; a long poll waits for the next one. `ready` is called at each approval."""

    def __init__(self, ready: Callable[[], bool] = lambda: True) -> None:
        self._ready = ready
        self._events: list[dict[str, object]] = []
        self._incarnation = 1
        self._changed = threading.Condition()
        # Whether the machine was ready, by approval.
        self.approvals: list[bool] = []

    def announce(self, in_s: float = 900) -> None:
        self._become([event(NotBefore=formatdate(time.time() + in_s, usegmt=True))])

    def start(self) -> None:
        self._become([event(EventStatus="Started", NotBefore="")])

    def end(self) -> None:
        self._become([])

    def _become(self, events: list[dict[str, object]]) -> None:
        with self._changed:
            self._events = events
            self._incarnation += 1
            self._changed.notify_all()

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path.startswith("/metadata/instance"):
            respond(handler, 200, b'{"name":"web-0"}')
        elif handler.command == "POST":
            assert json.loads(body)["StartRequests"] == [{"EventId": E1}]
            self.approvals.append(self._ready())
            respond(handler, 200)
        else:
            with contextlib.suppress(OSError):  # whoever asked was killed meanwhile
                self._send_document(handler)

    def _send_document(self, handler: BaseHTTPRequestHandler) -> None:
        wait = handler.headers.get("Prefer", "").removeprefix("wait=")
        more: dict[str, str] = {}
        with self._changed:
            if wait and handler.headers.get("If-None-Match") == f'"{self._incarnation}"':
                seen = self._incarnation
                self._changed.wait_for(lambda: self._incarnation != seen, float(wait))
                more = {"Preference_Applied": f"wait={wait}"}
            tag = f'"{self._incarnation}"'
            body = document(*self._events, incarnation=self._incarnation)
        if handler.headers.get("If-None-Match") == tag:
            respond(handler, 304, b"", ETag=tag, **more)
        else:
            respond(handler, 200, body, ETag=tag, **more)


@contextmanager
def agent_with_endpoint(folder: Path, toml: str, ready: Callable[[], bool]) -> Iterator[tuple[Platform, Agent]]:
    """Run an agent, and yield it with the platform that announces an event to it."""
    platform = Platform(ready)
    with http_server(platform) as endpoint:
        agent = Agent(folder, endpoint, toml)
        agent.up()
        try:
            yield platform, agent
        finally:
            agent.kill()
            platform.end()  # lets a waiting answer go
