"""Stand-ins for tests of one node among several: a scripted feed, a memory store with leases, tickers by node name."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from forewarn.app.service import Service
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Order, OrderState
from forewarn.executors import Executor
from forewarn.service.leases import ELSEWHERE_AFTER_S, RENEW_EVERY_S
from forewarn.service.ticker import Ticker
from forewarn.store import Connections, Feed, FeedPosition, FeedUpdate
from forewarn.store.memory import MemoryStore
from tests.support.guest_service import START
from tests.support.services import reboot


def feed_update(
    number: int, *, changed: bool = True, took_s: float = 0.0, received_s: float | None = None
) -> FeedUpdate:
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


class ScriptedFeed:
    """A feed that counts up, or fails while `away`, and records from which position it was asked.

    `changed` says whether its updates report a change.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.positions: list[FeedPosition | None] = []
        self.away = False
        self.changed = True
        self.took_s = 0.0
        self._monotonic = monotonic

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        del wait_s
        self.positions.append(since)
        if self.away:
            raise StoreUnavailable("the database is away")
        return feed_update(len(self.positions), changed=self.changed, took_s=self.took_s, received_s=self._monotonic())

    def close(self) -> None:
        """Close nothing: there is no connection."""


class LeasedMemoryStore(MemoryStore):
    """A memory store with leases: `ticks` holds the ticker's, `alive` are live nodes, `lately` those that died a moment ago.

    `ticking_hosts` are the hosts of nodes that may tick.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ticks = ""
        self.alive: set[str] = set()
        self.lately: set[str] = set()
        self.ticking_hosts: set[str] = set()

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        del seconds
        if name == "ticker":
            self.ticks = self.ticks or node
            return self.ticks == node
        (self.alive if name.startswith("node ") else self.ticking_hosts).add(node)
        return True

    def drop_lease(self, name: str, node: str) -> None:
        if name == "ticker" and self.ticks == node:
            self.ticks = ""

    def live_nodes(self, past_s: float = 0.0, *, kind: str = "node") -> set[str]:
        if kind != "node":
            return self.ticking_hosts
        return self.alive | (self.lately if past_s >= ELSEWHERE_AFTER_S else set())

    def feed(self) -> Feed:
        raise NotImplementedError

    def now(self) -> datetime:
        return START

    def connections(self) -> Connections:
        return Connections(0, 0, 1, away=False)

    def forget_changes(self, limit: int) -> int:
        return 0


def ticker_on(service: Service, node: str, executor: Executor, **options: Any) -> Ticker:
    """Return a ticker of the node `node`; `options` are those of `Ticker`."""
    store = service.store
    assert isinstance(store, LeasedMemoryStore)
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


def cycle_with_due_leases(ticker: Ticker) -> None:
    """Run one cycle in which the leases are due, and check that they were renewed."""
    ticker.leases.renew_at_s = 0.0
    begun_s = time.monotonic()
    ticker.cycle()
    assert begun_s + RENEW_EVERY_S <= ticker.leases.renew_at_s <= time.monotonic() + RENEW_EVERY_S
