"""The endpoint without a network: transports in memory, a service behind them, and clocks that tests move."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import count
from typing import Any

from forewarn.app.guest_server import limits_of, trust_of
from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import EventType, MaintenanceRequest, Targets
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.loop import Loop
from forewarn.service.clock import ManualClock
from forewarn.service.settings import Settings
from forewarn.store.memory import MemoryStore
from tests.support.guest_service import FLEET, OPERATOR, START, WEB_0

MAX_TURNS = 40


class ManualMonotonic:
    """A monotonic clock that a test moves, and a loop whose timers follow it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.loop = Loop(self)

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def manual_monotonic() -> Iterator[ManualMonotonic]:
    """Make a clock for exact rates and holds; close its loop at the end."""
    clock = ManualMonotonic()
    yield clock
    clock.loop.close()


class ImmediateWriter(Executor):
    """The writer without its thread: it does each write at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class MemoryTransport:
    """A connection from an address: `send` delivers bytes as a network would, `received` is what the service sent."""

    def __init__(self, endpoint: EndpointState, address: str = WEB_0) -> None:
        self.host = address
        self.received = b""
        self.closed = False
        self._ended = False
        self._reading = True
        self._unread: list[bytes] = []
        self._loop = endpoint.loop
        self.connection = Connection(endpoint)
        if not self.connection.connection_made(self):
            self.closed = True  # over a limit

    def send(self, data: bytes) -> None:
        self._unread.append(data)
        self._deliver()

    def hang_up(self) -> None:
        """Close the connection from the guest's side."""
        if not self.closed:
            self.abort()

    def _deliver(self) -> None:
        while self._unread and self._reading and not self.closed:
            self.connection.data_received(self._unread.pop(0))

    # -- the Transport protocol

    def write(self, data: bytes) -> None:
        assert not self.is_finished(), "the service wrote after the end"
        self.received += data

    def write_eof(self) -> None:
        """Note that the connection waits for the guest to close."""
        self._ended = True

    def is_finished(self) -> bool:
        return self.closed or self._ended

    def close(self) -> None:
        self.abort()

    def reset(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._deliver)


class MemoryService:
    """A service, its documents and its endpoint; two of them with the same requests have the same state."""

    def __init__(self, loop: Loop, *, rate_limit: int = 0) -> None:
        ids = count(1)
        self.clock = ManualClock(START)
        settings = Settings(store="memory:", rate_limit=rate_limit, guest=())
        self.service = Service(
            settings,
            clock=self.clock,
            store=MemoryStore(),
            new_id=lambda: f"{next(ids):08X}-0000-4000-8000-000000000000",
            node="here",
            times=Times(monotonic=loop._clock),
        )
        self.control = self.service.control
        self.control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
        self.documents = Documents(self.service.store, self.clock)
        self.documents.load()
        self.control.listen(self.documents.on_change)
        self.endpoint = EndpointState(
            self.documents,
            self.control,
            ImmediateWriter(),
            loop,
            limits=limits_of(settings),
            trust=trust_of(settings),
            monotonic=loop._clock,
        )
        # Later, as the listener does it: the caller that changes a document holds locks.
        self.documents.on_views_changed = lambda views: loop.call_soon(lambda: self.endpoint.wake(views))

    def reboot(self, scope: str, name: str) -> str:
        """Schedule a Reboot of one machine; return the id of its event."""
        request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=((scope, name),)))
        return self.control.maintenance(self.control.submit(request, OPERATOR))[1][0].id

    def forget_requests(self) -> None:
        """Forget all remembered requests: the next one goes through the parser."""
        self.endpoint.remembered.clear()
        self.endpoint._seen_once.clear()


def turn_until_idle(loop: Loop, *transports: MemoryTransport) -> None:
    """Turn the loop until none of these connections has anything left to do that needs no time."""
    for _ in range(MAX_TURNS):
        loop.turn()
        if not any(each.connection.busy or each._unread for each in transports if not each.is_finished()):
            return
