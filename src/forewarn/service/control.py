"""The use cases: take a snapshot, let the core decide, save the Change, ring the bell. Nothing else calls both sides.

No rule lives here. A conflict (somebody else was first) means reload and decide again, twenty times or for five
seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from forewarn.core import lifecycle
from forewarn.core.change import Change, Snapshot
from forewarn.core.clock_hold import confirm_clock, hold_clock
from forewarn.core.document import ApiVersion, render
from forewarn.core.errors import Conflict, KeyReused, NotFound, Refused, ServiceError, StoreUnavailable
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import Difference, apply_difference, difference
from forewarn.core.lifecycle import OrderReport, Outcome
from forewarn.core.model import (
    OPEN,
    Actor,
    AuditEntry,
    Event,
    Hold,
    Machine,
    Maintenance,
    MaintenanceRequest,
    Order,
    Receipt,
    Scope,
    Targets,
    Token,
)
from forewarn.core.transitions import Verb
from forewarn.core.waiting import Waiting, waiting_for, waiting_for_each
from forewarn.service.clock import Clock
from forewarn.store import Focus, Store

MAX_TRIES = 20
# So many however long they took: a decision that grew too old deserves a second one.
MIN_TRIES = 2
# Notice counts from the moment it was decided on: whoever was stopped between deciding and saving must decide again.
MAX_DECISION_AGE_S = 5.0

log = logging.getLogger("forewarn.service.control")

Bell = Callable[[Change], None]
Decision = Callable[[Snapshot, datetime], Change]


@dataclass(frozen=True, slots=True)
class Once:
    """A request that must not be done twice: whose, under which key, and what it said."""

    token_id: str
    key: str
    digest: str


class Answered(Exception):
    """The request was done before: this is what was answered."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(receipt.key)
        self.receipt = receipt


