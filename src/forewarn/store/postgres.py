"""The shared store: one PostgreSQL, any number of nodes. The database is the referee, and its clock is everybody's.

Reads are repeatable-read transactions. A change locks the scopes it relied on in the order of their names, checks their
versions, writes, and says in the same transaction what others must read again. It also makes sure that the server is the
one the nodes agreed on: after a failover that may have lost commits, everything begins a new epoch before anything else.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any

from psycopg.rows import tuple_row

from forewarn.core.errors import Conflict
from forewarn.core.model import AuditEntry, Change, Snapshot
from forewarn.store import Connections, Focus
from forewarn.store.postgres_news import PostgresFeed
from forewarn.store.postgres_pool import (
    FLEET_WITHIN_S,
    MAX_CONNECTIONS,
    READ,
    STATEMENT_WITHIN_S,
    WRITE,
    Connection,
    Dsn,
    Pool,
)
from forewarn.store.postgres_schema import COMMIT_LOCK, require_schema
from forewarn.store.rows import NATIVE_ROWS, Row, Values, without_nul
from forewarn.store.sql import queries
from forewarn.store.sql_store import Session, SqlStore

SQL = queries("postgres")
BATCH = 1_000
WALKED_AT_ONCE = 5_000
# A change that names more than so many machines or scopes says "everything" instead.
MAX_NAMED = 10_000
CHANGES_KEPT_S = 3_600

log = logging.getLogger("forewarn.store")


class PostgresSession:
    """A transaction under way: named queries on one connection, each with its time limit."""

    rows = NATIVE_ROWS

    def __init__(self, pool: Pool, connection: Connection, within_s: int = STATEMENT_WITHIN_S) -> None:
        self._pool = pool
        self._connection = connection
        self._within_s = within_s

    def ask(self, name: str, /, **values: object) -> Iterable[Row]:
        self._pool.touch(self._connection, self._within_s)
        return self._connection.execute(SQL[name].encode(), _sent(values)).fetchall()  # type: ignore[return-value]

    def walk(self, name: str, /) -> Iterable[Any]:
        with self._connection.cursor(name, row_factory=tuple_row) as cursor:
            self._pool.touch(self._connection, self._within_s)
            cursor.execute(SQL[name].encode())
            while found := cursor.fetchmany(WALKED_AT_ONCE):
                yield from found
                self._pool.touch(self._connection, self._within_s)

    def one(self, name: str, /, **values: object) -> int:
        self._pool.touch(self._connection, self._within_s)
        return self._connection.execute(SQL[name].encode(), values).rowcount

    def many(self, name: str, values: Iterable[Values], /) -> int:
        """In one go, or in several where there are very many, so that a time limit can be told from a large fleet."""
        todo, done = iter(values), 0
        query = SQL[name].encode()
        while batch := list(islice(todo, BATCH)):
            self._pool.touch(self._connection, self._within_s)
            if len(batch) == 1:
                done += self._connection.execute(query, batch[0]).rowcount
                continue
            with self._connection.cursor() as cursor:
                cursor.executemany(query, batch)
                done += cursor.rowcount
        return done

    def listed(self, values: Iterable[object], /) -> list[object]:
        return [without_nul(each) if isinstance(each, str) else each for each in values]

    def paired(self, keys: Iterable[tuple[str, str]], /) -> str:
        return json.dumps([[without_nul(scope), without_nul(name)] for scope, name in keys])


def _sent(values: Values) -> Values:
    return {name: without_nul(each) if isinstance(each, str) else each for name, each in values.items()}


class PostgresStore(SqlStore):
    """Opens a database of the right version, or puts the schema into an empty one.

    `direct` is an address for what needs a connection of its own, where `address` leads through a pooler.
    """

    def __init__(self, address: str, *, direct: str = "", size: int = MAX_CONNECTIONS) -> None:
        self.dsn = Dsn(address, pooled=bool(direct))
        self._direct = Dsn(direct) if direct else self.dsn
        require_schema(self._direct)
        self._pool = Pool(self.dsn, size)
        # Whether a standby confirmed every commit when we last looked: then a failover cannot have lost one.
        self.synchronous = False

    def feed(self) -> PostgresFeed:
        """What others change, as it happens."""
        return PostgresFeed(self._direct, self._pool, self)

    def connections(self) -> Connections:
        return self._pool.counted()

    def hold(self) -> None:
        """It is there for many: nobody claims it."""

    def close(self) -> None:
        self._pool.close()

    # -- the doors

    @contextmanager
    def _reading(self) -> Iterator[PostgresSession]:
        with self._pool.transaction(READ) as connection:
            yield PostgresSession(self._pool, connection)

    @contextmanager
    def _reading_fleet(self) -> Iterator[PostgresSession]:
        with self._pool.transaction(READ, FLEET_WITHIN_S) as connection:
            yield PostgresSession(self._pool, connection, FLEET_WITHIN_S)

    @contextmanager
    def _writing(self) -> Iterator[PostgresSession]:
        with self._pool.transaction(WRITE) as connection:
            yield PostgresSession(self._pool, connection)

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
            return super().snapshot(focus)

    def _recognise(self, reader: Session) -> None:
        if not _same_cluster(reader):
            raise _AnotherServer

    def _prepare(self, writer: Session, change: Change) -> None:
        self._recognise(writer)
        ids = {m.id for m in change.maintenances} | set(change.wakes)
        if ids:
            writer.ask("lock_maintenances", ids=writer.listed(sorted(ids)))

    def _announce(self, writer: Session, change: Change) -> None:
        versions = {scope.name: scope.version + 1 for scope in change.scopes} | dict.fromkeys(change.removed_scopes, 0)
        machines = [*change.removed_machines, *(machine.key for machine in change.machines)]
        everything = len(versions) + len(machines) > MAX_NAMED
        writer.ask("lock_order_of_commits", lock=COMMIT_LOCK)
        writer.one(
            "add_change",
            everything=everything,
            scopes=json.dumps({} if everything else versions),
            machines=json.dumps([] if everything else machines),
        )

    def adopt(self) -> bool:
        """Agree on the server we found after a failover, once for all nodes; whether there was anything to agree on.

        Unless a standby that had confirmed every commit was promoted, guests may have seen what this server never had: what they
        will see of it from now on belongs to another epoch.
        """
        with self._pool.transaction(WRITE, FLEET_WITHIN_S) as connection:
            writer = PostgresSession(self._pool, connection, FLEET_WITHIN_S)
            writer.ask("lock_cluster")
            (found,) = writer.ask("same_cluster")
            if found["same"]:
                return False
            detail = "a standby had confirmed every commit: nothing is lost"
            if not (self.synchronous and found["promoted"]):
                detail = f"commits may be lost: {writer.one('begin_epochs')} scope(s) begin a new epoch"
            writer.one("forget_all_changes")
            writer.one("adopt_cluster")
            now: datetime = next(iter(writer.ask("now")))["now"]
            writer.ask("lock_order_of_commits", lock=COMMIT_LOCK)
            writer.one("add_change", everything=True, scopes="{}", machines="[]")
            entry = AuditEntry(at=now, who="service", action="database failed over", detail=detail)
            writer.many("add_audit", [writer.rows.audit.values(entry)])
        log.warning("the database has failed over: %s", detail)
        return True

    def forget_changes(self, limit: int) -> int:
        """What every node has long read; a node that was away for longer reads everything."""
        with self._writing() as writer:
            writer.one("forget_leases")
            return writer.one("forget_changes", kept_s=CHANGES_KEPT_S, limit=limit)

    # -- leases

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        """Whether it is this node's for so long from now, by the database's clock."""
        with self._writing() as writer:
            return writer.one("take_lease", name=name, node=node, seconds=seconds) == 1

    def drop_lease(self, name: str, node: str) -> None:
        with self._writing() as writer:
            writer.one("drop_lease", name=name, node=node)

    def living(self, past_s: float = 0.0) -> set[str]:
        """The nodes whose lease has not ended, or not longer ago than that."""
        with self._reading() as reader:
            return {row["node"] for row in reader.ask("living", past_s=past_s)}

    # -- the database's time

    def now(self) -> datetime:
        with self._reading() as reader:
            return reader.rows.read_time(next(iter(reader.ask("now")))["now"])  # type: ignore[no-any-return]


class _AnotherServer(Exception):
    """Not the one the nodes agreed on."""


def _same_cluster(session: Session) -> bool:
    return bool(next(iter(session.ask("same_cluster")))["same"])
