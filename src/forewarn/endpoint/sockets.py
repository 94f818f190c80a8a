"""The guests' sockets: accepted, read, written and closed here, with as few calls of the kernel as that takes.

A guest that connects for every poll costs accept, receive, send, watch, receive, forget and close; what it has sent
already is answered before anything is set up to hear more.
"""

import errno
import logging
import select
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from forewarn.endpoint.loop import EDGE, ENDED, IN, OUT, Loop

RECEIVE_BYTES = 8 * 1024
MAX_ACCEPTED = 32
ACCEPT_AGAIN_S = 1.0
NOW = socket.MSG_DONTWAIT
NO_LINGER = struct.pack("ii", 1, 0)
HEARING = IN | ENDED
BROKEN = select.EPOLLHUP | select.EPOLLERR
# What a machine has too little of now and may have again soon.
SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

log = logging.getLogger("forewarn.guest")


class Transport(Protocol):
    """What a connection may ask of the wire it is on. The ends but `abort` wait until all is sent."""

    @property
    def host(self) -> str: ...

    def write(self, data: bytes, /) -> None: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def reset(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class SocketHandler(Protocol):
    """Whom a wire tells what happens on it."""

    def connection_made(self, transport: Transport, /) -> bool:
        """False: it may not stay."""

    def data_received(self, data: bytes, /) -> None: ...

    def eof_received(self) -> bool:
        """Whether it still gets an answer."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self) -> None: ...


class GuestSocket:
    """One socket. What the guest does not take at once is kept, and until it is taken nothing more should be written."""

    __slots__ = ("_at_the_end", "_guest", "_interest", "_loop", "_socket", "_unsent", "_watched", "host")

    def __init__(self, loop: Loop, accepted: "socket.SocketType", host: str, guest: SocketHandler) -> None:
        self._loop = loop
        self._socket = accepted
        self.host = host
        self._guest = guest
        self._interest = HEARING | EDGE  # told of news once: the kernel need not look at it again after each answer
        self._watched = False
        self._unsent = b""
        self._at_the_end: Callable[[], None] | None = None  # when all is sent

    def begin(self) -> None:
        self.ready(IN)
        fd = self._socket.fileno()
        if fd >= 0:
            self._loop.watch(fd, self, self._interest)
            self._watched = True

    def ready(self, event: int) -> None:
        try:
            if event != IN and not self._still_readable(event):
                return
            try:
                data = self._socket.recv(RECEIVE_BYTES, NOW)
            except BlockingIOError:
                return
            except OSError:
                self.abort()
                return
            if data:
                self._guest.data_received(data)
                if event != IN or len(data) == RECEIVE_BYTES:
                    self._tell_again()
            elif self._guest.eof_received():
                self._watch(self._interest & ~HEARING)
            else:
                self.close()
        except Exception:
            log.exception("a guest's connection had to be cut: answering it failed")
            self.abort()

    def _tell_again(self) -> None:
        """There may be more to read, or the end: it will be told once more, after the others had their turn."""
        if self._watched and (fd := self._socket.fileno()) >= 0:
            self._loop.change(fd, self._interest)

    def _still_readable(self, event: int) -> bool:
        if event & OUT:
            self._flush()
        if self._interest & IN:
            return bool(event & ~OUT)
        if event & BROKEN:
            self.abort()  # nobody would read that it ended
        return False

    def write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data, NOW)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.abort()
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._watch(self._interest | OUT)
            self._guest.pause_writing()

    def _flush(self) -> None:
        """Send what is kept. The guest knows that it must wait, and hears of it again when the last byte is sent."""
        try:
            sent = self._socket.send(self._unsent, NOW)
        except BlockingIOError:
            return
        except OSError:
            self.abort()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            return
        self._watch(self._interest & ~OUT)
        if self._at_the_end is not None:
            self._at_the_end()
        else:
            self._guest.resume_writing()

    def write_eof(self) -> None:
        self._end(self._shut)

    def close(self) -> None:
        self._end(self.abort)

    def _end(self, how: Callable[[], None]) -> None:
        self._at_the_end = how
        if not self._unsent:
            how()

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()

    def abort(self) -> None:
        """At once."""
        fd = self._socket.fileno()
        if fd >= 0:
            self._loop.forget(fd)
            self._socket.close()
            self._guest.connection_lost()

    def reset(self) -> None:
        """At once, and the guest is told that what it was sent may be lost."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.abort()

    def pause_reading(self) -> None:
        self._watch(self._interest & ~HEARING)

    def resume_reading(self) -> None:
        self._watch(self._interest | HEARING)

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._tell_again()


class Listener:
    """A socket that guests connect to."""

    def __init__(self, loop: Loop, listening: socket.socket, new_guest: Callable[[], SocketHandler]) -> None:
        self._loop = loop
        self._socket = listening
        self._family = int(listening.family)
        self._new_guest = new_guest
        # What is accepted inherits it: the kernel need not be asked for each connection.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(listening.fileno(), self)

    @property
    def open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        if self.open:
            self._loop.forget(self._socket.fileno())
            self._socket.close()

    def ready(self, event: int) -> None:
        """Later in this turn: the number of a socket closed in it is not given to a new one while news of the old wait."""
        del event
        self._loop.call_soon(self._accept)

    def _accept(self) -> None:
        if not self.open:
            return
        loop, new_guest = self._loop, self._new_guest
        for _ in range(MAX_ACCEPTED):
            try:
                # As `accept` does it, without wrapping what comes of it twice.
                fd, peer = self._socket._accept()  # type: ignore[attr-defined] # noqa: SLF001
            except BlockingIOError:
                return
            except OSError as error:
                self._not_let_in(error)
                return
            accepted = socket.SocketType(self._family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fd)
            guest = new_guest()
            wire = GuestSocket(loop, accepted, peer[0], guest)
            if guest.connection_made(wire):
                wire.begin()
            else:
                wire.abort()

    def _not_let_in(self, error: OSError) -> None:
        """Out of descriptors: those who wait are still there in a second. Any other error is of one guest, who is gone."""
        if error.errno not in SCARCE:
            log.warning("a guest could not be let in: %s", error.strerror)
            return
        log.error("a guest could not be let in: %s; trying again in %g s", error.strerror, ACCEPT_AGAIN_S)
        self._loop.change(self._socket.fileno(), 0)
        self._loop.call_later(ACCEPT_AGAIN_S, self._listen_again)

    def _listen_again(self) -> None:
        if self.open:
            self._loop.change(self._socket.fileno(), IN)
