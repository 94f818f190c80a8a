"""The loop around the core: decide, save, then act; bounded batches; what a crash between two of these leaves."""

import logging
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, ForewarnError, Invalid, InvalidFleet, NotFound, Refused, StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import (
    Actor,
    EventType,
    Machine,
    MaintenanceRequest,
    OrderState,
    Scope,
    ScopeKind,
    Status,
    Targets,
)
from forewarn.core.transitions import Verb
from forewarn.executors import Executor, OrderReport, Progress, Work
from forewarn.service.clock import ManualClock, ScaledClock, SystemClock, clock_for
from forewarn.service.control import MAX_DECISION_AGE_S, MAX_TRIES, Control
from forewarn.service.pruning import PRUNE_BATCH
from forewarn.service.settings import Settings
from forewarn.service.ticker import BACKOFF_S, BATCH, CONFLICT_WAIT_S, Ticker
from forewarn.store import EventQuery, Focus, Inventory, Store
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START
from tests.support.waiting import until

OPERATOR = Actor("operator")


def make_service(store: Store, *, scopes: int = 1, enabled: bool = True, **settings: object) -> Service:
    """`scopes` scopes s-0, s-1 … of one machine m each, on a manual clock."""
    options = {"executor": "external", **settings}
    service = Service(Settings(store="memory:", **options), clock=ManualClock(START), store=store, node="here")  # type: ignore[arg-type]
    names = [f"s-{i}" for i in range(scopes)]
    fleet = Fleet(
        {name: Scope(name=name, kind=ScopeKind.AVAILABILITY_SET) for name in names},
        {(name, "m"): Machine(scope=name, name="m", host="h") for name in names},
    )
    service.control.apply_fleet(fleet, OPERATOR)
    for name in names if enabled else ():
        service.control.enable(name, Actor("guest"))
    return service


def reboot(service: Service, scope: str = "s-0") -> str:
    """Schedule a Reboot of the scope's machine; the event's id."""
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=((scope, "m"),)))
    maintenance_id = service.control.submit(request, OPERATOR)
    return service.control.maintenance(maintenance_id)[1][0].id


def test_pretended_work_does_not_end_what_was_reported_otherwise() -> None:
    """An order that somebody reported as failed stays failed when the simulated work would have ended."""
    service = make_service(MemoryStore(), executor="simulated")
    event_id = reboot(service)
    service.ticker.advance(15 * 60)
    service.control.report_order(event_id, Outcome(ok=False, reason="burnt"), OPERATOR)
    service.ticker.advance(3_600)
    event, order = service.control.event(event_id)
    assert order is not None
    assert (event.status, order.state) == (Status.STARTED, OrderState.FAILED)
    service.control.settle_event(event_id, Verb.RETRY, OPERATOR)
    service.ticker.advance(3_600)
    assert service.control.event(event_id)[0].status is Status.COMPLETED


def test_one_cycle_does_a_bounded_batch_and_says_so_in_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """However much is due, a cycle takes at most BATCH maintenances; the next takes the rest."""
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


def test_advance_does_everything_at_its_own_time() -> None:
    """Three hours in one call: each start and end bears the time it was due, and the clock ends where it was sent."""
    service = make_service(MemoryStore(), scopes=2, executor="simulated")
    first, second = reboot(service, "s-0"), reboot(service, "s-1")
    service.control.approve("s-1", "m", [second], Actor("s-1/m"))
    assert service.ticker.advance(3 * 3_600) == START + timedelta(hours=3)
    ended = {i: service.control.event(i)[0] for i in (first, second)}
    assert [ended[i].started for i in (first, second)] == [START + timedelta(minutes=15), START]
    assert [ended[i].ended for i in (first, second)] == [START + timedelta(minutes=25), START + timedelta(minutes=10)]


def test_advance_is_refused_where_time_is_not_ours() -> None:
    """The system clock cannot be moved, and no clock goes backwards."""
    service = Service(Settings(store="memory:"), clock=SystemClock(), store=MemoryStore())
    with pytest.raises(Refused, match="--clock manual"):
        service.ticker.advance(1)
    manual = make_service(MemoryStore())
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(Refused, match="never goes backwards"):
            manual.ticker.advance(seconds)
    assert manual.clock.now() == START


