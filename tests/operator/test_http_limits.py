"""Connections, heads and time of the operator listener have limits, and its server can be ended."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.operator.http_limits import LimitedProtocol, LimitedServer, LimitedSocket
from tests.support.waiting import until

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
            thread.join(timeout=10)
            assert not thread.is_alive()


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


def send_repeatedly(connection: socket.socket, piece: bytes, *, times: int, every_s: float = 0) -> None:
    for _ in range(times):
        connection.sendall(piece)
        time.sleep(every_s)


@pytest.mark.parametrize(
    "pieces", [[], [b"\r\n"], [REQUEST[:20]], [REQUEST, b"\r\n"], [REQUEST, REQUEST[:20]]], ids=repr
)
def test_a_connection_without_a_complete_head_is_closed(pieces: list[bytes]) -> None:
    """Silent from the beginning, in the middle of a head, or after a first request."""
    with listening(Impatient) as address, socket.create_connection(address, timeout=10) as slow:
        for piece in pieces:
            slow.sendall(piece)
            if piece == REQUEST:
                read_response(slow)
        assert not receive(slow)


def test_the_deadline_is_for_the_whole_head() -> None:
    """A byte now and then does not move it."""
    with listening(Impatient) as address:
        begun_s = time.monotonic()
        with socket.create_connection(address, timeout=10) as slow:
            slow.sendall(REQUEST[:-4])
            with pytest.raises(OSError):
                send_repeatedly(slow, b"x", times=1_000, every_s=0.01)
            assert time.monotonic() - begun_s >= Impatient.head_within_s
            assert not receive(slow)


def test_a_slow_body_has_no_deadline_of_the_head() -> None:
    """The deadline ends with the head."""
    with listening(Impatient) as address, socket.create_connection(address, timeout=10) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234")
        time.sleep(2 * Impatient.head_within_s)  # longer than a head may take
        slow.sendall(b"56789")
        assert read_response(slow).endswith(b"<0123456789>")


def test_a_head_without_end_is_refused_and_a_large_body_is_not() -> None:
    """Heads are small; bodies have limits of their own."""
    with listening() as address:
        with socket.create_connection(address, timeout=10) as large:
            large.sendall(b"GET / HTTP/1.1\r\n")
            with pytest.raises(OSError):
                send_repeatedly(large, b"X-Filler: " + b"x" * 1_000 + b"\r\n", times=10_000)
        connection = http.client.HTTPConnection(*address, timeout=10)
        connection.request("POST", "/", b"x" * 300_000)
        response = connection.getresponse()
        assert (response.status, len(response.read())) == (200, 300_002)
        connection.close()


def test_connections_over_the_limit_are_closed() -> None:
    """They take no descriptors; once the others are gone, requests are answered again."""

    def answers() -> bool:
        with socket.create_connection(address, timeout=10) as connection:
            try:
                connection.sendall(REQUEST)
                return b"200 OK" in receive(connection)
            except OSError:
                return False

    with listening(listener=FewConnections) as address:
        before = open_descriptors()
        with ExitStack() as opened:
            ours = [opened.enter_context(socket.create_connection(address, timeout=10)) for _ in range(50)]
            for connection in ours[FewConnections.max_connections :]:
                assert not receive(connection)
            assert open_descriptors() - before <= len(ours) + FewConnections.max_connections + 5
            assert not answers()
        until(answers)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
