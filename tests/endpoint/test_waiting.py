"""Long polls and first calls: who is woken, in which order, and what is left when somebody leaves."""

import select
from collections import deque

import pytest

from forewarn.endpoint import endpoint
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.documents import Waiter
from forewarn.endpoint.exchange import Exchange
from forewarn.endpoint.sockets import GuestSocket
from tests.support.guest_service import URL, VM, WEB_0, WEB_1, get, serving, status, turn
from tests.support.waiting import PATIENCE_S, until

WAIT = get(URL, "Prefer: wait=30", 'If-None-Match: "1"')


def test_who_hangs_up_makes_room() -> None:
    """A long poll whose guest has left no longer counts as waiting, and no longer as seen."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        caller, view = served.side.documents.named("shop", "web-0"), served.side.documents.views["shop"]
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
    """Most who close have left: its long poll ends there and then, properly."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.heard(client.send(WAIT))
        assert client.quiet()
        client.socket.shutdown(1)
        whole = client.rest()
        assert status(whole) == 304
        assert b"Connection: close\r\n" in whole


def test_waking_very_many_lets_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters are answered in batches: a poll that comes meanwhile is answered before the last of them."""
    monkeypatch.setattr(endpoint, "WAKE_BATCH", 5)
    order: list[str] = []
    with serving(guest_connections=200, guest_waiting=200) as served:
        other = served.client(VM)
        assert [status(client.ask(get())) for client in (served.client(), other)] == [200, 200]
        (others,) = (c for c in served.guests.connections if isinstance(c, Connection) and c.address == VM)
        assert isinstance(others.transport, GuestSocket)
        socket = others.transport._socket
        view = served.side.documents.views["shop"]
        clients = [served.client().send(WAIT) for _ in range(60)]
        until(lambda: len(view.waiters) == 60)
        wake, end_wait, received = served.guests._wake_batch, Exchange.end_wait, Connection.data_received

        def waking(waiters: deque[Waiter]) -> None:
            if len(order) == 5:
                other.send(get())
                assert select.select([socket], [], [], PATIENCE_S)[0]
            wake(waiters)

        def ending(waiter: Exchange) -> None:
            order.append("waiter")
            end_wait(waiter)

        def receiving(connection: Connection, data: bytes) -> None:
            order.append("other")
            received(connection, data)

        monkeypatch.setattr(served.guests, "_wake_batch", waking)
        monkeypatch.setattr(Exchange, "end_wait", ending)
        monkeypatch.setattr(Connection, "data_received", receiving)
        served.reboot("shop", "web-0")
        assert status(other.answer()) == 200
        assert all(status(client.answer()) == 200 for client in clients)
        # It came during the second batch, and was answered before the third.
        assert order == ["waiter"] * 10 + ["other"] + ["waiter"] * 50


def test_a_change_while_the_first_answer_is_held_is_in_it() -> None:
    """What is held back is the answer, not the document: it is the one of the moment it is sent."""
    with serving(first_call_delay_s=30, stopped=True) as served:
        client = served.client()
        served.heard(client.send(get()))
        assert served.side.documents.views["shop"].state.enabled
        served.reboot("shop", "web-0")
        served.move(29)
        assert client.quiet()
        served.move(1)
        assert b'"DocumentIncarnation":2' in client.answer()


def test_whoever_is_second_is_held_as_well() -> None:
    """While the scope is being enabled others of it must not slip through, on either lane."""
    with serving(first_call_delay_s=30, stopped=True) as served:
        warm = served.client(VM)
        served.heard(warm.send(get()))
        served.move(30)
        assert status(warm.answer()) == 200
        for _ in range(2):
            assert status(warm.ask(get())) == 200
        assert served.guests.counters.remembered == 1
        served.store.go.clear()
        first, second = served.client(WEB_0), served.client(WEB_1)
        for client in (first, second):
            client.send(get()).arrived()
        turn(served.guests.loop)
        assert first.quiet()
        served.store.go.set()
        served.heard()
        served.move(29)
        assert first.quiet()
        assert second.quiet()
        served.move(1)
        assert status(second.answer()) == status(first.answer()) == 200
        assert [change.audit[0].action for change in served.store.applied].count("scope enabled") == 2


def test_a_store_that_fails_while_enabling_holds_nobody() -> None:
    """503 at once; the next request tries again."""
    with serving(first_call_delay_s=30, stopped=True) as served:
        served.store.away = True
        assert status(served.client().ask(get())) == 503
        assert served.side.documents.views["shop"].held_until_s == 0
        served.store.away = False
        again = served.client()
        served.heard(again.send(get()))
        served.move(30)
        assert status(again.answer()) == 200
