"""Connections, heads and time of the operator listener have limits, and its server can be ended."""

import asyncio
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.operator.http_limits import (
    IDLE_TICK_EVERY_S,
    TICK_EVERY_S,
    LimitedProtocol,
    LimitedServer,
    unsent_bytes,
)
from forewarn.operator.open_connections import (
    RESERVED,
    RESERVED_PER_ADDRESS,
    SLOW_WITHIN_S,
    ConnectionLimits,
    LimitedSocket,
    OpenConnections,
    State,
)
from tests.support.waiting import PATIENCE_S, until

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Address = tuple[str, int]


async def echo(request: Request) -> Response:
    return Response(b"<" + await request.body() + b">")


async def large(request: Request) -> Response:
    del request
    return Response(b"<" + b"x" * 20_000_000 + b">")


class ManualClock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def listening(
    open_connections: OpenConnections | None = None, *, tls: ssl.SSLContext | None = None
) -> Iterator[Address]:
    """The address of a server."""
    with running(open_connections, tls=tls) as (_, address):
        yield address


@contextmanager
def running(
    open_connections: OpenConnections | None = None, *, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[LimitedServer, Address]]:
    """A server that echoes bodies, and hangs on /hang and /readyz until the end."""
    open_connections = open_connections or OpenConnections()
    hanging = asyncio.Event()

    async def hang(request: Request) -> Response:
        del request
        await hanging.wait()
        return Response(b"<hung>")

    routes = [Route("/", echo, methods=["GET", "POST"]), Route("/hang", hang), Route("/healthz", echo)]
    routes += [Route("/readyz", hang), Route("/large", large)]
    config = uvicorn.Config(
        Starlette(routes=routes),
        http=partial(LimitedProtocol, open_connections),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        backlog=16,
        timeout_keep_alive=3_600,  # uvicorn's own limit, on a clock that the tests do not hold
    )
    config.load()
    config.ssl = tls
    with LimitedSocket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.open_connections = open_connections
        listener.bind(("127.0.0.1", 0))
        server = LimitedServer(config, open_connections)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield server, listener.getsockname()
        finally:
            if server._loop is not None:
                server._loop.call_soon_threadsafe(hanging.set)
            server.end()
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive()
            assert not open_connections.count


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


# -- time


@pytest.mark.parametrize("piece", [b"", b"\r\n", REQUEST[:20]], ids=repr)
@pytest.mark.parametrize("kept_alive", [False, True], ids=["first", "second"])
def test_a_connection_without_a_complete_head_is_closed(piece: bytes, kept_alive: bool) -> None:
    """Silent or in the middle of a head, from the beginning or after a response: when its time is over, and not before."""
    clock = ManualClock()
    connections = OpenConnections(ConnectionLimits(head_within_s=10), monotonic=clock)
    with listening(connections) as address, connected(address) as slow:
        if kept_alive:
            slow.sendall(REQUEST)
            read_response(slow)
            until(lambda: len(connections._all.by_state[State.HEAD]) == 1)
        slow.sendall(piece)
        until(lambda: connections.count == 1)
        clock.now_s += 10
        with connected(address) as other:
            other.sendall(REQUEST)
            read_response(other)
        assert connections.count >= 1
        clock.now_s += 0.1
        assert not receive(slow)
        assert connections.dropped["late"] == 1


def test_the_deadline_is_for_the_whole_head() -> None:
    """A byte now and then does not move it."""
    clock = ManualClock()
    connections = OpenConnections(ConnectionLimits(head_within_s=10), monotonic=clock)
    with listening(connections) as address, connected(address) as slow:
        slow.sendall(REQUEST[:-4])
        until(lambda: connections.count == 1)
        clock.now_s += 9
        slow.sendall(b"x")
        clock.now_s += 1.1
        assert not receive(slow)


