"""Floods: what one caller may cost the others, in connections, memory and time. No test here measures time."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.fleet import parse_fleet
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.limits import MAX_REJECTIONS, REJECTION_PAUSE_S, Limits, UnknownConnections
from forewarn.endpoint.loop import IN
from forewarn.endpoint.parser import Parser
from forewarn.endpoint.sockets import GuestSocket
from tests.endpoint.in_memory import MemoryService, MemoryTransport, manual_monotonic, turn_until_idle
from tests.endpoint.test_identity import PROXY, SECRET, signed
from tests.support.guest_service import (
    FLEET,
    OPERATOR,
    STRANGER,
    URL,
    WEB_0,
    WEB_1,
    Client,
    Serving,
    get,
    post,
    serving,
    status,
    turn,
)
from tests.support.waiting import until

OTHER_STRANGERS = ("127.0.0.98", "127.0.0.97", "127.0.0.96")


@pytest.fixture
def strict() -> Iterator[Serving]:
    """A service with its usual rate limit, on a clock that only the test moves."""
    with serving(rate_limit=5, stopped=True) as served:
        yield served


def spend_rate(served: Serving, address: str = WEB_0) -> Client:
    """Use up the rate of a machine; return the connection that did."""
    client = served.client(address)
    assert [status(client.ask(get())) for _ in range(5)] == [200] * 5
    return client


def is_read(served: Serving, address: str) -> bool:
    """Whether the listener reads the only connection from this address, after it has done what follows an answer."""
    turn(served.endpoint.loop)
    (connection,) = (each for each in served.endpoint.connections if getattr(each, "address", "") == address)
    assert isinstance(connection, Connection)
    assert isinstance(connection.transport, GuestSocket)
    return bool(connection.transport._interest & IN)


# -- connections of unknown callers


def test_connections_of_an_unknown_address() -> None:
    """An unknown address has four connections; the next is closed, others are not affected, a closed one makes room."""
    with serving(rate_limit=5) as served:
        clients = [served.client(STRANGER) for _ in range(4)]
        until(lambda: len(served.endpoint.connections) == 4)
        assert served.client(STRANGER).closed()
        assert served.endpoint.counters.refused["unknown"] == 1
        assert status(served.client(OTHER_STRANGERS[0]).ask(get())) == 404
        assert status(served.client(WEB_0).ask(get())) == 200
        clients[0].socket.close()
        until(lambda: len(served.endpoint.connections) == 5)
        assert status(served.client(STRANGER).ask(get())) == 404


def test_connections_of_all_unknown_addresses() -> None:
    """Unknown callers together have a quarter of all connections, from however many addresses they come."""
    with serving(guest_all_connections=12) as served:
        for address in (STRANGER, *OTHER_STRANGERS[:2]):
            assert status(served.client(address).ask(get())) == 404
        assert served.client(OTHER_STRANGERS[2]).closed()
        assert served.endpoint.counters.refused["unknown"] == 1
        assert status(served.client(WEB_0).ask(get())) == 200


def test_unknown_callers_leave_descriptors_to_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system allows fewer open files than connections, unknown callers have a quarter of the files."""
    unknown = UnknownConnections(Limits(all_connections=50_000, unknown_connections=4))
    monkeypatch.setattr("resource.getrlimit", lambda _: (40, 40))
    for number in range(10):
        assert not unknown.is_full(("", f"192.0.2.{number}"))
        unknown.add(("", f"192.0.2.{number}"))
    assert unknown.is_full(("", "192.0.2.99"))


def test_the_connections_of_an_unknown_address_are_a_setting() -> None:
    """`guest_unknown_connections` is how many connections an unknown address has at once."""
    with serving(guest_unknown_connections=1) as served:
        assert status(served.client(STRANGER).ask(get())) == 404
        assert served.client(STRANGER).closed()
        assert served.endpoint.counters.refused["unknown"] == 1


def test_an_address_that_becomes_a_machine_leaves_the_share_of_unknown_addresses() -> None:
    """The connection counts for the machine from its next request on, and again as unknown when the machine is removed."""
    with serving("", guest_unknown_connections=1) as served:
        unknown = served.endpoint.unknown_connections
        client = served.client(WEB_0)
        assert status(client.ask(get())) == 404
        assert len(unknown) == 1
        served.service.control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
        assert status(client.ask(get())) == 200
        caller = served.server.documents.callers.named("shop", "web-0")
        assert caller is not None
        assert (caller.connections, len(unknown)) == (1, 0)
        served.service.control.remove_machine(("shop", "web-0"), OPERATOR)
        assert status(client.ask(get())) == 404
        assert (caller.connections, len(unknown)) == (0, 1)


