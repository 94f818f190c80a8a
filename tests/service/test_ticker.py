"""The ticker: one cycle at a time, the loop around it, and moving the clock."""

import logging
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.errors import Conflict, Refused
from forewarn.core.model import (
    Actor,
    EventType,
    Machine,
    MaintenanceRequest,
    OnFailure,
    Source,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.executors import OrderReport
from forewarn.service.clock import SystemClock
from forewarn.service.settings import Settings
from forewarn.service.ticker import BACKOFF_S, BATCH, CONFLICT_WAIT_S, Ticker
from forewarn.store import EventQuery, Store
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START
from tests.support.services import (
    OPERATOR,
    AwayStore,
    BlindStore,
    BrittleStore,
    ScriptedExecutor,
    make_service,
    reboot,
    ticker_with,
)
from tests.support.waiting import PATIENCE_S, until


def test_one_cycle_does_a_bounded_batch_and_logs_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """A cycle ticks at most BATCH maintenances, however many are due; the next cycle ticks the rest."""
    service = make_service(MemoryStore(), scopes=BATCH + 5)
    for i in range(BATCH + 5):
        reboot(service, f"s-{i}")
    service.ticker.cycle_until_idle()
    service.clock.move_to(START + timedelta(minutes=15))
    with caplog.at_level(logging.INFO, "forewarn.service.ticker"):
        assert service.ticker.cycle()
        assert [r.getMessage() for r in caplog.records] == [f"started {BATCH} event(s)"]
    started = service.store.events(EventQuery(statuses=[Status.STARTED], limit=500)).events
    assert len(started) == BATCH
    service.ticker.cycle_until_idle()
    assert len(service.store.events(EventQuery(statuses=[Status.STARTED], limit=500)).events) == BATCH + 5
    assert not service.ticker.cycle()


def test_what_becomes_due_does_not_wait_for_a_long_backlog() -> None:
    """Half of a batch are the latest, so a single event starts in the next cycle, and the earliest ones go on starting."""
    service = make_service(MemoryStore(), scopes=3 * BATCH + 1)
    earliest = [reboot(service, f"s-{i}") for i in range(BATCH)]
    for step in (1, 2):
        service.ticker.cycle_until_idle()
        service.clock.move_to(START + timedelta(seconds=step))
        last = [reboot(service, f"s-{i}") for i in range(BATCH, 3 * BATCH)] if step == 1 else [reboot(service, "s-300")]
    service.ticker.cycle_until_idle()
    service.clock.move_to(START + timedelta(minutes=15, seconds=2))
    assert service.ticker.cycle()
    started = {e.id for e in service.store.events(EventQuery(statuses=[Status.STARTED], limit=500)).events}
    assert last[0] in started
    assert len(started) == BATCH
    assert len(started.intersection(earliest)) == BATCH // 2
    service.ticker.cycle_until_idle()
    assert len(service.store.events(EventQuery(statuses=[Status.STARTED], limit=500)).events) == 3 * BATCH + 1


class TwoCycles(Ticker):
    """Stops its loop after two cycles."""

    cycles = 0

    def cycle(self) -> bool:
        self.cycles += 1
        if self.cycles == 2:
            self.stop()
        return super().cycle()


def test_maintenances_that_cannot_be_ticked_take_no_place_in_a_batch() -> None:
    """While the earliest one waits to be tried again, the next ones go on starting beside the latest ones."""
    store = AwayStore()
    service = make_service(store, scopes=6)
    events = []
    for i in range(6):
        service.clock.move_to(START + timedelta(seconds=i))
        events.append(reboot(service, f"s-{i}"))
    service.ticker.cycle_until_idle()
    store.broken = service.control.event(events[0])[0].maintenance_id
    service.clock.move_to(START + timedelta(minutes=16))
    ticker_with(service, service.executor, TwoCycles, batch=2).run()
    started = [i for i, each in enumerate(events) if service.control.event(each)[0].status is Status.STARTED]
    assert started == [1, 4, 5]


def test_advance_does_everything_at_its_own_time() -> None:
    """In one call of three hours each start and end has the time at which it was due, and the clock ends at the target."""
    service = make_service(MemoryStore(), scopes=2, executor="simulated")
    first, second = reboot(service, "s-0"), reboot(service, "s-1")
    service.control.approve("s-1", "m", [second], Actor("s-1/m"))
    assert service.ticker.advance(3 * 3_600) == START + timedelta(hours=3)
    ended = {i: service.control.event(i)[0] for i in (first, second)}
    assert [ended[i].started for i in (first, second)] == [START + timedelta(minutes=15), START]
    assert [ended[i].ended for i in (first, second)] == [START + timedelta(minutes=25), START + timedelta(minutes=10)]


def test_advance_is_refused_if_the_clock_cannot_be_moved() -> None:
    """The system clock cannot be moved, and no clock goes backwards."""
    service = Service(Settings(store="memory:"), clock=SystemClock(), store=MemoryStore())
    with pytest.raises(Refused, match="--clock manual"):
        service.ticker.advance(1)
    manual = make_service(MemoryStore())
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(Refused, match="never goes backwards"):
            manual.ticker.advance(seconds)
    assert manual.clock.now() == START


def test_trouble_does_not_make_the_loop_spin() -> None:
    """While nothing can be written, the loop waits longer after every try, and no change ends the wait."""
    store = BrittleStore()
    service = make_service(store, enabled=False)
    reboot(service)
    service = make_service(store, scopes=1)
    reboot(service)
    service.clock.move_to(START + timedelta(minutes=15))
    store.full = True
    waits: list[tuple[float, int]] = []

    def wait(event: threading.Event, seconds: float) -> None:
        assert event is ticker._stopping
        waits.append((seconds, store.attempts))
        ticker.nudge()
        if len(waits) == 7:
            ticker.stop()

    ticker = ticker_with(service, service.executor, wait=wait)
    ticker.run()
    assert [seconds for seconds, _ in waits] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [tried for _, tried in waits] == [1, 2, 3, 4, 5, 6, 7]


def test_a_maintenance_that_cannot_be_ticked_does_not_make_the_loop_spin() -> None:
    """The maintenance stays due, but the loop waits before it tries again."""
    store = AwayStore()
    service = make_service(store)
    event_id = reboot(service)
    service.ticker.cycle_until_idle()
    store.broken = service.control.event(event_id)[0].maintenance_id
    service.clock.move_to(START + timedelta(minutes=15))
    waits: list[float] = []

    def wait(event: threading.Event, seconds: float) -> None:
        assert event is ticker._nudged
        waits.append(seconds)
        if len(waits) == 3:
            ticker.stop()

    ticker = ticker_with(service, service.executor, wait=wait)
    ticker.run()
    assert len(waits) == 3
    assert min(waits) >= BACKOFF_S[0]


def test_repeated_conflicts_do_not_lengthen_the_wait() -> None:
    """Hundreds of guests may approve while a tick is decided: after the last of them the event starts soon."""

    class BusyStore(BrittleStore):
        conflicts = 12

        def apply(self, change: Change) -> None:
            if self.full and self.conflicts:
                self.conflicts -= 1
                raise Conflict("another writer was first")
            MemoryStore.apply(self, change)
            if self.full:
                ticker.stop()

    store = BusyStore()
    service = make_service(store)
    event_id = reboot(service)
    service.ticker.cycle_until_idle()
    service.clock.move_to(START + timedelta(minutes=15))
    store.full = True
    waits: list[float] = []
    ticker = ticker_with(service, service.executor, wait=lambda _, seconds: waits.append(seconds))
    ticker.run()
    assert waits == [CONFLICT_WAIT_S] * 12
    assert service.control.event(event_id)[0].status is Status.STARTED


def test_an_unexpected_error_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged once with its traceback, and the loop continues."""

    class Surprising(ScriptedExecutor):
        surprises = 2

        def reports(self, now: datetime) -> list[OrderReport]:
            if self.surprises:
                self.surprises -= 1
                raise RuntimeError("unexpected")
            return []

    service = make_service(MemoryStore())
    ticker = ticker_with(service, Surprising())
    thread = threading.Thread(target=ticker.run, daemon=True)
    with caplog.at_level(logging.INFO, "forewarn.service.ticker"):
        thread.start()
        until(lambda: "the ticker works again" in caplog.text)
    ticker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert caplog.text.count("RuntimeError: unexpected") == 1


def test_the_loop_survives_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once, not every second; when the store is back, the loop continues by itself."""
    store = AwayStore()
    service = make_service(store, enabled=False)
    thread = threading.Thread(target=service.ticker.run, daemon=True)
    store.away = True
    with caplog.at_level(logging.INFO, "forewarn.service.ticker"):
        thread.start()
        until(lambda: store.refused >= 3)
        assert caplog.text.count("the disk is gone") == 1
        store.away = False
        service.ticker.nudge()
        until(lambda: "the ticker works again" in caplog.text)
    service.ticker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_cycle_outside_the_loop_counts() -> None:
    """An emulator makes one before it says that it is ready; the loop may not have run yet."""
    ticker = make_service(MemoryStore()).ticker
    assert ticker.cycled_at_s is None
    ticker.cycle()
    assert ticker.cycled_at_s is not None


def test_every_cycle_of_a_long_advance_counts() -> None:
    """The loop waits during an `advance`, and the ticker is at work all the same."""
    service = make_service(MemoryStore(), executor="simulated")
    reboot(service)
    seen: list[float | None] = []

    class Seeing:
        def next_due(self) -> None:
            return None

        def do(self, now: datetime) -> int:
            seen.append(ticker.cycled_at_s)
            return 0

    ticker = ticker_with(service, service.executor, monotonic=partial(next, count(1.0)))
    ticker.call_periodically(Seeing())
    ticker.advance(3_600)
    assert len(seen) > 3
    assert len(set(seen)) == len(seen)


def test_the_loop_survives_not_knowing_when_to_wake() -> None:
    """A store that fails between a cycle and the wait for the next does not end the loop."""
    service = make_service(BlindStore())
    thread = threading.Thread(target=service.ticker.run, daemon=True)
    thread.start()
    until(lambda: service.ticker.cycled_at_s is not None)
    event_id = reboot(service)
    service.ticker.cycle_until_idle()
    service.clock.move_to(START + timedelta(minutes=15))
    service.ticker.nudge()
    until(lambda: service.control.event(event_id)[0].status is Status.STARTED)
    service.ticker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_maintenance_that_cannot_be_ticked_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """In the loop, an unexpected error is logged and tried again later; the other maintenances continue."""
    store = AwayStore()
    service = make_service(store, scopes=3)
    events = [reboot(service, f"s-{i}") for i in range(3)]
    service.ticker.cycle_until_idle()
    store.broken = service.control.event(events[1])[0].maintenance_id
    service.clock.move_to(START + timedelta(minutes=15))
    with pytest.raises(RuntimeError):
        service.ticker.cycle()
    thread = threading.Thread(target=service.ticker.run, daemon=True)
    thread.start()
    until(lambda: all(service.control.event(events[i])[0].status is Status.STARTED for i in (0, 2)))
    # Ids are random: the broken maintenance may be ticked last.
    until(lambda: "cannot be ticked" in caplog.text)
    assert service.control.event(events[1])[0].status is Status.SCHEDULED
    service.ticker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_wave_that_is_first_in_the_queue_again_is_woken(store: Store) -> None:
    """The wave ahead moves back because its event of another scope is cancelled: no change in the shared scope says so."""
    service = make_service(store, scopes=3)
    control = service.control
    control.put_scope(replace(store.scopes()["s-1"], approve_user_events=True), OPERATOR)
    targets = Targets(machines=(("s-1", "m"),))
    control.submit(MaintenanceRequest(type=EventType.REDEPLOY, targets=targets, emergency=True), OPERATOR)
    # It is ahead, because its event of s-1 is approved from the start. The emergency keeps that event waiting.
    targets = Targets(machines=(("s-0", "m"), ("s-1", "m")))
    ahead = control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=targets, source=Source.USER), OPERATOR)
    targets = Targets(machines=(("s-0", "m"), ("s-2", "m")))
    behind = control.submit(MaintenanceRequest(type=EventType.REDEPLOY, targets=targets), OPERATOR)
    service.ticker.cycle_until_idle()
    service.clock.move_to(START + timedelta(hours=1))
    service.ticker.cycle_until_idle()
    assert {event.status for event in control.maintenance(behind)[1]} == {Status.SCHEDULED}
    (blocked,) = [event for event in control.maintenance(ahead)[1] if event.scope == "s-1"]
    control.cancel_event(blocked.id, OPERATOR)
    service.ticker.cycle_until_idle()
    assert {event.status for event in control.maintenance(behind)[1]} == {Status.STARTED}


