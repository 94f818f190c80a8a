"""The lists and counts of the memory store. Each reads all rows: the store is for small fleets."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import islice

from forewarn.core.fast_init import replace
from forewarn.core.model import OPEN, AuditEntry, Event, Host, Machine, Maintenance, Order, OrderState, Scope, Status
from forewarn.core.progress import WaveProgress, wave_progress
from forewarn.store import (
    AuditQuery,
    Backlog,
    Counts,
    EventQuery,
    HostCount,
    HostQuery,
    IdKind,
    MachineQuery,
    MaintenanceQuery,
    OpenWave,
    OpenWavesQuery,
    OrderQuery,
    Page,
    ScopeQuery,
    folded,
    maintenance_text,
    selected_scopes,
)
from forewarn.store.memory.tables import MemoryTables, locked


class MemoryLists(MemoryTables):
    @locked
    def counts(self, within: tuple[str, ...] | None) -> Counts:
        names = [name for name in self._scopes if within is None or name in within]
        events = [self._events[i] for name in names for i in self._open_of_scope.get(name, ())]
        held = Counter(event.status for event in events)
        started = (self._orders.get(event.id) for event in events if event.status is Status.STARTED)
        of_hosts = (order for order in self._orders.values() if order.host and within is None)
        states = Counter(order.state for order in (*started, *of_hosts) if order is not None)
        return Counts(
            planned=held[Status.PLANNED],
            scheduled=held[Status.SCHEDULED],
            started=held[Status.STARTED],
            failed=states[OrderState.FAILED],
            in_doubt=states[OrderState.IN_DOUBT],
            scopes=len(names),
            machines=sum(len(self._machines.get(name, ())) for name in names),
        )

    @locked
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
            earliest_wake=min(self._waking.values(), default=None),
        )

    @locked
    def machines_named(self, name: str, limit: int = 4) -> list[Machine]:
        return [by_name[name] for _, by_name in sorted(self._machines.items()) if name in by_name][:limit]

    @locked
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
        events = self._events_of_maintenance(id_) if kind == "maintenance" else filter(None, [self._events.get(id_)])
        return scopes is None or any(event.scope in scopes for event in events)

    @locked
    def scopes_page(self, query: ScopeQuery) -> list[Scope]:
        scopes = selected_scopes("", query.within)
        matching = (
            s
            for s in self._scopes.values()
            if s.name > query.after and _lies_in(s.name, scopes) and query.text in folded(s.name)
        )
        return heapq.nsmallest(query.limit, matching, key=lambda s: s.name)

    @locked
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

    @locked
    def hosts_page(self, query: HostQuery) -> list[HostCount]:
        scopes = selected_scopes("", query.within)
        counts = {
            name: sum(_lies_in(m.scope, scopes) for m in machines) for name, machines in self._machines_on.items()
        }
        shown = {name for name, machines in counts.items() if machines}
        if scopes is None:
            shown |= {host.name for host in self._hosts.values() if host.listed or host.cordoned is not None}
        names = (name for name in shown if name > query.after and query.text in folded(name))
        return [
            HostCount(self._hosts.get(name) or Host(name=name), counts.get(name, 0))
            for name in heapq.nsmallest(query.limit, names)
        ]

    @locked
    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]:
        scopes = selected_scopes("", query.within)
        matching = [
            m
            for m in self._maintenances.values()
            if m.status in query.statuses
            and (m.host_mode is not None or not query.on_hosts)
            and (query.before is None or (m.created, m.id) < query.before)
            and (scopes is None or any(_lies_in(e.scope, scopes) for e in self._events_of_maintenance(m.id)))
        ]
        return heapq.nlargest(query.limit, matching, key=lambda m: (m.created, m.id))

    def drills(self, query: MaintenanceQuery) -> list[Maintenance]:
        everything = replace(query, limit=len(self._maintenances) + 1)
        return [each for each in self.maintenances(everything) if each.drill_hold_s][: query.limit]

    def maintenance_keys(self, query: MaintenanceQuery) -> list[tuple[datetime, str]]:
        return [(each.created, each.id) for each in self.maintenances(query)]

    @locked
    def search_maintenances(
        self, ids: Collection[str], text: str, within: tuple[str, ...] | None
    ) -> dict[str, Maintenance]:
        found = (self._maintenances[i] for i in ids if i in self._maintenances)
        return {each.id: each for each in found if text in maintenance_text(each, within)}

    @locked
    def wave_progress(
        self, maintenance_ids: Collection[str], within: tuple[str, ...] | None
    ) -> dict[str, tuple[WaveProgress, ...]]:
        scopes = selected_scopes("", within)
        found = {
            i: wave_progress([e for e in self._events_of_maintenance(i) if _lies_in(e.scope, scopes)], self._orders)
            for i in maintenance_ids
        }
        return {i: waves for i, waves in found.items() if waves}

    @locked
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
        return (not host or self._is_on(event, host)) and text in _event_text(event)

    def _is_on(self, event: Event, host: str) -> bool:
        machines = self._machines.get(event.scope, {})
        return any(name in machines and machines[name].host == host for name in event.resources)

    @locked
    def orders_page(self, query: OrderQuery) -> list[Order]:
        scopes = selected_scopes("", query.within)
        matching = (
            o
            for o in self._orders.values()
            if o.state in query.states
            and (query.abandoned or o.host or self._events[o.id].status is not Status.ABANDONED)
            and (query.before is None or (o.issued, o.id) < query.before)
            and _lies_in("" if o.host else self._events[o.id].scope, scopes)
        )
        return heapq.nlargest(query.limit, matching, key=lambda o: (o.issued, o.id))

    @locked
    def events(self, query: EventQuery) -> Page:
        scopes = selected_scopes(query.scope, query.within)
        matching = (e for e in reversed(self._events.values()) if self._matches(e, query, scopes))
        page = list(islice(matching, query.limit + 1))
        more = len(page) > query.limit
        page = page[: query.limit]
        return Page(tuple(page), self._numbers[page[-1].id] if more else None)

    def _matches(self, event: Event, query: EventQuery, scopes: tuple[str, ...] | None) -> bool:
        return (
            (query.before is None or self._numbers[event.id] < query.before)
            and _lies_in(event.scope, scopes)
            and (not query.machine or query.machine in event.resources)
            and (not query.host or self._is_on(event, query.host))
            and query.maintenance_id in ("", event.maintenance_id)
            and event.status in query.statuses
            and event.type in query.types
            and (not query.text or query.text in _event_text(event))
            and (query.since is None or event.ended is None or event.ended >= query.since)
        )

    @locked
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
