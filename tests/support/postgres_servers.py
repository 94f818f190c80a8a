"""A real PostgreSQL for the tests: its own folder, its own port, gone at the end. It must not run as root."""

import atexit
import fcntl
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path

import psycopg

from forewarn.store.postgres.dsn import TimeLimits
from forewarn.store.postgres.store import PostgresStore
from tests.folders import folder_for_every_user
from tests.support.ports import reserved_port
from tests.support.processes import kill_with_children
from tests.support.waiting import PATIENCE_S, until

# Far more than a server or one of its programs needs on a busy machine.
START_WITHIN_S = 300.0
# For a store whose changes bear the times of a test instead of the database's.
ANY_TIME_S = 1e9
# For a store of a test that is not about time: a busy machine may need any time for a statement and between two of them.
UNHURRIED = TimeLimits(connect_s=600, statement_s=600, lock_s=600, silent_s=600, free_s=600)
# The name of the variable with the folder for what the parts of a run share.
SHARED_FOLDER = "TEST_SHARED_FOLDER"
FAST = {
    # Nothing here must survive a power cut; what survives kill -9 does so without it.
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "16MB",
    "autovacuum": "off",
}


def program(name: str) -> str:
    """Debian keeps the server's programs out of the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    assert found, f"{name} is missing: run scripts/test_tools"
    return found


def as_postgres(*command: str) -> list[str]:
    if os.geteuid() != 0:
        return list(command)
    # Whoever kills the tests kills the servers with them.
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL", *command]


def run_program(name: str, *arguments: str) -> None:
    # The user postgres may have no right to be in the folder that the tests were started in.
    done = subprocess.run(
        as_postgres(program(name), *arguments),
        capture_output=True,
        text=True,
        timeout=START_WITHIN_S,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr


def give_to_postgres(folder: Path) -> None:
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)


@cache
def _empty_data() -> Path:
    """Return the data folder of a server that was never started, for servers to copy: initdb takes a second of CPU.

    All parts of a run share the one in the folder that `scripts/test_parts.py` names. Else it is made for this process.
    """
    folder = Path(os.environ.get(SHARED_FOLDER, "") or folder_for_every_user("forewarn-initdb-"))
    if SHARED_FOLDER not in os.environ:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data, unfinished = folder / "data", folder / "unfinished"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not data.exists():
            give_to_postgres(folder)
            shutil.rmtree(unfinished, ignore_errors=True)
            run_program("initdb", "-D", str(unfinished), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
            unfinished.rename(data)
    return data


class Server:
    """One PostgreSQL server in a folder of its own."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self._reserved = reserved_port()
        self.port: int = self._reserved.getsockname()[1]
        self._settings = {**FAST, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)

    def make(self) -> "Server":
        self._own_folder()
        run_program("cp", "-a", str(_empty_data()), str(self.folder / "data"))
        return self

    def copy(self, folder: Path) -> "Server":
        """A replica that follows this server."""
        other = Server(folder, **self._settings)
        other._own_folder()
        run_program(
            "pg_basebackup", "-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-R",
            "-c", "fast", "--no-sync",
        )  # fmt: skip
        return other

    def _own_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        give_to_postgres(self.folder)

    def start(self) -> "Server":
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **self._settings,
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                as_postgres(program("postgres"), "-D", str(self.folder / "data"), *arguments),
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )
        deadline_s = time.monotonic() + START_WITHIN_S
        while True:
            # A server that listens and does not take connections yet says so at once.
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self.address("postgres"), connect_timeout=int(PATIENCE_S)),
            ):
                return self
            failed = time.monotonic() > deadline_s or self._process.poll() is not None
            assert not failed, (self.folder / "log").read_text()
            time.sleep(0.02)

    def address(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        with psycopg.connect(self.address(database), autocommit=True, connect_timeout=int(PATIENCE_S)) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def let_commits_wait(self) -> None:
        """Let every commit wait for a standby that does not exist."""
        self.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self.execute("SELECT pg_reload_conf()")
        until(lambda: self.execute("SHOW synchronous_standby_names") == [("nobody",)])
        # Commits begin to wait when the checkpointer has read the setting, too. It does so between two checkpoints.
        for _ in range(2):
            self.execute("CHECKPOINT")

    def let_commits_go_on(self) -> None:
        """End what `let_commits_wait` began, also for the commits that wait."""
        self.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self.execute("SELECT pg_reload_conf()")

    def database(self, template: str = "template0") -> str:
        """A fresh one; its name."""
        name = f"test_{next(self._names)}"
        # A template must have no session, and the server may need a while to end those whose clients have left.
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{template}'"
        until(lambda: self.execute(sessions) == [(0,)], detail=lambda: f"{template} is in use")
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def kill(self) -> None:
        """Kill the postmaster and the processes that it started: while one of them lives, the server cannot start again."""
        if self._process is not None:
            kill_with_children(self._process)
            self._process = None

    def close(self) -> None:
        """Kill it and give its port back."""
        self.kill()
        self._reserved.close()


@contextmanager
def server(**settings: str) -> Iterator[Server]:
    """One that runs, and its folder, for as long as it is needed."""
    folder = folder_for_every_user("forewarn-postgres-")
    running = Server(folder / "one", **settings)
    try:
        yield running.make().start()
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


class Shared:
    """The server of a whole test session, started when first asked for; a template with the schema saves time."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: Server | None = None
        self._reused = ""
        self._broom: psycopg.Connection[tuple[object, ...]] | None = None

    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = self._stack.enter_context(server())
            self._server.execute("CREATE DATABASE forewarn_template TEMPLATE template0")
            PostgresStore(self._server.address("forewarn_template"), limits=UNHURRIED).close()
        return self._server

    @property
    def reused(self) -> str:
        """The address that `emptied` gave last."""
        return self._reused

    def close(self) -> None:
        self._stack.close()

    def fresh(self) -> str:
        """The address of a database of one's own, with the schema."""
        return self.server.address(self.server.database("forewarn_template"))

    def emptied(self) -> str:
        """The address of a database that nobody uses any more, with nothing in it: much faster than a fresh one."""
        if self._broom is None:
            self._reused = self.server.address(self.server.database("forewarn_template"))
            self._broom = self._stack.enter_context(psycopg.connect(self._reused, autocommit=True))
        self._broom.execute(_EMPTY.encode())
        return self._reused


# Machines before scopes and events before maintenances; what belongs to one thing alone goes with it.
_EMPTY = "SET search_path = forewarn;" + "".join(
    f"DELETE FROM {table};"
    for table in (
        "machines", "scopes", "events", "maintenances", "audit", "tokens", "sessions", "receipts", "changes", "leases",
        "clock_hold", "hooks", "hosts",
    )
) + "UPDATE store_hold SET held = 'epoch', resumed = 'epoch', identity = ''; UPDATE audit_start SET id = 0, hash = '';" + (
    "UPDATE fleet_rules SET windows = '[]', no_go_times = '[]', max_hosts_down = 0, max_machines_down = 0, version = 0,"
    " reservations = 0;"
) + "".join(
    f"ALTER SEQUENCE {name} RESTART;" for name in ("events_number_seq", "audit_id_seq", "changes_number_seq")
)  # fmt: skip

SHARED = Shared()
