"""Implements `Store` on named queries. A subclass supplies the transactions.

A subclass implements `_reading` and `_writing`; each yields a `SqlSession`, an open transaction.
"""

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import groupby, takewhile
from operator import attrgetter, itemgetter
from typing import Any

from forewarn.core.amounts import is_share
from forewarn.core.change import Change, Snapshot, UnreadEvents
from forewarn.core.errors import Conflict, InvariantBroken
from forewarn.core.fast_init import replace
from forewarn.core.fleet_rules import NO_RULES, NOTHING_DOWN, FleetRules, FleetUse
from forewarn.core.model import (
    OPEN,
    UNSTARTED,
    Approval,
    AuditEntry,
    ClockHold,
    Event,
    EventType,
    Host,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Scope,
    Status,
    StoreHold,
)
from forewarn.core.operator_model import MAX_SESSIONS_PER_TOKEN, Hook, HookDelivery, LoginSession, Receipt, Token
from forewarn.core.progress import WaveProgress
from forewarn.core.reason import MAX_NAMED
from forewarn.core.rule_inputs import MachineKey, machines_bound, machines_to_examine, scopes_to_examine
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
    LabelledMachine,
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
    maintenance_text,
)
from forewarn.store.audit_chain import AuditChain, ChainMark
from forewarn.store.sql import lists, writing
from forewarn.store.sql.rows import Row, Values, read_labels, read_strategy, read_targets
from forewarn.store.sql.session import SqlSession

# After every id of the audit.
NEWEST = 2**62


