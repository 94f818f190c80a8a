"""Builders for tests: scopes, machines and events with defaults, and a World in which to call the core's verbs.

A World holds state and a time that only the test moves. Each of its methods passes a snapshot to a verb of the core, saves
the Change and returns it. Nothing is faked, and nothing ticks by itself.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from forewarn.core import host_verbs, lifecycle, order_verbs
from forewarn.core.change import Change, Snapshot
from forewarn.core.lifecycle import GuestApproval
from forewarn.core.model import (
    Actor,
    Event,
    EventType,
    Machine,
    Maintenance,
    MaintenanceRequest,
    OnFailure,
    Order,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.core.reason import Waiting
from forewarn.core.transitions import Verb
from forewarn.core.waiting import waiting_for
from forewarn.store import Focus
from forewarn.store.memory import MemoryStore

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
OPERATOR = Actor("alice", "console")
TICKER = Actor("ticker")
EXECUTOR = Actor("playbook")
ORDER_TIMEOUT_S = 3_600


def at(minutes: float) -> datetime:
    """Return the time this many minutes after the start of the test."""
    return START + timedelta(minutes=minutes)


def guid(number: int) -> str:
    return f"{number:08X}-0000-4000-8000-000000000000"


def key(text: str) -> tuple[str, str]:
    """Return (scope, name) of `scope/name`."""
    scope, _, name = text.partition("/")
    return scope, name


def scope(name: str = "shop", **facts: Any) -> Scope:
    """Return an enabled availability set, unless `facts` say otherwise."""
    facts = {"kind": ScopeKind.AVAILABILITY_SET, "enabled": True, "epoch": 1, **facts}
    return Scope(name=name, **facts)


def machine(text: str = "shop/web-0", update_domain: int = 0, **facts: Any) -> Machine:
    scope, name = key(text)
    return Machine(scope=scope, name=name, update_domain=update_domain, **facts)


def event(number: int = 1, **facts: Any) -> Event:
    """Return a published platform Reboot of shop/web-0 with the minimum notice, unless `facts` say otherwise."""
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
    """Return a request for a Reboot of these machines or of `targets`, unless `options` say otherwise."""
    options = {"type": EventType.REBOOT, "targets": None, **options}
    options["targets"] = options["targets"] or Targets(machines=tuple(key(each) for each in machines))
    return MaintenanceRequest(**options)


class World:
    """A memory store, and a time that stands still until the test moves it."""

    def __init__(self, *scopes: Scope, machines: Sequence[Machine]) -> None:
        self.now = START
        self._store = MemoryStore()
        self._ids = (guid(number) for number in count(1))
        self._scopes = tuple(scope.name for scope in scopes)
        self._maintenances: list[str] = []
        # The hosts that snapshots read.
        self.hosts = tuple(sorted({machine.host for machine in machines if machine.host}))
        self._store.apply(Change(at=START, scopes=scopes, machines=tuple(machines)))

    # -- reading

    def snapshot(self) -> Snapshot:
        """Return the whole state, including ended events."""
        return self._store.snapshot(
            Focus(scopes=self._scopes, maintenances=tuple(self._maintenances), inventory=True, hosts=self.hosts)
        )

    def event(self, event_id: str) -> Event:
        return self.snapshot().events[event_id]

    def status(self, event_id: str) -> Status:
        return self.event(event_id).status

    def order(self, event_id: str) -> Order:
        return self.snapshot().orders[event_id]

    def maintenance(self, event_id: str) -> Maintenance:
        """Return the maintenance of an event."""
        snapshot = self.snapshot()
        return snapshot.maintenances[snapshot.events[event_id].maintenance_id]

    def scope(self, name: str = "shop") -> Scope:
        return self.snapshot().scopes[name]

    def waiting_for(self, event_id: str) -> tuple[Waiting, ...]:
        return waiting_for(self.snapshot(), event_id, self.now)

    def codes(self, event_id: str) -> list[str]:
        """Return the codes of what an event waits for."""
        return [reason.code for reason in self.waiting_for(event_id)]

    def save(self, change: Change) -> Change:
        self._store.apply(change)
        return change

    def adopt(self, change: Change) -> None:
        """Save a submission that was decided elsewhere."""
        self._maintenances += [m.id for m in change.maintenances]
        self.save(change)

    # -- operators and guests

    def submit(self, *machines: str, **options: Any) -> list[Event]:
        """Submit a maintenance; return its events in order."""
        return self.submit_request(request(*machines, **options))[0]

    def submit_request(self, submitted: MaintenanceRequest) -> tuple[list[Event], Change]:
        maintenance_id, change = lifecycle.submit(
            self.snapshot(),
            submitted,
            now=self.now,
            actor=OPERATOR,
            new_id=self._ids.__next__,
            order_timeout_s=ORDER_TIMEOUT_S,
        )
        self._maintenances.append(maintenance_id)
        self.save(change)
        self._observe_publication()
        events = [e for e in self.snapshot().events.values() if e.maintenance_id == maintenance_id]
        return sorted(events, key=lambda e: e.position), change

    def approve(self, who: str, *event_ids: str) -> Change:
        """Approve events as a guest; `who` is scope/name."""
        approval = GuestApproval(*key(who), event_ids, Actor(who, "guest"))
        change, (error,) = lifecycle.approve(self.snapshot(), [approval], now=self.now)
        if error is not None:
            raise error
        return self.save(change)

    def approve_as_operator(self, event_id: str) -> Change:
        return self.save(lifecycle.approve_as_operator(self.snapshot(), event_id, now=self.now, actor=OPERATOR))

    def cancel_event(self, event_id: str) -> Change:
        return self.save(lifecycle.cancel_event(self.snapshot(), event_id, now=self.now, actor=OPERATOR))

    def cancel_maintenance(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.cancel_maintenance(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def pause(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.pause(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def resume(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.resume(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def continue_maintenance(self, maintenance_id: str) -> Change:
        return self.save(lifecycle.continue_maintenance(self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR))

    def resolve_failure(self, event_id: str, verb: Verb) -> Change:
        return self.save(
            lifecycle.resolve_failure(
                self.snapshot(), event_id, verb, now=self.now, actor=OPERATOR, order_timeout_s=ORDER_TIMEOUT_S
            )
        )

    def skip_host(self, maintenance_id: str, host: str) -> Change:
        return self.save(host_verbs.skip_host(self.snapshot(), maintenance_id, host, now=self.now, actor=OPERATOR))

    def resolve_host(self, order_id: str, verb: Verb) -> Change:
        return self.save(
            host_verbs.resolve_host(
                self.snapshot(), order_id, verb, now=self.now, actor=OPERATOR, order_timeout_s=ORDER_TIMEOUT_S
            )
        )

    def retry_failed(self, maintenance_id: str) -> Change:
        return self.save(
            lifecycle.retry_failed(
                self.snapshot(), maintenance_id, now=self.now, actor=OPERATOR, order_timeout_s=ORDER_TIMEOUT_S
            )
        )

    # -- executors

    def take(self, order_id: str) -> Change:
        return self.save(
            order_verbs.take(
                self.snapshot(),
                order_id,
                now=self.now,
                actor=EXECUTOR,
                node="node-1",
                order_timeout_s=ORDER_TIMEOUT_S,
            )
        )

    def report(self, order_id: str, outcome: Outcome | Unknown) -> Change:
        reports = [order_verbs.OrderReport(order_id, None, outcome)]
        return self.save(order_verbs.report(self.snapshot(), reports, now=self.now, actor=EXECUTOR))

    def finish(self, order_id: str) -> Change:
        return self.report(order_id, Outcome(ok=True, reason="done"))

    def take_over(self, order_id: str) -> Change:
        return self.save(
            order_verbs.take_over(
                self.snapshot(),
                order_id,
                now=self.now,
                actor=EXECUTOR,
                node="node-2",
                of="node-1",
                order_timeout_s=ORDER_TIMEOUT_S,
            )
        )

    def move(self, order_id: str, to_host: str) -> Change:
        """Finish an order: all its machines are on another host now."""
        event = self.event(order_id)
        new_hosts = {(event.scope, name): to_host for name in event.resources}
        return self.report(order_id, Outcome(ok=True, reason="moved", new_hosts=new_hosts))

    def doubt(self, order_id: str) -> Change:
        return self.report(order_id, Unknown("its node is gone"))

    def fail(self, order_id: str) -> Change:
        return self.report(order_id, Outcome(ok=False, reason="burnt"))

    # -- the ticker, and enabling scopes

    def tick(self, *, order_timeout_s: int = ORDER_TIMEOUT_S) -> Change:
        """Tick; a second tick observes what the first published."""
        change = self.save(
            lifecycle.tick(
                self.snapshot(),
                now=self.now,
                actor=TICKER,
                order_timeout_s=order_timeout_s,
                new_id=self._ids.__next__,
            )
        )
        self._observe_publication()
        return change

    def _observe_publication(self) -> None:
        snapshot = self.snapshot()
        if any(
            m.observed_published_at is None and m.wake_at is not None and m.wake_at <= self.now
            for m in snapshot.maintenances.values()
        ):
            self.save(
                lifecycle.tick(
                    snapshot,
                    now=self.now,
                    actor=TICKER,
                    order_timeout_s=ORDER_TIMEOUT_S,
                    new_id=self._ids.__next__,
                )
            )

    def tick_at(self, minutes: float) -> Change:
        """Move the time and tick."""
        self.now = at(minutes)
        return self.tick()

    def start(self, *event_ids: str) -> None:
        """Approve the events as an operator and tick."""
        for event_id in event_ids:
            self.approve_as_operator(event_id)
        self.tick()

    def enable(self, name: str = "shop") -> Change:
        return self.save(lifecycle.enable(self.snapshot(), name, now=self.now, actor=OPERATOR))

    def disable(self, name: str = "shop") -> Change:
        return self.save(lifecycle.disable(self.snapshot(), name, now=self.now, actor=OPERATOR))


def shop(domains: int = 3, **settings: Any) -> World:
    """Return a world with one scope `shop` with web-0, web-1 …, each in its own update domain."""
    return World(scope(**settings), machines=[machine(f"shop/web-{i}", i) for i in range(domains)])


def two_scopes(**settings: Any) -> World:
    """Return a world with `shop` and `ship`, each with web-0 and web-1 in two update domains; `settings` are ship's."""
    machines = [machine(f"{name}/web-{i}", i) for name in ("shop", "ship") for i in range(2)]
    return World(scope("shop"), scope("ship", **settings), machines=machines)


def actions(change: Change) -> list[str]:
    """Who did what, for the audit."""
    return [f"{entry.who}: {entry.action}" for entry in change.audit]


def failed_event(**options: OnFailure) -> tuple[World, str, str]:
    """A world whose first wave has failed; the events of its two waves."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1", **options)
    world.start(first.id)
    world.fail(first.id)
    return world, first.id, second.id
