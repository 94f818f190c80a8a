"""What every SQL store does alike: the protocol in named queries. Where and how they run is each store's own business.

A store gives it two doors, `_reading` and `_writing`; behind each is a `SqlSession`, a transaction under way.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken
from forewarn.core.model import (
    Approval,
    AuditEntry,
    Event,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Receipt,
    Scope,
    Token,
)
from forewarn.store import (
    AuditQuery,
    Backlog,
    Counts,
    EventFirstSeen,
    EventQuery,
    Focus,
    IdKind,
    Inventory,
    MachineIdentity,
    MachineLastSeen,
    MachineQuery,
    MaintenanceQuery,
    OrderQuery,
    Page,
    ScopeQuery,
)
from forewarn.store.sql import lists
from forewarn.store.sql.rows import Row, Rows, Values


class SqlSession(Protocol):
    """A transaction under way: named queries on one connection."""

    rows: Rows

    def ask(self, name: str, /, **values: object) -> Iterable[Row]:
        """Its rows. What is asked before any of them is looked at may travel together: ask first, look then."""

    def walk(self, name: str, /) -> Iterable[Any]:
        """As `ask`, for what may be very long: rows one by one, by position."""

    def one(self, name: str, /, **values: object) -> int:
        """The number of rows it changed."""

    def many(self, name: str, values: Iterable[Values], /, otherwise: ForewarnError | None = None) -> None:
        """Run it for each. With `otherwise` each must change one row, or that is raised and nothing is saved."""

    def settle(self) -> None:
        """Whatever had to change rows did, or what was said `otherwise` is raised."""

    def listed(self, values: Iterable[object], /) -> object:
        """Names, ids or numbers as a query takes them."""

    def paired(self, keys: Iterable[tuple[str, str]], /) -> object:
        """The keys of machines as a query takes them."""


class SqlStore:
    """Everything but the doors."""

    _servers_change = False

    def _reading(self) -> AbstractContextManager[SqlSession]:
        """One consistent moment: everything read inside comes from it."""
        raise NotImplementedError

    def _reading_fleet(self) -> AbstractContextManager[SqlSession]:
        """As `_reading`, for as much as there is of it."""
        return self._reading()

    def _writing(self) -> AbstractContextManager[SqlSession]:
        """One transaction: all of it is durable at the end, or nothing happened."""
        raise NotImplementedError

    def _prepare(self, writer: SqlSession, change: Change) -> None:
        """Before anything is written: what the change relied on is still so. Where others may write, it is locked, in order."""
        check_versions(change, ask_versions(writer, change))

    def _announce(self, writer: SqlSession, change: Change) -> None:
        """Before its audit is written, which comes last: where others read, they are told."""

    def _recognise(self, server: Iterable[Row]) -> None:
        """Before anything is made of what was read: where servers change, this must be the one the nodes agreed on."""

    # -- consistent reads

    def snapshot(self, focus: Focus) -> Snapshot:
        with self._reading() as reader:
            server = reader.ask("server") if self._servers_change else ()
            hold = () if focus.shown else reader.ask("clock_hold")
            machines = _machines(reader, focus)
            found, maintenance_ids, scopes = _events(reader, focus, {scope for scope, _ in machines})
            self._recognise(server)
            ids = reader.listed(found)
            approvals = () if focus.shown else reader.ask("approvals_of_events", ids=ids)
            orders = () if focus.shown else reader.ask("orders_of_events", ids=ids)
            maintenances = () if focus.shown else reader.ask("maintenances_by_id", ids=reader.listed(maintenance_ids))
            jumped = next((reader.rows.hold.thing(row) for row in hold), None)
            return Snapshot(
                scopes={row["name"]: reader.rows.scope.thing(row) for row in scopes},
                machines=machines,
                maintenances={row["id"]: reader.rows.maintenance.thing(row) for row in maintenances},
                events=_with_approvals(reader, found, approvals),
                orders={row["id"]: reader.rows.order.thing(row) for row in orders},
                hold=jumped if jumped is not None and jumped.confirmed is None else None,
                confirmed=jumped if jumped is not None and jumped.confirmed is not None else None,
            )

    def inventory(self) -> Inventory:
        with self._reading_fleet() as reader:
            scopes, machines, addresses = (list(reader.ask(n)) for n in ("scopes_all", "machines_all", "addresses_all"))
        # What takes its time is done when nobody waits for the connection any more.
        return Inventory(_scopes(reader, scopes), _with_addresses(reader, machines, addresses))

    def scopes(self) -> dict[str, Scope]:
        with self._reading_fleet() as reader:
            found = list(reader.ask("scopes_all"))
        return _scopes(reader, found)

    def machine_identities(self) -> Iterator[MachineIdentity]:
        with self._reading_fleet() as reader:
            for _, group in groupby(reader.walk("machines_known"), key=itemgetter(0, 1)):
                found = list(group)
                scope, name, update_domain, fault_domain, instance_id, _, _ = found[0]
                identities = tuple((row[5], row[6]) for row in found if row[6] is not None)
                yield MachineIdentity(scope, name, update_domain, fault_domain, instance_id, identities)

    # -- atomic writes

    def apply(self, change: Change) -> None:
        with self._writing() as writer:
            self._prepare(writer, change)
            _write_inventory(writer, change)
            _write_maintenances(writer, change)
            writer.many("put_event", (writer.rows.event.values(e) for e in change.events), otherwise=_used_event_id())
            recorded = Conflict("the same approval was recorded meanwhile")
            writer.many("add_approval", (writer.rows.approval.values(a) for a in change.approvals), otherwise=recorded)
            writer.many("put_order", (writer.rows.order.values(o) for o in change.orders))
            writer.many("wake_maintenance", ({"id": i, "at": writer.rows.time(change.at)} for i in change.wakes))
            _write_tokens(writer, change)
            _write_hold(writer, change)
            self._announce(writer, change)
            writer.many("add_audit", (writer.rows.audit.values(entry) for entry in change.audit))

    # -- hints

    def due(self, now: datetime, limit: int) -> list[str]:
        with self._reading() as reader:
            return [row["id"] for row in reader.ask("due", now=reader.rows.time(now), limit=limit)]

    def next_wakeup(self) -> datetime | None:
        with self._reading() as reader:
            found = list(reader.ask("next_wakeup"))
            return reader.rows.read_time(found[0]["wake_at"]) if found else None

    def orders(self, states: Collection[OrderState], limit: int) -> list[Order]:
        with self._reading() as reader:
            found = [row for state in states for row in reader.ask("orders_in_state", state=state, limit=limit)]
            found.sort(key=lambda row: (row["issued"], row["id"]))
            return [reader.rows.order.thing(row) for row in found[:limit]]

    # -- loose

    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None:
        with self._writing() as writer:
            # In order, as whatever others may write at the same time.
            found = sorted(seen, key=attrgetter("scope", "name"))
            writer.many(
                "record_last_seen", ({"scope": s.scope, "name": s.name, "at": writer.rows.time(s.at)} for s in found)
            )

    def last_seen_by_scope(self, scopes: Collection[str]) -> dict[str, datetime]:
        with self._reading() as reader:
            found = reader.ask("last_seen_by_scope", names=reader.listed(sorted(scopes)))
            return {row["scope"]: reader.rows.read_time(row["at"]) for row in found}

    def last_seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        with self._reading() as reader:
            found = reader.ask("last_seen_by_key", keys=reader.paired(machines))
            return {(row["scope"], row["name"]): reader.rows.read_time(row["at"]) for row in found}

    def record_first_seen(self, sightings: Collection[EventFirstSeen]) -> None:
        with self._writing() as writer:
            writer.many(
                "record_first_seen",
                (
                    {"event_id": s.event_id, "machine": s.machine, "at": writer.rows.time(s.at)}
                    for s in sorted(sightings, key=attrgetter("event_id", "machine"))
                ),
            )

    def first_seen(self, event_id: str) -> dict[str, datetime]:
        with self._reading() as reader:
            found = reader.ask("sightings_of_event", event_id=event_id)
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
            return list(_machines_of(reader, list(reader.ask("machines_named", name=name, limit=limit))).values())

    def ids_starting(self, kind: IdKind, prefix: str, within: tuple[str, ...] | None, limit: int) -> list[str]:
        with self._reading() as reader:
            return lists.ids_starting(reader, kind, prefix, within, limit)

    def scopes_page(self, query: ScopeQuery) -> list[Scope]:
        with self._reading() as reader:
            return [reader.rows.scope.thing(row) for row in lists.scopes(reader, query)]

    def machines_page(self, query: MachineQuery) -> list[Machine]:
        with self._reading() as reader:
            return list(_machines_of(reader, lists.machines(reader, query)).values())

    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]:
        with self._reading() as reader:
            return [reader.rows.maintenance.thing(row) for row in lists.maintenances(reader, query)]

    def orders_page(self, query: OrderQuery) -> list[Order]:
        with self._reading() as reader:
            return [reader.rows.order.thing(row) for row in lists.orders(reader, query)]

    def events(self, query: EventQuery) -> Page:
        with self._reading() as reader:
            numbers = lists.event_numbers(reader, query)
            shown = numbers[: query.limit]
            found = {row["id"]: row for row in reader.ask("events_by_number", numbers=reader.listed(shown))}
            approvals = reader.ask("approvals_of_events", ids=reader.listed(found))
            events = tuple(_with_approvals(reader, found, approvals).values())
            return Page(events, shown[-1] if len(numbers) > query.limit else None)

    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        with self._reading() as reader:
            return [reader.rows.audit.thing(row) for row in lists.audit(reader, query)]

    def maintenance(self, maintenance_id: str) -> Maintenance | None:
        with self._reading() as reader:
            found = list(reader.ask("maintenances_by_id", ids=reader.listed([maintenance_id])))
            return reader.rows.maintenance.thing(found[0]) if found else None

    def prune(self, before: datetime, limit: int) -> int:
        with self._writing() as writer:
            moment, forgotten = writer.rows.time(before), 0
            old = [row["id"] for row in writer.ask("old_maintenances", before=moment, limit=limit)]
            if old:
                forgotten += writer.one("forget_events", ids=writer.listed(old), limit=limit)
                forgotten += writer.one("forget_maintenances", ids=writer.listed(old))
            return forgotten + writer.one("forget_audit", before=moment, limit=limit)

    # -- who may use the operator side, and what they were answered

    def tokens(self) -> list[Token]:
        with self._reading() as reader:
            return [reader.rows.token.thing(row) for row in reader.ask("tokens_all")]

    def receipt(self, token_id: str, key: str) -> Receipt | None:
        with self._reading() as reader:
            found = list(reader.ask("receipt", token_id=token_id, key=key))
            return reader.rows.receipt.thing(found[0]) if found else None

    def forget_receipts(self, before: datetime, limit: int) -> int:
        with self._writing() as writer:
            return writer.one("forget_receipts", before=writer.rows.time(before), limit=limit)


# -- reading


def _scopes(reader: SqlSession, found: Iterable[Row]) -> dict[str, Scope]:
    return {row["name"]: reader.rows.scope.thing(row) for row in found}


def _machines(reader: SqlSession, focus: Focus) -> dict[tuple[str, str], Machine]:
    found: list[Row] = []
    if focus.inventory:
        found += reader.ask("machines_of_scopes", names=reader.listed(focus.scopes))
    if focus.machines:
        found += reader.ask("machines_by_key", keys=reader.paired(focus.machines))
    if focus.hosts:
        found += reader.ask("machines_on_hosts", hosts=reader.listed(focus.hosts))
    if focus.identities:
        found += reader.ask("machines_by_identity", keys=reader.paired(focus.identities))
    if focus.instance_ids:
        found += reader.ask("machines_by_instance_id", ids=reader.listed(focus.instance_ids))
    return _machines_of(reader, list({(row["scope"], row["name"]): row for row in found}.values()))


def _machines_of(reader: SqlSession, found: list[Row]) -> dict[tuple[str, str], Machine]:
    if not found:
        return {}
    keys = reader.paired((row["scope"], row["name"]) for row in found)
    return _with_addresses(reader, found, reader.ask("addresses_by_key", keys=keys))


def _with_addresses(
    reader: SqlSession, machines: Iterable[Any], addresses: Iterable[Any]
) -> dict[tuple[str, str], Machine]:
    known: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in addresses:
        known[row["scope"], row["name"]].append(row["address"])
    return {
        (row["scope"], row["name"]): reader.rows.machine.thing(
            row, addresses=tuple(filter(None, known.get((row["scope"], row["name"]), ())))
        )
        for row in machines
    }


def _events(reader: SqlSession, focus: Focus, names: set[str]) -> tuple[dict[str, Row], list[str], Iterable[Row]]:
    """The events by id, the maintenances they belong to, and every scope concerned."""
    named = list(reader.ask("events_by_id", ids=reader.listed(focus.events))) if focus.events else []
    names = names | {*focus.scopes, *(scope for scope, _ in focus.machines), *(row["scope"] for row in named)}
    if focus.maintenances:
        names |= {row["scope"] for row in reader.ask("scopes_of_maintenances", ids=reader.listed(focus.maintenances))}
    listed = reader.listed(sorted(names))
    scopes = reader.ask("scopes_by_name", names=listed)
    found = [*reader.ask("events_open_in_scopes", names=listed), *named]
    maintenance_ids = list(dict.fromkeys([*(row["maintenance_id"] for row in found), *focus.maintenances]))
    if focus.whole:
        found += reader.ask("events_else_of_maintenances", ids=reader.listed(maintenance_ids), names=listed)
    return {row["id"]: row for row in found}, maintenance_ids, scopes


def _with_approvals(reader: SqlSession, found: Mapping[str, Row], approved: Iterable[Row]) -> dict[str, Event]:
    approvals: dict[str, list[Approval]] = defaultdict(list)
    for row in approved:
        approvals[row["event_id"]].append(reader.rows.approval.thing(row))
    return {
        event_id: reader.rows.event.thing(row, approvals=tuple(approvals.get(event_id, ())))
        for event_id, row in found.items()
    }


# -- writing


def ask_versions(writer: SqlSession, change: Change) -> Iterable[Row]:
    return writer.ask("versions", names=writer.listed(name for name, _ in change.expect)) if change.expect else ()


def check_versions(change: Change, found: Iterable[Row]) -> None:
    known = {row["name"]: row["version"] for row in found}
    for name, version in change.expect:
        if known.get(name, 0) != version:
            raise Conflict(f"scope {name} was changed by somebody else")


def _write_inventory(writer: SqlSession, change: Change) -> None:
    writer.many("remove_machine", ({"scope": scope, "name": name} for scope, name in change.removed_machines))
    new = {name for name, version in change.expect if version == 0}
    added = [writer.rows.scope.values(s) for s in change.scopes if s.name in new]
    writer.many("add_scope", added, otherwise=Conflict("a scope that was to be made is there already"))
    writer.many("put_scope", (writer.rows.scope.values(s) for s in change.scopes if s.name not in new))
    keys: list[Values] = [{"scope": m.scope, "name": m.name} for m in change.machines]
    writer.many("clear_addresses", keys)
    writer.many("clear_instance_id", keys)
    writer.many("put_machine", (writer.rows.machine.values(m) for m in change.machines))
    writer.many(
        "put_address",
        (
            {"interface": interface, "address": address, "scope": m.scope, "name": m.name}
            for m in change.machines
            for interface, address in m.identities
        ),
    )
    writer.many("remove_scope", ({"name": name} for name in change.removed_scopes))


def _write_maintenances(writer: SqlSession, change: Change) -> None:
    inorder = sorted(change.maintenances, key=attrgetter("id"))
    added = [writer.rows.maintenance.values(m) for m in inorder if not m.version]
    writer.many("add_maintenance", added, otherwise=Conflict("a maintenance that was to be made is there already"))
    updated = [writer.rows.maintenance.values(m) for m in inorder if m.version]
    writer.many("update_maintenance", updated, otherwise=Conflict("a maintenance was changed by somebody else"))


def _write_tokens(writer: SqlSession, change: Change) -> None:
    writer.many("remove_token", ({"id": token_id} for token_id in change.removed_tokens))
    tokens = [writer.rows.token.values(t) for t in change.tokens]
    writer.many("add_token", tokens, otherwise=Conflict("a token with this id or secret exists already"))
    receipts = [writer.rows.receipt.values(r) for r in change.receipts]
    writer.many("add_receipt", receipts, otherwise=Conflict("a request with this key was answered already"))


def _used_event_id() -> InvariantBroken:
    return InvariantBroken("invariant 3: an event id is used by another maintenance; nothing was saved")


def _write_hold(writer: SqlSession, change: Change) -> None:
    if change.hold is not None:
        writer.one("hold_clock", **writer.rows.hold.values(change.hold))
    if change.releases_hold is not None:
        looked_at = writer.rows.hold.values(change.releases_hold)
        released = {"at": writer.rows.time(change.at), "trusted": looked_at["trusted"], "noticed": looked_at["noticed"]}
        writer.many(
            "release_clock", [released], otherwise=Conflict("the clock is held for another jump than was looked at")
        )
        writer.one("wake_everything", at=writer.rows.time(change.at))
