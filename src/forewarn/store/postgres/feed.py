"""The feed of other nodes' changes: NOTIFY on a connection of its own, and the rows of the table `changes`.

A notification only says that there is a change; if one is lost, the node reads the change a second later. Each row of `changes`
says what to read again, and which transaction wrote it. A node continues from its horizon, the oldest transaction that was
open at its last poll: every change of an older transaction was visible then, and every later commit has a transaction number
from the horizon on. A node shows its own changes already, so it does not read because of its own notifications: each node
notifies with the number of the server process that serves its feed.
"""

import time
from contextlib import suppress
from typing import Any, Protocol

import psycopg

from forewarn.core.errors import StoreUnavailable
from forewarn.store import FeedPosition, FeedUpdate
from forewarn.store.postgres.combining import read_combined, send_combined
from forewarn.store.postgres.dsn import Dsn
from forewarn.store.postgres.errors import translated_errors
from forewarn.store.postgres.pool import Connection, Pool
from forewarn.store.sql.rows import NATIVE_ROWS, Values

CHANNEL = "forewarn"


class AgreedServer(Protocol):
    """The part of the store that knows which server the nodes agreed on. It notifies other nodes as `notifies_as`."""

    notifies_as: str

    def recognise(self, server: Any) -> bool: ...

    def adopt(self) -> bool: ...


class PostgresFeed:
    """A feed for one thread. It tells the pool when the database goes away and comes back."""

    def __init__(self, dsn: Dsn, pool: Pool, store: AgreedServer) -> None:
        self._dsn = dsn
        self._pool = pool
        self._store = store
        self._connection: Connection | None = None

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        """Wait up to `wait_s` for a notification, then read what changed since the position; None reads `everything`."""
        update, same = self._poll(since, wait_s)
        if not same:
            # This node or another one has agreed on the new server by now: discard what was read before.
            self._store.adopt()
            update, same = self._poll(since, 0.0)
        if not same:
            self.close()
            raise StoreUnavailable(
                f"{self._dsn.shown}: the pooler leads to another server than store_direct, or the database has failed over"
                " again: point `store` and `store_direct` at the same primary"
            )
        return update

    def close(self) -> None:
        if self._connection is not None:
            self._pool.deadlines.clear(self._connection)
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
            self._store.notifies_as = ""

    def _poll(self, since: FeedPosition | None, wait_s: float) -> tuple[FeedUpdate, bool]:
        """Return what changed, and whether the server is the one the nodes agreed on."""
        try:
            with translated_errors(self._dsn, self._pool):
                connection = self._connected()
                self._listen(connection, wait_s)
                result = self._read(connection, since)
        except BaseException:
            self.close()
            raise
        self._pool.came_back()
        return result

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._pool.connect(self._dsn)
            self._pool.touch(self._connection)
            self._connection.execute(f"LISTEN {CHANNEL}")
            self._store.notifies_as = str(self._connection.info.backend_pid)
        return self._connection

    def _listen(self, connection: Connection, wait_s: float) -> None:
        """Wait until another node notifies, at most `wait_s`."""
        self._pool.touch(connection, self._dsn.limits.statement_s + wait_s)
        own = self._store.notifies_as
        if wait_s and any(each.payload != own for each in connection.notifies(timeout=wait_s)):
            for _ in connection.notifies(timeout=0):
                pass  # one read covers every notification so far

    def _read(self, connection: Connection, since: FeedPosition | None) -> tuple[FeedUpdate, bool]:
        self._pool.touch(connection)
        named: list[tuple[str, Values]] = [("where_we_are", {}), ("server", {}), ("standbys", {})]
        if since is not None:
            named.append(("changes_since", {"xid": str(since.horizon)}))
        sent_s = time.monotonic()
        cursor = send_combined(connection, named)
        received_s = time.monotonic()
        self._pool.deadlines.clear(connection)
        (state,), (server,), (standbys,), *changes = read_combined(cursor, len(named))
        same = self._store.recognise(server)
        known = since is not None and since.cluster == (state["identity"], state["timeline"])
        # Changes that were deleted before the last poll do not matter: this node has read them, or has read everything.
        everything = since is None or not known or since.horizon <= state["forgotten"] != since.forgotten
        rows = [] if everything else changes[0]
        new = [row for row in rows if since is None or row["number"] not in since.handled]
        horizon: int = state["horizon"]
        scopes: dict[str, int] = {}
        for row in new:
            scopes |= row["scopes"]
        return FeedUpdate(
            position=FeedPosition(
                cluster=(state["identity"], state["timeline"]),
                horizon=horizon,
                handled=frozenset(row["number"] for row in rows if row["xid"] >= horizon),
                forgotten=state["forgotten"],
            ),
            everything=everything or any(row["everything"] for row in new),
            scopes={name: version for name, version in scopes.items() if version},
            removed=frozenset(name for row in new for name, version in row["scopes"].items() if not version),
            machines=tuple((scope, name) for row in new for scope, name in row["machines"]),
            changed=bool(new) or everything,
            now=NATIVE_ROWS.read_time(state["now"]),
            sent_s=sent_s,
            received_s=received_s,
            warning="" if standbys["synchronous"] else _no_standby(standbys["hidden"]),
        ), same


def _no_standby(hidden: int) -> str:
    if hidden:
        return "this user may not see whether a synchronous standby is attached: grant it the role pg_monitor"
    return (
        "no synchronous standby is attached: a failover may lose the last commits; set synchronous_standby_names, or"
        " Patroni's synchronous_mode"
    )
