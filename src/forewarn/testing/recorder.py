"""Asks an endpoint as any machine does and writes down each change of its answer, failures too. Approves nothing.

The SDK's client does the asking: how often, how patiently and by long poll where that is offered. Its transport is tapped here,
so that a line has what came over the wire and not what was made of it. A line is handed to the system before the next request.
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
from forewarn.testing.recording_file import (
    FORMAT,
    HEADERS,
    MAX_FILE_BYTES,
    MAX_LINES,
    NO_BODY,
    Failure,
    Head,
    Line,
    body_fields,
    header_complaint,
    written,
)
from forewarn.testing.scrubber import Scrubber

Heard = Callable[[float, Response | EndpointError], None]


class TappedTransport(Transport):
    """`heard` is told of each request for the document when it was sent, and what came of it."""

    def __init__(self, heard: Heard, time: Time) -> None:
        super().__init__(time=time)
        self._heard = heard
        self._now_s = time.monotonic

    def request(
        self, method: str, endpoint: str, path: str, *, headers: Mapping[str, str], body: bytes = b"", timeout_s: float
    ) -> Response:
        if method != "GET":
            raise RuntimeError(f"a recorder only reads: {method} {path}")
        # A cut of a kept connection is quietly asked again: on a new one it is seen.
        self.close()
        sent_s = self._now_s()
        heard = self._heard if urlsplit(path).path == PATH else lambda *_: None
        try:
            answer = super().request(method, endpoint, path, headers=headers, body=body, timeout_s=timeout_s)
        except EndpointError as error:
            heard(sent_s, error)
            raise
        heard(sent_s, answer)
        return answer


class Recorder:
    """Writes to `file` from its own thread, from `start` until `stop`; `said` is told of each line.

    `over` is told when it cannot go on: why, or "" when the file has reached its limit.
    """

    def __init__(
        self,
        endpoint: str,
        file: BinaryIO,
        *,
        api_version: str = NEWEST_VERSION,
        scrub: bool = False,
        said: Callable[[Line], None] = lambda _: None,
        over: Callable[[str], None] = lambda _: None,
        time: Time | None = None,
    ) -> None:
        self._time = time or Time()
        self._file = file
        self._version = api_version
        self._scrubber = Scrubber() if scrub else None
        self._said, self._over = said, over
        self._client = Client(
            endpoint, api_version=api_version, transport=TappedTransport(self._heard, self._time), time=self._time
        )
        self._began_s = 0.0
        self._last: Line | None = None
        self._document: Line | None = None  # the last one: what a 304 confirms
        self._writing = threading.Lock()
        self._stopped = False
        self.lines = self._bytes = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="recorder", daemon=True).start()

    def stop(self) -> None:
        """No line is written after this, and none is half written."""
        with self._writing:
            self._stopped = True

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopped:
                self._client.next()
        except Exception as error:
            self._over(str(error) or type(error).__name__)
        finally:
            self._client.close()

    def _begin(self) -> None:
        me = self._client.me()
        machine = me.name if me.origin == "instance" and NAME.fullmatch(me.name) else ""
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

    # -- what came, as a line

    def _heard(self, sent_s: float, outcome: Response | EndpointError) -> None:
        """Only what changed is written, and after a failure what is there again."""
        # Silence began when it was asked.
        moment_s = sent_s if isinstance(outcome, NoAnswer) else self._time.monotonic()
        at_s = max(round(moment_s - self._began_s, 3), self._last.at_s if self._last else 0.0)
        if isinstance(outcome, EndpointError):
            line = Line(at_s=at_s, failure=_failure(outcome))
        elif outcome.status == 304 and self._document is not None:
            line = _line(at_s, 200, {**self._document.headers, **_kept(outcome.headers)}, self._document.raw)
        elif outcome.status in NO_BODY or not 200 <= outcome.status <= 599:
            line = Line(at_s=at_s, failure="cut")  # nothing that anybody could make sense of
        else:
            line = _line(at_s, outcome.status, _kept(outcome.headers), outcome.body)
        if line.says_the_same(self._last):
            return
        self._last = line
        self._document = line if line.status == 200 else self._document
        self._write(self._scrubber.line(line) if self._scrubber else line)

    def _write(self, line: Head | Line) -> None:
        data = written(line)
        with self._writing:
            if self._stopped:
                return
            if self.lines >= MAX_LINES or self._bytes + len(data) > MAX_FILE_BYTES:
                self._stopped = True
                self._over("")
                return
            self._file.write(data)
            self._file.flush()
            self._bytes += len(data)
            self.lines += isinstance(line, Line)
        if isinstance(line, Line):
            self._said(line)


def _failure(error: EndpointError) -> Failure:
    if isinstance(error, Unreachable):
        return "unreachable"
    return "no-answer" if isinstance(error, NoAnswer) else "cut"


def _line(at_s: float, status: int, headers: dict[str, str], body: bytes) -> Line:
    return Line(at_s=at_s, status=status, headers=headers, **body_fields(body))  # type: ignore[arg-type]


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that matter, as far as they can be written down."""
    found = {name: headers[name.lower()] for name in HEADERS if name.lower() in headers}
    return {name: value for name, value in found.items() if not header_complaint(name, value)}
