"""Connections to PostgreSQL: a bounded number of them, a time limit on everything, and PostgreSQL's errors in our words.

With `postgres` and its other parts the only place that knows psycopg. No message of ours ever holds a password.
"""

import logging
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psycopg
from psycopg.rows import dict_row

from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken, StoreUnavailable
from forewarn.store import Connections
from forewarn.store.postgres.dsn import LOCK_WITHIN_S, SILENT_WITHIN_S, STATEMENT_WITHIN_S, WRITE, Dsn

Connection = psycopg.Connection[dict[str, Any]]
Cursor = psycopg.Cursor[dict[str, Any]]

MAX_CONNECTIONS = 8
FREE_WITHIN_S = 3.0
FLEET_WITHIN_S = 60
# We give up on a server that says nothing, a little after it should have given up on the statement.
PATIENCE_S = 2.0
# A database that went away is left alone for so long, and whoever needs it hears so at once.
AWAY_S = 5.0
LOOK_EVERY_S = 0.25

log = logging.getLogger("forewarn.store")

# It warns of every pipeline that an error of ours, handled and told, has ended.
logging.getLogger("psycopg").setLevel(logging.ERROR)

# Who of our own makes others wait: commits that wait for a standby, and nodes that fell silent in the middle, which are ended.
_HOLDING = """
SELECT count(*) FILTER (WHERE wait_event = 'SyncRep' AND for_s > %(stuck_s)s) AS stuck,
    count(pg_terminate_backend(pid)) FILTER (WHERE wait_event = 'ClientRead' AND for_s > %(silent_s)s) AS ended
FROM (SELECT pid, wait_event, extract(epoch FROM clock_timestamp() - state_change) AS for_s FROM pg_stat_activity
    WHERE application_name = current_setting('application_name') AND datname = current_database()
        AND usename = current_user AND state = 'active') ours
"""
# Errors of a server that was the primary once.
READ_ONLY = ("25006", "55000")


class Deadlines:
    """Cuts a connection whose server has said nothing for too long: psycopg itself would wait for ever."""

    def __init__(self) -> None:
        self._until_s: dict[Connection, float] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def give(self, connection: Connection, within_s: float) -> None:
        """From now."""
        self._until_s[connection] = time.monotonic() + within_s
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="database deadlines", daemon=True)
                    self._thread.start()

    def take_back(self, connection: Connection) -> None:
        self._until_s.pop(connection, None)

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                self._cut_late(time.monotonic())
            except Exception:  # every other time limit depends on this thread
                log.exception("a connection to the database is past its time limit and could not be cut")

    def _cut_late(self, now_s: float) -> None:
        for connection, until_s in list(self._until_s.items()):
            # Meanwhile it may have been answered, or have been given more time.
            if now_s > until_s and self._until_s.get(connection) == until_s:
                self.take_back(connection)
                cut(connection)


