"""What the agent's thread and the threads of connections share: the last document, and when each client was last heard.

The agent publishes every document that it gets and asks which clients to wait for. A connection reads the document, waits for
the next one, and reports that its client was heard. One lock guards everything; nothing waits while it holds the lock.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set

from forewarn.guest.clock import Time
from forewarn.guest.document import Document
from forewarn.guest.names import Me
from forewarn.guest.serving.published import Published
from forewarn.guest.serving.settings import ServedClient

# A document that the endpoint has not confirmed for longer than this is not shown.
MAX_AGE_S = 60.0
MAX_WAITING = 4
# How many ids of events that were shown are remembered: approving one that is over by now is no error.
MAX_SHOWN_IDS = 10_000


@dataclass
class _Contact:
    """When a client was last heard, by the monotonic clock; it counts as heard while one of its long polls is open."""

    heard_s: float
    heard: bool = False
    waiting: int = 0


class Clients:
    """The clients of one agent. Every method may be called by any thread."""

    def __init__(self, served: Sequence[ServedClient] = (), time: Optional[Time] = None) -> None:
        self.served = tuple(served)
        self.time = time or Time()
        self._lock = threading.Lock()
        now_s = self.time.monotonic()
        self._contacts: Dict[str, _Contact] = {client.name: _Contact(now_s) for client in served}
        self._published: Optional[Published] = None
        self._confirmed_s = now_s
        self._shown_ids: OrderedDict[str, None] = OrderedDict()
        self._waiters: Set[socket.socket] = set()

    # -- the agent's side

    def publish(self, document: Document, me: Me) -> None:
        """Show this document to the clients, and wake those that wait for a change. The endpoint has just confirmed it."""
        if not self.served:
            return
        before = self._published
        published = Published(document, me) if before is None else before.updated(document, me)
        with self._lock:
            self._published, self._confirmed_s = published, self.time.monotonic()
            self._remember(event.key for event in document.events)
            if before is None or published.etag != before.etag:
                for waker in self._waiters:
                    with contextlib.suppress(OSError):  # it is awake already
                        waker.send(b"!")

    def remember(self, event_keys: Iterable[str]) -> None:
        """Remember events that an earlier agent has shown: approving one is no error, even if it ended meanwhile."""
        with self._lock:
            self._remember(event_keys)

    def _remember(self, event_keys: Iterable[str]) -> None:
        for key in event_keys:
            self._shown_ids[key] = None
            self._shown_ids.move_to_end(key)
        while len(self._shown_ids) > MAX_SHOWN_IDS:
            self._shown_ids.popitem(last=False)

    def awaited(self) -> Mapping[str, float]:
        """Return the clients whose approval counts now, and for how long each still does if it stays silent."""
        now_s = self.time.monotonic()
        with self._lock:
            left_s = {each.name: self._left_s(each, now_s) for each in self.served if each.approves}
        return {name: seconds for name, seconds in left_s.items() if seconds > 0}

    def _left_s(self, client: ServedClient, now_s: float) -> float:
        contact = self._contacts[client.name]
        return client.timeout_s if contact.waiting else contact.heard_s + client.timeout_s - now_s

    def contacts(self) -> List[str]:
        """Return for each client whether it was heard, is silent, or was never heard; in the order of the configuration."""
        now_s = self.time.monotonic()
        with self._lock:
            return [self._contact_text(each, now_s) for each in self.served]

    def _contact_text(self, client: ServedClient, now_s: float) -> str:
        if not self._contacts[client.name].heard:
            return "not heard yet"
        return "heard" if self._left_s(client, now_s) > 0 else "silent"

    # -- the side of connections

    def hear(self, client: ServedClient) -> None:
        """Note that the client sent a request, or was there until its long poll ended."""
        with self._lock:
            contact = self._contacts[client.name]
            contact.heard, contact.heard_s = True, self.time.monotonic()

    def published(self) -> Optional[Published]:
        """Return the document, or None while there is no fresh one."""
        with self._lock:
            fresh = self.time.monotonic() - self._confirmed_s <= MAX_AGE_S
            return self._published if fresh else None

    def was_shown(self, event_id: str) -> bool:
        with self._lock:
            return event_id.upper() in self._shown_ids

    @contextlib.contextmanager
    def waiting(self, client: ServedClient, etag: str) -> Iterator[Optional[socket.socket]]:
        """Yield a socket that becomes readable when the document no longer has this tag; None if it must not wait."""
        contact = self._contacts[client.name]
        readable, waker = socket.socketpair()
        waker.setblocking(False)
        try:
            with self._lock:
                unchanged = self._published is not None and self._published.etag == etag
                waits = unchanged and contact.waiting < MAX_WAITING
                if waits:
                    contact.waiting += 1
                    self._waiters.add(waker)
            try:
                yield readable if waits else None
            finally:
                with self._lock:
                    if waits:
                        contact.waiting -= 1
                        self._waiters.discard(waker)
        finally:
            readable.close()
            waker.close()
