"""Implements `Store` in memory: snapshots, changes, what is due, and pruning. Its bases hold the rest, by subject."""

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from datetime import datetime
from functools import cache
from itertools import takewhile
from typing import Any

from forewarn.core.amounts import is_share
from forewarn.core.change import Change, Snapshot, UnreadEvents
from forewarn.core.fast_init import replace
from forewarn.core.fleet_rules import NOTHING_DOWN, FleetRules, FleetUse
from forewarn.core.model import (
    OPEN,
    OVER,
    UNSTARTED,
    VISIBLE,
    Event,
    GroupBy,
    Host,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Scope,
    Status,
)
from forewarn.core.reason import MAX_NAMED
from forewarn.core.rule_inputs import MachineKey, machines_bound, machines_to_examine, scopes_to_examine
from forewarn.store import (
    EventFirstSeen,
    Focus,
    Inventory,
    LabelledMachine,
    MachineIdentity,
    MachineLastSeen,
    StorePosition,
)
from forewarn.store.audit_chain import AuditChain, ChainMark
from forewarn.store.memory.access import MemoryAccess
from forewarn.store.memory.hooks import MemoryHooks
from forewarn.store.memory.lists import MemoryLists
from forewarn.store.memory.tables import UNFINISHED_ORDERS, locked

NOTHING = Snapshot()


