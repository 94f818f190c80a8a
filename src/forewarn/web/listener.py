"""The guest listener's sockets and its event-loop thread: opening, sweeping, and an orderly end."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from forewarn.core.errors import InvalidSettings
from forewarn.web.guest import Connection
from forewarn.web.guests import Guests

BACKLOG = 4_096
SWEEP_EVERY_S = 1.0
START_WITHIN_S = 10.0

log = logging.getLogger("forewarn.guest")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: `HOST:PORT`, or `HOST:PORT@INTERFACE` where the interface tells who is calling."""

    host: str
    port: int
    interface: str = ""

    @staticmethod
    def parse(text: str) -> "Address":
        place, _, interface = text.partition("@")
        host, _, port = place.rpartition(":")
        return Address(host.strip("[]"), int(port), interface)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + (f"@{self.interface}" if self.interface else "")


def open_socket(address: Address, *, hop_limit: int = 0) -> socket.socket:
    """A bound socket; `hop_limit` is the IP TTL of replies (1 keeps bridged containers out), 0 the system's."""
    six = ":" in address.host
    listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hop_limit:
            level, option = (
                (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS) if six else (socket.IPPROTO_IP, socket.IP_TTL)
            )
            listener.setsockopt(level, option, hop_limit)
        if address.interface:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, address.interface.encode())
        listener.bind((address.host, address.port))
        # Here, not when the loop opens it: two listeners on one address must be refused with a sentence.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise InvalidSettings(
            f"guest: cannot listen on {address}: {error.strerror}; choose another with --guest HOST:PORT[@INTERFACE]"
        ) from None
    return listener


def is_wildcard(host: str) -> bool:
    return ipaddress.ip_address(host).is_unspecified


def raise_file_limit() -> None:
    """Every guest is a file descriptor: take as many as we are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it exists, plain asyncio elsewhere."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    # Where libuv finds io_uring it tells the kernel through it which sockets to watch. For a guest that connects for every
    # poll that costs more than the plain call; libuv asks this variable when a process makes its first loop.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    return uvloop.new_event_loop()


class GuestListener:
    """Runs Guests in a thread of its own: a commit never blocks a poll."""

    def __init__(
        self,
        guests: Guests,
        addresses: Iterable[Address],
        *,
        hop_limit: int = 0,
        every_s: tuple[float, Callable[[], None]] | None = None,
    ) -> None:
        """`every_s` is something to do in the loop every so many seconds."""
        self._guests = guests
        self._every = every_s
        self._sockets = [(address, open_socket(address, hop_limit=hop_limit)) for address in addresses]
        self._loop = new_event_loop()
        self._servers: list[asyncio.AbstractServer] = []
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guest", daemon=True)
        guests.documents.changed = lambda views: self._call(lambda: guests.wake(views))

    @property
    def urls(self) -> list[str]:
        urls = []
        for address, listener in self._sockets:
            host = f"[{address.host}]" if ":" in address.host else address.host
            urls.append(f"http://{host}:{listener.getsockname()[1]}")
        return urls

    def start(self) -> None:
        raise_file_limit()
        self._thread.start()
        if not self._started.wait(START_WITHIN_S):
            raise InvalidSettings("guest: the listener did not start: see the log")

    def accepting(self) -> bool:
        return self._started.is_set() and self._thread.is_alive() and all(s.is_serving() for s in self._servers)

    def stop(self, within_s: float) -> None:
        """Finish what is in flight, answer waiters with 304, close the rest."""
        self._call(lambda: self._loop.create_task(self._stop(within_s)))
        self._thread.join(timeout=within_s + 1.0)

    def _call(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to be told
            self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._open())
            self._started.set()
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _open(self) -> None:
        for address, listener in self._sockets:
            server = await self._loop.create_server(
                partial(Connection, self._guests, address.interface),
                sock=listener,
                backlog=BACKLOG,
            )
            self._servers.append(server)
        self._repeat(SWEEP_EVERY_S, self._guests.sweep)
        if self._every is not None:
            self._repeat(*self._every)

    def _repeat(self, seconds: float, what: Callable[[], None]) -> None:
        def again() -> None:
            what()
            self._loop.call_later(seconds, again)

        self._loop.call_later(seconds, again)

    async def _stop(self, within_s: float) -> None:
        self._guests.stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._guests.connections):
            connection.stop()
        deadline_s = self._loop.time() + within_s
        while self._guests.connections and self._loop.time() < deadline_s:
            await asyncio.sleep(0.01)
        for connection in list(self._guests.connections):
            connection.drop()
        await asyncio.sleep(0)
        self._loop.stop()
