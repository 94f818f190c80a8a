"""The guest listener's sockets and its event-loop thread: opening, sweeping, and an orderly end."""

import contextlib
import ipaddress
import logging
import resource
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from forewarn.core.errors import InvalidSettings
from forewarn.endpoint.connection import Connection, NewConnection
from forewarn.endpoint.endpoint import Endpoint
from forewarn.endpoint.sockets import Listener

BACKLOG = 4_096
SWEEP_EVERY_S = 1.0
LOOK_EVERY_S = 0.01
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


def reachable(host: str) -> str:
    """As one writes it in an address; a wildcard is none to connect to."""
    if host != "localhost" and is_wildcard(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def raise_file_limit() -> None:
    """Every guest is a file descriptor: take as many as we are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class GuestListener:
    """Runs Guests in a thread of its own: a commit never blocks a poll."""

    def __init__(
        self,
        guests: Endpoint,
        addresses: Iterable[Address],
        *,
        hop_limit: int = 0,
        connection: NewConnection = Connection,
        repeated: Iterable[tuple[float, Callable[[], None]]] = (),
    ) -> None:
        """`repeated` are things to do in the loop, each every so many seconds; `connection` is what talks to a guest."""
        self._guests = guests
        self._connection = connection
        self._repeated = tuple(repeated)
        self._sockets = [(address, open_socket(address, hop_limit=hop_limit)) for address in addresses]
        self._loop = guests.loop
        self._listeners: list[Listener] = []
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guest", daemon=True)
        guests.documents.changed = lambda views: self._loop.call_from_thread(lambda: guests.wake(views))

    @property
    def urls(self) -> list[str]:
        urls = []
        for address, listener in self._sockets:
            urls.append(f"http://{reachable(address.host)}:{listener.getsockname()[1]}")
        return urls

    def start(self) -> None:
        raise_file_limit()
        self._thread.start()
        if not self._started.wait(START_WITHIN_S):
            raise InvalidSettings("guest: the listener did not start: see the log")

    def accepting(self) -> bool:
        return self._started.is_set() and self._thread.is_alive() and all(each.open for each in self._listeners)

    def stop(self, within_s: float) -> None:
        """Finish what is in flight, answer waiters with 304, close the rest."""
        self._loop.call_from_thread(lambda: self._stop(within_s))
        self._thread.join(timeout=within_s + 1.0)

    def _run(self) -> None:
        for address, opened in self._sockets:
            self._listeners.append(
                Listener(self._loop, opened, partial(self._connection, self._guests, address.interface))
            )
        self._loop.repeat(SWEEP_EVERY_S, self._guests.sweep)
        for every_s, what in self._repeated:
            self._loop.repeat(every_s, what)
        self._loop.call_soon(self._started.set)
        try:
            self._loop.run()
        finally:
            self._loop.close()

    def _stop(self, within_s: float) -> None:
        guests, loop = self._guests, self._loop
        guests.stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(guests.connections):
            connection.stop()

        def drop_all() -> None:
            for connection in list(guests.connections):
                connection.drop()
            loop.stop()

        def stop_when_empty() -> None:
            if not guests.connections:
                loop.stop()

        loop.call_later(within_s, drop_all)
        loop.repeat(LOOK_EVERY_S, stop_when_empty)
        stop_when_empty()
