"""Open, create, migrate, back up and restore the SQLite file, and translate SQLite's errors."""

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from forewarn.core.change import Change
from forewarn.core.errors import Conflict, InvariantBroken, NotFound, Refused, StoreInUse, StoreUnavailable
from forewarn.core.model import AuditEntry
from forewarn.store.audit_chain import entry_hash
from forewarn.store.sql.rows import TEXT_ROWS
from forewarn.store.sql.scripts import Migration, migrations, queries, schema

APPLICATION_ID = 0x66777264  # "fwrd": tells our file from any other SQLite file
OLDEST_SQLITE = (3, 38, 0)
LOCK_WAIT_S = 5.0
# How long to wait for a lock whose process has ended.
LEFT_BEHIND_S = 10.0
LOCK_AGAIN_S = 0.05
MIGRATIONS = migrations("sqlite")
SCHEMA_VERSION = MIGRATIONS[-1].number
_SQL = queries("sqlite")
PARAMETER = re.compile(r":(\w+)")
# SQLite finds names by comparing texts, so an audit entry has its values by position; the last one is its hash.
# Row of the bench: one event per commit.
_ADD_AUDIT = PARAMETER.sub("?", _SQL["add_audit"])
_audit_values = TEXT_ROWS.audit.row_encoder(PARAMETER.findall(_SQL["add_audit"])[:-1])


class SqliteDatabase:
    """An SQLite file as `forewarn db` handles it."""

    newest_schema = SCHEMA_VERSION

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path

    def describe(self) -> list[tuple[str, str]]:
        """Return the schema version, size and row counts for `forewarn db`."""
        _require_file(self._path)
        with translated_errors(self._path), closing(connect(self._path)) as connection:
            version = schema_version(connection, self._path)
            facts = [
                ("schema", f"{version} (this forewarn: {SCHEMA_VERSION})"),
                ("size", _size_text(self._path)),
            ]
            if version != SCHEMA_VERSION:
                return facts
            counts = {
                "scopes": "SELECT count(*) FROM scopes",
                "machines": "SELECT count(*) FROM machines",
                "open": "SELECT count(*) FROM events WHERE ended IS NULL",
                "events": "SELECT count(*) FROM events",
                "audit": "SELECT count(*) FROM audit",
            }
            facts += [(name, f"{connection.execute(query).fetchone()[0]:,}") for name, query in counts.items()]
            held = connection.execute("SELECT detail FROM store_hold WHERE one = 1 AND resumed IS NULL").fetchone()
            return facts + ([("held", held["detail"])] if held else [])

    def migrate(self, steps: Sequence[Migration] = MIGRATIONS) -> list[str]:
        """Migrate the database; no process may be serving it."""
        _require_file(self._path)
        with translated_errors(self._path), locked(self._path), closing(connect(self._path)) as connection:
            return migrate(connection, self._path, steps)


def _size_text(path: Path) -> str:
    """Return the size of the file and its write-ahead log, which holds the newest changes."""
    wal = path.with_name(path.name + "-wal")
    wal_bytes = wal.stat().st_size if wal.exists() else 0
    in_wal = f", {wal_bytes:,} of them in the write-ahead log" if wal_bytes else ""
    return f"{path.stat().st_size + wal_bytes:,} bytes{in_wal}"


def connect(path: Path) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: forewarn needs {oldest} or later")
    _make_private(path)
    connection = sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        schema_version(connection, path)  # before WAL is set, which would write into another program's file
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Create the file for this user alone; SQLite gives the files beside it the same mode.

    If this fails, SQLite reports the error when it opens the file.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version, 0 for an empty file; refuse a database of another program."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application_id != APPLICATION_ID and tables:
        raise StoreUnavailable(
            f"{path} is a database of some other program: name another file with --store sqlite:PATH"
        )
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def require_current(connection: sqlite3.Connection, path: Path) -> None:
    version = schema_version(connection, path)
    _refuse_newer(version, path)
    if version < SCHEMA_VERSION:
        raise StoreUnavailable(
            f"{path} has schema {version}, this forewarn needs {SCHEMA_VERSION}: make a backup with"
            f" 'forewarn db backup', then run 'forewarn db migrate --store sqlite:{path}'"
        )


