"""A PostgreSQL server of its own for a dump: in a new folder, on a free port of loopback, gone at the end."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import reserved_port

from scripts.surface_parts.checkout import until


def program(name: str) -> str:
    """Debian keeps the server's programs out of the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    assert found, f"{name} is missing: run scripts/test_tools"
    return found


def run(name: str, *words: str) -> str:
    return subprocess.run(_as_postgres(program(name), *words), capture_output=True, text=True, check=True).stdout


def _as_postgres(*command: str) -> list[str]:
    """The server refuses to run as root, and ends when we do."""
    if os.geteuid() != 0:
        return list(command)
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL", *command]


class Server:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process = process
        self.port = port
        self.address = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def stop(self) -> None:
        """SIGQUIT: at once, with all connections."""
        if self._process.poll() is None:
            self._process.send_signal(3)
            self._process.wait()

    def schema(self) -> str:
        return run(
            "pg_dump",
            "--schema-only",
            "--no-owner",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "postgres",
            "postgres",
        )


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    folder.mkdir(mode=0o755)
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
    run("initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    with reserved_port() as reserved, _started(folder, reserved.getsockname()[1]) as server:
        yield server


@contextmanager
def _started(folder: Path, port: int) -> Iterator[Server]:
    settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off"}
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            _as_postgres(program("postgres"), "-D", str(folder / "data"), *words),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Server(process, port)
    try:
        until(lambda: _answers(port), "PostgreSQL answers")
        yield server
    finally:
        server.stop()


def _answers(port: int) -> bool:
    found = subprocess.run([program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)], check=False)
    return found.returncode == 0