class SqlStore:
    """Implements `Store` on named queries; a subclass supplies connections and transactions."""

    _servers_change = False

    def _reading(self) -> AbstractContextManager[SqlSession]:
        """Open a read transaction: everything read in it is of one moment."""
        raise NotImplementedError

    def _reading_snapshot(self, focus: Focus) -> AbstractContextManager[SqlSession]:
        """Open a read transaction for the queries of this snapshot."""
        del focus  # a database with a cheaper way for few rows decides by it
        return self._reading()

    def _reading_fleet(self) -> AbstractContextManager[SqlSession]:
        """Open a read transaction that may take long enough for the whole fleet."""
        return self._reading()

    def _writing(self) -> AbstractContextManager[SqlSession]:
        """Open a write transaction: at its end all of it is durable, or nothing happened."""
        raise NotImplementedError

    def _lock_maintenances(self, writer: SqlSession, change: Change) -> None:
        """Lock the maintenances of the change in the order of their ids, if other processes can write."""

    def _write_machines(self, writer: SqlSession, machines: Sequence[Machine]) -> None:
        """Add or replace machines that have no addresses in the store."""
        writing.write_machines(writer, machines)

    def _add_audit(self, writer: SqlSession, entries: Sequence[AuditEntry]) -> None:
        """Add audit entries to the end of the chain."""
        raise NotImplementedError

    def _announce(self, writer: SqlSession, change: Change) -> None:
        """Announce the change to other nodes. Called before the audit entries, which are written last."""

    def _recognise(self, server: Iterable[Row]) -> None:
        """Check that the server is the one the nodes agreed on, before the rows it returned are used."""

    # -- consistent reads

    def snapshot(self, focus: Focus) -> Snapshot:
        with self._reading_snapshot(focus) as reader:
            server = reader.query("server") if self._servers_change else ()
            rules_and_holds = () if focus.document_only else reader.query("rules_and_holds")
            hosts = reader.query("hosts_by_name", names=reader.as_list(focus.hosts)) if focus.hosts else ()
            machines = _machines(reader, focus)
            read = _current_events if focus.current_waves else _events
            events, maintenance_ids, scope_rows, unread, maintenances, details = read(
                reader, focus, {scope for scope, _ in machines}
            )
            self._recognise(server)
            unknown = [] if focus.document_only else [i for i in maintenance_ids if i not in maintenances]
            of_hosts = unknown + [i for i, each in maintenances.items() if each.host_mode is not None]
            order_rows = [rows for _, rows in details]
            if of_hosts:
                order_rows.append(reader.query("orders_of_hosts", ids=reader.as_list(of_hosts)))
            if focus.hosts and not focus.document_only:
                order_rows.append(reader.query("orders_on_hosts", hosts=reader.as_list(focus.hosts)))
            more = reader.query("maintenances_by_id", ids=reader.as_list(unknown)) if unknown else ()
            scopes = _scopes(reader, scope_rows)
            counts = _machine_counts(reader, scopes.values()) if focus.reads_rules else ()
            rules, clock_hold, store_hold = _rules_and_holds(reader, focus, rules_and_holds)
            use = _FleetUseRows(reader) if rules.has_budget else None
            _add_approvals(reader, events, (row for rows, _ in details for row in rows))
            others = scopes_to_examine(rules, scopes, events.values())
            other_scopes = reader.query("scopes_by_name", names=reader.as_list(sorted(others))) if others else ()
            if unknown:
                maintenances |= _maintenances(reader, more)
            return Snapshot(
                scopes=scopes,
                machines=machines,
                hosts=_hosts(reader, hosts) if focus.hosts else {},
                maintenances=dict(sorted(maintenances.items())),
                events=events,
                orders={row["id"]: reader.rows.order.decode(row) for rows in order_rows for row in rows},
                read_hosts=frozenset(focus.hosts),
                unread=unread,
                fleet_rules=rules,
                fleet_use=use.read() if use is not None else NOTHING_DOWN,
                machine_counts={row["scope"]: row["machines"] for row in counts},
                other_scopes=_scopes(reader, other_scopes) if others else {},
                no_go_machines=_no_go_machines(reader, rules, machines, events.values()) if rules.no_go_times else {},
                hold=clock_hold if clock_hold is not None and clock_hold.confirmed is None else None,
                confirmed=clock_hold if clock_hold is not None and clock_hold.confirmed is not None else None,
                store_hold=store_hold if store_hold is not None and store_hold.resumed is None else None,
                resumed=store_hold if store_hold is not None and store_hold.resumed is not None else None,
            )

    def inventory(self) -> Inventory:
        with self._reading_fleet() as reader:
            scopes, machines, addresses, hosts = (
                list(reader.query(n)) for n in ("scopes_all", "machines_all", "addresses_all", "hosts_all")
            )
        # Converting a fleet takes long: do it after the connection is free.
        return Inventory(_scopes(reader, scopes), _with_addresses(reader, machines, addresses), _hosts(reader, hosts))

    def fleet_rules(self) -> FleetRules:
        with self._reading() as reader:
            (row,) = reader.query("rules_and_holds")
            return reader.rows.fleet_rules.decode(row)

    def fleet_use(self) -> FleetUse:
        with self._reading() as reader:
            return _FleetUseRows(reader).read()

    def scopes(self) -> dict[str, Scope]:
        with self._reading_fleet() as reader:
            found = list(reader.query("scopes_all"))
        return _scopes(reader, found)

    def scope_names(self) -> list[str]:
        with self._reading_fleet() as reader:
            return [name for (name,) in reader.stream("scope_names")]

    def last_change(self) -> datetime | None:
        with self._reading() as reader:
            (row,) = reader.query("last_change")
            return None if row["at"] is None else reader.rows.read_time(row["at"])

    def hosts(self) -> dict[str, Host]:
        with self._reading() as reader:
            return _hosts(reader, reader.query("hosts_all"))

    def machine_identities(self) -> Iterator[MachineIdentity]:
        with self._reading_fleet() as reader:
            share = dict[str, str]().setdefault  # machines of many scopes may have the same name
            last = MachineIdentity("", "", 0, 0, "", "", ())
            for scope, name, update_domain, fault_domain, instance_id, interface, address in reader.stream(
                "machines_known"
            ):
                addresses = (address,) if address is not None else ()
                if name == last.name and scope == last.scope:
                    addresses = last.addresses + addresses
                elif last.name:
                    yield last
                last = MachineIdentity(
                    scope, share(name, name), update_domain, fault_domain, instance_id, interface or "", addresses
                )
            if last.name:
                yield last

    def labelled_machines(
        self, scopes: tuple[str, ...] | None, after: tuple[str, str] = ("", "")
    ) -> Generator[LabelledMachine, None, None]:
        values: Values = {"scope": after[0], "name": after[1]}
        with self._reading_fleet() as reader:
            if scopes is not None:
                rows = reader.stream("machines_labelled_of_scopes", scopes=reader.as_list(scopes), **values)
            else:
                rows = reader.stream("machines_labelled", **values)
            for scope, name, update_domain, host, labels, host_labels in rows:
                yield LabelledMachine(
                    scope, name, update_domain, host, read_labels(labels), read_labels(host_labels or "{}")
                )

    # -- atomic writes

    def apply(self, change: Change) -> None:
        with self._writing() as writer:
            if self._servers_change:
                server = writer.query("server")
                writer.check_later(lambda: self._recognise(server))
            # The order in which every change locks: the budget, maintenances, scopes, the hold of the store.
            writing.write_reservations(writer, change)
            self._lock_maintenances(writer, change)
            if change.maintenances:
                writing.write_maintenances(writer, change)
            if change.wakes or change.frees_budget:
                writing.wake_maintenances(writer, change)
            writing.check_premises(writer, change)
            if change.scopes or change.removed_scopes or change.machines or change.removed_machines:
                writing.write_inventory(writer, change)
                if change.machines:
                    self._write_machines(writer, change.machines)
            if change.hosts or change.removed_hosts:
                writing.write_hosts(writer, change)
            if change.events:
                used_id = InvariantBroken("invariant 3: an event id is used by another maintenance; nothing was saved")
                writer.save("put_event", writer.rows.event, change.events, error_if_unchanged=used_id)
            if change.approvals:
                recorded = Conflict("the same approval is already recorded")
                writer.save("add_approval", writer.rows.approval, change.approvals, error_if_unchanged=recorded)
            if change.orders:
                writer.save("put_order", writer.rows.order, change.orders)
            if change.tokens or change.removed_tokens or change.receipts:
                writing.write_tokens(writer, change)
            if change.hooks or change.removed_hooks:
                writing.write_hooks(writer, change)
            if change.hold is not None or change.releases_hold is not None:
                writing.write_hold(writer, change)
            if change.store_hold is not None or change.resumes_store is not None:
                writing.write_store_hold(writer, change)
            if change.fleet_rules is not None:
                writing.write_fleet_rules(writer, change)
            self._announce(writer, change)
            self._add_audit(writer, change.audit)

    # -- hints

    def due(self, now: datetime, limit: int, *, latest_first: bool = False) -> list[str]:
        query = "due_latest_first" if latest_first else "due"
        with self._reading() as reader:
            return [row["id"] for row in reader.query(query, now=reader.rows.time(now), limit=limit)]

    def next_wakeup(self) -> datetime | None:
        with self._reading() as reader:
            found = list(reader.query("next_wakeup"))
            return reader.rows.read_time(found[0]["wake_at"]) if found else None

    def orders(self, states: Collection[OrderState], limit: int, *, of_hosts: bool = False) -> list[Order]:
        query = "orders_of_hosts_in_state" if of_hosts else "orders_in_state"
        with self._reading() as reader:
            found = [row for state in states for row in reader.query(query, state=state, limit=limit)]
            found.sort(key=lambda row: (row["issued"], row["id"]))
            return [reader.rows.order.decode(row) for row in found[:limit]]

    # -- loose

    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None:
        with self._writing() as writer:
            # Sorted: processes that lock rows in the same order do not deadlock.
            found = sorted(seen, key=attrgetter("scope", "name"))
            writer.execute_many(
                "record_last_seen", ({"scope": s.scope, "name": s.name, "at": writer.rows.time(s.at)} for s in found)
            )

    def last_seen_by_scope(self, scopes: Collection[str]) -> dict[str, datetime]:
        with self._reading() as reader:
            found = reader.query("last_seen_by_scope", names=reader.as_list(sorted(scopes)))
            return {row["scope"]: reader.rows.read_time(row["at"]) for row in found}

    def last_seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        with self._reading() as reader:
            found = reader.query("last_seen_by_key", keys=reader.as_pairs(machines))
            return {(row["scope"], row["name"]): reader.rows.read_time(row["at"]) for row in found}

    def record_first_seen(self, sightings: Collection[EventFirstSeen]) -> None:
        with self._writing() as writer:
            writer.execute_many(
                "record_first_seen",
                (
                    {"event_id": s.event_id, "machine": s.machine, "at": writer.rows.time(s.at)}
                    for s in sorted(sightings, key=attrgetter("event_id", "machine"))
                ),
            )

    def first_seen(self, event_id: str) -> dict[str, datetime]:
        with self._reading() as reader:
            found = reader.query("sightings_of_event", event_id=event_id)
            return {row["machine"]: reader.rows.read_time(row["at"]) for row in found}

    # -- lists and history

    def counts(self, within: tuple[str, ...] | None) -> Counts:
        with self._reading() as reader:
            return lists.counts(reader, within)

    def backlog(self) -> Backlog:
        with self._reading() as reader:
            return lists.backlog(reader)

    def machines_named(self, name: str, limit: int = 4) -> list[Machine]:
        with self._reading() as reader:
            return list(_machines_of(reader, list(reader.query("machines_named", name=name, limit=limit))).values())

    def ids_starting(self, kind: IdKind, prefix: str, within: tuple[str, ...] | None, limit: int) -> list[str]:
        with self._reading() as reader:
            return lists.ids_starting(reader, kind, prefix, within, limit)

    def scopes_page(self, query: ScopeQuery) -> list[Scope]:
        with self._reading() as reader:
            return [reader.rows.scope.decode(row) for row in lists.scopes(reader, query)]

    def machines_page(self, query: MachineQuery) -> list[Machine]:
        with self._reading() as reader:
            return list(_machines_of(reader, lists.machines(reader, query)).values())

    def hosts_page(self, query: HostQuery) -> list[HostCount]:
        with self._reading() as reader:
            counted, listed = lists.hosts(reader, query)
            rows, counts = _hosts(reader, listed), {row["name"]: row["machines"] for row in counted}
            # Each page holds the first names of its kind, so the first names of both are the first of all.
            names = sorted({*counts, *(rows if query.within is None else ())})[: query.limit]
            return [HostCount(rows.get(name) or Host(name=name), counts.get(name, 0)) for name in names]

    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]:
        with self._reading() as reader:
            return [_maintenance(reader, row) for row in lists.maintenances(reader, query)]

    def drills(self, query: MaintenanceQuery) -> list[Maintenance]:
        with self._reading() as reader:
            return [_maintenance(reader, row) for row in lists.drills(reader, query)]

    def maintenance_keys(self, query: MaintenanceQuery) -> list[tuple[datetime, str]]:
        with self._reading() as reader:
            return [(reader.rows.read_time(at), i) for at, i in lists.maintenance_keys(reader, query)]

    def search_maintenances(
        self, ids: Collection[str], text: str, within: tuple[str, ...] | None
    ) -> dict[str, Maintenance]:
        with self._reading() as reader:
            found = [_maintenance(reader, row) for row in lists.maintenances_matching(reader, ids, text)]
        return {each.id: each for each in found if text in maintenance_text(each, within)}

    def wave_progress(
        self, maintenance_ids: Collection[str], within: tuple[str, ...] | None
    ) -> dict[str, tuple[WaveProgress, ...]]:
        with self._reading() as reader:
            found = list(lists.wave_progress(reader, maintenance_ids, within))
        groups = groupby(found, key=itemgetter("maintenance_id"))
        return {i: tuple(reader.rows.wave_progress.decode(row) for row in rows) for i, rows in groups}

    def open_waves(self, query: OpenWavesQuery) -> tuple[list[OpenWave], dict[Status, int]]:
        with self._reading() as reader:
            waves = lists.open_waves(reader, query)
        found = [
            OpenWave(
                maintenance_id=row["maintenance_id"],
                type=EventType(row["type"]),
                description=row["description"],
                created=reader.rows.read_time(row["created"]),
                wave=row["wave"],
                status=Status(row["status"]),
                events=row["events"],
            )
            for row in waves
        ]
        counts = {status: waves[0][status.lower()] for status in OPEN} if waves else {}
        return found, {status: number for status, number in counts.items() if number}

    def orders_page(self, query: OrderQuery) -> list[Order]:
        with self._reading() as reader:
            return [reader.rows.order.decode(row) for row in lists.orders(reader, query)]

    def events(self, query: EventQuery) -> Page:
        with self._reading() as reader:
            shown, next_before = lists.event_page(reader, query)
            found = _decoded_events(reader, reader.query("events_by_number", numbers=reader.as_list(shown)))
            events = {event.id: event for event in found}
            _add_approvals(reader, events, reader.query("approvals_of_events", ids=reader.as_list(events)))
            return Page(tuple(events.values()), next_before)

    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        with self._reading() as reader:
            return [reader.rows.audit.decode(row) for row in lists.audit(reader, query)]

    def maintenance(self, maintenance_id: str) -> Maintenance | None:
        with self._reading() as reader:
            found = list(reader.query("maintenances_by_id", ids=reader.as_list([maintenance_id])))
            return _maintenance(reader, found[0]) if found else None

    def prune(self, before: datetime, limit: int) -> int:
        with self._writing() as writer:
            moment, forgotten = writer.rows.time(before), 0
            old = [row["id"] for row in writer.query("old_maintenances", before=moment, limit=limit)]
            if old:
                forgotten += writer.execute("forget_events", ids=writer.as_list(old), limit=limit)
                forgotten += writer.execute("forget_maintenances", ids=writer.as_list(old))
            # Only the oldest entries, without a gap: what is left is still a chain, and its start is recorded.
            oldest = list(takewhile(lambda row: row["at"] < moment, writer.query("oldest_audit", limit=limit)))
            if oldest:
                forgotten += writer.execute("forget_audit", id=oldest[-1]["id"])
                writer.execute("move_audit_start", id=oldest[-1]["id"], hash=oldest[-1]["hash"])
            return forgotten

    def audit_chain(self) -> AuditChain:
        with self._reading() as reader:
            starts, heads = reader.query("audit_start"), reader.query("newest_audit")
            (start,) = (ChainMark(row["id"], row["hash"]) for row in starts)
            return AuditChain(start, next((ChainMark(row["id"], row["hash"]) for row in heads), start))

    # -- tokens, sessions and receipts

    def tokens(self) -> list[Token]:
        with self._reading() as reader:
            return [reader.rows.token.decode(row) for row in reader.query("tokens_all")]

    def record_token_uses(self, uses: Mapping[str, datetime]) -> None:
        with self._writing() as writer:
            writer.execute_many(
                "record_token_use",
                ({"token_id": token_id, "at": writer.rows.time(at)} for token_id, at in sorted(uses.items())),
            )

    def token_uses(self) -> dict[str, datetime]:
        with self._reading() as reader:
            return {row["token_id"]: reader.rows.read_time(row["at"]) for row in reader.query("token_uses")}

    def add_session(self, session: LoginSession) -> None:
        with self._writing() as writer:
            known = Conflict("a login with this session id exists already")
            writer.execute_many("add_session", [writer.rows.session.encode(session)], error_if_unchanged=known)
            writer.execute("limit_sessions", token_id=session.token_id, keep=MAX_SESSIONS_PER_TOKEN)

    def session(self, digest: str) -> LoginSession | None:
        with self._reading() as reader:
            found = list(reader.query("session", digest=digest))
            return reader.rows.session.decode(found[0]) if found else None

    def end_session(self, digest: str) -> None:
        with self._writing() as writer:
            writer.execute("end_session", digest=digest)

    def forget_sessions(self, before: datetime, limit: int) -> int:
        with self._writing() as writer:
            return writer.execute("forget_sessions", before=writer.rows.time(before), limit=limit)

    def receipt(self, token_id: str, key: str) -> Receipt | None:
        with self._reading() as reader:
            found = list(reader.query("receipt", token_id=token_id, key=key))
            return reader.rows.receipt.decode(found[0]) if found else None

    def forget_receipts(self, before: datetime, limit: int) -> int:
        with self._writing() as writer:
            return writer.execute("forget_receipts", before=writer.rows.time(before), limit=limit)

    # -- hooks

    def hooks(self) -> list[Hook]:
        with self._reading() as reader:
            return [reader.rows.hook.decode(row) for row in reader.query("hooks_all")]

    def save_hooks(self, hooks: Collection[Hook], deliveries: Collection[HookDelivery] = ()) -> None:
        with self._writing() as writer:
            writing.update_hooks(writer, hooks)
            by_id = sorted(deliveries, key=attrgetter("hook_id", "audit_id"))
            writer.execute_many("put_delivery", (writer.rows.delivery.encode(each) for each in by_id))
            for hook_id in sorted({each.hook_id for each in by_id}):
                writer.execute("limit_deliveries", hook_id=hook_id, keep=MAX_DELIVERIES)

    def hook_deliveries(self, hook_id: str, limit: int, before: int | None = None) -> list[HookDelivery]:
        with self._reading() as reader:
            newest = NEWEST if before is None else before
            found = reader.query("deliveries", hook_id=hook_id, before=newest, limit=limit)
            return [reader.rows.delivery.decode(row) for row in found]

    # -- housekeeping

    def position(self) -> StorePosition | None:
        with self._reading() as reader:
            (row,) = reader.query("position")
            return StorePosition(
                identity=row["identity"],
                timeline=row["timeline"],
                audit_id=row["audit_id"],
                resumed=bool(row["resumed"]),
                held=bool(row["held"]),
                unfinished=bool(row["unfinished"]),
            )


