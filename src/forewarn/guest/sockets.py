"""Connections with one deadline for everything: the resolution of the name, every address tried, every byte sent and received.

A socket's own time-out begins anew with each byte, and resolving a name has none at all: a slow peer would hold up the agent
beyond a step's time. After the deadline only a resolution may go on in the background, without effect.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any, List, Optional, Tuple

from forewarn.guest.system import system

MAX_ANSWER_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class Deadline:
    """A moment so many real seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._at_s = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds left; raise socket.timeout when none are."""
        left_s = self._at_s - time.monotonic()
        if left_s <= 0:
            raise socket.timeout("timed out")
        return left_s


def connect(host: str, port: int, deadline: Deadline, source: Optional[Tuple[str, int]] = None) -> socket.socket:
    """Return a connection to the first of the host's addresses that accepts one; raise OSError or socket.timeout."""
    last_error: OSError = OSError(f"{host} has no address")
    addresses = _resolve(host, port, deadline)
    for number, (family, address) in enumerate(addresses):
        # A silent address leaves the others their part of the time.
        part = Deadline(deadline.left_s() / (len(addresses) - number))
        try:
            return _connect_to(family, address, part, source)
        except OSError as error:
            last_error = error
    raise last_error


def _resolve(host: str, port: int, deadline: Deadline) -> List[Tuple[int, Any]]:
    # For a text Python loads the Unicode tables of international names, even if the name has only ASCII.
    name = host.encode("ascii") if host.isascii() else host
    addresses: List[Tuple[int, Any]] = []
    failures: List[OSError] = []

    def resolve() -> None:
        try:
            addresses.extend((each[0], each[4]) for each in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failures.append(OSError(f"{host} cannot be looked up: {error}"))

    thread = threading.Thread(target=resolve, daemon=True)
    with system.no_signals_for_new_threads():
        thread.start()
    with suppress(socket.timeout):  # the start of the thread may have taken the rest of the time
        thread.join(deadline.left_s())
    if failures:
        raise failures[0]
    if not addresses:
        raise socket.timeout(f"{host} could not be looked up in time")
    return addresses


def _connect_to(
    family: int, address: Any, deadline: Deadline, source: Optional[Tuple[str, int]] = None
) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(deadline.left_s())
        if source is not None:
            connection.bind(source)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def ask(address: str, line: str, deadline: Deadline, *, max_bytes: int = MAX_ANSWER_BYTES) -> str:
    """Send one line to `/path/of/a.socket` or `host:port` and return everything it sends until it closes."""
    with _open(address, deadline) as connection:
        connection.settimeout(deadline.left_s())
        connection.sendall(line.encode() + b"\n")
        received = b""
        while True:
            connection.settimeout(deadline.left_s())
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                return received.decode("utf-8", "replace")
            received += chunk
            if len(received) > max_bytes:
                raise OSError(f"its answer is longer than {max_bytes} bytes")


def connect_to_file(path: str, deadline: Deadline) -> socket.socket:
    """Return a connection to a socket file; raise OSError where the system has none."""
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("this system has no socket files for Python")
    return _connect_to(socket.AF_UNIX, path, deadline)


def _open(address: str, deadline: Deadline) -> socket.socket:
    if address.startswith("/"):
        return connect_to_file(address, deadline)
    host, _, port = address.rpartition(":")
    return connect(host.strip("[]"), int(port), deadline)
