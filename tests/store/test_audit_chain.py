"""The hash chain of the audit: what was changed past forewarn is found, and what forewarn itself does keeps the chain whole."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from forewarn.core.model import AuditEntry
from forewarn.core.store_hold import restored
from forewarn.store import AuditQuery, Store
from forewarn.store.audit_chain import BEFORE_ALL_IDS, ChainCheck, entry_hash
from forewarn.store.memory import MemoryStore
from forewarn.store.postgres import schema
from forewarn.store.postgres.store import PostgresStore
from forewarn.store.sqlite import file
from forewarn.store.sqlite.store import SqliteStore
from tests.conftest import STORES
from tests.support.builders import OPERATOR
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED
from tests.support.records import at, change, entry, token


def fill(store: Store, count: int = 6) -> None:
    """Save so many entries, some in one change, with text that is hard to hash alike in two languages."""
    for number in range(count // 2):
        odd = replace(entry(), who="größe\n\0\x1a", detail=f"{number}:😀,", at=at(number + 0.123456))
        store.apply(change(audit=[replace(entry(), detail=str(number), at=at(number)), odd]))


def check(store: Store, head: str = "") -> str:
    """Return what is wrong with the chain, or ""."""
    checking = ChainCheck(store.audit_chain(), head)
    for each in store.audit(AuditQuery(after=BEFORE_ALL_IDS, limit=500)):
        checking.add(each)
    return checking.finish()


def ids(store: Store) -> list[int]:
    return [each.id for each in store.audit(AuditQuery(after=0, limit=500))]


def test_what_is_saved_is_a_chain(store: Store) -> None:
    """Every entry has a hash of its content and of the hash before; all stores compute the same."""
    assert check(store) == ""
    fill(store)
    assert check(store) == ""
    saved = store.audit(AuditQuery(after=0, limit=500))
    previous = ""
    for each in saved:
        previous = entry_hash(previous, each)
        assert each.hash == previous
    chain = store.audit_chain()
    assert (chain.start.id, chain.start.hash) == (0, "")
    assert (chain.head.id, chain.head.hash) == (saved[-1].id, previous)


def test_the_entries_of_a_large_change_are_chained_in_their_order(store: Store) -> None:
    """Entries that are written in several batches keep their order."""
    details = [str(number) for number in range(2_345)]
    store.apply(change(audit=[replace(entry(), detail=detail) for detail in details]))
    found: list[AuditEntry] = []
    while page := store.audit(AuditQuery(after=found[-1].id if found else BEFORE_ALL_IDS, limit=500)):
        found += page
    assert [each.detail for each in found] == details
    checking = ChainCheck(store.audit_chain(), "")
    for each in found:
        checking.add(each)
    assert checking.finish() == ""


def test_the_hash_of_an_entry_is_fixed() -> None:
    """Exported chains are checked by later versions: the hash of an entry never changes."""
    known = AuditEntry(at=at(0), who="alice", action="order taken", scope="shop", detail="attempt 1")
    assert entry_hash("", known) == "67836feb18573f1b26292365d9c972d6494f03abfa7e249ab7a19b582da2482f"
    parts = replace(known, who="ali", action="ceorder taken")
    assert entry_hash("", parts) != entry_hash("", known)


@pytest.fixture(params=["postgres", "sqlite"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store whose database others can reach."""
    made = STORES[request.param](tmp_path)
    yield made
    made.close()


def tamper(store: Store, *statements: str) -> None:
    """Run SQL past forewarn, as an intruder with access to the database would, without its triggers."""
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as connection:
            connection.executescript("DROP TRIGGER IF EXISTS audit_is_append_only;" + ";".join(statements))
    else:
        with psycopg.connect(SHARED.reused, options="-c search_path=forewarn") as connection:
            connection.execute("ALTER TABLE audit DISABLE TRIGGER USER")
            for statement in statements:
                connection.execute(statement.encode())
            connection.execute("ALTER TABLE audit ENABLE TRIGGER USER")


@pytest.mark.parametrize("column", ["who", "action", "origin", "scope", "maintenance_id", "event_id", "detail", "hash"])
def test_a_changed_entry_is_found(durable: Store, column: str) -> None:
    """Every column counts."""
    fill(durable)
    third = ids(durable)[2]
    tamper(durable, f"UPDATE audit SET {column} = 'x' WHERE id = {third}")
    assert check(durable).startswith(f"entry {third} was changed")


