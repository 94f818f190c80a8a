"""Orders of a node that died: who takes them over, when, and whose report counts."""

import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Actor, Event, Order, OrderState, Status
from forewarn.core.order_verbs import Outcome
from forewarn.executors import OrderReport, Progress, Unknown
from forewarn.service.leases import LEASE_S
from forewarn.service.orders import MAX_KEPT_REPORTS
from forewarn.service.ticker import Ticker
from forewarn.store import Focus
from tests.support.guest_service import START
from tests.support.services import ScriptedExecutor, make_service, reboot
from tests.support.several_nodes import LeasedMemoryStore, cycle_with_due_leases, running_order, ticker_on


def order_of(service: Service, event_id: str) -> Order:
    order = service.control.event(event_id)[1]
    assert order is not None
    return order


def test_only_the_holder_of_the_lease_ticks() -> None:
    """The other does nothing and has no wake-up; when the holder leaves, the other ticks at once."""
    service = make_service(LeasedMemoryStore(), enabled=False)
    first, second = ScriptedExecutor(), ScriptedExecutor()
    holder, other = ticker_on(service, "a:1", first), ticker_on(service, "b:2", second)
    assert not holder.cycle()
    reboot(service)
    assert not other.cycle_until_idle()
    assert other.next_wakeup() is None
    assert second.calls == []
    assert holder.cycle_until_idle()
    holder.leases.release_ticker()
    other.leases.renew_at_s = 0.0
    reboot(service)
    other.cycle_until_idle()
    assert other.leads
    assert not ticker_on(service, "c:3", ScriptedExecutor(), may_tick=False).cycle_until_idle()


@pytest.mark.parametrize("dead, waits", [("a:7", False), ("elsewhere:1", True)])
def test_a_dead_nodes_order_is_taken_over_after_asking(dead: str, waits: bool) -> None:
    """By a node with the same state folder when the lease ends, by others a while later; never while it lives, never twice."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    begun = running_order(service, ticker_on(service, dead, ScriptedExecutor()))
    store.ticks = "a:1"
    executor = ScriptedExecutor(Unknown())
    ticker = ticker_on(service, "a:1", executor)
    ticker.recover()
    ticker.cycle()
    assert executor.calls == []
    store.alive.discard(dead)
    store.lately.add(dead)
    cycle_with_due_leases(ticker)
    assert bool(executor.calls) is not waits
    store.lately.discard(dead)
    cycle_with_due_leases(ticker)
    assert executor.calls == ["status", f"take {begun.attempt} running on h"]
    order = service.control.event(begun.id)[1]
    assert order is not None
    assert (order.node, order.attempt, order.deadline) == ("scripted on a:1", begun.attempt, begun.deadline)
    cycle_with_due_leases(ticker)
    assert len(executor.calls) == 2
    assert ticker.orders.taken_over == 1


def test_a_node_that_drains_starts_nothing_and_saves_its_reports() -> None:
    """Another node ticks; this one keeps its own lease, so that nobody doubts the orders it waits for."""
    store = LeasedMemoryStore()
    service = make_service(store, scopes=2, enabled=False)
    executor, other = ScriptedExecutor(repeatable=False), ScriptedExecutor(repeatable=False)
    leaving, staying = ticker_on(service, "a:1", executor), ticker_on(service, "b:2", other)
    begun = running_order(service, leaving)
    leaving.drain()
    reboot(service, "s-1")
    cycle_with_due_leases(leaving)
    cycle_with_due_leases(staying)
    staying.cycle_until_idle()
    assert (leaving.leads, staying.leads) == (False, True)
    assert executor.calls == other.calls == ["take 1 running on h"]
    executor.ended = [OrderReport(begun.id, 1, Outcome(ok=True))]
    cycle_with_due_leases(leaving)
    assert order_of(service, begun.id).state is OrderState.DONE
    assert leaving.at_work() == 0


def order_in_doubt() -> tuple[Service, LeasedMemoryStore, Order]:
    """Return an order that a node elsewhere took before it died, and that another node has put in doubt."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    begun = running_order(service, ticker_on(service, "elsewhere:1", ScriptedExecutor(repeatable=False)))
    store.ticks = "a:1"
    executor = ScriptedExecutor(repeatable=False)
    ticker = ticker_on(service, "a:1", executor)
    ticker.recover()
    ticker.cycle()
    store.alive.discard("elsewhere:1")
    store.lately.add("elsewhere:1")
    cycle_with_due_leases(ticker)
    assert order_of(service, begun.id).state is OrderState.RUNNING  # the node may come back
    store.lately.clear()
    cycle_with_due_leases(ticker)
    for _ in range(3):
        cycle_with_due_leases(ticker)
    assert executor.calls == ["status"]
    assert ticker.orders.taken_over == 0
    return service, store, begun