class ScriptedExecutor(Executor):
    """Takes orders, remembers what it was asked, and answers `status` as told."""

    name = "scripted"

    def __init__(self, status: Progress | Outcome = Progress.UNKNOWN) -> None:
        self.asked: list[str] = []
        self.answer = status
        self.ended: list[OrderReport] = []

    def free_slots(self) -> int:
        return 2

    def status(self, work: Work) -> Progress | Outcome:
        self.asked.append("status")
        return self.answer

    def take(self, work: Work) -> None:
        self.asked.append(f"begin {work.order.attempt} {work.order.state} on {work.hosts['m']}")

    def watch(self, work: Work) -> None:
        self.asked.append("watch")

    def reports(self, now: datetime) -> list[OrderReport]:
        ended, self.ended = self.ended, []
        return ended

    def report_saved(self, report: OrderReport) -> None:
        self.asked.append("settled")


def ticker_with(service: Service, executor: ScriptedExecutor) -> Ticker:
    return Ticker(service.control, service.store, service.clock, executor, node="here", retain_history_s=0)


def test_an_order_is_saved_as_running_before_its_executor_begins() -> None:
    """Decide, save, then act: what the executor is handed is already in the store."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor()
    ticker_with(service, executor).cycle_until_idle()
    assert executor.asked == ["begin 1 running on h"]
    order = service.control.event(event_id)[1]
    assert order is not None
    assert (order.state, order.node, order.taken) == (OrderState.RUNNING, "scripted on here", START)


def test_only_as_many_orders_are_taken_as_the_executor_has_room_for() -> None:
    """The rest stay open for others, or for later."""
    service = make_service(MemoryStore(), scopes=5, enabled=False)
    for i in range(5):
        reboot(service, f"s-{i}")
    ticker_with(service, ScriptedExecutor()).cycle()
    assert len(service.store.orders({OrderState.RUNNING}, 10)) == 2
    assert len(service.store.orders({OrderState.OPEN}, 10)) == 3


@pytest.mark.parametrize(
    ("answer", "asked", "status"),
    [
        (Progress.UNKNOWN, ["status", "begin 1 running on h"], Status.STARTED),
        (Progress.RUNNING, ["status", "watch"], Status.STARTED),
        (Outcome(ok=True), ["status", "settled"], Status.COMPLETED),
        (Outcome(ok=False, reason="no"), ["status", "settled"], Status.STARTED),
    ],
)
def test_after_a_crash_status_is_asked_before_anything_is_run_again(
    store: Store, answer: Progress | Outcome, asked: list[str], status: Status
) -> None:
    """Work that is known is watched or settled; only work nobody knows is begun, under the same id and attempt."""
    service = make_service(store, enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    executor = ScriptedExecutor(answer)
    ticker = ticker_with(service, executor)
    ticker.recover()
    ticker.cycle_until_idle()
    assert executor.asked == asked
    assert service.control.event(event_id)[0].status is status


def test_a_report_of_an_older_attempt_changes_nothing() -> None:
    """After a retry, the first attempt's late word is not taken for the second's."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    service.control.report_order(event_id, Outcome(ok=False, reason="no"), Actor("ticker"))
    service.control.settle_event(event_id, Verb.RETRY, OPERATOR)
    executor.ended = [OrderReport(event_id, 1, Outcome(ok=True))]
    ticker.cycle_until_idle()
    assert service.control.event(event_id)[0].status is Status.STARTED


def test_one_late_report_does_not_hold_up_the_others() -> None:
    """Ends are saved many at once; where one of them no longer matters, the rest still do."""
    service = make_service(MemoryStore(), scopes=3, enabled=False)
    events = [reboot(service, f"s-{i}") for i in range(3)]
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    service.control.report_order(events[1], Outcome(ok=True), OPERATOR)
    executor.ended = [OrderReport(event_id, 1, Outcome(ok=True)) for event_id in events]
    ticker.cycle_until_idle()
    assert [service.control.event(event_id)[0].status for event_id in events] == [Status.COMPLETED] * 3
    assert executor.asked.count("settled") == 3


def test_a_report_that_comes_after_the_end_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else settled the event: the executor's word is too late, and nothing breaks."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    service.control.report_order(event_id, Outcome(ok=True), OPERATOR)
    executor.ended = [OrderReport(event_id, 1, Outcome(ok=True))]
    with caplog.at_level(logging.INFO, "forewarn.service.orders"):
        ticker.cycle_until_idle()
    assert "came too late" in caplog.text


