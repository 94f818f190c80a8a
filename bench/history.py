"""A fleet with a long past: ended events, their maintenances, orders and audit, written by SQL in bulk.

Event n lies on the n-th machine, scope after scope, and belongs to a maintenance of ten. The ended ones ended four seconds
apart, the newest at BEGINNING; the open ones come last. A few of the ended, spread evenly, are of a rare type or status.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.fleet import BEGINNING, MACHINES_PER_SCOPE, fill, scopes_of
from forewarn.store import MachineLastSeen
from forewarn.store.sqlite.store import SqliteStore
from forewarn.store.texts import time_text

EVENTS_PER_MAINTENANCE = 10
ENDED_EVERY_S = 4
RARE_EVENTS = 60
UNFINISHED_ORDERS = 60


@dataclass(frozen=True, slots=True)
class Past:
    """So many machines, open events and ended events."""

    machines: int
    open: int
    ended: int

    def __str__(self) -> str:
        return f"{self.machines:,} machines, {self.open:,} open, {self.ended:,} ended"


def build(path: Path, past: Past) -> None:
    store = SqliteStore(path)
    try:
        fill(store, past.machines)
        store.record_last_seen(
            [MachineLastSeen(m.scope, m.name, BEGINNING) for m in store.inventory().machines.values()]
        )
    finally:
        store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        again = _set_aside(connection)
        for statement in _ROWS:
            connection.execute(statement, _values(past))
        for statement in again:
            connection.execute(statement)
        connection.execute("COMMIT")
        if found := connection.execute("PRAGMA foreign_key_check").fetchall():
            raise RuntimeError(f"{len(found)} rows belong to nothing")
        connection.execute("PRAGMA journal_mode = WAL")


def _set_aside(connection: sqlite3.Connection) -> list[str]:
    """Drop indexes and triggers: made again afterwards, an index is sorted once instead of a million times."""
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"
    ).fetchall()
    for kind, name, _ in found:
        connection.execute(f"DROP {kind} {name}")
    return [sql for _, _, sql in found]


def _values(past: Past) -> dict[str, object]:
    return {
        "scopes": scopes_of(past.machines),
        "per_scope": MACHINES_PER_SCOPE,
        "ended": past.ended,
        "all": past.ended + past.open,
        "per_maintenance": EVENTS_PER_MAINTENANCE,
        "rare": past.ended // RARE_EVENTS,
        "unfinished": past.ended - UNFINISHED_ORDERS,
        "first": time_text(BEGINNING - timedelta(seconds=ENDED_EVERY_S * past.ended)),
        "apart_s": ENDED_EVERY_S,
    }


# Number, scope, machine, whether it has ended, and when: what every row below is made of.
_NUMBERS = """
WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < :all),
things AS MATERIALIZED (
    SELECT n, printf('M%08d', (n - 1) / :per_maintenance) AS maintenance, n <= :ended AS over,
        printf('scope-%06d', n % :scopes) AS scope, printf('vm-%02d', n / :scopes % :per_scope) AS machine,
        strftime('%Y-%m-%dT%H:%M:%S', :first, (n * :apart_s) || ' seconds') || '.000000Z' AS at
    FROM numbers)
"""
_ROWS = (
    f"""INSERT INTO maintenances (id, type, source, created, created_by, not_before, earliest, duration_s, description,
        emergency, on_failure, paused, cancelled, status, wake_at, version, ended, told) {_NUMBERS}
    SELECT maintenance, 'Reboot', 'Platform', min(at), 'bench', NULL, NULL, -1, '', 0, 'hold', 0, 0,
        CASE WHEN max(n) <= :ended THEN 'Completed' ELSE 'Running' END, NULL, 1,
        CASE WHEN max(n) <= :ended THEN max(at) END, min(at)
    FROM things GROUP BY maintenance""",
    f"""INSERT INTO events (number, id, maintenance_id, wave, position, scope, update_domain, type, source, resources,
        description, duration_s, emergency, status, born_approved, needs_approval, approval, sequence, published,
        not_before, minimum_notice_s, started, ended, reason) {_NUMBERS}
    SELECT n, printf('E%08d', n), maintenance, 1, n, scope, 0,
        CASE WHEN over AND n % :rare = 1 THEN 'Terminate' ELSE 'Reboot' END, 'Platform', json_array(machine), '', -1, 0,
        CASE WHEN NOT over THEN 'Scheduled' WHEN n % :rare = 2 THEN 'Abandoned' ELSE 'Completed' END,
        0, 1, 'any', 0, at, at, 900, CASE WHEN over THEN at END, CASE WHEN over THEN at END, ''
    FROM things""",
    """INSERT INTO event_machines SELECT scope, resources ->> 0, number, 0 FROM events""",
    """INSERT INTO maintenance_scopes SELECT DISTINCT e.scope, m.status, m.created, m.id
    FROM events e CROSS JOIN maintenances m ON m.id = e.maintenance_id""",
    """INSERT INTO orders (id, issued, state, attempt, node, reason, output, scope)
    SELECT id, ended, CASE WHEN number > :unfinished THEN 'open' ELSE 'done' END, 1, '', '', '', scope
    FROM events WHERE ended IS NOT NULL""",
    """INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail)
    SELECT published, 'bench', 'published', '', scope, maintenance_id, id, '' FROM events""",
    """INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail)
    SELECT ended, 'bench', 'completed', '', scope, maintenance_id, id, '' FROM events WHERE ended IS NOT NULL""",
)