# -- reading


def _maintenance(reader: SqlSession, row: Row) -> Maintenance:
    return reader.rows.maintenance.decode(row, read_targets(row["targets"]), read_strategy(row["strategy"]))


def _maintenances(reader: SqlSession, found: Iterable[Row]) -> dict[str, Maintenance]:
    return {row["id"]: _maintenance(reader, row) for row in found}


def _scopes(reader: SqlSession, found: Iterable[Row]) -> dict[str, Scope]:
    return {row["name"]: reader.rows.scope.decode(row) for row in found}


def _hosts(reader: SqlSession, found: Iterable[Row]) -> dict[str, Host]:
    return {row["name"]: reader.rows.host.decode(row) for row in found}


def _machines(reader: SqlSession, focus: Focus) -> dict[tuple[str, str], Machine]:
    found: list[Row] = []
    if focus.inventory:
        found += reader.query("machines_of_scopes", names=reader.as_list(focus.scopes))
    if focus.machines:
        found += reader.query("machines_by_key", keys=reader.as_pairs(focus.machines))
    if focus.hosts:
        found += reader.query("machines_on_hosts", hosts=reader.as_list(focus.hosts))
    if focus.identities:
        found += reader.query("machines_by_identity", keys=reader.as_pairs(focus.identities))
    if focus.instance_ids:
        found += reader.query("machines_by_instance_id", ids=reader.as_list(focus.instance_ids))
    return _machines_of(reader, list({(row["scope"], row["name"]): row for row in found}.values())) if found else {}


