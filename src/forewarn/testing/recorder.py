"""Polls an endpoint as any guest does and records each change of its answer, also failures. It approves nothing.

The SDK's client decides how often to poll, how long to wait and when to use a long poll. Its transport is replaced by one that
sees the answers before they are parsed, so that a line has the bytes from the wire. Each line is flushed before the next request.
"""

import threading
from collections.abc import Callable, Mapping
from typing import BinaryIO
from urllib.parse import urlsplit

from forewarn.core.model import NAME
from forewarn.guest import Client
from forewarn.guest.client import NEWEST_VERSION, PATH
from forewarn.guest.clock import Time, format_time
from forewarn.guest.errors import EndpointError, NoAnswer, Unreachable
from forewarn.guest.transport import Response, Transport
from forewarn.testing.faults import NO_BODY
from forewarn.testing.recording_file import (
    FORMAT,
    HEADERS,
    MAX_FILE_BYTES,
    MAX_LINES,
    Failure,
    Head,
    Line,
    body_fields,
    encode,
    header_error,
)
from forewarn.testing.scrubber import Scrubber

OnOutcome = Callable[[float, Response | EndpointError], None]


class RecordingTransport(Transport):
    """Calls `on_outcome` for each request for the document, with the time it was sent and its outcome."""

    def __init__(self, on_outcome: OnOutcome, time: Time) -> None:
        super().__init__(time=time)
        self._on_outcome = on_outcome
        self._now_s = time.monotonic

    def request(
        self, method: str, endpoint: str, path: str, *, headers: Mapping[str, str], body: bytes = b"", timeout_s: float
    ) -> Response:
        if method != "GET":
            raise RuntimeError(f"a recorder must not change anything: {method} {path}")
        # On a kept connection the transport repeats a request whose answer was cut; on a new one it raises an error.
        self.close()
        sent_s = self._now_s()
        on_outcome = self._on_outcome if urlsplit(path).path == PATH else lambda *_: None
        try:
            answer = super().request(method, endpoint, path, headers=headers, body=body, timeout_s=timeout_s)
        except EndpointError as error:
            on_outcome(sent_s, error)
            raise
        on_outcome(sent_s, answer)
        return answer


class Recorder:
    """Writes to `file` in its own thread, from `start` until `stop`, and calls `on_line` after each line.

    `name` is the machine's name; without it, the name is the one that the endpoint gives, if it gives one.

    It calls `on_end` when it cannot continue, with the reason, or with "" when the file has reached its limit.
    """

    def __init__(
        self,
        endpoint: str,
        file: BinaryIO,
        *,
        api_version: str = NEWEST_VERSION,
        name: str = "",
        scrub: bool = False,
        on_line: Callable[[Line], None] = lambda _: None,
        on_end: Callable[[str], None] = lambda _: None,
        time: Time | None = None,
        max_lines: int = MAX_LINES,
    ) -> None:
        self._time = time or Time()
        self._file = file
        self._version = api_version
        self._scrubber = Scrubber() if scrub else None
        self._on_line, self._on_end = on_line, on_end
        self._max_lines = max_lines
        self._client = Client(
            endpoint,
            api_version=api_version,
            name=name,
            transport=RecordingTransport(self._record, self._time),
            time=self._time,
        )
        self._began_s = 0.0
        self._last: Line | None = None
        self._document: Line | None = None  # the latest 200, which a 304 repeats
        self._writing = threading.Lock()
        self._stopped = False
        self.lines = self._bytes = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="recorder", daemon=True).start()

    def stop(self) -> None:
        """End the recording. After this no line is written, and no line is incomplete."""
        with self._writing:
            self._stopped = True

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopped:
                self._client.next()
        except Exception as error:
            self._on_end(str(error) or type(error).__name__)
        finally:
            self._client.close()

    def _begin(self) -> None:
        me = self._client.me()
        machine = me.name if me.origin != "hostname" and NAME.fullmatch(me.name) else ""
        scrubber = self._scrubber
        self._began_s = self._time.monotonic()
        self._write(
            Head(
                forewarn_recording=FORMAT,
                api_version=self._version,
                began=format_time(self._time.wall()),
                endpoint="" if scrubber else self._client.endpoint,
                machine=scrubber.machine(machine) if scrubber and machine else machine,
                scrubbed=scrubber is not None,
            )
        )

    def _record(self, sent_s: float, outcome: Response | EndpointError) -> None:
        """Write a line if the outcome differs from the previous line."""
        # If no answer came, the failure began when the request was sent.
        moment_s = sent_s if isinstance(outcome, NoAnswer) else self._time.monotonic()
        at_s = max(round(moment_s - self._began_s, 3), self._last.at_s if self._last else 0.0)
        if isinstance(outcome, EndpointError):
            line = Line(at_s=at_s, failure=_failure(outcome))
        elif outcome.status == 304 and self._document is not None:
            line = _line(at_s, 200, {**self._document.headers, **_kept(outcome.headers)}, self._document.raw)
        elif outcome.status in NO_BODY or not 200 <= outcome.status <= 599:
            line = Line(at_s=at_s, failure="cut")  # not a valid answer to a GET
        else:
            line = _line(at_s, outcome.status, _kept(outcome.headers), outcome.body)
        if line.equals(self._last):
            return
        self._last = line
        self._document = line if line.status == 200 else self._document
        self._write(self._scrubber.line(line) if self._scrubber else line)

    def _write(self, line: Head | Line) -> None:
        data = encode(line)
        with self._writing:
            if self._stopped:
                return
            if self.lines >= self._max_lines or self._bytes + len(data) > MAX_FILE_BYTES:
                self._stopped = True
                self._on_end("")
                return
            self._file.write(data)
            self._file.flush()
            self._bytes += len(data)
            self.lines += isinstance(line, Line)
        if isinstance(line, Line):
            self._on_line(line)


def _failure(error: EndpointError) -> Failure:
    if isinstance(error, Unreachable):
        return "unreachable"
    return "no-answer" if isinstance(error, NoAnswer) else "cut"


def _line(at_s: float, status: int, headers: dict[str, str], body: bytes) -> Line:
    return Line(at_s=at_s, status=status, headers=headers, **body_fields(body))  # type: ignore[arg-type]


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a recording keeps, without those that a line cannot hold."""
    known = {name: headers[name.lower()] for name in HEADERS if name.lower() in headers}
    return {name: value for name, value in known.items() if not header_error(name, value)}
