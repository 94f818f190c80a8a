"""Requests of a connection: what is read, what is refused, and what a slow client costs."""

import socket
from collections.abc import Iterator

import pytest

from forewarn.guest.serving.requests import MAX_BODY_BYTES, MAX_HEADERS, BadRequest, RequestReader

Pair = tuple[socket.socket, RequestReader]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The client's end of a connection, and a reader of the other end."""
    client, server = socket.socketpair()
    with client, server:
        yield client, RequestReader(server)


def test_requests_are_read_one_after_another(pair: Pair) -> None:
    """Two requests may arrive at once; a closed connection has no further one."""
    client, reader = pair
    client.sendall(
        b"\r\nGET /a?b=c HTTP/1.1\r\nHost: x\r\nMetadata:  TRUE \r\n\r\nPOST /b HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi"
    )
    client.shutdown(socket.SHUT_WR)
    first, second = reader.next(), reader.next()
    assert first is not None
    assert second is not None
    assert (first.method, first.target, first.values("metadata"), first.body) == ("GET", "/a?b=c", ["TRUE"], b"")
    assert first.keeps_open
    assert (second.method, second.target, second.body, second.http_1_0) == ("POST", "/b", b"hi", True)
    assert not second.keeps_open
    assert reader.next() is None


@pytest.mark.parametrize(
    ("version", "connection", "keeps_open"),
    [
        ("1.1", "", True),
        ("1.1", "Close", False),
        ("1.1", "x, close", False),
        ("1.0", "", False),
        ("1.0", "Keep-Alive", True),
    ],
)
def test_the_client_decides_whether_the_connection_stays(
    pair: Pair, version: str, connection: str, keeps_open: bool
) -> None:
    """As HTTP/1.1 and HTTP/1.0 define it."""
    client, reader = pair
    client.sendall(f"GET / HTTP/{version}\r\nConnection: {connection}\r\n\r\n".encode())
    request = reader.next()
    assert request is not None
    assert request.keeps_open is keeps_open


def test_a_chunked_body(pair: Pair) -> None:
    """Chunks are joined; extensions and trailers are ignored; a client that waits is told to continue."""
    client, reader = pair
    client.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nExpect: 100-continue\r\n\r\n")
    client.sendall(b'5;x="y"\r\nhello\r\n1\r\n!\r\n0\r\nMetadata: true\r\n\r\nGET /next HTTP/1.1\r\n\r\n')
    request, after = reader.next(), reader.next()
    assert request is not None
    assert request.body == b"hello!"
    assert request.values("metadata") == []
    assert after is not None
    assert after.target == "/next"
    assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        f"Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n",
        "Content-Length: 99999999999999999999999999\r\n\r\n",
        f"Transfer-Encoding: chunked\r\n\r\n{MAX_BODY_BYTES + 1:x}\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    ],
)
def test_a_large_body_is_not_read(pair: Pair, head: str) -> None:
    """The request has no body, and the connection ends after its response."""
    client, reader = pair
    client.sendall(f"POST / HTTP/1.1\r\n{head}".encode())
    request = reader.next()
    assert request is not None
    assert request.body is None
    assert not request.keeps_open


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET /#a HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA:" + b" " * 16_000 + b"\x01\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 300, 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 17_000, 431),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * MAX_HEADERS, 431),
    ],
)
def test_what_is_no_request_is_refused(pair: Pair, data: bytes, status: int) -> None:
    """Anything beyond the grammar or a limit ends the connection."""
    client, reader = pair
    client.sendall(data)
    with pytest.raises(BadRequest) as raised:
        reader.next()
    assert raised.value.status == status


@pytest.mark.parametrize("data", [b"GET / HT", b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nx"])
def test_a_slow_client_is_given_up(data: bytes) -> None:
    """A request that does not become complete in its time ends with a time-out."""
    client, server = socket.socketpair()
    with client, server:
        client.sendall(data)
        with pytest.raises(TimeoutError):
            RequestReader(server, request_s=0.05).next()


def test_a_silent_connection_is_given_up() -> None:
    """A connection without a request ends after some time."""
    client, server = socket.socketpair()
    with client, server, pytest.raises(TimeoutError):
        RequestReader(server, idle_s=0.05).next()


def test_a_client_that_closes_in_the_middle(pair: Pair) -> None:
    """Half a request is no request."""
    client, reader = pair
    client.sendall(b"GET / HTTP/1.1\r\nHost")
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        reader.next()
