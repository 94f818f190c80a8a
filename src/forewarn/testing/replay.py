"""Serves a recording again: the same bytes to whoever asks, from the same moments on, by any clock.

A replay is a chore of the ticker that puts the recorded document in the place of the scope's own; the listener, with its checks,
tags and long polls, is the service's. It begins when a machine first asks. After the last line all stays as it is.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import parse_qsl

from forewarn.core.document import rfc1123
from forewarn.core.durations import duration_text
from forewarn.core.model import Scope
from forewarn.endpoint import protocol
from forewarn.endpoint.document_state import DocumentState
from forewarn.endpoint.endpoint import Endpoint
from forewarn.endpoint.protocol import Approve, Instance, Poll, Request, Response
from forewarn.service.clock import Clock
from forewarn.testing.faults import Fault
from forewarn.testing.recorded_connection import END_OF_HEAD, Choose, RecordedConnection
from forewarn.testing.recording_file import Line, Recording
from forewarn.testing.request_log import RequestLog

SHOWN_WITHIN_S = 10.0
# Newer than whatever an operator does: the recorded document is never replaced by the scope's own.
LAST_VERSION = 2**62
FAULTS = {"cut": Fault(kind="cut"), "no-answer": Fault(kind="stall"), "unreachable": Fault(kind="reset")}
NOBODY = Instance("", "", False, 0, 0)


class RecordedState(DocumentState):
    """A document as it was recorded, whatever the version asked for: the connection has compared that."""

    __slots__ = ("line",)

    def __init__(self, scope: Scope, line: Line) -> None:
        super().__init__(replace(scope, version=LAST_VERSION), ())
        self.line = line
        self.enabled = True  # there is nothing to be enabled for
        self.etag = protocol.plain_tag(line.etag) or ""  # which no request can match

    def body(self, version: int) -> bytes:
        del version
        return self.line.raw


class Replay:
    """Where a recording has got to. `nudge` wakes the ticker, `say`, once it is set, is told of each line that was shown.

    What is shown is changed by the listener's thread alone: an answer is of one line, never a mixture.
    """

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self.recording = recording
        self.event_ids = recording.event_ids
        self.nudge: Callable[[], None] = lambda: None
        self.say: Callable[[str], None] | None = None
        self._clock = clock
        self._endpoint: Endpoint | None = None
        self._began = clock.now()
        self._next = self._told = 0
        self._dated: tuple[datetime, datetime] | None = None  # a recorded Date, and the clock when it was shown
        self.line = recording.lines[0]
        self.shown_tag = ""  # of the document that is shown
        self.seen_ids: frozenset[str] = frozenset()

    # -- the ticker's side

    def next_due(self) -> datetime | None:
        if self._endpoint is None or self._next >= len(self.recording.lines):
            return None
        return self._began + timedelta(seconds=self.recording.lines[self._next].at_s)

    def do(self, now: datetime) -> int:
        due, endpoint = self.next_due(), self._endpoint
        is_due = endpoint is not None and due is not None and due <= now
        if endpoint is not None and is_due:
            shown = threading.Event()
            endpoint.loop.call_from_thread(lambda: self._show(endpoint, shown))
            shown.wait(SHOWN_WITHIN_S)
        self._tell()
        return int(is_due)

    def _tell(self) -> None:
        lines = self.recording.lines
        while self.say is not None and self._told < self._next:
            line = lines[self._told]
            self._told += 1
            self.say(f"+{duration_text(int(line.at_s)):<7} {line}")
            if self._told == len(lines):
                self.say("the recording ends here; what it said last stays")

    # -- the listener's side

    def asked(self, endpoint: Endpoint) -> None:
        """The first who asks begins it."""
        if self._endpoint is None:
            self._began = self._clock.now() - timedelta(seconds=self.recording.lines[0].at_s)
            self._show(endpoint, threading.Event())
            self._endpoint = endpoint
            self.nudge()

    @property
    def fault(self) -> Fault | None:
        return FAULTS.get(self.line.failure or "")

    @property
    def refusal(self) -> Response | None:
        """A recorded answer that is no 200."""
        line = self.line
        if line.status is None or line.status == 200:
            return None
        again = line.headers.get("Retry-After")
        return Response(line.status, line.raw, (f"Retry-After: {again}".encode(),) if again else ())

    def date(self) -> datetime:
        """The recorded Date, and as much later as the clock has gone on since."""
        now = self._clock.now()
        return now if self._dated is None else self._dated[0] + (now - self._dated[1])

    def _show(self, endpoint: Endpoint, shown: threading.Event) -> None:
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
                    connection.strike()
        shown.set()


class ReplayedConnection(RecordedConnection):
    """Answers from the recording; what is asked of anything but the document is the service's to answer."""

    _instead: Response | None = None

    def __init__(
        self, replay: Replay, log: RequestLog, choose: Choose, endpoint: Endpoint, interface: str = ""
    ) -> None:
        super().__init__(log, choose, endpoint, interface)
        self._replay = replay

    def start_exchange(self, request: Request, raw: bytes | None) -> None:
        if _is_for_document(request):
            self._replay.asked(self.endpoint)
        super().start_exchange(request, raw)

    def pass_on(self, request: Request) -> None:
        """Approvals are taken for events that were shown, and change nothing; all checks are the service's."""
        replay = self._replay
        decision = protocol.decide(request, lambda: NOBODY, self.endpoint.trust.allowed_hosts)
        if not isinstance(decision, Poll | Approve):
            super().pass_on(request)
        elif (asked := _version(request)) != (recorded := replay.recording.head.api_version):
            message = f"Bad request. The recording is of api-version {recorded}, not {asked}"
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

    def strike(self) -> None:
        """A failure was recorded at this moment: whoever waits for news meets it."""
        if self._exchange is not None and self._exchange.waiting:
            self._fault, self._instead = self._replay.fault, self._replay.refusal
            self._end_wait()

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        instead, self._instead = self._instead, None
        if instead is not None:
            self.respond(instead, Request("GET", "", [], keep_alive=keep))
        else:
            super().write(status, self._as_recorded(data), keep=keep)

    def _as_recorded(self, data: bytes) -> bytes:
        """With the recorded Date and tag; without a tag where there was none."""
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


def _is_for_document(request: Request) -> bool:
    return request.target.partition("?")[0].lower() == protocol.SCHEDULED_EVENTS


def _version(request: Request) -> str:
    """Of a request that was checked: it has exactly one."""
    query = request.target.partition("?")[2]
    return next(value for name, value in parse_qsl(query) if name.lower() == "api-version")
