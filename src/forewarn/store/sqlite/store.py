"""The embedded store: one SQLite file, WAL, synchronous=FULL. What was acknowledged survives kill -9 and power loss.

One connection writes, in short immediate transactions, under a lock; whoever reads has a connection to itself for the
while and is never blocked by a write.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forewarn.core.errors import ForewarnError
from forewarn.store.sql.rows import TEXT_ROWS, Row, Values
from forewarn.store.sql.scripts import queries
from forewarn.store.sql.store import SqlStore
from forewarn.store.sqlite.file import connect, create, guarded, hold, require_current, schema_version

SQL = queries("sqlite")


class SqliteSession:
    """A transaction under way: named queries on one connection."""

    rows = TEXT_ROWS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def ask(self, name: str, /, **values: object) -> Iterable[Row]:
        return self._connection.execute(SQL[name], values)

    def walk(self, name: str, /) -> Iterable[Any]:
        return self._connection.execute(SQL[name])

    def one(self, name: str, /, **values: object) -> int:
        return self._connection.execute(SQL[name], values).rowcount

    def many(self, name: str, values: Iterable[Values], /, otherwise: ForewarnError | None = None) -> None:
        todo = list(values)
        if todo and self._connection.executemany(SQL[name], todo).rowcount != len(todo) and otherwise is not None:
            raise otherwise

    def settle(self) -> None:
        """It was looked at as it happened."""

    def listed(self, values: Iterable[object], /) -> str:
        return json.dumps(list(values))

    def paired(self, keys: Iterable[tuple[str, str]], /) -> str:
        return json.dumps(list(keys))


class SqliteStore(SqlStore):
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

    def claim(self) -> None:
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
    def _reading(self) -> Iterator[SqliteSession]:
        with guarded(self.path):
            connection = self._reader()
            try:
                connection.execute("BEGIN")
                try:
                    yield SqliteSession(connection)
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
    def _writing(self) -> Iterator[SqliteSession]:
        with self._write_lock, guarded(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteSession(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
