"""The guest server: it answers guests while it loads the fleet, and stops in time.

At its stop requests under way are finished, long polls get 304, and the rest is closed.
"""

import threading

from forewarn.app.guest_server import GuestServer
from forewarn.endpoint.documents import BATCH
from forewarn.store import EventQuery, MachineIdentity
from tests.support.guest_service import FLEET, STRANGER, URL, VM, WEB_0, Client, body, get, post, serving, status
from tests.support.waiting import PATIENCE_S, until


def test_guests_are_answered_as_soon_as_their_machine_is_loaded() -> None:
    """Any other caller gets 503, because it may be a machine; 404 only when all machines are loaded."""
    *of_shop, solo = FLEET.split("[[machines]]")
    batch = [f'\nscope = "shop"\nname = "more-{number}"\n' for number in range(BATCH - 2)]
    with serving("[[machines]]".join([*of_shop, *batch, solo])) as served:
        at_solo, go_on = threading.Event(), threading.Event()

        def stop_at_solo(machine: MachineIdentity) -> None:
            if machine.scope == "solo":
                at_solo.set()
                assert go_on.wait(PATIENCE_S)

        served.store.before_identity = stop_at_solo
        server = GuestServer(served.service)
        loading = threading.Thread(target=server.start)
        loading.start()
        assert at_solo.wait(PATIENCE_S)
        port = int(server.listener.urls[0].rpartition(":")[2])
        web, vm, stranger = (Client(port, address) for address in (WEB_0, VM, STRANGER))
        assert status(web.ask(get())) == 200
        for client in (vm, stranger):
            answer = client.ask(get())
            assert (status(answer), body(answer)) == (503, b'{"error":"Service unavailable"}')
            assert b"Retry-After: 1" in answer
        assert server.endpoint.counters.unknown == 0
        go_on.set()
        loading.join(PATIENCE_S)
        assert [status(client.ask(get())) for client in (web, vm, stranger)] == [200, 200, 404]
        assert (server.endpoint.counters.unknown, len(server.documents.callers)) == (1, BATCH + 1)
        assert served.store.snapshot_of("shop").enabled
        assert server.documents.views["shop"].state.enabled
        for client in (web, vm, stranger):
            client.socket.close()
        server.stop()


def test_every_connection_ends_properly() -> None:
    """A POST under way is answered and saved, a long poll gets 304, an idle connection and half a request are closed."""
    with serving() as served:
        idle, waiter, poster, half = (served.client() for _ in range(4))
        assert status(idle.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        waiter.send(get(URL, "Prefer: wait=30", 'If-None-Match: "2"'))
        half.send(get()[:-2])
        served.wait_until_handled(waiter, half)
        assert waiter.quiet()
        served.store.go.clear()
        vm = served.client("127.0.0.20")
        vm.send(get())
        poster.send(post(event_id))
        until(lambda: sum(getattr(c, "busy", False) for c in list(served.endpoint.connections)) == 3)
        stopping = threading.Thread(target=served.server.stop)
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
        assert not stopping.is_alive(), "the deadline ended it, not the end of the last connection"
        assert served.store.snapshot_of("solo").enabled
        assert len(served.store.events(EventQuery(scope="shop")).events[0].approvals) == 1
        assert not served.server.listener.accepting()


def test_a_store_that_hangs_does_not_keep_the_listener_running() -> None:
    """The listener stops at its deadline, even if a request is not answered."""
    with serving(stopped=True) as served:
        client, listener = served.client(), served.server.listener
        served.store.go.clear()
        client.send(get())
        until(lambda: any(getattr(c, "busy", False) for c in list(served.endpoint.connections)))
        stopping = threading.Thread(target=listener.stop, args=(PATIENCE_S,))
        stopping.start()
        until(lambda: not listener.accepting())
        served.move(PATIENCE_S - 1)
        assert served.endpoint.connections
        served.endpoint.loop.call_from_thread(lambda: None)
        served.monotonic.run()
        assert client.closed()
        stopping.join(PATIENCE_S / 2)
        assert not stopping.is_alive()
        served.store.go.set()


def test_a_stopping_service_accepts_no_connection() -> None:
    """A connection made while the service stops is closed without a response."""
    with serving() as served:
        served.endpoint.stopping = True
        assert served.client().closed()
        assert served.endpoint.counters.refused["stopping"] == 1
