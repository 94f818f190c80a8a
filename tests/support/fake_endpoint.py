"""Fakes for the guest side: manual clocks, a scripted transport, an endpoint in memory, and an HTTP server."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forewarn.guest.clock import Time
from forewarn.guest.errors import EndpointError
from forewarn.guest.transport import Response, Transport

START = datetime(2030, 1, 1, tzinfo=UTC)
E1, E2 = "00000001-0000-4000-8000-000000000000", "00000002-0000-4000-8000-000000000000"


class ManualTime(Time):
    """Time that moves only by sleeping and by setting `now_s`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return START.timestamp() + self.now_s

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.slept.append(seconds)
            self.now_s += seconds

    def service(self) -> datetime:
        """Return the time of the service's clock, which differs from ours."""
        return START + timedelta(days=400, seconds=self.now_s)


Reply = Response | EndpointError
SentRequest = tuple[str, str, Mapping[str, str], bytes, float]


class StepTime(Time):
    """Time that passes only while a step pauses, so that a busy machine takes none of it; `rate` speeds it up."""

    def __init__(self, rate: float = 1.0) -> None:
        self._rate, self._paused_s = rate, 0.0

    def monotonic(self) -> float:
        return self._paused_s

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / self._rate)
        self.move(seconds)

    def move(self, seconds: float) -> None:
        """Let so much time pass at once."""
        self._paused_s += seconds


class ScriptedTransport(Transport):
    """Returns what `reply` returns, and records the requests."""

    def __init__(self, reply: Callable[[str, str, Mapping[str, str], bytes], Reply]) -> None:
        super().__init__()
        self.reply = reply
        self.requests: list[SentRequest] = []

    def request(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
    ) -> Response:
        self.requests.append((method, path, headers, body, timeout_s))
        reply = self.reply(method, path, headers, body)
        if isinstance(reply, EndpointError):
            raise reply
        return reply

    @property
    def approvals(self) -> list[str]:
        bodies = [json.loads(body) for method, _, _, body, _ in self.requests if method == "POST"]
        return [each["EventId"] for body in bodies for each in body["StartRequests"]]


def event(event_id: str = E1, **fields: object) -> dict[str, object]:
    return {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["web-0"],
        "NotBefore": "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **fields,
    }


def document(*events: dict[str, object], incarnation: object = 1) -> bytes:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": list(events)}).encode()


def answer(body: bytes, status: int = 200, date: datetime | None = None, **headers: str) -> Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    if date is not None:
        named["date"] = format_datetime(date, usegmt=True)
    return Response(status, named, body)


class FakeEndpoint:
    """An endpoint with one machine on a manual clock; it serves what a test puts into `events`."""

    def __init__(self, time: ManualTime, *, long_poll: bool = True, name: str = "web-0") -> None:
        self.time, self.long_poll, self.name = time, long_poll, name
        self.events: list[dict[str, object]] = []
        self.incarnation, self.epoch = 1, 1
        self.fails: EndpointError | None = None
        # What happens on the service's side at a moment of our clock.
        self.plan: list[tuple[float, Callable[[], None]]] = []
        self.approved: list[str] = []
        self.on_approve: Callable[[str], None] = lambda _: None
        self.transport = ScriptedTransport(self._reply)

    def announce(self, event_id: str = E1, *, in_s: float = 900, **fields: object) -> None:
        moment = self.time.service() + timedelta(seconds=in_s)
        self.events.append(event(event_id, NotBefore=format_datetime(moment, usegmt=True), **fields))
        self.incarnation += 1

    def start(self, event_id: str = E1) -> None:
        for each in self.events:
            if each["EventId"] == event_id:
                each.update(EventStatus="Started", NotBefore="")
        self.incarnation += 1

    def end(self, event_id: str = E1) -> None:
        self.events = [each for each in self.events if each["EventId"] != event_id]
        self.incarnation += 1

    def at(self, in_s: float, act: Callable[[], None]) -> None:
        self.plan.append((self.time.now_s + in_s, act))
        self.plan.sort(key=lambda each: each[0])

    def _reply(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self._catch_up()
        if self.fails is not None:
            return self.fails
        if path.startswith("/metadata/instance"):
            return answer(json.dumps({"name": self.name, "vmScaleSetName": ""}).encode())
        if method == "POST":
            for each in json.loads(body)["StartRequests"]:
                self.approved.append(each["EventId"])
                self.on_approve(each["EventId"])
            return answer(b"")
        return self._document(headers)

    def _document(self, headers: Mapping[str, str]) -> Reply:
        applied: dict[str, str] = {}
        wait = headers.get("Prefer", "").removeprefix("wait=")
        if self.long_poll and wait and headers.get("If-None-Match") == self._etag():
            until_s, seen = self.time.now_s + int(wait), self._etag()
            while self._etag() == seen and self.time.now_s < until_s:
                self.time.now_s = min([until_s, *(at for at, _ in self.plan)])
                self._catch_up()
            applied = {"preference_applied": f"wait={wait}"}
        if self.long_poll and headers.get("If-None-Match") == self._etag():
            return answer(b"", 304, self.time.service(), etag=self._etag(), **applied)
        whole = document(*self.events, incarnation=self.incarnation)
        if self.long_poll:
            applied["etag"] = self._etag()
        return answer(whole, 200, self.time.service(), **applied)

    def _etag(self) -> str:
        return f'"{self.incarnation}-{self.epoch}"'

    def _catch_up(self) -> None:
        while self.plan and self.plan[0][0] <= self.time.now_s:
            self.plan.pop(0)[1]()


@contextmanager
def http_server(reply: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[str]:
    """Run a real HTTP server whose responses `reply` writes; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            reply(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