def _machines_of(reader: SqlSession, found: list[Row]) -> dict[tuple[str, str], Machine]:
    if not found:
        return {}
    keys = reader.as_pairs((row["scope"], row["name"]) for row in found)
    return _with_addresses(reader, found, reader.query("addresses_by_key", keys=keys))


def _with_addresses(
    reader: SqlSession, machines: Iterable[Any], addresses: Iterable[Any]
) -> dict[tuple[str, str], Machine]:
    known: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in addresses:
        known[row["scope"], row["name"]].append(row["address"])
    return {
        (row["scope"], row["name"]): reader.rows.machine.decode(
            row, tuple(filter(None, known.get((row["scope"], row["name"]), ())))
        )
        for row in machines
    }


# The rows of the approvals of some events, and of their orders.
_Details = tuple[Iterable[Row], Iterable[Row]]
_FoundEvents = tuple[
    dict[str, Event], list[str], Iterable[Row], dict[str, UnreadEvents], dict[str, Maintenance], list[_Details]
]


def _details(reader: SqlSession, focus: Focus, found: Collection[Event]) -> _Details:
    """Send the queries for what belongs to these events. An event has no order before it starts: a tick reads none for it."""
    started = [event.id for event in found if event.status not in UNSTARTED]
    return _details_of(reader, focus, [event.id for event in found], started)


