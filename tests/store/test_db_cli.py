"""`forewarn db`: what an operator types, sees and gets as an exit code. Most commands run in the process of the test."""

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from forewarn.core.model import AuditEntry, Status
from forewarn.service.leases import NodeLeases
from forewarn.store import AuditQuery, EventQuery, Focus
from forewarn.store.audit_chain import ChainCheck
from forewarn.store.postgres.store import PostgresStore
from forewarn.store.sqlite import file
from forewarn.store.sqlite.file import SCHEMA_VERSION, backup
from forewarn.store.sqlite.store import SqliteStore
from tests.support.commands import run_here
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED
from tests.support.records import at, change, entry, event, one_maintenance, order, scope, session, token
from tests.support.waiting import until

FOREWARN = [sys.executable, "-m", "forewarn"]
DONE, FAILED, USAGE = 0, 1, 2


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Ours without any setting of forewarn's; state, if any is made, stays in the test's folder."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return {**clean, "XDG_STATE_HOME": str(folder / "state"), **more}


def db(path: Path, *words: object, answer: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
    command = ["db", *map(str, words), "--store", f"sqlite:{path}"]
    return run_here(*command, typed=answer, variables=environment(path.parent, **more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with two scopes, a machine, a maintenance, an open and an ended event, and an audit entry."""
    path = tmp_path / "forewarn.db"
    with closing(SqliteStore(path)) as store:
        store.apply(one_maintenance())
        over = event("E2", position=1, status=Status.COMPLETED, resources=("web-1",))
        store.apply(change(scopes=[scope("blog")], events=[over], audit=[entry()]))
    return path


def names(path: Path) -> set[str]:
    """The scopes in a database: enough to tell one from another."""
    with closing(SqliteStore(path)) as store:
        return set(store.inventory().scopes)


def add_scope(path: Path, name: str) -> None:
    with closing(SqliteStore(path)) as store:
        store.apply(change(scopes=[scope(name)]))


# -- status


def test_status_says_where_and_how_much(path: Path) -> None:
    """One line per fact: the file, its schema, its size, and what is in it."""
    size = path.stat().st_size
    seen = db(path, "status")
    assert (seen.returncode, seen.stderr) == (DONE, "")
    assert seen.stdout.splitlines() == [
        f"database   {path}",
        f"schema     {SCHEMA_VERSION} (this forewarn: {SCHEMA_VERSION})",
        f"size       {size:,} bytes",
        "scopes     2",
        "machines   1",
        "open       1",
        "events     2",
        "audit      1",
    ]


def test_status_counts_the_write_ahead_log(path: Path) -> None:
    """The newest changes of a running service are in the log beside the file, and their size is counted."""
    with closing(SqliteStore(path)) as store:
        store.apply(change(scopes=[scope("later")]))
        wal = path.with_name(path.name + "-wal").stat().st_size
        assert wal > 0
        size_line = db(path, "status").stdout.splitlines()[2]
        assert size_line == f"size       {path.stat().st_size + wal:,} bytes, {wal:,} of them in the write-ahead log"


def test_status_of_another_version_says_no_more_than_it_knows(path: Path) -> None:
    """A newer database is named with its schema; its tables are not guessed at."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    seen = db(path, "status")
    assert seen.returncode == DONE
    assert seen.stdout.splitlines()[1] == f"schema     99 (this forewarn: {SCHEMA_VERSION})"
    assert len(seen.stdout.splitlines()) == 3


@pytest.mark.parametrize("words", [("status",), ("migrate",), ("backup", "copy.db")], ids=lambda words: words[0])
def test_a_missing_database_is_not_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A mistyped path ends with 1 and a sentence; no file appears."""
    seen = db(tmp_path / "typo.db", words[0], *(tmp_path / word for word in words[1:]))
    assert (seen.returncode, seen.stdout) == (FAILED, "")
    assert seen.stderr == (
        f"forewarn: there is no database {tmp_path / 'typo.db'}: run this on the service's machine, name the database with"
        " --store sqlite:PATH, or use the portal's page Store\n"
    )
    assert list(tmp_path.glob("*.db*")) == []


def test_a_store_without_a_file_is_wrong_usage(tmp_path: Path) -> None:
    """There is nothing to look after in memory: exit code 2."""
    command = [*FOREWARN, "db", "status", "--store", "memory:"]
    seen = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert seen.returncode == USAGE
    assert "a memory: store has no file; name one with --store sqlite:PATH" in seen.stderr


def test_the_default_database_is_that_of_serve(path: Path) -> None:
    """Without --store the commands mean the file in the state directory."""
    folder = path.parent / "elsewhere"
    folder.mkdir()
    path.rename(folder / "forewarn.db")
    settings = environment(path.parent, FOREWARN_STATE_DIR=str(folder))
    seen = subprocess.run([*FOREWARN, "db", "status"], env=settings, capture_output=True, text=True, check=False)
    assert seen.returncode == DONE
    assert seen.stdout.startswith(f"database   {folder / 'forewarn.db'}\n")


# -- migrate


def test_migrate_leaves_a_current_database_alone(path: Path) -> None:
    """Running it again is safe and says where things stand."""
    seen = db(path, "migrate")
    assert (seen.returncode, seen.stdout) == (DONE, f"{path} has schema {SCHEMA_VERSION}\n")
    assert names(path) == {"shop", "blog"}


def test_migrate_names_each_step(tmp_path: Path) -> None:
    """An operator sees what was done."""
    (tmp_path / "x.db").touch()
    seen = db(tmp_path / "x.db", "migrate")
    assert seen.returncode == DONE
    assert seen.stdout.splitlines()[0] == "applied 0001 initial"
    assert seen.stdout.splitlines()[-1] == f"{tmp_path / 'x.db'} has schema {SCHEMA_VERSION}"


def test_migrate_refuses_what_is_not_its_to_change(path: Path) -> None:
    """A newer database and garbage end with 1, one line and no change."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    seen = db(path, "migrate")
    assert (seen.returncode, seen.stdout) == (FAILED, "")
    assert "made by a newer forewarn" in seen.stderr
    path.write_bytes(b"garbage " * 1_000)
    seen = db(path, "migrate")
    assert (seen.returncode, seen.stdout) == (FAILED, "")
    assert "it is not an SQLite database" in seen.stderr
    assert path.read_bytes() == b"garbage " * 1_000


# -- backup and restore


def test_a_backup_is_the_database(path: Path) -> None:
    """The copy is one file that holds the same and can be opened in its place."""
    copy = path.with_name("copy.db")
    seen = db(path, "backup", copy)
    assert (seen.returncode, seen.stderr) == (DONE, "")
    assert seen.stdout == f"{path} -> {copy} ({copy.stat().st_size:,} bytes)\n"
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(copy)) as two:
        assert list(one.iterdump()) == list(two.iterdump())
    assert [p.name for p in path.parent.glob("copy*")] == ["copy.db"]


def test_a_backup_overwrites_nothing(path: Path) -> None:
    """Yesterday's backup is not replaced by today's mistake."""
    copy = path.with_name("copy.db")
    copy.write_text("precious")
    seen = db(path, "backup", copy)
    assert (seen.returncode, seen.stdout) == (FAILED, "")
    assert seen.stderr == f"forewarn: {copy} exists: name a file that does not, so that no backup is overwritten\n"
    assert copy.read_text() == "precious"


def test_a_backup_into_no_folder_says_so(path: Path) -> None:
    """The message names what could not be written."""
    seen = db(path, "backup", path.with_name("nowhere") / "copy.db")
    assert seen.returncode == FAILED
    assert "it cannot be opened: check that its folder exists" in seen.stderr


def test_restore_brings_back_what_was_saved(path: Path) -> None:
    """What was changed since the backup is gone, what was in it is there; the backup stays."""
    copy = path.with_name("copy.db")
    backup(path, copy)
    add_scope(path, "later")
    seen = db(path, "restore", copy, "--yes")
    assert (seen.returncode, seen.stdout.splitlines()[0]) == (DONE, f"{copy} -> {path}")
    assert names(path) == names(copy) == {"shop", "blog"}


@pytest.mark.parametrize("revoke", [False, True])
def test_restore_says_what_becomes_of_tokens(path: Path, revoke: bool) -> None:
    """A token that was revoked after the backup is valid again, unless all are revoked; no login comes back."""
    copy = path.with_name("copy.db")
    with closing(SqliteStore(path)) as store:
        store.apply(change(tokens=[token("T1"), token("T2")]))
        store.add_session(session("S1"))
        store.record_token_uses({"T1": at(0)})
    backup(path, copy)
    with closing(SqliteStore(path)) as store:
        store.apply(change(removed_tokens=["T1"]))
    seen = db(path, "restore", copy, "--yes", *(["--revoke-tokens"] if revoke else []))
    assert (seen.returncode, seen.stdout.splitlines()[0]) == (DONE, f"{copy} -> {path}")
    with closing(SqliteStore(path)) as store:
        assert {kept.id for kept in store.tokens()} == (set() if revoke else {"T1", "T2"})
        assert store.session(session("S1").digest) is None
        newest, held, *_ = store.audit(AuditQuery(limit=2))
        chain = ChainCheck(store.audit_chain(), newest.hash)
        for each in store.audit(AuditQuery(after=0, limit=500)):
            chain.add(each)
        assert chain.finish() == ""
    if revoke:
        assert "2 token(s) of the backup are revoked" in seen.stderr
        assert (newest.who, newest.action, newest.detail) == (held.who, "token revoked", "all 2, at a restore")
    else:
        assert "2 token(s) of the backup are valid, also those that were revoked later" in seen.stderr
        assert "--revoke-tokens" in seen.stderr


def test_restore_makes_a_database_where_there_is_none(path: Path) -> None:
    """A new machine begins with a backup: nothing is replaced, so nothing is asked."""
    copy, new = path.with_name("copy.db"), path.with_name("new.db")
    backup(path, copy)
    assert db(new, "restore", copy).returncode == DONE
    assert names(new) == {"shop", "blog"}


@pytest.mark.parametrize(("answer", "code", "left"), [("n", FAILED, "blog later shop"), ("y", DONE, "blog shop")])
def test_restore_asks_first(path: Path, answer: str, code: int, left: str) -> None:
    """Replacing everything needs a yes, typed or given."""
    copy = path.with_name("copy.db")
    backup(path, copy)
    add_scope(path, "later")
    seen = db(path, "restore", copy, answer=f"{answer}\n")
    assert seen.returncode == code
    assert f"Replace everything in {path} by {copy}?" in seen.stdout + seen.stderr
    assert names(path) == set(left.split())


def broken(source: Path, how: str) -> None:
    """Make of a good backup a bad one."""
    if how == "garbage":
        source.write_bytes(b"garbage " * 1_000)
    elif how == "empty":
        source.write_bytes(b"")
    elif how == "cut short":
        source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    elif how == "damaged":
        content = bytearray(source.read_bytes())
        content[8_192:] = b"\xa5" * (len(content) - 8_192)
        source.write_bytes(content)
    else:
        with closing(sqlite3.connect(source)) as connection:
            statement = "PRAGMA user_version = 99" if how == "newer" else "PRAGMA application_id = 1"
            connection.execute(statement)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("garbage", "it is not an SQLite database"),
        ("empty", "is empty: it is not a backup of forewarn"),
        ("cut short", "damaged"),
        ("damaged", "damaged"),
        ("newer", "made by a newer forewarn"),
        ("foreign", "is a database of some other program"),
    ],
)
def test_a_bad_backup_is_refused_and_the_database_stays(path: Path, how: str, message: str) -> None:
    """What cannot be trusted replaces nothing, and is refused before the question."""
    copy = path.with_name("copy.db")
    backup(path, copy)
    broken(copy, how)
    before = path.read_bytes()
    seen = db(path, "restore", copy, answer="y\n")
    assert (seen.returncode, seen.stdout) == (FAILED, "")
    assert message in seen.stderr
    assert "Traceback" not in seen.stderr
    assert path.read_bytes() == before