def test_what_may_have_begun_elsewhere_is_in_doubt() -> None:
    """Unless work may be repeated, another node does not begin it; the order names the node that has it."""
    service, _, begun = order_in_doubt()
    order = order_of(service, begun.id)
    assert (order.state, order.node, order.attempt) == (OrderState.IN_DOUBT, "scripted on elsewhere:1", 1)
    assert order.reason == (
        "elsewhere:1 took it and is away: only a node with its state folder knows what became of it"
    )


@pytest.mark.parametrize(
    ("answer", "state", "calls"),
    [
        (Progress.RUNNING, OrderState.RUNNING, ["status", "status", "watch"]),
        (Progress.NOT_BEGUN, OrderState.RUNNING, ["status", "status", "take 1 running on h"]),
        (Outcome(ok=True), OrderState.DONE, ["status", "status", "report_saved"]),
        (Outcome(ok=False), OrderState.FAILED, ["status", "status", "report_saved"]),
        (Unknown(), OrderState.IN_DOUBT, ["status"]),
    ],
)
@pytest.mark.parametrize("node", ["elsewhere:1", "elsewhere:2"])
def test_the_node_with_the_state_folder_ends_the_doubt(
    node: str, answer: Progress | Outcome | Unknown, state: OrderState, calls: list[str]
) -> None:
    """It was cut off and is back, or another process has its state folder; a node elsewhere never ends the doubt."""
    service, store, begun = order_in_doubt()
    executor = ScriptedExecutor(answer, repeatable=False)
    back = ticker_on(service, node, executor)
    cycle_with_due_leases(back)
    back.cycle_until_idle()
    assert executor.calls == calls
    order = order_of(service, begun.id)
    assert (order.state, order.attempt) == (state, 1)
    taken_over = state is not OrderState.IN_DOUBT
    assert order.node == (f"scripted on {node}" if taken_over else "scripted on elsewhere:1")
    assert store.ticks == "a:1"


def test_an_executor_that_can_tell_from_anywhere_leaves_no_doubt() -> None:
    """Another node takes over work that its executor sees running, although it must not be repeated."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    begun = running_order(service, ticker_on(service, "elsewhere:1", ScriptedExecutor(repeatable=False)))
    store.alive.clear()
    store.ticks = "a:1"
    executor = ScriptedExecutor(Progress.RUNNING, repeatable=False)
    cycle_with_due_leases(ticker_on(service, "a:1", executor))
    order = order_of(service, begun.id)
    assert (order.state, order.node) == (OrderState.RUNNING, "scripted on a:1")
    assert executor.calls == ["status", "status", "watch"]


def test_an_order_put_in_doubt_before_this_node_began_it_begins_here() -> None:
    """The node stood still after it had taken the order. It knows that it has not begun the work, so it ends the doubt."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    executor = ScriptedExecutor(repeatable=False)
    later_s = 0.0
    ticker = ticker_on(service, "a:1", executor, monotonic=lambda: time.monotonic() + later_s)
    event_id = reboot(service)
    other = Service(service.settings, clock=service.clock, store=store, node="b:2")

    def stop_once_taken(change: Change) -> None:
        nonlocal later_s
        for order in change.orders if not later_s else ():
            if order.state is OrderState.RUNNING:
                later_s = LEASE_S + 1
                report = OrderReport(order.id, order.attempt, Unknown("away"), order.node)
                other.control.report_orders([report], Actor("ticker", "b:2"))

    service.control.listen(stop_once_taken)
    ticker.cycle()
    ticker.cycle()
    assert executor.calls[-1] == "take 1 running on h"
    order = service.control.event(event_id)[1]
    assert order is not None
    assert (order.state, order.node) == (OrderState.RUNNING, "scripted on a:1")


