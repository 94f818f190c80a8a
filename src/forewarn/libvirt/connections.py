"""Connections to the libvirt of hosts: one for each URI, opened when it is first needed and again after it broke.

A call of libvirt may hang for as long as its host does. So a connection is opened in a thread of its own and given up after
`OPEN_WITHIN_S`, and an open connection is closed when its host does not answer for `SILENT_AFTER_S`: then pending calls fail.

An attempt to open one may even hang for ever, if the host loses its power meanwhile. So another one begins after
`OPEN_AGAIN_AFTER_S`, and each further one after twice as long, so that a host which hangs for a day costs few threads.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import libvirt

OPEN_WITHIN_S = 10.0
OPEN_AGAIN_AFTER_S = 60.0
KEEPALIVE_EVERY_S = 3
KEEPALIVE_TRIES = 3
SILENT_AFTER_S = KEEPALIVE_EVERY_S * (KEEPALIVE_TRIES + 1)

# libvirt-python has no types.
Connection = Any
Domain = Any
# What every call of libvirt may raise.
LibvirtError: type[Exception] = libvirt.libvirtError

_starting_event_loop = threading.Lock()


class HostUnreachable(Exception):
    """libvirt of a host cannot be reached. The message says why and what to do."""


class HostConnections:
    """All methods may be called from any thread. `get` may wait for up to OPEN_WITHIN_S."""

    def __init__(self, *, open_within_s: float = OPEN_WITHIN_S, open_again_after_s: float = OPEN_AGAIN_AFTER_S) -> None:
        self._open_within_s = open_within_s
        self._open_again_after_s = open_again_after_s
        self._lock = threading.Lock()
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, _Opening] = {}
        self._listeners: list[Callable[[str, Connection], None]] = []

    def on_open(self, listener: Callable[[str, Connection], None]) -> None:
        """Call `listener(uri, connection)` for each connection that is opened from now on, to register callbacks of libvirt."""
        self._listeners.append(listener)

    def get(self, uri: str) -> Connection:
        """Return an open connection, or raise HostUnreachable."""
        with self._lock:
            connection = self._open.get(uri)
            if connection is not None and _is_alive(connection):
                return connection
            self._open.pop(uri, None)
            # Other threads wait for the same attempt: a host that hangs costs one thread.
            opening = self._opening.get(uri)
            if opening is None or opening.hangs():
                patience_s = self._open_again_after_s if opening is None else 2 * opening.patience_s
                opening = self._opening[uri] = _Opening(patience_s)
                threading.Thread(target=self._attempt, args=(uri, opening), daemon=True, name=f"open {uri}").start()
        if not opening.ended.wait(self._open_within_s):
            raise HostUnreachable(
                f"libvirt at {uri} does not answer within {self._open_within_s:g} s: check the host and its libvirtd"
            )
        if opening.error is not None:
            raise opening.error
        return opening.connection

    def get_if_alive(self, uri: str) -> Connection | None:
        """Return the connection to this URI if it is open now; never wait."""
        with self._lock:
            connection = self._open.get(uri)
        return connection if connection is not None and _is_alive(connection) else None

    def retire(self, uri: str, connection: Connection) -> None:
        """Let the next caller open another connection; the calls that use this one go on."""
        with self._lock:
            if self._open.get(uri) is connection:
                del self._open[uri]

    def drop(self, uri: str) -> None:
        """Close the connection to this URI, if there is one: pending calls fail."""
        with self._lock:
            connection = self._open.pop(uri, None)
        if connection is not None:
            _close(connection)

    def close(self) -> None:
        with self._lock:
            connections = list(self._open.values())
            self._open.clear()
        for connection in connections:
            _close(connection)

    def _attempt(self, uri: str, opening: "_Opening") -> None:
        try:
            connection = _open(uri)
            for listener in self._listeners:
                listener(uri, connection)
            opening.connection = connection
        except libvirt.libvirtError as error:
            opening.error = HostUnreachable(
                f"libvirt at {uri} cannot be reached: {error}. Check that libvirtd runs there, and that forewarn may connect"
            )
        with self._lock:
            if opening.error is None:
                self._open.setdefault(uri, opening.connection)
            if self._opening.get(uri) is opening:
                del self._opening[uri]
        opening.ended.set()


class _Opening:
    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._begun_s = time.monotonic()
        self.ended = threading.Event()
        self.connection: Connection = None
        self.error: HostUnreachable | None = None

    def hangs(self) -> bool:
        return time.monotonic() - self._begun_s >= self.patience_s


def _open(uri: str) -> Connection:
    _run_event_loop()
    connection = libvirt.open(uri)
    try:
        connection.setKeepAlive(KEEPALIVE_EVERY_S, KEEPALIVE_TRIES)
    except libvirt.libvirtError as error:
        # A driver inside this process, like test:///default, has nothing to keep alive.
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
    return connection


def _run_event_loop() -> None:
    """Start the event loop of libvirt, once for the process: keep-alive and events of all connections need it."""
    with _starting_event_loop:  # `cache` alone lets two threads that come at once both start one
        _start_event_loop()


@cache
def _start_event_loop() -> None:
    libvirt.registerErrorHandler(lambda *_: None, None)  # it would print every error; callers get them as exceptions
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_loop, daemon=True, name="libvirt events").start()


def _loop() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def _is_alive(connection: Connection) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


def _close(connection: Connection) -> None:
    with suppress(libvirt.libvirtError):
        connection.close()
