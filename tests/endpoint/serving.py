"""A guest side that really runs: a service on a store in memory, a clock that is moved, and clients on plain sockets."""

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

from forewarn.app.guest_server import GuestServer
from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import StoreUnavailable
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Scope, Targets
from forewarn.endpoint.loop import Loop
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.store import EventFirstSeen, Focus, MachineLastSeen
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
        """Move the stopped clock; returns when `loop` has made every call that is due by then."""
        assert self._stopped_at_s is not None
        self._stopped_at_s += seconds
        turn(loop)

    def run(self) -> None:
        """Go on from here in real time."""
        self._ahead_s = self() - time.monotonic()
        self._stopped_at_s = None


def turn(loop: Loop) -> None:
    """Wait until a loop in another thread has made a whole turn."""
    for _ in range(2):
        turned = threading.Event()
        loop.call_from_thread(turned.set)
        assert turned.wait(PATIENCE_S)


class WatchedStore(MemoryStore):
    """A store in memory that can be away, can be slow, and counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.go = threading.Event()
        self.go.set()
        self.applied: list[Change] = []
        self.seen_batches: list[list[MachineLastSeen]] = []
        self.sighting_batches: list[list[EventFirstSeen]] = []

    def snapshot(self, focus: Focus) -> Snapshot:
        self._reach()
        return super().snapshot(focus)

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


class Client:
    """A connection from an address of our choice: bytes out, bytes in."""

    def __init__(self, port: int, address: str = WEB_0, *, small: bool = False) -> None:
        self.socket = socket.socket()
        if small:  # the kernel keeps little for who does not read
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.bind((address, 0))
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", port))
        self.unread = b""

    def send(self, data: bytes) -> "Client":
        self.socket.sendall(data)
        return self

    def flood(self, data: bytes, times: int, stuck: Callable[[], bool]) -> int:
        """Send it again and again, reading nothing, until the kernel takes no more and `stuck`; how often it was sent."""
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
        """The next whole answer; b"" when the connection was closed instead."""
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
        """Everything until the other side closes."""
        while self._more():
            pass
        rest, self.unread = self.unread, b""
        return rest

    def quiet(self, seconds: float = 0.05) -> bool:
        """Whether nothing comes for so long."""
        self.socket.settimeout(seconds)
        try:
            return not self.unread and not self._more() and False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)

    def closed(self) -> bool:
        """Whether the other side closes, having said nothing more."""
        return self.rest() == b""

    def _more(self) -> bytes:
        try:
            data = self.socket.recv(65_536)
        except ConnectionError:
            data = b""
        self.unread += data
        return data


class Serving:
    """The running service as a test meets it."""

    def __init__(
        self, service: Service, side: GuestServer, store: WatchedStore, clock: ManualClock, monotonic: SteeredClock
    ) -> None:
        self.service, self.side, self.store, self.clock = service, side, store, clock
        self.guests, self.monotonic = side.endpoint, monotonic
        self.port = int(side.listener.urls[0].rpartition(":")[2])
        self._clients: list[Client] = []

    def client(self, address: str = WEB_0, *, small: bool = False) -> Client:
        self._clients.append(Client(self.port, address, small=small))
        return self._clients[-1]

    def reboot(self, scope: str, name: str, description: str = "") -> str:
        """Schedule a Reboot of one machine; the id of its event."""
        targets = Targets(machines=((scope, name),))
        request = MaintenanceRequest(type=EventType.REBOOT, targets=targets, description=description)
        maintenance_id = self.service.control.submit(request, OPERATOR)
        return self.service.control.maintenance(maintenance_id)[1][0].id

    def move(self, seconds: float) -> None:
        """Move the monotonic clock, which was stopped; returns when the listener has done what is due by then."""
        self.monotonic.move(seconds, self.guests.loop)

    def heard(self, *clients: Client) -> None:
        """Wait until the listener has read what these have sent, and has written what it writes because of that."""
        for client in clients:
            client.arrived()
        turn(self.guests.loop)
        self.side._writer.submit(lambda: None).result(PATIENCE_S)
        turn(self.guests.loop)

    def advance(self, **duration: float) -> None:
        self.service.ticker.advance(timedelta(**duration).total_seconds())

    def close(self) -> None:
        """Hang up."""
        for client in self._clients:
            client.socket.close()
        self._clients.clear()


@contextmanager
def serving(fleet: str = FLEET, *, stopped: bool = False, **settings: object) -> Iterator[Serving]:
    """A listener on a free port of 127.0.0.1, for as long as the test lasts; `stopped` is its monotonic clock."""
    flags = {"store": "memory:", "guest": "127.0.0.1:0", "rate_limit": 0, **settings}
    exact = {key: flags.pop(key) for key in [k for k in flags if k.endswith("_s")]}
    loaded = load(flags, {})
    for key, value in exact.items():
        object.__setattr__(loaded, key, value)  # parts of a second, which no operator needs
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
    side = GuestServer(service)
    side.listener.start()
    running = Serving(service, side, store, clock, monotonic)
    try:
        yield running
    finally:
        running.close()
        store.away = False
        store.go.set()
        monotonic.run()
        side.stop()
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