def test_every_caller_has_no_limit_even_before_its_machine_exists() -> None:
    """With `every_caller` no address is unknown: an emulator may get its machine after its first caller."""
    with serving("", every_caller="shop/web-0") as served:
        clients = [served.client(STRANGER) for _ in range(6)]
        assert {status(client.ask(get())) for client in clients} == {404}


# -- memory


@pytest.mark.parametrize("framing", ["Content-Length: 60000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("expects", [(), ("Expect: 100-continue",)], ids=["at-once", "waits"])
def test_an_unknown_caller_is_rejected_at_the_head(framing: str, expects: tuple[str, ...]) -> None:
    """An unknown caller gets its 404 before it sends a body, and the connection ends."""
    with serving() as served:
        client = served.client(STRANGER).send(get(URL, framing, *expects, method="POST"))
        answer = client.answer()
        assert status(answer) == 404
        assert b"Connection: close" in answer
        assert client.closed()


def test_a_body_in_tiny_chunks_takes_little_more_memory_than_its_bytes() -> None:
    """Chunks are joined as they arrive: 30,000 chunks of 2 bytes take at most twice the memory of the body."""
    parser = Parser(max_head_bytes=8_192, max_headers=64, max_body_bytes=65_536, reads_body=lambda: True)
    chunks = b"2\r\nxx\r\n" * 100
    tracemalloc.start()
    try:
        parser.feed(get(URL, "Transfer-Encoding: chunked", method="POST"))
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(300):
            parser.feed(chunks)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 2 * 60_000
    parser.feed(b"0\r\n\r\n")
    assert parser.requests[0].body == b"xx" * 30_000


class CountedPiece(bytes):
    """A piece of received data that counts how often its length is asked for."""

    lengths = 0

    def __len__(self) -> int:
        CountedPiece.lengths += 1
        return super().__len__()


def test_a_piece_behind_a_pending_request_is_counted_once() -> None:
    """The cost of buffering a piece does not depend on how many pieces are buffered already."""
    pieces = [CountedPiece(bytes([value])) for value in get("/nowhere") * 20]
    with manual_monotonic() as clock:
        service = MemoryService(clock.loop)
        guest = MemoryTransport(service.endpoint)
        guest.send(get())
        turn_until_idle(clock.loop, guest)
        guest.received = b""
        guest.send(get(URL, "Prefer: wait=30", 'If-None-Match: "1"'))
        assert guest.connection.busy
        CountedPiece.lengths = 0
        for piece in pieces:
            guest.send(piece)
        assert CountedPiece.lengths <= 2 * len(pieces)
        service.reboot("shop", "web-0")
        turn_until_idle(clock.loop, guest)
        assert guest.received.count(b"HTTP/1.1 200 ") == 1
        assert guest.received.count(b"HTTP/1.1 404 ") == 20


# -- rejected requests


def test_a_connection_with_many_429_is_not_read_for_a_second(strict: Serving) -> None:
    """After five 429 in a row the next request waits for a second; then it is answered, the machine's rate permitting."""
    client = spend_rate(strict)
    assert [status(client.ask(get())) for _ in range(MAX_REJECTIONS)] == [429] * MAX_REJECTIONS
    assert not is_read(strict, WEB_0)
    client.send(get()).arrived()
    strict.move(REJECTION_PAUSE_S - 0.1)
    assert client.quiet()
    strict.move(0.1)
    assert status(client.answer()) == 200
    assert is_read(strict, WEB_0)
    assert strict.endpoint.counters.paused == 1


def test_many_requests_sent_at_once_are_answered_little_by_little(strict: Serving) -> None:
    """Of many requests sent at once those within the rate are answered each second, and five more."""
    client = spend_rate(strict)
    client.send(get() * 20)
    assert [status(client.answer()) for _ in range(MAX_REJECTIONS)] == [429] * MAX_REJECTIONS
    assert not is_read(strict, WEB_0)
    strict.move(REJECTION_PAUSE_S)
    # The rate has room for five again; the sixth is rejected, and this is the first in a row.
    assert [status(client.answer()) for _ in range(10)] == [200] * 5 + [429] * 5
    assert not is_read(strict, WEB_0)
    assert client.quiet()
    strict.move(REJECTION_PAUSE_S)
    assert [status(client.answer()) for _ in range(5)] == [200] * 5


def test_a_request_within_the_rate_ends_the_row(strict: Serving) -> None:
    """Four 429, one response from the fast path, four 429: the connection is read all the time."""
    client = spend_rate(strict)
    for _ in range(3):
        assert [status(client.ask(get())) for _ in range(4)] == [429] * 4
        strict.move(0.2)
        assert status(client.ask(get())) == 200
        assert is_read(strict, WEB_0)
    assert strict.endpoint.counters.remembered > 0


def test_a_connection_with_many_404_of_an_unknown_caller_is_not_read_for_a_second(strict: Serving) -> None:
    """After five 404 in a row an unknown caller gets one per second; other callers are not affected."""
    client = strict.client(STRANGER)
    client.send(get() * 7)
    assert [status(client.answer()) for _ in range(MAX_REJECTIONS)] == [404] * MAX_REJECTIONS
    assert client.quiet()
    assert not is_read(strict, STRANGER)
    assert status(strict.client(WEB_0).ask(get())) == 200
    for _ in range(2):
        strict.move(REJECTION_PAUSE_S)
        assert status(client.answer()) == 404
        assert client.quiet()
        assert not is_read(strict, STRANGER)


def test_the_404_of_a_version_or_a_path_does_not_count() -> None:
    """A known machine that tries newer versions, or other paths, is answered at once, however often it does."""
    with serving(stopped=True) as served:
        client = served.client()
        for target in ("/metadata/scheduledevents?api-version=2030-01-01", "/nowhere"):
            assert [status(client.ask(get(target))) for _ in range(2 * MAX_REJECTIONS)] == [404] * 2 * MAX_REJECTIONS
        assert served.endpoint.counters.paused == 0


def test_a_proxys_connection_is_always_read(tmp_path: Path) -> None:
    """A proxy's connection carries requests of many machines: one machine's 429 do not delay the others."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    with serving(trusted_proxies=PROXY, proxy_secret_file=str(secret), rate_limit=1, stopped=True) as served:
        proxy = served.client(PROXY)
        seen = [status(proxy.ask(signed("i-web-0"))) for _ in range(10)]
        assert seen == [200] + [429] * 9
        assert [status(proxy.ask(signed("i-nobody"))) for _ in range(10)] == [404] * 10
        assert status(proxy.ask(signed("i-web-1"))) == 200


@pytest.mark.parametrize(("address", "share"), [(WEB_0, 16), (STRANGER, 4)])
def test_a_closed_connection_keeps_its_place_for_a_second_after_a_rejection(
    strict: Serving, address: str, share: int
) -> None:
    """A caller cannot have more requests rejected by connecting anew: its share of connections is used up for a second."""
    if address == WEB_0:
        spend_rate(strict).socket.close()
        until(lambda: not strict.endpoint.connections)
    for _ in range(share):
        client = strict.client(address)
        assert status(client.ask(get())) in (404, 429)
        client.socket.close()
        until(lambda: not strict.endpoint.connections)
    assert strict.client(address).closed()
    assert sum(strict.endpoint.counters.refused.values()) == 1
    assert status(strict.client(WEB_1).ask(get())) == 200
    strict.move(REJECTION_PAUSE_S)
    assert status(strict.client(address).ask(get())) in (200, 404)


def test_a_request_within_the_rate_frees_the_place_of_a_closed_connection(strict: Serving) -> None:
    """A machine that was over its rate once, and then within it, leaves its share as soon as it closes the connection."""
    client = spend_rate(strict)
    assert status(client.ask(get())) == 429
    strict.move(REJECTION_PAUSE_S)
    assert status(client.ask(get())) == 200
    client.socket.close()
    until(lambda: not strict.endpoint.connections)
    caller = strict.server.documents.callers.named("shop", "web-0")
    assert caller is not None
    assert caller.connections == 0


def test_a_paused_connection_does_not_delay_the_end(strict: Serving) -> None:
    """A stopping service answers what it has read and closes a paused connection at once."""
    client = strict.client(STRANGER)
    client.send(get() * 6)
    assert [status(client.answer()) for _ in range(MAX_REJECTIONS)] == [404] * MAX_REJECTIONS
    strict.monotonic.run()
    strict.server.stop()
    assert status(client.answer()) == 404
    assert client.closed()


def test_an_approval_is_no_exception(strict: Serving) -> None:
    """A POST over the rate counts as rejected, too, and approves nothing when its connection is read again."""
    client = spend_rate(strict)
    event_id = strict.reboot("shop", "web-0")
    assert [status(client.ask(post(event_id))) for _ in range(MAX_REJECTIONS)] == [429] * MAX_REJECTIONS
    assert not is_read(strict, WEB_0)
    strict.move(REJECTION_PAUSE_S)
    assert not [change for change in strict.store.applied if change.approvals]
