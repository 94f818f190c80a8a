"""Several named queries in one statement, which returns the rows of all of them as JSON.

Each row is (the number of its query, the row as an object). Times are texts in ISO format. A statement costs client and server
more than a few rows do. Row of the bench: one event per commit on PostgreSQL.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from psycopg.rows import tuple_row

from forewarn.store.postgres.pool import Connection, TupleCursor
from forewarn.store.sql.rows import Values
from forewarn.store.sql.scripts import queries

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


def send_combined(connection: Connection, named: Sequence[tuple[str, Values]]) -> TupleCursor:
    """Send these queries, each with its values, in one statement."""
    values = {f"{number}_{name}": value for number, (_, each) in enumerate(named) for name, value in each.items()}
    return connection.cursor(row_factory=tuple_row).execute(_combined(tuple(name for name, _ in named)), values)


def read_combined(cursor: TupleCursor, count: int) -> list[list[Any]]:
    """Return the rows of each of the `count` queries."""
    found: list[list[Any]] = [[] for _ in range(count)]
    for number, row in cursor.fetchall():
        found[number].append(row)
    return found


@lru_cache(maxsize=256)
def _combined(names: tuple[str, ...]) -> bytes:
    return "\nUNION ALL\n".join(_part(number, name) for number, name in enumerate(names)).encode()


def _part(number: int, name: str) -> str:
    query = _PLACEHOLDER.sub(rf"%({number}_\1)s", queries("postgres")[name]).rstrip(";")
    return f"SELECT {number}, to_json(found) FROM (\n{query}) found"  # noqa: S608 - only our own queries
