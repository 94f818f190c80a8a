"""A real agent, as a process of its own that can be killed, and the endpoint that tells it of one event."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from forewarn.guest.journal import read
from tests.guest.talking import E1, document, event, http_endpoint, say

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0


class Platform:
    """Holds one document; an answer waits for the next one, as a long poll does. `ready` is asked at each approval."""

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
            say(handler, 200, b'{"name":"web-0"}')
        elif handler.command == "POST":
            assert json.loads(body)["StartRequests"] == [{"EventId": E1}]
            self.approvals.append(self._ready())
            say(handler, 200)
        else:
            with contextlib.suppress(OSError):  # whoever asked was killed meanwhile
                self._tell(handler)

    def _tell(self, handler: BaseHTTPRequestHandler) -> None:
        wait = handler.headers.get("Prefer", "").removeprefix("wait=")
        more: dict[str, str] = {}
        with self._changed:
            if wait and handler.headers.get("If-None-Match") == f'"{self._incarnation}"':
                seen = self._incarnation
                self._changed.wait_for(lambda: self._incarnation != seen, float(wait))
                more = {"Preference_Applied": f"wait={wait}"}
            tag = f'"{self._incarnation}"'
            told = document(*self._events, incarnation=self._incarnation)
        if handler.headers.get("If-None-Match") == tag:
            say(handler, 304, b"", ETag=tag, **more)
        else:
            say(handler, 200, told, ETag=tag, **more)


class LiveAgent:
    """The agent of web-0 in a folder: its configuration, its journal, its log, and the process while it lives."""

    def __init__(self, folder: Path, endpoint: str, toml: str) -> None:
        self.folder = folder
        config = folder / "agent.toml"
        folder.joinpath("boot").write_text("boot-1")
        top = f'endpoint = "{endpoint}"\nstate_dir = "{folder}/state"\nboot_id_file = "{folder}/boot"\n'
        config.write_text(top + toml)
        config.chmod(0o600)
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        command = [sys.executable, "-m", "forewarn.guest", "run", "--config", f"{self.folder}/agent.toml"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stderr=log, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def records(self) -> list[dict[str, object]]:
        return read(self.folder / "state" / "journal.jsonl")[0]

    @property
    def kinds(self) -> list[object]:
        return [record["kind"] for record in self.records]

    def ended(self, phase: str) -> list[bool]:
        """How each preparing or undoing went."""
        return [bool(r["ok"]) for r in self.records if r["kind"] == "end" and r["phase"] == phase]

    def until(self, true: Callable[[], bool]) -> None:
        until(true, lambda: self.log)

    def until_back(self) -> None:
        self.until(lambda: self.kinds[-1:] == ["in-service"])


def until(true: Callable[[], bool], told: Callable[[], object] = lambda: "") -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline_s, f"it did not happen in time: {told()}"
        time.sleep(0.02)


@contextmanager
def living(folder: Path, toml: str, ready: Callable[[], bool]) -> Iterator[tuple[Platform, LiveAgent]]:
    """An agent that is up, and the platform that will tell it of something."""
    platform = Platform(ready)
    with http_endpoint(platform) as endpoint:
        agent = LiveAgent(folder, endpoint, toml)
        agent.up()
        try:
            yield platform, agent
        finally:
            agent.kill()
            platform.end()  # lets a waiting answer go
