"""A service and its guest side in one process that takes orders, for what cannot be measured from outside.

Run as a program with a database: it prints `ready` and its port, and then answers each line of its input with one of JSON:
`waiting` (how many long polls wait), `change` (one scope, timed), `change all` (every scope at once, with the longest stall
of the event loop meanwhile), `fresh N` (N changes, each followed by a poll). `bare` instead of a database is the peer of
`change`: a loop on uvloop that writes the same bytes to every connection it has.
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from bench.guests import POLL, announce, scope_name
from bench.load import Task, ask, connected, etag_of
from bench.service import OPERATOR
from bench.subjects import NO_LIMIT
from forewarn.app.guest_server import GuestServer
from forewarn.app.server import tune_process
from forewarn.app.service import Service
from forewarn.core.model import EventType, MaintenanceRequest, Targets
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.document_state import ScopeView
from forewarn.endpoint.sockets import GuestSocket
from forewarn.service.settings import Settings

BEAT_S = 0.001
FRESH_PAUSE_S = 0.01


class House:
    """A service as `serve` wires it, with its ticker, and ears on what happens inside."""

    def __init__(self, database: Path) -> None:
        limit = int(NO_LIMIT)
        settings = Settings(
            store=f"sqlite:{database}",
            state_dir=database.parent,
            guest=("127.0.0.1:0",),
            rate_limit=limit,
            guest_connections=limit,
            guest_waiting=limit,
        )
        self.service = Service(settings)
        self.guest_side = GuestServer(self.service)
        self.port = int(self.guest_side.listener.urls[0].rpartition(":")[2])
        self.guests = self.guest_side.endpoint
        self._published: str | None = None
        self._rung_s = 0.0
        self._batches_s: list[float] = []
        self._polling: Connection | None = None
        self._begun = self._most_begun = 0
        self._listen_in()
        self.guest_side.start()
        threading.Thread(target=self.service.ticker.run, daemon=True).start()
        tune_process()

    def _listen_in(self) -> None:
        rung, wake = self.guests.documents.on_views_changed, self.guests._wake_batch

        def changed(views: list[ScopeView]) -> None:
            self._rung_s = time.monotonic()
            rung(views)

        def wake_batch(waiters: Any) -> None:
            self._look_for_a_poll()
            began_s = time.monotonic()
            wake(waiters)
            self._batches_s.append(time.monotonic() - began_s)

        received = Connection.data_received

        def data_received(connection: Connection, data: bytes) -> None:
            if data == POLL:
                self._polling, self._begun = connection, 0
            received(connection, data)

        Connection.data_received = data_received  # type: ignore[assignment,method-assign]
        self.guests.documents.on_views_changed = changed
        self.guests._wake_batch = wake_batch  # type: ignore[method-assign]

    def waiting(self) -> dict[str, object]:
        return {"waiting": sum(len(view.waiters) for view in self.guests.documents.views.values())}

    def change(self) -> dict[str, object]:
        """Publish an event in the first scope, or take it back; when memory showed it."""
        self._batches_s.clear()
        self._begun = self._most_begun = 0
        asked_s = time.monotonic()
        self._toggle(0)
        return {"asked_s": asked_s, "rung_s": self._rung_s, "returned_s": time.monotonic()}

    def batches(self) -> dict[str, object]:
        """How long each batch took. The last guest may have its answer before the loop has noted the last batch."""
        noted = threading.Event()
        self.guest_side.listener._loop.call_from_thread(noted.set)
        noted.wait()
        return {"batches_s": self._batches_s, "most_begun": self._most_begun}

    def _look_for_a_poll(self) -> None:
        """Whether the poll of one who does not wait lies in its socket while a batch begins: how many did so far."""
        if self._polling is None or not isinstance(wire := self._polling.transport, GuestSocket):
            return
        with suppress(OSError):
            wire._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            self._begun += 1
            self._most_begun = max(self._most_begun, self._begun)

    def change_all(self) -> dict[str, object]:
        began_s = time.monotonic()
        with self._beating() as stalls_s:
            announce(self.service, "every document at once")
            took_s = time.monotonic() - began_s
            time.sleep(0.2)
        changed = sum(view.state.scope.incarnation > 1 for view in self.guests.documents.views.values())
        return {"took_s": took_s, "stall_s": max(stalls_s), "changed": changed}

    def fresh(self, count: int) -> dict[str, object]:
        """From the return of the control call to the bytes of a poll that shows the change."""
        connection = connected(Task(mode="", port=self.port, core=0, connections=1), 0)
        took_s = []
        for _ in range(count):
            self._toggle(0)
            returned_s = time.monotonic()
            expected = self.guests.documents.views[scope_name(0)].state.etag
            while etag_of(ask(connection, POLL)) != expected:
                pass
            took_s.append(time.monotonic() - returned_s)
            time.sleep(FRESH_PAUSE_S)
        return {"took_s": took_s}

    def _toggle(self, scope: int) -> None:
        control = self.service.control
        if self._published is None:
            targets = Targets(machines=((scope_name(scope), "vm-0000"),))
            self._published = control.submit(MaintenanceRequest(type=EventType.REDEPLOY, targets=targets), OPERATOR)
        else:
            control.cancel_maintenance(self._published, OPERATOR)
            self._published = None

    @contextmanager
    def _beating(self) -> Iterator[list[float]]:
        """How late each beat of a timer in the guests' loop is: so long nothing else could run there."""
        loop, late_s, going = self.guest_side.listener._loop, [0.0], True

        def beat(due_s: float) -> None:
            late_s.append(time.monotonic() - due_s)
            if going:
                due_s = time.monotonic() + BEAT_S
                loop.call_later(BEAT_S, lambda: beat(due_s))

        loop.call_from_thread(lambda: beat(time.monotonic()))
        yield late_s
        going = False

    def stop(self) -> None:
        self.guest_side.stop()
        self.service.ticker.stop()
        self.service.close()


