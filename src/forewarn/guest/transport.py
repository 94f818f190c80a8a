"""One HTTP request and its response over http.client: named time-outs, a kept connection, no proxy. The SDK's test seam.

Every failure becomes one of three errors: Unreachable (no connection), NoAnswer (too slow), CutShort (broke off).
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
from typing import Iterator, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from forewarn.guest.clock import Time
from forewarn.guest.errors import CutShort, NoAnswer, PollInterrupted, Unreachable
from forewarn.guest.sockets import Deadline, connect, connect_to_file

CONNECT_TIMEOUT_S = 5.0
# An endpoint that begins with this is the path of a socket file.
UNIX = "unix:"
# A document of 2,500 events with long descriptions has 3.4 MB.
MAX_BODY_BYTES = 8 * 1024 * 1024
# One wait ends all interruptions up to then.
MAX_INTERRUPTS = 4_096


class Response(NamedTuple):
    """An HTTP response; `headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """Sends requests to one endpoint at a time over one connection; ignores `http_proxy` and its like."""

    def __init__(
        self,
        *,
        source_address: str = "",
        time: Optional[Time] = None,
        ca_file: str = "",
        interruptible: bool = False,
    ) -> None:
        self._ca_file = ca_file  # the certificates to trust for https; "": those of the system
        self._source = (source_address, 0) if source_address else None
        self._time = time or Time()
        self._endpoint = ""
        self._connection: Optional[http.client.HTTPConnection] = None
        # What is sent on the second socket ends a long poll, which waits for the first one too.
        self._interrupts: Optional[Tuple[socket.socket, socket.socket]] = None
        if interruptible:
            self._interrupts = socket.socketpair()
            self._interrupts[1].setblocking(False)

    def interrupt(self) -> None:
        """End the long poll of another thread with PollInterrupted, or its next one. Without `interruptible` nothing happens."""
        if self._interrupts is not None:
            with contextlib.suppress(OSError):  # it was interrupted very often, and is so already
                self._interrupts[1].send(b"!")

    def request(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
    ) -> Response:
        """Return the whole response within `timeout_s`, or raise one of the three errors.

        The other side may have closed a kept connection meanwhile. Then the request is sent once more on a new one. Every request
        of the protocol may be repeated.
        """
        deadline_s = self._time.monotonic() + timeout_s
        if self._connection is not None and endpoint == self._endpoint:
            try:
                return self._exchange(method, path, headers, body, deadline_s)
            except CutShort:
                pass
        self._disconnect()
        self._connect(endpoint, timeout_s)
        return self._exchange(method, path, headers, body, deadline_s)

    def close(self) -> None:
        """End the connection; an interruptible transport cannot be used any more."""
        self._disconnect()
        for each in self._interrupts or ():
            each.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, endpoint: str, timeout_s: float) -> None:
        parts = urlsplit(endpoint)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "localhost", parts.port)
        deadline = Deadline(min(CONNECT_TIMEOUT_S, timeout_s))
        try:
            if endpoint.startswith(UNIX):
                connection.sock = connect_to_file(endpoint[len(UNIX) :], deadline)
            else:
                connection.sock = connect(connection.host, connection.port, deadline, self._source)
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _enable_keepalive(connection.sock)
            if secure:
                connection.sock = _wrap_in_tls(connection.sock, connection.host, deadline, self._ca_file)
        except OSError as error:
            connection.close()
            raise Unreachable(f"no connection to {endpoint}: {error.strerror or error}") from None
        self._endpoint, self._connection = endpoint, connection

    def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes, deadline_s: float) -> Response:
        connection = self._connection
        if connection is None or connection.sock is None:
            raise CutShort("the connection is gone")
        try:
            with _shut_after(self._left_s(deadline_s), connection.sock):
                connection.sock.settimeout(self._left_s(deadline_s))
                connection.request(method, path, body=body or None, headers=dict(headers))
                if "Prefer" in headers:
                    self._wait_for_answer(connection.sock, deadline_s)
                with connection.getresponse() as response:
                    body_bytes = _read(response)
        except socket.timeout:
            self._disconnect()
            raise NoAnswer("no answer in time") from None
        except (http.client.HTTPException, OSError, ValueError) as error:
            self._disconnect()
            raise CutShort(f"the answer broke off: {type(error).__name__}") from None
        except BaseException:  # a signal in the middle: the rest of this response must not be read as the next one
            self._disconnect()
            raise
        received = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close:
            received["connection"] = "close"  # as HTTP/1.0 means without saying so
            self._disconnect()
        return Response(response.status, received, body_bytes)

    def _wait_for_answer(self, connection: socket.socket, deadline_s: float) -> None:
        """Wait until a response begins; raise PollInterrupted if another thread ends the wait."""
        if self._interrupts is None:
            return
        interrupted = self._interrupts[0]
        ready, _, _ = select.select([connection, interrupted], [], [], self._left_s(deadline_s))
        if ready == [interrupted]:
            interrupted.recv(MAX_INTERRUPTS)
            raise PollInterrupted("another thread ended the long poll")

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - self._time.monotonic()
        if left_s <= 0:
            raise socket.timeout()
        return left_s


def _wrap_in_tls(connection: socket.socket, host: str, deadline: Deadline, ca_file: str) -> socket.socket:
    import ssl

    context = ssl.create_default_context(cafile=ca_file or None)
    context.set_alpn_protocols(["http/1.1"])
    connection.settimeout(deadline.left_s())  # for the whole handshake
    return context.wrap_socket(connection, server_hostname=host)


@contextlib.contextmanager
def _shut_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Shut the connection after so long: a socket's own time-out begins anew with each byte, so a slow peer would outlast it."""
    expired = threading.Event()

    def shut() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (http.client.HTTPException, OSError, ValueError):
        if not expired.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
    if expired.is_set():
        raise socket.timeout()


def _read(response: http.client.HTTPResponse) -> bytes:
    body_bytes = response.read(MAX_BODY_BYTES + 1)
    if len(body_bytes) > MAX_BODY_BYTES:
        raise CutShort(f"the answer is longer than {MAX_BODY_BYTES} bytes")
    if response.length:  # read(n) returns what there is without an error
        raise http.client.IncompleteRead(body_bytes, response.length)
    return body_bytes


def _enable_keepalive(connection: socket.socket) -> None:
    """Let the kernel notice within 15 s that an endpoint vanished during a long poll."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def request_once(
    method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout_s: float, ca_file: str = ""
) -> Response:
    """Send one request to a URL on its own connection."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    transport = Transport(ca_file=ca_file)
    try:
        endpoint = f"{parts.scheme}://{parts.netloc}"
        return transport.request(method, endpoint, path, headers=headers, body=body, timeout_s=timeout_s)
    finally:
        transport.close()


def can_connect(host: str, port: int, timeout_s: float) -> bool:
    """Return whether something accepts a connection there."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True
