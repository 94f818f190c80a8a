"""Connections to PostgreSQL: a bounded number of them, a time limit on everything, and PostgreSQL's errors in our words.

With `postgres` and its other parts the only place that knows psycopg. No message of ours ever holds a password.
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from forewarn.core.errors import Conflict, ForewarnError, InvalidSettings, InvariantBroken, StoreUnavailable
from forewarn.store import Connections

Connection = psycopg.Connection[dict[str, Any]]

SCHEMA = "forewarn"
MAX_CONNECTIONS = 8
CONNECT_WITHIN_S = 3
FREE_WITHIN_S = 3.0
STATEMENT_WITHIN_S = 5
FLEET_WITHIN_S = 60
LOCK_WITHIN_S = 3
# The server ends a transaction whose client has fallen silent: nobody waits longer for the locks of a process that hangs.
SILENT_WITHIN_S = 5
# We give up on a server that says nothing, a little after it should have given up on the statement.
PATIENCE_S = 2.0
# A database that went away is left alone for so long, and whoever needs it hears so at once.
AWAY_S = 5.0
LOOK_EVERY_S = 0.25

# It warns of every pipeline that an error of ours, handled and told, has ended.
logging.getLogger("psycopg").setLevel(logging.ERROR)

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"


class Dsn:
    """Where the database is: what to connect with, and how it may be shown. `pooled`: a pooler may stand in between."""

    def __init__(self, text: str, *, pooled: bool = False) -> None:
        try:
            given = conninfo_to_dict(text)
        except psycopg.Error:
            given = {"host": "@"}
        if "@" in str(given.get("host", "")):
            # What libpq says of it may quote any part of it, and an @ in the password makes the rest of that the host.
            raise InvalidSettings(
                "store: this is no PostgreSQL address: write it like postgresql://user@host:5432/database, and any sign of a"
                " password that is not a letter or digit as %XX"
            ) from None
        self.secret = str(given.get("password") or "")
        host, port = given.get("host") or given.get("hostaddr") or "localhost", given.get("port") or "5432"
        self.shown = f"postgresql://{host}:{port}/{given.get('dbname') or given.get('user') or ''}"
        self.pooled = pooled
        ours: dict[str, Any] = {
            "application_name": "forewarn",
            "connect_timeout": CONNECT_WITHIN_S,
            # Of several hosts the one that can be written.
            "target_session_attrs": "read-write",
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        if not pooled:
            ours["options"] = " ".join(f"-c {name}={value}" for name, value in _session_settings().items())
        self.conninfo = make_conninfo(**{**ours, **{k: v for k, v in given.items() if v is not None}})

    def begin(self, how: str, within_s: int) -> str:
        """One message: through a pooler nothing lasts longer than the transaction, so it brings all its settings along."""
        settings = _session_settings() if self.pooled else {}
        if within_s != STATEMENT_WITHIN_S:
            settings["statement_timeout"] = f"{within_s}s"
        return "; ".join([how, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())])


def _session_settings() -> dict[str, str]:
    return {
        "search_path": SCHEMA,
        "TimeZone": "UTC",
        "statement_timeout": f"{STATEMENT_WITHIN_S}s",
        "lock_timeout": f"{LOCK_WITHIN_S}s",
        "idle_in_transaction_session_timeout": f"{SILENT_WITHIN_S}s",
        # What is acknowledged is on disk, and on the synchronous standby where there is one, whatever the server's default.
        "synchronous_commit": "on",
    }


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
            now_s = time.monotonic()
            for connection, until_s in list(self._until_s.items()):
                if now_s > until_s:
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
        self._closed = False

    # -- transactions

    @contextmanager
    def transaction(self, how: str, within_s: int = STATEMENT_WITHIN_S) -> Iterator[Connection]:
        self._refuse_while_away()
        with explained(self.dsn, self), self._taken(how, within_s) as connection:
            try:
                yield connection
            except BaseException:
                if not connection.closed:
                    with suppress(psycopg.Error):
                        connection.execute("ROLLBACK")
                raise
            self._commit(connection, unsaved=how is READ)

    def _commit(self, connection: Connection, *, unsaved: bool) -> None:
        try:
            self.touch(connection)
            with _warned(connection) as warnings:
                connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            if unsaved or error.sqlstate:
                raise
            self.went_away(f"{self.dsn.shown}: the connection broke while a change was being saved")
            raise StoreUnavailable(
                f"{self.dsn.shown}: the connection broke while this was being saved: it may have been saved or not; look before"
                " you do it again"
            ) from None
        if warnings:
            # PostgreSQL says yes all the same when somebody ends the wait for the synchronous standby.
            raise StoreUnavailable(
                f"{self.dsn.shown}: this is saved there, and may be lost with it: {warnings[0]}; look before you do it again"
            )

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

    def _refuse_while_away(self) -> None:
        until_s, why = self._away
        if time.monotonic() < until_s:
            raise StoreUnavailable(why)

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
    if state in ("40001", "40P01", "55P03"):
        return Conflict("somebody else changed the same at the same moment: try again")
    if state.startswith("23"):
        constraint = error.diag.constraint_name or ""
        if constraint in ("machine_addresses_pkey", "machines_by_instance_id"):
            return Conflict(f"another machine was given the same address or instance id meanwhile ({constraint})")
        told = error.diag.message_primary or constraint
        return InvariantBroken(f"the database refused a change that breaks its rules ({told}); nothing was saved")
    told = _ADVICE.get(state) or _plain(error, dsn)
    return StoreUnavailable(f"{dsn.shown}: {told}; nothing was saved ({state or type(error).__name__})")


def _plain(error: psycopg.Error, dsn: Dsn) -> str:
    """libpq's own words in one line, without the password."""
    text = " ".join(str(error).split()) or "it cannot be reached: check that it runs and that this machine may connect"
    if "authentication failed" in text:
        text = _ADVICE["28P01"]
    if "read-write" in text or "read-only" in text:
        text = _ADVICE["25006"]
    return text.replace(dsn.secret, "***") if dsn.secret else text
