"""The working copy of a snapshot that a verb edits, and the Change made from it.

Owns the bookkeeping that all verbs share: which scopes changed, the new incarnation of a scope, which maintenances a
tick must examine again, and the time of a scope. It has no rule about which change is allowed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from forewarn.core.change import Change, Snapshot
from forewarn.core.fast_init import replace
from forewarn.core.invariants import check_invariants
from forewarn.core.model import (
    ENDED,
    OPEN,
    UNSTARTED,
    VISIBLE,
    Actor,
    Approval,
    AuditEntry,
    Event,
    Host,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Scope,
    Status,
)

K = TypeVar("K")
V = TypeVar("V")


class Draft:
    """A working copy of a snapshot; `change()` returns the differences as a Change."""

    def __init__(self, snapshot: Snapshot, now: datetime, actor: Actor) -> None:
        self.before = snapshot
        self.now = now
        self.actor = actor
        self.scopes = dict(snapshot.scopes)
        self.machines = dict(snapshot.machines)
        self.hosts = dict(snapshot.hosts)
        self.maintenances = dict(snapshot.maintenances)
        self.events = dict(snapshot.events)
        self.orders = dict(snapshot.orders)
        self._removed_machines: list[tuple[str, str]] = []
        self._approvals: list[Approval] = []
        self._approvers: dict[str, set[str]] = {}
        self._audit: list[AuditEntry] = []
        self._refreshed: set[str] = set()
        self._woken: set[str] = set()
        # By scope, how many more machines are unavailable than before; and the scopes in which this must be counted again.
        self._more_unavailable: dict[str, int] = {}
        self._uncounted: set[str] = set()
        # By maintenance, the open events of its current wave, as `waiting` computed it; forgotten when one of its events moves.
        self.current_waves: dict[str, list[Event]] = {}
        self.has_failures = False
        # Whether windows of scopes or no-go times may limit when waves start; most fleets have neither.
        scopes = (*snapshot.scopes.values(), *snapshot.other_scopes.values())
        self.may_limit_starts = bool(snapshot.fleet_rules.no_go_times or [s for s in scopes if s.windows])
        self._ids_of_scope: dict[str, list[str]] = defaultdict(list)
        self._ids_of_maintenance: dict[str, list[str]] = defaultdict(list)
        for event in snapshot.events.values():
            self._index(event)
        self._host_order_ids_of_maintenance: dict[str, dict[str, None]] = defaultdict(dict)
        for order in snapshot.orders.values():
            self._index_order(order)

    # -- reading

    def now_in(self, scope: str) -> datetime:
        """Return the time of a scope, which does not run backwards: the later of now and its last change."""
        known = self.scopes.get(scope)
        if known is None or known.changed is None or known.changed <= self.now:
            return self.now
        return known.changed

    def trusted_in(self, scope: str) -> datetime:
        """Return the time of a scope by the trusted clock: while the clock is held, time stands still."""
        now, hold = self.now_in(scope), self.before.hold
        return now if hold is None else min(now, hold.trusted)

    def events_in(self, scope: str) -> list[Event]:
        """Return the scope's open events."""
        return [e for i in self._ids_of_scope[scope] if (e := self.events[i]).status in OPEN]

    def events_of(self, maintenance_id: str) -> list[Event]:
        """Return all events of a maintenance, ended ones too; if the snapshot has only some of them, return these."""
        return [self.events[i] for i in self._ids_of_maintenance[maintenance_id]]

    def approvers(self, event: Event) -> set[str]:
        """Return the machines that approved an event."""
        if event.id not in self._approvers:
            self._approvers[event.id] = {approval.machine for approval in event.approvals}
        return self._approvers[event.id]

    def unavailable_in(self, scope: str) -> set[str]:
        """Return the machines of a scope in events that guests see: they are down, or may be drained."""
        return {name for e in self.events_in(scope) if e.status in VISIBLE for name in e.resources}

    def more_unavailable(self) -> int:
        """Return how many more machines are unavailable, in all scopes, than before the draft."""
        for scope in self._uncounted:
            known = (self.before.events.get(i) for i in self._ids_of_scope[scope])
            before = {name for e in known if e is not None and e.status in VISIBLE for name in e.resources}
            self._more_unavailable[scope] = len(self.unavailable_in(scope)) - len(before)
        self._uncounted.clear()
        return sum(self._more_unavailable.values())

    def next_position(self, maintenance_id: str) -> int:
        """Return the position of the next event of a maintenance: the number of its events so far."""
        unread = self.before.unread.get(maintenance_id)
        last = -1 if unread is None else unread.last_position
        return 1 + max((last, *(e.position for e in self.events_of(maintenance_id))))

    def number_of_events(self, maintenance_id: str) -> int:
        """Return the number of the events of a maintenance, without those that another event replaces."""
        unread = self.before.unread.get(maintenance_id)
        replaced = sum(bool(e.replaced_by) for e in self.events_of(maintenance_id))
        return self.next_position(maintenance_id) - replaced - (0 if unread is None else unread.replaced)

    def host(self, name: str) -> Host:
        """Return the host, also one without a row."""
        return self.hosts.get(name) or Host(name=name)

    def host_orders_of(self, maintenance_id: str) -> list[Order]:
        """Return the orders of the hosts of a maintenance, in their turn."""
        ids = self._host_order_ids_of_maintenance.get(maintenance_id)
        if not ids:
            return []
        return sorted((self.orders[i] for i in ids), key=lambda order: order.position)

    def maintenance_of(self, order: Order) -> str:
        """Return the id of the maintenance of an order, of a host or of an event."""
        return order.maintenance_id if order.host else self.events[order.id].maintenance_id

    def may_be_ready(self, event: Event) -> bool:
        """Whether an unstarted event may be ready, so that it may wait for another event.

        An event that only lacks its approval or its notice is not: the approval, or the end of the notice (`wake_at`), wakes its
        maintenance. Without a `wake_at` the event was ready before, even if the clock has been set back since.
        """
        if event.status in UNSTARTED and self.maintenances[event.maintenance_id].wake_at is None:
            return True
        if event.status is not Status.SCHEDULED:
            return event.status is Status.PLANNED and event.born_approved
        noticed = event.not_before is None or event.not_before <= self.now_in(event.scope)
        return noticed or event.born_approved or not event.needs_approval or bool(event.approvals)

    # -- writing

    def put(self, event: Event) -> None:
        self._uncounted.add(event.scope)
        if event.id not in self.events:
            self._index(event)
        self.events[event.id] = event
        self.current_waves.pop(event.maintenance_id, None)

    def put_order(self, order: Order) -> None:
        self.orders[order.id] = order
        self._index_order(order)
        self.current_waves.pop(self.maintenance_of(order), None)

    def put_maintenance(self, maintenance: Maintenance, *, refreshed: bool = False) -> None:
        """Write the maintenance; `refreshed` says that its wake_at already takes the whole draft into account."""
        self.maintenances[maintenance.id] = maintenance
        if refreshed:
            self._refreshed.add(maintenance.id)

    def wake(self, maintenance_id: str) -> None:
        """Let the next tick examine a maintenance, unless it is going to do so anyway."""
        wake_at = self.maintenances[maintenance_id].wake_at
        if wake_at is None or wake_at > self.now:
            self._woken.add(maintenance_id)

    def put_scope(self, scope: Scope) -> None:
        self.scopes[scope.name] = scope

    def put_machine(self, machine: Machine) -> None:
        self.machines[machine.key] = machine

    def remove_machine(self, key: tuple[str, str]) -> None:
        self.machines.pop(key, None)
        self._removed_machines.append(key)

    def put_host(self, host: Host) -> None:
        self.hosts[host.name] = host

    def approve(self, event: Event, approval: Approval) -> None:
        self._approvals.append(approval)
        self.approvers(event).add(approval.machine)
        self.put(replace(event, approvals=(*event.approvals, approval)))

    def note(
        self,
        action: str,
        *,
        event: Event | None = None,
        maintenance_id: str = "",
        scope: str = "",
        detail: str = "",
    ) -> None:
        """Add a line to the audit."""
        if event is not None:
            maintenance_id, scope = event.maintenance_id, event.scope
        self._audit.append(
            AuditEntry(
                at=self.now_in(scope),
                who=self.actor.name,
                origin=self.actor.origin,
                action=action,
                scope=scope,
                maintenance_id=maintenance_id,
                event_id=event.id if event is not None else "",
                detail=detail,
            )
        )

    # -- the result

    def change(self) -> Change:
        """Return the differences as a Change; raise InvariantBroken if they break an invariant."""
        events = _changed(self.before.events, self.events)
        moved = [e for e in events if _status(self.before.events, e) is not e.status]
        if self._approvals:
            events = [e for e in events if not self._only_approved(e)]
        orders = _changed(self.before.orders, self.orders)
        changed_maintenances = _changed(self.before.maintenances, self.maintenances)
        machines = _changed(self.before.machines, self.machines)
        scopes = self._changed_scopes(moved, events, orders, machines)
        after = replace(
            self.before,
            scopes={**self.scopes, **scopes},
            machines=self.machines,
            hosts=self.hosts,
            maintenances=self.maintenances,
            events=self.events,
            orders=self.orders,
        )
        check_invariants(self.before, after, self.now)
        maintenances = self._maintenances_to_write(changed_maintenances, orders)
        rules = self.before.fleet_rules
        return Change(
            at=self.now,
            # Approvals are inserted rows: they rely on no version and raise none.
            expect=() if self._approvals and self._changes_nothing_else(scopes) else _versions(self.before.scopes),
            scopes=tuple(scopes.values()),
            machines=tuple(machines),
            removed_machines=tuple(self._removed_machines),
            hosts=tuple(self._changed_hosts(orders)) if self.hosts else (),
            maintenances=tuple(maintenances),
            events=tuple(events),
            approvals=tuple(self._approvals),
            orders=tuple(orders),
            wakes=tuple(sorted(self._wakes(moved, orders, changed_maintenances))),
            audit=tuple(self._audit),
            reservations=rules.reservations if self._relies_on_fleet_use(moved, orders, maintenances) else None,
            begins_work=any(e.status is Status.STARTED for e in moved) or any(map(self._is_handed_out, orders)),
        )

    def _maintenances_to_write(self, changed: Iterable[Maintenance], orders: Iterable[Order]) -> list[Maintenance]:
        """Return the changed maintenances and those of changed orders of hosts, whose version guards these orders."""
        found = {m.id: m for m in changed}
        for order in orders:
            if order.host:
                found[order.maintenance_id] = self.maintenances[order.maintenance_id]
        return list(found.values())

    def _changed_hosts(self, orders: Iterable[Order]) -> list[Host]:
        """Return the hosts to write. The version of a host guards that only one maintenance opens an order of it."""
        found = {host.name: host for host in _changed(self.before.hosts, self.hosts)}
        found |= {o.host: self.hosts[o.host] for o in orders if o.host in self.hosts and o.state is OrderState.OPEN}
        return list(found.values())

    def _relies_on_fleet_use(
        self, moved: Iterable[Event], orders: Iterable[Order], maintenances: Iterable[Maintenance]
    ) -> bool:
        """Whether the draft takes a part of the fleet's budget, or begins to wait for it."""
        return self.before.fleet_rules.has_budget and (
            any(e.one_domain_at_a_time and e.status in VISIBLE for e in moved)
            or any(order.host and order.state is OrderState.OPEN for order in orders)
            or any(maintenance.waits_for_budget for maintenance in maintenances)
        )

    def _is_handed_out(self, order: Order) -> bool:
        """Whether an executor gets the order because of this change."""
        before = self.before.orders.get(order.id)
        if before is None or order.state is not OrderState.RUNNING:
            return False
        return before.state is not OrderState.RUNNING or before.node != order.node

    def _index_order(self, order: Order) -> None:
        # Rules search for failures only if an order has failed, in this draft or before it.
        self.has_failures = self.has_failures or order.state is OrderState.FAILED
        if order.host:
            self._host_order_ids_of_maintenance[order.maintenance_id][order.id] = None

    def _index(self, event: Event) -> None:
        self._ids_of_scope[event.scope].append(event.id)
        self._ids_of_maintenance[event.maintenance_id].append(event.id)

    def _changes_nothing_else(self, scopes: Mapping[str, Scope]) -> bool:
        return not scopes and self.maintenances == self.before.maintenances

    def _only_approved(self, event: Event) -> bool:
        """Whether the event only gained approvals, which are rows of their own: then the event itself is not written."""
        before = self.before.events.get(event.id)
        return before is not None and replace(event, approvals=before.approvals) == before

    def _changed_scopes(
        self, moved: list[Event], events: list[Event], orders: list[Order], machines: list[Machine]
    ) -> dict[str, Scope]:
        """Return the scopes to write, each with its new time and incarnation."""
        if not (events or orders or machines or self._removed_machines) and self.scopes == self.before.scopes:
            return {}
        # The wave of an event may change while its status stays.
        touched = {e.scope for e in events}
        for order in orders:
            if not order.host:
                touched.add(self.events[order.id].scope)
        for written in _changed(self.before.scopes, self.scopes):
            touched.add(written.name)
        if machines or self._removed_machines:
            touched |= {m.scope for m in machines} | {scope for scope, _ in self._removed_machines}
        # The document lists the visible events with their statuses, so it changes with the status of such an event.
        changed = {e.scope for e in moved if e.status in VISIBLE or _status(self.before.events, e) in VISIBLE}
        return {name: self._next_scope(name, document_changed=name in changed) for name in sorted(touched)}

    def _next_scope(self, name: str, *, document_changed: bool) -> Scope:
        scope, before = self.scopes[name], self.before.scopes[name]
        incarnation = 1 if scope.epoch != before.epoch else before.incarnation + document_changed
        return replace(scope, incarnation=incarnation, changed=self.now_in(name))

    def _wakes(self, moved: Iterable[Event], orders: Iterable[Order], maintenances: Iterable[Maintenance]) -> set[str]:
        """Return the maintenances to wake: those whose events changed, and those that may have waited for such an event."""
        wakes, affected_scopes = set(self._woken), set[str]()
        for event in moved:
            wakes.add(event.maintenance_id)
            if event.status is Status.STARTED or event.status in ENDED:
                affected_scopes.add(event.scope)
        for approval in self._approvals:
            wakes.add(self.events[approval.event_id].maintenance_id)
        for order in orders:
            wakes.add(self.maintenance_of(order))
            # An order that fails, or no longer counts as failed, may add a wave to the queue or remove one.
            if not order.host and _failed(self.before.orders.get(order.id)) != _failed(order):
                affected_scopes.add(self.events[order.id].scope)
        for maintenance in maintenances:
            known = self.before.maintenances.get(maintenance.id)
            if known is not None and known.paused != maintenance.paused:
                affected_scopes |= {e.scope for e in self.events_of(maintenance.id) if e.status in UNSTARTED}
        for scope in affected_scopes:
            # A wave that is not published may wait for the budget of the scope.
            has_budget = bool(self.scopes[scope].max_unavailable)
            wakes |= {
                e.maintenance_id
                for e in self.events_in(scope)
                if self.may_be_ready(e) or (has_budget and e.status is Status.PLANNED)
            }
        return wakes - self._refreshed


def _status(events: Mapping[str, Event], event: Event) -> Status | None:
    known = events.get(event.id)
    return known.status if known is not None else None


def _failed(order: Order | None) -> bool:
    return order is not None and order.state is OrderState.FAILED


def _changed(before: Mapping[K, V], after: Mapping[K, V]) -> list[V]:
    if not after:
        return []
    return [value for key, value in after.items() if before.get(key) is not value and before.get(key) != value]


def _versions(scopes: Mapping[str, Scope]) -> tuple[tuple[str, int], ...]:
    return tuple([(name, scopes[name].version) for name in sorted(scopes)])
