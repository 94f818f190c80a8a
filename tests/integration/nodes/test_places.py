"""Where a node runs and what it is called: who finds the orders of a dead one, when, and whose word about an order counts."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.app.health import Health
from forewarn.app.operator_token import keep_operator_token
from forewarn.app.service import Service, new_state_dir_name, node_name
from forewarn.core.errors import InvalidSettings, StoreUnavailable
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import Actor, Order, OrderState, Role, Status, Token
from forewarn.endpoint.documents import Documents
from forewarn.executors import OrderReport, Progress
from forewarn.operator.api.access import ENVIRONMENT_TOKEN, digest
from forewarn.service import leases
from forewarn.service.clock import KeptClock
from forewarn.service.follower import UNREADY_AFTER_S, Follower
from forewarn.service.settings import Settings
from forewarn.service.state_dir import StateDir
from forewarn.service.ticker import Ticker
from forewarn.store import Backlog
from tests.integration.nodes.test_parts import ScriptedFeed, SharedMemory, renewed, running_order, ticker_on
from tests.support.guest_service import START
from tests.support.services import ScriptedExecutor, make_service, reboot


class ClosedFeed(ScriptedFeed):
    """Knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("away", [True, False])
def test_a_start_that_fails_leaves_no_connection_open(tmp_path: Path, away: bool) -> None:
    """The database cannot be followed, or the folder cannot be used: what was opened to hear of others is closed."""
    (tmp_path / "place.lock").mkdir()
    store, feed = SharedMemory(), ClosedFeed()
    feed.away = away
    store.feed = lambda: feed  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable if away else InvalidSettings):
        Service(Settings(store="memory:", state_dir=tmp_path), store=store)
    assert feed.closed


def test_no_two_nodes_have_one_name(tmp_path: Path) -> None:
    """Not two of one process even: containers have the same process id, and may have the same host name."""
    folder = StateDir(tmp_path, new_state_dir_name)
    names = {node_name(folder) for _ in range(100)} | {node_name(None) for _ in range(100)}
    assert len(names) == 200
    assert sum(name.rpartition(":")[0] == folder.name for name in names) == 100
    assert len({new_state_dir_name() for _ in range(100)}) == 100
    folder.close()


# -- the orders of those who were here before


@pytest.mark.parametrize("alone", [True, False])
def test_who_is_alone_at_its_place_takes_up_what_was_left_there_at_once(alone: bool) -> None:
    """A node that was killed and started again need not wait for its own lease to end; where others are it must."""
    store = SharedMemory()
    service = make_service(store, scopes=2, enabled=False)
    begun = running_order(service, ticker_on(service, "a:1", ScriptedExecutor()))
    store.ticks = ""
    reboot(service, "s-1")
    ticker_on(
        service, "b:1", ScriptedExecutor()
    ).cycle_until_idle()  # its order is elsewhere, and its lease has not ended
    executor = ScriptedExecutor(Progress.RUNNING)
    ticker = ticker_on(service, "a:2", executor, alone=lambda: nullcontext(alone))
    ticker.recover()
    renewed(ticker)
    assert executor.calls == (["status", "watch"] if alone else [])
    order = order_of(service, begun.id)
    assert order.node == ("scripted on a:2" if alone else "scripted on a:1")


# -- whose word counts


def order_of(service: Service, event_id: str) -> Order:
    order = service.control.event(event_id)[1]
    assert order is not None
    return order


