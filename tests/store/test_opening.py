"""Which store a URL means."""

from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.store.memory import MemoryStore
from forewarn.store.opening import is_shared, open_database, open_store, store_file, store_kind
from forewarn.store.sqlite.store import SqliteStore


def test_a_url_names_one_kind_of_store() -> None:
    """The scheme decides; PostgreSQL alone is shared by several nodes."""
    assert store_kind("memory:") == "memory"
    assert store_kind("sqlite:/var/lib/forewarn.db") == "sqlite"
    assert store_kind("postgres://db/forewarn") == store_kind("postgresql://db/forewarn") == "postgresql"
    assert [is_shared(url) for url in ("memory:", "sqlite:x", "postgresql://db/x")] == [False, False, True]


@pytest.mark.parametrize("url", ["", "sqlite:", "mongodb:", "memory:x", "host=db password=secret"])
def test_other_urls_are_refused_without_being_quoted(url: str) -> None:
    """The value may contain a password."""
    with pytest.raises(InvalidSettings, match="write sqlite:PATH") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_embedded_stores_are_opened(tmp_path: Path) -> None:
    """`memory:` lives in the process, `sqlite:` in a file."""
    assert isinstance(open_store("memory:"), MemoryStore)
    store = open_store(f"sqlite:{tmp_path / 'x.db'}")
    assert isinstance(store, SqliteStore)
    store.close()
    assert open_database(f"sqlite:{tmp_path / 'x.db'}").name == str(tmp_path / "x.db")


def test_only_sqlite_has_a_file() -> None:
    """The error for the others names what to use instead."""
    assert store_file("sqlite:~/x.db") == Path("~/x.db").expanduser()
    with pytest.raises(InvalidSettings, match="brings its own tools for this: pg_dump"):
        store_file("postgresql://db/x", "pg_dump")
    with pytest.raises(InvalidSettings, match="has no file"):
        store_file("memory:")
