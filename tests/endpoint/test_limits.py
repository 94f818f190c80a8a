"""Limits of one guest, and of all guests together."""

from collections.abc import Callable

from forewarn.endpoint import connection as connections
from forewarn.endpoint.loop import IN
from forewarn.endpoint.sockets import GuestSocket
from tests.support.guest_service import STRANGER, URL, VM, WEB_0, WEB_1, Serving, get, post, serving, status
from tests.support.waiting import until

# More requests than the kernel's buffers hold for a guest that does not read.
MANY = 4_000


def make_large_document(served: Serving) -> None:
    """Make the document many kilobytes long: a few answers fill the kernel's buffers."""
    for _ in range(40):
        served.reboot("shop", "web-0", description="x" * 1_000)


def only_connection(served: Serving) -> connections.Connection:
    until(lambda: len(served.endpoint.connections) == 1)
    (connection,) = served.endpoint.connections
    assert isinstance(connection, connections.Connection)
    return connection


def not_read(connection: connections.Connection) -> Callable[[], bool]:
    """Return a condition: the listener reads nothing from this connection now."""
    transport = connection.transport
    assert isinstance(transport, GuestSocket)
    return lambda: not transport._interest & IN


def test_connections_of_one_machine() -> None:
    """A machine has 16 connections; the next is closed, other machines are not affected, a closed one makes room."""
    with serving() as served:
        clients = [served.client() for _ in range(16)]
        assert all(status(client.ask(get())) == 200 for client in clients)
        assert served.client().closed()
        assert served.endpoint.counters.refused["machine"] == 1
        assert status(served.client(WEB_1).ask(get())) == 200
        clients[0].socket.close()
        until(lambda: len(served.endpoint.connections) == 16)
        assert status(served.client().ask(get())) == 200


def test_connections_of_all_guests() -> None:
    """All connections together have a limit, those of unknown callers included."""
    with serving(guest_all_connections=3) as served:
        clients = [served.client(address) for address in (WEB_0, WEB_1, STRANGER)]
        until(lambda: len(served.endpoint.connections) == 3)
        assert served.client(VM).closed()
        assert [status(client.ask(get())) for client in clients] == [200, 200, 404]


def test_the_rate_is_counted_per_machine() -> None:
    """Five requests at once over all connections of a machine, on both paths; the sixth is refused."""
    with serving(rate_limit=5, stopped=True) as served:
        first, second = served.client(), served.client()
        seen = [status(client.ask(get())) for client in (first, second, first, second, first, second, first)]
        assert seen == [200] * 5 + [429] * 2
        assert served.endpoint.counters.remembered > 0
        assert status(served.client(WEB_1).ask(get())) == 200


def test_a_guest_that_does_not_read_is_not_read() -> None:
    """The listener stops reading from a guest that does not read: little is buffered, and others are answered."""
    with serving() as served:
        make_large_document(served)
        client = served.client(small=True)
        connection = only_connection(served)
        assert client.flood(get() * 20, MANY, not_read(connection)) < MANY
        until(lambda: connection._paused)
        assert isinstance(connection.transport, GuestSocket)
        assert len(connection.transport._unsent) < 1_000_000
        assert len(connection._buffered or b"") < 1_000_000
        assert status(served.client(VM).ask(get())) == 200
        # The guest reads some: more is answered, in order, until it stops reading again.
        answered = served.endpoint.counters.outcomes[200]
        assert {status(client.answer()) for _ in range(20)} == {200}
        until(lambda: served.endpoint.counters.outcomes[200] > answered)
        until(lambda: connection._paused)


def test_a_guest_that_never_reads_is_closed() -> None:
    """A connection that is paused for longer than the idle time is closed."""
    with serving(guest_idle_timeout_s=75, stopped=True) as served:
        make_large_document(served)
        client = served.client(small=True)
        connection = only_connection(served)
        assert client.flood(get() * 20, MANY, not_read(connection)) < MANY
        until(lambda: connection._paused)
        assert served.endpoint.connections

        def closed_after_the_idle_time() -> bool:
            served.move(76)  # the kernel may still take some bytes, which starts the idle time again
            return not served.endpoint.connections

        until(closed_after_the_idle_time)
        assert served.endpoint.counters.timed_out == 1


def test_requests_behind_a_pending_one_are_buffered_up_to_a_limit() -> None:
    """Behind a pending POST only a little is read; all of it is answered in order after the POST."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        served.store.go.clear()
        client.send(post(event_id))
        connection = only_connection(served)
        until(lambda: connection.busy)
        sent = client.flood(get("/nowhere", "X: " + "a" * 500) * 20, MANY, not_read(connection))
        assert sent < MANY
        assert len(connection._buffered or b"") <= connections.MAX_BUFFERED_BYTES + 256 * 1024
        served.store.go.set()
        assert status(client.answer()) == 200
        assert {status(client.answer()) for _ in range(min(sent, 100))} == {404}


def test_the_limit_of_a_body_is_exact() -> None:
    """A body of the configured limit is read; a larger one gets 413, although the guest was still sending."""
    # Stopped time: the service waits only two seconds for a guest to close.
    with serving(guest_body_bytes=1_024, stopped=True) as served:
        padding = " " * (1_024 - len(post("x").partition(b"\r\n\r\n")[2]))
        exact = f'{{"StartRequests":[{{"EventId":"x"}}]}}{padding}'.encode()
        head = get(URL, "Content-Length: 1024", method="POST")
        assert status(served.client().ask(head + exact)) == 400
        client = served.client()
        client.send(get(URL, "Content-Length: 1000000", method="POST") + b"a" * 1_000_000)
        assert status(client.rest()) == 413


def test_requests_remembered_for_a_machine_make_room_for_newer_ones() -> None:
    """A machine has a few remembered requests: one whose tag changes with every document keeps the fast path."""
    with serving() as served:
        client = served.client()
        for number in range(20):
            for _ in range(3):
                assert status(client.ask(get(URL, f'If-None-Match: "x{number}"'))) == 200
        caller = served.server.documents.callers.named("shop", "web-0")
        assert caller is not None
        assert len(caller.remembered) == len(served.endpoint.remembered) == 8
        assert served.endpoint.counters.remembered >= 20