def test_restore_from_nothing_is_refused(path: Path) -> None:
    """A mistyped backup is named."""
    seen = db(path, "restore", path.with_name("typo.db"), "--yes")
    assert seen.returncode == FAILED
    assert "typo.db" in seen.stderr
    assert names(path) == {"shop", "blog"}


def test_restore_mends_a_damaged_database(path: Path) -> None:
    """What the error message advises works."""
    copy = path.with_name("copy.db")
    backup(path, copy)
    broken(path, "damaged")
    assert "restore a backup with 'forewarn db restore'" in db(path, "status").stderr
    assert db(path, "restore", copy, "--yes").returncode == DONE
    assert names(path) == {"shop", "blog"}


# -- the hold of the store


def audit(path: Path) -> list[AuditEntry]:
    with closing(SqliteStore(path)) as store:
        return store.audit(AuditQuery())


def test_a_backup_that_is_not_there_is_named(path: Path) -> None:
    """The advice is about the backup, not about the database that it would replace."""
    seen = db(path, "restore", path.with_name("typo.db"), "--yes")
    assert seen.returncode == FAILED
    assert f"there is no backup {path.with_name('typo.db')}: name a file" in seen.stderr


def test_a_restored_database_is_held_and_audited(path: Path) -> None:
    """The command says so, and the audit names the backup, who restored it and from where."""
    copy = path.with_name("copy.db")
    backup(path, copy)
    seen = db(path, "restore", copy, "--yes")
    resume = f"'forewarn db resume --store sqlite:{path}'"
    assert f"the store is held: nothing starts until you run {resume}" in seen.stdout
    held, restored, *_ = audit(path)
    assert (restored.action, restored.detail) == ("database restored", f"from {copy}")
    assert (held.action, held.who) == ("store held", "forewarn db")
    assert held.origin.endswith(f"@{socket.gethostname()}")
    assert "held       a backup was restored" in db(path, "status").stdout


