"""Long polls and first calls: which are answered, in which order, and what a lost connection leaves behind."""

import select
import threading

from forewarn.endpoint.connection import Connection
from forewarn.endpoint.endpoint import WAKE_BATCH
from forewarn.endpoint.sockets import GuestSocket
from tests.support.guest_service import URL, VM, WEB_0, WEB_1, get, serving, status, turn
from tests.support.waiting import PATIENCE_S, until

WAIT = get(URL, "Prefer: wait=30", 'If-None-Match: "1"')


def test_a_closed_connection_frees_its_long_poll() -> None:
    """A long poll whose guest closed the connection no longer counts as waiting."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        caller, view = served.server.documents.callers.named("shop", "web-0"), served.server.documents.views["shop"]
        assert caller is not None
        waiting = [served.client().send(WAIT) for _ in range(4)]
        until(lambda: caller.waiting == 4 == len(view.waiters))
        waiting[0].socket.close()
        until(lambda: caller.waiting == 3 == len(view.waiters))
        served.client().send(WAIT)
        until(lambda: caller.waiting == 4)
        served.close()
        until(lambda: caller.waiting == 0 == len(view.waiters))


def test_a_guest_that_closes_its_half_is_answered_at_once() -> None:
    """Its long poll ends with a 304: most guests that close their half have left."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.wait_until_handled(client.send(WAIT))
        assert client.quiet()
        client.socket.shutdown(1)
        whole = client.rest()
        assert status(whole) == 304
        assert b"Connection: close\r\n" in whole


def test_other_requests_come_between_batches_of_woken_long_polls() -> None:
    """A poll that arrives while a batch of long polls is answered is answered before the next batch."""
    order: list[str] = []
    all_wait = threading.Event()
    waiters = WAKE_BATCH + 10

    class ObservedConnection(Connection):
        def data_received(self, data: bytes) -> None:
            order.append("other" if self.address == VM else "waiter")
            super().data_received(data)

        def write(self, status: int, data: bytes, *, keep: bool) -> None:
            order.append("answer")  # of a long poll: the fast path does not come by here
            if all_wait.is_set() and len(order) == 1:
                other.send(get())
                assert select.select([other_socket], [], [], PATIENCE_S)[0]
            super().write(status, data, keep=keep)

    with serving(guest_connections=200, guest_waiting=200, connection=ObservedConnection) as served:
        other = served.client(VM)
        assert [status(client.ask(get())) for client in (served.client(), other)] == [200, 200]
        (connection,) = (c for c in served.endpoint.connections if isinstance(c, Connection) and c.address == VM)
        assert isinstance(connection.transport, GuestSocket)
        other_socket = connection.transport._socket
        view = served.server.documents.views["shop"]
        clients = [served.client().send(WAIT) for _ in range(waiters)]
        until(lambda: len(view.waiters) == waiters)
        order.clear()
        all_wait.set()
        served.reboot("shop", "web-0")
        assert status(other.answer()) == 200
        assert all(status(client.answer()) == 200 for client in clients)
        assert order == ["answer"] * WAKE_BATCH + ["other"] + ["answer"] * (waiters - WAKE_BATCH)


def test_a_held_answer_contains_later_changes() -> None:
    """A held answer has the document of the moment it is sent."""
    with serving(first_call_delay_s=30, stopped=True) as served:
        client = served.client()
        served.wait_until_handled(client.send(get()))
        assert served.server.documents.views["shop"].state.enabled
        served.reboot("shop", "web-0")
        served.move(29)
        assert client.quiet()
        served.move(1)
        assert b'"DocumentIncarnation":2' in client.answer()


def test_a_second_guest_of_the_scope_is_held_as_well() -> None:
    """While a scope is being enabled its other guests are held too, on the fast path and on the parser's."""
    with serving(first_call_delay_s=30, stopped=True) as served:
        warm = served.client(VM)
        served.wait_until_handled(warm.send(get()))
        served.move(30)
        assert status(warm.answer()) == 200
        for _ in range(2):
            assert status(warm.ask(get())) == 200
        assert served.endpoint.counters.remembered == 1
        served.store.go.clear()
        first, second = served.client(WEB_0), served.client(WEB_1)
        for client in (first, second):
            client.send(get()).arrived()
        turn(served.endpoint.loop)
        assert first.quiet()
        served.store.go.set()
        served.wait_until_handled()
        served.move(29)
        assert first.quiet()
        assert second.quiet()
        served.move(1)
        assert status(second.answer()) == status(first.answer()) == 200
        assert [change.audit[0].action for change in served.store.applied].count("scope enabled") == 2


def test_a_store_that_fails_while_enabling_holds_no_answer() -> None:
    """The guest gets 503 at once; the next request tries again."""
    with serving(first_call_delay_s=30, stopped=True) as served:
        served.store.away = True
        assert status(served.client().ask(get())) == 503
        assert served.server.documents.views["shop"].held_until_s == 0
        served.store.away = False
        again = served.client()
        served.wait_until_handled(again.send(get()))
        served.move(30)
        assert status(again.answer()) == 200
