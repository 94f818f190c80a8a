"""Connections with one deadline for all of it: the name's look-up, every address tried, every byte sent and received.

A socket's own time-out begins anew with each byte, and a look-up has none at all: whoever hangs or trickles would hold up the
agent beyond a step's time. Nothing here goes on in the background after the deadline but the look-up, which has no effect.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, List, Optional, Tuple

MAX_ANSWER_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class Deadline:
    """So many seconds from now, for real."""

    def __init__(self, seconds: float) -> None:
        self._at_s = time.monotonic() + seconds

    def left_s(self) -> float:
        """More than nothing, or socket.timeout."""
        left_s = self._at_s - time.monotonic()
        if left_s <= 0:
            raise socket.timeout("timed out")
        return left_s


def connect(host: str, port: int, deadline: Deadline, source: Optional[Tuple[str, int]] = None) -> socket.socket:
    """A connection to the first of the host's addresses that takes one; OSError, socket.timeout among them."""
    failed: OSError = OSError(f"{host} has no address")
    addresses = _looked_up(host, port, deadline)
    for number, (family, address) in enumerate(addresses):
        # A silent one leaves the others their part of the time.
        part = Deadline(deadline.left_s() / (len(addresses) - number))
        try:
            return _connected(family, address, part, source)
        except OSError as error:
            failed = error
    raise failed


def _looked_up(host: str, port: int, deadline: Deadline) -> List[Tuple[int, Any]]:
    found: List[Tuple[int, Any]] = []
    failed: List[OSError] = []

    def look() -> None:
        try:
            found.extend((each[0], each[4]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(OSError(f"{host} cannot be looked up: {error}"))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(deadline.left_s())
    if failed:
        raise failed[0]
    if not found:
        raise socket.timeout(f"{host} could not be looked up in time")
    return found


def _connected(
    family: int, address: Any, deadline: Deadline, source: Optional[Tuple[str, int]] = None
) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(deadline.left_s())
        if source is not None:
            made.bind(source)
        made.connect(address)
    except OSError:
        made.close()
        raise
    return made


def ask(address: str, line: str, deadline: Deadline) -> str:
    """One line to `/path/of/a.socket` or `host:port`; everything that comes back until the other side closes."""
    with _reached(address, deadline) as talking:
        talking.settimeout(deadline.left_s())
        talking.sendall(line.encode() + b"\n")
        whole = b""
        while True:
            talking.settimeout(deadline.left_s())
            chunk = talking.recv(_CHUNK_BYTES)
            if not chunk:
                return whole.decode("utf-8", "replace")
            whole += chunk
            if len(whole) > MAX_ANSWER_BYTES:
                raise OSError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")


def _reached(address: str, deadline: Deadline) -> socket.socket:
    if address.startswith("/"):
        return _connected(socket.AF_UNIX, address, deadline)
    host, _, port = address.rpartition(":")
    return connect(host.strip("[]"), int(port), deadline)