def _details_of(reader: SqlSession, focus: Focus, events: Collection[str], orders: Collection[str]) -> _Details:
    """Send the queries for the approvals of the events with these ids, and for the orders with these ids."""
    if focus.document_only:
        return (), ()
    return (
        reader.query("approvals_of_events", ids=reader.as_list(events)) if events else (),
        reader.query("orders_of_events", ids=reader.as_list(orders)) if orders else (),
    )


def _current_events(reader: SqlSession, focus: Focus, names: set[str]) -> _FoundEvents:
    """Return what a tick of these maintenances needs, as `_events` does, with what it leaves out, and all the maintenances.

    What is not needed for the next query is sent with it. Rows of the bench: transitions on PostgreSQL.
    """
    found, unread, maintenances = _of_current_waves(reader, focus.maintenances)
    names |= {event.scope for event in found if event.ended is None}
    listed = reader.as_list(sorted(names))
    scopes = reader.query("scopes_by_name", names=listed)
    in_scopes = reader.query("maintenances_in_scopes", names=listed)
    details = [_details(reader, focus, found)]
    others = sorted({row["maintenance_id"] for row in in_scopes}.difference(focus.maintenances))
    if others:
        more, more_unread, more_maintenances = _of_current_waves(reader, others)
        details.append(_details(reader, focus, more))
        found += more
        unread |= more_unread
        maintenances |= more_maintenances
    ids = [*dict.fromkeys(focus.maintenances), *others]
    return {event.id: event for event in found}, ids, scopes, unread, maintenances, details