def test_an_order_taken_by_others_is_theirs_to_finish(caplog: pytest.LogCaptureFixture) -> None:
    """After a change of executor, what a playbook took is not begun a second time."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("playbook"), node="playbook")
    executor = ScriptedExecutor()
    ticker_with(service, executor).recover()
    assert executor.asked == []
    assert "taken by others" in caplog.text


class FailingToBegin(ScriptedExecutor):
    def take(self, work: Work) -> None:
        raise OSError("no more processes")


def test_an_executor_that_cannot_begin_fails_its_order() -> None:
    """The order says why, and waits for an operator."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    ticker_with(service, FailingToBegin()).cycle_until_idle()
    order = service.control.event(event_id)[1]
    assert order is not None
    assert (order.state, order.reason) == (OrderState.FAILED, "the executor could not take it: no more processes")


class AwayStore(MemoryStore):
    """A store that can be away, or stumble over one maintenance."""

    away = False
    refused = 0
    stumble = ""

    def due(self, now: datetime, limit: int) -> list[str]:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the disk is gone")
        return super().due(now, limit)

    def snapshot(self, focus: Focus) -> Snapshot:
        if self.stumble and self.stumble in focus.maintenances:
            raise RuntimeError("nobody foresaw this")
        return super().snapshot(focus)


class BrittleStore(MemoryStore):
    """Reads always, writes unless `full`."""

    full = False
    attempts = 0

    def apply(self, change: Change) -> None:
        if self.full:
            self.attempts += 1
            raise StoreUnavailable("the disk is full")
        super().apply(change)


def test_the_end_of_an_order_outlives_a_full_disk() -> None:
    """A report that could not be saved is saved when the disk has room again; nothing times out, no slot is lost."""
    store = BrittleStore()
    service = make_service(store, scopes=2, enabled=False)
    events = [reboot(service, f"s-{i}") for i in range(2)]
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    executor.ended = [OrderReport(event_id, 1, Outcome(ok=True)) for event_id in events]
    store.full = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    store.full = False
    ticker.cycle_until_idle()
    assert [service.control.event(event_id)[0].status for event_id in events] == [Status.COMPLETED] * 2
    assert executor.asked.count("settled") == 2


class SilentStore(MemoryStore):
    """Saves what it is given; while `silent` nobody learns of it."""

    silent = False

    def apply(self, change: Change) -> None:
        super().apply(change)
        if self.silent:
            raise StoreUnavailable("the connection is gone")


@pytest.mark.parametrize("answer", [Progress.UNKNOWN, Progress.RUNNING])
def test_an_order_that_was_taken_without_our_knowing_is_begun(answer: Progress) -> None:
    """The store failed while it saved that we take an order, and saved it: nobody else will begin it, so we ask and do."""
    store = SilentStore()
    service = make_service(store, enabled=False)
    reboot(service)
    executor = ScriptedExecutor(answer)
    ticker = ticker_with(service, executor)
    store.silent = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    assert executor.asked == []
    store.silent = False
    ticker.cycle_until_idle()
    ticker.cycle_until_idle()
    assert executor.asked == ["status", "begin 1 running on h" if answer is Progress.UNKNOWN else "watch"]


def test_an_order_that_could_not_be_taken_is_taken_later() -> None:
    """The store failed before it saved that: the order is open, and taken like any other."""
    store = BrittleStore()
    service = make_service(store, enabled=False)
    reboot(service)
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    store.full = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    store.full = False
    ticker.cycle_until_idle()
    assert executor.asked == ["begin 1 running on h"]


