"""One scope's document in memory, ready to send: its state, its rendered responses, and the second they were sent in."""

import math
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from forewarn.core.document import VERSIONS, render, rfc1123
from forewarn.core.model import Event, Scope
from forewarn.service.clock import Clock

CLOSE = b"\r\nConnection: close"
ONE_SECOND = timedelta(seconds=1)
_ROWS = tuple(VERSIONS.values())
_ETAG = re.compile(r'"([1-9][0-9]{0,17})(?:-([1-9][0-9]{0,17}))?"')


class Moment:
    """A second of the service clock, and how it reads in a Date header, rendered when first needed."""

    __slots__ = ("_date", "at")

    def __init__(self, at: datetime) -> None:
        self.at = at
        self._date = b""

    @property
    def date(self) -> bytes:
        if not self._date:
            self._date = rfc1123(self.at).encode()
        return self._date


class Now:
    """The present Moment: the same object for a whole second, so that "still the same second" is one comparison.

    `moment` is valid until the monotonic clock reaches `until_s`: a poll, which reads that clock anyway, makes no call. A move
    of the service clock, in any thread, ends it. `until_s` never exceeds `fresh_until_s`, so that every poll after that time
    checks whether the documents in memory are still valid.
    """

    __slots__ = ("_clock", "_lock", "_monotonic", "fresh_until_s", "moment", "until_s")

    def __init__(self, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self.moment = Moment(clock.display_time())
        self.until_s = 0.0
        self.fresh_until_s = math.inf
        clock.listen(self._clock_moved)

    def __call__(self) -> Moment:
        read_s = self._monotonic()
        if read_s < self.until_s:
            return self.moment
        with self._lock:
            now, rate = self._clock.display_time(), self._clock.rate
            if now.second != self.moment.at.second or abs(now - self.moment.at) >= ONE_SECOND:
                self.moment = Moment(now)
            lasts_s = (1.0 - now.microsecond / 1e6) / rate if rate else math.inf
            self.until_s = min(read_s + lasts_s, self.fresh_until_s)
            return self.moment

    def _clock_moved(self) -> None:
        with self._lock:  # another thread may be reading the old time: its result must not replace this one
            self.until_s = 0.0


# The response indexes of a 304: for a connection that stays open, and for one that closes.
NOT_MODIFIED = (-1, -2)


def response_index(version: int, close: bool, wait_s: int = 0) -> int:
    """Return the number of this form of a response: the row of its version, whether it closes the connection, seconds waited."""
    return 2 * (len(_ROWS) * wait_s + version) + close


class DocumentState:
    """One state of one scope's document; never changed, only replaced. Responses are rendered when first needed.

    `sent` holds, by `response_index`, the response that was last sent and the second in which it was.
    """

    __slots__ = ("bodies", "enabled", "etag", "events", "position", "scope", "sent")

    def __init__(self, scope: Scope, events: tuple[Event, ...]) -> None:
        self.scope = scope
        self.enabled = scope.enabled
        self.events = events
        self.position = (max(scope.epoch, 1), scope.incarnation)
        # `"<incarnation>"` in a scope's first epoch, `"<incarnation>-<epoch>"` after.
        self.etag = f'"{scope.incarnation}"' if scope.epoch <= 1 else f'"{scope.incarnation}-{scope.epoch}"'
        self.bodies: dict[int, bytes] = {}
        self.sent: dict[int, tuple[Moment, bytes]] = {}

    def older_than(self, etag: str) -> bool:
        """Whether another node may have given this tag to a later state of the scope."""
        match = _ETAG.fullmatch(etag)
        return match is not None and (int(match[2] or 1), int(match[1])) > self.position

    def response(self, index: int, moment: Moment) -> bytes:
        """Return the whole response; within one second it is the same bytes."""
        sent = self.sent.get(index)
        if sent is not None and sent[0] is moment:
            return sent[1]
        whole = self._render(index, moment)
        self.sent[index] = (moment, whole)
        return whole

    def body(self, version: int) -> bytes:
        body = self.bodies.get(version)
        if body is None:
            body = self.bodies[version] = render(self.scope, self.events, _ROWS[version])
        return body

    def _render(self, index: int, moment: Moment) -> bytes:
        if index in NOT_MODIFIED:
            ending = CLOSE if index == NOT_MODIFIED[True] else b""
            return b"HTTP/1.1 304 Not Modified\r\nETag: %b\r\nDate: %b%b\r\n\r\n" % (
                self.etag.encode(),
                moment.date,
                ending,
            )
        wait_s, rest = divmod(index, 2 * len(_ROWS))
        version, close = divmod(rest, 2)
        body = self.body(version)
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\nETag: %b%b\r\nDate: "
            % (len(body), self.etag.encode(), b"\r\nPreference-Applied: wait=%d" % wait_s if wait_s else b"")
        )
        return b"".join((head, moment.date, CLOSE if close else b"", b"\r\n\r\n", body))


class Waiter(Protocol):
    """A long poll that waits for a document to change."""

    def document_changed(self) -> None: ...

    def end_wait(self) -> None: ...


class ScopeView:
    """One scope as its guests see it. Only the listener's thread uses `waiters`."""

    __slots__ = ("held_until_s", "name", "read_s", "seen", "since", "state", "waiters")

    def __init__(self, state: DocumentState, since: Moment) -> None:
        self.name = state.scope.name
        self.state = state
        self.waiters: dict[Waiter, None] = {}
        self.seen = since
        self.held_until_s = self.read_s = 0.0
        self.since = since
