"""A transaction of the embedded store under way: named queries on one connection."""

import json
import sqlite3
from collections.abc import Iterable

from forewarn.store.rows import Values
from forewarn.store.sql import queries

SQL = queries("sqlite")


class Session:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def ask(self, name: str, /, **values: object) -> Iterable[sqlite3.Row]:
        return self._connection.execute(SQL[name], values)

    def one(self, name: str, /, **values: object) -> int:
        return self._connection.execute(SQL[name], values).rowcount

    def many(self, name: str, values: Iterable[Values]) -> int:
        """Run it for each; the number of rows it changed."""
        return self._connection.executemany(SQL[name], values).rowcount


def as_json(values: Iterable[object]) -> str:
    return json.dumps(list(values))
