"""What every guest-facing listener must survive, on real sockets: each probe alone, and the service unharmed after it."""

import time
from collections.abc import Iterator

import pytest

from forewarn.endpoint import listener
from tests.endpoint.serving import URL, VM, Serving, body, get, serving, status

REQUEST_S = 0.4
IDLE_S = 0.6


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "SWEEP_EVERY_S", 0.05)
        with serving(
            guest_connections=1_000, guest_request_timeout_s=REQUEST_S, guest_idle_timeout_s=IDLE_S
        ) as running:
            yield running


@pytest.fixture(autouse=True)
def unharmed(served: Serving) -> Iterator[None]:
    yield
    assert status(served.client(VM).ask(get())) == 200
    served.close()


def refused(served: Serving, data: bytes) -> int:
    """The status of the only answer; the connection ends after it."""
    client = served.client()
    client.send(data)
    whole = client.rest()
    assert whole.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in whole
    return status(whole)


def test_a_header_of_a_megabyte(served: Serving) -> None:
    """431, and the answer arrives although the guest was still sending."""
    assert refused(served, get(URL, "X: " + "a" * 1_000_000)) == 431


def test_twenty_thousand_headers(served: Serving) -> None:
    """431, long before the last of them."""
    assert refused(served, get(URL, *["X: 1"] * 20_000)) == 431


def test_a_target_of_a_megabyte(served: Serving) -> None:
    """431: the target is part of the head."""
    assert refused(served, get(URL + "&x=" + "a" * 1_000_000)) == 431


def test_a_head_in_small_pieces_is_counted(served: Serving) -> None:
    """A head that never ends is refused at its limit, however slowly it comes."""
    client = served.client()
    client.send(get()[:-2])
    for _ in range(100):
        client.send(b"X: " + b"a" * 97 + b"\r\n")
    assert status(client.rest()) == 431


@pytest.mark.parametrize(
    "data",
    [
        get(URL, "Content-Length: 2", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n",
        get(URL, "Transfer-Encoding: chunked", "Content-Length: 2", method="POST") + b"0\r\n\r\n",
        get(URL, "Content-Length: 2", "Content-Length: 3", method="POST") + b"{}",
        get(URL, "Content-Length: +2", method="POST") + b"{}",
        get(URL, "Transfer-Encoding: chunked", method="POST") + b"zz\r\n",
        get(URL, "X : 1"),
        get(URL, "X: 1\x00"),
        get().replace(b"\r\n", b"\n"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["cl+te", "te+cl", "two-cl", "plus-cl", "bad-chunk", "space-colon", "nul", "bare-lf", "tls", "http2"],
)
def test_what_could_be_read_in_two_ways_is_not_read(served: Serving, data: bytes) -> None:
    """400 and the end of the connection: nothing behind it can be taken for a request."""
    assert refused(served, data + get()) == 400


@pytest.mark.parametrize(
    "data",
    [get().replace(b"Host: 169.254.169.254\r\n", b""), get(URL, "Host: 127.0.0.1"), get(URL, "Metadata: false")],
    ids=["no-host", "two-hosts", "metadata-true-then-false"],
)
def test_a_request_with_contradictory_headers(served: Serving, data: bytes) -> None:
    """400; it could be read, so the connection goes on."""
    client = served.client()
    assert status(client.ask(data)) == 400
    assert status(client.ask(get())) == 200


def test_connect_and_say_nothing(served: Serving) -> None:
    """Closed without a word within the deadline of a request."""
    timed_out = served.guests.counters.timed_out
    client, begun_s = served.client(), time.monotonic()
    assert client.closed()
    assert REQUEST_S * 0.9 < time.monotonic() - begun_s < REQUEST_S + 1
    assert served.guests.counters.timed_out == timed_out + 1


@pytest.mark.parametrize(
    "part", [b"GET /meta", get()[:-2], b"\r\n", get(URL, "Content-Length: 9", method="POST") + b"{"]
)
def test_half_a_request_then_silence(served: Serving, part: bytes) -> None:
    """Closed within the deadline, which nothing that comes meanwhile puts off."""
    client, begun_s = served.client(), time.monotonic()
    client.send(part)
    assert client.closed()
    assert time.monotonic() - begun_s < REQUEST_S + 1


def test_drops_of_a_request_do_not_put_off_the_deadline(served: Serving) -> None:
    """One deadline per request, set once: a byte now and then does not keep a connection."""
    client, begun_s = served.client(), time.monotonic()
    assert client.flood(b"\r\n", 100, every_s=0.05) < 100
    assert time.monotonic() - begun_s < REQUEST_S + 1


def test_a_silent_connection_is_closed(served: Serving) -> None:
    """After an answer it may be silent for the idle time, not longer; a request in between begins it anew."""
    client, begun_s = served.client(), time.monotonic()
    assert status(client.ask(get())) == 200
    time.sleep(IDLE_S * 0.7)
    assert status(client.ask(get())) == 200
    assert client.closed()
    assert IDLE_S * 1.6 < time.monotonic() - begun_s < IDLE_S * 1.7 + 1


def test_two_requests_in_one_piece(served: Serving) -> None:
    """Both are answered, in order."""
    client = served.client()
    client.send(get("/metadata/versions") + get())
    assert body(client.answer()).startswith(b'{"apiVersions"')
    assert body(client.answer()).startswith(b'{"DocumentIncarnation"')


def test_a_request_byte_by_byte(served: Serving) -> None:
    """Where the network cuts does not matter."""
    client = served.client()
    for value in get():
        client.send(bytes([value]))
    assert status(client.answer()) == 200


def test_a_body_in_chunks_of_a_byte(served: Serving) -> None:
    """Small chunks are a body, too; their wrapping may not grow for ever."""
    client = served.client()
    head = get(URL, "Transfer-Encoding: chunked", method="POST")
    client.send(head + b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n")
    assert body(client.answer()) == b'{"error":"Bad request. The body is not JSON"}'
    assert refused(served, head + b"1;" + b"y" * 600_000) in (400, 413)
