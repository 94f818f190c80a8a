"""The dictionaries of the memory store, and the indexes over them that every write keeps up to date."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

from forewarn.core.change import Change
from forewarn.core.fast_init import replace
from forewarn.core.fleet_rules import FleetRules
from forewarn.core.model import (
    OPEN,
    AuditEntry,
    ClockHold,
    Event,
    Host,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Scope,
    StoreHold,
)
from forewarn.core.operator_model import Hook, HookDelivery, LoginSession, Receipt, Token
from forewarn.store.audit_chain import AuditChain, ChainMark, entry_hash

Method = TypeVar("Method", bound=Callable[..., Any])
UNFINISHED_ORDERS = frozenset({OrderState.PLANNED, OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT})


def locked(method: Method) -> Method:
    """Hold the lock of the store while the method runs."""

    @wraps(method)
    def locked_method(self: "MemoryTables", *arguments: Any, **keywords: Any) -> Any:
        with self.lock:
            return method(self, *arguments, **keywords)

    return cast(Method, locked_method)


class MemoryTables:
    def __init__(self) -> None:
        self.lock = RLock()
        self._scopes: dict[str, Scope] = {}
        self._machines: dict[str, dict[str, Machine]] = defaultdict(dict)
        self._identities: dict[object, Machine] = {}
        self._machines_on: dict[str, list[Machine]] = defaultdict(list)
        self._hosts: dict[str, Host] = {}
        self._maintenances: dict[str, Maintenance] = {}
        self._waking: dict[str, datetime] = {}
        self._events: dict[str, Event] = {}
        self._numbers: dict[str, int] = {}
        self._open_of_scope: dict[str, dict[str, None]] = defaultdict(dict)
        self._event_ids_of: dict[str, list[str]] = defaultdict(list)
        self._orders: dict[str, Order] = {}
        self._unfinished: dict[str, None] = {}
        self._host_order_ids_of: dict[str, list[str]] = defaultdict(list)
        self._audit: list[AuditEntry] = []
        self._audit_count = 0
        self._chain_start = ChainMark(0, "")
        self._last_seen: dict[tuple[str, str], datetime] = {}
        self._first_seen: dict[str, dict[str, datetime]] = {}
        self._event_count = 0
        self._tokens: dict[str, Token] = {}
        self._token_uses: dict[str, datetime] = {}
        self._sessions: dict[str, LoginSession] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._hooks: dict[str, Hook] = {}
        self._deliveries: dict[str, dict[int, HookDelivery]] = {}
        self._hold: ClockHold | None = None
        self._store_hold: StoreHold | None = None
        self._fleet_rules = FleetRules()

    def _events_of_maintenance(self, maintenance_id: str) -> list[Event]:
        return [self._events[i] for i in self._event_ids_of.get(maintenance_id, ())]

    def _put_machine(self, machine: Machine) -> None:
        self._machines[machine.scope][machine.name] = machine
        if machine.host:
            self._machines_on[machine.host].append(machine)
        for identity in identities_of(machine):
            self._identities[identity] = machine

    def _remove_machine(self, key: tuple[str, str]) -> None:
        machine = self._machines[key[0]].pop(key[1], None)
        if machine is None:
            return
        if machine.host:
            self._machines_on[machine.host] = [m for m in self._machines_on[machine.host] if m is not machine]
        for identity in identities_of(machine):
            del self._identities[identity]

    def _put_event(self, event: Event) -> None:
        known = self._events.get(event.id)
        if known is None:
            self._event_count += 1
            self._numbers[event.id] = self._event_count
            self._event_ids_of[event.maintenance_id].append(event.id)
        event = replace(event, approvals=known.approvals if known is not None else ())
        self._events[event.id] = event
        if event.status in OPEN:
            self._open_of_scope[event.scope][event.id] = None
        else:
            self._open_of_scope[event.scope].pop(event.id, None)

    def _put_order(self, order: Order) -> None:
        if order.host and order.id not in self._orders:
            self._host_order_ids_of[order.maintenance_id].append(order.id)
        self._orders[order.id] = order
        if order.state in UNFINISHED_ORDERS:
            self._unfinished[order.id] = None
        else:
            self._unfinished.pop(order.id, None)

    def _put_maintenance(self, maintenance: Maintenance) -> None:
        self._maintenances[maintenance.id] = replace(maintenance, version=maintenance.version + 1)
        if maintenance.wake_at is None or maintenance.ended is not None:
            self._waking.pop(maintenance.id, None)
        else:
            self._waking[maintenance.id] = maintenance.wake_at

    def _wake_everything(self, at: datetime) -> None:
        for maintenance in [m for m in self._maintenances.values() if m.ended is None]:
            self._put_maintenance(replace(maintenance, wake_at=at))

    def _put_hold(self, change: Change) -> None:
        if change.hold is not None:
            known = self._hold
            earlier = known is not None and known.confirmed is None and known.trusted <= change.hold.trusted
            self._hold = known if earlier else change.hold
        if change.releases_hold is not None:
            self._hold = replace(change.releases_hold, confirmed=change.at)
            self._wake_everything(change.at)

    def _put_store_hold(self, change: Change) -> None:
        known = self._store_hold
        if change.store_hold is not None and (known is None or known.resumed is not None):
            self._store_hold = change.store_hold
        if change.resumes_store is not None:
            self._store_hold = replace(change.resumes_store, resumed=change.at)
            self._wake_everything(change.at)

    def _put_fleet_rules(self, change: Change) -> None:
        if change.fleet_rules is not None:
            version, reservations = change.fleet_rules.version + 1, self._fleet_rules.reservations
            self._fleet_rules = replace(change.fleet_rules, version=version, reservations=reservations)
            self._wake_everything(change.at)
        if change.reservations is not None:
            self._fleet_rules = replace(self._fleet_rules, reservations=change.reservations + 1)
        frees_budget = change.frees_budget
        if self._fleet_rules.has_budget and (frees_budget or change.takes_budget_unasked):
            self._fleet_rules = replace(self._fleet_rules, reservations=self._fleet_rules.reservations + 1)
        if frees_budget:
            for maintenance in [m for m in self._maintenances.values() if m.waits_for_budget and m.ended is None]:
                self._put_maintenance(replace(maintenance, wake_at=change.at))

    def _put_hooks(self, hooks: Iterable[Hook]) -> None:
        self._hooks |= {hook.id: replace(hook, version=hook.version + 1) for hook in hooks}

    def _add_audit(self, entries: Iterable[AuditEntry]) -> None:
        newest = self._audit[-1] if self._audit else self._chain_start
        previous = newest.hash
        for entry in entries:
            self._audit_count += 1
            previous = entry_hash(previous, entry)
            self._audit.append(replace(entry, id=self._audit_count, hash=previous))

    def _chain(self) -> AuditChain:
        newest = self._audit[-1] if self._audit else self._chain_start
        return AuditChain(self._chain_start, ChainMark(newest.id, newest.hash))


def identities_of(machine: Machine) -> list[object]:
    """Return the keys of a machine's identities: an address, a pair of interface and address, or one instance id in a tuple.

    Most machines have one address and no interface: then the key is no object of its own.
    """
    found: list[object] = list(machine.identities if machine.interface else machine.addresses)
    return [*found, (machine.instance_id,)] if machine.instance_id else found
