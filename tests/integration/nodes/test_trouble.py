"""What the service answers and does when the store hangs, fails at the wrong moment, or other writers are always first."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from forewarn.app import server
from forewarn.core.change import Change
from forewarn.core.errors import Conflict, Refused, StoreUnavailable
from forewarn.core.lifecycle import GuestApproval
from forewarn.core.model import Actor, ClockHold, EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Targets
from forewarn.endpoint.approvals import ApprovalQueue
from forewarn.service.clock import KeptClock
from forewarn.service.control import Control
from forewarn.service.decisions import MAX_DECISION_AGE_S, MAX_TRIES, MIN_TRIES
from forewarn.service.ticker import MAX_CONFLICTS, Ticker
from forewarn.store import EventQuery, Focus
from forewarn.store.memory import MemoryStore
from tests.support.guest_service import WEB_0, WEB_1, Serving, get, post, serving, status
from tests.support.services import OPERATOR, ContendedStore, ScriptedExecutor, make_service, reboot, ticker_with
from tests.support.several_nodes import LeasedMemoryStore, ticker_on
from tests.support.waiting import PATIENCE_S, until

# -- the line for the writer


class NotingQueue(ApprovalQueue):
    """Notes what the approvals of guests wait for, as they come."""

    def __init__(self, served: Serving) -> None:
        super().__init__(served.endpoint.writer, served.service.control.approve_together)
        self.line: list[Future[None]] = []

    def submit(self, approval: GuestApproval) -> "Future[None]":
        self.line.append(super().submit(approval))
        return self.line[-1]


def line_of(served: Serving) -> "list[Future[None]]":
    """Return what the approvals of guests wait for from now on."""
    served.endpoint.approvals = queue = NotingQueue(served)
    return queue.line


def test_whoever_waits_in_line_too_long_is_told_and_not_written() -> None:
    """One write hangs: the one behind it is 503 in time and never done, the one that hangs is answered when it is done."""
    with serving() as served:
        first, second = served.client(WEB_0), served.client(WEB_1)
        assert status(first.ask(get())) == status(second.ask(get())) == 200
        (hangs, waits) = served.reboot("shop", "web-0"), served.reboot("shop", "web-1")
        line = line_of(served)
        served.store.go.clear()
        first.send(post(hangs))
        until(lambda: line and line[0].running())
        served.endpoint.max_queued_s = 0.1
        assert status(second.ask(post(waits))) == 503
        assert first.quiet()
        served.store.go.set()
        assert status(first.answer()) == 200
        assert status(second.ask(get())) == 200  # and the connection goes on
        events = served.store.snapshot(Focus(events=(hangs, waits))).events
        assert [len(events[each].approvals) for each in (hangs, waits)] == [1, 0]


def test_whoever_hangs_up_does_not_stay_in_line() -> None:
    """Post and close, again and again, while the writer hangs: the queue drops their writes like those of callers that stayed."""
    with serving() as served:
        first, other = served.client(WEB_0), served.client(WEB_1)
        assert status(first.ask(get())) == status(other.ask(get())) == 200
        hangs, waits = served.reboot("shop", "web-0"), served.reboot("shop", "web-1")
        line = line_of(served)
        served.store.go.clear()
        first.send(post(hangs))
        until(lambda: line and line[0].running())
        served.endpoint.max_queued_s = 0.1
        for number in range(1, 4):
            leaves = served.client(WEB_1).send(post(waits))
            until(lambda so_far=number: len(line) > so_far)  # type: ignore[misc]
            leaves.socket.close()
        until(lambda: all(future.cancelled() for future in line[1:]))
        until(lambda: len(served.endpoint.connections) == 2)
        served.store.go.set()
        assert status(first.answer()) == 200
        events = served.store.snapshot(Focus(events=(hangs, waits))).events
        assert [len(events[each].approvals) for each in (hangs, waits)] == [1, 0]


# -- the ticker


def test_a_ticker_that_meets_nothing_but_conflicts_is_not_at_work(caplog: pytest.LogCaptureFixture) -> None:
    """The twentieth conflict in a row is logged, once; from then on none counts as a cycle, until a cycle succeeds."""
    cycled: list[float | None] = []
    tries, now_s, most = count(1), count(1_000), MAX_CONFLICTS

    class ContendedTicker(Ticker):
        def cycle(self) -> bool:
            cycled.append(self.cycled_at_s)
            tried = next(tries)
            if tried <= 2 * most:
                raise Conflict(f"others were first, {tried}")
            if tried > 2 * most + 1:
                self.stop()
            return super().cycle()

    service = make_service(MemoryStore())
    ticker_with(
        service,
        ScriptedExecutor(),
        ContendedTicker,
        monotonic=lambda: float(next(now_s)),
        wait=lambda event, seconds: None,
    ).run()
    assert len(set(cycled[:most])) == most  # each counts: None before the first, then another moment every time
    assert len(set(cycled[most - 1 : 2 * most + 1])) == 1
    assert cycled[2 * most + 1] != cycled[2 * most]
    messages = [record.getMessage() for record in caplog.records if "in a row" in record.getMessage()]
    assert messages == [
        f"the ticker gets nothing done: others were first {most} times in a row: others were first, {most}"
    ]


def test_the_end_does_not_wait_for_a_database_that_hangs() -> None:
    """Giving the lease back may take as long as it likes: it ends by itself."""
    requested, answers = threading.Event(), threading.Event()

    class HangingStore(LeasedMemoryStore):
        def drop_lease(self, name: str, node: str) -> None:
            requested.set()
            assert answers.wait(PATIENCE_S)

    store = HangingStore()
    service = make_service(store)
    service.ticker = ticker_on(service, "a:1", ScriptedExecutor())
    try:
        with server.ticking(service, stop_within_s=0.2):
            until(lambda: store.ticks == "a:1")
            assert not requested.is_set()
        assert requested.wait(PATIENCE_S)  # and yet we are here
        assert not answers.is_set()
    finally:
        answers.set()


def test_a_failed_cycle_does_not_count_as_one() -> None:
    """A store that cannot be written leaves the ticker silent, which makes the node unready; a conflict does not."""
    for error, counts in ((StoreUnavailable("it cannot be written"), False), (Conflict("others were first"), True)):

        class FailingTicker(Ticker):
            def cycle(self, error: Exception = error) -> bool:
                self.stop()
                raise error

        ticker = ticker_with(make_service(MemoryStore()), ScriptedExecutor(), FailingTicker)
        ticker.run()
        assert (ticker.cycled_at_s is not None) is counts


# -- saved, and then something fails


def test_what_is_saved_is_not_told_as_lost() -> None:
    """This node could not read back what it saved: it answers so, and all other listeners still get the change."""
    store = MemoryStore()
    service = make_service(store)
    heard: list[Change] = []

    def fails(_: Change) -> None:
        raise StoreUnavailable("the database is away; nothing was saved")

    service.control.listen(fails)
    service.control.listen(heard.append)
    with pytest.raises(
        StoreUnavailable,
        match=r"^the change is saved, but this node cannot show it yet: read the object before you repeat the request$",
    ):
        reboot(service)
    assert len(store.events(EventQuery()).events) == len(heard) == 1
    service.ticker.advance(15 * 60)  # what time brings is asked for by nobody: it goes on
    assert store.events(EventQuery()).events[0].started is not None


def test_an_error_nobody_foresaw_is_logged_and_told_alike(caplog: pytest.LogCaptureFixture) -> None:
    """A bell that breaks does not make what was saved unsaved."""
    service = make_service(MemoryStore())
    service.control.listen(lambda _: {}["nothing"])  # type: ignore[index]
    with pytest.raises(StoreUnavailable, match="the change is saved"):
        reboot(service)
    assert "KeyError" in caplog.text


def test_a_machine_of_a_scope_that_another_node_removed_is_passed_over() -> None:
    """Between saving a machine and reading it back its scope went: what is not there is not shown, and nothing breaks."""
    with serving() as served:
        documents = served.server.documents
        gone = Machine(scope="gone", name="m", addresses=("127.0.0.30",))
        documents.on_change(
            Change(at=served.clock.now(), machines=(gone,), scopes=(Scope(name="gone", kind=ScopeKind.STANDALONE),))
        )
        assert documents.callers.named("gone", "m") is None
        assert documents.callers.at("", "127.0.0.30") is None


# -- others are first


@pytest.mark.parametrize(("times", "fails"), [(MAX_TRIES - 1, False), (MAX_TRIES, True)])
def test_after_a_conflict_there_is_a_pause(times: int, fails: bool) -> None:
    """Given how often it happened, without keeping others of this process from deciding; and not for ever."""
    store = ContendedStore()
    control = make_service(store).control
    pauses: list[int] = []

    def pause(tried: int) -> None:
        pauses.append(tried)
        assert not control._deciding.locked()

    control._pause = pause
    store.times = times
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("s-0", "m"),)))
    requests: list[Callable[[], object]] = [
        lambda: control.submit(request, OPERATOR),
        lambda: control.put_scope(Scope(name="new", kind=ScopeKind.STANDALONE), OPERATOR),
    ]
    for ask in requests:
        store.times = times
        pauses.clear()
        if fails:
            with pytest.raises(Conflict, match="try again"):
                ask()
        else:
            ask()
        assert pauses == list(range(1, min(times, MAX_TRIES - 1) + 1))


def test_a_jump_noticed_while_another_is_confirmed_is_not_confirmed_with_it() -> None:
    """Another node saves a larger one at that moment: to decide again would be to confirm what nobody has looked at."""

    class Jumping(ContendedStore):
        """Right before a hold is released there is another."""

        def apply(self, change: Change) -> None:
            if change.releases_hold is not None:
                super().apply(Change(at=change.at, hold=larger))
            super().apply(change)

    store = Jumping()
    service = make_service(store)
    now = service.clock.now()
    hold = ClockHold(trusted=now, noticed=now, jumped_s=600, node="one")
    larger = replace(hold, trusted=now - timedelta(seconds=60), jumped_s=7_200, node="two")
    store.apply(Change(at=now, hold=hold))
    with pytest.raises(Refused, match="jumped again meanwhile"):
        service.control.confirm_clock(OPERATOR)
    assert service.control.clock_hold() == larger
    service.control.confirm_clock(OPERATOR)
    assert service.control.clock_hold() is None


def test_conflicts_end_in_time() -> None:
    """If each try takes long, the caller gets the error after a few seconds, and after two tries at least."""
    store, now_s = ContendedStore(), 0.0
    service = make_service(store)
    control = Control(store, service.clock, new_id=lambda: "x", order_timeout_s=0, monotonic=lambda: now_s)
    tried = 0

    def slow(_: int) -> None:
        nonlocal now_s, tried
        tried += 1
        now_s += MAX_DECISION_AGE_S

    control._pause = slow
    store.times = MAX_TRIES
    with pytest.raises(Conflict):
        control.disable("s-0", OPERATOR)
    assert tried == MIN_TRIES
    assert store.times == MAX_TRIES - MIN_TRIES


# -- a jump that was confirmed


class Tower:
    """The database's clock, and the boot clock of two machines."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, 12, tzinfo=UTC)
        self.boot_s = 1_000.0

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.boot_s += seconds

    def node(self, store: MemoryStore) -> tuple[KeptClock, Control]:
        clock = KeptClock(lambda: self.now, lambda: self.boot_s, lambda: self.boot_s)
        clock.keep(self.now)
        return clock, Control(store, clock, new_id=lambda: "x", order_timeout_s=0, monotonic=lambda: self.boot_s)


