"""Hostile clients on real sockets: each attack is refused, and the service answers as before after it."""

from collections.abc import Iterator

import pytest

from forewarn.endpoint.listener import SWEEP_EVERY_S
from tests.support.guest_service import URL, VM, Client, Serving, body, get, serving, status
from tests.support.waiting import until

REQUEST_S = 10
IDLE_S = 75


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with serving(
        stopped=True, guest_connections=1_000, guest_request_timeout_s=REQUEST_S, guest_idle_timeout_s=IDLE_S
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _still_answers(served: Serving) -> Iterator[None]:
    yield
    assert status(served.client(VM).ask(get())) == 200
    served.close()
    until(lambda: not served.endpoint.connections)


def refused(served: Serving, data: bytes) -> int:
    """Return the status of the only answer; the connection ends after it."""
    client = served.client()
    client.send(data)
    whole = client.rest()
    assert whole.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in whole
    return status(whole)


def test_a_header_of_a_megabyte(served: Serving) -> None:
    """The guest gets 431, although it was still sending."""
    assert refused(served, get(URL, "X: " + "a" * 1_000_000)) == 431


def test_twenty_thousand_headers(served: Serving) -> None:
    """The guest gets 431 long before the last header."""
    assert refused(served, get(URL, *["X: 1"] * 20_000)) == 431


def test_a_target_of_a_megabyte(served: Serving) -> None:
    """The target is part of the head: the guest gets 431."""
    assert refused(served, get(URL + "&x=" + "a" * 1_000_000)) == 431


def test_a_head_in_small_pieces_has_the_same_limit(served: Serving) -> None:
    """A head that never ends is refused at its limit, however small its pieces."""
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
def test_an_ambiguous_request_is_refused(served: Serving, data: bytes) -> None:
    """The guest gets 400 and the connection ends: nothing after it can be taken for a request."""
    assert refused(served, data + get()) == 400


@pytest.mark.parametrize(
    "data",
    [get().replace(b"Host: 169.254.169.254\r\n", b""), get(URL, "Host: 127.0.0.1"), get(URL, "Metadata: false")],
    ids=["no-host", "two-hosts", "metadata-true-then-false"],
)
def test_a_request_with_contradictory_headers(served: Serving, data: bytes) -> None:
    """The guest gets 400; the request could be read, so the connection stays open."""
    client = served.client()
    assert status(client.ask(data)) == 400
    assert status(client.ask(get())) == 200


def connected(served: Serving) -> Client:
    """Return a client that the listener has accepted."""
    client = served.client()
    until(lambda: len(served.endpoint.connections) == 1)
    return client


def stays_until(served: Serving, client: Client, deadline_s: float) -> None:
    """Check that the connection is open a second before the deadline, and closed at the first sweep after it."""
    timed_out = served.endpoint.counters.timed_out
    served.move(deadline_s - 1)
    assert len(served.endpoint.connections) == 1
    served.move(1 + SWEEP_EVERY_S)
    assert client.closed()
    assert served.endpoint.counters.timed_out == timed_out + 1


def test_a_client_that_sends_nothing(served: Serving) -> None:
    """The connection is closed at the deadline of a request, and not before."""
    stays_until(served, connected(served), REQUEST_S)


@pytest.mark.parametrize(
    "part", [b"GET /meta", get()[:-2], b"\r\n", get(URL, "Content-Length: 9", method="POST") + b"{"]
)
def test_a_client_that_sends_half_a_request(served: Serving, part: bytes) -> None:
    """The connection is closed at the deadline of the request."""
    client = connected(served)
    served.wait_until_handled(client.send(part))
    stays_until(served, client, REQUEST_S)


def test_a_slow_request_does_not_move_its_deadline(served: Serving) -> None:
    """The deadline of a request is set once: a byte now and then does not keep a connection open."""
    client = connected(served)
    for _ in range(5):
        served.wait_until_handled(client.send(b"\r\n"))
        served.move(1)
    stays_until(served, client, REQUEST_S - 5)


def test_an_idle_connection_is_closed(served: Serving) -> None:
    """A connection may be silent for the idle time after an answer; each request starts that time again."""
    client = connected(served)
    for _ in range(4):
        assert status(client.ask(get())) == 200
        served.move(IDLE_S - 1)
        assert len(served.endpoint.connections) == 1
    assert served.endpoint.counters.remembered > 0
    assert status(client.ask(get())) == 200
    stays_until(served, client, IDLE_S)


def test_two_requests_in_one_piece(served: Serving) -> None:
    """Both requests are answered, in order."""
    client = served.client()
    client.send(get("/metadata/versions") + get())
    assert body(client.answer()).startswith(b'{"apiVersions"')
    assert body(client.answer()).startswith(b'{"DocumentIncarnation"')


def test_a_request_byte_by_byte(served: Serving) -> None:
    """A request is answered in whatever pieces it arrives."""
    client = served.client()
    for value in get():
        client.send(bytes([value]))
    assert status(client.answer()) == 200


def test_a_body_in_chunks_of_a_byte(served: Serving) -> None:
    """A body in chunks of one byte is read; chunk extensions without end are refused."""
    client = served.client()
    head = get(URL, "Transfer-Encoding: chunked", method="POST")
    client.send(head + b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n")
    assert body(client.answer()) == b'{"error":"Bad request. The body is not JSON"}'
    assert refused(served, head + b"1;" + b"y" * 600_000) in (400, 413)
