"""The shared store: one PostgreSQL database for any number of nodes. Its clock counts for all of them.

Reads are repeatable-read transactions. A change locks the scopes it relied on in the order of their names, checks their
versions, writes, and records in the same transaction what other nodes must read again. It also checks that the server is the
one the nodes agreed on: after a failover, which may have lost commits, every scope first begins a new epoch.
Statements are pipelined: a change waits for the server twice, and once more if its connection was idle for a while.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

import psycopg
from psycopg import Pipeline
from psycopg.rows import tuple_row

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, ForewarnError, StoreUnavailable
from forewarn.core.model import AuditEntry, HoldCause, Machine, StoreHold
from forewarn.store import Connections, Focus
from forewarn.store.postgres.combining import read_combined, send_combined
from forewarn.store.postgres.dsn import READ, WRITE, Dsn, TimeLimits
from forewarn.store.postgres.feed import PostgresFeed
from forewarn.store.postgres.pool import FLEET_WITHIN_S, MAX_CONNECTIONS, Connection, Cursor, Pool
from forewarn.store.postgres.schema import COMMIT_LOCK, require_schema, require_version
from forewarn.store.sql.rows import NATIVE_ROWS, Codec, Row, Values
from forewarn.store.sql.scripts import queries
from forewarn.store.sql.session import SqlSession
from forewarn.store.sql.store import SqlStore
from forewarn.store.sql.writing import write_store_hold
from forewarn.store.texts import array_text, time_text, without_nul

SQL = {name: query.encode() for name, query in queries("postgres").items()}
BATCH = 1_000
# How many statements are sent before their answers are read: together they have the time limit of one.
STATEMENTS_AT_ONCE = 250
WALKED_AT_ONCE = 5_000
# A change of more machines and scopes than this makes other nodes read everything.
MAX_NAMED = 10_000
CHANGES_KEPT_S = 3_600
# Notice counts from the time of the decision. Nodes only estimate the database's time, so the database itself checks right
# before the commit how long ago that was. The limit grows with the number of events to write, up to two minutes.
DECIDED_WITHIN_S = 2.0
SECONDS_PER_EVENT = 0.002
MAX_SECONDS_OF_EVENTS = 118.0
# Restores of one dump begin different epochs: each counts the minutes since this date.
DUMPS_SINCE = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T")

log = logging.getLogger("forewarn.store")


class _PendingRows:
    """The rows of a query that was sent; iterating waits for them."""

    def __init__(self, cursor: Cursor, wait: Callable[[], None]) -> None:
        self._cursor = cursor
        self._wait = wait
        self._rows: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._rows is None:
            self._wait()
            self._rows = self._cursor.fetchall()
        return iter(self._rows)


class _CombinedRows:
    """The rows of a query that is sent, with others, when the rows of one of them are read."""

    def __init__(self, name: str, values: Values, send: Callable[[], None]) -> None:
        self.name, self.values = name, values
        self.rows: list[Any] | None = None
        self._send = send

    def __iter__(self) -> Iterator[Any]:
        if self.rows is None:
            self._send()
        return iter(self.rows or ())


class PostgresSession:
    """An open transaction that runs named queries on one connection, each with a time limit."""

    rows = NATIVE_ROWS

    def __init__(
        self,
        pool: Pool,
        connection: Connection,
        pipeline: Pipeline | None = None,
        *,
        within_s: float | None = None,
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._pipeline = pipeline
        self._within_s = within_s
        self._unanswered = False
        # Sent statements, the number of rows each must change, and the error to raise if it did not.
        self._unchecked: list[tuple[Cursor, int, ForewarnError]] = []
        self._checks: list[Callable[[], None]] = []

    def query(self, name: str, /, **values: object) -> Iterable[Row]:
        self._touch()
        return _PendingRows(self._connection.execute(SQL[name], _escaped(values)), self._wait)

    def stream(self, name: str, /, **values: object) -> Iterable[Any]:
        with self._connection.cursor(name, row_factory=tuple_row) as cursor:
            self._touch()
            cursor.execute(SQL[name], _escaped(values))
            while rows := cursor.fetchmany(WALKED_AT_ONCE):
                yield from rows
                self._touch()

    def execute(self, name: str, /, **values: object) -> int:
        self._touch()
        cursor = self._connection.execute(SQL[name], _escaped(values))
        self._wait()
        return cursor.rowcount

    def execute_many(
        self, name: str, values: Iterable[Values], /, error_if_unchanged: ForewarnError | None = None
    ) -> None:
        """Send in batches and wait for each full batch, so that the time limit applies to a batch and not to a fleet."""
        remaining = iter(values)
        query = SQL[name]
        while batch := list(islice(remaining, STATEMENTS_AT_ONCE)):
            self._touch()
            cursor = self._connection.cursor()
            if len(batch) == 1:
                cursor.execute(query, batch[0])
            else:
                cursor.executemany(query, batch)
            if error_if_unchanged is not None:
                self._unchecked.append((cursor, len(batch), error_if_unchanged))
            if len(batch) == STATEMENTS_AT_ONCE:
                self._wait()
                self.check_row_counts()

    def save(
        self, name: str, codec: Codec[T], instances: Iterable[T], /, error_if_unchanged: ForewarnError | None = None
    ) -> None:
        self.execute_many(name, map(codec.encode, instances), error_if_unchanged)

    def check_later(self, check: Callable[[], None]) -> None:
        """Call `check` when the statements sent so far are answered anyway. Row of the bench: one event per commit."""
        self._checks.append(check)

    def check_row_counts(self) -> None:
        if not self._unchecked and not self._checks:
            return
        self._wait()
        while self._checks:
            self._checks.pop(0)()
        for cursor, count, error_if_unchanged in self._unchecked:
            if cursor.rowcount != count:
                raise error_if_unchanged
        self._unchecked.clear()

    def raise_failed_check(self) -> None:
        """Raise the error of a check that fails, after a statement that failed: its reason is the failed check."""
        with suppress(psycopg.Error):
            self._wait()
        self._unanswered = False
        with suppress(psycopg.Error):  # its rows may never have arrived
            while self._checks:
                self._checks.pop(0)()
        for cursor, count, error_if_unchanged in self._unchecked:
            if count == 1 and cursor.rowcount == 0:  # of several statements some may not have been executed
                raise error_if_unchanged

    def _touch(self) -> None:
        """Restart the time limit; called before every statement."""
        self._pool.touch(self._connection, self._within_s)
        self._unanswered = True

    def _wait(self) -> None:
        """Wait until every sent statement is answered."""
        if self._pipeline is not None and self._unanswered:
            self._pool.touch(self._connection, self._within_s)
            self._pipeline.sync()
            self._unanswered = False

    def as_list(self, values: Iterable[object], /) -> str:
        return array_text(values)  # `query` and `execute` escape it

    def as_pairs(self, keys: Iterable[tuple[str, str]], /) -> str:
        return json.dumps([[without_nul(scope), without_nul(name)] for scope, name in keys])


class CombiningSession(PostgresSession):
    """A read transaction that sends its queries as late as possible, those that wait by then in one statement."""

    def __init__(self, pool: Pool, connection: Connection, pipeline: Pipeline) -> None:
        super().__init__(pool, connection, pipeline)
        self._unsent: list[_CombinedRows] = []
        if not pool.dsn.pooled:
            # Its queries find rows by key: planning them anew for the values takes longer than executing them.
            connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")

    def query(self, name: str, /, **values: object) -> Iterable[Row]:
        rows = _CombinedRows(name, _escaped(values), self._send)
        self._unsent.append(rows)
        return rows

    def _send(self) -> None:
        queries, self._unsent = self._unsent, []
        self._touch()
        cursor = send_combined(self._connection, [(each.name, each.values) for each in queries])
        self._wait()
        for each, rows in zip(queries, read_combined(cursor, len(queries)), strict=True):
            each.rows = rows


def _escaped(values: Values) -> Values:
    return {name: without_nul(each) if isinstance(each, str) else each for name, each in values.items()}


class PostgresStore(SqlStore):
    """Open a database of the current schema, or create the schema in an empty one.

    If `address` leads to a pooler, `direct` is the address of the server itself, for the feed and the schema. Events decided on
    more than `decided_within_s` ago are refused; tests with another clock than the database's raise that limit.
    """

    _servers_change = True

    def __init__(
        self,
        address: str,
        *,
        direct: str = "",
        size: int = MAX_CONNECTIONS,
        decided_within_s: float = DECIDED_WITHIN_S,
        limits: TimeLimits | None = None,
    ) -> None:
        self._decided_within_s = decided_within_s
        self.dsn = Dsn(address, pooled=bool(direct), limits=limits)
        self._direct = Dsn(direct, limits=limits) if direct else self.dsn
        require_schema(self._direct)
        self._pool = Pool(self.dsn, size)
        # The latest timeline of each database that the nodes agreed on, as far as this node knows.
        self._agreed: dict[str, int] = {}
        # The feed sets it: it needs no notification of what this node saves.
        self.notifies_as = ""

    def feed(self) -> PostgresFeed:
        return PostgresFeed(self._direct, self._pool, self)

    def connections(self) -> Connections:
        return self._pool.connections()

    def claim(self) -> None:
        """Do nothing: several processes share this store."""

    def close(self) -> None:
        self._pool.close()

    # -- transactions

    @contextmanager
    def _reading(self) -> Iterator[PostgresSession]:
        with self._pool.pipeline(READ) as (connection, pipeline):
            yield PostgresSession(self._pool, connection, pipeline)

    @contextmanager
    def _reading_snapshot(self, focus: Focus) -> Iterator[PostgresSession]:
        # Many rows take longer as JSON, and a plan for any values may be wrong for many names.
        many = focus.inventory or focus.hosts or focus.whole_maintenances or focus.document_only
        session = PostgresSession if many and not focus.current_waves else CombiningSession
        with self._pool.pipeline(READ) as (connection, pipeline):
            yield session(self._pool, connection, pipeline)

    @contextmanager
    def _reading_fleet(self) -> Iterator[PostgresSession]:
        with self._pool.transaction(READ, FLEET_WITHIN_S) as connection:
            yield PostgresSession(self._pool, connection, within_s=FLEET_WITHIN_S)

    @contextmanager
    def _writing(self) -> Iterator[PostgresSession]:
        with self._pool.pipeline(WRITE) as (connection, pipeline):
            writer = PostgresSession(self._pool, connection, pipeline)
            try:
                yield writer
                writer.check_row_counts()
            except psycopg.Error:
                writer.raise_failed_check()
                raise

    # -- several nodes

    def apply(self, change: Change) -> None:
        try:
            super().apply(change)
        except _AnotherServer:
            self.adopt()
            raise Conflict("the database has failed over: decide again on what it holds now") from None

    def snapshot(self, focus: Focus) -> Snapshot:
        try:
            return super().snapshot(focus)
        except _AnotherServer:
            self.adopt()
        try:
            return super().snapshot(focus)
        except _AnotherServer:
            raise StoreUnavailable(
                f"{self.dsn.shown}: it leads to one server and then to another: it is failing over, or two can be written"
            ) from None

    def _recognise(self, server: Iterable[Row]) -> None:
        if not self.recognise(next(iter(server))):
            raise _AnotherServer

    def _lock_maintenances(self, writer: SqlSession, change: Change) -> None:
        """Lock in one statement what two would lock: the maintenances to write, and those to wake."""
        if change.maintenances and (change.wakes or change.frees_budget):
            ids = writer.as_list({*change.wakes, *(maintenance.id for maintenance in change.maintenances)})
            writer.query("lock_maintenances", ids=ids, waiting_for_budget=change.frees_budget)

    def _announce(self, writer: SqlSession, change: Change) -> None:
        versions = {scope.name: scope.version + 1 for scope in change.scopes} | dict.fromkeys(change.removed_scopes, 0)
        machines = [*change.removed_machines, *(machine.key for machine in change.machines)]
        everything = len(versions) + len(machines) > MAX_NAMED
        # Check now: the next statement takes the commit lock, and is sent with the commit so that other nodes wait briefly.
        writer.check_row_counts()
        writer.query(
            "add_change",
            lock=COMMIT_LOCK,
            node=self.notifies_as,
            until=self._not_later_than(change),
            everything=everything,
            scopes=json.dumps({} if everything else versions),
            machines=json.dumps([] if everything else machines),
            audit=_audit_text(writer, change.audit[:BATCH]),
        )

    def _write_machines(self, writer: SqlSession, machines: Sequence[Machine]) -> None:
        """Send many machines with each statement. Row of the bench: seconds to apply a fleet file."""
        codec = writer.rows.machine
        encode = codec.row_encoder(codec.columns)
        # `execute` waits: the time limit applies to a batch and not to a fleet.
        send = writer.execute if len(machines) > BATCH else writer.query
        for start in range(0, len(machines), BATCH):
            batch = machines[start : start + BATCH]
            send("put_machines", **_lists(codec.columns, map(encode, batch)))
            addresses = [(*identity, each.scope, each.name) for each in batch for identity in each.identities]
            if addresses:
                send("put_addresses", **_lists(("interface", "address", "scope", "name"), addresses))

    def _add_audit(self, writer: SqlSession, entries: Sequence[AuditEntry]) -> None:
        """Add the entries that `_announce` did not add with the change, a batch in each statement. A trigger chains them."""
        rest = range(BATCH, len(entries), BATCH)
        writer.execute_many("add_audit", ({"audit": _audit_text(writer, entries[i : i + BATCH])} for i in rest))

    def _not_later_than(self, change: Change) -> datetime | None:
        """Return the latest time to commit, or None for a change without events, which may be of any age."""
        if not change.events:
            return None
        more_s = min(SECONDS_PER_EVENT * len(change.events), MAX_SECONDS_OF_EVENTS)
        return change.at + timedelta(seconds=self._decided_within_s + more_s)

    def recognise(self, server: Any) -> bool:
        """Return whether the server is the one the nodes agreed on. Raise StoreUnavailable if it must not be used at all."""
        try:
            require_version(server["schema"], self.dsn)
            agreed = self._agreed.get(server["identity"], 0)
            if server["timeline"] < agreed:
                raise StoreUnavailable(
                    f"{self.dsn.shown}: this server was replaced by another (its timeline is {server['timeline']}, the nodes"
                    f" agreed on {agreed}): fence it, or make it a standby of the one that took over"
                )
        except StoreUnavailable as error:
            self._pool.leave(str(error))
            raise
        if server["same"]:
            if self._agreed and server["timeline"] > agreed:
                self._pool.close_idle()  # they may be connected to the replaced server
            self._agreed[server["identity"]] = server["timeline"]
        return bool(server["same"])

    def adopt(self) -> bool:
        """Agree, for all nodes, on the server found after a failover; return False if they had already agreed.

        Guests may have seen commits that this server never had. A synchronous standby does not rule that out: it may have been
        removed just before, and a commit whose client is gone becomes visible unconfirmed. So every scope begins a new epoch.
        """
        with self._pool.transaction(WRITE, FLEET_WITHIN_S) as connection:
            writer = PostgresSession(self._pool, connection, within_s=FLEET_WITHIN_S)
            (agreed,) = writer.query("lock_cluster")
            (found,) = writer.query("server")
            if self.recognise(found):
                return False
            now: datetime = agreed["now"]
            if agreed["identity"] == found["identity"]:
                # An earlier agreement may be among the lost commits: each further timeline is a further step.
                steps = max(1, found["timeline"] - agreed["timeline"])
                change = Change(at=now)
                what, message, detail = "database failed over", "the database has failed over", "commits may be lost"
            else:
                steps = _steps_after_restore(now)
                change = _hold_of_restored(now)
                what, message = "database restored", "the database was restored"
                detail = "it is not the database that its nodes used before"
            epochs = self._begin_epochs(writer, steps)
            detail = f"{detail}: {epochs} scope(s) begin a new epoch"
            writer.execute("adopt_cluster")
            entry = AuditEntry(at=now, who="service", action=what, detail=detail)
            self._save_anew(writer, replace(change, audit=(entry, *change.audit)))
        log.warning("%s: %s", message, detail)
        if change.store_hold is not None:
            log.error("the store is held: see what would happen, then run `forewarn db resume`")
        return True

    def begin_anew(self, change: Change) -> None:
        with self._pool.transaction(WRITE, FLEET_WITHIN_S) as connection:
            writer = PostgresSession(self._pool, connection, within_s=FLEET_WITHIN_S)
            writer.execute("lock_cluster")
            self._begin_epochs(writer, _steps_after_restore(change.at))
            self._save_anew(writer, change)

    def _begin_epochs(self, writer: PostgresSession, steps: int) -> int:
        """Begin new epochs and skip the numbers of lost commits; return the number of scopes."""
        writer.execute("lock_scopes")
        epochs = writer.execute("begin_epochs", steps=steps)
        writer.execute("end_all_sessions")  # a log-out may be among the lost commits
        writer.query("skip_lost_numbers", steps=steps)
        writer.execute("forget_all_changes")
        return epochs

    def _save_anew(self, writer: PostgresSession, change: Change) -> None:
        write_store_hold(writer, change)
        audit = _audit_text(writer, change.audit)
        writer.query(
            "add_change",
            lock=COMMIT_LOCK,
            node="",
            until=None,
            everything=True,
            scopes="{}",
            machines="[]",
            audit=audit,
        )

    def forget_changes(self, limit: int) -> int:
        """Delete changes that every node has long read; a node that was away for longer reads everything."""
        with self._writing() as writer:
            writer.query("lock_cluster")  # before `changes`, in the same order as `adopt`
            writer.execute("forget_leases")
            (deleted,) = writer.query("forget_changes", kept_s=CHANGES_KEPT_S, limit=limit)
            return int(deleted["forgotten"])

    # -- leases

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        """Take or renew a lease; the database's clock counts."""
        with self._writing() as writer:
            writer.query("shorten_leases", seconds=seconds)
            return writer.execute("take_lease", name=name, node=node, seconds=seconds) == 1

    def drop_lease(self, name: str, node: str) -> None:
        with self._writing() as writer:
            writer.execute("drop_lease", name=name, node=node)

    def live_nodes(self, past_s: float = 0.0, *, kind: str = "node") -> set[str]:
        with self._reading() as reader:
            return {row["node"] for row in reader.query("live_nodes", past_s=past_s, kind=kind)}

    # -- the database's time

    def now(self) -> datetime:
        with self._reading() as reader:
            return reader.rows.read_time(next(iter(reader.query("now")))["now"])  # type: ignore[no-any-return]


def _audit_text(writer: SqlSession, entries: Iterable[AuditEntry]) -> str:
    values = [writer.rows.audit.encode(entry) for entry in entries]
    return json.dumps([{**each, "at": time_text(each["at"])} for each in values])


def _lists(columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> Values:
    """Return the values of each column as a JSON list."""
    return {name: json.dumps(values) for name, values in zip(columns, zip(*rows, strict=True), strict=True)}


def _steps_after_restore(now: datetime) -> int:
    return max(1, (now - DUMPS_SINCE) // timedelta(minutes=1))


def _hold_of_restored(now: datetime) -> Change:
    """Return the hold of a database that was restored from a dump."""
    hold = StoreHold(
        cause=HoldCause.RESTORED,
        detail="this database was restored or copied: work that it shows as open may be done already",
        who="service",
        held=now,
    )
    return Change(
        at=now, store_hold=hold, audit=(AuditEntry(at=now, who="service", action="store held", detail=hold.detail),)
    )


class _AnotherServer(Exception):
    """The server is not the one the nodes agreed on."""
