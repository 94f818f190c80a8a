"""The path of a request: what the service matches is what a proxy in front of it sees."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.running_service import RunningService, running_service
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tok%0Aens",
        "/v1/tok%0Dens",
        "/v1/tok%09ens",
        "/v1/tokens%00",
        "/v1/tokens%7F",
        "/v1/tokens%C2%85",
        "/v1/tokens%E2%80%A8",
        "/v1/scopes/shop%0A",
        "/sco%0Apes",
        "/read%0Ayz",
    ],
)
def test_a_control_character_in_a_path_is_refused(service: RunningService, path: str) -> None:
    """400: otherwise the path passes a proxy rule for the path without the character."""
    reply = service.request("GET", path)
    assert (reply.status, reply.code) == (400, "invalid"), reply.raw
    assert "control character" in reply.message


@pytest.mark.parametrize(
    "path", ["/v1%2Ftokens", "/v1/%2ftokens", "/v1/scopes/shop%2Fmachines/web-0", "/v1/scopes/%FF"]
)
def test_an_encoding_that_programs_read_differently_is_refused(service: RunningService, path: str) -> None:
    """400 for an encoded slash and for bytes that are not UTF-8."""
    reply = service.request("GET", path)
    assert (reply.status, reply.code) == (400, "invalid"), reply.raw


@pytest.mark.parametrize("path", ["/v1/%74okens", "/%76%31/tokens", "/v1/toke%6Es"])
def test_an_encoded_letter_is_the_letter(service: RunningService, path: str) -> None:
    """RFC 3986, 6.2.2.2: such paths are the same, so a proxy rule must decode the path before it compares."""
    assert service.request("GET", path).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%2574okens",
        "/v1//tokens",
        "//v1/tokens",
        "/v1/./tokens",
        "/v1/scopes/../tokens",
        "/v1/tokens/",
        "/V1/tokens",
        "/v1/tokens;x",
        "/v1/tokens%3Fx",
        "/v1/tokens%23x",
    ],
)
def test_the_path_is_decoded_once_and_compared_exactly(service: RunningService, path: str) -> None:
    """No second decoding, no dot segments, no merged slashes, no other case: such paths do not exist."""
    assert service.request("GET", path).status == 404


@pytest.mark.parametrize(("target", "status"), [("/v1/tokens#x", 404), ("/v1/tokens%", 404), ("/v1/tokens?#x", 422)])
def test_a_fragment_is_no_way_around_a_rule(service: RunningService, target: str, status: int) -> None:
    """A request has no fragment (RFC 9112, 3.2): `#` and what follows it count as written, for a proxy and for us."""
    address = urlsplit(service.url)
    head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.token}\r\n"
    with socket.create_connection((str(address.hostname), address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer


def test_the_host_header_is_no_part_of_the_path(service: RunningService) -> None:
    """A Host with a slash does not select another path than the one in the request line."""
    address = urlsplit(service.url)
    head = f"GET /v1/none HTTP/1.1\r\nHost: x/v1/tokens?\r\nAuthorization: Bearer {service.token}\r\n"
    with socket.create_connection((str(address.hostname), address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 404"), answer