def test_a_node_that_was_cut_off_does_not_hold_a_confirmed_clock_again() -> None:
    """It notices the jump when it is back, and an operator has long confirmed it; a second jump it does hold."""
    store, tower = MemoryStore(), Tower()
    (clock, control), (cut_clock, cut_off) = tower.node(store), tower.node(store)
    tower.pass_by(10)
    clock.keep(tower.now)
    tower.now += timedelta(hours=1)
    tower.pass_by(1)
    clock.keep(tower.now)
    control.watch_clock()
    assert control.clock_hold() is not None
    tower.pass_by(40)
    clock.keep(tower.now)
    control.confirm_clock(Actor("operator"))
    tower.pass_by(20)
    cut_clock.keep(tower.now)
    assert cut_clock.jump() is not None
    cut_off.watch_clock()
    assert cut_off.clock_hold() is None
    assert cut_clock.jump() is None
    tower.now += timedelta(seconds=31)
    cut_clock.keep(tower.now)
    cut_off.watch_clock()
    assert cut_off.clock_hold() is not None


@pytest.mark.parametrize(("further_s", "set_back"), [(31, False), (0, True)])
def test_what_was_not_confirmed_is_held(further_s: int, set_back: bool) -> None:
    """A node that sees more than what was confirmed holds the clock; and so it does where the clock was set back since."""
    store, tower = MemoryStore(), Tower()
    (clock, control), (cut_clock, cut_off) = tower.node(store), tower.node(store)
    tower.now += timedelta(hours=1)
    clock.keep(tower.now)
    control.watch_clock()
    control.confirm_clock(Actor("operator"))
    tower.pass_by(60)
    if set_back:
        tower.now -= timedelta(hours=1)
        cut_clock.keep(tower.now)
        tower.pass_by(60)
        tower.now += timedelta(hours=1)
    tower.now += timedelta(seconds=further_s)
    cut_clock.keep(tower.now)
    cut_off.watch_clock()
    hold = cut_off.clock_hold()
    assert hold is not None
    assert hold.jumped_s == 3_600 + further_s
