"""Last-seen times and first sightings: noted by every poll, written in batches, never once per poll."""

import threading
from datetime import timedelta

import pytest

from forewarn.core.change import Change
from forewarn.core.model import Actor, ClockHold
from forewarn.service.control import Control
from forewarn.store import EventFirstSeen, MachineLastSeen
from tests.support.guest_service import START, URL, VM, WEB_0, WEB_1, get, serving, status
from tests.support.waiting import until


def test_polls_write_nothing() -> None:
    """A hundred polls of three machines enable two scopes, and are saved as one batch of three times."""
    with serving(stopped=True) as served:
        clients = [served.client(address) for address in (WEB_0, WEB_1, VM)]
        for _ in range(100):
            assert {status(client.ask(get())) for client in clients} == {200}
        assert [change.audit[0].action for change in served.store.applied[1:]] == ["scope enabled"] * 2
        assert served.store.seen_batches == []
        served.server.parts.write_seen()
        until(lambda: bool(served.store.seen_batches))
        (batch,) = served.store.seen_batches
        assert sorted((seen.scope, seen.name) for seen in batch) == [
            ("shop", "web-0"),
            ("shop", "web-1"),
            ("solo", "vm"),
        ]
        served.server.parts.write_seen()
        served.wait_until_handled()
        assert len(served.store.seen_batches) == 1


def test_the_time_of_the_last_poll_is_written() -> None:
    """The service clock's time of the last poll is written, also for polls on the fast path."""
    with serving(stopped=True) as served:
        client = served.client()
        for _ in range(4):
            served.advance(minutes=1)
            assert status(client.ask(get())) == 200
        assert served.endpoint.counters.remembered > 0
        served.server.parts.write_seen()
        until(lambda: bool(served.store.seen_batches))
        assert served.store.last_seen([("shop", "web-0")]) == {("shop", "web-0"): START + timedelta(minutes=4)}


def test_times_that_could_not_be_saved_are_saved_the_next_time() -> None:
    """A machine that polled once, while the store was away, is saved as seen once the store is back."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        served.store.away = True
        served.server.parts.write_seen()
        until(lambda: bool(served.endpoint.seen_callers))
        served.store.away = False
        served.server.parts.write_seen()
        until(lambda: bool(served.store.seen_batches))
        assert served.store.last_seen([("shop", "web-0")]) == {("shop", "web-0"): START}


def test_a_refused_request_does_not_count_as_seen() -> None:
    """Only a request for the document that would enable its scope counts as seen."""
    with serving() as served:
        client = served.client()
        for request in (get("/metadata/versions"), get("/nowhere"), get(URL, "Origin: x"), get(URL, method="PUT")):
            client.ask(request)
        served.server.parts.write_seen()
        served.server.stop()
        assert served.store.seen_batches == []


def test_times_are_written_at_intervals_and_at_the_end() -> None:
    """The listener writes them every few seconds, and the rest when the service stops."""
    with serving(seen_every_s=0.1) as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        until(lambda: len(served.store.seen_batches) == 1)
    with serving(seen_every_s=60.0) as served:
        assert status(served.client().ask(get())) == 200
        assert served.store.seen_batches == []
    assert len(served.store.seen_batches) == 1


def test_a_store_that_is_away_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The log has a warning, and polls are answered as before."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.store.away = True
        served.server.parts.write_seen()
        until(
            lambda: "could not save when guests were last seen or first saw an event: the store is away" in caplog.text
        )
        assert status(client.ask(get())) == 200


def test_a_removed_machine_is_not_written() -> None:
    """The last-seen time of a machine that left the inventory is dropped."""
    with serving() as served:
        assert status(served.client(VM).ask(get())) == 200
        caller = served.server.documents.callers.named("solo", "vm")
        assert caller is not None
        caller.view = None
        served.server.parts.last_seen.write([caller])
        assert served.store.seen_batches == []


def test_a_guest_that_polls_another_node_keeps_its_scope_enabled() -> None:
    """A node disables a scope only if the store knows of no recent request to another node either."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        served.advance(hours=20)
        served.store.record_last_seen([MachineLastSeen("shop", "web-1", START + timedelta(hours=20))])
        served.advance(hours=23)
        assert served.store.snapshot_of("shop").enabled
        served.advance(hours=1)
        assert not served.store.snapshot_of("shop").enabled


