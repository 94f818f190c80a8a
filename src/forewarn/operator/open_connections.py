"""The open connections of the operator listener: how many an address may have, and which one makes room for the next.

A connection is *busy* from the end of a request's head to the end of its response. Otherwise it *waits*: for a TLS handshake, for
a head, or for the next request. Where a limit is reached, a new connection takes the place of the one that has waited longest, so
that connections without a request block nobody. Some connections beyond the limits are kept for health checks.

The listener's event loop makes all calls; the counters are read by other threads.
"""

import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

# Connections beyond the limits that are for health checks only: of all callers together, and of one address.
RESERVED = 20
RESERVED_PER_ADDRESS = 4
# Operators' connections use at most this part of the process's descriptors, so that guests always find free ones.
DESCRIPTOR_SHARE = 8
BACKLOG = 2_048

Peer = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on busy connections, on the time for a head, and the addresses (of proxies) without a limit of their own."""

    connections: int = 500
    connections_per_address: int = 100
    head_within_s: float = 10.0
    exempt: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class OpenConnection:
    accepted: socket.socket
    peer: Peer
    waits_since_s: float
    busy: bool = False


@dataclass(slots=True)
class _Caller:
    """The connections of one address."""

    open: int = 0
    busy: int = 0
    waiting: dict[OpenConnection, None] = field(default_factory=dict)  # the longest wait first


class OpenConnections:
    def __init__(
        self, limits: ConnectionLimits | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._monotonic = monotonic
        self._by_peer: dict[Peer, OpenConnection] = {}
        self._callers: dict[str, _Caller] = {}
        self._waiting: dict[OpenConnection, None] = {}  # the longest wait first
        self._busy = 0
        self.refused = Counter(address=0, all=0)  # connections, by the limit
        self.dropped = Counter(displaced=0, late=0)
        self.overloaded = 0  # requests

    @property
    def count(self) -> int:
        return len(self._by_peer)

    # -- connections

    def admit(self, accepted: socket.socket, peer: Peer) -> bool:
        """Count a new connection and return True; return False if it is over a limit and no other connection waits."""
        limits, caller = self.limits, self._callers.get(peer[0])
        share = limits.connections_per_address + RESERVED_PER_ADDRESS
        limited = caller is not None and peer[0] not in limits.exempt
        if caller is not None and limited and caller.open >= share and not self._displace(caller.waiting):
            self.refused["address"] += 1
            return False
        if len(self._by_peer) >= self._most() and not self._displace(self._waiting):
            self.refused["all"] += 1
            return False
        connection = self._by_peer[peer] = OpenConnection(accepted, peer, self._monotonic())
        caller = self._callers.setdefault(peer[0], _Caller())
        caller.open += 1
        self._waiting[connection] = caller.waiting[connection] = None
        return True

    def remove(self, accepted: socket.socket, peer: Peer) -> None:
        """Stop counting a connection that is closed. It may have been dropped before."""
        connection = self._by_peer.get(peer)
        if connection is not None and connection.accepted is accepted:
            self._forget(connection)

    def drop_late(self) -> None:
        """Close the connections that have waited too long for the head of a request."""
        late_s = self._monotonic() - self.limits.head_within_s
        while self._waiting and (first := next(iter(self._waiting))).waits_since_s < late_s:
            self._drop(first, "late")

    # -- requests

    def begin_request(self, peer: Peer, *, health: bool) -> bool:
        """Count a request whose head has arrived; return whether it may be answered now."""
        connection, limits = self._by_peer.get(peer), self.limits
        if connection is None:
            return True  # just dropped: its response goes nowhere
        caller = self._callers[peer[0]]
        if not connection.busy:
            connection.busy = True
            del self._waiting[connection], caller.waiting[connection]
            self._busy += 1
            caller.busy += 1
        over_share = caller.busy > limits.connections_per_address and peer[0] not in limits.exempt
        if health or not (over_share or self._busy > max(1, self._most() - RESERVED)):
            return True
        self.overloaded += 1
        return False

    def end_request(self, peer: Peer) -> None:
        """Note that a connection has sent its response and waits for the next request."""
        connection = self._by_peer.get(peer)
        if connection is not None and connection.busy:
            caller = self._callers[peer[0]]
            connection.busy, connection.waits_since_s = False, self._monotonic()
            self._busy -= 1
            caller.busy -= 1
            self._waiting[connection] = caller.waiting[connection] = None

    # -- helpers

    def _most(self) -> int:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return min(self.limits.connections + RESERVED, descriptors // DESCRIPTOR_SHARE)

    def _displace(self, waiting: dict[OpenConnection, None]) -> bool:
        """Close the connection that has waited longest; return whether there was one."""
        connection = next(iter(waiting), None)
        if connection is not None:
            self._drop(connection, "displaced")
        return connection is not None

    def _drop(self, connection: OpenConnection, reason: str) -> None:
        self._forget(connection)
        self.dropped[reason] += 1
        # The event loop then reads the end and closes the connection, also in the middle of a TLS handshake.
        with suppress(OSError):
            connection.accepted.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: OpenConnection) -> None:
        caller = self._callers[connection.peer[0]]
        del self._by_peer[connection.peer]
        self._waiting.pop(connection, None)
        caller.waiting.pop(connection, None)
        caller.open -= 1
        caller.busy -= connection.busy
        self._busy -= connection.busy
        if not caller.open:
            del self._callers[connection.peer[0]]


class LimitedSocket(socket.socket):
    """A listening socket that closes a new connection over a limit, before TLS."""

    open_connections: OpenConnections

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Listen with a queue of our own length: the event loop's `backlog` is how many it accepts at once."""
        del backlog
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        plain, peer = super().accept()
        accepted = AcceptedSocket(self.family, self.type, self.proto, fileno=plain.detach())
        if not self.open_connections.admit(accepted, peer[:2]):
            accepted.close()
            raise ConnectionAbortedError  # the event loop takes this for a peer that went away
        accepted.on_close = lambda: self.open_connections.remove(accepted, peer[:2])
        return accepted, peer


class AcceptedSocket(socket.socket):
    """A connection that reports when it is closed."""

    on_close: Callable[[], None] = staticmethod(lambda: None)

    def close(self) -> None:
        super().close()
        on_close, self.on_close = self.on_close, lambda: None
        on_close()