class Control:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        order_timeout_s: int,
        node: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`pause` waits a little after a conflict, given how many there were."""
        self._pause = pause
        self._node = node
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._order_timeout_s = order_timeout_s
        self._monotonic = monotonic
        self._bells: list[Bell] = []
        self._relied_on: list[Callable[[Iterable[Scope]], None]] = []
        # Within a process one decision at a time: a version check should only ever fail because of another process.
        self._deciding = threading.Lock()

    def listen(self, bell: Bell) -> None:
        """Be told of every change, after it was saved and before whoever asked for it is answered."""
        self._bells.append(bell)

    def listen_to_answers(self, hearer: Callable[[Iterable[Scope]], None]) -> None:
        """Be told by what scopes somebody is answered yes though nothing is saved, for another node did it before."""
        self._relied_on.append(hearer)

    # -- fleet

    def apply_fleet(
        self,
        fleet: Fleet,
        actor: Actor,
        *,
        prune: bool = False,
        dry_run: bool = False,
        once: Once | None = None,
        answer: Callable[[Difference], tuple[int, str]] | None = None,
    ) -> Difference:
        """Make the fleet as stated; applying the same again changes nothing."""
        return self._change_fleet(
            lambda current: difference(current, fleet, prune=prune), actor, dry_run=dry_run, once=once, answer=answer
        )

    def put_scope(self, scope: Scope, actor: Actor) -> bool:
        """Whether it is new."""
        new = False

        def diff(current: Fleet) -> Difference:
            nonlocal new
            new = scope.name not in current.scopes
            return difference(current, Fleet({scope.name: scope}, {}))

        self._change_fleet(diff, actor, focus=Focus(scopes=(scope.name,), inventory=True, whole=False))
        return new

    def put_machine(self, machine: Machine, actor: Actor) -> bool:
        """Whether it is new."""
        new = False

        def diff(current: Fleet) -> Difference:
            nonlocal new
            new = machine.key not in current.machines
            scope = current.scopes.get(machine.scope)
            if scope is None:
                raise NotFound(f"there is no scope {machine.scope!r}")
            return difference(current, Fleet({scope.name: scope}, {machine.key: machine}))

        # Its scope, and whoever else callers might take for it.
        known_by = Focus(
            identities=machine.identities, instance_ids=(machine.instance_id,) if machine.instance_id else ()
        )
        self._change_fleet(diff, actor, focus=replace(known_by, scopes=(machine.scope,), inventory=True, whole=False))
        return new

    def remove_scope(self, name: str, actor: Actor) -> None:
        def diff(current: Fleet) -> Difference:
            if name not in current.scopes:
                raise NotFound(f"there is no scope {name!r}")
            left = [str(m) for m in current.machines.values() if m.scope == name]
            if left:
                raise Refused(f"scope {name} has {len(left)} machines, {left[0]} among them: remove them first")
            return Difference(removed_scopes=(name,), lines=(f"- scope {name}",))

        self._change_fleet(diff, actor, focus=Focus(scopes=(name,), inventory=True, whole=False))

    def remove_machine(self, key: tuple[str, str], actor: Actor) -> None:
        def diff(current: Fleet) -> Difference:
            if key not in current.machines:
                raise NotFound(f"there is no machine {'/'.join(key)}")
            return Difference(removed_machines=(key,), lines=(f"- machine {'/'.join(key)}",))

        self._change_fleet(diff, actor, focus=Focus(machines=(key,), whole=False))

    def _change_fleet(
        self,
        make: Callable[[Fleet], Difference],
        actor: Actor,
        *,
        focus: Focus | None = None,
        dry_run: bool = False,
        once: Once | None = None,
        answer: Callable[[Difference], tuple[int, str]] | None = None,
    ) -> Difference:
        """`focus` is what `make` must see of the fleet, unless all of it."""
        for _ in self._tries():
            with self._deciding:
                if not dry_run:
                    self.refuse_repetition(once)
                current = self._store.inventory() if focus is None else self._store.snapshot(focus)
                diff = make(Fleet(current.scopes, current.machines))
                if dry_run or not (diff.lines or once):
                    return diff
                now = self._now()
                snapshot = self._store.snapshot(Focus(scopes=diff.touched, whole=False))
                versions = {name: scope.version for name, scope in current.scopes.items()}
                change = apply_difference(snapshot, diff, versions=versions, now=now, actor=actor)
                if self._save(_with_receipt(change, once, answer(diff) if answer is not None else (200, ""))):
                    return diff
        raise _too_many_conflicts()

    # -- what operators ask

    def submit(
        self,
        request: MaintenanceRequest,
        actor: Actor,
        *,
        once: Once | None = None,
        answer: Callable[[str, Snapshot], tuple[int, str]] | None = None,
    ) -> str:
        """Schedule a maintenance; its id. `answer` makes what the caller is told of it, before it is saved with it."""
        ids: list[str] = []

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            maintenance_id, change = self._submitted(snapshot, request, now, actor)
            ids.append(maintenance_id)
            told = answer(maintenance_id, _applied(snapshot, change)) if answer is not None else (200, "")
            return _with_receipt(change, once, told)

        self._decide(_focus_of(request.targets), decide, once)
        return ids[-1]

    def plan(
        self, request: MaintenanceRequest, actor: Actor, *, look: Callable[[Focus], Snapshot] | None = None
    ) -> tuple[str, Snapshot]:
        """What `submit` would do now, and where the fleet would stand then; nothing is saved. `look` reads for the store."""
        snapshot = (look or self._store.snapshot)(_focus_of(request.targets))
        maintenance_id, change = self._submitted(snapshot, request, self._clock.now(), actor)
        return maintenance_id, _applied(snapshot, change)

    def _submitted(
        self, snapshot: Snapshot, request: MaintenanceRequest, now: datetime, actor: Actor
    ) -> tuple[str, Change]:
        _refuse_unknown_scope(snapshot, request.targets)
        return lifecycle.submit(
            snapshot, request, now=now, actor=actor, new_id=self._new_id, order_timeout_s=self._order_timeout_s
        )

    def approve_event(self, event_id: str, actor: Actor) -> None:
        self._decide(_at(event_id), lambda s, now: lifecycle.approve_as_operator(s, event_id, now=now, actor=actor))

    def cancel_event(self, event_id: str, actor: Actor) -> None:
        self._decide(_at(event_id), lambda s, now: lifecycle.cancel_event(s, event_id, now=now, actor=actor))

    def settle_event(self, event_id: str, verb: Verb, actor: Actor) -> None:
        """retry, finish or abandon an event whose order failed."""
        timeout_s = self._order_timeout_s
        self._decide_on_events(
            _at(event_id),
            lambda s, now: lifecycle.resolve_failure(
                s, event_id, verb, now=now, actor=actor, order_timeout_s=timeout_s
            ),
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

    # -- who may operate

    def add_token(
        self, token: Token, actor: Actor, *, once: Once | None = None, answer: tuple[int, str] = (201, "")
    ) -> None:
        scopes = f" of {', '.join(token.scopes)}" if token.scopes else ""
        detail = f"{token.name}: {token.role}{scopes}"

        def decide(_: Snapshot, now: datetime) -> Change:
            noted = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="token created", detail=detail)
            return _with_receipt(Change(at=now, tokens=(token,), audit=(noted,)), once, answer)

        self._decide(Focus(), decide, once)

    def revoke_token(self, token_id: str, actor: Actor) -> None:
        known = {token.id: token for token in self._store.tokens()}
        if token_id not in known:
            raise NotFound(f"there is no token {token_id}")

        def decide(_: Snapshot, now: datetime) -> Change:
            noted = AuditEntry(
                at=now, who=actor.name, origin=actor.origin, action="token revoked", detail=known[token_id].name
            )
            return Change(at=now, removed_tokens=(token_id,), audit=(noted,))

        self._decide(Focus(), decide)

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

    def take_over_order(self, order_id: str, actor: Actor, *, node: str, of: str) -> Order:
        """The order as it was saved."""
        change = self._decide(
            _at(order_id), lambda s, now: lifecycle.take_over(s, order_id, now=now, actor=actor, node=node, of=of)
        )
        return change.orders[0]

    def report_order(self, order_id: str, outcome: Outcome, actor: Actor, *, attempt: int | None = None) -> None:
        self.report_orders([OrderReport(order_id, attempt, outcome)], actor)

    def report_orders(self, reports: Sequence[OrderReport], actor: Actor) -> None:
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
            decided_s, now = self._monotonic(), self._now()
            snapshot = self._store.snapshot(Focus(maintenances=tuple(maintenance_ids)))
            change = lifecycle.tick(snapshot, now=now, actor=actor, order_timeout_s=timeout_s)
            if not change.empty:
                self._refuse_old(decided_s)
                self._store.apply(change)
        self._ring(change)
        return change

    # -- the clock

    def watch_clock(self) -> None:
        """Save at once that the clock jumped, where it did."""
        if self._clock.jump() is not None:
            with self._deciding:
                self._now()

    def confirm_clock(self, actor: Actor) -> None:
        """What is held by now; a jump that is noticed meanwhile nobody has looked at."""
        seen = self.clock_hold()

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            if snapshot.hold is not None and snapshot.hold != seen:
                raise Refused("the clock jumped once more meanwhile: look at it, then confirm it")
            return confirm_clock(snapshot, now=now, actor=actor)

        self._decide(Focus(), decide)

    def clock_hold(self) -> Hold | None:
        return self._store.snapshot(Focus()).hold

    def _now(self) -> datetime:
        """For a decision on a snapshot read after this: a jump of the clock is saved before anybody decides by it."""
        now = self._clock.now()
        jump = self._clock.jump()
        if jump is not None:
            hold = Hold(trusted=jump.trusted, noticed=now, jumped_s=int(jump.seconds), node=self._node)
            change = hold_clock(self._store.snapshot(Focus()), hold, since=jump.since, now=now)
            if not change.empty:
                self._store.apply(change)
                log.error(
                    "the clock jumped forward by %d s: unapproved starts wait for `forewarn clock confirm`",
                    jump.seconds,
                )
            self._clock.note_jump(jump)
            self._ring(change)
        return now

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

    def told(self, *, events: Sequence[Event] = (), maintenances: Iterable[str] = ()) -> Snapshot:
        """What is known of these and of what they may wait for: one consistent look."""
        ids = {event.maintenance_id for event in events if event.status in OPEN} | set(maintenances)
        return self._store.snapshot(Focus(maintenances=tuple(sorted(ids)), events=tuple(event.id for event in events)))

    def waiting(self, snapshot: Snapshot, event_ids: Iterable[str]) -> dict[str, tuple[Waiting, ...]]:
        return waiting_for_each(snapshot, event_ids, self._clock.now())

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
            scopes = tuple({e.scope for e in named if EVENT_TYPES[e.type].removes_machines})
            if scopes:
                snapshot = self._store.snapshot(replace(focus, scopes=scopes, inventory=True))
            return decide(snapshot, now)

        return self._decide(focus, seeing_machines)

    def refuse_repetition(self, once: Once | None) -> None:
        """Raise Answered if it was done before, KeyReused if something else was."""
        receipt = self._store.receipt(once.token_id, once.key) if once is not None else None
        if receipt is None or once is None:
            return
        if receipt.digest != once.digest:
            raise KeyReused(f"Idempotency-Key {once.key!r} came with another request before: use a new key")
        raise Answered(receipt)

    def _decide(self, focus: Focus, decide: Decision, once: Once | None = None) -> Change:
        for _ in self._tries():
            with self._deciding:
                self.refuse_repetition(once)
                decided_s, now = self._monotonic(), self._now()
                snapshot = self._store.snapshot(focus)
                change = decide(snapshot, now)
                if self._save(change, decided_s):
                    for hearer in self._relied_on if change.empty else ():
                        hearer(snapshot.scopes.values())
                    return change
        raise _too_many_conflicts()

    def _tries(self) -> Iterator[int]:
        """How many went before, each after a pause: whoever holds no lock meanwhile keeps nobody waiting."""
        begun_s = self._monotonic()
        for tried in range(MAX_TRIES):
            if tried:
                self._pause(tried)
            if tried >= MIN_TRIES and self._monotonic() - begun_s > MAX_DECISION_AGE_S:
                return
            yield tried

    def _save(self, change: Change, decided_s: float | None = None) -> bool:
        """Whether it was saved; a repetition has nothing to save. What tells nobody of a time may be as old as it likes."""
        if not change.empty:
            try:
                if decided_s is not None:
                    self._refuse_old(decided_s)
                self._store.apply(change)
            except Conflict:
                return False
        if not self._ring(change):
            raise StoreUnavailable("it is saved, but not shown here yet: look before you do it again")
        return True

    def _refuse_old(self, decided_s: float) -> None:
        if self._monotonic() - decided_s > MAX_DECISION_AGE_S:
            raise Conflict("it was decided too long ago: this process was stopped meanwhile")

    def _ring(self, change: Change) -> bool:
        """Whether everybody here has taken in what is saved. Nobody keeps it from the others, and it stays saved."""
        heard = True
        for bell in self._bells if not change.empty else ():
            try:
                bell(change)
            except ServiceError as error:
                log.error("what was saved is not shown here yet: %s", error)
                heard = False
            except Exception:
                log.exception("what was saved is not shown here yet")
                heard = False
        return heard


def _applied(snapshot: Snapshot, change: Change) -> Snapshot:
    """The snapshot as it will be once the change is saved."""
    return Snapshot(
        scopes={**snapshot.scopes, **{scope.name: scope for scope in change.scopes}},
        machines=snapshot.machines,
        maintenances={**snapshot.maintenances, **{m.id: m for m in change.maintenances}},
        events={**snapshot.events, **{event.id: event for event in change.events}},
        orders={**snapshot.orders, **{order.id: order for order in change.orders}},
    )


def _with_receipt(change: Change, once: Once | None, told: tuple[int, str]) -> Change:
    if once is None:
        return change
    status, body = told
    receipt = Receipt(token_id=once.token_id, key=once.key, digest=once.digest, status=status, body=body, at=change.at)
    return replace(change, receipts=(receipt,))


def _too_many_conflicts() -> Conflict:
    return Conflict("others kept changing the same scopes meanwhile: try again")


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