@pytest.mark.parametrize("overtaken", [True, False])
def test_a_node_whose_lease_ended_checks_the_order_before_it_begins(overtaken: bool) -> None:
    """The lease ended between taking the order and beginning it. If another node took it over, this one does not begin."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    executor = ScriptedExecutor(Unknown())
    later_s = 0.0
    ticker = ticker_on(service, "a:1", executor, monotonic=lambda: time.monotonic() + later_s)
    event_id = reboot(service)
    other = Service(service.settings, clock=service.clock, store=store, node="b:2")

    def stop_once_taken(change: Change) -> None:
        nonlocal later_s
        for order in change.orders if not later_s else ():
            if order.state is OrderState.RUNNING:
                later_s = LEASE_S + 1
                if overtaken:
                    actor = Actor("ticker", "b:2")
                    other.control.take_over_order(order.id, actor, node="scripted on b:2", of=order.node)

    service.control.listen(stop_once_taken)
    ticker.cycle()
    order = service.control.event(event_id)[1]
    assert order is not None
    assert order.state is OrderState.RUNNING
    assert executor.calls == []
    store.alive.add("b:2")
    ticker.cycle()
    assert executor.calls == ([] if overtaken else ["status", "take 1 running on h"])


@pytest.mark.parametrize("door", ["apply", "snapshot"])
def test_an_order_taken_over_while_the_store_fails_is_begun_later(door: str) -> None:
    """The take-over was saved although the call failed: the next cycle begins the order, since no other node would."""
    saved: list[Change] = []

    class FailingStore(LeasedMemoryStore):
        """Saves a change while `failing`, and then fails at one of its doors."""

        failing = False

        def apply(self, change: Change) -> None:
            super().apply(change)
            if self.failing:
                saved.append(change)
                if door == "apply":
                    raise StoreUnavailable("it may have happened or not")

        def snapshot(self, focus: Focus) -> Snapshot:
            if self.failing and saved and door == "snapshot":
                raise StoreUnavailable("gone")
            return super().snapshot(focus)

    store = FailingStore()
    service = make_service(store, enabled=False)
    running_order(service, ticker_on(service, "a:7", ScriptedExecutor()))
    store.alive.clear()
    store.ticks = "a:1"
    executor = ScriptedExecutor(Unknown())
    ticker = ticker_on(service, "a:1", executor)
    store.failing = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    store.failing = False
    assert (len(saved), executor.calls) == (1, [])
    ticker.cycle()
    assert executor.calls == ["status", "take 1 running on h"]


def test_work_that_still_runs_is_watched_and_not_begun_again() -> None:
    """The executor of the new node knows the order as running."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    running_order(service, ticker_on(service, "a:7", ScriptedExecutor()))
    store.alive.clear()
    store.ticks = "a:1"
    executor = ScriptedExecutor(Progress.RUNNING)
    cycle_with_due_leases(ticker_on(service, "a:1", executor))
    assert executor.calls == ["status", "watch"]


def test_a_node_comes_back_to_its_own_orders_at_once() -> None:
    """Under the same name it does not wait for its own lease to end; it leaves the orders of others alone."""
    store = LeasedMemoryStore()
    service = make_service(store, scopes=1, enabled=False)
    running_order(service, ticker_on(service, "a:1", ScriptedExecutor()))
    same, other = ScriptedExecutor(Progress.RUNNING), ScriptedExecutor(Progress.RUNNING)
    ticker_on(service, "b:1", other).recover()
    ticker_on(service, "a:1", same).recover()
    assert (other.calls, same.calls) == ([], ["status", "watch"])


