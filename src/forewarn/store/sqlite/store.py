"""The SQLite store: one file, WAL, synchronous=FULL. An acknowledged change survives kill -9 and power loss.

One connection writes, in short immediate transactions under a lock. Each read has a connection to itself, and no write
blocks it. A read of few rows uses the writing connection while that is idle.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import islice
from json.encoder import encode_basestring_ascii as encode_text
from pathlib import Path
from typing import Any, Self, TypeVar

from forewarn.core.change import Change
from forewarn.core.errors import ForewarnError
from forewarn.core.model import AuditEntry, Machine
from forewarn.store import Focus
from forewarn.store.sql.rows import TEXT_ROWS, Codec, Row, Values
from forewarn.store.sql.scripts import queries
from forewarn.store.sql.session import SqlSession
from forewarn.store.sql.store import SqlStore
from forewarn.store.sqlite.file import (
    PARAMETER,
    add_audit,
    begin_anew,
    connect,
    create,
    explained,
    lock_file,
    require_current,
    schema_version,
    translated_errors,
)
from forewarn.store.sqlite.filling import can_fill, fill_machines

SQL = queries("sqlite")
BATCH = 1_000

T = TypeVar("T")


class SqliteSession:
    """An open transaction that runs named queries on one connection."""

    rows = TEXT_ROWS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, name: str, /, **values: object) -> Iterable[Row]:
        return self._connection.execute(SQL[name], values)

    def stream(self, name: str, /, **values: object) -> Iterable[Any]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # tuples
        return cursor.execute(SQL[name], values)

    def execute(self, name: str, /, **values: object) -> int:
        return self._connection.execute(SQL[name], values).rowcount

    def execute_many(
        self, name: str, values: Iterable[Values], /, error_if_unchanged: ForewarnError | None = None
    ) -> None:
        remaining = iter(values)
        while batch := list(islice(remaining, BATCH)):  # make no second copy of a whole fleet
            changed = self._connection.executemany(SQL[name], batch).rowcount
            if changed != len(batch) and error_if_unchanged is not None:
                raise error_if_unchanged

    def save(
        self, name: str, codec: Codec[T], instances: Iterable[T], /, error_if_unchanged: ForewarnError | None = None
    ) -> None:
        statement, encode = _with_positions(name, codec)
        for instance in instances:
            changed = self._connection.execute(statement, encode(instance)).rowcount
            if changed != 1 and error_if_unchanged is not None:
                raise error_if_unchanged

    def check_later(self, check: Callable[[], None], /) -> None:
        check()

    def check_row_counts(self) -> None:
        """Do nothing: `execute_many` has checked already."""

    def as_list(self, values: Iterable[object], /) -> str:
        # Much faster than json.dumps, and called for almost every query.
        return f"[{','.join([encode_text(each) if isinstance(each, str) else str(each) for each in values])}]"

    def as_pairs(self, keys: Iterable[tuple[str, str]], /) -> str:
        return json.dumps(list(keys))


class SqliteTransaction(SqliteSession):
    """A transaction that lasts as long as its block. `release` is called after it.

    Generators would take twice as long. Row of the bench: one event per commit.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, begin: str, end: str, release: Callable[[], object]
    ) -> None:
        super().__init__(connection)
        self._path, self._begin, self._end, self._release = path, begin, end, release

    def __enter__(self) -> Self:
        self._execute(self._begin)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._execute(self._end)
            self._release()
            return
        self._roll_back()
        if isinstance(error, sqlite3.Error):
            raise explained(error, self._path) from error

    def _execute(self, statement: str) -> None:
        """Execute what begins or ends the transaction; roll back if that fails."""
        try:
            self._connection.execute(statement)
        except BaseException:
            self._roll_back()
            with translated_errors(self._path):
                raise

    def _roll_back(self) -> None:
        with translated_errors(self._path):
            try:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            finally:
                self._release()


@cache
def _with_positions(name: str, codec: Codec[T]) -> tuple[str, Callable[[T], tuple[object, ...]]]:
    """Return a query with numbers instead of names, and what makes its values: SQLite finds names by comparing texts.

    Row of the bench: one event per commit.
    """
    columns = list(dict.fromkeys(PARAMETER.findall(SQL[name])))
    statement = PARAMETER.sub(lambda found: f"?{columns.index(found[1]) + 1}", SQL[name])
    return statement, codec.row_encoder(columns)


class SqliteStore(SqlStore):
    """Open a database of the current schema, or create one if the file is missing or empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._idle_readers: list[sqlite3.Connection] = []
        self._lock_fd: int | None = None
        with translated_errors(path):
            self._writer = connect(path)
            try:
                if schema_version(self._writer, path) == 0:
                    create(self._writer)
                require_current(self._writer, path)
                # A service with a read-only system may have no folder for the files that sort an index.
                self._writer.execute("PRAGMA temp_store = MEMORY")
            except BaseException:
                self._writer.close()
                raise

    def claim(self) -> None:
        if self._lock_fd is None:
            self._lock_fd = lock_file(self.path)

    def close(self) -> None:
        with self._write_lock:
            for connection in (*self._readers, self._writer):
                connection.close()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def _write_machines(self, writer: SqlSession, machines: Sequence[Machine]) -> None:
        if can_fill(self._writer, machines):
            fill_machines(self._writer, machines)
        else:
            super()._write_machines(writer, machines)

    def _add_audit(self, writer: SqlSession, entries: Sequence[AuditEntry]) -> None:
        del writer  # the transaction that is open on our one writing connection
        add_audit(self._writer, entries)

    def begin_anew(self, change: Change) -> None:
        with self._writing():
            begin_anew(self._writer, change)

    def _reading_snapshot(self, focus: Focus) -> SqliteTransaction:
        return self._reading(brief=focus.current_waves or not (focus.whole_maintenances or focus.open_events))

    def _reading(self, *, brief: bool = False) -> SqliteTransaction:
        """Open a read transaction; a brief one on the writing connection, unless a write is under way.

        A write empties the page caches of all other connections. Row of the bench: one event per commit.
        """
        if brief and self._write_lock.acquire(blocking=False):
            return SqliteTransaction(self.path, self._writer, "BEGIN", "ROLLBACK", self._write_lock.release)
        reader = self._reader()
        return SqliteTransaction(self.path, reader, "BEGIN", "ROLLBACK", partial(self._idle_readers.append, reader))

    def _reader(self) -> sqlite3.Connection:
        """Return an idle connection or open one. The number of connections is that of simultaneous reads, not of threads."""
        try:
            return self._idle_readers.pop()
        except IndexError:
            with translated_errors(self.path):
                connection = connect(self.path)
            self._readers.append(connection)
            return connection

    def _writing(self) -> SqliteTransaction:
        self._write_lock.acquire()
        return SqliteTransaction(self.path, self._writer, "BEGIN IMMEDIATE", "COMMIT", self._write_lock.release)