def test_trouble_does_not_make_the_loop_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be written the loop waits after every try, longer each time, and no change ends the wait."""
    store = BrittleStore()
    service = make_service(store, enabled=False)
    reboot(service)
    service = make_service(store, scopes=1)
    reboot(service)
    service.clock.move_to(START + timedelta(minutes=15))
    store.full = True
    waits: list[tuple[float, int]] = []

    def wait(seconds: float) -> bool:
        waits.append((seconds, store.attempts))
        service.ticker.nudge()
        if len(waits) == 7:
            service.ticker.stop()
        return service.ticker._stopping.is_set()

    monkeypatch.setattr(service.ticker._stopping, "wait", wait)
    service.ticker.run()
    assert [seconds for seconds, _ in waits] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [tried for _, tried in waits] == [1, 2, 3, 4, 5, 6, 7]


def test_a_sick_maintenance_does_not_make_the_loop_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due and cannot be ticked: the loop waits all the same before it looks again."""
    store = AwayStore()
    service = make_service(store)
    event_id = reboot(service)
    service.ticker.cycle_until_idle()
    store.stumble = service.control.event(event_id)[0].maintenance_id
    service.clock.move_to(START + timedelta(minutes=15))
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 3:
            service.ticker.stop()
        return False

    monkeypatch.setattr(service.ticker._nudged, "wait", wait)
    service.ticker.run()
    assert len(waits) == 3
    assert min(waits) >= BACKOFF_S[0]


def test_whoever_loses_often_does_not_wait_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds may approve while a tick is decided: when the last of them is through, its event starts soon."""

    class BusyStore(BrittleStore):
        conflicts = 12

        def apply(self, change: Change) -> None:
            if self.full and self.conflicts:
                self.conflicts -= 1
                raise Conflict("somebody else was first")
            MemoryStore.apply(self, change)
            if self.full:
                service.ticker.stop()

    store = BusyStore()
    service = make_service(store)
    event_id = reboot(service)
    service.ticker.cycle_until_idle()
    service.clock.move_to(START + timedelta(minutes=15))
    store.full = True
    waits: list[float] = []
    monkeypatch.setattr(service.ticker._stopping, "wait", waits.append)
    service.ticker.run()
    assert waits == [CONFLICT_WAIT_S] * 12
    assert service.control.event(event_id)[0].status is Status.STARTED


def test_an_error_nobody_foresaw_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged whole, once, and the loop goes on."""

    class Surprising(ScriptedExecutor):
        surprises = 2

        def reports(self, now: datetime) -> list[OrderReport]:
            if self.surprises:
                self.surprises -= 1
                raise RuntimeError("nobody foresaw this")
            return []

    service = make_service(MemoryStore())
    ticker = ticker_with(service, Surprising())
    thread = threading.Thread(target=ticker.run, daemon=True)
    with caplog.at_level(logging.INFO, "forewarn.service.ticker"):
        thread.start()
        until(lambda: "the ticker works again" in caplog.text)
    ticker.stop()
    thread.join(timeout=5)
    assert caplog.text.count("RuntimeError: nobody foresaw this") == 1


def test_the_loop_survives_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """It says so once, not every second; when the store is back it goes on by itself."""
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
    thread.join(timeout=5)
    assert not thread.is_alive()


class BlindStore(MemoryStore):
    """Cannot say when there will be something to do."""

    def next_wakeup(self) -> datetime | None:
        raise StoreUnavailable("the disk is gone")


def test_the_loop_survives_not_knowing_when_to_wake() -> None:
    """A store that goes away between a cycle and the wait for the next does not end the loop."""
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
    thread.join(timeout=5)


def test_one_sick_maintenance_does_not_hold_up_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """In the loop, an error nobody foresaw is logged and tried again later; everything else goes on."""
    store = AwayStore()
    service = make_service(store, scopes=3)
    events = [reboot(service, f"s-{i}") for i in range(3)]
    service.ticker.cycle_until_idle()
    store.stumble = service.control.event(events[1])[0].maintenance_id
    service.clock.move_to(START + timedelta(minutes=15))
    with pytest.raises(RuntimeError):
        service.ticker.cycle()
    thread = threading.Thread(target=service.ticker.run, daemon=True)
    thread.start()
    until(lambda: all(service.control.event(events[i])[0].status is Status.STARTED for i in (0, 2)))
    # Ids are random: the sick one may be looked at last.
    until(lambda: "cannot be ticked" in caplog.text)
    assert service.control.event(events[1])[0].status is Status.SCHEDULED
    service.ticker.stop()
    thread.join(timeout=5)


class ContendedStore(MemoryStore):
    """Somebody else is always first, `times` times."""

    times = 0

    def apply(self, change: Change) -> None:
        if self.times > 0:
            self.times -= 1
            raise Conflict("somebody else was first")
        super().apply(change)


