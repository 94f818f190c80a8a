"""A running guest server for tests: a service on a store in memory, clocks that tests move, and clients on plain sockets."""

import fcntl
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

from forewarn.app.guest_server import FIRST_SEEN_EVERY_S, SEEN_EVERY_S, GuestServer
from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import StoreUnavailable
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Scope, Targets
from forewarn.endpoint.connection import Connection, ConnectionFactory
from forewarn.endpoint.loop import Loop
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.store import EventFirstSeen, Focus, MachineIdentity, MachineLastSeen
from forewarn.store.memory import MemoryStore
from tests.support.waiting import PATIENCE_S, until

START = datetime(2030, 1, 1, tzinfo=UTC)
OPERATOR = Actor("operator", "test")
URL = "/metadata/scheduledevents?api-version=2020-07-01"

# Three machines of one scope and one alone, each with an address of its own.
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[scopes]]
name = "solo"
kind = "standalone"
[[machines]]
scope = "shop"
name = "web-0"
addresses = ["127.0.0.10"]
instance_id = "i-web-0"
[[machines]]
scope = "shop"
name = "web-1"
update_domain = 1
addresses = ["127.0.0.11"]
instance_id = "i-web-1"
[[machines]]
scope = "solo"
name = "vm"
addresses = ["127.0.0.20"]
"""
WEB_0, WEB_1, VM, STRANGER = "127.0.0.10", "127.0.0.11", "127.0.0.20", "127.0.0.99"


class SteeredClock:
    """The monotonic clock of a listener: real time until a test stops it, then moved by the test alone."""

    def __init__(self) -> None:
        self._stopped_at_s: float | None = None
        self._ahead_s = 0.0

    def __call__(self) -> float:
        stopped_at_s = self._stopped_at_s
        return time.monotonic() + self._ahead_s if stopped_at_s is None else stopped_at_s

    def stop(self) -> None:
        self._stopped_at_s = self()

    def move(self, seconds: float, loop: Loop) -> None:
        """Move the stopped clock; return when `loop` has made every call that is due by then."""
        assert self._stopped_at_s is not None
        self._stopped_at_s += seconds
        turn(loop)

    def run(self) -> None:
        """Continue in real time from here."""
        self._ahead_s = self() - time.monotonic()
        self._stopped_at_s = None


def turn(loop: Loop) -> None:
    """Wait until a loop in another thread has made a whole turn."""
    for _ in range(2):
        turned = threading.Event()
        loop.call_from_thread(turned.set)
        assert turned.wait(PATIENCE_S)


class WatchedStore(MemoryStore):
    """A store in memory that can be away, slow or broken, and counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.failure: Exception | None = None
        self.before_identity: Callable[[MachineIdentity], object] = lambda _: None
        self.go = threading.Event()
        self.go.set()
        self.applied: list[Change] = []
        self.seen_batches: list[list[MachineLastSeen]] = []
        self.sighting_batches: list[list[EventFirstSeen]] = []

    def snapshot(self, focus: Focus) -> Snapshot:
        self._reach()
        return super().snapshot(focus)

    def machine_identities(self) -> Iterator[MachineIdentity]:
        """Call `before_identity` with each identity first."""
        for identity in super().machine_identities():
            self.before_identity(identity)
            yield identity

    def apply(self, change: Change) -> None:
        self._reach()
        assert self.go.wait(PATIENCE_S)
        super().apply(change)
        self.applied.append(change)

    def record_last_seen(self, seen: object) -> None:
        self._reach()
        batch = list(seen)  # type: ignore[call-overload]
        super().record_last_seen(batch)
        self.seen_batches.append(batch)

    def record_first_seen(self, sightings: object) -> None:
        self._reach()
        batch = list(sightings)  # type: ignore[call-overload]
        super().record_first_seen(batch)
        self.sighting_batches.append(batch)

    def snapshot_of(self, scope: str) -> Scope:
        return super().snapshot(Focus(scopes=(scope,))).scopes[scope]

    def _reach(self) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")
        if self.failure is not None:
            raise self.failure


class Client:
    """A connection from an address of our choice: bytes out, bytes in."""

    def __init__(self, port: int, address: str = WEB_0, *, small: bool = False) -> None:
        self.socket = socket.socket()
        if small:  # the kernel buffers little of what this client does not read
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.bind((address, 0))
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", port))
        self.unread = b""

    def send(self, data: bytes) -> "Client":
        self.socket.sendall(data)
        return self

    def flood(self, data: bytes, times: int, stuck: Callable[[], bool]) -> int:
        """Send `data` many times, reading nothing, until the kernel takes no more and `stuck`; return how often it was sent."""
        self.socket.setblocking(False)
        try:
            for number in range(times):
                rest = data
                while rest:
                    try:
                        rest = rest[self.socket.send(rest) :]
                    except BlockingIOError:
                        if stuck():
                            return number
                        until(lambda: stuck() or self._takes_more())
            return times
        finally:
            self.socket.settimeout(PATIENCE_S)

    def _takes_more(self) -> bool:
        return bool(select.select([], [self.socket], [], 0)[1])

    def arrived(self) -> "Client":
        """Wait until the other side's kernel has everything that was sent."""
        until(lambda: not struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))[0])
        return self

    def ask(self, data: bytes) -> bytes:
        return self.send(data).answer()

    def answer(self) -> bytes:
        """Return the next whole answer; b"" if the connection was closed instead."""
        while b"\r\n\r\n" not in self.unread:
            if not self._more():
                return b""
        head = self.unread.partition(b"\r\n\r\n")[0]
        lengths = [int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        size = len(head) + 4 + sum(lengths)
        while len(self.unread) < size and self._more():
            pass
        whole, self.unread = self.unread[:size], self.unread[size:]
        return whole

    def rest(self) -> bytes:
        """Return everything until the other side closes."""
        while self._more():
            pass
        rest, self.unread = self.unread, b""
        return rest

    def quiet(self, seconds: float = 0.05) -> bool:
        """Whether nothing arrives for this long."""
        self.socket.settimeout(seconds)
        try:
            return not self.unread and not self._more() and False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)

    def closed(self) -> bool:
        """Whether the other side closes without another byte."""
        return self.rest() == b""

    def _more(self) -> bytes:
        try:
            data = self.socket.recv(65_536)
        except ConnectionError:
            data = b""
        self.unread += data
        return data


