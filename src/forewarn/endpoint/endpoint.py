"""What the connections of all guests share: limits, counters, remembered requests, and waking those who wait.

Belongs to the listener's event loop; only `Documents` is touched from other threads.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from forewarn.endpoint.documents import Caller, Documents, DocumentState, Moment, ScopeView, Waiter
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.loop import Loop
from forewarn.service.control import Control
from forewarn.store import EventFirstSeen

MAX_REMEMBERED = 16_384
MAX_REMEMBERED_PER_MACHINE = 8
MAX_REMEMBERED_BYTES = 1_024
WAKE_BATCH = 100
SIGHTINGS_AT_ONCE = 500
# A machine may use up its requests of a second at once; the rest is what floats lose.
BURST_S = 1.000_001


class GuestConnection(Protocol):
    """A connection, as far as the rest of the house deals with it."""

    def check_deadline(self, now_s: float) -> None: ...

    def stop(self) -> None: ...

    def drop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one guest may take of us."""

    requests_per_s: float = 5.0
    connections: int = 16
    waiting: int = 4
    all_connections: int = 50_000
    head_bytes: int = 8 * 1024
    headers: int = 64
    body_bytes: int = 64 * 1024
    request_s: float = 10.0
    idle_s: float = 75.0


class Counters:
    """What happened so far; written by the listener's thread alone."""

    __slots__ = (
        "accepted", "forged", "not_modified", "outcomes", "parsed", "refused", "remembered", "timed_out", "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.remembered = self.parsed = self.not_modified = 0
        self.accepted = self.refused = self.timed_out = 0
        self.unknown = self.forged = 0
        self.outcomes: Counter[int] = Counter()


class Endpoint:
    """What the connections share. Belongs to the listener's event loop."""

    def __init__(
        self,
        documents: Documents,
        control: Control,
        writer: Executor,
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
        # By source address, where nothing but the address says who is calling.
        by_address_alone = trust.every_caller is None and not trust.proxies
        self.usual_callers = documents.by_address if by_address_alone else {}
        self.control = control
        self.writer = writer
        self.loop = loop
        self.limits = limits
        self.trust = trust
        self.first_call_delay_s = first_call_delay_s
        self.request_share_s = 1.0 / limits.requests_per_s if limits.requests_per_s else 0.0
        self.counters = Counters()
        self.connections: dict[GuestConnection, None] = {}
        # Bytes -> which response they ask for, the tag they bring, whether the connection ends.
        self.remembered: dict[bytes, tuple[int, str | None, bool]] = {}
        self._seen_once: set[bytes] = set()
        self.to_write: list[Caller] = []
        self._sightings: list[EventFirstSeen] = []
        # The monotonic clock as of the last sweep: exact enough for "silent for a minute", and nothing to compute.
        self.about_s = self.monotonic()
        self.stopping = False

    def fresh_moment(self, now_s: float) -> Moment | None:
        """The present moment, or None when nothing was heard of the store for too long."""
        return None if self.documents.stale(now_s) else self.now()

    def behind(self, state: DocumentState, etag: str) -> bool:
        """Whether whoever has this tag has seen more of the scope, on another node."""
        return self.documents.shared and state.older_than(etag)

    def wake(self, views: list[ScopeView]) -> None:
        """A document changed: answer its waiters, in batches that let other requests in between."""
        self._wake_batch(deque(waiter for view in views for waiter in view.waiters))

    def _wake_batch(self, waiters: deque[Waiter]) -> None:
        for _ in range(min(WAKE_BATCH, len(waiters))):
            waiters.popleft().document_changed()
        if waiters:
            self.loop.call_soon(lambda: self._wake_batch(waiters))

    def seen(self, caller: Caller, view: ScopeView) -> None:
        """Noted here, written in batches: never a write per poll."""
        caller.seen = view.seen = self.now()
        if not caller.noted:
            caller.noted = True
            self.to_write.append(caller)

    def shown(self, caller: Caller, state: DocumentState) -> None:
        """It has this document in hands: which of the events it is in it sees for the first time is written down."""
        before = {event.id for event in caller.shown.events} if caller.shown is not None else frozenset()
        caller.shown = state
        at = self.now().at
        name = caller.name
        new = (event for event in state.events if event.id not in before and name in event.resources)
        self._sightings += [EventFirstSeen(event.id, name, at) for event in new]

    def take_sightings(self) -> list[EventFirstSeen]:
        """The oldest, as many as are written at once."""
        taken = self._sightings[:SIGHTINGS_AT_ONCE]
        del self._sightings[:SIGHTINGS_AT_ONCE]
        return taken

    def take_seen(self) -> list[Caller]:
        """Who was seen since this was last asked."""
        seen, self.to_write = self.to_write, []
        for caller in seen:
            caller.noted = False
        return seen

    def not_written(self, seen: Iterable[Caller]) -> None:
        """They could not be saved: with those of the next time."""
        for caller in seen:
            if not caller.noted:
                caller.noted = True
                self.to_write.append(caller)

    def sweep(self) -> None:
        """Close what took too long: one pass a second instead of a timer per request."""
        now_s = self.about_s = self.monotonic()
        for connection in list(self.connections):
            connection.check_deadline(now_s)
        if self.documents.stale(now_s):
            self.end_waits()

    def end_waits(self) -> None:
        """Nobody waits for news that cannot come."""
        for view in list(self.documents.views.values()):
            for waiter in list(view.waiters):
                waiter.end_wait()

    def remember(self, data: bytes, caller: Caller, what: tuple[int, str | None, bool]) -> None:
        """Admit bytes at second sight, a few per machine: its oldest make room, for a tag lives no longer than a document."""
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
        self.remembered[data] = what
        if len(caller.remembered) >= MAX_REMEMBERED_PER_MACHINE:
            self.remembered.pop(caller.remembered[0], None)
        caller.remembered = (*caller.remembered[1 - MAX_REMEMBERED_PER_MACHINE :], data)
