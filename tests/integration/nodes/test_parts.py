"""The parts of being several, one by one, with stores and clocks that a test holds in its hand."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Actor, Order, OrderState
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.last_seen import LastSeen
from forewarn.executors import OrderReport, Outcome, Progress, Unknown
from forewarn.service.clock import MAX_READING_S, KeptClock, ManualClock
from forewarn.service.follower import UNREADY_AFTER_S, Follower
from forewarn.service.leases import ELSEWHERE_AFTER_S, LEASE_S, RENEW_EVERY_S
from forewarn.service.ticker import Ticker
from forewarn.store import Connections, Feed, FeedPosition, FeedUpdate, Focus, MachineLastSeen
from forewarn.store.memory import MemoryStore
from tests.support.guest_service import START, WEB_0, WEB_1, Serving, body, get, serving, status
from tests.support.services import ScriptedExecutor, make_service, reboot
from tests.support.waiting import PATIENCE_S, until


def news(number: int, *, changed: bool = True, took_s: float = 0.0, received_s: float | None = None) -> FeedUpdate:
    now_s = time.monotonic() if received_s is None else received_s
    return FeedUpdate(
        position=FeedPosition(("db", 1), number),
        everything=False,
        scopes={},
        removed=frozenset(),
        machines=(),
        changed=changed,
        now=datetime.now(UTC),
        sent_s=now_s - took_s,
        received_s=now_s,
    )


# -- the follower


class ScriptedFeed:
    """Tells what it is told to, and remembers from where it was asked."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.asked: list[FeedPosition | None] = []
        self.away = False
        self.took_s = 0.0
        self._monotonic = monotonic

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        del wait_s
        self.asked.append(since)
        if self.away:
            raise StoreUnavailable("the database is away")
        return news(len(self.asked), took_s=self.took_s, received_s=self._monotonic())

    def close(self) -> None:
        """Nothing is held."""


def test_what_was_not_taken_in_is_told_again() -> None:
    """A hearer that fails leaves the mark where it was: the next look begins from there."""
    feed = ScriptedFeed()
    follower = Follower(feed, KeptClock(lambda: START))
    follower.start()
    failing = [True]

    def hear(_: FeedUpdate) -> None:
        if failing.pop():
            raise StoreUnavailable("gone in between")

    follower.listen(hear)
    with pytest.raises(StoreUnavailable):
        follower.poll(0.0)
    failing.append(False)
    follower.poll(0.0)
    failing.append(False)
    follower.poll(0.0)
    assert [position and position.horizon for position in feed.asked] == [None, 1, 1, 3]


def test_the_time_of_a_look_that_took_long_is_not_kept() -> None:
    """Its news count, its time does not: it was told a while after it was read."""
    feed = ScriptedFeed()
    clock = KeptClock(lambda: START)
    follower = Follower(feed, clock)
    feed.took_s = MAX_READING_S + 1
    follower.poll(0.0)
    assert abs(clock.now() - START) < timedelta(minutes=1)
    feed.took_s = 0.0
    follower.poll(0.0)
    assert abs(clock.now() - START) > timedelta(minutes=1)


def test_silence_is_complained_about_after_three_seconds() -> None:
    """Not at once, and with what was wrong; and no longer when it is back."""
    now_s = 1_000.0
    feed: Feed = ScriptedFeed(monotonic=lambda: now_s)
    follower = Follower(feed, KeptClock(lambda: START, monotonic=lambda: now_s), monotonic=lambda: now_s)
    follower.start()
    now_s += UNREADY_AFTER_S
    assert follower.complaint() == ""
    now_s += 0.1
    assert "not heard from for 3 s" in follower.complaint()
    follower.poll(0.0)
    assert follower.complaint() == ""


def test_whoever_is_told_of_what_another_node_did_waits_until_it_is_known_here() -> None:
    """A look that began before does not count; where none comes the answer is that it is not known."""
    feed = ScriptedFeed()
    follower = Follower(feed, KeptClock(lambda: START))
    follower.start()
    waiting = threading.Thread(target=follower.catch_up, args=(PATIENCE_S,), daemon=True)
    waiting.start()
    until(lambda: follower._polled._waiters)  # type: ignore[attr-defined]
    assert waiting.is_alive()
    follower.poll(0.0)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    with pytest.raises(StoreUnavailable, match="try again"):
        follower.catch_up(within_s=0.01)


# -- staleness, and what other nodes showed


