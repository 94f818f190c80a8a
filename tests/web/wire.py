"""The guest's connection without a network: a transport in memory, and everything behind it on clocks that are moved."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from forewarn.clock import ManualClock
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import EventType, Request, Targets
from forewarn.server import Service, limits_of, trust_of
from forewarn.settings import Settings
from forewarn.store.memory import MemoryStore
from forewarn.web import guest
from forewarn.web.documents import Documents, View
from forewarn.web.guest import Connection
from forewarn.web.guests import Guests
from tests.web.serving import FLEET, OPERATOR, START, WEB_0

MAX_TURNS = 40


class HandClock:
    """The machine's monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def hand_clock() -> Iterator[HandClock]:
    """Connections read this clock instead of the machine's: rates and holds become exact."""
    clock = HandClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guest, "monotonic", clock)
        yield clock


class HandLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow the same clock. It must always have something to do: it never waits for real."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self._clock = clock

    def time(self) -> float:
        return self._clock.now_s


def run_by_hand(what: Coroutine[Any, Any, None], clock: HandClock) -> None:
    with asyncio.Runner(loop_factory=lambda: HandLoop(clock)) as runner:
        runner.run(what)


class AtOnce(Executor):
    """The writer's thread, without the thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Wire(asyncio.Transport):
    """A connection from an address: `send` delivers bytes as a network would, `received` is what came back."""

    def __init__(self, guests: Guests, address: str = WEB_0) -> None:
        super().__init__({"peername": (address, 40_000)})
        self.received = b""
        self.closed = False
        self._ended = False
        self._reading = True
        self._unread: list[bytes] = []
        self.connection = Connection(guests)
        self.connection.connection_made(self)

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

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_finished(), "written after the end"
        self.received += bytes(data)

    def write_eof(self) -> None:
        """The connection waits for us to hang up; we do."""
        self._ended = True

    def is_finished(self) -> bool:
        return self.closed or self._ended

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._deliver)


class World:
    """A service, its documents and its guests; two worlds that are asked the same hold the same."""

    def __init__(self, *, rate_limit: int = 0) -> None:
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
        self.documents = Documents(self.service.store, self.clock, burst=float(rate_limit) or float("inf"))
        self.documents.load()
        self.control.listen(self.documents.heard)
        self.guests = Guests(
            self.documents, self.control, AtOnce(), limits=limits_of(settings), trust=trust_of(settings)
        )
        self.documents.changed = self._wake_soon

    def _wake_soon(self, views: list[View]) -> None:
        """In a later turn of the loop, as the listener does it: whoever changes a document holds locks."""
        with suppress(RuntimeError):  # no loop, so nobody waits
            asyncio.get_running_loop().call_soon(self.guests.wake, views)

    def reboot(self, scope: str, name: str) -> str:
        """Schedule a Reboot of one machine; the id of its event."""
        request = Request(type=EventType.REBOOT, targets=Targets(machines=((scope, name),)))
        return self.control.maintenance(self.control.submit(request, OPERATOR))[1][0].id

    def forget(self) -> None:
        """No request was ever seen before: the next takes the parser's lane."""
        self.guests.remembered.clear()
        self.guests._seen_once.clear()


async def settle(*wires: Wire) -> None:
    """Let the event loop turn until nobody of these has anything to do that needs no time."""
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        if not any(wire.connection.busy or wire._unread for wire in wires if not wire.is_finished()):
            return
