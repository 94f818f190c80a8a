"""The orders of a node: saved before the executor gets them, reported once, recovered after a crash."""

import logging
from datetime import timedelta
from typing import cast

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import (
    Actor,
    Order,
    OrderState,
    Status,
)
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.executors import OrderReport, Progress, Unknown, Work
from forewarn.service.ticker import Ticker
from forewarn.store import AuditQuery, SharedStore, Store
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START
from tests.support.services import (
    OPERATOR,
    BrittleStore,
    FailedOverStore,
    ScriptedExecutor,
    SilentStore,
    make_service,
    reboot,
    ticker_with,
)


def test_simulated_work_does_not_report_an_order_that_was_reported_already() -> None:
    """An order that an operator reported as failed stays failed when the simulated work ends."""
    service = make_service(MemoryStore(), executor="simulated")
    event_id = reboot(service)
    service.ticker.advance(15 * 60)
    service.control.report_order(event_id, Outcome(ok=False, reason="burnt"), OPERATOR)
    service.ticker.advance(3_600)
    event, order = service.control.event(event_id)
    assert order is not None
    assert (event.status, order.state) == (Status.STARTED, OrderState.FAILED)
    service.control.resolve_failure(event_id, Verb.RETRY, OPERATOR)
    service.ticker.advance(3_600)
    assert service.control.event(event_id)[0].status is Status.COMPLETED


def test_an_order_is_saved_as_running_before_the_executor_takes_it() -> None:
    """Decide, save, then act: the order that the executor gets is already in the store."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor()
    ticker_with(service, executor).cycle_until_idle()
    assert executor.calls == ["take 1 running on h"]
    order = service.control.event(event_id)[1]
    assert order is not None
    assert (order.state, order.node, order.taken) == (OrderState.RUNNING, "scripted on here", START)


def test_only_as_many_orders_are_taken_as_the_executor_has_free_slots() -> None:
    """The other orders stay open."""
    service = make_service(MemoryStore(), scopes=5, enabled=False)
    for i in range(5):
        reboot(service, f"s-{i}")
    ticker_with(service, ScriptedExecutor()).cycle()
    assert len(service.store.orders({OrderState.RUNNING}, 10)) == 2
    assert len(service.store.orders({OrderState.OPEN}, 10)) == 3


@pytest.mark.parametrize(
    ("answer", "calls", "status"),
    [
        (Unknown(), ["status", "take 1 running on h"], Status.STARTED),
        (Progress.RUNNING, ["status", "watch"], Status.STARTED),
        (Outcome(ok=True), ["status", "report_saved"], Status.COMPLETED),
        (Outcome(ok=False, reason="no"), ["status", "report_saved"], Status.STARTED),
    ],
)
def test_after_a_crash_the_status_of_an_order_comes_first(
    store: Store, answer: Progress | Outcome | Unknown, calls: list[str], status: Status
) -> None:
    """Known work is watched or reported; only unknown work is taken again, under the same id and attempt."""
    service = make_service(store, enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    executor = ScriptedExecutor(answer)
    ticker = ticker_with(service, executor)
    ticker.recover()
    ticker.cycle_until_idle()
    assert executor.calls == calls
    assert service.control.event(event_id)[0].status is status


def order_of(service: Service, event_id: str) -> Order:
    order = service.control.event(event_id)[1]
    assert order is not None
    return order


@pytest.mark.parametrize(
    ("answer", "calls", "state"),
    [
        (Unknown("no trace"), ["status"], OrderState.IN_DOUBT),
        (Progress.NOT_BEGUN, ["status", "take 1 running on h"], OrderState.RUNNING),
        (Progress.RUNNING, ["status", "watch"], OrderState.RUNNING),
        (Outcome(ok=True), ["status", "report_saved"], OrderState.DONE),
    ],
)
def test_work_that_must_not_be_repeated_does_not_begin_again(
    store: Store, answer: Progress | Outcome | Unknown, calls: list[str], state: OrderState
) -> None:
    """After a crash, only work that certainly has not begun is taken; without a trace the order is in doubt."""
    service = make_service(store, enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    executor = ScriptedExecutor(answer, repeatable=False)
    ticker = ticker_with(service, executor)
    ticker.recover()
    ticker.cycle_until_idle()
    assert executor.calls == calls
    order = order_of(service, event_id)
    assert (order.state, order.reason) == (state, "no trace" if state is OrderState.IN_DOUBT else "")


@pytest.mark.parametrize(
    ("answer", "calls", "state"),
    [
        (Unknown(), [], OrderState.IN_DOUBT),
        (Progress.RUNNING, ["status", "watch"], OrderState.RUNNING),
        (Progress.NOT_BEGUN, ["status", "take 1 running on h"], OrderState.RUNNING),
        (Outcome(ok=True), ["status", "report_saved"], OrderState.DONE),
        (Outcome(ok=False), ["status", "report_saved"], OrderState.FAILED),
    ],
)
def test_a_restart_ends_a_doubt_only_if_the_executor_knows(
    store: Store, answer: Progress | Outcome | Unknown, calls: list[str], state: OrderState
) -> None:
    """An order that stays in doubt is left as it is: no change, no entry in the audit."""
    service = make_service(store, enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    service.control.report_order(event_id, Unknown("lost"), Actor("ticker"))
    before = len(store.audit(AuditQuery()))
    executor = ScriptedExecutor(answer, repeatable=False)
    ticker = ticker_with(service, executor)
    ticker.recover()
    ticker.cycle_until_idle()
    assert executor.calls == ["status", *calls]
    assert order_of(service, event_id).state is state
    assert (len(store.audit(AuditQuery())) > before) is (state is not OrderState.IN_DOUBT)


def test_what_the_executor_lost_is_in_doubt_and_stays_with_the_executor() -> None:
    """A lost order is no failure: on_failure does not apply, and what the executor has of it is not removed."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor(repeatable=False)
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    executor.ended = [OrderReport(event_id, 1, Unknown("its runner was killed"))]
    ticker.cycle_until_idle()
    assert order_of(service, event_id).state is OrderState.IN_DOUBT
    assert "report_saved" not in executor.calls
    assert [reason.code for reason in service.control.why(event_id)] == ["in-doubt"]


