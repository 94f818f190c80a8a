"""The guest's connection without a network: a transport in memory, and everything behind it on clocks that are moved."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import count
from typing import Any

from forewarn.app.guest_server import limits_of, trust_of
from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import EventType, MaintenanceRequest, Targets
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.endpoint import Endpoint
from forewarn.endpoint.loop import Loop
from forewarn.service.clock import ManualClock
from forewarn.service.settings import Settings
from forewarn.store.memory import MemoryStore
from tests.support.guest_service import FLEET, OPERATOR, START, WEB_0

MAX_TURNS = 40


class HandClock:
    """The machine's monotonic clock, moved by hand, and a loop whose timers follow it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.loop = Loop(self)

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def hand_clock() -> Iterator[HandClock]:
    """Rates and holds become exact."""
    clock = HandClock()
    yield clock
    clock.loop.close()


class AtOnce(Executor):
    """The writer's thread, without the thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Wire:
    """A connection from an address: `send` delivers bytes as a network would, `received` is what came back."""

    def __init__(self, guests: Endpoint, address: str = WEB_0) -> None:
        self.host = address
        self.received = b""
        self.closed = False
        self._ended = False
        self._reading = True
        self._unread: list[bytes] = []
        self._loop = guests.loop
        self.connection = Connection(guests)
        assert self.connection.connection_made(self)

    def send(self, data: bytes) -> None:
        self._unread.append(data)
        self._deliver()

    def hang_up(self) -> None:
        """The guest is gone."""
        if not self.closed:
            self.abort()

    def _deliver(self) -> None:
        while self._unread and self._reading and not self.closed:
            self.connection.data_received(self._unread.pop(0))

    # -- what a connection may ask of its transport

    def write(self, data: bytes) -> None:
        assert not self.is_finished(), "written after the end"
        self.received += data

    def write_eof(self) -> None:
        """The connection waits for us to hang up; we do."""
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


class World:
    """A service, its documents and its guests; two worlds that are asked the same hold the same."""

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
        )
        self.control = self.service.control
        self.control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
        self.documents = Documents(self.service.store, self.clock)
        self.documents.load()
        self.control.listen(self.documents.on_change)
        self.guests = Endpoint(
            self.documents,
            self.control,
            AtOnce(),
            loop,
            limits=limits_of(settings),
            trust=trust_of(settings),
            monotonic=loop._clock,
        )
        # As the listener does it: whoever changes a document holds locks.
        self.documents.on_views_changed = lambda views: loop.call_soon(lambda: self.guests.wake(views))

    def reboot(self, scope: str, name: str) -> str:
        """Schedule a Reboot of one machine; the id of its event."""
        request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=((scope, name),)))
        return self.control.maintenance(self.control.submit(request, OPERATOR))[1][0].id

    def forget(self) -> None:
        """No request was ever seen before: the next takes the parser's lane."""
        self.guests.remembered.clear()
        self.guests._seen_once.clear()


def settle(loop: Loop, *wires: Wire) -> None:
    """Let the loop turn until nobody of these has anything to do that needs no time."""
    for _ in range(MAX_TURNS):
        loop.turn()
        if not any(wire.connection.busy or wire._unread for wire in wires if not wire.is_finished()):
            return