def _of_current_waves(
    reader: SqlSession, ids: Collection[str]
) -> tuple[list[Event], dict[str, UnreadEvents], dict[str, Maintenance]]:
    """Return the current events of these maintenances; all events of those whose ticks need all, or that have no open one."""
    listed = reader.as_list(ids)
    rows, current = reader.query("maintenances_by_id", ids=listed), reader.query("events_current", ids=listed)
    unread = reader.query("events_unread", ids=listed)
    maintenances = _maintenances(reader, rows)
    read = _decoded_events(reader, current)
    found = [event for event in read if not maintenances[event.maintenance_id].ticks_need_all_events]
    partly = {event.maintenance_id for event in found}
    if whole := set(ids).difference(partly):
        else_ = reader.query("events_else_of_maintenances", ids=reader.as_list(whole), names=reader.as_list([]))
        found += _decoded_events(reader, else_)
    return found, {i: _unread(reader, row) for row in unread if (i := row["maintenance_id"]) in partly}, maintenances


def _unread(reader: SqlSession, row: Row) -> UnreadEvents:
    ended = row["last_ended"]
    last_ended = None if ended is None else reader.rows.read_time(ended)
    return UnreadEvents(row["last_position"], last_ended, row["replaced"])


def _decoded_events(reader: SqlSession, found: Iterable[Row]) -> list[Event]:
    """Return the events of these rows, without their approvals, which are rows of their own."""
    decode = reader.rows.event.decode
    return [decode(row, ()) for row in found]