class Serving:
    """A running service, its guest server, store and clocks."""

    def __init__(
        self, service: Service, server: GuestServer, store: WatchedStore, clock: ManualClock, monotonic: SteeredClock
    ) -> None:
        self.service, self.server, self.store, self.clock = service, server, store, clock
        self.endpoint, self.monotonic = server.endpoint, monotonic
        self.port = int(server.listener.urls[0].rpartition(":")[2])
        self._clients: list[Client] = []

    def client(self, address: str = WEB_0, *, small: bool = False) -> Client:
        self._clients.append(Client(self.port, address, small=small))
        return self._clients[-1]

    def reboot(self, scope: str, name: str, description: str = "") -> str:
        """Schedule a Reboot of one machine; return the id of its event."""
        targets = Targets(machines=((scope, name),))
        request = MaintenanceRequest(type=EventType.REBOOT, targets=targets, description=description)
        maintenance_id = self.service.control.submit(request, OPERATOR)
        return self.service.control.maintenance(maintenance_id)[1][0].id

    def move(self, seconds: float) -> None:
        """Move the stopped monotonic clock; return when the listener has done what is due by then."""
        self.monotonic.move(seconds, self.endpoint.loop)

    def wait_until_handled(self, *clients: Client) -> None:
        """Wait until the listener has read what these clients sent, and the writer has done the writes that follow."""
        for client in clients:
            client.arrived()
        turn(self.endpoint.loop)
        self.server._writer.submit(lambda: None).result(PATIENCE_S)
        turn(self.endpoint.loop)

    def advance(self, **duration: float) -> None:
        self.service.ticker.advance(timedelta(**duration).total_seconds())

    def close(self) -> None:
        """Close every client."""
        for client in self._clients:
            client.socket.close()
        self._clients.clear()


@contextmanager
def serving(
    fleet: str = FLEET,
    *,
    stopped: bool = False,
    connection: ConnectionFactory = Connection,
    seen_every_s: float = SEEN_EVERY_S,
    first_seen_every_s: float = FIRST_SEEN_EVERY_S,
    **settings: object,
) -> Iterator[Serving]:
    """Run a guest server on a free port of 127.0.0.1; `stopped` is its monotonic clock. Its writes and its end have no limits."""
    flags = {"store": "memory:", "guest": "127.0.0.1:0", "rate_limit": 0, **settings}
    exact = {key: flags.pop(key) for key in [k for k in flags if k.endswith("_s")]}
    loaded = load(flags, {})
    for key, value in exact.items():
        object.__setattr__(loaded, key, value)  # settings take whole seconds only
    ids, clock, store, monotonic = count(1), ManualClock(START), WatchedStore(), SteeredClock()
    if stopped:
        monotonic.stop()
    service = Service(
        loaded,
        clock=clock,
        store=store,
        new_id=lambda: f"{next(ids):08X}-0000-4000-8000-000000000000",
        node="here",
        times=Times(monotonic=monotonic),
    )
    service.control.apply_fleet(parse_fleet(fleet, "the test"), OPERATOR)
    server = GuestServer(
        service,
        connection,
        seen_every_s=seen_every_s,
        first_seen_every_s=first_seen_every_s,
        stop_within_s=PATIENCE_S,
        last_writes_within_s=PATIENCE_S,
    )
    server.endpoint.max_queued_s = PATIENCE_S
    server.start()
    running = Serving(service, server, store, clock, monotonic)
    try:
        yield running
    finally:
        running.close()
        store.away, store.failure = False, None
        store.go.set()
        monotonic.run()
        server.stop()
        service.close()


def get(url: str = URL, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {url} HTTP/1.1", "Host: 169.254.169.254", "Metadata: true", *headers]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def post(*event_ids: str, url: str = URL, headers: tuple[str, ...] = ()) -> bytes:
    entries = ",".join(f'{{"EventId":"{each}"}}' for each in event_ids)
    body = f'{{"StartRequests":[{entries}]}}'
    return get(url, f"Content-Length: {len(body)}", *headers, method="POST") + body.encode()


def status(answer: bytes) -> int:
    return int(answer[9:12] or b"0")


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]
