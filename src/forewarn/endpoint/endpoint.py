"""What the connections of all guests share: limits, counters, remembered requests, and waking of long polls.

Only the listener's event loop uses it; of all it holds, other threads use `Documents` alone.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor as Writer
from typing import Protocol

from forewarn.endpoint import protocol
from forewarn.endpoint.approvals import ApprovalQueue
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.document_state import DocumentState, Moment, ScopeView, Waiter
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.limits import MAX_QUEUED_S, Limits, UnknownConnections
from forewarn.endpoint.loop import Loop
from forewarn.endpoint.parser import Parser
from forewarn.endpoint.protocol import Response
from forewarn.service.control import Control
from forewarn.store import EventFirstSeen

MAX_REMEMBERED = 16_384
MAX_REMEMBERED_PER_MACHINE = 8
MAX_REMEMBERED_BYTES = 1_024
WAKE_BATCH = 100
FIRST_SEEN_AT_ONCE = 500


class GuestConnection(Protocol):
    """A connection, as far as the endpoint and the listener use it."""

    parser: Parser | None
    answered_s: float

    def check_deadline(self, now_s: float) -> None: ...

    def stop(self) -> None: ...

    def drop(self) -> None: ...


class Counters:
    """Counts since the start; only the listener's thread writes them."""

    __slots__ = (
        "accepted", "blocked", "forged", "not_modified", "outcomes", "parsed", "paused", "refused", "remembered", "timed_out",
        "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.remembered = self.parsed = self.not_modified = 0
        self.accepted = self.blocked = self.paused = self.timed_out = 0
        self.unknown = self.forged = 0
        self.outcomes: Counter[int] = Counter()
        # Connections by the limit they were over; unknown addresses have one each and one together.
        self.refused: Counter[str] = Counter(machine=0, unknown=0, all=0, stopping=0)


class EndpointState:
    """The state that all connections of the guest listener share."""

    def __init__(
        self,
        documents: Documents,
        control: Control,
        writer: Writer,
        loop: Loop,
        *,
        limits: Limits,
        trust: Trust,
        first_call_delay_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.monotonic = monotonic
        self.documents = documents
        self.now = documents.now
        self.callers = documents.callers
        # Filled where the source address alone identifies a caller.
        by_address_alone = trust.every_caller is None and not trust.proxies
        self.callers_by_address = documents.callers.by_key if by_address_alone else {}
        self.control = control
        self.writer = writer
        self.approvals = ApprovalQueue(writer, control.approve_together)
        self.loop = loop
        self.limits = limits
        self.trust = trust
        self.first_call_delay_s = first_call_delay_s
        self.max_queued_s = MAX_QUEUED_S
        self.request_share_s = 1.0 / limits.requests_per_s if limits.requests_per_s else 0.0
        self.counters = Counters()
        self.connections: dict[GuestConnection, None] = {}
        self.unknown_connections = UnknownConnections(limits)
        # Bytes -> the index of the response they ask for, the tag they carry, whether the connection closes.
        self.remembered: dict[bytes, tuple[int, str | None, bool]] = {}
        self._seen_once: set[bytes] = set()
        self.seen_callers: list[Caller] = []
        self._first_seen: list[EventFirstSeen] = []
        # The monotonic clock at the last sweep: exact enough for idle times, and a poll need not read the clock for it.
        self.swept_s = self.monotonic()
        self.stopping = False

    def fresh_moment(self, now_s: float) -> Moment | None:
        """Return the present moment, or None if the store has been silent for too long."""
        return None if self.documents.stale(now_s) else self.now()

    def response_to_unknown(self) -> Response:
        """Return the response to a caller that is no known machine. Until all machines are loaded, it may be one."""
        if not self.callers.complete:
            return protocol.UNAVAILABLE
        self.counters.unknown += 1
        return protocol.NOT_FOUND

    def is_behind(self, state: DocumentState, etag: str) -> bool:
        """Whether a guest with this tag has seen a later state of the scope, on another node."""
        return self.documents.shared and state.older_than(etag)

    def wake(self, views: list[ScopeView]) -> None:
        """Answer the waiters of changed documents, in batches that let other requests in between."""
        self._wake_batch(deque(waiter for view in views for waiter in view.waiters))

    def _wake_batch(self, waiters: deque[Waiter]) -> None:
        for _ in range(min(WAKE_BATCH, len(waiters))):
            waiters.popleft().document_changed()
        if waiters:
            self.loop.call_soon(lambda: self._wake_batch(waiters))

    def record_seen(self, caller: Caller, view: ScopeView) -> None:
        """Note that a machine was seen now. The times are written in batches: never a write per poll."""
        caller.seen = view.seen = self.now()
        if not caller.seen_queued:
            caller.seen_queued = True
            self.seen_callers.append(caller)

    def record_shown(self, caller: Caller, state: DocumentState) -> None:
        """Note that a machine gets this document, and which of its own events it sees for the first time."""
        before = {event.id for event in caller.shown_state.events} if caller.shown_state is not None else frozenset()
        caller.shown_state = state
        at = self.now().at
        name = caller.name
        new = (event for event in state.events if event.id not in before and name in event.resources)
        self._first_seen += [EventFirstSeen(event.id, name, at) for event in new]

    def take_first_seen(self) -> list[EventFirstSeen]:
        """Take the oldest records of who first saw which event, as many as one write saves."""
        taken = self._first_seen[:FIRST_SEEN_AT_ONCE]
        del self._first_seen[:FIRST_SEEN_AT_ONCE]
        return taken

    def take_seen(self) -> list[Caller]:
        """Take the machines that were seen since the last call."""
        seen, self.seen_callers = self.seen_callers, []
        for caller in seen:
            caller.seen_queued = False
        return seen

    def requeue_seen(self, seen: Iterable[Caller]) -> None:
        """Put back machines whose last-seen times could not be saved."""
        for caller in seen:
            if not caller.seen_queued:
                caller.seen_queued = True
                self.seen_callers.append(caller)

    def sweep(self) -> None:
        """Close connections that took too long: one pass a second instead of a timer per request.

        Most connections got a response lately and have sent nothing since. None of their deadlines can be over, so these
        are not checked. Row of the bench: 10,000 polling once a second.
        """
        now_s = self.swept_s = self.monotonic()
        idle_since_s = now_s - self.limits.idle_s
        for connection in list(self.connections):
            answered_s = connection.answered_s
            if not answered_s or answered_s < idle_since_s or connection.parser is not None:
                connection.check_deadline(now_s)
        if self.documents.stale(now_s):
            self.end_waits()

    def end_waits(self) -> None:
        """End all long polls: no change can reach them."""
        for view in list(self.documents.views.values()):
            for waiter in list(view.waiters):
                waiter.end_wait()

    def remember(self, data: bytes, caller: Caller, poll: tuple[int, str | None, bool]) -> None:
        """Remember bytes that come for the second time, a few per machine.

        A machine's oldest make room: a tag is of no use once its document has changed.
        """
        if len(data) >= MAX_REMEMBERED_BYTES:
            return
        if data not in self._seen_once:
            if len(self._seen_once) >= MAX_REMEMBERED:
                self._seen_once.clear()
            self._seen_once.add(data)
            return
        if len(self.remembered) >= MAX_REMEMBERED:
            self.remembered.clear()
        self._seen_once.discard(data)
        self.remembered[data] = poll
        if len(caller.remembered) >= MAX_REMEMBERED_PER_MACHINE:
            self.remembered.pop(caller.remembered[0], None)
        caller.remembered = (*caller.remembered[1 - MAX_REMEMBERED_PER_MACHINE :], data)