@contextmanager
def sharing() -> Iterator[Serving]:
    """A service whose memory counts only as long as it is told that it does."""
    with serving() as served:
        served.server.documents._max_stale_s = 20
        yield served


def test_what_is_too_old_is_not_told_in_either_lane() -> None:
    """Remembered or parsed, polled or waited for: 503 from the moment on, and as before when the store is heard of."""
    with sharing() as served:
        client = served.client()
        for _ in range(4):
            assert status(client.ask(get())) == 200
        assert served.endpoint.counters.remembered > 0
        served.server.documents.fresh_until_s = time.monotonic() - 1
        for _ in range(4):
            answer = client.ask(get())
            assert (status(answer), body(answer)) == (503, b'{"error":"Service unavailable"}')
            assert b"Retry-After: 1" in answer
        assert status(client.ask(get("/nowhere"))) == 404
        served.server.documents.follow(news(1))
        assert status(client.ask(get())) == 200


def test_memory_grows_old_from_the_moment_it_was_read() -> None:
    """A node whose database goes away right after its start does not count as fresh for ever."""
    store, now_s = MemoryStore(), 1_000.0
    documents = Documents(store, ManualClock(START), max_stale_s=20, monotonic=lambda: now_s)
    documents.load()
    assert (documents.stale(now_s + 20), documents.stale(now_s + 20.1)) == (False, True)
    alone = Documents(store, ManualClock(START))
    alone.load()
    assert not alone.stale(1e9)


def test_what_is_too_old_stays_so_whoever_asks_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of real seconds a poll trusts the present second; nobody else who reads it makes memory count for longer."""
    monkeypatch.setattr(ManualClock, "steady", True)
    with sharing() as served:
        client, documents = served.client(), served.server.documents
        for _ in range(4):
            assert status(client.ask(get())) == 200
        assert served.endpoint.counters.remembered > 0
        documents.fresh_until_s = time.monotonic() + 0.05
        until(lambda: documents.stale(time.monotonic()))
        documents.now()
        assert status(client.ask(get())) == 503
        documents.follow(news(1))
        assert status(client.ask(get())) == 200


def test_a_newer_tag_is_looked_after_in_either_lane() -> None:
    """Whoever has seen more than we know makes us read the scope, also with bytes we remember; an older tag does not."""
    with sharing() as served:
        client, another = served.client(), served.client(WEB_1)
        client.ask(get())
        documents = served.server.documents
        tag = get("/metadata/scheduledevents?api-version=2020-07-01", 'If-None-Match: "2"')
        assert [status(another.ask(tag)) for _ in range(3)] == [200] * 3  # nobody has it: ours is told
        served.service.control._listeners.clear()  # another node changes it, and this one does not hear of it
        served.reboot("shop", "web-0")
        assert documents.views["shop"].state.etag == '"1"'
        assert status(client.ask(tag)) == 304
        assert documents.views["shop"].state.etag == '"2"'
        served.reboot("shop", "web-1")
        assert status(client.ask(tag)) == 304  # "2" is what we know, and no reason to look
        served.store.away = True
        newer = get("/metadata/scheduledevents?api-version=2020-07-01", 'If-None-Match: "3"')
        assert status(client.ask(newer)) == 503  # anything else could be older than what it has


def test_a_yes_to_what_another_node_did_is_shown_here_first() -> None:
    """An approval of what another node cancelled saves nothing; and yet this node's guests see that it is gone."""
    with sharing() as served:
        served.client().ask(get())
        control, documents = served.service.control, served.server.documents
        control.listen_to_unchanged(documents.catch_up)
        served.reboot("shop", "web-0")
        (event,) = documents.views["shop"].state.events
        control._listeners.clear()  # from here on another node does it, and this one does not hear of it
        control.cancel_maintenance(event.maintenance_id, Actor("operator of another node"))
        assert len(documents.views["shop"].state.events) == 1
        control.approve("shop", "web-0", [event.id], Actor("shop/web-0"))  # "ended: 200, nothing changes"
        assert len(documents.views["shop"].state.events) == 0


@pytest.mark.parametrize("tag", ['"1"', '"0"', '"x"', "null", '"2-0"', '"' + "9" * 19 + '"', '"1-1"'])
def test_other_tags_are_no_reason_to_read(tag: str) -> None:
    """Garbage, and what is not newer, costs the store nothing."""
    with sharing() as served:
        client = served.client(WEB_0)
        client.ask(get())
        served.store.away = True
        url = "/metadata/scheduledevents?api-version=2020-07-01"
        assert status(client.ask(get(url, f"If-None-Match: {tag}"))) in (200, 304)


