"""Last-seen times and first sightings: noted by every poll, written in batches, never per poll."""

import threading
from datetime import timedelta

import pytest

from forewarn.app import guest_server
from forewarn.core.model import Actor
from forewarn.service.control import Control
from forewarn.store import EventFirstSeen, MachineLastSeen
from tests.endpoint.serving import START, URL, VM, WEB_0, WEB_1, get, serving, status
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(autouse=True)
def _all_is_written_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the last writes may take when the service stops is not what these tests are about."""
    monkeypatch.setattr(guest_server, "LAST_WRITES_S", PATIENCE_S)


def test_polls_write_nothing() -> None:
    """A hundred polls of three machines: two scopes enabled, and one batch with the three when it is time."""
    with serving(stopped=True) as served:
        clients = [served.client(address) for address in (WEB_0, WEB_1, VM)]
        for _ in range(100):
            assert {status(client.ask(get())) for client in clients} == {200}
        assert [change.audit[0].action for change in served.store.applied[1:]] == ["scope enabled"] * 2
        assert served.store.seen_batches == []
        served.side.parts.write_seen()
        until(lambda: bool(served.store.seen_batches))
        (batch,) = served.store.seen_batches
        assert sorted((seen.scope, seen.name) for seen in batch) == [
            ("shop", "web-0"),
            ("shop", "web-1"),
            ("solo", "vm"),
        ]
        served.side.parts.write_seen()
        assert len(served.store.seen_batches) == 1


def test_the_last_time_counts() -> None:
    """What is written is when a machine was last seen, on the service clock; also in the lane of remembered requests."""
    with serving(stopped=True) as served:
        client = served.client()
        for _ in range(4):
            served.advance(minutes=1)
            assert status(client.ask(get())) == 200
        assert served.guests.counters.remembered > 0
        served.side.parts.write_seen()
        until(lambda: bool(served.store.seen_batches))
        assert served.store.last_seen([("shop", "web-0")]) == {("shop", "web-0"): START + timedelta(minutes=4)}


def test_what_could_not_be_saved_is_saved_the_next_time() -> None:
    """The store is away for a moment: whoever asked once and never again has asked all the same."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        served.store.away = True
        served.side.parts.write_seen()
        until(lambda: bool(served.guests.to_write))
        served.store.away = False
        served.side.parts.write_seen()
        until(lambda: bool(served.store.seen_batches))
        assert served.store.last_seen([("shop", "web-0")]) == {("shop", "web-0"): START}


def test_what_fails_a_check_is_not_seen() -> None:
    """A machine is seen when it asks for its document in a way that would enable its scope."""
    with serving() as served:
        client = served.client()
        for request in (get("/metadata/versions"), get("/nowhere"), get(URL, "Origin: x"), get(URL, method="PUT")):
            client.ask(request)
        served.side.parts.write_seen()
        served.side.stop()
        assert served.store.seen_batches == []


def test_it_is_written_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, every few seconds; and what is left when the service stops."""
    monkeypatch.setattr(guest_server, "SEEN_EVERY_S", 0.1)
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        until(lambda: len(served.store.seen_batches) == 1)
    monkeypatch.setattr(guest_server, "SEEN_EVERY_S", 60.0)
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        assert served.store.seen_batches == []
    until(lambda: len(served.store.seen_batches) == 1)


def test_a_store_that_is_away_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Losing the last few is allowed; it is said, and polls go on."""
    with serving() as served:
        client = served.client()
        assert status(client.ask(get())) == 200
        served.store.away = True
        served.side.parts.write_seen()
        until(lambda: "when guests were last seen was not saved: the store is away" in caplog.text)
        assert status(client.ask(get())) == 200


def test_a_machine_that_left_is_not_written() -> None:
    """Nothing is kept of who is no longer there."""
    with serving() as served:
        assert status(served.client(VM).ask(get())) == 200
        caller = served.side.documents.named("solo", "vm")
        assert caller is not None
        caller.view = None
        served.side.parts.last_seen.write([caller])
        assert served.store.seen_batches == []


def test_a_guest_that_asks_another_node_keeps_its_scope_enabled() -> None:
    """A scope is disabled by a node only when the store knows of no guest that asked any other, for as long."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        served.advance(hours=20)
        served.store.record_last_seen([MachineLastSeen("shop", "web-1", START + timedelta(hours=20))])
        served.advance(hours=23)
        assert served.store.snapshot_of("shop").enabled
        served.advance(hours=1)
        assert not served.store.snapshot_of("shop").enabled


def test_a_scope_that_another_node_disabled_is_let_be() -> None:
    """Nothing is left to do, and the ticker comes to rest."""
    with serving() as served:
        assert status(served.client().ask(get())) == 200
        another = Control(served.store, served.service.clock, new_id=str, order_timeout_s=0)
        another.disable("shop", Actor("idle watch", "another node"))
        served.service.clock.move_to(START + timedelta(hours=24))
        assert [served.service.ticker.cycle() for _ in range(2)] == [True, False]


def test_a_scope_that_another_node_enabled_is_shown_as_it_is() -> None:
    """Whoever asks a node that has not heard of the enabling yet sees the new epoch, not the document before it."""
    with serving() as served:
        served.reboot("shop", "web-0")
        assert served.store.snapshot_of("shop").incarnation == 2
        another = Control(served.store, served.service.clock, new_id=str, order_timeout_s=0)
        another.enable("shop", Actor("shop/web-1", "another node"))
        assert b'ETag: "1"\r\n' in served.client().ask(get())


def test_a_machine_sees_its_own_events_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of a scope get the document, again and again: who is in the event is written as having seen it, once."""
    monkeypatch.setattr(guest_server, "SIGHTINGS_EVERY_S", 60.0)
    with serving() as served:
        clients = [served.client(address) for address in (WEB_0, WEB_1)]
        for client in clients:
            assert status(client.ask(get())) == 200
        event_id = served.reboot("shop", "web-0")
        for client in clients * 3:
            assert event_id.encode() in client.ask(get())
    assert served.store.sighting_batches == [[EventFirstSeen(event_id, "web-0", START)]]


def test_many_sightings_let_others_write_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch at a time, each behind whoever came meanwhile: an approval does not wait for all of them."""
    monkeypatch.setattr(guest_server, "SIGHTINGS_EVERY_S", 60.0)
    sightings = [EventFirstSeen("X", f"web-{number}", START) for number in range(1_200)]
    with serving() as served:
        before: list[int] = []
        go = threading.Event()
        served.side._writer.submit(go.wait)
        served.guests._sightings += sightings
        served.side.parts.write_sightings()
        served.side._writer.submit(lambda: before.append(len(served.store.sighting_batches)))
        go.set()
        until(lambda: len(served.store.sighting_batches) == 3)
        assert before == [1]
        assert [len(batch) for batch in served.store.sighting_batches] == [500, 500, 200]
        served.guests._sightings += sightings
    assert [len(batch) for batch in served.store.sighting_batches[3:]] == [500, 500, 200]
    assert [each for batch in served.store.sighting_batches for each in batch] == sightings * 2


def test_an_unknown_error_of_the_store_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises, it is said, and the next are written."""

    def fail(_: object) -> None:
        raise ValueError("on purpose")

    with serving() as served:
        with monkeypatch.context() as patch:
            patch.setattr(served.store, "record_last_seen", fail)
            assert status(served.client().ask(get())) == 200
            served.side.parts.write_seen()
            until(lambda: "on purpose" in caplog.text)
        assert status(served.client(WEB_1).ask(get())) == 200
        served.side.parts.write_seen()
        until(lambda: len(served.store.seen_batches) == 1)
