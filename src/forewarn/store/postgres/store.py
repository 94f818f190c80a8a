"""The shared store: one PostgreSQL, any number of nodes. The database is the referee, and its clock is everybody's.

Reads are repeatable-read transactions. A change locks the scopes it relied on in the order of their names, checks their
versions, writes, and says in the same transaction what others must read again. It also makes sure that the server is the
one the nodes agreed on: after a failover that may have lost commits, everything begins a new epoch before anything else.
Statements that need no answer before the next travel together: a change waits for the server four times, however large.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from psycopg import Pipeline
from psycopg.rows import tuple_row

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, ForewarnError, StoreUnavailable
from forewarn.core.model import AuditEntry
from forewarn.store import Connections, Focus
from forewarn.store.postgres.dsn import READ, STATEMENT_WITHIN_S, WRITE, Dsn
from forewarn.store.postgres.feed import PostgresFeed
from forewarn.store.postgres.pool import FLEET_WITHIN_S, MAX_CONNECTIONS, Connection, Cursor, Pool
from forewarn.store.postgres.schema import COMMIT_LOCK, require_schema, require_version
from forewarn.store.sql.rows import NATIVE_ROWS, Row, Values, without_nul
from forewarn.store.sql.scripts import queries
from forewarn.store.sql.store import SqlSession, SqlStore, ask_versions, check_versions

SQL = queries("postgres")
BATCH = 1_000
WALKED_AT_ONCE = 5_000
# A change that names more than so many machines or scopes says "everything" instead.
MAX_NAMED = 10_000
CHANGES_KEPT_S = 3_600
# Notice counts from the moment it was decided on. The database's clock has the last word on how long ago that was, right before
# the commit: nodes keep its time by what they last heard of it. Very many events take longer to write than few.
DECIDED_WITHIN_S = 2.0
SECONDS_PER_EVENT = 0.002
# One dump may be restored twice: each time at another minute since then.
DUMPS_SINCE = datetime(2026, 1, 1, tzinfo=UTC)

log = logging.getLogger("forewarn.store")


class _Asked:
    """The answer to a question, waited for when it is first looked at."""

    def __init__(self, cursor: Cursor, wait: Callable[[], None]) -> None:
        self._cursor = cursor
        self._wait = wait
        self._rows: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._rows is None:
            self._wait()
            self._rows = self._cursor.fetchall()
        return iter(self._rows)


class PostgresSession:
    """A transaction under way: named queries on one connection, each with its time limit."""

    rows = NATIVE_ROWS

    def __init__(
        self,
        pool: Pool,
        connection: Connection,
        pipeline: Pipeline | None = None,
        *,
        within_s: int = STATEMENT_WITHIN_S,
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._pipeline = pipeline
        self._within_s = within_s
        self._unanswered = False
        # What was sent and must have changed so many rows, or else.
        self._unchecked: list[tuple[Cursor, int, ForewarnError]] = []

    def ask(self, name: str, /, **values: object) -> Iterable[Row]:
        self._touch()
        return _Asked(self._connection.execute(SQL[name].encode(), _sent(values)), self._wait)

    def walk(self, name: str, /) -> Iterable[Any]:
        with self._connection.cursor(name, row_factory=tuple_row) as cursor:
            self._touch()
            cursor.execute(SQL[name].encode())
            while found := cursor.fetchmany(WALKED_AT_ONCE):
                yield from found
                self._touch()

    def one(self, name: str, /, **values: object) -> int:
        self._touch()
        cursor = self._connection.execute(SQL[name].encode(), values)
        self._wait()
        return cursor.rowcount

    def many(self, name: str, values: Iterable[Values], /, otherwise: ForewarnError | None = None) -> None:
        """In one go, or in several where there are very many, each waited for: a time limit is for one, not for a large fleet."""
        todo = iter(values)
        query = SQL[name].encode()
        while batch := list(islice(todo, BATCH)):
            self._touch()
            cursor = self._connection.cursor()
            if len(batch) == 1:
                cursor.execute(query, batch[0])
            else:
                cursor.executemany(query, batch)
            if otherwise is not None:
                self._unchecked.append((cursor, len(batch), otherwise))
            if len(batch) == BATCH:
                self._wait()
                self.settle()

    def settle(self) -> None:
        if not self._unchecked:
            return
        self._wait()
        for cursor, count, otherwise in self._unchecked:
            if cursor.rowcount != count:
                raise otherwise
        self._unchecked.clear()

    def _touch(self) -> None:
        """Before every statement."""
        self._pool.touch(self._connection, self._within_s)
        self._unanswered = True

    def _wait(self) -> None:
        """Until everything that was sent is answered; from then on the server waits for us no longer than it may."""
        if self._pipeline is not None and self._unanswered:
            self._pool.touch(self._connection, self._within_s)
            self._pipeline.sync()
            self._unanswered = False

    def listed(self, values: Iterable[object], /) -> list[object]:
        return [without_nul(each) if isinstance(each, str) else each for each in values]

    def paired(self, keys: Iterable[tuple[str, str]], /) -> str:
        return json.dumps([[without_nul(scope), without_nul(name)] for scope, name in keys])


def _sent(values: Values) -> Values:
    return {name: without_nul(each) if isinstance(each, str) else each for name, each in values.items()}


class PostgresStore(SqlStore):
    """Opens a database of the right version, or puts the schema into an empty one.

    `direct` is an address for what needs a connection of its own, where `address` leads through a pooler. Events decided on
    longer ago than `decided_within_s` are refused; whoever lives by another clock than the database's says how long is long.
    """

    _servers_change = True

    def __init__(
        self,
        address: str,
        *,
        direct: str = "",
        size: int = MAX_CONNECTIONS,
        decided_within_s: float = DECIDED_WITHIN_S,
    ) -> None:
        self._decided_within_s = decided_within_s
        self.dsn = Dsn(address, pooled=bool(direct))
        self._direct = Dsn(direct) if direct else self.dsn
        require_schema(self._direct)
        self._pool = Pool(self.dsn, size)
        # The latest timeline of each database that we have seen the nodes agree on.
        self._agreed: dict[str, int] = {}

    def feed(self) -> PostgresFeed:
        """What others change, as it happens."""
        return PostgresFeed(self._direct, self._pool, self)

    def connections(self) -> Connections:
        return self._pool.counted()

    def claim(self) -> None:
        """It is there for many: nobody claims it."""

    def close(self) -> None:
        self._pool.close()

    # -- the doors

    @contextmanager
    def _reading(self) -> Iterator[PostgresSession]:
        with self._pool.pipeline(READ) as (connection, pipeline):
            yield PostgresSession(self._pool, connection, pipeline)

    @contextmanager
    def _reading_fleet(self) -> Iterator[PostgresSession]:
        with self._pool.transaction(READ, FLEET_WITHIN_S) as connection:
            yield PostgresSession(self._pool, connection, within_s=FLEET_WITHIN_S)

    @contextmanager
    def _writing(self) -> Iterator[PostgresSession]:
        with self._pool.pipeline(WRITE) as (connection, pipeline):
            writer = PostgresSession(self._pool, connection, pipeline)
            yield writer
            writer.settle()

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

    def _prepare(self, writer: SqlSession, change: Change) -> None:
        """All of it is asked at once. Maintenances are locked before scopes."""
        known = {m.id: m.version for m in change.maintenances}
        ids = sorted({*known, *change.wakes})
        server = writer.ask("server")
        maintenances = writer.ask("lock_maintenances", ids=writer.listed(ids)) if ids else ()
        scopes = ask_versions(writer, change)
        self._recognise(server)
        check_versions(change, scopes)
        for row in maintenances:
            if known.get(row["id"], row["version"]) != row["version"]:
                raise Conflict(f"maintenance {row['id']} was changed by somebody else")

    def _announce(self, writer: SqlSession, change: Change) -> None:
        versions = {scope.name: scope.version + 1 for scope in change.scopes} | dict.fromkeys(change.removed_scopes, 0)
        machines = [*change.removed_machines, *(machine.key for machine in change.machines)]
        everything = len(versions) + len(machines) > MAX_NAMED
        # Nothing more is waited for: what follows is sent with the commit, and others wait for it no longer than it takes.
        writer.settle()
        writer.ask(
            "add_change",
            lock=COMMIT_LOCK,
            until=self._not_later_than(change),
            everything=everything,
            scopes=json.dumps({} if everything else versions),
            machines=json.dumps([] if everything else machines),
        )

    def _not_later_than(self, change: Change) -> datetime | None:
        """Only events tell of a time; a change of the fleet alone may be as old as it likes."""
        if not change.events:
            return None
        return change.at + timedelta(seconds=self._decided_within_s + SECONDS_PER_EVENT * len(change.events))

    def recognise(self, server: Any) -> bool:
        """Whether it is the one the nodes agreed on. Raises StoreUnavailable where it must not be used at all."""
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
                self._pool.close_idle()  # they may lead to the server that was replaced
            self._agreed[server["identity"]] = server["timeline"]
        return bool(server["same"])

    def adopt(self) -> bool:
        """Agree on the server we found after a failover, once for all nodes; whether there was anything to agree on.

        Guests may have seen what this server never had, also where a standby was to confirm every commit: it may have been
        taken out of service just before, and a commit that lost its client is seen unconfirmed. So what they will see from now
        on belongs to another epoch.
        """
        with self._pool.transaction(WRITE, FLEET_WITHIN_S) as connection:
            writer = PostgresSession(self._pool, connection, within_s=FLEET_WITHIN_S)
            (agreed,) = writer.ask("lock_cluster")
            (found,) = writer.ask("server")
            if self.recognise(found):
                return False
            writer.one("lock_scopes")
            now: datetime = agreed["now"]
            # What was agreed on before may be among what is lost: a further timeline is a further step, and so is later.
            same = agreed["identity"] == found["identity"]
            further = found["timeline"] - agreed["timeline"] if same else (now - DUMPS_SINCE) // timedelta(minutes=1)
            steps = max(1, further)
            begun = writer.one("begin_epochs", steps=steps)
            detail = f"commits may be lost: {begun} scope(s) begin a new epoch"
            writer.ask("skip_lost_numbers", steps=steps)
            writer.one("forget_all_changes")
            writer.one("adopt_cluster")
            writer.ask("add_change", lock=COMMIT_LOCK, until=None, everything=True, scopes="{}", machines="[]")
            entry = AuditEntry(at=now, who="service", action="database failed over", detail=detail)
            writer.many("add_audit", [writer.rows.audit.values(entry)])
        log.warning("the database has failed over: %s", detail)
        return True

    def forget_changes(self, limit: int) -> int:
        """What every node has long read; a node that was away for longer reads everything."""
        with self._writing() as writer:
            writer.ask("lock_cluster")  # as `adopt`: first this, then what it tells of
            writer.one("forget_leases")
            (told,) = writer.ask("forget_changes", kept_s=CHANGES_KEPT_S, limit=limit)
            return int(told["forgotten"])

    # -- leases

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        """Whether it is this node's for so long from now, by the database's clock."""
        with self._writing() as writer:
            writer.ask("shorten_leases", seconds=seconds)
            return writer.one("take_lease", name=name, node=node, seconds=seconds) == 1

    def drop_lease(self, name: str, node: str) -> None:
        with self._writing() as writer:
            writer.one("drop_lease", name=name, node=node)

    def live_nodes(self, past_s: float = 0.0) -> set[str]:
        """The nodes whose lease has not ended, or not longer ago than that."""
        with self._reading() as reader:
            return {row["node"] for row in reader.ask("live_nodes", past_s=past_s)}

    # -- the database's time

    def now(self) -> datetime:
        with self._reading() as reader:
            return reader.rows.read_time(next(iter(reader.ask("now")))["now"])  # type: ignore[no-any-return]


class _AnotherServer(Exception):
    """Not the one the nodes agreed on."""