def test_many_with_a_newer_tag_cost_one_look() -> None:
    """A scope that was read after somebody asked need not be read for them again."""
    with sharing() as served:
        served.client().ask(get())
        documents, view = served.server.documents, served.server.documents.views["shop"]
        sent_s = time.monotonic()
        documents.read_again(view, sent_s)
        served.store.away = True
        documents.read_again(view, sent_s)
        with pytest.raises(StoreUnavailable):
            documents.read_again(view, time.monotonic())


def test_a_scope_enabled_elsewhere_is_shown_as_it_is() -> None:
    """A first request here, of a scope whose guests asked another node before, is answered with what they got there."""
    with sharing() as served:
        bells = list(served.service.control._listeners)
        served.service.control._listeners.clear()
        served.service.control.enable("shop", Actor("another node"))
        served.reboot("shop", "web-0")
        served.service.control._listeners.extend(bells)
        answer = served.client().ask(get())
        assert b'"DocumentIncarnation":2' in body(answer)


# -- guests who ask another node


def test_a_scope_is_idle_only_where_nobody_asked_any_node() -> None:
    """What another node wrote down counts; when that is old as well, the scope is disabled."""
    store = MemoryStore()
    service = make_service(store, scopes=2)
    documents = Documents(store, service.clock, max_stale_s=20)
    documents.load()
    service.control.listen(documents.on_change)
    attendance = LastSeen(documents, service.control, store, disable_after_s=3_600)
    seen_at = service.clock.now() + timedelta(minutes=50)
    store.record_last_seen([MachineLastSeen("s-0", "m", seen_at)])
    service.clock.move_to(service.clock.now() + timedelta(minutes=61))
    assert attendance.do(service.clock.now()) == 1
    assert [name for name, scope in store.scopes().items() if scope.enabled] == ["s-0"]
    assert attendance.next_due() == seen_at + timedelta(hours=1)
    service.clock.move_to(seen_at + timedelta(hours=1))
    assert attendance.do(service.clock.now()) == 1


# -- leases