class Bare(asyncio.Protocol):
    """The peer: answers the first request of a connection, keeps every later one waiting."""

    answer = b""
    waiting: dict["Bare", None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if b"Prefer" in data:
            self.waiting[self] = None
        else:
            self.write()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.waiting.pop(self, None)

    def write(self) -> None:
        self._transport.write(self.answer)  # type: ignore[attr-defined]


def bare(length: int) -> tuple[int, dict[str, Callable[[], dict[str, object]]]]:
    """The port it listens on, and the orders it takes."""
    Bare.waiting = {}
    head = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: '
    # As long on the wire as the house's own answer.
    body = length - len(head) - len(str(length)) - 4 + (len(str(length)) > len(str(length - len(head))))
    Bare.answer = head + b"%d\r\n\r\n" % body + b"x" * body
    loop = uvloop.new_event_loop()

    def write_all() -> None:
        for waiter in list(Bare.waiting):
            waiter.write()

    def change() -> dict[str, object]:
        asked_s = time.monotonic()
        loop.call_soon_threadsafe(write_all)
        return {"asked_s": asked_s, "rung_s": asked_s, "returned_s": asked_s}

    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    loop.run_until_complete(loop.create_server(Bare, sock=listener, backlog=4096))
    port: int = listener.getsockname()[1]
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return port, {"waiting": lambda: {"waiting": len(Bare.waiting)}, "change": change}


def main() -> None:
    what, number = sys.argv[1], int(sys.argv[2])
    if what == "bare":
        port, orders = bare(number)
        house = None
    else:
        house = House(Path(what))
        port = house.port
        orders = {
            "waiting": house.waiting,
            "change": house.change,
            "batches": house.batches,
            "change all": house.change_all,
            "fresh": lambda: house.fresh(number),
        }
    print(f"ready {port}", flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        print(json.dumps(orders[line.strip()]()), flush=True)
    if house is not None:
        house.stop()


if __name__ == "__main__":
    main()
