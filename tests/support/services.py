"""A service on a manual clock, an executor that a test scripts, and stores that fail on purpose."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.model import (
    Actor,
    Event,
    EventType,
    Machine,
    MaintenanceRequest,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome
from forewarn.executors import Executor, OrderReport, Progress, Unknown, Work
from forewarn.service.clock import ManualClock
from forewarn.service.settings import Settings
from forewarn.service.ticker import Ticker
from forewarn.store import Focus, Store
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START

OPERATOR = Actor("operator")
# No time passes between a decision and its commit, however busy the machine is.
STILL = Times(monotonic=lambda: 0.0)
ORDER_ID = "00000001-0000-4000-8000-000000000000"


def make_service(
    store: Store, *, scopes: int = 1, enabled: bool = True, times: Times = STILL, **settings: object
) -> Service:
    """Return a service on a manual clock with the scopes s-0, s-1 …, each with one machine `m`."""
    options = {"executor": "external", **settings}
    service = Service(
        Settings(store="memory:", **options),  # type: ignore[arg-type]
        clock=ManualClock(START),
        store=store,
        node="here",
        times=times,
    )
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
    """Schedule a Reboot of the scope's machine; return the event's id."""
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=((scope, "m"),)))
    maintenance_id = service.control.submit(request, OPERATOR)
    return service.control.maintenance(maintenance_id)[1][0].id


class ScriptedExecutor(Executor):
    """Takes orders, records its calls, answers `status` as configured, and reports what a test puts into `ended`."""

    name = "scripted"

    def __init__(self, status: Progress | Outcome | Unknown | None = None, *, repeatable: bool = True) -> None:
        self.repeatable = repeatable
        self.calls: list[str] = []
        self.answer = status or Unknown()
        self.ended: list[OrderReport] = []

    def free_slots(self) -> int:
        return 2

    def status(self, work: Work) -> Progress | Outcome | Unknown:
        self.calls.append("status")
        return self.answer

    def take(self, work: Work) -> None:
        self.calls.append(f"take {work.order.attempt} {work.order.state} on {work.hosts['m']}")

    def watch(self, work: Work) -> None:
        self.calls.append("watch")

    def reports(self, now: datetime) -> list[OrderReport]:
        ended, self.ended = self.ended, []
        return ended

    def report_saved(self, report: OrderReport) -> None:
        self.calls.append("report_saved")


def ticker_with(service: Service, executor: Executor, ticker_type: type[Ticker] = Ticker, **options: Any) -> Ticker:
    """Return a second ticker on the service's store, with this executor; `options` are those of `Ticker`."""
    return ticker_type(
        service.control, service.store, service.clock, executor, node="here", retain_history_s=0, **options
    )


class AwayStore(MemoryStore):
    """Fails while `away`, and whenever it reads the maintenance `broken`, or lists orders while `orders_away`."""

    away = orders_away = False
    refused = 0
    broken = ""

    def due(self, now: datetime, limit: int, *, latest_first: bool = False) -> list[str]:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the disk is gone")
        return super().due(now, limit, latest_first=latest_first)

    def orders(self, states: Collection[OrderState], limit: int, *, of_hosts: bool = False) -> list[Order]:
        if self.orders_away:
            raise StoreUnavailable("the disk is gone")
        return super().orders(states, limit, of_hosts=of_hosts)

    def snapshot(self, focus: Focus) -> Snapshot:
        if self.broken and self.broken in focus.maintenances:
            raise RuntimeError("unexpected")
        return super().snapshot(focus)


class BrittleStore(MemoryStore):
    """Can always be read; refuses writes while `full`."""

    full = False
    attempts = 0

    def apply(self, change: Change) -> None:
        if self.full:
            self.attempts += 1
            raise StoreUnavailable("the disk is full")
        super().apply(change)


class SilentStore(MemoryStore):
    """Saves every change, but fails afterwards while `silent`."""

    silent = False

    def apply(self, change: Change) -> None:
        super().apply(change)
        if self.silent:
            raise StoreUnavailable("the connection is gone")


class FailedOverStore(MemoryStore):
    """Lists its orders as before a failover, and then reads without those in `lost_orders` and the events in `lost_events`.

    No maintenance is due, and no other node is alive.
    """

    lost_orders: frozenset[str] = frozenset()
    lost_events: frozenset[str] = frozenset()

    def snapshot(self, focus: Focus) -> Snapshot:
        found = super().snapshot(focus)
        events = {id_: event for id_, event in found.events.items() if id_ not in self.lost_events}
        orders = {id_: order for id_, order in found.orders.items() if id_ not in self.lost_orders | self.lost_events}
        return replace(found, events=events, orders=orders)

    def due(self, now: datetime, limit: int, *, latest_first: bool = False) -> list[str]:
        return []

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        return True

    def live_nodes(self, past_s: float = 0.0, *, kind: str = "node") -> set[str]:
        return set()

    def forget_changes(self, limit: int) -> int:
        return 0


class BlindStore(MemoryStore):
    """Fails when it is asked for the next wake-up."""

    def next_wakeup(self) -> datetime | None:
        raise StoreUnavailable("the disk is gone")


class ContendedStore(MemoryStore):
    """Raises a conflict for the next `times` writes."""

    times = 0

    def apply(self, change: Change) -> None:
        if self.times > 0:
            self.times -= 1
            raise Conflict("another writer was first")
        super().apply(change)


def work(attempt: int = 1, resources: tuple[str, ...] = ("web-0", "web-1")) -> Work:
    """Return a running order of a Reboot in the scope `shop`."""
    event = Event(
        id=ORDER_ID,
        maintenance_id="00000002-0000-4000-8000-000000000000",
        wave=1,
        position=0,
        scope="shop",
        update_domain=3,
        type=EventType.REBOOT,
        source=Source.PLATFORM,
        resources=resources,
        description="new kernel",
        duration_s=9,
        status=Status.STARTED,
    )
    order = Order(id=ORDER_ID, issued=START, state=OrderState.RUNNING, attempt=attempt, taken=START)
    return Work(order, event, {"web-0": "rack1-a", "web-1": "rack1-b"})
