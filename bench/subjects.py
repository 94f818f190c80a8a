"""Who is measured, each a real process on the first core: `forewarn serve` as in production, and its peer nginx."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE_S, until

from bench.guests import PATH
from bench.measure import resident_bytes, spent_cpu_s

# The first two that this process may use; the only one, if there are not two.
SERVER_CORE, LOAD_CORE = (sorted(os.sched_getaffinity(0)) * 2)[:2]
# Checked and counted, but never reached: the load comes from fewer machines than there are connections.
NO_LIMIT = "1000000"
LIMITS = {f"FOREWARN_{name}": NO_LIMIT for name in ("RATE_LIMIT", "GUEST_CONNECTIONS", "GUEST_WAITING")}
TOOLS = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux"}

NGINX = """
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 15000; }}
http {{
    access_log off;
    keepalive_timeout 75s;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = {path} {{
            default_type "application/json; charset=utf-8";
            if ($http_metadata != "true") {{ return 400; }}
            if ($args != "{query}") {{ return 400; }}
            return 200 '{body}';
        }}
    }}
}}
"""


@dataclass(slots=True)
class Subject:
    name: str
    pid: int
    port: int

    def cpu_s(self) -> float:
        return spent_cpu_s(self.pid)

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)


def missing_tools() -> list[str]:
    """What must be installed first, as a sentence for each."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    return [f"{name} is missing: apt-get install -y {TOOLS[name]}, or run scripts/bench_tools" for name in missing]


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the system gives to no other process until the end of the block.

    The reserving socket is bound and does not listen, so a server that sets SO_REUSEADDR can listen on the same port, and again
    after a restart.
    """
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        yield reserving.getsockname()[1]


def pinned(command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", str(SERVER_CORE), *command]


@contextmanager
def serving(database: Path, port: int = 0, *, limits: Mapping[str, str] = LIMITS) -> Iterator[Subject]:
    with serving_at("forewarn", f"sqlite:{database}", database.parent, port, limits=limits) as subject:
        yield subject


@contextmanager
def serving_at(
    name: str,
    store: str,
    state: Path,
    port: int = 0,
    *,
    limits: Mapping[str, str] = LIMITS,
    options: Sequence[str] = (),
) -> Iterator[Subject]:
    """`forewarn serve`, ready. The system clock unless `options` name another; every check, counter and limit on.

    Without a `port` the system chooses one.
    """
    command = [
        *(sys.executable, "-m", "forewarn", "serve", "--store", store, "--log-level", "error"),
        *("--guest", f"127.0.0.1:{port}", "--operator", "127.0.0.1:0", "--state-dir", str(state)),
        *options,
    ]
    with _ready(name, command, limits) as subject:
        yield subject


@contextmanager
def bare_loop(folder: Path, answer: bytes) -> Iterator[Subject]:
    """The system calls of a poll, in plain Python, without any of our code."""
    kept = folder / "bare-loop-answer"
    kept.write_bytes(answer)
    with _ready("bare loop", [sys.executable, "-m", "bench.bare_loop", str(kept)]) as subject:
        yield subject


@contextmanager
def _ready(name: str, command: Sequence[str], limits: Mapping[str, str] = LIMITS) -> Iterator[Subject]:
    with _running(pinned(command), limits) as process:
        line = next((each for each in process.stdout or () if each.startswith("ready ")), "")
        if not line:
            raise RuntimeError(f"{name} ended before it was ready")
        yield Subject(name, process.pid, guest_port(line))


def guest_port(ready: str) -> int:
    """The guest listener's port, from the line `forewarn serve` prints when it is ready."""
    urls = dict(pair.split("=", 1) for pair in ready.split()[1:])
    return int(urls["guest"].rpartition(":")[2])


@contextmanager
def nginx(folder: Path, body: bytes) -> Iterator[Subject]:
    """One worker that returns the body from its configuration after looking at the header and the query."""
    path, _, query = PATH.partition("?")
    folder.mkdir()
    configuration = folder / "nginx.conf"
    command = pinned(["nginx", "-c", str(configuration), "-g", "daemon off;"])
    with reserved_port() as port:
        configuration.write_text(NGINX.format(folder=folder, port=port, path=path, query=query, body=body.decode()))
        with _running(command) as process:
            _until_listening(port)
            worker = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            until(worker.read_text)  # nginx listens before it starts its worker
            yield Subject("nginx", int(worker.read_text("ascii")), port)


@contextmanager
def _running(command: Sequence[str], limits: Mapping[str, str] = LIMITS) -> Iterator["subprocess.Popen[str]"]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")} | dict(limits)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _until_listening(port: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")