def test_a_changed_time_is_found(durable: Store) -> None:
    """The time of an entry counts, to the microsecond."""
    fill(durable)
    third = ids(durable)[2]
    tamper(durable, f"UPDATE audit SET at = '2030-01-01T00:00:01.000001Z' WHERE id = {third}")
    assert f"entry {third} was changed" in check(durable)


def test_a_removed_entry_is_found(durable: Store) -> None:
    """The next entry does not fit."""
    fill(durable)
    third, fourth = ids(durable)[2:4]
    tamper(durable, f"DELETE FROM audit WHERE id = {third}")
    assert check(durable).startswith(f"entry {fourth} was changed, or an entry before it was changed, removed or moved")


def test_an_entry_that_was_put_in_is_found(durable: Store) -> None:
    """A copy of an entry, or a new one, breaks the chain after it."""
    fill(durable)
    last = ids(durable)[-1]
    columns = "at, who, action, origin, scope, maintenance_id, event_id, detail, hash"
    overriding = "OVERRIDING SYSTEM VALUE" if isinstance(durable, PostgresStore) else ""
    tamper(
        durable,
        f"INSERT INTO audit (id, {columns}) {overriding} SELECT {last + 1}, {columns} FROM audit WHERE id = {last}",
    )
    assert check(durable).startswith(f"entry {last + 1} was changed")


@pytest.mark.parametrize("forged", [0, -5])
def test_an_entry_before_the_chain_is_found(durable: Store, forged: int) -> None:
    """An id below the first one puts an entry before the chain, where no hash covers it."""
    fill(durable)
    columns = "at, who, action, origin, scope, maintenance_id, event_id, detail, hash"
    overriding = "OVERRIDING SYSTEM VALUE" if isinstance(durable, PostgresStore) else ""
    tamper(
        durable,
        f"INSERT INTO audit (id, {columns}) {overriding} SELECT {forged}, {columns} FROM audit WHERE id = {ids(durable)[0]}",
    )
    assert check(durable) == f"entry {forged} was added before the start of the chain"


def test_reordered_entries_are_found(durable: Store) -> None:
    """Two entries whose ids were exchanged are both as they were saved, but not where."""
    fill(durable)
    second, third = ids(durable)[1:3]
    columns = "at, who, action, origin, scope, maintenance_id, event_id, detail, hash"
    swap = f"(SELECT {columns} FROM kept WHERE kept.id = {second + third} - audit.id)"
    tamper(
        durable,
        f"CREATE TEMPORARY TABLE kept AS SELECT * FROM audit WHERE id IN ({second}, {third})",
        f"UPDATE audit SET ({columns}) = {swap} WHERE id IN ({second}, {third})",
    )
    assert check(durable).startswith(f"entry {second} was changed")


def test_a_truncated_audit_is_found(durable: Store) -> None:
    """What is left is a chain. A head that was noted elsewhere shows that the newest entries are missing."""
    fill(durable)
    noted = durable.audit_chain().head.hash
    assert check(durable, noted) == ""
    *_, fifth, sixth = ids(durable)
    tamper(durable, f"DELETE FROM audit WHERE id IN ({fifth}, {sixth})")
    assert check(durable) == ""
    assert "the head that you noted is not in the chain" in check(durable, noted)
    fill(durable)
    assert "the head that you noted is not in the chain" in check(durable, noted)


def test_a_list_that_ends_early_is_found(store: Store) -> None:
    """An export that was cut off does not reach the head that it names."""
    fill(store)
    checking = ChainCheck(store.audit_chain())
    for each in store.audit(AuditQuery(after=0, limit=4)):
        checking.add(each)
    assert checking.finish() == "the newest entries are missing: the chain ends at entry 4, not at 6"


def test_an_older_head_stays_valid(store: Store) -> None:
    """A head that was noted earlier is in the chain, however much was added since."""
    fill(store)
    noted = store.audit_chain().head.hash
    fill(store)
    assert check(store, noted) == ""


def test_pruning_keeps_the_chain(store: Store) -> None:
    """The hash up to which entries were deleted is the new start; what is left, and what comes, is a chain."""
    fill(store)
    third = store.audit(AuditQuery(after=0, limit=500))[2]
    store.prune(at(1.000001), 3)
    chain = store.audit_chain()
    assert (chain.start.id, chain.start.hash) == (third.id, third.hash)
    assert check(store) == ""
    assert check(store, third.hash) == ""
    fill(store)
    assert check(store) == ""
    assert store.prune(at(9_999), 500) == 9
    assert check(store) == ""
    assert store.audit_chain().start == store.audit_chain().head