def test_a_wave_behind_one_that_left_the_queue_is_woken(store: Store) -> None:
    """A retried order takes the next wave of its maintenance out of the queue; no change in the shared scope says so."""
    service = make_service(store, scopes=4, enabled=False)
    control = service.control
    for scope in ("s-0", "s-2"):
        control.put_machine(Machine(scope=scope, name="n", update_domain=1), OPERATOR)
    targets = Targets(machines=tuple(key for key in service.store.inventory().machines if key[0] != "s-3"))
    request = MaintenanceRequest(type=EventType.FREEZE, targets=targets, on_failure=OnFailure.CONTINUE)
    ahead = control.submit(request, OPERATOR)
    service.ticker.cycle_until_idle()
    first_wave = [event for event in control.maintenance(ahead)[1] if event.wave == 1]
    targets = Targets(machines=(("s-2", "n"),))
    control.submit(MaintenanceRequest(type=EventType.FREEZE, targets=targets, emergency=True), OPERATOR)
    targets = Targets(machines=(("s-0", "n"), ("s-3", "m")))
    later = START + timedelta(minutes=1)
    behind = control.submit(MaintenanceRequest(type=EventType.FREEZE, targets=targets, not_before=later), OPERATOR)
    for event in first_wave:
        control.take_order(event.id, OPERATOR, node="x")
        control.report_order(event.id, Outcome(event.scope != "s-1", "broke"), OPERATOR)
    service.ticker.cycle_until_idle()
    service.clock.move_to(later)
    service.ticker.cycle_until_idle()
    waiting = control.maintenance(behind)[1][0]
    assert [reason.code for reason in control.why(waiting.id)] == ["queue"]
    (failed,) = [event for event in first_wave if event.scope == "s-1"]
    control.resolve_failure(failed.id, Verb.RETRY, OPERATOR)
    service.ticker.cycle_until_idle()
    assert control.event(waiting.id)[0].status is Status.STARTED
