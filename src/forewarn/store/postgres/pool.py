"""A bounded pool of connections to PostgreSQL, with a time limit on every statement.

No message contains a password.
"""

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psycopg
from psycopg.rows import dict_row

from forewarn.core.errors import ForewarnError, StoreUnavailable
from forewarn.store import Connections
from forewarn.store.postgres.dsn import WRITE, Dsn
from forewarn.store.postgres.errors import does_not_commit, is_read_only, translated_errors

Connection = psycopg.Connection[dict[str, Any]]
Cursor = psycopg.Cursor[dict[str, Any]]
TupleCursor = psycopg.Cursor[tuple[Any, ...]]

MAX_CONNECTIONS = 8
FLEET_WITHIN_S = 60
CHECK_EVERY_S = 0.25
# A connection that answered so recently, and was not closed since, is not tested before it is used again.
ANSWERED_WITHIN_S = 1.0

log = logging.getLogger("forewarn.store")

# psycopg warns of every pipeline that ended with an error, although the error is handled and reported.
logging.getLogger("psycopg").setLevel(logging.ERROR)

# Finds transactions of nodes that block others: counts commits that wait for a standby, and ends those of silent nodes.
_BLOCKERS = """
SELECT count(*) FILTER (WHERE wait_event = 'SyncRep' AND for_s > %(stuck_s)s) AS stuck,
    count(pg_terminate_backend(pid)) FILTER (WHERE wait_event = 'ClientRead' AND for_s > %(silent_s)s) AS ended
FROM (SELECT pid, wait_event, extract(epoch FROM clock_timestamp() - state_change) AS for_s FROM pg_stat_activity
    WHERE application_name = current_setting('application_name') AND datname = current_database()
        AND usename = current_user AND state = 'active') ours
"""


def cut(connection: Connection) -> None:
    """Shut the socket down, so that a thread waiting for it gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as server_socket:
        server_socket.shutdown(socket.SHUT_RDWR)


class Deadlines:
    """Cuts connections whose server is silent past a deadline; psycopg itself would wait for ever."""

    def __init__(self, *, check_every_s: float = CHECK_EVERY_S, cut: Callable[[Connection], None] = cut) -> None:
        self._check_every_s = check_every_s
        self._cut = cut
        self._until_s: dict[Connection, float] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def set(self, connection: Connection, within_s: float) -> None:
        """Set the connection's deadline, counted from now."""
        self._until_s[connection] = time.monotonic() + within_s
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="database deadlines", daemon=True)
                    self._thread.start()

    def clear(self, connection: Connection) -> None:
        self._until_s.pop(connection, None)

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._check_every_s):
            try:
                self._cut_late(time.monotonic())
            except Exception:  # every other time limit depends on this thread
                log.exception("a connection to the database is past its time limit and could not be cut")

    def _cut_late(self, now_s: float) -> None:
        for connection, until_s in list(self._until_s.items()):
            # Its thread may have cleared or moved the deadline since.
            if now_s > until_s and self._until_s.get(connection) == until_s:
                self.clear(connection)
                self._cut(connection)