def test_a_confirmed_jump_of_the_clock_is_no_silence() -> None:
    """After an operator confirmed a jump, the 24 h of silence begin anew: by the clock alone, every scope would be silent."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        hold = ClockHold(trusted=START, noticed=START, jumped_s=30 * 3_600)
        served.store.apply(Change(at=START, hold=hold))
        served.advance(hours=30)
        assert served.store.snapshot_of("shop").enabled
        served.service.control.confirm_clock(Actor("operator"))
        served.advance(hours=23)
        assert served.store.snapshot_of("shop").enabled
        served.advance(hours=1)
        assert not served.store.snapshot_of("shop").enabled


def test_a_scope_that_another_node_disabled_is_left_alone() -> None:
    """The ticker finds nothing more to do after one cycle."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        another = Control(served.store, served.service.clock, new_id=str, order_timeout_s=0)
        another.disable("shop", Actor("idle watch", "another node"))
        served.service.clock.move_to(START + timedelta(hours=24))
        assert [served.service.ticker.cycle() for _ in range(2)] == [True, False]


def test_a_scope_that_another_node_enabled_is_shown_in_its_new_epoch() -> None:
    """A node that has not yet followed the enabling answers with the new epoch, not with the document before it."""
    with serving() as served:
        served.reboot("shop", "web-0")
        assert served.store.snapshot_of("shop").incarnation == 2
        another = Control(served.store, served.service.clock, new_id=str, order_timeout_s=0)
        another.enable("shop", Actor("shop/web-1", "another node"))
        assert b'ETag: "1"\r\n' in served.client().ask(get())


def test_only_the_first_sight_of_a_machines_own_event_is_written() -> None:
    """Two machines get the document several times: one sighting is written, of the machine in the event."""
    with serving(first_seen_every_s=60.0) as served:
        clients = [served.client(address) for address in (WEB_0, WEB_1)]
        for client in clients:
            assert status(client.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        for client in clients * 3:
            assert event_id.encode() in client.ask(get())
    assert served.store.sighting_batches == [[EventFirstSeen(event_id, "web-0", START)]]


def test_other_writes_come_between_batches_of_first_seen() -> None:
    """Each batch is queued behind the writes that came meanwhile: an approval does not wait for all of them."""
    sightings = [EventFirstSeen("X", f"web-{number}", START) for number in range(1_200)]
    with serving(first_seen_every_s=60.0) as served:
        before: list[int] = []
        go = threading.Event()
        served.server._writer.submit(go.wait)
        served.endpoint._first_seen += sightings
        served.server.parts.write_first_seen()
        served.server._writer.submit(lambda: before.append(len(served.store.sighting_batches)))
        go.set()
        until(lambda: len(served.store.sighting_batches) == 3)
        assert before == [1]
        assert [len(batch) for batch in served.store.sighting_batches] == [500, 500, 200]
        served.endpoint._first_seen += sightings
    assert [len(batch) for batch in served.store.sighting_batches[3:]] == [500, 500, 200]
    assert [each for batch in served.store.sighting_batches for each in batch] == sightings * 2


def test_an_unknown_error_of_the_store_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception is logged, and the next times are written."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        served.store.failure = ValueError("on purpose")
        served.server.parts.write_seen()
        until(lambda: "on purpose" in caplog.text)
        served.store.failure = None
        assert status(served.client(WEB_1).ask(get())) == 200
        served.server.parts.write_seen()
        until(lambda: len(served.store.seen_batches) == 1)
