"""What other nodes changed, as it happens: a bell on a connection of its own, and what it was rung for, in no wrong order.

A bell says only that there is something; lost bells cost a second. What to read again stands in `changes`, each row with the
transaction that wrote it. A node reads on from its horizon, the oldest transaction that was still open when it last looked:
whatever had a smaller number was there to be read then, and whatever commits later has a number from the horizon on.
"""

import time
from contextlib import suppress
from typing import Any, Protocol

import psycopg

from forewarn.core.errors import StoreUnavailable
from forewarn.store import FeedPosition, FeedUpdate
from forewarn.store.postgres.dsn import READ, STATEMENT_WITHIN_S, Dsn
from forewarn.store.postgres.pool import Connection, Pool, connect, explained
from forewarn.store.sql.rows import NATIVE_ROWS
from forewarn.store.sql.scripts import queries

SQL = {name: text.encode() for name, text in queries("postgres").items()}
CHANNEL = "forewarn"


class Adopting(Protocol):
    """The store this feed is of."""

    def recognise(self, server: Any) -> bool: ...

    def adopt(self) -> bool: ...


class PostgresFeed:
    """For one thread. Tells the pool when the database is away, and that it is back."""

    def __init__(self, dsn: Dsn, pool: Pool, store: Adopting) -> None:
        self._dsn = dsn
        self._pool = pool
        self._store = store
        self._connection: Connection | None = None

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        """Wait so long for a bell, then read what changed since; from the beginning it is `everything`."""
        news, same = self._look(since, wait_s)
        if not same:
            # Whether we agreed on it or another node just did: what was read before that does not count.
            self._store.adopt()
            news, same = self._look(since, 0.0)
        if not same:
            self.close()
            raise StoreUnavailable(
                f"{self._dsn.shown}: the pooler leads to another server than store_direct, or the database has failed over"
                " once more: let `store` and `store_direct` lead to the same primary"
            )
        return news

    def close(self) -> None:
        if self._connection is not None:
            self._pool.deadlines.take_back(self._connection)
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    # -- behind it

    def _look(self, since: FeedPosition | None, wait_s: float) -> tuple[FeedUpdate, bool]:
        """What changed, and whether the server is the one the nodes agreed on."""
        try:
            with explained(self._dsn, self._pool):
                connection = self._connected()
                self._listen(connection, wait_s)
                found = self._read(connection, since)
        except BaseException:
            self.close()
            raise
        self._pool.came_back()
        return found

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn)
            self._pool.touch(self._connection)
            self._connection.execute(f"LISTEN {CHANNEL}")
        return self._connection

    def _listen(self, connection: Connection, wait_s: float) -> None:
        self._pool.touch(connection, STATEMENT_WITHIN_S + wait_s)
        if wait_s and any(True for _ in connection.notifies(timeout=wait_s, stop_after=1)):
            for _ in connection.notifies(timeout=0):
                pass  # what is read now answers all of them

    def _read(self, connection: Connection, since: FeedPosition | None) -> tuple[FeedUpdate, bool]:
        self._pool.touch(connection)
        sent_s = time.monotonic()
        with connection.pipeline():  # all of it in one trip
            connection.execute(self._dsn.begin(READ, STATEMENT_WITHIN_S))
            asked = [connection.execute(SQL[name]) for name in ("where_we_are", "server", "standbys")]
            changes = None if since is None else connection.execute(SQL["changes_since"], {"xid": str(since.horizon)})
            connection.execute("COMMIT")
            (where,) = asked[0].fetchall()
            received_s = time.monotonic()
        self._pool.deadlines.take_back(connection)
        (server,), (standbys,) = asked[1].fetchall(), asked[2].fetchall()
        same = self._store.recognise(server)
        known = since is not None and since.cluster == (where["identity"], where["timeline"])
        # What was forgotten before we last looked we had read, or read everything instead.
        everything = since is None or not known or since.horizon <= where["forgotten"] != since.forgotten
        rows = [] if everything or changes is None else changes.fetchall()
        new = [row for row in rows if since is None or row["number"] not in since.handled]
        horizon: int = where["horizon"]
        scopes: dict[str, int] = {}
        for row in new:
            scopes |= row["scopes"]
        return FeedUpdate(
            position=FeedPosition(
                cluster=(where["identity"], where["timeline"]),
                horizon=horizon,
                handled=frozenset(row["number"] for row in rows if row["xid"] >= horizon),
                forgotten=where["forgotten"],
            ),
            everything=everything or any(row["everything"] for row in new),
            scopes={name: version for name, version in scopes.items() if version},
            removed=frozenset(name for row in new for name, version in row["scopes"].items() if not version),
            machines=tuple((scope, name) for row in new for scope, name in row["machines"]),
            changed=bool(new) or everything,
            now=NATIVE_ROWS.read_time(where["now"]),
            sent_s=sent_s,
            received_s=received_s,
            warning="" if standbys["synchronous"] else _no_standby(standbys["hidden"]),
        ), same


def _no_standby(hidden: int) -> str:
    if hidden:
        return "whether a synchronous standby is attached is hidden from this user: grant it the role pg_monitor"
    return (
        "no synchronous standby is attached: a failover may lose the last commits; set synchronous_standby_names, or"
        " Patroni's synchronous_mode"
    )