def _refuse_newer(version: int, path: Path) -> None:
    if version > SCHEMA_VERSION:
        raise StoreUnavailable(
            f"{path} has schema {version}, made by a newer forewarn; this one knows {SCHEMA_VERSION}: upgrade forewarn"
        )


def create(connection: sqlite3.Connection) -> None:
    """Create the schema in one transaction."""
    _script(connection, f"PRAGMA application_id = {APPLICATION_ID};\n{schema('sqlite')}", SCHEMA_VERSION)


def migrate(connection: sqlite3.Connection, path: Path, steps: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Bring an old database up to date, one transaction per step; return the names of the steps that were missing."""
    version = schema_version(connection, path)
    _refuse_newer(version, path)
    missing = [step for step in steps if step.number > version]
    for step in missing:
        _script(connection, f"PRAGMA application_id = {APPLICATION_ID};\n{step.script}", step.number)
    return [f"{step.number:04d} {step.name}" for step in missing]


def _script(connection: sqlite3.Connection, script: str, version: int) -> None:
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {version};\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def backup(path: Path, target: Path) -> None:
    """Copy a database, live or not, in one consistent piece; the copy appears under its name when it is complete."""
    _require_file(path)
    if target.exists():
        raise Refused(f"{target} exists: name a file that does not, so that no backup is overwritten")
    draft = target.with_name(target.name + ".partial")
    with translated_errors(path), closing(connect(path)) as connection:
        schema_version(connection, path)
        draft.unlink(missing_ok=True)
        with translated_errors(draft), closing(_plain(draft)) as writing:
            connection.backup(writing)
            # A file in WAL mode cannot be read in a read-only folder. A backup must be readable everywhere.
            writing.execute("PRAGMA journal_mode = DELETE")
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.rename(target)


def restore(
    source: Path,
    path: Path,
    change: Change,
    *,
    revoke_tokens: bool = False,
    ask: Callable[[], object] = lambda: None,
) -> int:
    """Replace a database by a backup as one transaction: a crash leaves the old one or the new one.

    `ask` is called once the backup and the database are checked; an error that it raises ends the restore.

    A backup of an older release gets the current schema. `change` holds the store and says so in the audit.
    Return the number of tokens in the backup. They are valid again unless all are revoked; logins always end.
    """
    if not source.is_file():
        raise NotFound(f"there is no backup {source}: name a file that `forewarn db backup` wrote")
    with translated_errors(source), closing(_plain(source)) as reading:
        version = schema_version(reading, source)
        _refuse_newer(version, source)
        if version == 0:
            raise StoreUnavailable(f"{source} is empty: it is not a backup of forewarn")
        damage = reading.execute("PRAGMA quick_check").fetchone()[0]
        if damage != "ok":
            raise StoreUnavailable(f"{source} is damaged ({damage}): restore another backup")
        draft = path.with_name(path.name + ".restoring")
        with translated_errors(path), locked(path):
            ask()
            draft.unlink(missing_ok=True)
            try:
                with closing(_plain(draft)) as between, closing(_plain(path)) as writing:
                    reading.backup(between)
                    migrate(between, draft)
                    begin_anew(between, change)
                    tokens = _count_tokens(between)
                    if revoke_tokens:
                        _revoke_tokens(between, tokens, change)
                    between.backup(writing)
            finally:
                draft.unlink(missing_ok=True)
        return tokens


def begin_anew(connection: sqlite3.Connection, change: Change) -> None:
    """Give a restored or replaced database a new identity, new epochs, the hold and its audit entries."""
    connection.execute(_SQL["change_identity"])
    connection.execute(_SQL["begin_epochs"])
    connection.execute("DELETE FROM sessions")  # the backup may contain logins that have ended since
    if change.store_hold is not None:
        connection.execute(_SQL["hold_store"], TEXT_ROWS.store_hold.encode(change.store_hold))
    add_audit(connection, change.audit)


def add_audit(connection: sqlite3.Connection, entries: Sequence[AuditEntry]) -> None:
    """Add audit entries to the end of the chain, in the open transaction."""
    if not entries:
        return
    newest = connection.execute(_SQL["newest_audit"]).fetchone() or connection.execute(_SQL["audit_start"]).fetchone()
    head, values = newest[1], []
    for entry in entries:
        head = entry_hash(head, entry)
        values.append((*_audit_values(entry), head))
    connection.executemany(_ADD_AUDIT, values)


def _count_tokens(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM tokens").fetchone()[0]
    return count


def _revoke_tokens(connection: sqlite3.Connection, tokens: int, change: Change) -> None:
    """Delete all tokens of a restored database and say so in the audit, by the actor of the change."""
    connection.execute("DELETE FROM tokens")
    connection.execute("DELETE FROM token_uses")
    entry = replace(change.audit[0], action="token revoked", detail=f"all {tokens}, at a restore")
    add_audit(connection, [entry])


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise NotFound(
            f"there is no database {path}: run this on the service's machine, name the database with --store sqlite:PATH,"
            " or use the portal's page Store"
        )


def _plain(path: Path) -> sqlite3.Connection:
    """Open without WAL and pragmas, for copies: a copy takes the journal mode of its source."""
    _make_private(path)
    return sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock inside the block."""
    lock = lock_file(path)
    try:
        yield
    finally:
        os.close(lock)


def lock_file(path: Path, *, pause: Callable[[float], None] = time.sleep) -> int:
    """Lock the file for this process and return the lock; the kernel releases it when the process ends.

    A process that is killed while it starts a program leaves its lock to that program for a moment. Wait for it.
    """
    name = path.with_name(path.name + ".lock")
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"{name} cannot be opened ({error.strerror}): check that its folder exists and may be written"
        ) from None
    deadline_s = time.monotonic() + LEFT_BEHIND_S
    while not _try_lock(lock):
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        if not _has_ended(holder) or time.monotonic() > deadline_s:
            os.close(lock)
            raise StoreInUse(
                f"{path} is used by another forewarn process (pid {holder or 'unknown'}): stop it, or name another --store"
            )
        pause(LOCK_AGAIN_S)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_ended(holder: str) -> bool:
    """Whether the process that wrote its pid into the lock surely runs no more."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        pass  # another user's process, or the process has not written its pid yet
    return False


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors: what happened, where, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise explained(error, path) from error


def explained(error: sqlite3.Error, path: Path) -> Exception:
    """Return the error that the store raises instead of SQLite's."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_CONSTRAINT"):
        if "machine_addresses" in str(error) or "instance_id" in str(error):
            return Conflict(f"another machine has the same address or instance id ({error})")
        return InvariantBroken(f"the database refused a change that breaks its rules ({error}); nothing was saved")
    advice = {
        "SQLITE_FULL": "the disk is full: free some space",
        "SQLITE_IOERR_SHMSIZE": "the disk is full: free some space",
        "SQLITE_READONLY": "it is read-only: check the permissions of the file and of its folder",
        "SQLITE_CANTOPEN": "it cannot be opened: check that its folder exists and may be written",
        "SQLITE_BUSY": f"another process kept it locked for {LOCK_WAIT_S:.0f} s: find the process that uses it",
        "SQLITE_NOTADB": "it is not an SQLite database: name another file",
        "SQLITE_CORRUPT": "it is damaged: restore a backup with 'forewarn db restore'",
        "SQLITE_IOERR": "the disk reports errors: check the system log",
    }
    advice_text = next((text for code, text in advice.items() if name.startswith(code)), str(error))
    return StoreUnavailable(f"{path}: {advice_text}; nothing was saved ({name or type(error).__name__})")
