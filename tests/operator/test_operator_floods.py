"""Floods of the operator listener: what one client without a token can do to the others. No test here measures time."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.running_service import RunningService, running_service
from tests.support.waiting import PATIENCE_S

PARTIAL = b"GET /v1/scopes HTTP/1.1\r\nHost: x\r\nX-Filler: "
HALF_A_LOGIN = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\ntoken="
FLOOD = 560
PATHS = ("/healthz", "/readyz", "/metrics", "/login", "/v1/scopes")


def port_of(service: RunningService) -> int:
    return int(service.url.rpartition(":")[2])


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


@contextmanager
def flooded(service: RunningService, sent: bytes) -> Iterator[list[socket.socket]]:
    """Have very many connections that have sent these bytes and send no more."""
    with ExitStack() as opened:
        clients = []
        for _ in range(FLOOD):
            client = opened.enter_context(connected(port_of(service)))
            client.sendall(sent)
            clients.append(client)
        yield clients


@pytest.mark.parametrize("sent", [b"", PARTIAL, HALF_A_LOGIN], ids=["silent", "half-a-head", "half-a-body"])
def test_many_connections_without_a_whole_request_block_nobody(sent: bytes) -> None:
    """Health, metrics, the portal and the API answer beside 560 connections of the same address that send too little."""
    with running_service() as service, flooded(service, sent):
        assert [service.request("GET", path).status for path in PATHS] == [200] * len(PATHS)


def test_many_silent_connections_over_tls_block_nobody(pair: tuple[Path, Path]) -> None:
    """A connection counts before its TLS handshake, and makes room for others in the middle of it."""
    cert, key = pair
    trust = ssl.create_default_context(cafile=str(cert))
    with running_service(tls_cert=str(cert), tls_key=str(key)) as service, flooded(service, b""):
        client = http.client.HTTPSConnection("127.0.0.1", port_of(service), timeout=PATIENCE_S, context=trust)
        client.request("GET", "/healthz")
        assert client.getresponse().status == 200
        client.close()


START = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Filler: "


def answer(service: RunningService, sent: bytes) -> bytes:
    """Return everything that the listener sends until it closes the connection."""
    received = b""
    with connected(port_of(service)) as client, suppress(ConnectionResetError):
        client.sendall(sent)
        while piece := client.recv(65_536):
            received += piece
    return received


@pytest.mark.parametrize("filler", [b"x", b" ", b"x\r\nX: "], ids=["value", "blanks", "headers"])
@pytest.mark.parametrize(("size", "status"), [(65_536, b"200"), (65_537, b"400"), (70_000, b"400")])
def test_the_limit_of_a_head_is_exact(filler: bytes, size: int, status: bytes) -> None:
    """A head of 64 KiB is read, and one byte more is refused, also if the head arrives in one piece."""
    head = START + filler * (60_000 // len(filler))
    head += b"x" * (size - len(head) - 4) + b"\r\n\r\n"
    with running_service() as service:
        assert answer(service, head)[9:12] == status


def test_a_large_head_behind_another_request_is_refused() -> None:
    """A head that arrives together with the request before it has the same limit."""
    first = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with running_service() as service:
        assert answer(service, first + START + b"\r\n\r\n").count(b"HTTP/1.1 200") == 2
        assert answer(service, first + START + b"x" * 70_000 + b"\r\n\r\n").count(b"HTTP/1.1 200") <= 1


def test_trailers_have_the_limit_of_a_head() -> None:
    """Headers after a body are kept in memory, too."""
    head = b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with running_service() as service, connected(port_of(service)) as client, suppress(ConnectionError):
        client.sendall(head)
        for _ in range(10_000):
            client.sendall(b"X-Filler: " + b"x" * 1_000 + b"\r\n")
        pytest.fail("the connection was not closed")


def test_the_limits_are_settings() -> None:
    """One busy connection per address: the next request gets 503, health is answered, and the metrics say so."""
    with running_service(operator_connections="1") as service, connected(port_of(service)) as slow:
        token = f"Authorization: Bearer {service.token}".encode()
        slow.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n" + token + b"\r\n\r\n")
        assert b"200 OK" in slow.recv(65_536)
        assert [service.request("GET", path).status for path in PATHS] == [200, 200, 200, 503, 503]
        metrics = service.request("GET", "/metrics").raw.decode().splitlines()
        assert "forewarn_operator_overloaded_total 2.0" in metrics
        assert "forewarn_operator_connections 2.0" in metrics
        assert 'forewarn_operator_connections_refused_total{limit="address"} 0.0' in metrics
        assert 'forewarn_operator_connections_dropped_total{reason="late"} 0.0' in metrics
