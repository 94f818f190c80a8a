"""The guests' sockets: accepted, read, written and closed with as few system calls as possible.

A guest that connects for every poll costs accept, receive, send, watch, receive, forget and close; what it has already sent is
answered before the socket is watched for more.
"""

import errno
import logging
import select
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from forewarn.endpoint.flood_filter import FloodFilter
from forewarn.endpoint.loop import EDGE, ENDED, IN, OUT, Loop

RECEIVE_BYTES = 8 * 1024
MAX_ACCEPTED = 32
ACCEPT_AGAIN_S = 1.0
DONT_WAIT = socket.MSG_DONTWAIT
NO_LINGER = struct.pack("ii", 1, 0)
READING = IN | ENDED
BROKEN = select.EPOLLHUP | select.EPOLLERR
# Errors of a system that lacks resources now and may have them again soon.
SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

log = logging.getLogger("forewarn.guest")


class Transport(Protocol):
    """The socket of a connection. `close` and `write_eof` wait until all is sent; `abort` and `reset` do not."""

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
    """Handles what happens on a socket."""

    @property
    def over_share(self) -> bool:
        """Whether the connection may not stay because its caller already has its share of connections."""

    def connection_made(self, transport: Transport, /) -> bool:
        """Return whether the connection may stay."""

    def data_received(self, data: bytes, /) -> None: ...

    def eof_received(self) -> bool:
        """Return whether the guest still gets a response."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self) -> None: ...


class GuestSocket:
    """One socket. It keeps what the guest does not take at once; until that is taken, its handler should write no more."""

    __slots__ = ("_handler", "_interest", "_loop", "_socket", "_unsent", "_watched", "_when_sent", "host")

    def __init__(self, loop: Loop, accepted: "socket.SocketType", host: str, handler: SocketHandler) -> None:
        self._loop = loop
        self._socket = accepted
        self.host = host
        self._handler = handler
        self._interest = READING | EDGE  # edge-triggered: the kernel need not check it again after each response
        self._watched = False
        self._unsent = b""
        self._when_sent: Callable[[], None] | None = None  # how to end the connection once all is sent

    @property
    def local_host(self) -> str:
        """The address that the guest connected to."""
        return str(self._socket.getsockname()[0])

    def start(self) -> None:
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
                data = self._socket.recv(RECEIVE_BYTES, DONT_WAIT)
            except BlockingIOError:
                return
            except OSError:
                self.abort()
                return
            if data:
                self._handler.data_received(data)
                if event != IN or len(data) == RECEIVE_BYTES:
                    self._watch_again()
            elif self._handler.eof_received():
                self._watch(self._interest & ~READING)
            else:
                self.close()
        except Exception:
            log.exception("a guest's connection is closed: answering it failed")
            self.abort()

    def _watch_again(self) -> None:
        """Have the loop report the socket once more, after other sockets: there may be more to read, or the end."""
        if self._watched and (fd := self._socket.fileno()) >= 0:
            self._loop.change(fd, self._interest)

    def _still_readable(self, event: int) -> bool:
        if event & OUT:
            self._flush()
        if self._interest & IN:
            return bool(event & ~OUT)
        if event & BROKEN:
            self.abort()  # reading, which would notice the end, is paused
        return False

    def write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data, DONT_WAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.abort()
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._watch(self._interest | OUT)
            self._handler.pause_writing()

    def _flush(self) -> None:
        """Send what is kept; after the last byte, let the handler write again or end the connection."""
        try:
            sent = self._socket.send(self._unsent, DONT_WAIT)
        except BlockingIOError:
            return
        except OSError:
            self.abort()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            return
        self._watch(self._interest & ~OUT)
        if self._when_sent is not None:
            self._when_sent()
        else:
            self._handler.resume_writing()

    def write_eof(self) -> None:
        self._end(self._shut_down)

    def close(self) -> None:
        self._end(self.abort)

    def _end(self, how: Callable[[], None]) -> None:
        if self._unsent:
            self._when_sent = how
        else:
            how()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        fd = self._socket.fileno()
        if fd >= 0:
            self._loop.forget(fd)
            self._socket.close()
            self._handler.connection_lost()
            # Both refer back to this object: without them it is freed at once, and not by the garbage collector.
            del self._handler, self._when_sent

    def reset(self) -> None:
        """Close at once with a TCP reset: the guest learns that what it was sent may be lost."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.abort()

    def pause_reading(self) -> None:
        self._watch(self._interest & ~READING)

    def resume_reading(self) -> None:
        self._watch(self._interest | READING)

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._watch_again()


class Listener:
    """A listening socket, to which guests connect."""

    def __init__(
        self,
        loop: Loop,
        listening: socket.socket,
        new_handler: Callable[[], SocketHandler],
        on_block: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_block` is called with an address that floods the listener and is kept out for a moment."""
        self._loop = loop
        self._socket = listening
        self._family = int(listening.family)
        self._new_handler = new_handler
        self.flood_filter = FloodFilter(loop, listening, on_block)
        # Accepted sockets inherit the option, which saves a system call for each.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(listening.fileno(), self)

    @property
    def open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        if self.open:
            self._loop.forget(self._socket.fileno())
            self._socket.close()

    def ready(self, _: int) -> None:
        """Accept later in this turn: a new socket must not get the number of a socket for which events of this turn are left."""
        self._loop.call_soon(self._accept)

    def _accept(self) -> None:
        if not self.open:
            return
        loop, new_handler = self._loop, self._new_handler
        for _ in range(MAX_ACCEPTED):
            try:
                # The same as `accept`, without the second socket object.
                fd, peer = self._socket._accept()  # type: ignore[attr-defined] # noqa: SLF001
            except BlockingIOError:
                return
            except OSError as error:
                self._accept_failed(error)
                return
            accepted = socket.SocketType(self._family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fd)
            handler = new_handler()
            guest_socket = GuestSocket(loop, accepted, peer[0], handler)
            if handler.connection_made(guest_socket):
                guest_socket.start()
            else:
                guest_socket.abort()
                if handler.over_share:
                    self.flood_filter.count(peer[0])

    def _accept_failed(self, error: OSError) -> None:
        """Stop accepting for a second if resources are scarce. Any other error concerns one guest, which has left."""
        if error.errno not in SCARCE:
            log.warning("cannot accept a guest's connection: %s", error.strerror)
            return
        log.error("cannot accept guests' connections: %s; trying again in %g s", error.strerror, ACCEPT_AGAIN_S)
        self._loop.change(self._socket.fileno(), 0)
        self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again)

    def _accept_again(self) -> None:
        if self.open:
            self._loop.change(self._socket.fileno(), IN)