def test_a_tls_handshake_counts_as_part_of_the_head(pair: tuple[Path, Path]) -> None:
    """A connection that never begins its TLS handshake is closed in time; one that has begun a request is not."""
    clock = ManualClock()
    connections = OpenConnections(ConnectionLimits(head_within_s=10), monotonic=clock)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*pair)
    client = ssl.create_default_context(cafile=str(pair[0]))
    with (
        listening(connections, tls=server) as address,
        connected(address) as silent,
        client.wrap_socket(connected(address), server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(REQUEST.replace(b" / ", b" /hang "))
        until(lambda: connections._all.busy == 1 and connections.count == 2)
        clock.now_s += 10.1
        assert not receive(silent)
        assert connections.count == 1


def test_a_tls_connection_that_is_closed_twice_has_nothing_unsent(pair: tuple[Path, Path]) -> None:
    """The caller hangs up, and the response to a request with `Connection: close` closes the connection once more."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*pair)

    async def close_twice(address: Address) -> int:
        _, writer = await asyncio.open_connection(*address, ssl=ssl.create_default_context(cafile=str(pair[0])))
        writer.transport.close()
        writer.transport.close()
        with pytest.raises(AttributeError):
            writer.transport.get_write_buffer_size()
        unsent = unsent_bytes(writer.transport)
        await writer.wait_closed()
        return unsent

    with listening(tls=server) as address:
        assert asyncio.run(close_twice(address)) == 0


def test_a_body_has_no_deadline_of_the_head() -> None:
    """The deadline ends with the head: a body may come slowly."""
    clock = ManualClock()
    connections = OpenConnections(ConnectionLimits(head_within_s=10), monotonic=clock)
    with listening(connections) as address, connected(address) as slow, connected(address) as silent:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234")
        until(lambda: len(connections._all.by_state[State.CALLER]) == 1 and connections.count == 2)
        clock.now_s += SLOW_WITHIN_S
        assert not receive(silent)
        slow.sendall(b"56789")
        assert read_response(slow).endswith(b"<0123456789>")


# -- sizes


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


# -- numbers


@contextmanager
def hanging(address: Address, connections: OpenConnections, count: int) -> Iterator[list[socket.socket]]:
    """Have this many requests under way."""
    with ExitStack() as opened:
        clients = [opened.enter_context(connected(address)) for _ in range(count)]
        for client in clients:
            client.sendall(REQUEST.replace(b" / ", b" /hang "))
        until(lambda: connections._all.busy == count)
        yield clients


def status(address: Address, path: bytes = b"/") -> bytes:
    """Return the status of a request on a new connection; b"" if it is closed without a response."""
    with connected(address) as client, suppress(ConnectionError):
        client.sendall(REQUEST.replace(b" / ", b" %b " % path))
        return receive(client)[9:12]
    return b""


@pytest.mark.parametrize(
    "limits",
    [ConnectionLimits(connections_per_address=6), ConnectionLimits(connections=6)],
    ids=["of-the-address", "of-all"],
)
def test_a_new_connection_takes_the_place_of_one_that_waits(limits: ConnectionLimits) -> None:
    """Connections without a request block nobody, and take no more descriptors than the limit."""
    connections = OpenConnections(limits)
    with listening(connections) as address, ExitStack() as opened:
        before = open_descriptors()
        ours = [opened.enter_context(connected(address)) for _ in range(50)]
        assert not receive(ours[0])
        assert status(address) == b"200"
        most = 6 + RESERVED if limits.connections == 6 else 6 + RESERVED_PER_ADDRESS
        until(lambda: open_descriptors() - before <= len(ours) + most)
        assert connections.count <= most
        assert connections.dropped["displaced"] >= 50 - most


@pytest.mark.parametrize(
    "sent",
    [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", REQUEST.replace(b" / ", b" /large ")],
    ids=["half-a-body", "never-reads"],
)
def test_a_slow_caller_makes_room(sent: bytes) -> None:
    """A connection that waits for the rest of a body, or for its caller to read, is not busy: it blocks nobody."""
    connections = OpenConnections(ConnectionLimits(connections_per_address=1))
    with listening(connections) as address, ExitStack() as opened:
        for number in range(1, 7):
            opened.enter_context(connected(address)).sendall(sent)
            slow = connections._all.by_state[State.CALLER]
            until(lambda number=number, slow=slow: len(slow) == min(number, 1 + RESERVED_PER_ADDRESS))  # type: ignore[misc]
        assert status(address) == b"200"
        assert connections.overloaded == 0


def test_a_caller_that_never_reads_is_closed() -> None:
    """A response that the caller does not read ends in time."""
    clock = ManualClock()
    connections = OpenConnections(monotonic=clock)
    with listening(connections) as address, connected(address) as slow:
        slow.sendall(REQUEST.replace(b" / ", b" /large "))
        until(lambda: len(connections._all.by_state[State.CALLER]) == 1)
        # It reads slowly: it may stay.
        received = 0
        while received < 5_000_000:
            received += len(slow.recv(1_000_000))
        (connection,) = connections._all.by_state[State.CALLER]
        until(lambda: connection.unsent is not None and connection.unsent() < connection.unsent_before)
        began_s = connection.since_s
        clock.now_s += SLOW_WITHIN_S + 1
        until(lambda: connection.since_s > began_s)
        assert connection.state is State.CALLER
        # It reads no more. The kernel may still take a part of the response, so it may be late only after some time.

        def closed() -> bool:
            clock.now_s += SLOW_WITHIN_S + 1
            return connections.count == 0

        until(closed)
        assert connections.dropped["late"] == 1


@pytest.mark.parametrize(
    ("limits", "limit"),
    [(ConnectionLimits(connections_per_address=6), "address"), (ConnectionLimits(connections=6), "all")],
    ids=["of-the-address", "of-all"],
)
def test_some_connections_are_kept_for_health_checks(limits: ConnectionLimits, limit: str) -> None:
    """With all requests under way the next gets 503, and health is answered; beyond all connections they are closed."""
    connections = OpenConnections(limits)
    reserved = RESERVED_PER_ADDRESS if limit == "address" else RESERVED
    with listening(connections) as address, hanging(address, connections, 6):
        assert status(address) == b"503"
        assert connections.overloaded == 1
        assert status(address, b"/healthz") == b"200"
        assert status(address, b"/healthz?x") == b"200"
        until(lambda: connections.count == 6)
        with ExitStack() as opened:
            for _ in range(reserved):
                slow = opened.enter_context(connected(address))
                slow.sendall(REQUEST.replace(b" / ", b" /readyz "))
            until(lambda: connections._all.busy == 6 + reserved)
            assert status(address, b"/healthz") == b""
            assert connections.refused[limit] == 1
        until(lambda: connections.count == 6)


def test_the_503_is_an_error_like_any_other() -> None:
    """It has a code and a message, and says when to try again."""
    connections = OpenConnections(ConnectionLimits(connections_per_address=1))
    with listening(connections) as address, hanging(address, connections, 1):
        client = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        client.request("GET", "/")
        response = client.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert json.loads(response.read())["error"]["code"] == "overloaded"
        client.close()


def test_a_proxy_has_no_share_of_its_own() -> None:
    """Requests of all operators come from the address of a proxy: only the limit of all applies to it."""
    connections = OpenConnections(ConnectionLimits(connections_per_address=2, exempt=frozenset({"127.0.0.1"})))
    with listening(connections) as address, hanging(address, connections, 10):
        assert status(address) == b"200"


def test_the_limit_follows_the_descriptors_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators' connections use an eighth of the descriptors at most."""
    monkeypatch.setattr("forewarn.operator.open_connections.resource.getrlimit", lambda _: (200, 200))
    connections = OpenConnections()
    with listening(connections) as address, hanging(address, connections, 5):
        assert status(address) == b"503"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_listener_wakes_up_seldom_while_no_connection_is_open() -> None:
    """The listener wakes up once a second while no connection is open, and ten times a second while one is."""
    with running() as (server, address):
        assert server.tick_every_s == IDLE_TICK_EVERY_S
        with connected(address) as connection:
            connection.sendall(REQUEST)
            assert b"\r\ndate: " in connection.recv(65_536).lower()
            assert server.tick_every_s == TICK_EVERY_S
        until(lambda: server.tick_every_s == IDLE_TICK_EVERY_S)


@pytest.mark.parametrize("over_tls", [False, True])
def test_connections_that_come_as_the_server_ends_are_closed(pair: tuple[Path, Path], over_tls: bool) -> None:
    """The event loop accepts them in the moment of the end, when uvicorn does not know them yet."""
    tls = None
    if over_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*pair)
    held, released = threading.Event(), threading.Event()
    with ExitStack() as opened:
        with running(tls=tls) as (server, address):
            until(lambda: server._loop is not None)
            assert server._loop is not None
            server._loop.call_soon_threadsafe(held.set)
            server._loop.call_soon_threadsafe(released.wait, PATIENCE_S)
            assert held.wait(PATIENCE_S)
            callers = [opened.enter_context(connected(address)) for _ in range(20)]
            server.end()
            released.set()
        for caller in callers:
            with suppress(ConnectionResetError):  # it was not accepted any more
                assert caller.recv(1) == b""