def taken_over() -> tuple[Service, Order, Ticker, ScriptedExecutor, Ticker, ScriptedExecutor]:
    """A node began an order and froze; another took it over, and began it again; the first goes on."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    frozen, goes_on = ScriptedExecutor(), ScriptedExecutor()
    first = ticker_on(service, "a:1", frozen)
    begun = running_order(service, first)
    store.alive.clear()
    store.ticks = "b:2"
    second = ticker_on(service, "b:2", goes_on)
    renewed(second)
    assert order_of(service, begun.id).node == "scripted on b:2"
    frozen.calls.clear()
    goes_on.calls.clear()
    return service, begun, first, frozen, second, goes_on


@pytest.mark.parametrize("outcome", [Outcome(ok=True, reason="done"), Outcome(ok=False, reason="failed")])
def test_an_event_does_not_end_while_its_work_still_runs(outcome: Outcome) -> None:
    """What a node says of an order that another has taken over does not matter, well or ill; what the other says does."""
    service, begun, first, frozen, second, goes_on = taken_over()
    frozen.ended = [OrderReport(begun.id, begun.attempt, outcome)]
    renewed(first)
    event, order = service.control.event(begun.id)
    assert order is not None
    assert (event.status, order.state) == (Status.STARTED, OrderState.RUNNING)
    # What is kept of it may be what the other waits for, at the same place.
    assert frozen.calls == []
    goes_on.ended = [OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))]
    second.cycle_until_idle()
    assert service.control.event(begun.id)[0].status is Status.COMPLETED
    assert goes_on.calls == ["report_saved"]


def test_what_came_too_late_is_tidied() -> None:
    """Where the other has ended it meanwhile, nobody waits for what is kept here."""
    service, begun, first, frozen, second, goes_on = taken_over()
    goes_on.ended = [OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))]
    second.cycle_until_idle()
    frozen.ended = [OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))]
    renewed(first)
    assert frozen.calls == ["report_saved"]
    assert order_of(service, begun.id).node == "scripted on b:2"


# -- whether it can write


def test_a_node_that_cannot_renew_its_lease_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few seconds it says so and why; and no longer when it can."""
    store = SharedMemory()
    service = make_service(store, enabled=False)
    now_s = 1_000.0
    ticker = ticker_on(service, "a:1", ScriptedExecutor(), monotonic=lambda: now_s)
    ticker.cycle()

    def refuse(name: str, node: str, seconds: float) -> bool:
        raise StoreUnavailable("it cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr(store, "take_lease", refuse)
        now_s += leases.UNREADY_AFTER_S
        assert ticker.complaint() == ""
        now_s += 0.1
        with pytest.raises(StoreUnavailable) as error:
            ticker.cycle()
        ticker.note_trouble(error.value)
        assert ticker.complaint() == "this node has saved nothing for 6 s: it cannot be written"
    ticker.cycle()
    assert ticker.complaint() == ""


def test_readiness_is_about_writing_too() -> None:
    """A database that can be read, and is followed, is not enough."""
    service = make_service(SharedMemory())
    silent_s, stuck_s = 0.0, 0.0
    follower = follower_that_is_silent_for(lambda: silent_s)
    ticker = ticker_on(service, "a:1", ScriptedExecutor(), monotonic=lambda: 1_000.0 + stuck_s)
    health = Health(service.settings, service.store, service.control, service.clock, ticker, follower)
    assert health.store_problem() == ""
    stuck_s = 7.0
    assert health.store_problem() == "this node has saved nothing for 7 s: the database does not answer"
    silent_s = UNREADY_AFTER_S - 0.5
    assert health.store_answers()  # a look that came a little late is none that failed
    silent_s = 4.0
    assert not health.store_answers()
    assert health.store_problem() == "this node has read nothing for 4 s: the database does not answer"


def follower_that_is_silent_for(silent_s: Callable[[], float]) -> Follower:
    """Return a follower that heard from its database `silent_s()` seconds ago."""
    clock = KeptClock(lambda: START, monotonic=lambda: 1_000.0)
    follower = Follower(ScriptedFeed(lambda: 1_000.0), clock, monotonic=lambda: 1_000.0 + silent_s())
    follower.start()
    return follower


def test_metrics_do_not_wait_for_a_database_that_is_silent() -> None:
    """What only the database knows is left out, and it is not asked; what the node knows is there."""

    class Asked(SharedMemory):
        """Counts how often somebody asks for what is open."""

        times = 0

        def backlog(self) -> Backlog:
            self.times += 1
            return super().backlog()

    store, silent_s = Asked(), 0.0
    service = make_service(store)
    documents = Documents(store, service.clock)
    documents.load()
    ticker = ticker_on(service, "a:1", ScriptedExecutor())
    follower = follower_that_is_silent_for(lambda: silent_s)
    health = Health(service.settings, store, service.control, service.clock, ticker, follower)
    known = health.facts(documents)
    assert (known.backlog is not None, known.clock_held, known.machines, store.times) == (True, False, 1, 1)
    health._counted = (0.0, None)
    silent_s = UNREADY_AFTER_S + 0.1
    known = health.facts(documents)
    assert (known.backlog, known.clock_held, known.machines, store.times) == (None, None, 1, 1)


# -- tokens


def tokens_after_start(service: Service, path: Path) -> list[Token]:
    keep_operator_token(service, path)
    return sorted(service.store.tokens(), key=lambda token: token.name)


def test_a_place_has_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept, and replaced where its file is lost; where the environment has one, no other is made."""
    monkeypatch.delenv(ENVIRONMENT_TOKEN, raising=False)
    service = make_service(SharedMemory())
    service.state_dir = StateDir(tmp_path, lambda: "here-1")
    path = tmp_path / "operator.token"
    theirs = Token(id="t", name="operator of there-2", role=Role.OPERATOR, digest=digest("t"), created=START)
    service.control.add_token(theirs, Actor("test"))
    (mine, _) = first = tokens_after_start(service, path)
    assert mine.name == "operator of here-1"
    assert tokens_after_start(service, path) == first
    path.unlink()
    (again, kept) = tokens_after_start(service, path)
    assert (again.name, kept) == (mine.name, theirs)
    assert again.digest == digest(path.read_text().strip()) != mine.digest
    monkeypatch.setenv(ENVIRONMENT_TOKEN, "an-operator-of-the-environment")
    path.unlink()
    assert tokens_after_start(service, path) == [again, theirs]
    assert not path.exists()
    service.state_dir.close()


def test_a_report_without_a_name_counts_as_ever() -> None:
    """Whoever does the work through the API is no node: the attempt alone says what it is about."""
    service, begun, *_ = taken_over()
    report = OrderReport(begun.id, begun.attempt, Outcome(ok=True, reason="done"))
    with pytest.raises(Exception, match="no longer counts"):
        service.control.report_orders([replace(report, node="scripted on a:1")], Actor("test"))
    service.control.report_orders([report], Actor("test"))
    assert service.control.event(begun.id)[0].status is Status.COMPLETED
