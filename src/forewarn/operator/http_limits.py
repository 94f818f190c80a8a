"""Limits of the operator listener: on connections, and on the size and time of a request's head.

uvicorn answers 503 when there are too many requests and closes idle connections, but it waits for ever for the rest of a head.
Connections over the limit are closed as they are accepted, before TLS, so that guests always find free descriptors.
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
# A few more than requests, so that most callers over the limit get a 503.
MAX_CONNECTIONS = MAX_REQUESTS + 20
# Operators' connections use at most this part of the process's descriptors.
DESCRIPTOR_SHARE = 8
HEAD_WITHIN_S = 30.0
MAX_HEAD_BYTES = 65_536
TICK_EVERY_S = 0.1


class LimitedSocket(socket.socket):
    """A listening socket that closes new connections while too many are open."""

    max_connections = MAX_CONNECTIONS

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._accepted: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, peer = super().accept()
        most = min(self.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTOR_SHARE)
        if sum(each.fileno() >= 0 for each in self._accepted) >= most:
            connection.close()
            raise ConnectionAbortedError  # the event loop takes this for a peer that went away
        self._accepted.add(connection)
        return connection, peer


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose next head is too large, or not complete in time."""

    head_within_s = HEAD_WITHIN_S
    max_head_bytes = MAX_HEAD_BYTES
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_body = _parsed_more = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._parsed_more = False
        super().data_received(data)
        self._head_bytes = 0 if self._in_body or self._parsed_more else self._head_bytes + len(data)
        if self._head_bytes > self.max_head_bytes and not self.transport.is_closing():
            self.send_400_response(f"The head of a request is at most {self.max_head_bytes} bytes.")
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        self._in_body = self._parsed_more = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body, self._parsed_more = False, True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_within_s, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class LimitedServer(uvicorn.Server):
    """Ends as soon as `end` is called, and waits for nothing where no connection is open.

    uvicorn's own server checks ten times a second whether it should end, and then sleeps once more.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """End the server. May be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._ending.set)

    async def main_loop(self) -> None:
        self._ending, self._loop = asyncio.Event(), asyncio.get_running_loop()
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_EVERY_S):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
