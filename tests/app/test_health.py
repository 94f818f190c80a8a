"""Readiness and metrics of a node whose database is silent or cannot be written."""

from collections.abc import Callable, Collection

import pytest

from forewarn.app.health import Health
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Order, OrderState
from forewarn.endpoint.documents import Documents
from forewarn.service import leases
from forewarn.service.clock import KeptClock
from forewarn.service.follower import UNREADY_AFTER_S, Follower
from forewarn.store import Backlog
from tests.support.guest_service import START
from tests.support.services import ScriptedExecutor, make_service
from tests.support.several_nodes import (
    LeasedMemoryStore,
    ScriptedFeed,
    ticker_on,
)


def follower_that_is_silent_for(silent_s: Callable[[], float]) -> Follower:
    """Return a follower whose database answered last `silent_s()` seconds ago."""
    clock = KeptClock(lambda: START, monotonic=lambda: 1_000.0)
    follower = Follower(ScriptedFeed(lambda: 1_000.0), clock, monotonic=lambda: 1_000.0 + silent_s())
    follower.start()
    return follower


class ReadOnlyStore(LeasedMemoryStore):
    """Gives no lease while `read_only`."""

    read_only = False

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        if self.read_only:
            raise StoreUnavailable("it cannot be written")
        return super().take_lease(name, node, seconds)


def test_a_node_that_cannot_renew_its_lease_is_not_ready() -> None:
    """After a few seconds readiness fails with the cause; it recovers with the next renewal."""
    store = ReadOnlyStore()
    service = make_service(store, enabled=False)
    now_s = 1_000.0
    ticker = ticker_on(service, "a:1", ScriptedExecutor(), monotonic=lambda: now_s)
    ticker.cycle()
    store.read_only = True
    now_s += leases.UNREADY_AFTER_S
    assert ticker.complaint() == ""
    now_s += 0.1
    with pytest.raises(StoreUnavailable) as error:
        ticker.cycle()
    ticker.note_trouble(error.value)
    assert ticker.complaint() == "this node has saved nothing for 6 s: it cannot be written"
    store.read_only = False
    ticker.cycle()
    assert ticker.complaint() == ""


def test_a_database_that_can_only_be_read_is_not_enough() -> None:
    """Readiness needs a feed that answers and a lease that was renewed."""
    service = make_service(LeasedMemoryStore())
    silent_s, stuck_s = 0.0, 0.0
    follower = follower_that_is_silent_for(lambda: silent_s)
    ticker = ticker_on(service, "a:1", ScriptedExecutor(), monotonic=lambda: 1_000.0 + stuck_s)
    health = Health(service.settings, service.store, service.control, service.clock, ticker, follower)
    assert health.store_problem() == ""
    stuck_s = 7.0
    assert health.store_problem() == "this node has saved nothing for 7 s: the database does not answer"
    silent_s = UNREADY_AFTER_S - 0.5
    assert health.store_answers()  # a poll that came a little late did not fail
    silent_s = 4.0
    assert not health.store_answers()
    assert health.store_problem() == "this node has read nothing for 4 s: the database does not answer"


def test_metrics_do_not_wait_for_a_database_that_is_silent() -> None:
    """What only the database knows is left out without asking it; what the node knows is there."""

    class CountingStore(LeasedMemoryStore):
        """Counts the calls of `backlog`."""

        times = 0

        def backlog(self) -> Backlog:
            self.times += 1
            return super().backlog()

    store, silent_s = CountingStore(), 0.0
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


def test_metrics_are_answered_if_the_database_goes_away_meanwhile() -> None:
    """The database may stop to answer between two of its reads: what it did not answer any more is left out."""

    class LeavingStore(LeasedMemoryStore):
        """Goes away when the orders of hosts are read while it is `leaving`."""

        leaving = False

        def orders(self, states: Collection[OrderState], limit: int, *, of_hosts: bool = False) -> list[Order]:
            if of_hosts and self.leaving:
                raise StoreUnavailable("the database is away")
            return super().orders(states, limit, of_hosts=of_hosts)

    store = LeavingStore()
    service = make_service(store)
    ticker = ticker_on(service, "a:1", ScriptedExecutor())
    follower = follower_that_is_silent_for(lambda: 0.0)
    health = Health(service.settings, store, service.control, service.clock, ticker, follower)
    store.leaving = True
    known = health.facts(Documents(store, service.clock))
    assert (known.clock_held, known.store_held, known.hosts) == (False, False, None)
