"""What the operator listener takes from strangers: so many connections, and a head that is small and comes in time.

uvicorn answers whoever is too much with 503 and closes what is idle; it waits for ever for the rest of a head. Connections over
the limit are closed as they are accepted, before TLS: the descriptors that guests need are not theirs to take.
"""

import asyncio
import resource
import socket
from typing import Any
from weakref import WeakSet

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_REQUESTS = 500
# A few more than are answered, so that most who are too much are told so.
MAX_CONNECTIONS = MAX_REQUESTS + 20
# Of the descriptors this process may have: one in so many.
SHARE = 8
HEAD_WITHIN_S = 30.0
MAX_HEAD_BYTES = 65_536


class GateSocket(socket.socket):
    """A listening socket that keeps count of what it accepted."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._accepted: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, peer = super().accept()
        most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE)
        if sum(each.fileno() >= 0 for each in self._accepted) >= most:
            connection.close()
            raise ConnectionAbortedError  # which the loop takes for a peer that went away
        self._accepted.add(connection)
        return connection, peer


class GateProtocol(HttpToolsProtocol):
    """Closes a connection whose next head is too large, or not complete in time."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_body = _went_on = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._went_on = False
        super().data_received(data)
        self._head_bytes = 0 if self._in_body or self._went_on else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request is at most {MAX_HEAD_BYTES} bytes.")
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._forget_deadline()
        self._in_body = self._went_on = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body, self._went_on = False, True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