@pytest.mark.parametrize("answer", [Unknown("no trace"), Outcome(ok=True)])
def test_a_report_counts_before_a_time_limit(answer: Outcome | Unknown) -> None:
    """The service was down past the deadline of an order: what its executor then says comes before the time limit."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    order = service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    assert order.deadline is not None
    service.clock.move_to(order.deadline + timedelta(days=1))
    ticker = ticker_with(service, ScriptedExecutor(answer, repeatable=False))
    ticker.recover()
    ticker.cycle_until_idle()
    known = OrderState.DONE if isinstance(answer, Outcome) else OrderState.IN_DOUBT
    assert order_of(service, event_id).state is known
    assert "order failed" not in [entry.action for entry in service.store.audit(AuditQuery())]


def test_a_report_of_an_older_attempt_changes_nothing() -> None:
    """After a retry, a late report of the first attempt does not count for the second."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    service.control.report_order(event_id, Outcome(ok=False, reason="no"), Actor("ticker"))
    service.control.resolve_failure(event_id, Verb.RETRY, OPERATOR)
    executor.ended = [OrderReport(event_id, 1, Outcome(ok=True))]
    ticker.cycle_until_idle()
    assert service.control.event(event_id)[0].status is Status.STARTED


def test_one_late_report_does_not_hold_up_the_others() -> None:
    """Reports are saved many at once; if one of them is too late, the others are still saved."""
    service = make_service(MemoryStore(), scopes=3, enabled=False)
    events = [reboot(service, f"s-{i}") for i in range(3)]
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    service.control.report_order(events[1], Outcome(ok=True), OPERATOR)
    executor.ended = [OrderReport(event_id, 1, Outcome(ok=True)) for event_id in events]
    ticker.cycle_until_idle()
    assert [service.control.event(event_id)[0].status for event_id in events] == [Status.COMPLETED] * 3
    assert executor.calls.count("report_saved") == 3