@pytest.mark.parametrize(("times", "fails"), [(MAX_TRIES - 1, False), (MAX_TRIES, True)])
def test_a_request_is_decided_again_a_few_times(times: int, fails: bool) -> None:
    """A conflict means reload and decide again; too many of them are said, and nothing is half done."""
    store = ContendedStore()
    service = make_service(store)
    store.times = times
    if fails:
        with pytest.raises(Conflict, match="try again"):
            reboot(service)
        assert not store.events(EventQuery()).events
    else:
        assert service.control.event(reboot(service))[0].status is Status.SCHEDULED


def test_what_was_decided_too_long_ago_is_decided_again() -> None:
    """A process stopped between deciding and saving must not publish a notice of which half has passed."""
    clock, boot_s = ManualClock(START), [0.0]
    service = make_service(MemoryStore())

    def stopped_once() -> str:
        if boot_s[0] == 0.0:
            clock.move_to(START + timedelta(minutes=10))
            boot_s[0] = 600.0
        return next(ids)

    ids = iter("abcd")
    control = Control(service.store, clock, new_id=stopped_once, order_timeout_s=0, monotonic=lambda: boot_s[0])
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("s-0", "m"),)))
    _, (event,) = control.maintenance(control.submit(request, OPERATOR))
    assert (event.published, event.not_before) == (START + timedelta(minutes=10), START + timedelta(minutes=25))
    assert event.id == "d"