def _events(reader: SqlSession, focus: Focus, names: set[str]) -> _FoundEvents:
    """Return the events by id, the ids of their maintenances, the rows of every scope concerned, and some maintenances."""
    named_rows = reader.query("events_by_id", ids=reader.as_list(focus.events)) if focus.events else ()
    details = [_details_of(reader, focus, focus.events, focus.events)]
    named = _decoded_events(reader, named_rows)
    names |= {*focus.scopes, *(scope for scope, _ in focus.machines), *(event.scope for event in named)}
    if focus.maintenances:
        names |= {
            row["scope"] for row in reader.query("scopes_of_maintenances", ids=reader.as_list(focus.maintenances))
        }
    listed = reader.as_list(sorted(names))
    scopes = reader.query("scopes_by_name", names=listed)
    known = {event.maintenance_id for event in named} if not focus.document_only else ()
    maintenances = reader.query("maintenances_by_id", ids=reader.as_list(sorted(known))) if known else ()
    found = [*_decoded_events(reader, _others(reader, focus, listed)), *named]
    maintenance_ids = list(dict.fromkeys([*(event.maintenance_id for event in found), *focus.maintenances]))
    if focus.whole_maintenances:
        read = listed if focus.open_events else reader.as_list([])
        else_ = reader.query("events_else_of_maintenances", ids=reader.as_list(maintenance_ids), names=read)
        found += _decoded_events(reader, else_)
    events = {event.id: event for event in found}
    others = [i for i in events if i not in focus.events]
    details.append(_details_of(reader, focus, others, others))
    return events, maintenance_ids, scopes, {}, _maintenances(reader, maintenances), details