def test_a_report_that_cannot_be_saved_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """It names a machine that is not in its event: it is logged, and the ticker and the other reports go on."""
    service = make_service(MemoryStore(), scopes=2, enabled=False)
    bad, good = (reboot(service, f"s-{i}") for i in range(2))
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    elsewhere = Outcome(ok=True, new_hosts={("s-1", "m"): "b"})
    executor.ended = [OrderReport(bad, 1, elsewhere), OrderReport(good, 1, Outcome(ok=True))]
    ticker.cycle_until_idle()
    assert service.control.event(bad)[0].status is Status.STARTED
    assert service.control.event(good)[0].status is Status.COMPLETED
    assert f"the report of order {bad} cannot be saved and is dropped" in caplog.text
    assert executor.calls.count("report_saved") == 1


def test_a_report_after_the_end_of_the_event_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Another tool reported the order before; the executor's report is too late, and nothing breaks."""
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


def test_an_order_of_another_tool_is_not_recovered(caplog: pytest.LogCaptureFixture) -> None:
    """After a change of the executor, an order that a playbook took is not taken a second time."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("playbook"), node="playbook")
    executor = ScriptedExecutor()
    ticker_with(service, executor).recover()
    assert executor.calls == []
    assert "taken by others" in caplog.text


class FailingExecutor(ScriptedExecutor):
    def take(self, work: Work) -> None:
        raise OSError("no more processes")


def test_an_executor_that_cannot_take_an_order_fails_it() -> None:
    """The order has the reason, and waits for an operator."""
    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    ticker_with(service, FailingExecutor()).cycle_until_idle()
    order = service.control.event(event_id)[1]
    assert order is not None
    assert (order.state, order.reason) == (OrderState.FAILED, "the executor could not take it: no more processes")


def test_a_report_survives_a_full_disk() -> None:
    """A report that could not be saved is saved when the disk has room again; nothing times out, and no slot is lost."""
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
    assert executor.calls.count("report_saved") == 2


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("answer", [Unknown(), Progress.RUNNING])
def test_an_order_that_was_saved_without_confirmation_is_resumed(answer: Progress | Unknown, repeatable: bool) -> None:
    """The store failed after it had saved that this node takes the order: no other node will take it, so this one does.

    Its work has not begun, because this node did not hand it to its executor: there is no doubt.
    """
    store = SilentStore()
    service = make_service(store, enabled=False)
    reboot(service)
    executor = ScriptedExecutor(answer, repeatable=repeatable)
    ticker = ticker_with(service, executor)
    store.silent = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    assert executor.calls == []
    store.silent = False
    ticker.cycle_until_idle()
    ticker.cycle_until_idle()
    assert executor.calls == ["status", "take 1 running on h" if isinstance(answer, Unknown) else "watch"]


def test_an_order_that_could_not_be_taken_is_taken_later() -> None:
    """The store failed before it saved anything: the order is still open."""
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
    assert executor.calls == ["take 1 running on h"]


def lose(store: FailedOverStore, order_id: str, what: str) -> None:
    """Lose an order in a failover: the commit that started its event, or everything since the event was submitted."""
    store.lost_orders = frozenset({order_id})
    store.lost_events = frozenset({order_id}) if what == "event" else frozenset()


@pytest.mark.parametrize("what", ["order", "event"])
def test_an_open_order_that_a_failover_lost_does_not_hold_up_the_others(what: str) -> None:
    """An order that was listed and is gone when it should be taken is skipped; the next order is taken."""
    store = FailedOverStore()
    service = make_service(store, scopes=2, enabled=False)
    lost, kept = reboot(service, "s-0"), reboot(service, "s-1")
    lose(store, lost, what)
    executor = ScriptedExecutor()
    assert ticker_with(service, executor).cycle()
    assert executor.calls == ["take 1 running on h"]
    assert [order.id for order in store.orders({OrderState.RUNNING}, 10)] == [kept]


@pytest.mark.parametrize("what", ["order", "event"])
def test_a_running_order_that_a_failover_lost_does_not_hold_up_a_recovery(what: str) -> None:
    """After a start, the executor is asked only about orders that the store still has."""
    store = FailedOverStore()
    service = make_service(store, scopes=2, enabled=False)
    events = [reboot(service, f"s-{i}") for i in range(2)]
    for event_id in events:
        service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    lose(store, events[0], what)
    executor = ScriptedExecutor()
    ticker_with(service, executor).recover()
    assert executor.calls == ["status", "take 1 running on h"]


@pytest.mark.parametrize("what", ["order", "event"])
def test_a_running_order_that_a_failover_lost_does_not_hold_up_a_takeover(what: str) -> None:
    """A node that takes over the orders of a dead node skips an order that is gone."""
    store = FailedOverStore()
    service = make_service(store, scopes=2, enabled=False)
    events = [reboot(service, f"s-{i}") for i in range(2)]
    for event_id in events:
        service.control.take_order(event_id, Actor("ticker"), node="scripted on there:1")
    lose(store, events[0], what)
    executor = ScriptedExecutor(Progress.RUNNING)
    ticker = Ticker(
        service.control,
        store,
        service.clock,
        executor,
        node="here:1",
        retain_history_s=0,
        shared=cast(SharedStore, store),
    )
    assert ticker.cycle()
    assert executor.calls == ["status", "watch"]
    assert ticker.orders.taken_over == 1


@pytest.mark.parametrize("what", ["order", "event"])
def test_an_unconfirmed_order_that_a_failover_lost_is_dropped(what: str) -> None:
    """An order that may have been saved as ours, and is gone, does not stop the cycle."""

    class LosingStore(FailedOverStore):
        silent = False

        def apply(self, change: Change) -> None:
            super().apply(change)
            if self.silent:
                raise StoreUnavailable("the connection is gone")

    store = LosingStore()
    service = make_service(store, enabled=False)
    event_id = reboot(service)
    executor = ScriptedExecutor()
    ticker = ticker_with(service, executor)
    store.silent = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    store.silent = False
    lose(store, event_id, what)
    ticker.cycle()
    assert executor.calls == []


def test_an_order_that_ended_while_its_status_was_requested_is_not_begun() -> None:
    """Requesting a status may take long. If the order failed meanwhile, an operator may already have begun it again."""

    class SlowExecutor(ScriptedExecutor):
        def status(self, work: Work) -> Progress | Outcome | Unknown:
            service.control.report_order(work.order.id, Outcome(ok=False, reason="timed out"), OPERATOR)
            return super().status(work)

    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    executor = SlowExecutor()
    ticker_with(service, executor).recover()
    assert executor.calls == ["status"]


def test_an_order_that_was_taken_over_while_its_status_was_requested_is_not_begun() -> None:
    """The other node requests the status too, and begins the order if nobody knows it."""

    class SlowExecutor(ScriptedExecutor):
        def status(self, work: Work) -> Progress | Outcome | Unknown:
            service.control.take_over_order(work.order.id, OPERATOR, node="scripted on there", of=work.order.node)
            return super().status(work)

    service = make_service(MemoryStore(), enabled=False)
    event_id = reboot(service)
    service.control.take_order(event_id, Actor("ticker"), node="scripted on the one that crashed")
    executor = SlowExecutor()
    ticker_with(service, executor).recover()
    assert executor.calls == ["status"]
