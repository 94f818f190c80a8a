"""Builders for the tests of the core: scopes, machines and events with sensible defaults, and a world to play verbs in.

A World holds state and a time that only a test moves. Each of its verbs hands the core a snapshot, saves the Change it
gets back and returns it: nothing is faked, and nothing ticks by itself.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from forewarn.core import lifecycle
from forewarn.core.change import Change, Snapshot
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import (
    Actor,
    Event,
    EventType,
    Machine,
    Maintenance,
    MaintenanceRequest,
    Order,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.transitions import Verb
from forewarn.core.waiting import Waiting, waiting_for
from forewarn.store import Focus
from forewarn.store.memory import MemoryStore

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
OPERATOR = Actor("alice", "console")
TICKER = Actor("ticker")
EXECUTOR = Actor("playbook")
ORDER_TIMEOUT_S = 3_600


def at(minutes: float) -> datetime:
    """So many minutes after the beginning of the test."""
    return START + timedelta(minutes=minutes)


def guid(number: int) -> str:
    return f"{number:08X}-0000-4000-8000-000000000000"


def key(text: str) -> tuple[str, str]:
    """`shop/web-0` as the core knows it."""
    scope, _, name = text.partition("/")
    return scope, name


def scope(name: str = "shop", **facts: Any) -> Scope:
    """An enabled availability set, unless told otherwise."""
    facts = {"kind": ScopeKind.AVAILABILITY_SET, "enabled": True, "epoch": 1, **facts}
    return Scope(name=name, **facts)


def machine(text: str = "shop/web-0", update_domain: int = 0, **facts: Any) -> Machine:
    scope, name = key(text)
    return Machine(scope=scope, name=name, update_domain=update_domain, **facts)


def event(number: int = 1, **facts: Any) -> Event:
    """A platform Reboot of shop/web-0, published at the start with the minimum notice, unless told otherwise."""
    facts = {
        "maintenance_id": guid(900),
        "wave": 1,
        "position": number,
        "scope": "shop",
        "update_domain": 0,
        "type": EventType.REBOOT,
        "source": Source.PLATFORM,
        "resources": ("web-0",),
        "status": Status.SCHEDULED,
        "sequence": number,
        "published": START,
        "not_before": at(15),
        "minimum_notice_s": 900,
        **facts,
    }
    return Event(id=guid(number), **facts)


def maintenance(number: int = 900, **facts: Any) -> Maintenance:
    facts = {
        "type": EventType.REBOOT,
        "source": Source.PLATFORM,
        "created": START,
        "created_by": "alice",
        "observed_published_at": START,
        **facts,
    }
    return Maintenance(id=guid(number), **facts)


def request(*machines: str, **options: Any) -> MaintenanceRequest:
    """A Reboot of these machines, or of `targets`, unless told otherwise."""
    options = {"type": EventType.REBOOT, "targets": None, **options}
    options["targets"] = options["targets"] or Targets(machines=tuple(key(each) for each in machines))
    return MaintenanceRequest(**options)


class World:
    """State, and a time that stands still until a test moves it."""

    def __init__(self, *scopes: Scope, machines: Iterable[Machine]) -> None:
        self.now = START
        self._store = MemoryStore()
        self._ids = (guid(number) for number in count(1))
        self._scopes = tuple(scope.name for scope in scopes)
        self._maintenances: list[str] = []
        self._store.apply(Change(at=START, scopes=scopes, machines=tuple(machines)))

    # -- what is

    def snapshot(self) -> Snapshot:
        """Everything there is, the ended events too."""
        return self._store.snapshot(Focus(scopes=self._scopes, maintenances=tuple(self._maintenances), inventory=True))

    def event(self, event_id: str) -> Event:
        return self.snapshot().events[event_id]

    def status(self, event_id: str) -> Status:
        return self.event(event_id).status

    def order(self, event_id: str) -> Order:
        return self.snapshot().orders[event_id]

    def maintenance(self, event_id: str) -> Maintenance:
        """The maintenance of an event."""
        snapshot = self.snapshot()
        return snapshot.maintenances[snapshot.events[event_id].maintenance_id]

    def scope(self, name: str = "shop") -> Scope:
        return self.snapshot().scopes[name]

    def waiting_for(self, event_id: str) -> tuple[Waiting, ...]:
        return waiting_for(self.snapshot(), event_id, self.now)

    def codes(self, event_id: str) -> list[str]:
        """The codes of what an event waits for."""
        return [reason.code for reason in self.waiting_for(event_id)]

    def save(self, change: Change) -> Change:
        self._store.apply(change)
        return change

    def adopt(self, change: Change) -> None:
        """A submission decided elsewhere, saved here and now."""
        self._maintenances += [m.id for m in change.maintenances]
        self.save(change)

    # -- what operators and guests do

    def submit(self, *machines: str, **options: Any) -> list[Event]:
        """The events of a new maintenance, in order."""
        return self.submit_request(request(*machines, **options))[0]

    def submit_request(self, asked: MaintenanceRequest) -> tuple[list[Event], Change]:
        maintenance_id, change = lifecycle.submit(
            self.snapshot(),
            asked,
            now=self.now,
            actor=OPERATOR,
            new_id=self._ids.__next__,
            order_timeout_s=ORDER_TIMEOUT_S,
        )
        self._maintenances.append(maintenance_id)
        self.save(change)
        self._see()
        events = [e for e in self.snapshot().events.values() if e.maintenance_id == maintenance_id]
        return sorted(events, key=lambda e: e.position), change

    def approve(self, who: str, *event_ids: str) -> Change:
        """A guest's StartRequests, `who` as scope/name."""
        scope, name = key(who)
        return self.save(
            lifecycle.approve(
                self.snapshot(), event_ids, scope=scope, machine=name, now=self.now, actor=Actor(who, "guest")
            )
        )

    def approve_as_operator(self, event_id: str) -> Change:
        return self.save(lifecycle.approve_as_operator(self.snapshot(), event_id, now=self.now, actor=OPERATOR))

    def cancel_event(self, event_id: str, reason: str = "") -> Change:
        return self.save(lifecycle.cancel_event(self.snapshot(), event_id, now=self.now, actor=OPERATOR, reason=reason))

    def cancel_maintenance(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.cancel_maintenance(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def pause(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.pause(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def resume(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.resume(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def resolve_failure(self, event_id: str, verb: Verb) -> Change:
        return self.save(
            lifecycle.resolve_failure(
                self.snapshot(), event_id, verb, now=self.now, actor=OPERATOR, order_timeout_s=ORDER_TIMEOUT_S
            )
        )

    # -- what executors report

    def take(self, order_id: str) -> Change:
        return self.save(
            lifecycle.take(
                self.snapshot(),
                order_id,
                now=self.now,
                actor=EXECUTOR,
                node="node-1",
                order_timeout_s=ORDER_TIMEOUT_S,
            )
        )

    def report(self, order_id: str, outcome: Outcome) -> Change:
        reports = [lifecycle.OrderReport(order_id, None, outcome)]
        return self.save(lifecycle.report(self.snapshot(), reports, now=self.now, actor=EXECUTOR))

    def finish(self, order_id: str) -> Change:
        return self.report(order_id, Outcome(ok=True, reason="done"))

    def take_over(self, order_id: str) -> Change:
        return self.save(
            lifecycle.take_over(self.snapshot(), order_id, now=self.now, actor=EXECUTOR, node="node-2", of="node-1")
        )

    def fail(self, order_id: str) -> Change:
        return self.report(order_id, Outcome(ok=False, reason="burnt"))

    # -- what time brings, and enabling

    def tick(self, *, order_timeout_s: int = ORDER_TIMEOUT_S) -> Change:
        """What it did; that others can see it is noted at once."""
        change = self.save(lifecycle.tick(self.snapshot(), now=self.now, actor=TICKER, order_timeout_s=order_timeout_s))
        self._see()
        return change

    def _see(self) -> None:
        snapshot = self.snapshot()
        if any(
            m.observed_published_at is None and m.wake_at is not None and m.wake_at <= self.now
            for m in snapshot.maintenances.values()
        ):
            self.save(lifecycle.tick(snapshot, now=self.now, actor=TICKER, order_timeout_s=ORDER_TIMEOUT_S))

    def tick_at(self, minutes: float) -> Change:
        """Move time and tick."""
        self.now = at(minutes)
        return self.tick()

    def start(self, *event_ids: str) -> None:
        """Approve and tick: everything that may start starts."""
        for event_id in event_ids:
            self.approve_as_operator(event_id)
        self.tick()

    def enable(self, name: str = "shop") -> Change:
        return self.save(lifecycle.enable(self.snapshot(), name, now=self.now, actor=OPERATOR))

    def disable(self, name: str = "shop") -> Change:
        return self.save(lifecycle.disable(self.snapshot(), name, now=self.now, actor=OPERATOR))


def shop(domains: int = 3, **settings: Any) -> World:
    """One scope `shop` with web-0, web-1 … each in an update domain of its own."""
    return World(scope(**settings), machines=[machine(f"shop/web-{i}", i) for i in range(domains)])


def two_scopes(**settings: Any) -> World:
    """`shop` and `ship`, each with web-0 and web-1 in two update domains; the settings are ship's."""
    machines = [machine(f"{name}/web-{i}", i) for name in ("shop", "ship") for i in range(2)]
    return World(scope("shop"), scope("ship", **settings), machines=machines)