class MemoryStore(MemoryLists, MemoryAccess, MemoryHooks):
    """Implements `Store` in memory."""

    @locked
    def snapshot(self, focus: Focus) -> Snapshot:
        if focus.names_nothing and not focus.whole_maintenances and not focus.document_only:
            holds = self._holds()
            return Snapshot(**holds) if holds else NOTHING
        machines = self._machines_for(focus)
        events_of = cache(self._current_events_of) if focus.current_waves else self._events_of_maintenance
        names = self._scopes_for(focus, machines, events_of)
        events = self._events_for(focus, names)
        maintenance_ids = dict.fromkeys([*[e.maintenance_id for e in events.values()], *focus.maintenances])
        if focus.current_waves:
            events.clear()
        if focus.whole_maintenances:
            events |= {e.id: e for maintenance_id in maintenance_ids for e in events_of(maintenance_id)}
        scopes = {name: self._scopes[name] for name in names if name in self._scopes}
        hosts = {name: self._hosts[name] for name in sorted(focus.hosts) if name in self._hosts}
        if focus.document_only:
            shown = {i: _shown(e) for i, e in events.items()}
            return Snapshot(
                scopes=scopes, machines=machines, hosts=hosts, events=shown, read_hosts=frozenset(focus.hosts)
            )
        partly = [i for i in maintenance_ids if self._is_read_in_part(i)] if focus.current_waves else ()
        return Snapshot(
            scopes=scopes,
            machines=machines,
            hosts=hosts,
            maintenances={i: self._maintenances[i] for i in maintenance_ids if i in self._maintenances},
            events=events,
            orders=self._orders_for(focus, events, maintenance_ids),
            read_hosts=frozenset(focus.hosts),
            unread={i: self._unread(i) for i in partly},
            **self._holds(),
            **(self._rules(scopes, machines, events.values()) if focus.reads_rules else {}),
        )

    def _holds(self) -> dict[str, Any]:
        """Return the fields of a snapshot that show the last hold of the clock and of the store."""
        holds: dict[str, Any] = {}
        if self._hold is not None:
            holds["hold" if self._hold.confirmed is None else "confirmed"] = self._hold
        if self._store_hold is not None:
            holds["store_hold" if self._store_hold.resumed is None else "resumed"] = self._store_hold
        return holds

    def _scopes_for(
        self,
        focus: Focus,
        machines: Iterable[MachineKey],
        events_of: Callable[[str], Iterable[Event]],
    ) -> list[str]:
        """Return the names of the scopes that a snapshot covers, in their order."""
        names = {*focus.scopes, *[scope for scope, _ in (*machines, *focus.machines)]}
        for maintenance_id in focus.maintenances:
            names |= {e.scope for e in events_of(maintenance_id) if e.status in OPEN}
        if focus.events:
            names |= {self._events[i].scope for i in focus.events if i in self._events}
        return sorted(names)

    def _events_for(self, focus: Focus, names: Iterable[str]) -> dict[str, Event]:
        """Return the open or next events of these scopes, and the named ones."""
        events: dict[str, Event] = {}
        if focus.open_events:
            for name in names:
                events |= {i: self._events[i] for i in self._open_of_scope.get(name, ())}
        elif focus.next_events:
            for name in names:
                events |= {e.id: e for e in self._next_events_in(name, focus)}
        if focus.events:
            events |= {i: self._events[i] for i in focus.events if i in self._events}
        return events

    def _rules(
        self, scopes: dict[str, Scope], machines: Iterable[MachineKey], events: Iterable[Event]
    ) -> dict[str, Any]:
        """Return the fields of a snapshot that can hold back whole maintenances."""
        return {
            "fleet_rules": self._fleet_rules,
            "other_scopes": self._other_scopes(scopes, events),
            "no_go_machines": self._no_go_machines(machines, events),
            "fleet_use": self.fleet_use() if self._fleet_rules.has_budget else NOTHING_DOWN,
            "machine_counts": {
                name: len(self._machines.get(name, ()))
                for name, scope in scopes.items()
                if is_share(scope.max_unavailable)
            },
        }

    def _other_scopes(self, names: Collection[str], events: Iterable[Event]) -> dict[str, Scope]:
        others = scopes_to_examine(self._fleet_rules, names, events)
        return {name: self._scopes[name] for name in sorted(others) if name in self._scopes}

    def _no_go_machines(
        self, machines: Iterable[MachineKey], events: Iterable[Event]
    ) -> dict[str, frozenset[MachineKey]]:
        examined = machines_to_examine(self._fleet_rules, machines, events)
        found = [m for scope, name in examined if (m := self._machines.get(scope, {}).get(name)) is not None]
        return machines_bound(
            self._fleet_rules,
            ((m.key, m.labels, self._hosts[m.host].labels if m.host in self._hosts else {}) for m in found),
        )

    def _next_events_in(self, scope: str, focus: Focus) -> Iterator[Event]:
        open_events = [self._events[i] for i in self._open_of_scope.get(scope, ())]
        scheduled = [e for e in open_events if e.status is Status.SCHEDULED and e.id not in focus.events]
        if scheduled:
            yield min(scheduled, key=lambda e: (self._waits_for_notice(e), e.not_before, self._numbers[e.id]))
        has_budget = scope in self._scopes and bool(self._scopes[scope].max_unavailable)
        yield from (e for e in open_events if e.status is Status.PLANNED and (e.born_approved or has_budget))
        moved = {name for each, name in focus.machines if each == scope}
        unstarted = (e for e in open_events if e.status in UNSTARTED)
        yield from (e for e in unstarted if not moved.isdisjoint(e.resources))

    def _waits_for_notice(self, event: Event) -> bool:
        has_wakeup = self._maintenances[event.maintenance_id].wake_at is not None
        return has_wakeup and event.needs_approval and not event.born_approved and not event.approvals

    def _is_read_in_part(self, maintenance_id: str) -> bool:
        known = self._maintenances.get(maintenance_id)
        if known is None or known.ticks_need_all_events:
            return False
        return any(e.status in OPEN for e in self._events_of_maintenance(maintenance_id))

    def _current_events_of(self, maintenance_id: str) -> list[Event]:
        """Return the visible events and those of the first wave that has planned ones, or all if a tick needs all."""
        events = self._events_of_maintenance(maintenance_id)
        if not self._is_read_in_part(maintenance_id):
            return events
        first = min((e.wave for e in events if e.status is Status.PLANNED), default=0)
        return [e for e in events if e.status in VISIBLE or (e.status is Status.PLANNED and e.wave == first)]

    def _unread(self, maintenance_id: str) -> UnreadEvents:
        events = self._events_of_maintenance(maintenance_id)
        ends = [e.ended for e in events if e.ended is not None and e.started is not None]
        replaced = sum(bool(e.replaced_by) for e in events)
        return UnreadEvents(max(e.position for e in events), max(ends, default=None), replaced)

    def _orders_for(self, focus: Focus, events: Iterable[str], maintenance_ids: Iterable[str]) -> dict[str, Order]:
        ids = dict.fromkeys([*events, *focus.events])
        ids |= dict.fromkeys(i for each in maintenance_ids for i in self._host_order_ids_of.get(each, ()))
        if focus.hosts:
            of_states = {*UNFINISHED_ORDERS, OrderState.FAILED}
            of_hosts = (self._orders[i] for each in self._host_order_ids_of.values() for i in each)
            ids |= {order.id: None for order in of_hosts if order.host in focus.hosts and order.state in of_states}
        return {i: self._orders[i] for i in ids if i in self._orders}

    @locked
    def fleet_use(self) -> FleetUse:
        visible = [e for ids in self._open_of_scope.values() for i in ids if (e := self._events[i]).status in VISIBLE]
        hosts = {
            (event.maintenance_id, event.host or event.group)
            for event in visible
            if event.host or self._maintenances[event.maintenance_id].strategy.group_by == GroupBy.HOST
        }
        orders = (self._orders[i] for ids in self._host_order_ids_of.values() for i in ids)
        hosts |= {(order.maintenance_id, order.host) for order in orders if self._is_down(order)}
        return FleetUse(
            machines=len({(event.scope, name) for event in visible for name in event.resources}),
            hosts=frozenset(pair for pair in hosts if pair[1]),
            events=tuple(sorted((e.id for e in visible), key=self._numbers.__getitem__)[:MAX_NAMED]),
        )

    def _is_down(self, order: Order) -> bool:
        """Whether the work on a host may go on, or the turn of the host has begun."""
        if order.state is not OrderState.PLANNED:
            return order.state not in OVER
        events = self._events_of_maintenance(order.maintenance_id)
        return any(e.host == order.host and (e.status in VISIBLE or e.status is Status.COMPLETED) for e in events)

    @locked
    def fleet_rules(self) -> FleetRules:
        return self._fleet_rules

    @locked
    def scopes(self) -> dict[str, Scope]:
        return dict(sorted(self._scopes.items()))

    @locked
    def scope_names(self) -> list[str]:
        return sorted(self._scopes)

    @locked
    def last_change(self) -> datetime | None:
        return max((s.changed for s in self._scopes.values() if s.changed is not None), default=None)

    @locked
    def hosts(self) -> dict[str, Host]:
        return dict(sorted(self._hosts.items()))

    def machine_identities(self) -> Iterator[MachineIdentity]:
        return map(MachineIdentity.of, self.inventory().machines.values())

    def labelled_machines(
        self, scopes: tuple[str, ...] | None, after: tuple[str, str] = ("", "")
    ) -> Generator[LabelledMachine, None, None]:
        fleet = self.inventory()
        for key, m in sorted(fleet.machines.items()):
            if key > after and (scopes is None or m.scope in scopes):
                host = fleet.hosts.get(m.host)
                labels = host.labels if host is not None else {}
                yield LabelledMachine(m.scope, m.name, m.update_domain, m.host, m.labels, labels)

    @locked
    def inventory(self) -> Inventory:
        machines = {m.key: m for by_name in self._machines.values() for m in by_name.values()}
        return Inventory(dict(self._scopes), machines, self.hosts())

    @locked
    def apply(self, change: Change) -> None:
        self._check(change)
        for key in change.removed_machines:
            self._remove_machine(key)
            self._last_seen.pop(key, None)
        for name in change.removed_scopes:
            self._scopes.pop(name, None)
        for scope in change.scopes:
            self._scopes[scope.name] = replace(scope, version=scope.version + 1)
        for machine in change.machines:
            self._remove_machine(machine.key)
        for machine in change.machines:
            self._put_machine(machine)
        for name, _ in change.removed_hosts:
            del self._hosts[name]
        self._hosts |= {host.name: replace(host, version=host.version + 1) for host in change.hosts}
        for event in change.events:
            self._put_event(event)
        for approval in change.approvals:
            event = self._events[approval.event_id]
            self._events[event.id] = replace(event, approvals=(*event.approvals, approval))
        for order in change.orders:
            self._put_order(order)
        for maintenance in change.maintenances:
            self._put_maintenance(maintenance)
        for maintenance_id in change.wakes:
            known = self._maintenances.get(maintenance_id)
            if known is not None and known.ended is None:
                self._put_maintenance(replace(known, wake_at=change.at))
        self._add_audit(change.audit)
        for token_id in change.removed_tokens:
            self._tokens.pop(token_id, None)
            self._token_uses.pop(token_id, None)
            self._sessions = {d: s for d, s in self._sessions.items() if s.token_id != token_id}
        self._tokens |= {token.id: token for token in change.tokens}
        self._receipts |= {(receipt.token_id, receipt.key): receipt for receipt in change.receipts}
        for hook_id in change.removed_hooks:
            self._hooks.pop(hook_id, None)
            self._deliveries.pop(hook_id, None)
        self._put_hooks(change.hooks)
        self._put_hold(change)
        self._put_store_hold(change)
        self._put_fleet_rules(change)

    @locked
    def begin_anew(self, change: Change) -> None:
        for scope in [s for s in self._scopes.values() if s.epoch]:
            self._scopes[scope.name] = replace(scope, epoch=scope.epoch + 1, incarnation=1, version=scope.version + 1)
        self._sessions.clear()
        self._put_store_hold(change)
        self._add_audit(change.audit)

    @locked
    def due(self, now: datetime, limit: int, *, latest_first: bool = False) -> list[str]:
        waiting = sorted(((at, i) for i, at in self._waking.items() if at <= now), reverse=latest_first)
        return [i for _, i in waiting[:limit]]

    @locked
    def next_wakeup(self) -> datetime | None:
        return min(self._waking.values(), default=None)

    @locked
    def orders(self, states: Collection[OrderState], limit: int, *, of_hosts: bool = False) -> list[Order]:
        known = self._unfinished if UNFINISHED_ORDERS.issuperset(states) else self._orders
        matching = [o for i in known if (o := self._orders[i]).state in states and bool(o.host) == of_hosts]
        return heapq.nsmallest(limit, matching, key=lambda o: (o.issued, o.id)) if matching else []

    @locked
    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None:
        for s in seen:
            if s.name in self._machines.get(s.scope, ()):
                key = (s.scope, s.name)
                self._last_seen[key] = max(s.at, self._last_seen.get(key, s.at))

    @locked
    def record_first_seen(self, first_seen: Collection[EventFirstSeen]) -> None:
        for record in first_seen:
            if record.event_id in self._events:
                self._first_seen.setdefault(record.event_id, {}).setdefault(record.machine, record.at)

    @locked
    def first_seen(self, event_id: str) -> dict[str, datetime]:
        return dict(sorted(self._first_seen.get(event_id, {}).items()))

    @locked
    def last_seen_by_scope(self, scopes: Collection[str]) -> dict[str, datetime]:
        latest: dict[str, datetime] = {}
        for (scope, _), at in self._last_seen.items():
            if scope in scopes:
                latest[scope] = max(at, latest.get(scope, at))
        return latest

    @locked
    def last_seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        return {key: self._last_seen[key] for key in machines if key in self._last_seen}

    @locked
    def maintenance(self, maintenance_id: str) -> Maintenance | None:
        return self._maintenances.get(maintenance_id)

    @locked
    def prune(self, before: datetime, limit: int) -> int:
        old = [m.id for m in self._maintenances.values() if m.ended is not None and m.ended < before][:limit]
        events = [(i, event_id) for i in old for event_id in self._event_ids_of.get(i, ())][:limit]
        for maintenance_id, event_id in events:
            self._event_ids_of[maintenance_id].remove(event_id)
            del self._events[event_id], self._numbers[event_id]
            self._orders.pop(event_id, None)
            self._first_seen.pop(event_id, None)
        empty = [i for i in old if not self._event_ids_of.get(i)]
        for maintenance_id in empty:
            self._event_ids_of.pop(maintenance_id, None)
            del self._maintenances[maintenance_id]
            for order_id in self._host_order_ids_of.pop(maintenance_id, ()):
                del self._orders[order_id]
        oldest = list(takewhile(lambda entry: entry.at < before, self._audit[:limit]))
        if oldest:
            del self._audit[: len(oldest)]
            self._chain_start = ChainMark(oldest[-1].id, oldest[-1].hash)
        return len(events) + len(empty) + len(oldest)

    @locked
    def audit_chain(self) -> AuditChain:
        return self._chain()

    def position(self) -> StorePosition | None:
        """Return None: this store ends with the process."""
        return None

    def claim(self) -> None:
        """Do nothing: no other process can reach this store."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # -- checks and indexes

    def _machines_for(self, focus: Focus) -> dict[tuple[str, str], Machine]:
        if not (focus.inventory or focus.machines or focus.hosts or focus.identities or focus.instance_ids):
            return {}
        keys = [(scope, name) for scope in focus.scopes if focus.inventory for name in self._machines.get(scope, ())]
        keys += [key for key in focus.machines if key[1] in self._machines.get(key[0], ())]
        keys += [m.key for host in focus.hosts for m in self._machines_on.get(host, ())]
        if focus.identities or focus.instance_ids:
            wanted, ids = set(focus.identities), set(focus.instance_ids)
            machines = (m for by_name in self._machines.values() for m in by_name.values())
            keys += [
                m.key
                for m in machines
                if (m.instance_id and m.instance_id in ids) or not wanted.isdisjoint(m.identities)
            ]
        return {(scope, name): self._machines[scope][name] for scope, name in sorted(keys)}


def _shown(event: Event) -> Event:
    return replace(event, approvals=()) if event.approvals else event
