"""An orderly end: what is in flight is finished, waiters get their 304, the rest is closed, all of it in time."""

import threading

import pytest

from forewarn.app import guest_server
from forewarn.store import EventQuery
from tests.support.guest_service import URL, get, post, serving, status
from tests.support.waiting import PATIENCE_S, until


def test_everybody_is_let_go_properly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A POST under way is answered and saved, a waiter gets 304, an idle connection and half a request are closed."""
    monkeypatch.setattr(guest_server, "STOP_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(guest_server, "LAST_WRITES_S", PATIENCE_S)
    with serving() as served:
        idle, waiter, poster, half = (served.client() for _ in range(4))
        assert status(idle.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        waiter.send(get(URL, "Prefer: wait=30", 'If-None-Match: "2"'))
        half.send(get()[:-2])
        served.heard(waiter, half)
        assert waiter.quiet()
        served.store.go.clear()
        vm = served.client("127.0.0.20")
        vm.send(get())
        poster.send(post(event_id))
        until(lambda: sum(getattr(c, "busy", False) for c in served.guests.connections) == 3)
        stopping = threading.Thread(target=served.side.stop)
        stopping.start()
        assert idle.closed()
        assert half.closed()
        ended = waiter.rest()
        assert status(ended) == 304
        assert b"Connection: close\r\n" in ended
        assert b"Preference-Applied: wait=30\r\n" in ended
        served.store.go.set()
        assert b"Connection: close\r\n" in (enabled := vm.rest())
        assert status(enabled) == 200
        assert status(poster.rest()) == 200
        stopping.join(PATIENCE_S / 2)
        assert not stopping.is_alive(), "the end came by its deadline, not because everybody was let go"
        assert served.store.snapshot_of("solo").enabled
        assert len(served.store.events(EventQuery(scope="shop")).events[0].approvals) == 1
        assert not served.side.listener.accepting()


def test_a_store_that_hangs_does_not_hold_up_the_listener() -> None:
    """The listener ends within its time, answered or not."""
    with serving(stopped=True) as served:
        client, listener = served.client(), served.side.listener
        served.store.go.clear()
        client.send(get())
        until(lambda: any(getattr(c, "busy", False) for c in served.guests.connections))
        stopping = threading.Thread(target=listener.stop, args=(PATIENCE_S,))
        stopping.start()
        until(lambda: not listener.accepting())
        served.move(PATIENCE_S - 1)
        assert served.guests.connections
        served.guests.loop.call_from_thread(lambda: None)
        served.monotonic.run()
        assert client.closed()
        stopping.join(PATIENCE_S / 2)
        assert not stopping.is_alive()
        served.store.go.set()


def test_nobody_new_is_let_in() -> None:
    """A connection that comes while the service stops is closed without a word."""
    with serving() as served:
        served.guests.stopping = True
        assert served.client().closed()
        assert served.guests.counters.refused == 1