def cut(connection: Connection) -> None:
    """End it under whoever waits for it, in whatever thread."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class Pool:
    """At most so many connections, made when needed; none is kept that failed."""

    def __init__(self, dsn: Dsn, size: int = MAX_CONNECTIONS) -> None:
        self.dsn = dsn
        self._size = size
        self._free = threading.BoundedSemaphore(size)
        self._idle: deque[Connection] = deque()
        self._used: set[object] = set()
        self.deadlines = Deadlines()
        self._away: tuple[float, str] = (0.0, "")
        # As that, for writing alone: it answers, and does not commit.
        self._stuck: tuple[float, str] = (0.0, "")
        self._closed = False

    # -- transactions

    @contextmanager
    def transaction(self, how: str, within_s: int = STATEMENT_WITHIN_S) -> Iterator[Connection]:
        with self._transaction(how, within_s, nullcontext) as (connection, _):
            yield connection

    @contextmanager
    def pipeline(self, how: str) -> Iterator[tuple[Connection, psycopg.Pipeline]]:
        """As `transaction`, but statements are sent on without waiting for the answer to the one before."""
        with self._transaction(how, STATEMENT_WITHIN_S, psycopg.Connection.pipeline) as (connection, pipeline):
            yield connection, pipeline

    @contextmanager
    def _transaction(
        self, how: str, within_s: int, mode: Callable[[Connection], Any]
    ) -> Iterator[tuple[Connection, Any]]:
        self._refuse_while_away(how)
        with explained(self.dsn, self), self._taken(how, within_s) as connection:
            committing = False
            try:
                with _warned(connection) as warnings, mode(connection) as entered:
                    yield connection, entered
                    committing = True
                    self.touch(connection)
                    warnings.clear()
                    connection.execute("COMMIT")
                if warnings and how is WRITE:
                    # PostgreSQL says yes all the same when somebody ends the wait for the synchronous standby.
                    raise StoreUnavailable(
                        f"{self.dsn.shown}: this is saved there, and may be lost with it: {warnings[0]}; look before"
                        " you do it again"
                    )
                if how is WRITE:
                    self._stuck = (0.0, "")
            except BaseException as error:
                if isinstance(error, StoreUnavailable) or _is_read_only(error):
                    connection.close()  # the server is not the one to write to: another connection may find that
                if not connection.closed:
                    with suppress(psycopg.Error):
                        connection.execute("ROLLBACK")
                if committing and how is WRITE:
                    self._explain_commit(error)
                raise

    def _explain_commit(self, error: BaseException) -> None:
        """A server that says nothing at the commit may have saved it."""
        if isinstance(error, psycopg.OperationalError) and not error.sqlstate:
            self.went_away(f"{self.dsn.shown}: the connection broke while a change was being saved")
            raise StoreUnavailable(
                f"{self.dsn.shown}: the connection broke while this was being saved: it may have been saved or not; look before"
                " you do it again"
            ) from None

    def touch(self, connection: Connection, within_s: float = STATEMENT_WITHIN_S) -> None:
        """Before every statement: the server has so long to answer, and some more for the way."""
        self.deadlines.give(connection, within_s + PATIENCE_S)

    @contextmanager
    def _taken(self, how: str, within_s: int) -> Iterator[Connection]:
        if not self._free.acquire(timeout=FREE_WITHIN_S):
            raise StoreUnavailable(
                f"all {self._size} connections to {self.dsn.shown} were busy for {FREE_WITHIN_S:g} s: the database is too slow"
            )
        connection: Connection | None = None
        use = object()
        self._used.add(use)
        try:
            connection = self._begun(how, within_s)
            self._away = (0.0, "")
            yield connection
        finally:
            if connection is not None:
                self.deadlines.take_back(connection)
                self._give_back(connection)
            self._used.discard(use)
            self._free.release()

    def _begun(self, how: str, within_s: int) -> Connection:
        """One that was idle may be dead without knowing: then all are, and a new one is tried."""
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
                self.deadlines.take_back(connection)
                connection.close()
                self.close_idle()
        connection = connect(self.dsn)
        try:
            self.touch(connection)
            connection.execute(begin)
        except BaseException:
            self.deadlines.take_back(connection)
            connection.close()
            raise
        return connection

    def _give_back(self, connection: Connection) -> None:
        usable = not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if usable and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    def counted(self) -> Connections:
        return Connections(len(self._used), len(self._idle), self._size, away=time.monotonic() < self._away[0])

    # -- when it is away

    def went_away(self, why: str) -> None:
        self._away = (time.monotonic() + AWAY_S, why)

    def came_back(self) -> None:
        self._away = (0.0, "")

    def heard(self, error: psycopg.Error, told: ForewarnError) -> ForewarnError:
        """Of an error that leaves the connection as it is; what to tell of it."""
        if _is_read_only(error):
            self.close_idle()
        if error.sqlstate == "55P03":
            stuck, ended = self._holding()
            if stuck:
                told = _does_not_commit(self.dsn)
            if isinstance(told, StoreUnavailable) and not ended:
                # Whoever wants to write hears so at once for a while, then tries again.
                self._stuck = (time.monotonic() + AWAY_S, str(told))
        return told

    def leave(self, why: str) -> None:
        """A server that must not be used: look for another with the next connection."""
        self.went_away(why)
        self.close_idle()

    def _refuse_while_away(self, how: str) -> None:
        for until_s, why in (self._away, self._stuck if how is WRITE else (0.0, "")):
            if time.monotonic() < until_s:
                raise StoreUnavailable(why)

    def _holding(self) -> tuple[int, int]:
        """How many hold up others because they wait for a standby, and how many were ended because they said nothing: while
        statements travel together the server itself would wait for them for ever."""
        limits = {"stuck_s": LOCK_WITHIN_S / 2, "silent_s": SILENT_WITHIN_S}
        with suppress(psycopg.Error, ForewarnError), self._taken(WRITE, STATEMENT_WITHIN_S) as connection:
            (found,) = connection.execute(_HOLDING, limits).fetchall()
            connection.execute("COMMIT")
            return found["stuck"], found["ended"]
        return 0, 0

    # -- the end

    def close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

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
    """What the server warns of meanwhile."""
    found: list[str] = []

    def hear(told: psycopg.errors.Diagnostic) -> None:
        if told.severity_nonlocalized == "WARNING":
            found.append(told.message_primary or "")

    connection.add_notice_handler(hear)
    try:
        yield found
    finally:
        connection.remove_notice_handler(hear)


# -- PostgreSQL's errors as ours


@contextmanager
def explained(dsn: Dsn, pool: Pool | None = None) -> Iterator[None]:
    """What happened, where, and what to do; a connection that broke is told to the pool."""
    try:
        yield
    except ForewarnError:
        raise
    except psycopg.Error as error:
        told = _explanation(error, dsn)
        if pool is not None:
            told = pool.heard(error, told)
        lost = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "")[:2] in (
            "",
            "08",
            "57",
            "53",
            "28",
            "3D",
        )
        if pool is not None and lost and error.sqlstate not in ("57014", "53200"):
            pool.went_away(str(told))
        raise told from None


_ADVICE = {
    "25006": "it is a standby, which cannot be written: name the primary, or all hosts as postgresql://one,two/database",
    "55000": "it is a standby, which cannot be written: name the primary, or all hosts as postgresql://one,two/database",
    "25P03": f"it ended a transaction of ours that was silent for {SILENT_WITHIN_S} s: this process hung, or the network",
    "28P01": "it refuses the password: check the user and the password in the store's address, or PGPASSWORD, or ~/.pgpass",
    "28000": "it refuses this user: check the user in the store's address, and the server's pg_hba.conf",
    "3D000": "there is no such database: make it with createdb, or name another with --store postgresql://…/DATABASE",
    "3F000": "it has no forewarn schema: run 'forewarn db migrate --store postgresql://…'",
    "42P01": "it has no forewarn tables: run 'forewarn db migrate --store postgresql://…'",
    "42501": "this user may not do that: let it own the database, or the schema forewarn in it",
    "53100": "its disk is full: free some space there",
    "53300": "it has no connection left: raise max_connections there, or lower those of others",
    "57014": f"it did not answer within {STATEMENT_WITHIN_S} s: look at what else it does (pg_stat_activity)",
}


def _explanation(error: psycopg.Error, dsn: Dsn) -> ForewarnError:
    state = error.sqlstate or ""
    if state == "FW001":
        return Conflict(
            "it was decided too long ago, by the database's clock: this process or the database was stopped"
        )
    if state == "55P03" and not error.diag.context:  # of a row it says which
        return _does_not_commit(dsn)
    if state in ("40001", "40P01", "55P03"):
        return Conflict("somebody else changed the same at the same moment: try again")
    if state.startswith("23"):
        constraint = error.diag.constraint_name or ""
        if constraint in ("machine_addresses_pkey", "machines_by_instance_id"):
            return Conflict(f"another machine was given the same address or instance id meanwhile ({constraint})")
        told = error.diag.message_primary or constraint
        return InvariantBroken(f"the database refused a change that breaks its rules ({told}); nothing was saved")
    told = _ADVICE.get(state) or _plain(error, dsn)
    return StoreUnavailable(f"{dsn.shown}: {told} ({state or type(error).__name__})")


def _does_not_commit(dsn: Dsn) -> StoreUnavailable:
    return StoreUnavailable(
        f"{dsn.shown}: it does not commit, for {LOCK_WITHIN_S} s now: is a synchronous standby missing? Nothing was saved"
    )


def _is_read_only(error: BaseException) -> bool:
    return isinstance(error, psycopg.Error) and error.sqlstate in READ_ONLY


# Whoever is refused at the door is told in words alone.
_SAID = {
    r"authentication failed": "28P01",
    r"read-write|read-only": "25006",
    r'role ".*" (does not exist|is not permitted)|no pg_hba\.conf entry': "28000",
    r'database ".*" does not exist': "3D000",
    r"too many (clients|connections)|connection slots are reserved": "53300",
}


def _plain(error: psycopg.Error, dsn: Dsn) -> str:
    """What to do, where we know the words, and libpq's own words in one line, without the password."""
    text = " ".join(str(error).split()) or "it cannot be reached: check that it runs and that this machine may connect"
    advice = next((_ADVICE[state] for pattern, state in _SAID.items() if re.search(pattern, text)), "")
    text = f"{advice} ({text})" if advice else text
    return text.replace(dsn.secret, "***") if dsn.secret else text
