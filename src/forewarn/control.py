"""The use cases: take a snapshot, let the core decide, save the Change, ring the bell. Nothing else calls both sides.

No rule lives here. A conflict (somebody else was first) means reload and decide again, a few times.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from forewarn.clock import Clock
from forewarn.core import lifecycle
from forewarn.core.document import ApiVersion, render
from forewarn.core.errors import Conflict, NotFound
from forewarn.core.fleet import Difference, Fleet, apply_difference, difference
from forewarn.core.lifecycle import Outcome, Report
from forewarn.core.model import Actor, Change, Event, EventType, Maintenance, Order, Request, Snapshot, Targets
from forewarn.core.transitions import Verb
from forewarn.core.waiting import Waiting, waiting_for
from forewarn.store import Focus, Store

MAX_TRIES = 3

Bell = Callable[[Change], None]
Decision = Callable[[Snapshot, datetime], Change]


class Control:
    def __init__(self, store: Store, clock: Clock, *, new_id: Callable[[], str], order_timeout_s: int) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._order_timeout_s = order_timeout_s
        self._bells: list[Bell] = []
        # Within a process one decision at a time: a version check should only ever fail because of another process.
        self._deciding = threading.Lock()

    def listen(self, bell: Bell) -> None:
        """Be told of every change, after it was saved and before whoever asked for it is answered."""
        self._bells.append(bell)

    # -- fleet

    def apply_fleet(self, fleet: Fleet, actor: Actor, *, prune: bool = False, dry_run: bool = False) -> Difference:
        """Make the fleet as stated; applying the same again changes nothing."""
        with self._deciding:
            for _ in range(MAX_TRIES):
                current = self._store.inventory()
                diff = difference(Fleet(current.scopes, current.machines), fleet, prune=prune)
                if dry_run or not diff.lines:
                    return diff
                snapshot = self._store.snapshot(Focus(scopes=diff.touched, whole=False))
                versions = {name: scope.version for name, scope in current.scopes.items()}
                change = apply_difference(snapshot, diff, versions=versions, now=self._clock.now(), actor=actor)
                if self._save(change):
                    return diff
        raise _too_many_conflicts()

    # -- what operators ask

    def submit(self, request: Request, actor: Actor) -> str:
        """Schedule a maintenance; its id."""
        targets = request.targets
        ids: list[str] = []

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            _refuse_unknown_scope(snapshot, targets)
            maintenance_id, change = lifecycle.submit(
                snapshot, request, now=now, actor=actor, new_id=self._new_id, order_timeout_s=self._order_timeout_s
            )
            ids.append(maintenance_id)
            return change

        self._decide(_focus_of(targets), decide)
        return ids[-1]

    def approve_event(self, event_id: str, actor: Actor) -> None:
        self._decide(_at(event_id), lambda s, now: lifecycle.approve_as_operator(s, event_id, now=now, actor=actor))

    def cancel_event(self, event_id: str, actor: Actor) -> None:
        self._decide(_at(event_id), lambda s, now: lifecycle.cancel_event(s, event_id, now=now, actor=actor))

    def settle_event(self, event_id: str, verb: Verb, actor: Actor) -> None:
        """retry, finish or abandon an event whose order failed."""
        timeout_s = self._order_timeout_s
        self._decide_on_events(
            _at(event_id),
            lambda s, now: lifecycle.settle(s, event_id, verb, now=now, actor=actor, order_timeout_s=timeout_s),
        )

    def cancel_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.cancel_maintenance(s, maintenance_id, now=now, actor=actor),
        )

    def pause_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.pause(s, maintenance_id, now=now, actor=actor),
        )

    def resume_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.resume(s, maintenance_id, now=now, actor=actor),
        )

    # -- what guests do

    def approve(self, scope: str, machine: str, event_ids: Iterable[str], actor: Actor) -> None:
        """A machine's StartRequests, all or none."""
        ids = tuple(event_ids)
        self._decide(
            Focus(events=ids, whole=False),
            lambda s, now: lifecycle.approve(s, ids, scope=scope, machine=machine, now=now, actor=actor),
        )

    def enable(self, scope: str, actor: Actor) -> None:
        self._decide(_in(scope), lambda s, now: lifecycle.enable(s, scope, now=now, actor=actor))

    def disable(self, scope: str, actor: Actor) -> None:
        self._decide(_in(scope), lambda s, now: lifecycle.disable(s, scope, now=now, actor=actor))

    # -- what executors report

    def take_order(self, order_id: str, actor: Actor, *, node: str) -> Order:
        """The order as it was saved."""
        timeout_s = self._order_timeout_s
        change = self._decide(
            _at(order_id),
            lambda s, now: lifecycle.take(s, order_id, now=now, actor=actor, node=node, order_timeout_s=timeout_s),
        )
        return change.orders[0]

    def report_order(self, order_id: str, outcome: Outcome, actor: Actor, *, attempt: int | None = None) -> None:
        self.report_orders([Report(order_id, attempt, outcome)], actor)

    def report_orders(self, reports: Sequence[Report], actor: Actor) -> None:
        """The ends of some orders, all in one change, or none."""
        ids = tuple(report.order_id for report in reports)
        moved = tuple(key for report in reports for key in report.outcome.new_hosts or ())
        self._decide_on_events(
            Focus(events=ids, machines=moved, whole=False),
            lambda s, now: lifecycle.report(s, reports, now=now, actor=actor),
        )

    # -- what time brings

    def tick(self, maintenance_ids: Iterable[str], actor: Actor) -> Change:
        """One bounded batch, in one transaction; raises Conflict for the next cycle to try again."""
        timeout_s = self._order_timeout_s
        with self._deciding:
            snapshot = self._store.snapshot(Focus(maintenances=tuple(maintenance_ids)))
            change = lifecycle.tick(snapshot, now=self._clock.now(), actor=actor, order_timeout_s=timeout_s)
            if not change.empty:
                self._store.apply(change)
        self._ring(change)
        return change

    # -- what anybody may know

    def document(self, scope: str, version: ApiVersion) -> bytes:
        """What the scope's guests see now."""
        snapshot = self._store.snapshot(Focus(scopes=(scope,), whole=False, shown=True))
        if scope not in snapshot.scopes:
            raise NotFound(f"there is no scope {scope!r}")
        return render(snapshot.scopes[scope], (e for e in snapshot.events.values() if e.scope == scope), version)

    def why(self, event_id: str) -> tuple[Waiting, ...]:
        """What an event waits for."""
        event, _ = self.event(event_id)
        # A wave is held up by what happens in any of its scopes: look at all of them.
        snapshot = self._store.snapshot(Focus(maintenances=(event.maintenance_id,)))
        return waiting_for(snapshot, event_id, self._clock.now())

    def event(self, event_id: str) -> tuple[Event, Order | None]:
        snapshot = self._store.snapshot(_at(event_id))
        if event_id not in snapshot.events:
            raise NotFound(f"there is no event {event_id}")
        return snapshot.events[event_id], snapshot.orders.get(event_id)

    def maintenance(self, maintenance_id: str) -> tuple[Maintenance, list[Event]]:
        snapshot = self._store.snapshot(Focus(maintenances=(maintenance_id,)))
        if maintenance_id not in snapshot.maintenances:
            raise NotFound(f"there is no maintenance {maintenance_id}")
        events = [e for e in snapshot.events.values() if e.maintenance_id == maintenance_id]
        return snapshot.maintenances[maintenance_id], sorted(events, key=lambda e: e.position)

    # -- behind the use cases

    def _decide_on_events(self, focus: Focus, decide: Decision) -> Change:
        """The end of a Terminate changes the inventory: its scope's machines must be seen."""

        def seeing_machines(snapshot: Snapshot, now: datetime) -> Change:
            named = [snapshot.events[i] for i in focus.events if i in snapshot.events]
            scopes = tuple({e.scope for e in named if e.type is EventType.TERMINATE})
            if scopes:
                snapshot = self._store.snapshot(replace(focus, scopes=scopes, inventory=True))
            return decide(snapshot, now)

        return self._decide(focus, seeing_machines)

    def _decide(self, focus: Focus, decide: Decision) -> Change:
        with self._deciding:
            for _ in range(MAX_TRIES):
                change = decide(self._store.snapshot(focus), self._clock.now())
                if self._save(change):
                    return change
        raise _too_many_conflicts()

    def _save(self, change: Change) -> bool:
        """Whether it was saved; a repetition has nothing to save."""
        if not change.empty:
            try:
                self._store.apply(change)
            except Conflict:
                return False
        self._ring(change)
        return True

    def _ring(self, change: Change) -> None:
        if not change.empty:
            for bell in self._bells:
                bell(change)


def _too_many_conflicts() -> Conflict:
    return Conflict(f"others changed the same scopes {MAX_TRIES} times meanwhile: try again")


def _at(event_id: str) -> Focus:
    return Focus(events=(event_id,), whole=False)


def _in(scope: str) -> Focus:
    return Focus(scopes=(scope,), whole=False)


def _focus_of(targets: Targets) -> Focus:
    if targets.scope:
        return Focus(scopes=(targets.scope,), inventory=True)
    return Focus(machines=targets.machines, hosts=targets.hosts)


def _refuse_unknown_scope(snapshot: Snapshot, targets: Targets) -> None:
    for scope in [targets.scope, *(scope for scope, _ in targets.machines)]:
        if scope and scope not in snapshot.scopes:
            raise NotFound(f"there is no scope {scope!r}: look at the fleet for its name")
