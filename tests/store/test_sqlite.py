"""The SQLite store's file in a hostile world: wrong files, full disks, read-only disks, a second process."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import NotFound, StoreInUse, StoreUnavailable
from forewarn.store import AuditQuery, EventQuery, Focus
from forewarn.store.sqlite import file
from forewarn.store.sqlite.store import SqliteStore
from forewarn.store.texts import time_text
from tests.store.limited_disks import fill, read_only, small_disk
from tests.support.records import UNICODE, at, change, entry, event, maintenance, one_maintenance, scope
from tests.support.waiting import PATIENCE_S

KILOBYTE = "x" * 1_024


def describe(path: Path) -> object:
    return file.SqliteDatabase(path).describe()


def migrate(path: Path) -> object:
    return file.SqliteDatabase(path).migrate()


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


def raw(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def open_files(folder: Path) -> int:
    """Return how many files in the folder this process has open. Those of earlier tests may be closed at any time."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += each.readlink().is_relative_to(folder)
    return count


def intact(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])


# -- which file it is


def test_a_new_file_is_made_and_opened_again(tmp_path: Path) -> None:
    """Where there is none a database is made; what was saved is there at the next opening."""
    with opened(tmp_path / "x.db") as store:
        store.apply(one_maintenance())
        saved = store.snapshot(Focus(maintenances=("M1",)))
    with opened(tmp_path / "x.db") as store:
        assert store.snapshot(Focus(maintenances=("M1",))) == saved


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """A file that a packager or a crash left empty is as good as none."""
    (tmp_path / "x.db").touch()
    with opened(tmp_path / "x.db") as store:
        store.apply(one_maintenance())
        assert store.maintenance("M1") is not None


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """It is refused in a sentence, and not a byte of it changes."""
    path = tmp_path / "other.db"
    raw(path, "CREATE TABLE notes (text)", "INSERT INTO notes VALUES ('mine')")
    before = path.read_bytes()
    for use in (SqliteStore, describe, migrate):
        with pytest.raises(StoreUnavailable, match=r"is a database of some other program: name another file"):
            use(path)
    with pytest.raises(StoreUnavailable, match="some other program"):
        file.backup(path, tmp_path / "copy.db")
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all. " * 500, b"SQLite format 3\0" + b"\xff" * 8_000])
def test_garbage_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """A file that is no database may belong to another program: it is refused and stays."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="it is not an SQLite database: name another file"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    """What a newer forewarn wrote is neither read nor changed by an older one."""
    path = tmp_path / "x.db"
    SqliteStore(path).close()
    raw(path, "PRAGMA user_version = 99")
    for use in (SqliteStore, migrate):
        with pytest.raises(StoreUnavailable, match=r"has schema 99, made by a newer forewarn.*upgrade forewarn"):
            use(path)


def test_an_older_database_asks_for_migration(tmp_path: Path) -> None:
    """It is not migrated behind the operator's back: the message names both commands."""
    path = tmp_path / "x.db"
    SqliteStore(path).close()
    newest = file.SCHEMA_VERSION
    raw(path, f"PRAGMA user_version = {newest - 1}")
    expected = f"has schema {newest - 1}, this forewarn needs {newest}.*forewarn db backup.*forewarn db migrate --store"
    with pytest.raises(StoreUnavailable, match=expected):
        SqliteStore(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The message says what to check."""
    with pytest.raises(StoreUnavailable, match=r"nowhere/x\.db: it cannot be opened: check that its folder exists"):
        SqliteStore(tmp_path / "nowhere" / "x.db")


def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    """Reading a broken page ends with the advice to restore, not with wrong data."""
    path = tmp_path / "x.db"
    with opened(path) as store:
        store.apply(change(maintenances=[maintenance(f"M{n}", description=UNICODE) for n in range(2_000)]))
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half:] = b"\xa5" * (len(content) - half)
    path.write_bytes(content)
    with opened(path) as store, pytest.raises(StoreUnavailable, match="it is damaged: restore a backup with"):
        store.snapshot(Focus(maintenances=tuple(f"M{n}" for n in range(2_000))))


# -- how it is opened


def test_what_is_acknowledged_is_on_disk(tmp_path: Path) -> None:
    """The writer uses a write-ahead log, waits for the disk at every commit, and checks references."""
    with opened(tmp_path / "x.db") as store:
        pragmas = {p: store._writer.execute(f"PRAGMA {p}").fetchone()[0] for p in ("journal_mode", "synchronous")}
        assert pragmas == {"journal_mode": "wal", "synchronous": 2}
        assert store._writer.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_a_reader_is_not_blocked_by_a_writer(tmp_path: Path) -> None:
    """While a transaction is under way others read what was saved before."""
    with opened(tmp_path / "x.db") as store, opened(tmp_path / "x.db") as other:
        store.apply(one_maintenance())
        with other._writing() as writer:
            writer.execute(
                "wake_maintenances", ids=writer.as_list(["M1"]), waiting_for_budget=False, at=time_text(at(5))
            )
            assert store.next_wakeup() is None
        assert store.next_wakeup() == at(5)


def test_a_brief_read_uses_the_writing_connection_unless_a_write_is_under_way(tmp_path: Path) -> None:
    """The reads of a tick share the page cache of the writer; during a write they wait for nothing and read what was saved."""
    focus = Focus(maintenances=("M1",), current_waves=True)
    with opened(tmp_path / "x.db") as store:
        store.apply(one_maintenance())
        assert store.snapshot(focus).maintenances["M1"].wake_at is None
        assert not store._readers
        with store._writing() as writer:
            writer.execute("wake_everything", at=time_text(at(5)))
            assert store.snapshot(focus).maintenances["M1"].wake_at is None
        assert store.snapshot(focus).maintenances["M1"].wake_at == at(5)


def test_a_writer_that_is_locked_out_says_who_is_to_blame(tmp_path: Path) -> None:
    """A lock held too long by another process is an error in our words."""
    with opened(tmp_path / "x.db") as store, opened(tmp_path / "x.db") as other, other._writing():
        store._writer.execute("PRAGMA busy_timeout = 50")
        with pytest.raises(StoreUnavailable, match="another process kept it locked"):
            store.apply(one_maintenance())
        assert store.maintenance("M1") is None


def test_threads_come_and_go_without_a_trace(tmp_path: Path) -> None:
    """A web server's threads are short-lived: connections are used again, not piled up."""
    with opened(tmp_path / "x.db") as store:
        store.next_wakeup()
        before = open_files(tmp_path)
        assert before > 0
        for _ in range(30):
            thread = threading.Thread(target=store.next_wakeup)
            thread.start()
            thread.join()
        assert open_files(tmp_path) == before


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Using it after close is an error of ours, not one of SQLite's."""
    with opened(tmp_path / "x.db") as store:
        store.next_wakeup()
    for use in (store.next_wakeup, lambda: store.apply(one_maintenance())):
        with pytest.raises(StoreUnavailable, match="closed"):
            use()


# -- a full disk


def fill_up(store: SqliteStore, make: Callable[[int], Change], most: int = 5_000) -> tuple[int, StoreUnavailable]:
    """Save changes until one fails: how many were saved, and the error."""
    for number in range(most):
        try:
            store.apply(make(number))
        except StoreUnavailable as error:
            return number, error
    raise AssertionError(f"{most} changes fitted on the disk")


def heavy(number: int) -> Change:
    """A change of many parts and some kilobytes."""
    return change(
        maintenances=[maintenance(f"M{number}", description=KILOBYTE * 8)],
        events=[event(f"E{number}-{n}", f"M{number}", position=n, resources=(f"web-{n}",)) for n in range(3)],
        audit=[entry(f"{number}")],
    )


def test_a_full_disk_loses_nothing_and_recovers(tmp_path: Path) -> None:
    """The change that no longer fits is refused whole; reading goes on; once there is room the same change is saved."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 2**20)
        with opened(disk / "x.db") as store:
            saved, error = fill_up(store, heavy)
            assert re.search(r"x\.db: the disk is full: free some space; nothing was saved", str(error))
            assert saved > 100, "the log was copied back into the file at least once before the disk was full"
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="the disk is full"):
                    store.apply(heavy(saved))
                assert store.maintenance(f"M{saved}") is None
                assert store.maintenance(f"M{saved - 1}") is not None
                assert store.events(EventQuery(maintenance_id=f"M{saved}")).events == ()
                assert [e.action for e in store.audit(AuditQuery(limit=1))] == [f"{saved - 1}"]
            ballast.unlink()
            store.apply(heavy(saved))
        with opened(disk / "x.db") as store:
            assert len(store.snapshot(Focus(maintenances=tuple(f"M{n}" for n in range(saved + 1)))).events) == 3 * (
                saved + 1
            )
        assert intact(disk / "x.db")


def test_opening_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """A service that restarts on a full disk names the reason, for an old database and for a new one."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        with opened(disk / "x.db") as store:
            store.apply(one_maintenance())
        fill(disk / "ballast")
        for name in ("x.db", "new.db"):
            with pytest.raises(StoreUnavailable, match="the disk is full: free some space"):
                SqliteStore(disk / name)
        (disk / "ballast").unlink()
        with opened(disk / "x.db") as store, opened(disk / "new.db") as new:
            assert store.maintenance("M1") is not None
            assert new.maintenance("M1") is None


def test_a_backup_that_does_not_fit_leaves_no_backup(tmp_path: Path) -> None:
    """Half a copy never bears the name of a backup."""
    with opened(tmp_path / "x.db") as store:
        store.apply(change(maintenances=[maintenance(f"M{n}", description=KILOBYTE * 8) for n in range(50)]))
    with small_disk(tmp_path / "disk", "128k") as disk:
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            file.backup(tmp_path / "x.db", disk / "copy.db")
        assert not (disk / "copy.db").exists()


# -- a read-only disk


def test_a_read_only_folder_is_refused_with_advice(tmp_path: Path) -> None:
    """Opening, migrating and restoring say what to check, and the file stays as it is."""
    path = tmp_path / "disk" / "x.db"
    path.parent.mkdir()
    with opened(path) as store:
        store.apply(one_maintenance())
    before = path.read_bytes()
    file.backup(path, tmp_path / "copy.db")
    advice = "check that its folder exists and may be written"
    with read_only(path.parent):
        for use in (SqliteStore, migrate, lambda p: file.restore(tmp_path / "copy.db", p, change())):
            with pytest.raises(StoreUnavailable, match=advice):
                use(path)
        with pytest.raises(StoreUnavailable, match=advice):
            SqliteStore(path.with_name("new.db"))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir() if p.suffix != ".lock"] == ["x.db"]