def test_resume_shows_what_would_happen_and_asks(path: Path) -> None:
    """The open order is listed. No ends with 1 and leaves the store held; yes resumes it; a second time is refused."""
    started = event("E3", position=2, status=Status.STARTED, resources=("web-2",))
    with closing(SqliteStore(path)) as store:
        store.apply(change(events=[started], orders=[order("E3")]))
    assert db(path, "resume", "--yes").returncode == FAILED
    resume = f"run 'forewarn db resume --store sqlite:{path}' to see"
    assert resume in db(path, "hold", "--reason", "a new disk").stdout
    assert "already held" in db(path, "hold").stderr
    seen = db(path, "resume", answer="n\n")
    assert seen.returncode == FAILED
    assert "requested it: a new disk" in seen.stdout
    assert "1 open order(s) would be handed out" in seen.stdout
    assert "E3" in seen.stdout
    assert "the store stays held: the question was not confirmed; --yes resumes" in db(path, "resume").stderr
    assert audit(path)[0].action == "store held"
    seen = db(path, "resume", "--yes")
    assert (seen.returncode, seen.stdout.splitlines()[-1]) == (DONE, "the store is resumed")
    assert audit(path)[0].action == "store resumed"
    assert "not held" in db(path, "resume", "--yes").stderr
    with closing(SqliteStore(path)) as store:
        store.apply(change(scopes=[scope("late", changed=at(10**9))]))
    assert db(path, "hold", FOREWARN_CLOCK="manual").returncode == DONE
    assert audit(path)[0].at >= at(10**9), (
        "a clock that is not the system's continues from the last change, as in the service"
    )