class Pool:
    """At most `size` connections, opened when needed; a connection that failed is closed."""

    def __init__(self, dsn: Dsn, size: int = MAX_CONNECTIONS) -> None:
        self.dsn = dsn
        self.connect: Callable[[Dsn], Connection] = connect
        self._size = size
        self._free = threading.BoundedSemaphore(size)
        self._idle: deque[Connection] = deque()
        self._answered_s: dict[Connection, float] = {}
        self._used: set[object] = set()
        self.deadlines = Deadlines()
        self._away: tuple[float, str] = (0.0, "")
        # Like `_away`, but for writes only: the database answers, and does not commit.
        self._stuck: tuple[float, str] = (0.0, "")
        self._closed = False

    # -- transactions

    @contextmanager
    def transaction(self, how: str, within_s: float | None = None) -> Iterator[Connection]:
        """Open a transaction whose statements take at most `within_s` each; by default as long as any statement may take."""
        with self._transaction(how, within_s or self.dsn.limits.statement_s, nullcontext) as (connection, _):
            yield connection

    @contextmanager
    def pipeline(self, how: str) -> Iterator[tuple[Connection, psycopg.Pipeline]]:
        """Open a transaction that sends statements without waiting for the answer to the one before."""
        with self._transaction(how, self.dsn.limits.statement_s, psycopg.Connection.pipeline) as (connection, pipeline):
            yield connection, pipeline

    @contextmanager
    def _transaction(
        self, how: str, within_s: float, mode: Callable[[Connection], Any]
    ) -> Iterator[tuple[Connection, Any]]:
        self._refuse_while_away(how)
        with translated_errors(self.dsn, self), self._taken(how, within_s, mode) as (connection, begin):
            committing = False
            try:
                with _warned(connection) as warnings, mode(connection) as entered:
                    if begin:
                        self.touch(connection)
                        connection.execute(begin)
                    yield connection, entered
                    committing = True
                    self.touch(connection)
                    warnings.clear()
                    connection.execute("COMMIT")
                if warnings and how is WRITE:
                    # PostgreSQL reports success even if the wait for the synchronous standby was cancelled.
                    raise StoreUnavailable(
                        f"{self.dsn.shown}: this server has saved the change, and the change may be lost with the server:"
                        f" {warnings[0]}; check before you try again"
                    )
                if how is WRITE:
                    self._stuck = (0.0, "")
            except BaseException as error:
                if isinstance(error, StoreUnavailable) or is_read_only(error):
                    connection.close()  # a new connection may find the server that accepts writes
                if not connection.closed:
                    with suppress(psycopg.Error):
                        connection.execute("ROLLBACK")
                if committing and how is WRITE:
                    self._raise_commit_unknown(error)
                raise

    def _raise_commit_unknown(self, error: BaseException) -> None:
        """Say that the change may have been saved, if the connection broke during the commit."""
        if isinstance(error, psycopg.OperationalError) and not error.sqlstate:
            self.went_away(f"{self.dsn.shown}: the connection broke while a change was being saved")
            raise StoreUnavailable(
                f"{self.dsn.shown}: the connection broke while this was being saved: it may have been saved or not; check"
                " before you try again"
            ) from None

    def touch(self, connection: Connection, within_s: float | None = None) -> None:
        """Give the server `within_s` to answer the next statement, and some more for the network."""
        limits = self.dsn.limits
        self.deadlines.set(connection, (within_s or limits.statement_s) + limits.patience_s)

    @contextmanager
    def _taken(
        self, how: str, within_s: float, mode: Callable[[Connection], Any] = nullcontext
    ) -> Iterator[tuple[Connection, str]]:
        """Yield a connection, and the statement that begins its transaction; "" if the transaction has begun."""
        free_s = self.dsn.limits.free_s
        if not self._free.acquire(timeout=free_s):
            raise StoreUnavailable(
                f"all {self._size} connections to {self.dsn.shown} were busy for {free_s:g} s: the database is too slow"
            )
        connection: Connection | None = None
        use = object()
        self._used.add(use)
        try:
            connection, begin = self._connection(how, within_s, may_begin_later=mode is not nullcontext)
            self._away = (0.0, "")
            yield connection, begin
        finally:
            if connection is not None:
                self.deadlines.clear(connection)
                self._give_back(connection)
            self._used.discard(use)
            self._free.release()

    def _connection(self, how: str, within_s: float, *, may_begin_later: bool) -> tuple[Connection, str]:
        """Return what `_taken` yields. A pipeline begins with the first statements if its connection is surely alive.

        This saves two round trips of a decision. Row of the bench: one event per commit on PostgreSQL.
        """
        begin = self.dsn.begin(how, within_s)
        if may_begin_later and ";" not in begin:  # a pipeline takes single statements
            with suppress(IndexError):
                connection = self._idle.pop()
                if self._is_surely_alive(connection):
                    return connection, begin
                self._idle.append(connection)
        return self._begin(how, within_s), ""

    def _is_surely_alive(self, connection: Connection) -> bool:
        answered_s = self._answered_s.get(connection, 0.0)
        if connection.closed or time.monotonic() - answered_s > ANSWERED_WITHIN_S:
            return False
        waiting = select.poll()
        waiting.register(connection.fileno())
        # The server sends nothing to an idle connection, unless it closes the connection: then there is more than POLLOUT.
        return waiting.poll(0) == [(connection.fileno(), select.POLLOUT)]

    def _begin(self, how: str, within_s: float) -> Connection:
        """Begin a transaction on an idle connection, or on a new one if the idle connections turn out to be dead."""
        begin = self.dsn.begin(how, within_s)
        try:
            connection = self._idle.pop()
        except IndexError:
            pass
        else:
            try:
                self.touch(connection)
                connection.execute(begin)
                return connection
            except psycopg.OperationalError:
                self.deadlines.clear(connection)
                self._answered_s.pop(connection, None)
                connection.close()
                self.close_idle()
        connection = self.connect(self.dsn)
        try:
            self.touch(connection)
            connection.execute(begin)
        except BaseException:
            self.deadlines.clear(connection)
            connection.close()
            raise
        return connection

    def _give_back(self, connection: Connection) -> None:
        usable = not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if usable and not self._closed:
            self._answered_s[connection] = time.monotonic()
            self._idle.append(connection)
        else:
            self._answered_s.pop(connection, None)
            connection.close()

    def connections(self) -> Connections:
        return Connections(len(self._used), len(self._idle), self._size, away=time.monotonic() < self._away[0])

    # -- while the database is away

    def went_away(self, why: str) -> None:
        self._away = (time.monotonic() + self.dsn.limits.away_s, why)

    def came_back(self) -> None:
        self._away = (0.0, "")

    def after_error(self, error: psycopg.Error, translated: ForewarnError) -> ForewarnError:
        """Act on an error that leaves the connection usable; return the error to raise."""
        if is_read_only(error):
            self.close_idle()
        if error.sqlstate == "55P03":
            stuck, ended = self._count_blockers()
            if stuck:
                translated = does_not_commit(self.dsn)
            if isinstance(translated, StoreUnavailable) and not ended:
                # Writes fail at once for a while; then the database is tried again.
                self._stuck = (time.monotonic() + self.dsn.limits.away_s, str(translated))
        return translated

    def leave(self, why: str) -> None:
        """Stop using this server; the next connection may find another."""
        self.went_away(why)
        self.close_idle()

    def _refuse_while_away(self, how: str) -> None:
        for until_s, why in (self._away, self._stuck if how is WRITE else (0.0, "")):
            if time.monotonic() < until_s:
                raise StoreUnavailable(why)

    def _count_blockers(self) -> tuple[int, int]:
        """Count the transactions that wait for a standby; end transactions of silent nodes, and count them too.

        In a pipeline, the server itself would wait for a silent node for ever.
        """
        limits = self.dsn.limits
        with suppress(psycopg.Error, ForewarnError), self._taken(WRITE, limits.statement_s) as (connection, _):
            values = {"stuck_s": limits.lock_s / 2, "silent_s": limits.silent_s}
            (blockers,) = connection.execute(_BLOCKERS, values).fetchall()
            connection.execute("COMMIT")
            return blockers["stuck"], blockers["ended"]
        return 0, 0

    # -- closing

    def close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                self._answered_s.pop(connection, None)
                connection.close()

    def close(self) -> None:
        self._closed = True
        self.close_idle()
        self.deadlines.stop()


def connect(dsn: Dsn) -> Connection:
    connection = psycopg.connect(
        dsn.conninfo, autocommit=True, row_factory=dict_row, prepare_threshold=None if dsn.pooled else 3
    )
    connection.add_notice_handler(lambda _: None)
    return connection


@contextmanager
def _warned(connection: Connection) -> Iterator[list[str]]:
    """Collect the warnings that the server sends inside the block."""
    warnings: list[str] = []

    def collect(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(notice.message_primary or "")

    connection.add_notice_handler(collect)
    try:
        yield warnings
    finally:
        connection.remove_notice_handler(collect)