def test_a_read_only_file_can_be_read(tmp_path: Path) -> None:
    """Reads work, a write is refused with advice and leaves nothing."""
    path = tmp_path / "x.db"
    with opened(path) as store:
        store.apply(one_maintenance())
    with read_only(path), opened(path) as store:
        known = store.maintenance("M1")
        assert known is not None
        with pytest.raises(StoreUnavailable, match="it is read-only: check the permissions of the file"):
            store.apply(change(scopes=[scope("blog")], maintenances=[replace(known, paused=True)]))
        assert store.maintenance("M1") == known
        assert set(store.inventory().scopes) == {"shop"}


def test_a_backup_can_be_restored_from_a_read_only_disk(tmp_path: Path) -> None:
    """A backup is one file that stands alone: nothing need be written beside it."""
    with opened(tmp_path / "x.db") as store:
        store.apply(one_maintenance())
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    file.backup(tmp_path / "x.db", shelf / "copy.db")
    assert [p.name for p in shelf.iterdir()] == ["copy.db"]
    with read_only(shelf):
        file.restore(shelf / "copy.db", tmp_path / "y.db", change())
    with opened(tmp_path / "y.db") as store:
        assert store.maintenance("M1") is not None


# -- one process

HOLD = """
import sys
from pathlib import Path
from forewarn.store.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.claim()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that holds the store until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    """One process serves a file: the error of the second names the pid of the first; the second may still read."""
    path = tmp_path / "x.db"
    with holder(path) as process, opened(path) as store:
        with pytest.raises(StoreInUse, match=rf"is used by another forewarn process \(pid {process.pid}\)"):
            store.claim()
        assert store.next_wakeup() is None


def test_kill_lets_go_of_the_store(tmp_path: Path) -> None:
    """The kernel releases what a killed process held: nothing has to be cleaned up by hand."""
    path = tmp_path / "x.db"
    with holder(path) as process, opened(path) as store:
        process.send_signal(signal.SIGKILL)
        process.wait()
        store.claim()
        with opened(path) as other, pytest.raises(StoreInUse, match=f"pid {os.getpid()}"):
            other.claim()


STARTS_A_PROGRAM = """
import os
import sys
from pathlib import Path
from forewarn.store.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.claim()
if os.fork():
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_program_that_a_killed_process_was_starting_holds_the_store_for_a_moment_only(tmp_path: Path) -> None:
    """A child has the locks of its dead parent until it has become another program: the next process waits for it."""
    path = tmp_path / "x.db"
    command = [sys.executable, "-c", STARTS_A_PROGRAM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert process.wait(PATIENCE_S) == 0

        def end_child(_: float) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            assert process.stdout.read() == b""  # until the child has ended

        os.close(file.lock_file(path, pause=end_child))


def test_close_lets_go_of_the_store(tmp_path: Path) -> None:
    """A store that was closed in order can be held by the next."""
    path = tmp_path / "x.db"
    with opened(path) as store:
        store.claim()
    with opened(path) as store:
        store.claim()
        with pytest.raises(StoreInUse):
            file.SqliteDatabase(path).migrate()


def test_what_needs_a_database_does_not_make_one(tmp_path: Path) -> None:
    """A mistyped path is an error, not a new empty database."""
    missing = tmp_path / "typo.db"
    for use in (
        describe,
        migrate,
        lambda p: file.backup(p, tmp_path / "copy.db"),
    ):
        with pytest.raises(NotFound, match="there is no database"):
            use(missing)
    assert list(tmp_path.iterdir()) == []
