"""The floor of the service's commits on SQLite: a bare loop of the same statements on a copy of the database.

What the service executes on its connections is recorded, and executed again on the copy with the same values, in the same
transactions, and with every row fetched. What the service costs beyond that is its own work.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from forewarn.store import Store
from forewarn.store.sqlite.file import connect
from forewarn.store.sqlite.store import SqliteStore

Statement = tuple[bool, str, str, Any]  # whether the writing connection executes it, how, the statement, its values


class RecordingConnection:
    """Passes on everything, and notes what is executed."""

    def __init__(self, connection: sqlite3.Connection, statements: list[Statement], *, writes: bool) -> None:
        self._connection, self._statements, self._writes = connection, statements, writes

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        self._statements.append((self._writes, "execute", statement, values))
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        self._statements.append((self._writes, "executemany", statement, values))
        return self._connection.executemany(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Recorder:
    """Replays what was recorded since the last replay, on two connections of its own."""

    def __init__(self, statements: list[Statement], reading: sqlite3.Connection, writing: sqlite3.Connection) -> None:
        self._statements, self._connections = statements, {False: reading, True: writing}

    def replay(self) -> None:
        for writes, how, statement, values in self._statements:
            getattr(self._connections[writes], how)(statement, values).fetchall()
        self._statements.clear()


@contextmanager
def recording(store: Store, copy: Path) -> Iterator[Recorder]:
    """Record what the store executes inside the block; `copy` is a new file, with the database as it is now."""
    if not isinstance(store, SqliteStore):
        raise TypeError(f"{store} is no SQLite store")
    statements: list[Statement] = []
    known = store._writer, store._idle_readers
    with closing(sqlite3.connect(copy)) as target:
        store._writer.backup(target)
    with closing(connect(copy)) as reading, closing(connect(copy)) as writing, closing(connect(store.path)) as reader:
        store._writer = RecordingConnection(store._writer, statements, writes=True)  # type: ignore[assignment]
        store._idle_readers = [RecordingConnection(reader, statements, writes=False)]  # type: ignore[list-item]
        try:
            yield Recorder(statements, reading, writing)
        finally:
            store._writer, store._idle_readers = known