class SharedMemory(MemoryStore):
    """A store in memory with leases that a test gives and takes."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = ""
        self.alive: set[str] = set()
        self.lately: set[str] = set()

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        del seconds
        if name == "ticker":
            self.ticks = self.ticks or node
            return self.ticks == node
        self.alive.add(node)
        return True

    def drop_lease(self, name: str, node: str) -> None:
        if name == "ticker" and self.ticks == node:
            self.ticks = ""

    def live_nodes(self, past_s: float = 0.0) -> set[str]:
        return self.alive | (self.lately if past_s >= ELSEWHERE_AFTER_S else set())

    def feed(self) -> Feed:
        raise NotImplementedError

    def now(self) -> datetime:
        return START

    def connections(self) -> Connections:
        return Connections(0, 0, 1, away=False)

    def forget_changes(self, limit: int) -> int:
        return 0


def ticker_on(service: Service, node: str, executor: ScriptedExecutor, **options: Any) -> Ticker:
    """Return a ticker of the node `node`; `options` are those of `Ticker`."""
    store = service.store
    assert isinstance(store, SharedMemory)
    return Ticker(
        service.control,
        store,
        service.clock,
        executor,
        node=node,
        retain_history_s=0,
        shared=store,
        **options,
    )


def running_order(service: Service, ticker: Ticker) -> Order:
    event_id = reboot(service)
    ticker.cycle_until_idle()
    order = service.control.event(event_id)[1]
    assert order is not None
    assert order.state is OrderState.RUNNING
    return order


def renewed(ticker: Ticker) -> None:
    """Its next cycle, when leases are due."""
    ticker.leases.renew_at_s = 0.0
    begun_s = time.monotonic()
    ticker.cycle()
    assert begun_s + RENEW_EVERY_S <= ticker.leases.renew_at_s <= time.monotonic() + RENEW_EVERY_S


def test_only_the_holder_of_the_lease_ticks() -> None:
    """The other does nothing and has nothing to wait for; when the holder leaves, it ticks at once."""
    service = make_service(SharedMemory(), enabled=False)
    first, second = ScriptedExecutor(), ScriptedExecutor()
    holder, other = ticker_on(service, "a:1", first), ticker_on(service, "b:2", second)
    assert not holder.cycle()
    reboot(service)
    assert not other.cycle_until_idle()
    assert other.next_wakeup() is None
    assert second.calls == []
    assert holder.cycle_until_idle()
    holder.leave()
    other.leases.renew_at_s = 0.0
    reboot(service)
    other.cycle_until_idle()
    assert other.leads
    assert not ticker_on(service, "c:3", ScriptedExecutor(), may_tick=False).cycle_until_idle()


def test_a_node_that_drains_starts_nothing_and_saves_its_reports() -> None:
    """Another node ticks; this one keeps its own lease, so that nobody doubts the orders it waits for."""
    store = SharedMemory()
    service = make_service(store, scopes=2, enabled=False)
    executor, other = ScriptedExecutor(repeatable=False), ScriptedExecutor(repeatable=False)
    leaving, staying = ticker_on(service, "a:1", executor), ticker_on(service, "b:2", other)
    begun = running_order(service, leaving)
    leaving.drain()
    reboot(service, "s-1")
    renewed(leaving)
    renewed(staying)
    staying.cycle_until_idle()
    assert (leaving.leads, staying.leads) == (False, True)
    assert executor.calls == other.calls == ["take 1 running on h"]
    executor.ended = [OrderReport(begun.id, 1, Outcome(ok=True))]
    renewed(leaving)
    assert saved_order(service, begun).state is OrderState.DONE
    assert leaving.at_work() == 0


@pytest.mark.parametrize("dead, waits", [("a:7", False), ("elsewhere:1", True)])
def test_a_dead_nodes_order_is_taken_over_after_asking(dead: str, waits: bool) -> None:
    """On the same machine when its lease ends, elsewhere a while later; never while it lives, and never by two."""
    store = SharedMemory()
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
    renewed(ticker)
    assert bool(executor.calls) is not waits
    store.lately.discard(dead)
    renewed(ticker)
    assert executor.calls == ["status", f"take {begun.attempt} running on h"]
    order = service.control.event(begun.id)[1]
    assert order is not None
    assert (order.node, order.attempt, order.deadline) == ("scripted on a:1", begun.attempt, begun.deadline)
    renewed(ticker)
    assert len(executor.calls) == 2
    assert ticker.taken_over == 1


def order_in_doubt() -> tuple[Service, SharedMemory, Order]:
    """Return an order that a node elsewhere took before it died, and that another node has put in doubt."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    begun = running_order(service, ticker_on(service, "elsewhere:1", ScriptedExecutor(repeatable=False)))
    store.ticks = "a:1"
    executor = ScriptedExecutor(repeatable=False)
    ticker = ticker_on(service, "a:1", executor)
    ticker.recover()
    ticker.cycle()
    store.alive.discard("elsewhere:1")
    store.lately.add("elsewhere:1")
    renewed(ticker)
    assert saved_order(service, begun).state is OrderState.RUNNING  # the node may come back
    store.lately.clear()
    renewed(ticker)
    for _ in range(3):
        renewed(ticker)
    assert executor.calls == ["status"]
    assert ticker.taken_over == 0
    return service, store, begun


def saved_order(service: Service, order: Order) -> Order:
    found = service.control.event(order.id)[1]
    assert found is not None
    return found


def test_what_may_have_begun_elsewhere_is_in_doubt() -> None:
    """Unless work may be repeated, another node does not begin it; the order names the node that has it."""
    service, _, begun = order_in_doubt()
    order = saved_order(service, begun)
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
    renewed(back)
    back.cycle_until_idle()
    assert executor.calls == calls
    order = saved_order(service, begun)
    assert (order.state, order.attempt) == (state, 1)
    taken_over = state is not OrderState.IN_DOUBT
    assert order.node == (f"scripted on {node}" if taken_over else "scripted on elsewhere:1")
    assert store.ticks == "a:1"