def _others(reader: SqlSession, focus: Focus, names: object) -> Iterable[Row]:
    """Return the open events of these scopes, or those that may move next, or none."""
    if focus.open_events:
        return reader.query("events_open_in_scopes", names=names)
    if focus.next_events:
        keys = reader.as_pairs(focus.machines)
        return reader.query("events_next_in_scopes", names=names, ids=reader.as_list(focus.events), keys=keys)
    return ()


class _FleetUseRows:
    """The queries about what is down in the fleet; reading their rows may wait for the server."""

    def __init__(self, reader: SqlSession) -> None:
        self._machines, self._hosts = reader.query("machines_down"), reader.query("hosts_down")
        self._events = reader.query("events_down", limit=MAX_NAMED)

    def read(self) -> FleetUse:
        (machines,) = (row["machines"] for row in self._machines)
        hosts = frozenset((row["maintenance_id"], row["host"]) for row in self._hosts)
        return FleetUse(machines=machines, hosts=hosts, events=tuple(row["id"] for row in self._events))


def _no_go_machines(
    reader: SqlSession, rules: FleetRules, machines: Iterable[MachineKey], events: Iterable[Event]
) -> dict[str, frozenset[MachineKey]]:
    keys = machines_to_examine(rules, machines, events)
    found = reader.query("labels_by_key", keys=reader.as_pairs(sorted(keys))) if keys else ()
    labelled = (
        ((row["scope"], row["name"]), read_labels(row["labels"]), read_labels(row["host_labels"] or "{}"))
        for row in found
    )
    return machines_bound(rules, labelled)


def _machine_counts(reader: SqlSession, scopes: Iterable[Scope]) -> Iterable[Row]:
    names = [scope.name for scope in scopes if is_share(scope.max_unavailable)]
    return reader.query("machine_counts", scopes=reader.as_list(names)) if names else ()


def _rules_and_holds(
    reader: SqlSession, focus: Focus, found: Iterable[Row]
) -> tuple[FleetRules, ClockHold | None, StoreHold | None]:
    """Return the rules of the fleet, the hold of the clock and the hold of the store, from the one row that has all."""
    row = next(iter(found), None)
    if row is None:
        return NO_RULES, None, None
    return (
        reader.rows.fleet_rules.decode_again(row) if focus.reads_rules else NO_RULES,
        reader.rows.hold.decode(row) if row["trusted"] else None,
        reader.rows.store_hold.decode(row) if row["held"] else None,
    )


def _add_approvals(reader: SqlSession, events: dict[str, Event], approved: Iterable[Row]) -> None:
    """Add to each event its approvals; mostly there are none."""
    approvals: dict[str, list[Approval]] = defaultdict(list)
    for row in approved:
        approvals[row["event_id"]].append(reader.rows.approval.decode(row))
    for event_id, given in approvals.items():
        events[event_id] = replace(events[event_id], approvals=tuple(given))
