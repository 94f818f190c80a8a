"""Sends the messages of hooks over HTTP. It connects only to addresses that it has checked, and follows no redirect.

The name is resolved once, every address is checked, and the connection goes to one of these very addresses: a name that
resolves to another address a moment later leads nowhere else.

HTTP and TLS are imported for the first message: most emulators send none. Row of the bench: `forewarn emulate`.
"""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from forewarn import __version__
from forewarn.core.hooks import AllowedTargets
from forewarn.service.hook_sender import DeliveryFailed, Reply

if TYPE_CHECKING:
    import ssl

MAX_RESPONSE_BYTES = 4_096
MAX_ERROR_CHARS = 200
PORTS = {"http": 80, "https": 443}

Resolve = Callable[[str, int], list[str]]


def resolve_name(host: str, port: int) -> list[str]:
    """Return the addresses of a host, each once."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class HttpTransport:
    def __init__(
        self,
        targets: AllowedTargets,
        timeout_s: float,
        *,
        resolve: Resolve = resolve_name,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self._targets = targets
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._tls = tls

    def why_not(self, url: str) -> str:
        parts = urlsplit(url)
        return self._targets.at(_port(parts)).why_not_host(parts.scheme, parts.hostname or "")

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send one request within the time limit and read the beginning of the response."""
        import ssl
        from http.client import HTTPException

        parts = urlsplit(url)
        deadline_s = time.monotonic() + self._timeout_s
        try:
            addresses = self._checked_addresses(parts)
            with self._connected(parts, addresses, deadline_s) as connection:
                # A receiver that sends a byte now and then is cut off, too.
                cut = threading.Timer(max(0.0, deadline_s - time.monotonic()), _shut_down, (connection,))
                cut.daemon = True
                cut.start()
                try:
                    if isinstance(connection, ssl.SSLSocket):
                        connection.do_handshake()
                    reply = _exchange(connection, parts, headers, body)
                finally:
                    cut.cancel()
            if time.monotonic() >= deadline_s:  # a response that was cut off in its head looks complete
                raise TimeoutError
            return reply
        except (OSError, ValueError, HTTPException) as error:
            if time.monotonic() >= deadline_s or isinstance(error, TimeoutError):
                raise DeliveryFailed(f"no complete response within {self._timeout_s:g} s") from None
            raise DeliveryFailed(_readable(error)) from None

    def _checked_addresses(self, parts: SplitResult) -> list[str]:
        host = parts.hostname or ""
        if why_not := self.why_not(parts.geturl()):
            raise DeliveryFailed(why_not)
        addresses, targets = self._resolve(host, _port(parts)), self._targets.at(_port(parts))
        for address in addresses:
            if why_not := targets.why_not_address(host, ipaddress.ip_address(address.partition("%")[0])):
                raise DeliveryFailed(why_not)
        return addresses

    def _connected(self, parts: SplitResult, addresses: list[str], deadline_s: float) -> socket.socket:
        """Connect to the first of the addresses that accepts."""
        import ssl

        error: OSError = OSError("the name has no address")
        for address in addresses:
            left_s = max(0.001, deadline_s - time.monotonic())
            try:
                connection = socket.create_connection((address, _port(parts)), timeout=left_s)
            except OSError as failure:
                error = failure
                continue
            if parts.scheme == "http":
                return connection
            if self._tls is None:  # made when it is first needed: it reads every certificate that this machine trusts
                self._tls = ssl.create_default_context()
            try:
                # The handshake comes later, when the time limit is set.
                return self._tls.wrap_socket(connection, server_hostname=parts.hostname, do_handshake_on_connect=False)
            except BaseException:
                connection.close()
                raise
        raise error


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]


def _exchange(connection: socket.socket, parts: SplitResult, headers: Mapping[str, str], body: bytes) -> Reply:
    from http.client import HTTPConnection

    client = HTTPConnection(parts.hostname or "")
    client.sock = connection
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    client.putrequest("POST", target, skip_host=True, skip_accept_encoding=True)
    sent = {"Host": parts.netloc, "User-Agent": f"forewarn/{__version__}", "Content-Length": str(len(body)), **headers}
    for name, value in {**sent, "Connection": "close"}.items():
        client.putheader(name, value)
    client.endheaders(body)
    response = client.getresponse()
    if 200 <= response.status < 300:
        return Reply(response.status)
    if 300 <= response.status < 400:
        return Reply(response.status, "redirects are not followed, use the final URL")
    text = response.read(MAX_RESPONSE_BYTES).decode("utf-8", "replace")
    wait_s = retry_after_s(response.getheader("retry-after", ""), response.getheader("date", ""))
    return Reply(response.status, "".join(c if c.isprintable() else " " for c in text[:MAX_ERROR_CHARS]), wait_s)


def retry_after_s(text: str, now: str) -> float:
    """Return how long a receiver asks to wait, in seconds or until a date; 0 if it does not say it in a way we understand.

    `now` is the receiver's own time, the `Date` of its response.
    """
    from email.utils import parsedate_to_datetime

    if text.isascii() and text.isdecimal() and len(text) < 9:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - parsedate_to_datetime(now).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _readable(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"the receiver cannot be reached: {text}"[:MAX_ERROR_CHARS]
