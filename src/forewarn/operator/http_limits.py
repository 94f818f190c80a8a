"""What the operator listener takes from strangers: so many connections, and a head that is small and comes in time.

uvicorn answers whoever is too much with 503 and closes what is idle; it waits for ever for the rest of a head. Connections over
the limit are closed as they are accepted, before TLS: the descriptors that guests need are not theirs to take. And it ends when
it is told to.
"""

import asyncio
import resource
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_REQUESTS = 500
# A few more than are answered, so that most who are too much are told so.
MAX_CONNECTIONS = MAX_REQUESTS + 20
# Of the descriptors this process may have: one in so many.
SHARE = 8
HEAD_WITHIN_S = 30.0
MAX_HEAD_BYTES = 65_536
LOOK_EVERY_S = 0.1


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


class GateServer(uvicorn.Server):
    """uvicorn looks ten times a second whether it should end, and then waits as long for whoever may be left: a test starts
    and ends a service in less."""

    _loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        self._told, self._loop = asyncio.Event(), asyncio.get_running_loop()
        looks = 0
        while not await self.on_tick(looks):
            looks += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
