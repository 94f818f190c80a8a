"""The open connections of the operator listener: how many an address may have, and which one makes room for the next.

A connection is *busy* while the service works on a complete request. Otherwise it waits for its caller: for a head (the TLS
handshake included), for the rest of a body, or until the caller reads what it was sent. Where a limit is reached, a new
connection takes the place of one that waits, so that a caller who sends or reads nothing blocks nobody. Some connections beyond
the limits are kept for health checks.

The listener's event loop makes all calls; the counters are read by other threads.
"""

import asyncio
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

# Connections beyond the limits that are for health checks only: of all callers together, and of one address.
RESERVED = 20
RESERVED_PER_ADDRESS = 4
# Operators' connections use at most this part of the process's descriptors, so that guests always find free ones.
DESCRIPTOR_SHARE = 8
BACKLOG = 2_048
# A body, or what is left of a response, may take this long. The API answers 408 before this time is over.
SLOW_WITHIN_S = 90.0

# The key of a request's scope for `OpenConnections.delayed` of its connection.
IDLE_WHILE_WAITING = "forewarn.idle_while_waiting"

Peer = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on busy connections, on the time for a head, and the addresses (of proxies) without a limit of their own."""

    connections: int = 500
    connections_per_address: int = 100
    head_within_s: float = 10.0
    exempt: frozenset[str] = frozenset()


class State(Enum):
    """What a connection waits for; or the service works for it."""

    HEAD = 1
    CALLER = 2  # the rest of a body, or until the caller reads
    BUSY = 3


@dataclass(slots=True, eq=False)
class OpenConnection:
    accepted: socket.socket
    peer: Peer
    since_s: float
    state: State = State.HEAD
    unsent: Callable[[], int] | None = (
        None  # the bytes that the caller has still to read, if the connection waits for that
    )
    unsent_before: int = 0
    delayed: asyncio.Task[Any] | None = None  # the task whose request waits
    complete: bool = False  # whether that request has arrived completely


@dataclass(slots=True)
class _Group:
    """The connections of one address, or of all: by state, the longest in it first."""

    by_state: dict[State, dict[OpenConnection, None]] = field(default_factory=lambda: {each: {} for each in State})

    @property
    def count(self) -> int:
        return sum(map(len, self.by_state.values()))

    @property
    def busy(self) -> int:
        return len(self.by_state[State.BUSY])

    def longest_waiting(self) -> OpenConnection | None:
        return next(iter(self.by_state[State.HEAD] or self.by_state[State.CALLER]), None)


class OpenConnections:
    def __init__(
        self, limits: ConnectionLimits | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._monotonic = monotonic
        self._by_peer: dict[Peer, OpenConnection] = {}
        self._callers: dict[str, _Group] = {}
        self._all = _Group()
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
        if caller is not None and limited and caller.count >= share and not self._displace(caller):
            self.refused["address"] += 1
            return False
        if len(self._by_peer) >= self._most() and not self._displace(self._all):
            self.refused["all"] += 1
            return False
        connection = self._by_peer[peer] = OpenConnection(accepted, peer, self._monotonic())
        self._add(connection)
        return True

    def remove(self, accepted: socket.socket, peer: Peer) -> None:
        """Stop counting a connection that is closed. It may have been dropped before."""
        connection = self._by_peer.get(peer)
        if connection is not None and connection.accepted is accepted:
            self._forget(connection)

    def drop_late(self) -> None:
        """Close the connections that have waited too long for their caller."""
        now_s = self._monotonic()
        heads, callers = self._all.by_state[State.HEAD], self._all.by_state[State.CALLER]
        while heads and (first := next(iter(heads))).since_s < now_s - self.limits.head_within_s:
            self._drop(first, "late")
        while callers and (first := next(iter(callers))).since_s < now_s - SLOW_WITHIN_S:
            self._check_progress(first)

    def close_all(self) -> list[socket.socket]:
        """Close all connections; return their sockets, which the event loop closes once it has read the end."""
        connections = list(self._by_peer.values())
        for connection in connections:
            self._close(connection)
        return [connection.accepted for connection in connections]

    def _check_progress(self, connection: OpenConnection) -> None:
        """Close a connection whose caller has read nothing for too long; one that reads slowly may stay."""
        left = connection.unsent() if connection.unsent is not None else None
        if left is None or left >= connection.unsent_before:
            self._drop(connection, "late")
        elif left:
            connection.unsent_before = left
            self._move(connection, State.CALLER)
        else:
            self._move(connection, State.HEAD)

    # -- requests

    def begin_request(self, peer: Peer, *, health: bool) -> bool:
        """Note that the head of a request has arrived; return whether the request may be answered now."""
        connection, limits = self._by_peer.get(peer), self.limits
        if connection is None:
            return True  # just dropped: its response goes nowhere
        if connection.state is not State.BUSY:
            connection.unsent = None
            self._move(connection, State.CALLER)
        caller = self._callers[peer[0]]
        over_share = caller.busy >= limits.connections_per_address and peer[0] not in limits.exempt
        if health or not (over_share or self._all.busy >= max(1, self._most() - RESERVED)):
            return True
        self.overloaded += 1
        return False

    def wait_for_reader(self, peer: Peer, unsent: Callable[[], int]) -> None:
        """Note that the caller has still to read some of its response."""
        connection = self._by_peer.get(peer)
        if connection is not None:
            connection.unsent, connection.unsent_before = unsent, unsent()
            self._move(connection, State.CALLER)

    def work(self, peer: Peer) -> None:
        """Note that a request is complete, or that the caller reads again."""
        connection = self._by_peer.get(peer)
        if connection is not None and connection.delayed is not None:
            connection.complete = True
        else:
            self._change(peer, State.CALLER, State.BUSY)

    @contextmanager
    def delayed(self, peer: Peer) -> Iterator[Callable[[], bool]]:
        """Do not count a connection as busy while its request waits; yield what tells whether the connection is open."""
        connection = self._by_peer.get(peer)
        if connection is None:
            yield lambda: False
            return
        connection.delayed, connection.complete = asyncio.current_task(), connection.state is State.BUSY
        self._change(peer, State.BUSY, State.CALLER)
        try:
            yield lambda: self._by_peer.get(peer) is connection
        finally:
            connection.delayed = None
            if connection.complete and self._by_peer.get(peer) is connection:
                self.work(peer)

    def end_delays(self) -> None:
        """Cancel the waits of `delayed`: the listener ends."""
        for connection in self._by_peer.values():
            if connection.delayed is not None:
                connection.delayed.cancel()

    def end_request(self, peer: Peer) -> None:
        """Note that a response is sent and the connection waits for the next request."""
        self._change(peer, State.CALLER, State.HEAD)
        self._change(peer, State.BUSY, State.HEAD)

    # -- helpers

    def _most(self) -> int:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return min(self.limits.connections + RESERVED, descriptors // DESCRIPTOR_SHARE)

    def _change(self, peer: Peer, before: State, after: State) -> None:
        connection = self._by_peer.get(peer)
        if connection is not None and connection.state is before:
            self._move(connection, after)

    def _move(self, connection: OpenConnection, state: State) -> None:
        self._take_out(connection)
        connection.state, connection.since_s = state, self._monotonic()
        self._add(connection)

    def _add(self, connection: OpenConnection) -> None:
        for group in (self._all, self._callers.setdefault(connection.peer[0], _Group())):
            group.by_state[connection.state][connection] = None

    def _take_out(self, connection: OpenConnection) -> None:
        for group in (self._all, self._callers[connection.peer[0]]):
            del group.by_state[connection.state][connection]

    def _displace(self, group: _Group) -> bool:
        """Close the connection that has waited longest; return whether there was one."""
        connection = group.longest_waiting()
        if connection is not None:
            self._drop(connection, "displaced")
        return connection is not None

    def _drop(self, connection: OpenConnection, reason: str) -> None:
        self.dropped[reason] += 1
        self._close(connection)

    def _close(self, connection: OpenConnection) -> None:
        self._forget(connection)
        # The event loop then reads the end and closes the connection, also in the middle of a TLS handshake.
        with suppress(OSError):
            connection.accepted.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: OpenConnection) -> None:
        del self._by_peer[connection.peer]
        self._take_out(connection)
        if not self._callers[connection.peer[0]].count:
            del self._callers[connection.peer[0]]


class LimitedSocket(socket.socket):
    """A listening socket that closes a new connection over a limit, before TLS."""

    open_connections: OpenConnections

    def listen(self, _: int = BACKLOG, /) -> None:
        """Listen with a queue of our own length: the event loop's backlog is how many it accepts at once."""
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
