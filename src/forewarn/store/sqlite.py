"""The embedded store: one SQLite file, WAL, synchronous=FULL. What was acknowledged survives kill -9 and power loss.

One connection writes, in short immediate transactions, under a lock; whoever reads has a connection to itself for the
while and is never blocked by a write.
"""

import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from forewarn.core.errors import Conflict, InvariantBroken
from forewarn.core.model import (
    Approval,
    AuditEntry,
    Change,
    Event,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Receipt,
    Scope,
    Snapshot,
    Token,
)
from forewarn.store import (
    AuditQuery,
    Counts,
    EventQuery,
    Focus,
    Inventory,
    Known,
    MachineQuery,
    MaintenanceQuery,
    OrderQuery,
    Page,
    ScopeQuery,
    Seen,
    Sighting,
    rows,
    sqlite_lists,
)
from forewarn.store.sqlite_file import connect, create, guarded, hold, require_current, schema_version
from forewarn.store.sqlite_session import Session, as_json


class SqliteStore:
    """Opens a database of the right version, or makes a new one where there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._idle_readers: list[sqlite3.Connection] = []
        self._hold: int | None = None
        with guarded(path):
            self._writer = connect(path)
            try:
                if schema_version(self._writer, path) == 0:
                    create(self._writer)
                require_current(self._writer, path)
            except BaseException:
                self._writer.close()
                raise

    # -- consistent reads

    def snapshot(self, focus: Focus) -> Snapshot:
        with self._reading() as reader:
            machines = _machines(reader, focus)
            events, maintenance_ids, names = _events(reader, focus, {scope for scope, _ in machines})
            orders = () if focus.shown else reader.ask("orders_of_events", ids=as_json(events))
            scopes = reader.ask("scopes_by_name", names=as_json(sorted(names)))
            maintenances = () if focus.shown else reader.ask("maintenances_by_id", ids=as_json(maintenance_ids))
            return Snapshot(
                scopes={row["name"]: rows.SCOPE.thing(row) for row in scopes},
                machines=machines,
                maintenances={row["id"]: rows.MAINTENANCE.thing(row) for row in maintenances},
                events=events,
                orders={row["id"]: rows.ORDER.thing(row) for row in orders},
            )

    def inventory(self) -> Inventory:
        with self._reading() as reader:
            scopes = _scopes(reader)
            machines = _with_addresses(reader.ask("machines_all"), reader.ask("addresses_all"))
            return Inventory(scopes, machines)

    def scopes(self) -> dict[str, Scope]:
        with self._reading() as reader:
            return _scopes(reader)

    def known(self) -> Iterator[Known]:
        with self._reading() as reader:
            for _, group in groupby(reader.ask("machines_known"), key=lambda row: (row["scope"], row["name"])):
                found = list(group)
                identities = tuple((row["interface"], row["address"]) for row in found if row["address"] is not None)
                scope, name, update_domain, fault_domain, instance_id, _, _ = found[0]
                yield Known(scope, name, update_domain, fault_domain, instance_id, identities)

    # -- atomic writes

    def apply(self, change: Change) -> None:
        with self._writing() as writer:
            _check_versions(writer, change)
            _write_inventory(writer, change)
            _write_maintenances(writer, change)
            written = writer.many("put_event", (rows.EVENT.values(e) for e in change.events))
            if written != len(change.events):
                raise InvariantBroken("invariant 3: an event id is used by another maintenance; nothing was saved")
            writer.many("add_approval", (rows.APPROVAL.values(a) for a in change.approvals))
            writer.many("put_order", (rows.ORDER.values(o) for o in change.orders))
            writer.many("wake_maintenance", ({"id": i, "at": rows.time_text(change.at)} for i in change.wakes))
            writer.many("add_audit", (rows.AUDIT.values(entry) for entry in change.audit))
            _write_tokens(writer, change)

    # -- hints

    def due(self, now: datetime, limit: int) -> list[str]:
        with self._reading() as reader:
            return [row["id"] for row in reader.ask("due", now=rows.time_text(now), limit=limit)]

    def next_wakeup(self) -> datetime | None:
        with self._reading() as reader:
            found = list(reader.ask("next_wakeup"))
            return datetime.fromisoformat(found[0]["wake_at"]) if found else None

    def orders(self, states: Collection[OrderState], limit: int) -> list[Order]:
        with self._reading() as reader:
            found = [row for state in states for row in reader.ask("orders_in_state", state=state, limit=limit)]
            found.sort(key=lambda row: (row["issued"], row["id"]))
            return [rows.ORDER.thing(row) for row in found[:limit]]

    # -- loose

    def record_seen(self, seen: Collection[Seen]) -> None:
        with self._writing() as writer:
            writer.many("record_seen", ({"scope": s.scope, "name": s.name, "at": rows.time_text(s.at)} for s in seen))

    def seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        with self._reading() as reader:
            found = reader.ask("last_seen_by_key", keys=as_json(machines))
            return {(row["scope"], row["name"]): datetime.fromisoformat(row["at"]) for row in found}

    def record_sightings(self, sightings: Collection[Sighting]) -> None:
        with self._writing() as writer:
            writer.many(
                "record_sighting",
                ({"event_id": s.event_id, "machine": s.machine, "at": rows.time_text(s.at)} for s in sightings),
            )

    def first_seen(self, event_id: str) -> dict[str, datetime]:
        with self._reading() as reader:
            found = reader.ask("sightings_of_event", event_id=event_id)
            return {row["machine"]: datetime.fromisoformat(row["at"]) for row in found}

    # -- lists and history

    def counts(self, within: tuple[str, ...] | None) -> Counts:
        with self._reading() as reader:
            return sqlite_lists.counts(reader, within)

    def machines_named(self, name: str) -> list[Machine]:
        with self._reading() as reader:
            return list(_machines_of(reader, list(reader.ask("machines_named", name=name))).values())

    def scopes_page(self, query: ScopeQuery) -> list[Scope]:
        with self._reading() as reader:
            return [rows.SCOPE.thing(row) for row in sqlite_lists.scopes(reader, query)]

    def machines_page(self, query: MachineQuery) -> list[Machine]:
        with self._reading() as reader:
            return list(_machines_of(reader, sqlite_lists.machines(reader, query)).values())

    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]:
        with self._reading() as reader:
            return [rows.MAINTENANCE.thing(row) for row in sqlite_lists.maintenances(reader, query)]

    def orders_page(self, query: OrderQuery) -> list[Order]:
        with self._reading() as reader:
            return [rows.ORDER.thing(row) for row in sqlite_lists.orders(reader, query)]

    def events(self, query: EventQuery) -> Page:
        with self._reading() as reader:
            numbers = sqlite_lists.event_numbers(reader, query)
            shown = numbers[: query.limit]
            found = reader.ask("events_by_number", numbers=as_json(shown))
            return Page(
                tuple(_with_approvals(reader, found).values()), shown[-1] if len(numbers) > query.limit else None
            )

    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        with self._reading() as reader:
            return [rows.AUDIT.thing(row) for row in sqlite_lists.audit(reader, query)]

    def maintenance(self, maintenance_id: str) -> Maintenance | None:
        with self._reading() as reader:
            found = list(reader.ask("maintenances_by_id", ids=as_json([maintenance_id])))
            return rows.MAINTENANCE.thing(found[0]) if found else None

    def prune(self, before: datetime, limit: int) -> int:
        moment = rows.time_text(before)
        with self._writing() as writer:
            old = [row["id"] for row in writer.ask("old_maintenances", before=moment, limit=limit)]
            if old:
                writer.one("forget_events", ids=as_json(old))
                writer.one("forget_maintenances", ids=as_json(old))
            return len(old) + writer.one("forget_audit", before=moment, limit=limit)

    # -- who may use the operator side, and what they were answered

    def tokens(self) -> list[Token]:
        with self._reading() as reader:
            return [rows.TOKEN.thing(row) for row in reader.ask("tokens_all")]

    def receipt(self, token_id: str, key: str) -> Receipt | None:
        with self._reading() as reader:
            found = list(reader.ask("receipt", token_id=token_id, key=key))
            return rows.RECEIPT.thing(found[0]) if found else None

    def forget_receipts(self, before: datetime, limit: int) -> int:
        with self._writing() as writer:
            return writer.one("forget_receipts", before=rows.time_text(before), limit=limit)

    # -- housekeeping

    def hold(self) -> None:
        if self._hold is None:
            self._hold = hold(self.path)

    def close(self) -> None:
        with self._write_lock:
            for connection in (*self._readers, self._writer):
                connection.close()
            if self._hold is not None:
                os.close(self._hold)
                self._hold = None

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        """One consistent moment: everything read inside comes from it."""
        with guarded(self.path):
            connection = self._reader()
            try:
                connection.execute("BEGIN")
                try:
                    yield Session(connection)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            finally:
                self._idle_readers.append(connection)

    def _reader(self) -> sqlite3.Connection:
        """As many connections as there are readers at once, whatever threads come and go."""
        try:
            return self._idle_readers.pop()
        except IndexError:
            connection = connect(self.path)
            self._readers.append(connection)
            return connection

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with self._write_lock, guarded(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield Session(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


# -- reading


def _scopes(reader: Session) -> dict[str, Scope]:
    return {row["name"]: rows.SCOPE.thing(row) for row in reader.ask("scopes_all")}


def _machines(reader: Session, focus: Focus) -> dict[tuple[str, str], Machine]:
    found: list[sqlite3.Row] = []
    if focus.inventory:
        found += reader.ask("machines_of_scopes", names=as_json(focus.scopes))
    if focus.machines:
        found += reader.ask("machines_by_key", keys=as_json(focus.machines))
    if focus.hosts:
        found += reader.ask("machines_on_hosts", hosts=as_json(focus.hosts))
    return _machines_of(reader, found)


def _machines_of(reader: Session, found: list[sqlite3.Row]) -> dict[tuple[str, str], Machine]:
    if not found:
        return {}
    keys = as_json((row["scope"], row["name"]) for row in found)
    return _with_addresses(found, reader.ask("addresses_by_key", keys=keys))


def _with_addresses(machines: Iterable[Any], addresses: Iterable[Any]) -> dict[tuple[str, str], Machine]:
    known: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in addresses:
        known[row["scope"], row["name"]].append(row["address"])
    return {
        (row["scope"], row["name"]): rows.MACHINE.thing(
            row, addresses=tuple(filter(None, known.get((row["scope"], row["name"]), ())))
        )
        for row in machines
    }


def _events(reader: Session, focus: Focus, names: set[str]) -> tuple[dict[str, Event], list[str], set[str]]:
    """The events, the maintenances they belong to, and every scope concerned."""
    named = list(reader.ask("events_by_id", ids=as_json(focus.events))) if focus.events else []
    names = names | {*focus.scopes, *(scope for scope, _ in focus.machines), *(row["scope"] for row in named)}
    if focus.maintenances:
        names |= {row["scope"] for row in reader.ask("scopes_of_maintenances", ids=as_json(focus.maintenances))}
    scopes = as_json(sorted(names))
    found = [*reader.ask("events_open_in_scopes", names=scopes), *named]
    maintenance_ids = list(dict.fromkeys([*(row["maintenance_id"] for row in found), *focus.maintenances]))
    if focus.whole:
        found += reader.ask("events_else_of_maintenances", ids=as_json(maintenance_ids), names=scopes)
    if focus.shown:
        return {row["id"]: rows.EVENT.thing(row) for row in found}, maintenance_ids, names
    return _with_approvals(reader, found), maintenance_ids, names


def _with_approvals(reader: Session, found: Iterable[Any]) -> dict[str, Event]:
    by_id = {row["id"]: row for row in found}
    approvals: dict[str, list[Approval]] = defaultdict(list)
    for row in reader.ask("approvals_of_events", ids=as_json(by_id)):
        approvals[row["event_id"]].append(rows.APPROVAL.thing(row))
    return {
        event_id: rows.EVENT.thing(row, approvals=tuple(approvals.get(event_id, ()))) for event_id, row in by_id.items()
    }


# -- writing


def _check_versions(writer: Session, change: Change) -> None:
    known = {row["name"]: row["version"] for row in writer.ask("versions", names=as_json(n for n, _ in change.expect))}
    for name, version in change.expect:
        if known.get(name, 0) != version:
            raise Conflict(f"scope {name} was changed by somebody else")


def _write_inventory(writer: Session, change: Change) -> None:
    writer.many("remove_machine", ({"scope": scope, "name": name} for scope, name in change.removed_machines))
    writer.many("put_scope", (rows.SCOPE.values(s) for s in change.scopes))
    keys: list[rows.Values] = [{"scope": m.scope, "name": m.name} for m in change.machines]
    writer.many("clear_addresses", keys)
    writer.many("clear_instance_id", keys)
    writer.many("put_machine", (rows.MACHINE.values(m) for m in change.machines))
    writer.many(
        "put_address",
        (
            {"interface": interface, "address": address, "scope": m.scope, "name": m.name}
            for m in change.machines
            for interface, address in m.identities
        ),
    )
    writer.many("remove_scope", ({"name": name} for name in change.removed_scopes))


def _write_maintenances(writer: Session, change: Change) -> None:
    for maintenance in change.maintenances:
        name = "update_maintenance" if maintenance.version else "add_maintenance"
        if writer.one(name, **rows.MAINTENANCE.values(maintenance)) != 1:
            raise Conflict(f"maintenance {maintenance.id} was changed by somebody else")


def _write_tokens(writer: Session, change: Change) -> None:
    writer.many("remove_token", ({"id": token_id} for token_id in change.removed_tokens))
    if writer.many("add_token", (rows.TOKEN.values(t) for t in change.tokens)) != len(change.tokens):
        raise Conflict("a token with this id or secret exists already")
    if writer.many("add_receipt", (rows.RECEIPT.values(r) for r in change.receipts)) != len(change.receipts):
        raise Conflict("a request with this key was answered already")
