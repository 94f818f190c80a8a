"""The store of the emulator and of simulations: dictionaries under one lock. It ends with the process."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import wraps
from itertools import islice, takewhile
from threading import RLock
from typing import Any, TypeVar, cast

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, InvariantBroken
from forewarn.core.model import (
    MAX_SESSIONS_PER_TOKEN,
    OPEN,
    AuditEntry,
    ClockHold,
    Event,
    Hook,
    HookDelivery,
    LoginSession,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Receipt,
    Scope,
    Status,
    StoreHold,
    Token,
)
from forewarn.core.progress import WaveProgress, wave_progress
from forewarn.store import (
    MAX_DELIVERIES,
    AuditQuery,
    Backlog,
    Counts,
    EventFirstSeen,
    EventQuery,
    Focus,
    HostCount,
    HostQuery,
    IdKind,
    Inventory,
    MachineIdentity,
    MachineLastSeen,
    MachineQuery,
    MaintenanceQuery,
    OpenWave,
    OpenWavesQuery,
    OrderQuery,
    Page,
    ScopeQuery,
    StorePosition,
    folded,
    maintenance_text,
    selected_scopes,
)
from forewarn.store.audit_chain import AuditChain, ChainMark, chained

Method = TypeVar("Method", bound=Callable[..., Any])
_UNFINISHED = frozenset({OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT})


def _locked(method: Method) -> Method:
    """Hold the lock of the store while the method runs."""

    @wraps(method)
    def locked_method(self: "MemoryStore", *arguments: Any, **keywords: Any) -> Any:
        with self.lock:
            return method(self, *arguments, **keywords)

    return cast(Method, locked_method)


class MemoryStore:
    """Implements `Store` in memory."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._scopes: dict[str, Scope] = {}
        self._machines: dict[str, dict[str, Machine]] = defaultdict(dict)
        self._identities: dict[object, tuple[str, str]] = {}
        self._hosts: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._maintenances: dict[str, Maintenance] = {}
        self._waking: dict[str, datetime] = {}
        self._events: dict[str, Event] = {}
        self._numbers: dict[str, int] = {}
        self._open_of_scope: dict[str, dict[str, None]] = defaultdict(dict)
        self._event_ids_of: dict[str, list[str]] = defaultdict(list)
        self._orders: dict[str, Order] = {}
        self._unfinished: dict[str, None] = {}
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

    @_locked
    def snapshot(self, focus: Focus) -> Snapshot:
        machines = self._machines_for(focus)
        names = {*focus.scopes, *(scope for scope, _ in machines), *(scope for scope, _ in focus.machines)}
        for maintenance_id in focus.maintenances:
            names |= {e.scope for e in self._events_of_maintenance(maintenance_id) if e.status in OPEN}
        names |= {self._events[i].scope for i in focus.events if i in self._events}
        events: dict[str, Event] = {}
        for name in sorted(names) if focus.open_events else ():
            events |= {i: self._events[i] for i in self._open_of_scope.get(name, ())}
        events |= {i: self._events[i] for i in focus.events if i in self._events}
        maintenance_ids = dict.fromkeys([*(e.maintenance_id for e in events.values()), *focus.maintenances])
        if focus.whole_maintenances:
            events |= {
                e.id: e for maintenance_id in maintenance_ids for e in self._events_of_maintenance(maintenance_id)
            }
        clock_hold = None if focus.document_only else self._hold
        store_hold = None if focus.document_only else self._store_hold
        return Snapshot(
            scopes={name: self._scopes[name] for name in sorted(names) if name in self._scopes},
            machines=machines,
            maintenances={
                i: self._maintenances[i] for i in maintenance_ids if i in self._maintenances and not focus.document_only
            },
            events={i: _shown(e) for i, e in events.items()} if focus.document_only else events,
            orders={i: self._orders[i] for i in events if i in self._orders and not focus.document_only},
            hold=clock_hold if clock_hold is not None and clock_hold.confirmed is None else None,
            confirmed=clock_hold if clock_hold is not None and clock_hold.confirmed is not None else None,
            store_hold=store_hold if store_hold is not None and store_hold.resumed is None else None,
            resumed=store_hold if store_hold is not None and store_hold.resumed is not None else None,
        )

    @_locked
    def scopes(self) -> dict[str, Scope]:
        return dict(sorted(self._scopes.items()))

    def machine_identities(self) -> Iterator[MachineIdentity]:
        for m in self.inventory().machines.values():
            yield MachineIdentity(m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, m.identities)

    @_locked
    def inventory(self) -> Inventory:
        machines = {m.key: m for by_name in self._machines.values() for m in by_name.values()}
        return Inventory(dict(self._scopes), machines)

    @_locked
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

    @_locked
    def begin_anew(self, change: Change) -> None:
        for scope in [s for s in self._scopes.values() if s.epoch]:
            self._scopes[scope.name] = replace(scope, epoch=scope.epoch + 1, incarnation=1, version=scope.version + 1)
        self._sessions.clear()
        self._put_store_hold(change)
        self._add_audit(change.audit)

    @_locked
    def due(self, now: datetime, limit: int) -> list[str]:
        waiting = sorted((at, i) for i, at in self._waking.items() if at <= now)
        return [i for _, i in waiting[:limit]]

    @_locked
    def next_wakeup(self) -> datetime | None:
        return min(self._waking.values(), default=None)

    @_locked
    def orders(self, states: Collection[OrderState], limit: int) -> list[Order]:
        known = self._unfinished if _UNFINISHED.issuperset(states) else self._orders
        matching = (o for i in known if (o := self._orders[i]).state in states)
        return heapq.nsmallest(limit, matching, key=lambda o: (o.issued, o.id))

    @_locked
    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None:
        for s in seen:
            if s.name in self._machines.get(s.scope, ()):
                key = (s.scope, s.name)
                self._last_seen[key] = max(s.at, self._last_seen.get(key, s.at))

    @_locked
    def record_first_seen(self, first_seen: Collection[EventFirstSeen]) -> None:
        for record in first_seen:
            if record.event_id in self._events:
                self._first_seen.setdefault(record.event_id, {}).setdefault(record.machine, record.at)

    @_locked
    def first_seen(self, event_id: str) -> dict[str, datetime]:
        return dict(sorted(self._first_seen.get(event_id, {}).items()))

    @_locked
    def counts(self, within: tuple[str, ...] | None) -> Counts:
        names = [name for name in self._scopes if within is None or name in within]
        events = [self._events[i] for name in names for i in self._open_of_scope.get(name, ())]
        held = Counter(event.status for event in events)
        started = (self._orders.get(event.id) for event in events if event.status is Status.STARTED)
        states = Counter(order.state for order in started if order is not None)
        return Counts(
            planned=held[Status.PLANNED],
            scheduled=held[Status.SCHEDULED],
            started=held[Status.STARTED],
            failed=states[OrderState.FAILED],
            in_doubt=states[OrderState.IN_DOUBT],
            scopes=len(names),
            machines=sum(len(self._machines.get(name, ())) for name in names),
        )

    @_locked
    def backlog(self) -> Backlog:
        counts = self.counts(None)
        orders = Counter(order.state for order in self._orders.values())
        scheduled = [self._events[i] for ids in self._open_of_scope.values() for i in ids]
        starts = [e.not_before for e in scheduled if e.status is Status.SCHEDULED and e.not_before is not None]
        return Backlog(
            planned=counts.planned,
            scheduled=counts.scheduled,
            started=counts.started,
            failed=counts.failed,
            in_doubt=counts.in_doubt,
            open=orders[OrderState.OPEN],
            running=orders[OrderState.RUNNING],
            earliest_start=min(starts, default=None),
            earliest_wake=self.next_wakeup(),
        )

    @_locked
    def machines_named(self, name: str, limit: int = 4) -> list[Machine]:
        return [by_name[name] for _, by_name in sorted(self._machines.items()) if name in by_name][:limit]

    @_locked
    def ids_starting(self, kind: IdKind, prefix: str, within: tuple[str, ...] | None, limit: int) -> list[str]:
        scopes = selected_scopes("", within)
        known: dict[IdKind, Iterable[str]] = {
            "event": self._events,
            "maintenance": self._maintenances,
            "order": self._orders,
        }
        matching = (i for i in known[kind] if i.startswith(prefix) and self._lies_within(kind, i, scopes))
        return heapq.nsmallest(limit, matching)

    def _lies_within(self, kind: IdKind, id_: str, scopes: tuple[str, ...] | None) -> bool:
        events = self._events_of_maintenance(id_) if kind == "maintenance" else [self._events[id_]]
        return scopes is None or any(event.scope in scopes for event in events)

    @_locked
    def last_seen_by_scope(self, scopes: Collection[str]) -> dict[str, datetime]:
        latest: dict[str, datetime] = {}
        for (scope, _), at in self._last_seen.items():
            if scope in scopes:
                latest[scope] = max(at, latest.get(scope, at))
        return latest

    @_locked
    def last_seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        return {key: self._last_seen[key] for key in machines if key in self._last_seen}

    @_locked
    def scopes_page(self, query: ScopeQuery) -> list[Scope]:
        scopes = selected_scopes("", query.within)
        matching = (
            s
            for s in self._scopes.values()
            if s.name > query.after and _lies_in(s.name, scopes) and query.text in folded(s.name)
        )
        return heapq.nsmallest(query.limit, matching, key=lambda s: s.name)

    @_locked
    def machines_page(self, query: MachineQuery) -> list[Machine]:
        scopes = selected_scopes(query.scope, query.within)
        matching = (
            m
            for by_name in self._machines.values()
            for m in by_name.values()
            if (query.after is None or m.key > query.after)
            and query.host in ("", m.host)
            and _lies_in(m.scope, scopes)
            and _contains(m, query.text)
        )
        return heapq.nsmallest(query.limit, matching, key=lambda m: m.key)

    @_locked
    def hosts_page(self, query: HostQuery) -> list[HostCount]:
        scopes = selected_scopes("", query.within)
        counted = (
            HostCount(host, sum(_lies_in(scope, scopes) for scope, _ in keys))
            for host, keys in self._hosts.items()
            if host > query.after and query.text in folded(host)
        )
        return heapq.nsmallest(query.limit, (each for each in counted if each.machines), key=lambda each: each.name)

    @_locked
    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]:
        scopes = selected_scopes("", query.within)
        matching = (
            m
            for m in self._maintenances.values()
            if m.status in query.statuses
            and (query.before is None or (m.created, m.id) < query.before)
            and (scopes is None or any(_lies_in(e.scope, scopes) for e in self._events_of_maintenance(m.id)))
        )
        return heapq.nlargest(query.limit, matching, key=lambda m: (m.created, m.id))

    def maintenance_keys(self, query: MaintenanceQuery) -> list[tuple[datetime, str]]:
        return [(each.created, each.id) for each in self.maintenances(query)]

    @_locked
    def search_maintenances(
        self, ids: Collection[str], text: str, within: tuple[str, ...] | None
    ) -> dict[str, Maintenance]:
        found = (self._maintenances[i] for i in ids if i in self._maintenances)
        return {each.id: each for each in found if text in maintenance_text(each, within)}

    @_locked
    def wave_progress(
        self, maintenance_ids: Collection[str], within: tuple[str, ...] | None
    ) -> dict[str, tuple[WaveProgress, ...]]:
        scopes = selected_scopes("", within)
        found = {
            i: wave_progress([e for e in self._events_of_maintenance(i) if _lies_in(e.scope, scopes)], self._orders)
            for i in maintenance_ids
        }
        return {i: waves for i, waves in found.items() if waves}

    @_locked
    def open_waves(self, query: OpenWavesQuery) -> tuple[list[OpenWave], dict[Status, int]]:
        scopes = selected_scopes(query.scope, query.within)
        found: dict[tuple[str, int, Status], int] = {}
        for event in reversed(self._events.values()):
            if event.status not in OPEN or event.status not in query.statuses or event.type not in query.types:
                continue
            if not _lies_in(event.scope, scopes) or not self._is_found(event, query.host, query.text):
                continue
            key = (event.maintenance_id, event.wave, event.status)
            found[key] = found.get(key, 0) + 1
        counts: Counter[Status] = Counter()
        for (_, _, status), number in found.items():
            counts[status] += number
        waves = [
            OpenWave(i, (m := self._maintenances[i]).type, m.description, m.created, wave, status, number)
            for (i, wave, status), number in found.items()
        ]
        return waves[: query.limit], dict(counts)

    def _is_found(self, event: Event, host: str, text: str) -> bool:
        machines = self._machines.get(event.scope, {})
        if host and not any(name in machines and machines[name].host == host for name in event.resources):
            return False
        return text in _event_text(event)

    @_locked
    def orders_page(self, query: OrderQuery) -> list[Order]:
        scopes = selected_scopes("", query.within)
        matching = (
            o
            for o in self._orders.values()
            if o.state in query.states
            and (query.abandoned or self._events[o.id].status is not Status.ABANDONED)
            and (query.before is None or (o.issued, o.id) < query.before)
            and _lies_in(self._events[o.id].scope, scopes)
        )
        return heapq.nlargest(query.limit, matching, key=lambda o: (o.issued, o.id))

    @_locked
    def events(self, query: EventQuery) -> Page:
        scopes = selected_scopes(query.scope, query.within)
        matching = (e for e in reversed(self._events.values()) if self._matches(e, query, scopes))
        page = list(islice(matching, query.limit + 1))
        more = len(page) > query.limit
        page = page[: query.limit]
        return Page(tuple(page), self._numbers[page[-1].id] if more else None)

    @_locked
    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        scopes = selected_scopes(query.scope, query.within)
        matching = (
            entry
            for entry in (reversed(self._audit) if query.after is None else self._audit)
            if (query.before is None or entry.id < query.before)
            and (query.after is None or entry.id > query.after)
            and _lies_in(entry.scope, scopes)
            and query.maintenance_id in ("", entry.maintenance_id)
            and query.event_id in ("", entry.event_id)
        )
        return list(islice(matching, query.limit))

    @_locked
    def maintenance(self, maintenance_id: str) -> Maintenance | None:
        return self._maintenances.get(maintenance_id)

    @_locked
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
        oldest = list(takewhile(lambda entry: entry.at < before, self._audit[:limit]))
        if oldest:
            del self._audit[: len(oldest)]
            self._chain_start = ChainMark(oldest[-1].id, oldest[-1].hash)
        return len(events) + len(empty) + len(oldest)

    @_locked
    def audit_chain(self) -> AuditChain:
        return self._chain()

    @_locked
    def tokens(self) -> list[Token]:
        return sorted(self._tokens.values(), key=lambda t: (t.created, t.id), reverse=True)

    @_locked
    def record_token_uses(self, uses: Mapping[str, datetime]) -> None:
        for token_id, at in uses.items():
            if token_id in self._tokens:
                self._token_uses[token_id] = max(at, self._token_uses.get(token_id, at))

    @_locked
    def token_uses(self) -> dict[str, datetime]:
        return dict(self._token_uses)

    @_locked
    def add_session(self, session: LoginSession) -> None:
        if session.digest in self._sessions:
            raise Conflict("a login with this session id exists already")
        self._sessions[session.digest] = session
        same = [s for s in self._sessions.values() if s.token_id == session.token_id]
        for last in sorted(same, key=lambda s: s.expires, reverse=True)[MAX_SESSIONS_PER_TOKEN:]:
            del self._sessions[last.digest]

    @_locked
    def session(self, digest: str) -> LoginSession | None:
        return self._sessions.get(digest)

    @_locked
    def end_session(self, digest: str) -> None:
        self._sessions.pop(digest, None)

    @_locked
    def forget_sessions(self, before: datetime, limit: int) -> int:
        ended = [digest for digest, session in self._sessions.items() if session.expires < before][:limit]
        for digest in ended:
            del self._sessions[digest]
        return len(ended)

    @_locked
    def receipt(self, token_id: str, key: str) -> Receipt | None:
        return self._receipts.get((token_id, key))

    @_locked
    def forget_receipts(self, before: datetime, limit: int) -> int:
        old = heapq.nsmallest(limit, ((r.at, key) for key, r in self._receipts.items() if r.at < before))
        for _, key in old:
            del self._receipts[key]
        return len(old)

    @_locked
    def hooks(self) -> list[Hook]:
        return sorted(self._hooks.values(), key=lambda hook: (hook.created, hook.id))

    @_locked
    def save_hooks(self, hooks: Collection[Hook], deliveries: Collection[HookDelivery] = ()) -> None:
        self._check_hooks(hooks)
        self._put_hooks(hooks)
        for each in deliveries:
            kept = self._deliveries.setdefault(each.hook_id, {})
            kept[each.audit_id] = each
            for audit_id in heapq.nsmallest(
                len(kept) - MAX_DELIVERIES, kept, key=lambda entry: (kept[entry].at, entry)
            ):
                del kept[audit_id]

    @_locked
    def hook_deliveries(self, hook_id: str, limit: int, before: int | None = None) -> list[HookDelivery]:
        kept = self._deliveries.get(hook_id, {})
        return [kept[i] for i in heapq.nlargest(limit, (i for i in kept if before is None or i < before))]

    def position(self) -> StorePosition | None:
        """Return None: this store ends with the process."""
        return None

    def claim(self) -> None:
        """Do nothing: no other process can reach this store."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # -- checks and indexes

    def _check(self, change: Change) -> None:
        """Raise whatever the change can fail with, before anything is written."""
        for name, version in change.expect:
            known = self._scopes.get(name)
            if (known.version if known is not None else 0) != version:
                raise Conflict(f"scope {name} was changed by another request or node")
        for maintenance in change.maintenances:
            held = self._maintenances.get(maintenance.id)
            if (held.version if held is not None else 0) != maintenance.version:
                raise Conflict(f"maintenance {maintenance.id} was changed by another request or node")
        for approval in change.approvals:
            event = self._events.get(approval.event_id)
            if event is not None and any(a.machine == approval.machine for a in event.approvals):
                raise Conflict("the same approval is already recorded")
        if change.releases_hold is not None and change.releases_hold != self._hold:
            raise Conflict("the clock is held for another jump than the one confirmed")
        if change.resumes_store is not None and change.resumes_store != self._store_hold:
            raise Conflict("the store is held for another reason than the one that was resumed")
        if change.begins_work and self._store_hold is not None and self._store_hold.resumed is None:
            raise Conflict("the store has been held meanwhile")
        self._check_tokens(change)
        self._check_hooks(change.hooks)
        self._check_identities(change)
        self._check_references(change)

    def _check_tokens(self, change: Change) -> None:
        if change.tokens:
            kept = [token for token in self._tokens.values() if token.id not in change.removed_tokens]
            names = [name for token in (*kept, *change.tokens) for name in (("id", token.id), ("digest", token.digest))]
            if len(set(names)) < len(names):
                raise Conflict("a token with this id or secret exists already")
        keys = [(receipt.token_id, receipt.key) for receipt in change.receipts]
        if len(set(keys)) < len(keys) or any(key in self._receipts for key in keys):
            raise Conflict("a request with this key was answered already")

    def _check_hooks(self, hooks: Iterable[Hook]) -> None:
        for hook in hooks:
            known = self._hooks.get(hook.id)
            if (known.version if known is not None else 0) != hook.version:
                raise Conflict("the hook was changed meanwhile")

    def _check_identities(self, change: Change) -> None:
        replaced = {m.key for m in change.machines} | set(change.removed_machines)
        claimed: dict[object, tuple[str, str]] = {}
        for machine in change.machines:
            for identity in _identities(machine):
                owner = self._identities.get(identity)
                if owner is None or owner in replaced:
                    owner = claimed.setdefault(identity, machine.key)
                if owner != machine.key:
                    raise Conflict(f"{machine} claims {identity}, which belongs to {'/'.join(owner)}")

    def _check_references(self, change: Change) -> None:
        """Check what foreign keys check in SQL: every reference is to something that exists."""
        scopes = {s.name for s in change.scopes}
        dangling = [str(m) for m in change.machines if m.scope not in scopes and m.scope not in self._scopes]
        removed = set(change.removed_machines)
        for name in change.removed_scopes:
            dangling += [f"{name}/{m}" for m in self._machines.get(name, ()) if (name, m) not in removed]
        maintenances = {m.id for m in change.maintenances}
        for event in change.events:
            if event.maintenance_id not in maintenances and event.maintenance_id not in self._maintenances:
                dangling.append(event.id)
            elif event.id in self._events and self._events[event.id].maintenance_id != event.maintenance_id:
                raise InvariantBroken("invariant 3: an event id is used by another maintenance; nothing was saved")
        events = {e.id for e in change.events}
        named = [*(a.event_id for a in change.approvals), *(o.id for o in change.orders)]
        dangling += [i for i in named if i not in events and i not in self._events]
        if dangling:
            raise InvariantBroken(f"{dangling[0]} would belong to nothing that exists; nothing was saved")

    def _machines_for(self, focus: Focus) -> dict[tuple[str, str], Machine]:
        keys = [(scope, name) for scope in focus.scopes if focus.inventory for name in self._machines.get(scope, ())]
        keys += [key for key in focus.machines if key[1] in self._machines.get(key[0], ())]
        keys += [key for host in focus.hosts for key in sorted(self._hosts.get(host, ()))]
        if focus.identities or focus.instance_ids:
            wanted, ids = set(focus.identities), set(focus.instance_ids)
            machines = (m for by_name in self._machines.values() for m in by_name.values())
            keys += [
                m.key
                for m in machines
                if (m.instance_id and m.instance_id in ids) or not wanted.isdisjoint(m.identities)
            ]
        return {(scope, name): self._machines[scope][name] for scope, name in sorted(keys)}

    def _events_of_maintenance(self, maintenance_id: str) -> Iterable[Event]:
        return (self._events[i] for i in self._event_ids_of.get(maintenance_id, ()))

    def _matches(self, event: Event, query: EventQuery, scopes: tuple[str, ...] | None) -> bool:
        return (
            (query.before is None or self._numbers[event.id] < query.before)
            and _lies_in(event.scope, scopes)
            and (not query.machine or query.machine in event.resources)
            and (
                not query.host
                or any((event.scope, name) in self._hosts.get(query.host, ()) for name in event.resources)
            )
            and query.maintenance_id in ("", event.maintenance_id)
            and event.status in query.statuses
            and event.type in query.types
            and (not query.text or query.text in _event_text(event))
            and (query.since is None or event.ended is None or event.ended >= query.since)
        )

    def _put_machine(self, machine: Machine) -> None:
        self._machines[machine.scope][machine.name] = machine
        if machine.host:
            self._hosts[machine.host].add(machine.key)
        for identity in _identities(machine):
            self._identities[identity] = machine.key

    def _remove_machine(self, key: tuple[str, str]) -> None:
        machine = self._machines[key[0]].pop(key[1], None)
        if machine is None:
            return
        self._hosts[machine.host].discard(key)
        for identity in _identities(machine):
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
        self._orders[order.id] = order
        if order.state in _UNFINISHED:
            self._unfinished[order.id] = None
        else:
            self._unfinished.pop(order.id, None)

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

    def _put_hooks(self, hooks: Iterable[Hook]) -> None:
        self._hooks |= {hook.id: replace(hook, version=hook.version + 1) for hook in hooks}

    def _wake_everything(self, at: datetime) -> None:
        for maintenance in [m for m in self._maintenances.values() if m.ended is None]:
            self._put_maintenance(replace(maintenance, wake_at=at))

    def _add_audit(self, entries: Iterable[AuditEntry]) -> None:
        for entry in chained(self._chain().head.hash, entries):
            self._audit_count += 1
            self._audit.append(replace(entry, id=self._audit_count))

    def _chain(self) -> AuditChain:
        newest = self._audit[-1] if self._audit else self._chain_start
        return AuditChain(self._chain_start, ChainMark(newest.id, newest.hash))

    def _put_maintenance(self, maintenance: Maintenance) -> None:
        self._maintenances[maintenance.id] = replace(maintenance, version=maintenance.version + 1)
        if maintenance.wake_at is None or maintenance.ended is not None:
            self._waking.pop(maintenance.id, None)
        else:
            self._waking[maintenance.id] = maintenance.wake_at


def _shown(event: Event) -> Event:
    return replace(event, approvals=()) if event.approvals else event


def _event_text(event: Event) -> str:
    """Return what a search finds an event by, each part on its own line: a searched text has no line feed."""
    machines = (f"{event.scope}/{name}" for name in event.resources)
    return folded("\n".join((event.id, event.maintenance_id, event.type, event.description, *machines)))


def _contains(machine: Machine, text: str) -> bool:
    known = (str(machine), machine.host, machine.instance_id)
    addresses = machine.addresses if not {".", ":"}.isdisjoint(text) else ()
    return any(text in folded(each) for each in (*known, *addresses))


def _lies_in(scope: str, scopes: tuple[str, ...] | None) -> bool:
    return scopes is None or scope in scopes


def _identities(machine: Machine) -> list[object]:
    return [*machine.identities, *((machine.instance_id,) if machine.instance_id else ())]