@pytest.mark.parametrize("alone", [True, False])
def test_a_node_alone_in_its_state_folder_takes_its_orders_at_once(alone: bool) -> None:
    """A node that was killed and restarted does not wait for its lease to end, unless others use the same folder."""
    store = LeasedMemoryStore()
    service = make_service(store, scopes=2, enabled=False)
    begun = running_order(service, ticker_on(service, "a:1", ScriptedExecutor()))
    store.ticks = ""
    reboot(service, "s-1")
    ticker_on(
        service, "b:1", ScriptedExecutor()
    ).cycle_until_idle()  # another folder's order, whose lease has not ended
    executor = ScriptedExecutor(Progress.RUNNING)
    # The executor of hosts recovers too, and has no orders.
    hosts = ScriptedExecutor()
    ticker = ticker_on(service, "a:2", executor, alone=lambda: nullcontext(alone), host_executor=hosts)
    ticker.recover()
    cycle_with_due_leases(ticker)
    assert executor.calls == (["status", "watch"] if alone else [])
    order = order_of(service, begun.id)
    assert order.node == ("scripted on a:2" if alone else "scripted on a:1")


# -- whose report counts


def taken_over() -> tuple[Service, Order, Ticker, ScriptedExecutor, Ticker, ScriptedExecutor]:
    """A node began an order and froze; another took it over and began it again; the first goes on."""
    store = LeasedMemoryStore()
    service = make_service(store, enabled=False)
    frozen, goes_on = ScriptedExecutor(), ScriptedExecutor()
    first = ticker_on(service, "a:1", frozen)
    begun = running_order(service, first)
    store.alive.clear()
    store.ticks = "b:2"
    second = ticker_on(service, "b:2", goes_on)
    cycle_with_due_leases(second)
    assert order_of(service, begun.id).node == "scripted on b:2"
    frozen.calls.clear()
    goes_on.calls.clear()
    return service, begun, first, frozen, second, goes_on


@pytest.mark.parametrize("outcome", [Outcome(ok=True, reason="done"), Outcome(ok=False, reason="failed")])
def test_an_event_does_not_end_while_its_work_still_runs(outcome: Outcome) -> None:
    """After a take-over the first node's report is ignored, whatever it says; the second node's report counts."""
    service, begun, first, frozen, second, goes_on = taken_over()
    frozen.ended = [OrderReport(begun.id, begun.attempt, outcome)]
    cycle_with_due_leases(first)
    event, order = service.control.event(begun.id)
    assert order is not None
    assert (event.status, order.state) == (Status.STARTED, OrderState.RUNNING)
    # The files of the order stay: with a shared folder the other node may need them.
    assert frozen.calls == []
    goes_on.ended = [OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))]
    second.cycle_until_idle()
    assert service.control.event(begun.id)[0].status is Status.COMPLETED
    assert goes_on.calls == ["report_saved"]


def test_a_late_report_is_cleaned_up() -> None:
    """The order has ended through the other node: nobody needs the first node's files any more."""
    service, begun, first, frozen, second, goes_on = taken_over()
    goes_on.ended = [OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))]
    second.cycle_until_idle()
    frozen.ended = [OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))]
    cycle_with_due_leases(first)
    assert frozen.calls == ["report_saved"]
    assert order_of(service, begun.id).node == "scripted on b:2"


def test_a_report_without_a_node_counts_by_its_attempt() -> None:
    """A worker that reports through the API is no node: the attempt alone tells which work it means."""
    service, begun, *_ = taken_over()
    report = OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))
    with pytest.raises(Exception, match="no longer counts"):
        service.control.report_orders([replace(report, node="scripted on a:1")], Actor("test"))
    service.control.report_orders([report], Actor("test"))
    assert service.control.event(begun.id)[0].status is Status.COMPLETED