def test_only_the_oldest_entries_are_pruned(store: Store) -> None:
    """An old entry behind a younger one stays, because a chain has no gaps."""
    moments = [at(0), at(50), at(1)]
    store.apply(change(audit=[replace(entry(), at=moment) for moment in moments]))
    assert store.prune(at(10), 10) == 1
    assert [each.at for each in store.audit(AuditQuery(after=0))] == moments[1:]
    assert check(store) == ""


def test_a_restored_backup_is_a_chain_of_its_own(tmp_path: Path) -> None:
    """It goes on from the backup. Heads noted before the backup are in it, heads noted after it are not."""
    path, copy = tmp_path / "x.db", tmp_path / "copy.db"
    with closing(SqliteStore(path)) as store:
        fill(store)
        before = store.audit_chain().head.hash
        file.backup(path, copy)
        fill(store)
        after = store.audit_chain().head.hash
    with closing(SqliteStore(copy)) as store:
        store.apply(change(tokens=[token()]))
    file.restore(copy, path, restored(copy, now=at(60), actor=OPERATOR), revoke_tokens=True)
    with closing(SqliteStore(path)) as store:
        assert [each.action for each in store.audit(AuditQuery(limit=3))] == [
            "token revoked",
            "store held",
            "database restored",
        ]
        assert check(store, before) == ""
        assert "a backup was restored" in check(store, after)


def test_entries_from_before_the_upgrade_are_not_chained(tmp_path: Path) -> None:
    """They are counted, and the chain begins after them; also when they are pruned later."""
    path = tmp_path / "x.db"
    path.touch()
    file.SqliteDatabase(path).migrate(file.MIGRATIONS[:9])
    with closing(sqlite3.connect(path)) as connection:
        for _ in range(3):
            connection.execute("INSERT INTO audit VALUES (NULL, '2029-01-01', 'a', 'b', '', '', '', '', '')")
        connection.commit()
    file.SqliteDatabase(path).migrate()
    with closing(SqliteStore(path)) as store:
        fill(store)
        checking = ChainCheck(store.audit_chain())
        for each in store.audit(AuditQuery(after=0, limit=500)):
            checking.add(each)
        assert (checking.finish(), checking.checked, checking.unchained) == ("", 6, 3)
        assert store.prune(at(0), 2) == 2
        assert check(store) == ""
        assert store.prune(at(1), 4) > 0
        assert check(store) == ""


def test_the_chain_of_an_upgraded_shared_database_begins_after_its_entries() -> None:
    """PostgreSQL does the same as SQLite."""
    address = SHARED.server.address(SHARED.server.database())
    schema.PostgresDatabase(address).migrate(schema.MIGRATIONS[:3])
    with psycopg.connect(address, options="-c search_path=forewarn") as connection:
        columns = "at, who, action, origin, scope, maintenance_id, event_id, detail"
        connection.execute(f"INSERT INTO audit ({columns}) VALUES (now(), 'a', 'b', '', '', '', '', '')".encode())
    assert schema.PostgresDatabase(address).migrate()[0] == "0004 audit_chain"
    with closing(PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)) as store:
        fill(store)
        assert store.audit_chain().start.id == 1
        assert check(store) == ""


def test_several_nodes_write_one_chain() -> None:
    """The chain follows the order of commits, whichever node writes."""
    address = SHARED.emptied()
    stores = [PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED) for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(fill, stores, [20] * 3))
        assert len(ids(stores[0])) == 60
        assert check(stores[0]) == ""
    finally:
        for each in stores:
            each.close()


def test_an_entry_without_a_hash_is_refused(tmp_path: Path) -> None:
    """SQLite cannot compute the hash itself, so code that forgets it must fail."""
    with closing(SqliteStore(tmp_path / "x.db")) as store, pytest.raises(sqlite3.IntegrityError, match="has a hash"):
        store._writer.execute("INSERT INTO audit VALUES (NULL, '2029', 'a', 'b', '', '', '', '', '', '')")


def test_memory_keeps_a_chain_too() -> None:
    """A simulation and the emulator have the same audit."""
    store = MemoryStore()
    fill(store)
    store._audit[2] = replace(store._audit[2], detail="x")
    assert check(store).startswith("entry 3 was changed")
