"""Connections, heads and time of the operator listener have limits, and its server can be ended."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.operator.http_limits import LimitedProtocol, LimitedServer, LimitedSocket
from tests.support.waiting import PATIENCE_S, until

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Address = tuple[str, int]


async def echo(request: Request) -> Response:
    return Response(b"<" + await request.body() + b">")


class Impatient(LimitedProtocol):
    head_within_s = 0.3


class FewConnections(LimitedSocket):
    max_connections = 10


@contextmanager
def listening(
    protocol: type[LimitedProtocol] = LimitedProtocol, listener: type[LimitedSocket] = LimitedSocket
) -> Iterator[Address]:
    """A server that echoes bodies."""
    app = Starlette(routes=[Route("/", echo, methods=["GET", "POST"])])
    config = uvicorn.Config(app, http=protocol, ws="none", loop="asyncio", lifespan="off", log_config=None)
    with listener(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0))
        server = LimitedServer(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield listening.getsockname()
        finally:
            server.end()
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive()


def connected(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=PATIENCE_S)


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def read_response(connection: socket.socket) -> bytes:
    response = b""
    while not response.endswith(b">"):
        piece = connection.recv(65_536)
        assert piece, response
        response += piece
    return response


def send_until_closed(connection: socket.socket, piece: bytes, *, every_s: float = 0.0) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    with suppress(OSError):
        while time.monotonic() < deadline_s:
            connection.sendall(piece)
            time.sleep(every_s)
        pytest.fail("the connection was not closed")


@pytest.mark.parametrize("piece", [b"", b"\r\n", REQUEST[:20]], ids=repr)
def test_a_connection_without_a_complete_head_is_closed(piece: bytes) -> None:
    """Silent from the beginning, or in the middle of a head."""
    with listening(Impatient) as address, connected(address) as slow:
        slow.sendall(piece)
        assert not receive(slow)


@pytest.mark.parametrize("piece", [b"\r\n", REQUEST[:20]], ids=repr)
def test_a_connection_without_a_complete_second_head_is_closed(piece: bytes) -> None:
    """The time for a head begins anew after each response."""

    class Timed(LimitedProtocol):
        """Patient with the first request, which a busy machine may delay."""

    with listening(Timed) as address, connected(address) as slow:
        slow.sendall(REQUEST)
        read_response(slow)
        Timed.head_within_s = Impatient.head_within_s
        slow.sendall(piece)
        assert not receive(slow)


def test_the_deadline_is_for_the_whole_head() -> None:
    """A byte now and then does not move it."""
    with listening(Impatient) as address, connected(address) as slow:
        with suppress(OSError):
            slow.sendall(REQUEST[:-4])
        send_until_closed(slow, b"x", every_s=0.05)
        assert not receive(slow)


def test_a_body_has_no_deadline_of_the_head() -> None:
    """The deadline ends with the head: a body may come slowly."""
    protocols: list[LimitedProtocol] = []

    class Noted(LimitedProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            protocols.append(self)
            super().connection_made(transport)

    with listening(Noted) as address, connected(address) as slow:
        until(lambda: protocols and protocols[0]._deadline is not None)
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234")
        until(lambda: protocols[0]._in_body)
        assert protocols[0]._deadline is None
        slow.sendall(b"56789")
        assert read_response(slow).endswith(b"<0123456789>")


def test_a_head_without_end_is_refused_and_a_large_body_is_not() -> None:
    """Heads are small; bodies have limits of their own."""
    with listening() as address:
        with connected(address) as large:
            large.sendall(b"GET / HTTP/1.1\r\n")
            send_until_closed(large, b"X-Filler: " + b"x" * 1_000 + b"\r\n")
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        connection.request("POST", "/", b"x" * 300_000)
        response = connection.getresponse()
        assert (response.status, len(response.read())) == (200, 300_002)
        connection.close()


def test_connections_over_the_limit_are_closed() -> None:
    """They take no descriptors; once the others are gone, requests are answered again."""

    def answers() -> bool:
        with connected(address) as connection:
            try:
                connection.sendall(REQUEST)
                return b"200 OK" in receive(connection)
            except OSError:
                return False

    with listening(listener=FewConnections) as address:
        before = open_descriptors()
        with ExitStack() as opened:
            ours = [opened.enter_context(connected(address)) for _ in range(50)]
            for connection in ours[FewConnections.max_connections :]:
                assert not receive(connection)
            assert open_descriptors() - before <= len(ours) + FewConnections.max_connections + 5
            assert not answers()
        until(answers)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
