"""One request, one answer, over plain http.client: named time-outs, a kept connection, no proxy. The SDK's test seam.

Whatever goes wrong becomes one of three errors: Unreachable (no connection), NoAnswer (too slow), CutShort (broke off).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import Iterator, Mapping, NamedTuple, Optional
from urllib.parse import urlsplit

from forewarn.guest.clock import Time
from forewarn.guest.errors import CutShort, NoAnswer, Unreachable
from forewarn.guest.sockets import Deadline, connect

CONNECT_TIMEOUT_S = 5.0
MAX_BODY_BYTES = 1024 * 1024


class Answer(NamedTuple):
    """`headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """Speaks to one endpoint at a time over one connection; `http_proxy` and its like are never looked at."""

    def __init__(self, *, source_address: str = "", time: Optional[Time] = None, ca_file: str = "") -> None:
        self._ca_file = ca_file  # whom to trust for https, where that is not the system's choice
        self._source = (source_address, 0) if source_address else None
        self._time = time or Time()
        self._endpoint = ""
        self._connection: Optional[http.client.HTTPConnection] = None

    def request(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
    ) -> Answer:
        """The whole answer within `timeout_s`, or one of the three errors.

        A kept connection may have been closed by the other side meanwhile: that says nothing, so the request goes out
        again, once, on a new one. Every request of the protocol may be repeated.
        """
        deadline_s = self._time.monotonic() + timeout_s
        if self._connection is not None and endpoint == self._endpoint:
            try:
                return self._ask(method, path, headers, body, deadline_s)
            except CutShort:
                pass
        self.close()
        self._connect(endpoint, timeout_s)
        return self._ask(method, path, headers, body, deadline_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, endpoint: str, timeout_s: float) -> None:
        parts = urlsplit(endpoint)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port)
        deadline = Deadline(min(CONNECT_TIMEOUT_S, timeout_s))
        try:
            connection.sock = connect(connection.host, connection.port, deadline, self._source)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                connection.sock = _wrapped(connection.sock, connection.host, deadline, self._ca_file)
        except OSError as error:
            connection.close()
            raise Unreachable(f"no connection to {endpoint}: {error.strerror or error}") from None
        _notice_death(connection.sock)
        self._endpoint, self._connection = endpoint, connection

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes, deadline_s: float) -> Answer:
        connection = self._connection
        if connection is None or connection.sock is None:
            raise CutShort("the connection is gone")
        try:
            with _cut_after(self._left_s(deadline_s), connection.sock):
                connection.sock.settimeout(self._left_s(deadline_s))
                connection.request(method, path, body=body or None, headers=dict(headers))
                response = connection.getresponse()
                whole = _read(response)
        except socket.timeout:
            self.close()
            raise NoAnswer("no answer in time") from None
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            raise CutShort(f"the answer broke off: {type(error).__name__}") from None
        except BaseException:  # a signal in the middle: half an answer must not be read as the next one
            self.close()
            raise
        answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, whole)
        if response.will_close:
            self.close()
        return answer

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - self._time.monotonic()
        if left_s <= 0:
            raise socket.timeout()
        return left_s


def _wrapped(connected: socket.socket, host: str, deadline: Deadline, ca_file: str) -> socket.socket:
    import ssl

    context = ssl.create_default_context(cafile=ca_file or None)
    context.set_alpn_protocols(["http/1.1"])
    connected.settimeout(deadline.left_s())  # of the whole handshake
    return context.wrap_socket(connected, server_hostname=host)


@contextlib.contextmanager
def _cut_after(seconds: float, connected: socket.socket) -> Iterator[None]:
    """Shut the connection then: a socket's own time-out begins anew with each byte, so a trickle would outlast it."""
    over = threading.Event()

    def cut() -> None:
        over.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (http.client.HTTPException, OSError, ValueError):
        if not over.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
    if over.is_set():
        raise socket.timeout()


def _read(response: http.client.HTTPResponse) -> bytes:
    whole = response.read(MAX_BODY_BYTES + 1)
    if len(whole) > MAX_BODY_BYTES:
        raise CutShort(f"the answer is longer than {MAX_BODY_BYTES} bytes")
    if response.length:  # read(n) hands over what there is and does not complain
        raise http.client.IncompleteRead(whole, response.length)
    return whole


def _notice_death(connected: socket.socket) -> None:
    """An endpoint that vanished during a long poll is noticed by the kernel within a quarter of a minute."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def can_connect(host: str, port: int, timeout_s: float) -> bool:
    """Whether something accepts a connection there."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True
