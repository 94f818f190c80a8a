"""Limits of the operator listener on requests: the size and time of a head, and how many are answered at once.

uvicorn waits for ever for the rest of a head, takes a head of any size, and has no limit per caller. `open_connections` decides
which connections may stay; this module tells it what happens on each, and makes uvicorn obey.
"""

import asyncio
import json
import socket
from contextlib import suppress
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forewarn.operator.open_connections import IDLE_WHILE_WAITING, OpenConnections, Peer

MAX_HEAD_BYTES = 65_536
END_OF_HEAD = b"\r\n\r\n"
TICK_EVERY_S = 0.1
# Where no connection is open, none can be late. Row of the bench: 10,000 polling once a second.
IDLE_TICK_EVERY_S = 1.0
CLOSE_WITHIN_S = 0.1
# The event loop makes the transport of an accepted connection in its next turn, and reports it to uvicorn in the one after.
TURNS_TO_ACCEPT = 3
HEALTH_PATHS = frozenset({b"/healthz", b"/readyz", b"/metrics"})
TOO_LARGE = f"The head of a request is at most {MAX_HEAD_BYTES} bytes."


async def overloaded(_: Scope, __: Receive, send: Send) -> None:
    """Answer a request beyond the limits."""
    message = "too many requests are under way: try again soon"
    body = json.dumps({"error": {"code": "overloaded", "message": message}}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "retry-after": "1"}
    headers["connection"] = "close"
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 503, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


class LimitedProtocol(HttpToolsProtocol):
    """Reports the requests of a connection, and refuses a head that is too large."""

    _peer: Peer = ("", 0)
    _head_bytes = _field_bytes = 0
    _tail = b""
    _in_body = _parsed_more = False

    def __init__(self, open_connections: OpenConnections, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._open_connections = open_connections
        self._app = self.app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = tuple(transport.get_extra_info("peername")[:2])

    def data_received(self, data: bytes) -> None:
        if not self._in_body and self._ends_too_late(data):
            self.send_400_response(TOO_LARGE)
            return
        self._parsed_more = False
        super().data_received(data)
        if self._in_body or self._parsed_more:
            self._head_bytes, self._tail = 0, b""
        else:
            self._head_bytes += len(data)
            self._tail = (self._tail + data)[-len(END_OF_HEAD) + 1 :]

    def _ends_too_late(self, data: bytes) -> bool:
        """Whether the head that continues with `data` does not end within its limit."""
        left = MAX_HEAD_BYTES - self._head_bytes
        return len(data) > left and END_OF_HEAD not in self._tail + data[:left]

    # -- called by httptools

    def on_message_begin(self) -> None:
        self._field_bytes = 0
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[IDLE_WHILE_WAITING] = partial(self._open_connections.delayed, self._peer)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        # A request has no fragment, and the parser would drop it: `/v1/tokens#x` must not become `/v1/tokens`.
        super().on_url(url.replace(b"#", b"%23"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        """Limit a head that begins in the middle of received data, behind another request, and trailers."""
        self._field_bytes += size
        if self._field_bytes > MAX_HEAD_BYTES:
            raise ValueError(TOO_LARGE)  # httptools turns it into its own error, and uvicorn answers 400

    def on_headers_complete(self) -> None:
        self._in_body = self._parsed_more = True
        health = self.url.partition(b"?")[0] in HEALTH_PATHS
        self.app = self._app if self._open_connections.begin_request(self._peer, health=health) else overloaded
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body, self._parsed_more = False, True
        self._open_connections.work(self._peer)
        super().on_message_complete()

    # -- called by uvicorn and the event loop

    def pause_writing(self) -> None:
        self._open_connections.wait_for_reader(self._peer, partial(unsent_bytes, self.transport))
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._open_connections.end_request(self._peer)
        else:
            self._open_connections.work(self._peer)
        super().resume_writing()

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)
        super().on_response_complete()
        if more:
            return
        if unsent_bytes(self.transport):
            self._open_connections.wait_for_reader(self._peer, partial(unsent_bytes, self.transport))
        else:
            self._open_connections.end_request(self._peer)


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Return how many bytes the caller has not received yet; 0 if the connection is lost."""
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # of asyncio's TLS transport, which forgets its connection when it is closed twice
        return 0


class LimitedServer(uvicorn.Server):
    """Closes connections that are late, and ends as soon as `end` is called; waits for nothing where no connection is open.

    uvicorn's own server checks ten times a second whether it should end, and then sleeps once more.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, config: uvicorn.Config, open_connections: OpenConnections) -> None:
        super().__init__(config)
        self._open_connections = open_connections

    def end(self) -> None:
        """End the server. May be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._ending.set)

    async def main_loop(self) -> None:
        self._ending, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not await self.on_tick(0):  # 0: set the Date header of the next responses
            self._open_connections.drop_late()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.tick_every_s):
                    await self._ending.wait()

    @property
    def tick_every_s(self) -> float:
        return TICK_EVERY_S if self._open_connections.count else IDLE_TICK_EVERY_S

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._open_connections.end_delays()
        await self._stop_accepting()
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        for server in self.servers:
            server.close()
        await self._close_connections()

    async def _stop_accepting(self) -> None:
        """Accept no more connections, and let the event loop finish with those that it has just accepted.

        asyncio never closes a connection whose server was closed between the two.
        """
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listener in server.sockets:
                loop.remove_reader(listener)
        for _ in range(TURNS_TO_ACCEPT):
            await asyncio.sleep(0)

    async def _close_connections(self) -> None:
        """Close what uvicorn does not know, such as a TLS handshake under way, or could not close in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                for accepted in self._open_connections.close_all():
                    while accepted.fileno() >= 0:
                        await asyncio.sleep(0)
