"""Replays a recording: every caller gets the recorded bytes at the recorded times, on any clock.

The ticker calls a replay when its next line is due, and the replay replaces the scope's document by the recorded one. Checks,
tags and long polls are those of the service's listener. A replay begins with the first request for the document. After the last
line the last answer stays.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import parse_qsl

from forewarn.core.document import rfc1123
from forewarn.core.durations import duration_text
from forewarn.core.model import Scope
from forewarn.endpoint import protocol
from forewarn.endpoint.connection import ConnectionFactory
from forewarn.endpoint.document_state import DocumentState
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.protocol import Approve, Poll, Request, Response
from forewarn.service.clock import Clock
from forewarn.testing.emulated_connection import END_OF_HEAD, NO_INSTANCE, EmulatedConnection, EmulatorParts
from forewarn.testing.faults import Fault
from forewarn.testing.recording_file import Line, Recording

SHOWN_WITHIN_S = 10.0
# Higher than every version of the scope, so that no change of the scope replaces the recorded document.
LAST_VERSION = 2**62
FAULTS = {"cut": Fault(kind="cut"), "no-answer": Fault(kind="stall"), "unreachable": Fault(kind="reset")}


class RecordedState(DocumentState):
    """A recorded document. The connection has checked that its api-version was requested."""

    __slots__ = ("line",)

    def __init__(self, scope: Scope, line: Line) -> None:
        super().__init__(replace(scope, version=LAST_VERSION), ())
        self.line = line
        self.enabled = True  # a poll need not enable the scope
        self.etag = protocol.plain_tag(line.etag) or ""  # "" matches no request

    def body(self, _: int) -> bytes:
        return self.line.raw


class Replay:
    """The position in a recording. `nudge` wakes the ticker. `say`, if set, is called with each line that becomes current.

    Only the listener's thread changes the current line, so that every answer comes from one line.
    """

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self.recording = recording
        self.event_ids = recording.event_ids
        self.nudge: Callable[[], None] = lambda: None
        self.say: Callable[[str], None] | None = None
        self._clock = clock
        self._endpoint: EndpointState | None = None
        self._began = clock.now()
        self._next = self._reported = 0
        self._dated: tuple[datetime, datetime] | None = (
            None  # the recorded Date, and the clock when its line became current
        )
        self.line = recording.lines[0]
        self.shown_tag = ""  # of the current document
        self.seen_ids: frozenset[str] = frozenset()

    def connections(self, parts: EmulatorParts) -> ConnectionFactory:
        """Return what makes the connections to guests that this replay answers."""
        return partial(ReplayedConnection, self, parts)

    # -- called by the ticker

    def next_due(self) -> datetime | None:
        if self._endpoint is None or self._next >= len(self.recording.lines):
            return None
        return self._began + timedelta(seconds=self.recording.lines[self._next].at_s)

    def do(self, now: datetime) -> int:
        due, endpoint = self.next_due(), self._endpoint
        is_due = endpoint is not None and due is not None and due <= now
        if endpoint is not None and is_due:
            shown = threading.Event()
            endpoint.loop.call_from_thread(lambda: self._show_next(endpoint, shown))
            shown.wait(SHOWN_WITHIN_S)
        self._report()
        return int(is_due)

    def _report(self) -> None:
        lines = self.recording.lines
        while self.say is not None and self._reported < self._next:
            line = lines[self._reported]
            self._reported += 1
            self.say(f"+{duration_text(int(line.at_s)):<7} {line}")
            if self._reported == len(lines):
                self.say("the recording ends here; its last answer stays")

    # -- called by the listener

    def begin(self, endpoint: EndpointState) -> None:
        """Begin with the first request; later calls change nothing."""
        if self._endpoint is None:
            self._began = self._clock.now() - timedelta(seconds=self.recording.lines[0].at_s)
            self._show_next(endpoint, threading.Event())
            self._endpoint = endpoint
            self.nudge()

    @property
    def fault(self) -> Fault | None:
        return FAULTS.get(self.line.failure or "")

    @property
    def refusal(self) -> Response | None:
        """The recorded answer, if its status is not 200."""
        line = self.line
        if line.status is None or line.status == 200:
            return None
        retry_after = line.headers.get("Retry-After")
        return Response(line.status, line.raw, (f"Retry-After: {retry_after}".encode(),) if retry_after else ())

    def date(self) -> datetime:
        """Return the recorded Date plus the time that the clock has moved since."""
        now = self._clock.now()
        return now if self._dated is None else self._dated[0] + (now - self._dated[1])

    def _show_next(self, endpoint: EndpointState, shown: threading.Event) -> None:
        line = self.line = self.recording.lines[self._next]
        self._next += 1
        now = self._clock.now()
        if line.date is not None:
            self._dated = (line.date, now)
        self.seen_ids |= line.event_ids
        views = list(endpoint.documents.views.values())
        if line.status == 200:
            self.shown_tag = line.etag
            for view in views:
                view.state = RecordedState(view.state.scope, line)
            endpoint.wake(views)
        else:
            for connection in list(endpoint.connections):
                if isinstance(connection, ReplayedConnection):
                    connection.fail_waiting()
        shown.set()


class ReplayedConnection(EmulatedConnection):
    """Answers requests for the document from the recording. The service answers all other requests."""

    _replacement: Response | None = None

    def __init__(self, replay: Replay, parts: EmulatorParts, endpoint: EndpointState, interface: str = "") -> None:
        super().__init__(parts, endpoint, interface)
        self._replay = replay

    def start_exchange(self, request: Request, raw: bytes | None) -> None:
        if _requests_document(request):
            self._replay.begin(self.endpoint)
        super().start_exchange(request, raw)

    def pass_on(self, request: Request) -> None:
        """Answer a checked request. An approval succeeds for events that have been in a document, and changes nothing."""
        replay = self._replay
        decision = protocol.decide(request, lambda: NO_INSTANCE, self.endpoint.trust.allowed_hosts)
        if not isinstance(decision, Poll | Approve):
            if _requests_instance(request) and decision.status == 200 and not replay.recording.head.machine:
                self.respond(protocol.error(404, "Not found"), request)
            else:
                super().pass_on(request)
        elif (requested := _version(request)) != (recorded := replay.recording.head.api_version):
            message = f"Bad request. The recording is of api-version {recorded}, not {requested}"
            self.respond(protocol.error(400, message, **{"newest-versions": [recorded]}), request)
        elif replay.refusal is not None:
            self.respond(replay.refusal, request)
        elif isinstance(decision, Poll):
            super().pass_on(request)
        elif unknown := [each for each in decision.event_ids if each not in replay.seen_ids]:
            message = f"Bad request. EventId {unknown[0]} is not an event of this machine's scope"
            self.respond(protocol.error(400, message), request)
        else:
            self.respond(Response(200), request)

    def keeps_open(self, request: Request) -> bool:
        return super().keeps_open(request) and not self._replay.line.closes

    def fail_waiting(self) -> None:
        """End a long poll with the recorded failure."""
        if self._exchange is not None and self._exchange.waiting:
            self._fault, self._replacement = self._replay.fault, self._replay.refusal
            self._end_wait()

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        replacement, self._replacement = self._replacement, None
        if replacement is not None:
            self.respond(replacement, Request("GET", "", [], keep_alive=keep))
        else:
            super().write(status, self._with_recorded_headers(data), keep=keep)

    def _with_recorded_headers(self, data: bytes) -> bytes:
        """Return the answer with the recorded Date and tag, or without a tag if none was recorded."""
        head, end, body = data.partition(END_OF_HEAD)
        tag = self._replay.shown_tag.encode()
        lines = []
        for line in head.split(b"\r\n"):
            if line.startswith(b"Date: "):
                lines.append(b"Date: " + rfc1123(self._replay.date()).encode())
            elif not line.startswith(b"ETag: "):
                lines.append(line)
            elif tag:
                lines.append(b"ETag: " + tag)
        return b"\r\n".join(lines) + end + body


def _requests_document(request: Request) -> bool:
    return request.target.partition("?")[0].lower() == protocol.SCHEDULED_EVENTS


def _requests_instance(request: Request) -> bool:
    return request.target.lower().startswith("/metadata/instance")


def _version(request: Request) -> str:
    """Return the api-version of a checked request, which has exactly one."""
    query = request.target.partition("?")[2]
    return next(value for name, value in parse_qsl(query) if name.lower() == "api-version")