def test_an_executor_that_can_tell_from_anywhere_leaves_no_doubt() -> None:
    """Another node takes over work that its executor sees running, although it must not be repeated."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    begun = running_order(service, ticker_on(service, "elsewhere:1", ScriptedExecutor(repeatable=False)))
    store.alive.clear()
    store.ticks = "a:1"
    executor = ScriptedExecutor(Progress.RUNNING, repeatable=False)
    renewed(ticker_on(service, "a:1", executor))
    order = saved_order(service, begun)
    assert (order.state, order.node) == (OrderState.RUNNING, "scripted on a:1")
    assert executor.calls == ["status", "status", "watch"]


def test_an_order_put_in_doubt_before_this_node_began_it_begins_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stood still after it had taken the order. It knows that it has not begun the work, so it ends the doubt."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    executor = ScriptedExecutor(repeatable=False)
    later_s = 0.0
    ticker = ticker_on(service, "a:1", executor, monotonic=lambda: time.monotonic() + later_s)
    event_id = reboot(service)
    real_take = service.control.take_order

    def stopped(order_id: str, actor: Actor, *, node: str) -> Order:
        nonlocal later_s
        taken = real_take(order_id, actor, node=node)
        later_s = LEASE_S + 1
        report = OrderReport(order_id, taken.attempt, Unknown("away"), node)
        service.control.report_orders([report], Actor("ticker", "b:2"))
        return taken

    monkeypatch.setattr(service.control, "take_order", stopped)
    ticker.cycle()
    ticker.cycle()
    assert executor.calls[-1] == "take 1 running on h"
    order = service.control.event(event_id)[1]
    assert order is not None
    assert (order.state, order.node) == (OrderState.RUNNING, "scripted on a:1")


@pytest.mark.parametrize("overtaken", [True, False])
def test_a_node_stopped_before_it_begins_looks_whose_the_order_is(
    overtaken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease ended between taking an order and beginning it: another may have begun it, and then it does not."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    executor = ScriptedExecutor(Unknown())
    later_s = 0.0
    ticker = ticker_on(service, "a:1", executor, monotonic=lambda: time.monotonic() + later_s)
    event_id = reboot(service)
    real_take = service.control.take_order

    def stopped(order_id: str, actor: Actor, *, node: str) -> Order:
        nonlocal later_s
        taken = real_take(order_id, actor, node=node)
        later_s = LEASE_S + 1
        if overtaken:
            service.control.take_over_order(order_id, actor, node="scripted on b:2", of=node)
        return taken

    monkeypatch.setattr(service.control, "take_order", stopped)
    ticker.cycle()
    order = service.control.event(event_id)[1]
    assert order is not None
    assert order.state is OrderState.RUNNING
    assert executor.calls == []
    store.alive.add("b:2")
    ticker.cycle()
    assert executor.calls == ([] if overtaken else ["status", "take 1 running on h"])


@pytest.mark.parametrize("door", ["apply", "snapshot"])
def test_an_order_taken_over_while_the_store_fails_is_taken_up(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved as ours, though we were not told so or could not read on: nobody else would ever begin it."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    running_order(service, ticker_on(service, "a:7", ScriptedExecutor()))
    store.alive.clear()
    store.ticks = "a:1"
    executor = ScriptedExecutor(Unknown())
    ticker = ticker_on(service, "a:1", executor)
    saved, original = [], {name: getattr(store, name) for name in ("apply", "snapshot")}

    def apply(change: Change) -> None:
        original["apply"](change)
        saved.append(change)
        if door == "apply":
            raise StoreUnavailable("it may have happened or not")

    def snapshot(focus: Focus) -> Snapshot:
        if saved and door == "snapshot":
            raise StoreUnavailable("gone")
        return cast(Snapshot, original["snapshot"](focus))

    with monkeypatch.context() as failing:
        failing.setattr(store, "apply", apply)
        failing.setattr(store, "snapshot", snapshot)
        with pytest.raises(StoreUnavailable):
            ticker.cycle()
    assert (len(saved), executor.calls) == (1, [])
    ticker.cycle()
    assert executor.calls == ["status", "take 1 running on h"]


def test_what_still_runs_is_watched_and_what_ended_is_reported() -> None:
    """Taken over, an order that the executor finds at work is not begun again."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    running_order(service, ticker_on(service, "a:7", ScriptedExecutor()))
    store.alive.clear()
    store.ticks = "a:1"
    executor = ScriptedExecutor(Progress.RUNNING)
    renewed(ticker_on(service, "a:1", executor))
    assert executor.calls == ["status", "watch"]


def test_a_node_comes_back_to_its_own_orders_at_once() -> None:
    """Under the same name it need not wait for its own lease to end; others' orders it leaves alone."""
    store = SharedMemory()
    service = make_service(store, scopes=1, enabled=False)
    running_order(service, ticker_on(service, "a:1", ScriptedExecutor()))
    same, other = ScriptedExecutor(Progress.RUNNING), ScriptedExecutor(Progress.RUNNING)
    ticker_on(service, "b:1", other).recover()
    ticker_on(service, "a:1", same).recover()
    assert (other.calls, same.calls) == ([], ["status", "watch"])