def test_an_old_backup_is_brought_up_to_date_and_held(path: Path) -> None:
    """A backup of an older release has no hold of its own: restoring migrates it first."""
    copy = path.with_name("copy.db")
    copy.touch()
    file.SqliteDatabase(copy).migrate(file.MIGRATIONS[:7])
    assert db(path, "restore", copy, "--yes").returncode == DONE
    with closing(SqliteStore(path)) as store:
        assert store.snapshot(Focus()).store_hold is not None


# -- while it is served


@contextmanager
def served(path: Path) -> Iterator["subprocess.Popen[str]"]:
    listeners = ["--operator", "127.0.0.1:0", "--guest", "127.0.0.1:0"]
    command = [*FOREWARN, "serve", "--store", f"sqlite:{path}", *listeners, "--log-level", "error"]
    with subprocess.Popen(command, env=environment(path.parent), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready")
            yield process
        finally:
            process.kill()


def test_a_served_database_is_copied_but_not_replaced(path: Path) -> None:
    """Status and backup work while the service runs; restore, before it asks, and migrate name the process and change nothing."""
    copy = path.with_name("copy.db")
    with served(path) as process:
        assert db(path, "status").returncode == DONE
        assert db(path, "backup", copy).returncode == DONE
        for words in (("restore", copy), ("migrate",)):
            seen = db(path, *words)
            assert (seen.returncode, seen.stdout) == (FAILED, "")
            assert f"is used by another forewarn process (pid {process.pid}): stop it" in seen.stderr
    assert names(path) == names(copy) == {"shop", "blog"}
    assert db(path, "restore", copy, "--yes").returncode == DONE


WRITER = """
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from forewarn.store import Focus
from forewarn.store.sqlite.store import SqliteStore
from tests.support.records import change, event, maintenance

store = SqliteStore(Path(sys.argv[1]))
pair = Focus(scopes=("shop", "blog"), whole_maintenances=False)
with Path(sys.argv[2]).open("ab", buffering=0) as acknowledged:
    for n in count(10):
        scopes = [replace(s, incarnation=n) for s in store.snapshot(pair).scopes.values()]
        events = [event(f"W{n}-{s.name}", f"W{n}", scope=s.name, position=i) for i, s in enumerate(scopes)]
        store.apply(change(scopes=scopes, maintenances=[maintenance(f"W{n}")], events=events))
        acknowledged.write(b".")
"""


@contextmanager
def written(path: Path, acknowledged: Path) -> Iterator[None]:
    """Another process changes two scopes, always together, as fast as it can."""
    acknowledged.touch()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(acknowledged)]) as process:
        try:
            until(lambda: process.poll() is not None or acknowledged.stat().st_size >= 5)
            yield
            assert process.poll() is None, "the writer wrote to the end"
        finally:
            process.kill()


