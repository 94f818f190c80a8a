"""The guest listener: opens its sockets, follows their interfaces, runs the event loop in a thread, and stops in an orderly way.

A socket that listens on an interface is bound to the number of the interface. An interface that is deleted and created again
has another number, so the old socket hears nothing any more: the listener opens a new one. An interface or address that does
not exist is waited for.
"""

import contextlib
import errno
import ipaddress
import logging
import resource
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from forewarn.core.errors import InvalidSettings
from forewarn.core.lazy_dataclass import dataclass
from forewarn.endpoint.connection import Connection, ConnectionFactory
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.flood_filter import BLOCKED_S
from forewarn.endpoint.sockets import Listener

BACKLOG = 4_096
SWEEP_EVERY_S = 1.0
FOLLOW_EVERY_S = 1.0
STOP_CHECK_EVERY_S = 0.01
START_WITHIN_S = 10.0
LOG_BLOCKED_EVERY_S = 60.0
SO_BINDTOIFINDEX = 62
# The interface or the address does not exist. It may come later: a hypervisor makes taps and bridges when it needs them.
ABSENT = {errno.ENODEV: "there is no such interface", errno.EADDRNOTAVAIL: "no interface has this address"}

log = logging.getLogger("forewarn.guest")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: `HOST:PORT`, or `HOST:PORT@INTERFACE` where the interface identifies the caller."""

    host: str
    port: int
    interface: str = ""

    @staticmethod
    def parse(text: str) -> "Address":
        host_and_port, _, interface = text.partition("@")
        host, _, port = host_and_port.rpartition(":")
        return Address(host.strip("[]"), int(port), interface)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + (f"@{self.interface}" if self.interface else "")


class AddressAbsent(InvalidSettings):
    """The address to listen on, or its interface, does not exist on this host."""


def open_socket(address: Address, *, hop_limit: int = 0, listen: bool = True) -> socket.socket:
    """Return a listening socket, or one that only reserves the address.

    `hop_limit` is the IP TTL of replies (1 keeps bridged containers out), 0 the system's.
    """
    ipv6 = ":" in address.host
    listener = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hop_limit:
            level, option = (
                (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS) if ipv6 else (socket.IPPROTO_IP, socket.IP_TTL)
            )
            listener.setsockopt(level, option, hop_limit)
        if address.interface:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, address.interface.encode())
        listener.bind((address.host, address.port))
        # Here, not in the loop's thread: an address that is in use must be reported to the operator.
        if listen:
            listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno in ABSENT:
            raise AddressAbsent(f"guest: cannot listen on {address} yet: {ABSENT[error.errno]}") from None
        raise InvalidSettings(
            f"guest: cannot listen on {address}: {error.strerror}; choose another with --guest HOST:PORT[@INTERFACE]"
        ) from None
    return listener


def is_wildcard(host: str) -> bool:
    return ipaddress.ip_address(host).is_unspecified


def host_in_url(host: str) -> str:
    """Return a host as a URL writes it; for a wildcard, which no client can connect to, a loopback address."""
    if host != "localhost" and is_wildcard(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: every guest needs a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class AddressListener:
    """Listens on one address while it exists, and on its interface under whatever number the interface has."""

    def __init__(self, address: Address, *, hop_limit: int) -> None:
        self.address = address
        self.problem = ""
        self._hop_limit = hop_limit
        self._socket: socket.socket | None = None
        self._listener: Listener | None = None

    @property
    def open(self) -> bool:
        return self._listener is not None and self._listener.open

    @property
    def port(self) -> int:
        port: int = self.address.port if self._socket is None else self._socket.getsockname()[1]
        return port

    def open_socket(self) -> None:
        """Open the socket. If that fails, raise InvalidSettings and keep the reason in `problem`."""
        try:
            self._socket = open_socket(self.address, hop_limit=self._hop_limit)
        except InvalidSettings as error:
            self._socket, self.problem = None, str(error)
            raise
        self.problem = ""

    def start(self, new_listener: Callable[[socket.socket, Address], Listener]) -> None:
        if self._socket is not None:
            self._listener = new_listener(self._socket, self.address)

    def interface_gone(self, numbers: Mapping[str, int]) -> bool:
        """Whether the socket is bound to an interface that no longer has this name."""
        if self._socket is None or not self.address.interface:
            return False
        bound_to = self._socket.getsockopt(socket.SOL_SOCKET, SO_BINDTOIFINDEX)
        return numbers.get(self.address.interface) != bound_to

    def refuse(self) -> None:
        """Reserve the address without listening there, so that connections are refused."""
        if self._socket is not None:
            reserved = replace(self.address, port=self.port)
            self.close()
            self._socket, self._listener = open_socket(reserved, hop_limit=self._hop_limit, listen=False), None

    def accept(self, new_listener: Callable[[socket.socket, Address], Listener]) -> None:
        """Listen on the reserved address."""
        if self._socket is not None:
            self._socket.listen(BACKLOG)
            self.start(new_listener)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        elif self._socket is not None:
            self._socket.close()


class GuestListener:
    """Runs the endpoint in a thread of its own: a commit never blocks a poll."""

    def __init__(
        self,
        endpoint: EndpointState,
        addresses: Iterable[Address],
        *,
        hop_limit: int = 0,
        connection: ConnectionFactory = Connection,
        repeated: Iterable[tuple[float, Callable[[], None]]] = (),
    ) -> None:
        """`repeated` are calls for the loop, each with its interval in seconds; `connection` makes the connection of a guest."""
        self._endpoint = endpoint
        self._connection = connection
        self._repeated = tuple(repeated)
        self._loop = endpoint.loop
        self._listeners = [AddressListener(address, hop_limit=hop_limit) for address in addresses]
        for each in self._listeners:
            try:
                each.open_socket()
            except AddressAbsent:
                log.warning("%s; it is waited for", each.problem)
            except InvalidSettings:
                for opened in self._listeners:
                    opened.close()
                raise
        self._log_blocked_from_s = 0.0
        self._refusing = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guest", daemon=True)
        endpoint.documents.on_views_changed = lambda views: self._loop.call_from_thread(lambda: endpoint.wake(views))

    @property
    def urls(self) -> list[str]:
        return [f"http://{host_in_url(each.address.host)}:{each.port}" for each in self._listeners]

    def problems(self) -> list[str]:
        """Return, for each address on which this node waits to listen, the reason."""
        return [each.problem for each in self._listeners if each.problem]

    def start(self) -> None:
        raise_file_limit()
        self._thread.start()
        if not self._started.wait(START_WITHIN_S):
            raise InvalidSettings("guest: the listener did not start: see the log")

    def refuse(self) -> None:
        """Refuse new connections; for emulators. Call it in the loop's thread."""
        for each in self._listeners:
            each.refuse()
        self._refusing = True

    def accept(self) -> None:
        """Accept connections again. Call it in the loop's thread."""
        for each in self._listeners:
            each.accept(self._new_listener)
        self._refusing = False

    def accepting(self) -> bool:
        return (
            self._started.is_set()
            and self._thread.is_alive()
            and all(each.open or each.problem or self._refusing for each in self._listeners)
        )

    def stop(self, within_s: float) -> None:
        """Finish requests that are under way, answer long polls with 304, close the rest."""
        self._loop.call_from_thread(lambda: self._stop(within_s))
        self._thread.join(timeout=within_s + 1.0)

    def _run(self) -> None:
        for each in self._listeners:
            each.start(self._new_listener)
        self._loop.repeat(SWEEP_EVERY_S, self._endpoint.sweep)
        self._loop.repeat(FOLLOW_EVERY_S, self._follow_interfaces)
        for every_s, call in self._repeated:
            self._loop.repeat(every_s, call)
        self._loop.call_soon(self._started.set)
        try:
            self._loop.run()
        finally:
            self._loop.close()

    def _new_listener(self, opened: socket.socket, address: Address) -> Listener:
        new_connection = partial(self._connection, self._endpoint, address.interface)
        return Listener(self._loop, opened, new_connection, self._address_blocked)

    def _follow_interfaces(self) -> None:
        """Close sockets whose interface is gone; listen where an interface or address has come."""
        if self._endpoint.stopping or not any(each.problem or each.address.interface for each in self._listeners):
            return
        numbers = {name: number for number, name in socket.if_nameindex()}
        for each in self._listeners:
            if each.interface_gone(numbers):
                each.close()
                self._listen(each)
            elif each.problem:
                self._listen(each)

    def _listen(self, listener: AddressListener) -> None:
        before = listener.problem
        try:
            listener.open_socket()
        except InvalidSettings:
            if listener.problem != before:
                log.warning("%s; it is waited for", listener.problem)
            return
        listener.start(self._new_listener)
        log.info("guests are answered on %s", listener.address)

    def _address_blocked(self, host: str) -> None:
        self._endpoint.counters.blocked += 1
        now_s = self._endpoint.monotonic()
        if now_s >= self._log_blocked_from_s:
            self._log_blocked_from_s = now_s + LOG_BLOCKED_EVERY_S
            log.warning(
                "%s opens far more connections than its share and is kept out for %g s at a time", host, BLOCKED_S
            )

    def _stop(self, within_s: float) -> None:
        endpoint, loop = self._endpoint, self._loop

        def drop_all() -> None:
            for connection in list(endpoint.connections):
                connection.drop()
            loop.stop()

        def stop_when_empty() -> None:
            if not endpoint.connections:
                loop.stop()

        # The deadline comes first, so that code that sees a closed socket can rely on it.
        loop.call_later(within_s, drop_all)
        endpoint.stopping = True
        for each in self._listeners:
            each.close()
        for connection in list(endpoint.connections):
            connection.stop()
        loop.repeat(STOP_CHECK_EVERY_S, stop_when_empty)
        stop_when_empty()