class Failover:
    """A database on a timeline, whose orders can be set back to an earlier state."""

    timeline = 1

    def __init__(self, executor: ScriptedExecutor, *, scopes: int = 1) -> None:
        self.store = LeasedMemoryStore()
        self.service = make_service(self.store, scopes=scopes, enabled=False)
        self.executor = executor
        self.ticker = ticker_on(self.service, "a:1", executor, timeline=lambda: self.timeline)

    def goes_back_to(self, order: Order, event: Event) -> None:
        """Show the order and its event as before, as a server that lacks the last commits."""
        self.store.apply(Change(at=START, orders=(order,), events=(event,)))

    def with_lost_report(self, outcome: Outcome | Unknown, scope: str = "s-0") -> tuple[Order, Event]:
        event_id = reboot(self.service, scope)
        self.ticker.cycle_until_idle()
        event, order = self.service.control.event(event_id)
        assert order is not None
        self.executor.ended = [OrderReport(order.id, order.attempt, outcome)]
        self.ticker.cycle()
        assert order_of(self.service, order.id).state is not OrderState.RUNNING
        self.goes_back_to(order, event)
        return order, event


@pytest.mark.parametrize(
    "outcome, state",
    [
        (Outcome(ok=True), OrderState.DONE),
        (Outcome(ok=False, reason="broke"), OrderState.FAILED),
        (Unknown("no trace"), OrderState.IN_DOUBT),
    ],
)
def test_a_report_that_a_failover_lost_is_repeated(outcome: Outcome | Unknown, state: OrderState) -> None:
    """The executor has forgotten the order, and only this node knows how it ended; it reports the order without asking."""
    database = Failover(ScriptedExecutor(repeatable=False))
    order, _ = database.with_lost_report(outcome)
    database.timeline += 1
    database.executor.calls.clear()
    database.ticker.cycle()
    saved = order_of(database.service, order.id)
    assert (saved.state, saved.reason) == (state, outcome.reason)
    assert set(database.executor.calls) <= {"report_saved", "status"}


@pytest.mark.parametrize("change", ["node", "attempt", "state"])
def test_a_report_is_not_repeated_for_another_take_of_the_order(change: str) -> None:
    """Another node has the order, or it is at another attempt, or the failover also lost that it was taken."""
    database = Failover(ScriptedExecutor(Progress.RUNNING))
    order, event = database.with_lost_report(Outcome(ok=True))
    others = {
        "node": replace(order, node="scripted on b:2"),
        "attempt": replace(order, attempt=2),
        "state": replace(order, state=OrderState.OPEN, node=""),
    }
    database.goes_back_to(others[change], event)
    database.store.alive.add("b:2")
    database.timeline += 1
    database.ticker.cycle_until_idle()
    assert order_of(database.service, order.id).state is OrderState.RUNNING


def test_the_report_of_work_that_began_again_is_not_repeated() -> None:
    """The node takes an order again whose taking and end were lost, before it learns of the failover."""
    database = Failover(ScriptedExecutor())
    order, event = database.with_lost_report(Outcome(ok=True))
    database.goes_back_to(replace(order, state=OrderState.OPEN, node=""), event)
    database.ticker.cycle()
    assert database.executor.calls[-1] == "take 1 running on h"
    database.timeline += 1
    database.ticker.cycle()
    assert order_of(database.service, order.id).state is OrderState.RUNNING


def test_only_the_last_reports_are_kept() -> None:
    """What a node keeps for a failover has a limit."""
    database = Failover(ScriptedExecutor(), scopes=MAX_KEPT_REPORTS + 1)
    lost = [database.with_lost_report(Outcome(ok=True), f"s-{n}")[0] for n in range(MAX_KEPT_REPORTS + 1)]
    database.timeline += 1
    database.ticker.cycle_until_idle()
    states = [order_of(database.service, each.id).state for each in lost]
    assert states == [OrderState.RUNNING] + [OrderState.DONE] * MAX_KEPT_REPORTS