def test_a_tick_that_was_stopped_is_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tick decided too long ago is a conflict: the next cycle decides anew, on less at once."""
    service = make_service(MemoryStore(), scopes=BATCH, enabled=False)
    boot_s = iter([0.0, MAX_DECISION_AGE_S + 1] + [0.0] * 1_000)
    for i in range(BATCH):
        service.control.submit(
            MaintenanceRequest(
                type=EventType.REBOOT,
                targets=Targets(machines=((f"s-{i}", "m"),)),
                not_before=START + timedelta(hours=1),
            ),
            OPERATOR,
        )
    service.clock.move_to(START + timedelta(hours=1))
    monkeypatch.setattr(service.control, "_monotonic", lambda: next(boot_s))
    with pytest.raises(Conflict, match="too long ago"):
        service.ticker.cycle()
    for started in (BATCH // 2, BATCH):
        service.ticker.cycle()
        assert len(service.store.events(EventQuery(statuses=[Status.STARTED], limit=500)).events) == started


def test_old_history_is_forgotten_and_open_events_are_not(store: Store) -> None:
    """`retain_history` prunes what ended long ago."""
    service = make_service(store, scopes=2, executor="simulated", retain_history_s=86_400)
    old = reboot(service, "s-0")
    service.ticker.advance(3_600)
    assert service.control.event(old)[0].status is Status.COMPLETED
    request = MaintenanceRequest(
        type=EventType.REBOOT, targets=Targets(scope="s-1"), not_before=START + timedelta(days=30)
    )
    kept = service.control.submit(request, OPERATOR)
    service.ticker.advance(3 * 86_400)
    with pytest.raises(ForewarnError):
        service.control.event(old)
    assert service.control.maintenance(kept)[1][0].status is Status.SCHEDULED


def test_forgetting_too_much_at_once_is_tried_again_with_less(caplog: pytest.LogCaptureFixture) -> None:
    """A database that cannot forget so much in time is asked for less, later; the cycle goes on, and so does the rest of it."""

    asked: list[int] = []

    class Slow(MemoryStore):
        def prune(self, before: datetime, limit: int) -> int:
            asked.append(limit)
            if limit > PRUNE_BATCH // 4:
                raise StoreUnavailable("it did not answer within 5 s")
            return super().prune(before, limit)

    service = make_service(Slow(), executor="simulated", retain_history_s=86_400)
    reboot(service)
    service.ticker.cycle_until_idle()
    assert asked == [PRUNE_BATCH]
    assert "could not be deleted, 500 at once" in caplog.text
    for _ in range(4):
        service.ticker.advance(60)
        service.ticker.cycle_until_idle()
    assert asked == [PRUNE_BATCH, PRUNE_BATCH // 2, PRUNE_BATCH // 4]
    service.ticker.advance(3_600)
    service.ticker.cycle_until_idle()
    assert asked[3] == PRUNE_BATCH


def test_one_machine_is_changed_without_reading_the_whole_fleet() -> None:
    """A fleet of a million is not read for a PUT or a DELETE; what one machine or scope must not break is known all the same."""

    class Vast(MemoryStore):
        def inventory(self) -> Inventory:
            raise AssertionError("it was read whole")

    service = Service(Settings(store="memory:"), clock=ManualClock(START), store=Vast(), node="here")
    control, shop, blog = service.control, *(Scope(name=n, kind=ScopeKind.AVAILABILITY_SET) for n in ("shop", "blog"))
    assert control.put_scope(shop, OPERATOR)
    assert not control.put_scope(replace(shop, approve_user_events=True), OPERATOR)
    control.put_scope(blog, OPERATOR)
    first = Machine(scope="shop", name="a", addresses=("10.0.0.1",), instance_id="i-1")
    assert control.put_machine(first, OPERATOR)
    assert not control.put_machine(replace(first, addresses=("10.0.0.1", "10.0.0.2")), OPERATOR)
    for taken in ({"addresses": ("10.0.0.2",)}, {"instance_id": "i-1"}):
        with pytest.raises(InvalidFleet, match="belongs to shop/a already"):
            control.put_machine(Machine(scope="blog", name="b", **taken), OPERATOR)
    assert control.put_machine(Machine(scope="shop", name="b"), OPERATOR)
    with pytest.raises(InvalidFleet, match="a standalone scope has one machine"):
        control.put_scope(replace(shop, kind=ScopeKind.STANDALONE), OPERATOR)
    with pytest.raises(Refused, match="has 2 machines"):
        control.remove_scope("shop", OPERATOR)
    for key in (("shop", "a"), ("shop", "b")):
        control.remove_machine(key, OPERATOR)
    control.remove_scope("shop", OPERATOR)
    with pytest.raises(NotFound):
        control.remove_scope("shop", OPERATOR)
    with pytest.raises(NotFound):
        control.remove_machine(first.key, OPERATOR)


def test_a_scaled_clock_runs_fast_and_jumps_forward_only() -> None:
    """An hour at 3600x passes in a second; moving to the past is no step back."""
    now_s = 1_000.0
    clock = ScaledClock(START, 3_600, monotonic=lambda: now_s)
    assert clock.seconds_until(START + timedelta(hours=1)) == 1.0
    now_s += 0.25
    assert clock.now() == START + timedelta(minutes=15)
    assert clock.seconds_until(START + timedelta(hours=1)) == 0.75
    clock.move_to(START + timedelta(days=1))
    clock.move_to(START)
    assert clock.now() == START + timedelta(days=1)
    now_s += 1.0
    assert clock.now() == START + timedelta(days=1, hours=1)


def test_a_manual_clock_stands_still() -> None:
    """Time does not pass by itself, and never backwards."""
    clock = ManualClock(START)
    assert clock.seconds_until(START) == 0
    assert clock.seconds_until(START + timedelta(seconds=1)) is None
    with pytest.raises(Refused, match="never goes backwards"):
        clock.move_to(START - timedelta(seconds=1))


@pytest.mark.parametrize("text", ["", "sixty", "x", "-3x", "0x", "1e9x", "nanx", "60"])
def test_an_unknown_clock_is_refused(text: str) -> None:
    """The error says what a clock may be."""
    with pytest.raises(Invalid, match=r"60x"):
        clock_for(text)


def test_a_clock_that_is_not_the_systems_goes_on_where_it_was(tmp_path: Path) -> None:
    """A restart does not take a manual or scaled clock back: what was lived through stays past."""
    settings = Settings(store=f"sqlite:{tmp_path}/f.db", clock="manual")
    first = Service(settings)
    first.control.apply_fleet(Fleet({"a": Scope(name="a", kind=ScopeKind.AVAILABILITY_SET)}, {}), OPERATOR)
    first.ticker.advance(5 * 86_400)
    first.control.enable("a", Actor("guest"))
    lived = first.clock.now()
    first.close()
    for clock in ("manual", "60x"):
        again = Service(replace(settings, clock=clock))
        assert again.clock.now() >= lived
        again.close()


def test_clocks_by_name() -> None:
    """`system`, `manual` and a rate."""
    assert [clock_for(text).name for text in ("system", "manual", "60x")] == ["system", "manual", "60x"]
