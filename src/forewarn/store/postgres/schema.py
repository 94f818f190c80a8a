"""Create, migrate and describe the schema of the shared store. A lock lets one process at a time work on it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from forewarn.core.errors import StoreUnavailable
from forewarn.store.postgres.dsn import SCHEMA, WRITE, Dsn
from forewarn.store.postgres.errors import translated_errors
from forewarn.store.postgres.pool import FLEET_WITHIN_S, Connection, connect, cut
from forewarn.store.sql.scripts import Migration, migrations

MIGRATIONS = migrations("postgres")
SCHEMA_VERSION = MIGRATIONS[-1].number
# The numbers of the advisory locks: "fwrd", then 00 for work on the schema and 01 for commits.
SCHEMA_LOCK = 0x6677726400
COMMIT_LOCK = 0x6677726401
_IDENTITY = """
INSERT INTO cluster SELECT true, system_identifier || '/' || 'cluster'::regclass::oid,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, '0'
FROM pg_control_system()
"""


class PostgresDatabase:
    """A PostgreSQL database as `forewarn db` handles it."""

    newest_schema = SCHEMA_VERSION

    def __init__(self, address: str) -> None:
        self._dsn = Dsn(address)
        self.name = self._dsn.shown

    def describe(self) -> list[tuple[str, str]]:
        """Return the schema version, size and row counts for `forewarn db`."""
        with _working(self._dsn) as connection:
            version = _version(connection)
            size = connection.execute("SELECT pg_database_size(current_database()) AS bytes").fetchone()
            facts = [
                ("schema", f"{version} (this forewarn: {SCHEMA_VERSION})"),
                ("size", f"{size['bytes'] if size else 0:,} bytes"),
            ]
            if version != SCHEMA_VERSION:
                return facts
            counts = {
                "scopes": "SELECT count(*) FROM scopes",
                "machines": "SELECT count(*) FROM machines",
                "open": "SELECT count(*) FROM events WHERE ended IS NULL",
                "events": "SELECT count(*) FROM events",
                "audit": "SELECT count(*) FROM audit",
                "nodes": "SELECT count(*) FROM leases WHERE name = 'node ' || node AND until >= clock_timestamp()",
            }
            for name, query in counts.items():
                row = connection.execute(query).fetchone()
                facts.append((name, f"{row['count'] if row else 0:,}"))
            held = connection.execute("SELECT detail FROM store_hold WHERE resumed IS NULL").fetchone()
            return facts + ([("held", str(held["detail"]))] if held else [])

    def migrate(self, steps: Sequence[Migration] = MIGRATIONS) -> list[str]:
        """Bring an old or empty database up to date; return the names of the steps that were missing."""
        with _working(self._dsn) as connection:
            version = _version(connection)
            if version > SCHEMA_VERSION:
                raise _newer(version, self._dsn)
            return _apply(connection, version, steps)


def require_schema(dsn: Dsn) -> None:
    """Create the schema in an empty database; refuse an old one, which `forewarn db migrate` updates."""
    with _working(dsn) as connection:
        version = _version(connection)
        if version == 0:
            _apply(connection, 0, MIGRATIONS)
        else:
            require_version(version, dsn)


def require_version(version: int, dsn: Dsn) -> None:
    """Refuse a schema of another version: an operator may have migrated the database while this node runs."""
    if version > SCHEMA_VERSION:
        raise _newer(version, dsn)
    if version < SCHEMA_VERSION:
        raise StoreUnavailable(
            f"{dsn.shown} has schema {version}, this forewarn needs {SCHEMA_VERSION}: make a backup with pg_dump, stop every"
            " node, then run 'forewarn db migrate --store postgresql://…'"
        )


@contextmanager
def _working(dsn: Dsn) -> Iterator[Connection]:
    """Open one transaction that holds the schema lock."""
    with translated_errors(dsn), connect(dsn) as connection:
        patience = threading.Timer(FLEET_WITHIN_S + dsn.limits.patience_s, cut, [connection])
        patience.daemon = True
        patience.start()
        try:
            connection.execute(dsn.begin(WRITE, FLEET_WITHIN_S))
            connection.execute(f"SET LOCAL lock_timeout = '{FLEET_WITHIN_S}s'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [SCHEMA_LOCK])
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if not connection.closed:
                connection.rollback()
            raise
        finally:
            patience.cancel()


def _version(connection: Connection) -> int:
    """Return the schema version, 0 if there is no schema of forewarn."""
    table = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS there", [f"{SCHEMA}.schema_version"]).fetchone()
    if not (table and table["there"]):
        return 0
    row = connection.execute("SELECT max(version) AS version FROM schema_version").fetchone()
    return int(row["version"] or 0) if row else 0


def _apply(connection: Connection, version: int, steps: Sequence[Migration]) -> list[str]:
    if version == 0:
        there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [SCHEMA]).fetchone()
        if not there:
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute("CREATE TABLE schema_version (version integer PRIMARY KEY, applied timestamptz NOT NULL)")
    missing = [step for step in steps if step.number > version]
    for step in missing:
        connection.execute(step.script.encode())
        connection.execute("INSERT INTO schema_version VALUES (%s, clock_timestamp())", [step.number])
    if version == 0:
        connection.execute(_IDENTITY)
    return [f"{step.number:04d} {step.name}" for step in missing]


def _newer(version: int, dsn: Dsn) -> StoreUnavailable:
    return StoreUnavailable(
        f"{dsn.shown} has schema {version}, made by a newer forewarn; this one knows {SCHEMA_VERSION}: upgrade forewarn"
    )
