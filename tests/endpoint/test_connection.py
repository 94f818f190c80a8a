"""Details of a connection: half-closed guests, pipelined requests, interim answers, identities that change."""

import socket

from forewarn.core.fleet import parse_fleet
from tests.support.guest_service import FLEET, OPERATOR, URL, WEB_0, get, post, serving, status, turn
from tests.support.waiting import until


def test_a_half_closed_guest_gets_all_its_answers() -> None:
    """Requests sent before the guest closed its half are answered in order; only the last answer announces the close."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        served.store.go.clear()
        client.send(post(event_id) + get("/metadata/versions") + post(event_id) + get("/nowhere"))
        client.socket.shutdown(socket.SHUT_WR)
        (connection,) = served.endpoint.connections
        until(lambda: getattr(connection, "_half_closed", False))
        assert client.quiet()
        served.store.go.set()
        answers = [client.answer() for _ in range(4)]
        assert [status(answer) for answer in answers] == [200, 200, 200, 404]
        assert [b"Connection: close" in answer for answer in answers] == [False, False, False, True]
        assert client.closed()


def test_100_continue_waits_for_the_answer_before_it() -> None:
    """An interim answer comes after the answer to the request ahead of it."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        served.store.go.clear()
        head, _, body = post(event_id, headers=("Expect: 100-continue",)).partition(b"\r\n\r\n")
        client.send(post(event_id) + head + b"\r\n\r\n").arrived()
        turn(served.endpoint.loop)
        assert client.quiet()
        served.store.go.set()
        assert status(client.answer()) == 200
        assert client.answer() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert status(client.ask(body)) == 200


def test_http_1_0_gets_no_100_continue() -> None:
    """A guest that speaks HTTP/1.0 does not know interim answers."""
    with serving() as served:
        client = served.client()
        old = post("x", headers=("Expect: 100-continue",)).replace(b"HTTP/1.1", b"HTTP/1.0")
        served.wait_until_handled(client.send(old[:-5]))
        assert client.quiet()
        assert status(client.ask(old[-5:])) == 400


def test_a_partial_request_behind_a_long_poll_keeps_its_deadline() -> None:
    """The deadline of a pipelined request does not run while the request before it is being answered."""
    with serving(guest_request_timeout_s=10, stopped=True) as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.wait_until_handled(client.send(get(URL, "Prefer: wait=30", 'If-None-Match: "1"') + get()[:-2]))
        for _ in range(30):
            served.move(1)
        assert status(client.answer()) == 304
        assert status(client.ask(b"\r\n")) == 200


def test_half_a_request_after_an_answer_has_the_deadline_of_a_request() -> None:
    """A guest that was answered a moment ago is closed when its next request is not complete in time, and not before."""
    with serving(guest_request_timeout_s=10, stopped=True) as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.wait_until_handled(client.send(get()[:-2]))
        for _ in range(10):
            served.move(1)
        assert client.quiet()
        served.move(1)
        assert client.closed()


def test_a_guest_that_sends_nothing_has_the_deadline_of_a_request() -> None:
    """It is closed in time also if a guest that was answered may be idle for longer than the machine has been running."""
    with serving(guest_request_timeout_s=10, guest_idle_timeout_s=1e9, stopped=True) as served:
        client = served.client()
        until(lambda: served.endpoint.connections)
        served.move(11)
        assert client.closed()


def test_a_guest_that_does_not_close_after_an_unreadable_request_is_closed() -> None:
    """The service waits two seconds for the guest to close first."""
    with serving(stopped=True) as served:
        client = served.client()
        assert status(client.ask(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n")) == 400
        (connection,) = served.endpoint.connections
        for _ in range(2):
            served.move(1)
        assert connection in served.endpoint.connections
        served.move(1)
        until(lambda: connection not in served.endpoint.connections)


def test_a_body_followed_by_half_a_head_is_not_taken_for_a_head() -> None:
    """The bytes of one request do not count for the limits of the next."""
    with serving() as served:
        client = served.client()
        body = b'{"StartRequests":[]}' + b" " * 20_000
        client.send(get(URL, f"Content-Length: {len(body)}", method="POST") + body + get()[:-2])
        assert status(client.answer()) == 400
        assert status(client.ask(b"\r\n")) == 200


def test_a_machine_that_gets_another_address_keeps_its_connections() -> None:
    """An added address does not disturb a long poll: only a lost address makes connections look up their machine again."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.wait_until_handled(client.send(get(URL, "Prefer: wait=30", 'If-None-Match: "1"')))
        assert client.quiet()
        more = FLEET.replace('["127.0.0.10"]', '["127.0.0.10", "127.0.0.12"]')
        served.service.control.apply_fleet(parse_fleet(more, "the test"), OPERATOR)
        assert status(served.client("127.0.0.12").ask(get())) == 200
        served.reboot("shop", "web-0")
        assert status(client.answer()) == 200


def test_a_connection_counts_for_the_present_owner_of_its_address() -> None:
    """When an address moves to another machine, an open connection moves to that machine's share."""
    with serving() as served:
        client = served.client(WEB_0)
        assert status(client.ask(get())) == 200
        swapped = FLEET.replace("127.0.0.10", "127.0.0.12").replace("127.0.0.20", "127.0.0.10")
        served.service.control.apply_fleet(parse_fleet(swapped, "the test"), OPERATOR)
        assert status(client.ask(get())) == 200
        documents = served.server.documents
        web, vm = documents.callers.named("shop", "web-0"), documents.callers.named("solo", "vm")
        assert web is not None
        assert vm is not None
        assert (web.connections, vm.connections) == (0, 1)
        client.socket.close()
        until(lambda: vm.connections == 0)
