"""A whole service for tests of the operator side: store, manual clock, both listeners, and requests with tokens."""

import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from forewarn.app.guest_server import GuestServer
from forewarn.app.server import running
from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor
from forewarn.operator.api.access_recorder import AccessRecorder
from forewarn.operator.api.failed_attempts import FailedAttempts
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.store import Store
from tests.support.waiting import PATIENCE_S, until

START = datetime(2030, 1, 1, tzinfo=UTC)
OPERATOR = Actor("operator", "test")
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[scopes]]
name = "blog"
kind = "availability-set"
max_user_operations = 1
[[machines]]
scope = "shop"
name = "web-0"
host = "rack1-a"
addresses = ["127.0.0.10"]
[[machines]]
scope = "shop"
name = "web-1"
update_domain = 1
host = "rack1-b"
addresses = ["127.0.0.11"]
[[machines]]
scope = "blog"
name = "db"
host = "rack1-a"
addresses = ["127.0.0.20"]
"""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class RunningService:
    """A service that runs in this process. Requests carry the operator's token unless another is given."""

    def __init__(self, service: Service, guests: GuestServer, url: str, clock: ManualClock) -> None:
        self.service = service
        self.control = service.control
        self.guests = guests
        self.url = url
        self.clock = clock
        self.state_dir = service.settings.state_dir
        path = self.state_dir / "operator.token"
        self.token = path.read_text().strip() if path.exists() else ""

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Send one request; `token=""` sends no token."""
        sent = {"Authorization": f"Bearer {self.token if token is None else token}"}
        if token == "" or not self.token:
            sent = {}
        if isinstance(body, bytes | str):
            data: bytes | None = body.encode() if isinstance(body, str) else body
        else:
            data = json.dumps(body).encode() if body is not None else None
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Any:
        reply = self.request("GET", path, **more)
        assert reply.status == 200, reply.raw
        return reply.json

    def post(self, path: str, body: object = None, status: int = 200, **more: Any) -> Any:
        reply = self.request("POST", path, body, **more)
        assert reply.status == status, reply.raw
        return reply.json

    def token_of(self, role: str, *scopes: str, name: str = "tester") -> str:
        token = self.post("/v1/tokens", {"name": name, "role": role, "scopes": list(scopes)}, 201)
        return str(token["token"])

    @property
    def access_recorder(self) -> AccessRecorder:
        """What saves the last uses of tokens and the failed attempts."""
        (recorder,) = [each for each in self.service.ticker._periodic_calls if isinstance(each, AccessRecorder)]
        return recorder

    def allow_wrong_tokens(self) -> None:
        """Limit wrong tokens no more."""
        self.access_recorder._access.failures = FailedAttempts(time.monotonic, max_failures=sys.maxsize)

    def enable(self, *scopes: str) -> None:
        for scope in scopes:
            self.control.enable(scope, Actor("guest"))

    def schedule(self, *machines: str, type_: str = "Reboot", **more: object) -> Any:
        body = {"type": type_, "targets": {"machines": list(machines)}, **more}
        return self.post("/v1/maintenances", body, 201)


@contextmanager
def running_service(fleet: str = FLEET, in_store: Store | None = None, **settings: str) -> Iterator[RunningService]:
    """A ready service with this fleet, both listeners on free ports, and a clock that stands still until a test moves it."""
    with tempfile.TemporaryDirectory() as folder:
        flags: dict[str, object] = {
            "store": f"sqlite:{folder}/forewarn.db",
            "state_dir": folder,
            "guest": "127.0.0.1:0",
            "operator": "127.0.0.1:0",
            "rate_limit": "0",
            **settings,
        }
        clock = ManualClock(START)
        service = Service(load(flags, {}), clock=clock, store=in_store)
        try:
            service.control.apply_fleet(parse_fleet(fleet, "the test"), OPERATOR)
            # On a busy machine the ticker's thread may get no processor for so long that it looks dead to /readyz.
            with (
                patch("forewarn.operator.monitoring.TICKER_SILENT_S", PATIENCE_S),
                running(service, stop_within_s=PATIENCE_S) as (guests, url),
            ):
                until(lambda: service.ticker.cycled_at_s is not None)  # before that /readyz answers 503
                yield RunningService(service, guests, url, clock)
        finally:
            service.close()