def test_a_backup_of_a_busy_database_is_consistent(path: Path) -> None:
    """Copied in the middle of writing, it holds everything acknowledged before, and no half of a change."""
    acknowledged = path.with_name("acknowledged")
    with written(path, acknowledged):
        for number in range(3):
            copy, restored = path.with_name(f"copy-{number}.db"), path.with_name(f"restored-{number}.db")
            least = 9 + acknowledged.stat().st_size
            assert db(path, "backup", copy).returncode == DONE
            assert db(restored, "restore", copy).returncode == DONE
            with closing(SqliteStore(restored)) as store:
                seen = store.snapshot(Focus(scopes=("shop", "blog"), whole_maintenances=False))
                shop, blog = seen.scopes["shop"], seen.scopes["blog"]
                assert shop.incarnation == blog.incarnation >= least
                assert len(store.events(EventQuery(maintenance_id=f"W{shop.incarnation}")).events) == 2
            with closing(sqlite3.connect(restored)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


# -- a database that several nodes share


def shared(address: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [*FOREWARN, "db", *words, "--store", address]
    return subprocess.run(
        command,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_shared_database_is_made_and_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`migrate` puts the schema into an empty database, `status` says what is in it; twice does nothing."""
    monkeypatch.setattr("forewarn.service.leases.LEASE_S", 3_600)  # the node lives until the command has counted it
    address = SHARED.server.address(SHARED.server.database())
    made = shared(address, tmp_path, "migrate")
    assert (made.returncode, made.stdout.splitlines()[0]) == (DONE, "applied 0001 initial")
    assert shared(address, tmp_path, "migrate").stdout.splitlines() == made.stdout.splitlines()[-1:]
    with closing(PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)) as store:
        store.apply(one_maintenance())
        NodeLeases(store, "place:1", host="kvm-01").renew()
    status = shared(address, tmp_path, "status")
    assert status.returncode == DONE
    facts = dict(line.split(None, 1) for line in status.stdout.splitlines())
    assert (facts["scopes"], facts["machines"], facts["open"], facts["nodes"]) == ("1", "1", "1", "1")
    assert facts["database"] == address.replace("postgres@", "")


@pytest.mark.parametrize("words, instead", [(("backup", "x"), "pg_dump"), (("restore", "x", "--yes"), "pg_restore")])
def test_a_shared_database_has_its_own_tools_for_backups(tmp_path: Path, words: tuple[str, ...], instead: str) -> None:
    """Which ones is said, and nothing happens."""
    seen = shared("postgresql://nobody@127.0.0.1:1/x", tmp_path, *words)
    assert seen.returncode == USAGE
    assert instead in seen.stderr
    assert not (tmp_path / "x").exists()
