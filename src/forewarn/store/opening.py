"""Decides which store a URL means, and opens it. No other module asks what kind of store a URL names."""

import logging
from pathlib import Path
from typing import Protocol

from forewarn.core.errors import InvalidSettings
from forewarn.store import Store

MEMORY, SQLITE, POSTGRESQL = "memory", "sqlite", "postgresql"

log = logging.getLogger("forewarn.store")


def store_kind(url: str) -> str:
    if url == "memory:":
        return MEMORY
    if url.startswith(("postgresql://", "postgres://")):
        return POSTGRESQL
    if url.startswith("sqlite:") and url != "sqlite:":
        return SQLITE
    # The value is never quoted: it may be a connection string with a password in it.
    raise InvalidSettings("store: write sqlite:PATH, postgresql://USER@HOST/DATABASE (only as such a URL) or memory:")


def is_shared(url: str) -> bool:
    """Return whether several nodes can use this store at once."""
    return store_kind(url) == POSTGRESQL


def open_store(url: str, *, direct: str = "", connections: int | None = None) -> Store:
    """Open the store. `direct` reaches PostgreSQL past a connection pooler; `connections` bounds the pool."""
    kind = store_kind(url)
    if kind == MEMORY:
        from forewarn.store.memory import MemoryStore

        return MemoryStore()
    if kind == SQLITE:
        from forewarn.store.sqlite.store import SqliteStore

        return SqliteStore(store_file(url))
    # Imported here: a service on an SQLite store needs no PostgreSQL driver.
    try:
        from forewarn.store.postgres.pool import MAX_CONNECTIONS
        from forewarn.store.postgres.store import PostgresStore
    except ImportError:
        raise InvalidSettings("store: PostgreSQL needs its driver: pip install 'forewarn[server,postgres]'") from None
    store = PostgresStore(url, direct=direct, size=connections or MAX_CONNECTIONS)
    if store.dsn.unverified:
        log.warning("store: %s", store.dsn.unverified)
    return store


def store_file(url: str, instead: str = "") -> Path:
    """Return the file of an SQLite store; `instead` is the command to suggest where PostgreSQL has its own."""
    kind = store_kind(url)
    if kind == POSTGRESQL:
        raise InvalidSettings(f"store: PostgreSQL brings its own tools for this: {instead}")
    if kind == MEMORY:
        raise InvalidSettings("store: a memory: store has no file; name one with --store sqlite:PATH")
    return Path(url.removeprefix("sqlite:")).expanduser()


class Database(Protocol):
    """The operations of `forewarn db`. They need no running service."""

    name: str
    newest_schema: int

    def describe(self) -> list[tuple[str, str]]: ...

    def migrate(self) -> list[str]: ...


def open_database(url: str) -> Database:
    if is_shared(url):
        from forewarn.store.postgres.schema import PostgresDatabase

        return PostgresDatabase(url)
    from forewarn.store.sqlite.file import SqliteDatabase

    return SqliteDatabase(store_file(url))
