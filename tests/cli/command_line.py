"""A real `forewarn serve` on its own ports, and commands for it: in this process, as processes, and on a terminal."""

import http.client
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.commands import run_here
from tests.support.waiting import PATIENCE_S, until

FOREWARN = [sys.executable, "-m", "forewarn"]
DONE, FAILED, USAGE, NOT_REACHABLE = 0, 1, 2, 3
ID = re.compile(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"

[[scopes]]
name = "db"
kind = "availability-set"
approval = "all"

[[scopes]]
name = "quiet"
kind = "availability-set"
""" + "".join(
    f"""
[[machines]]
name = "{name}-{number}"
scope = "{scope}"
update_domain = {number}
host = "rack{number}"
addresses = ["127.0.{net}.{number + 1}"]
"""
    for net, (scope, name, count) in enumerate([("shop", "web", 3), ("db", "db", 2), ("quiet", "web", 2)], 1)
    for number in range(count)
)

Result = subprocess.CompletedProcess[str]
# Runs a command; returns its exit code, output and errors.
Command = Callable[..., tuple[int, str, str]]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return our environment without settings of forewarn; the service and the commands share a state directory."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return {**clean, "FOREWARN_STATE_DIR": str(folder / "state"), "COLUMNS": "80", **more}


class CommandLine:
    """A service that runs, and the commands of an operator on the same machine."""

    def __init__(self, folder: Path, *options: str, fleet: str = FLEET) -> None:
        self.folder = folder
        (folder / "fleet.toml").write_text(fleet)
        self.log = folder / "serve.log"
        operator = () if "--operator" in options else ("--operator", "127.0.0.1:0")
        with self.log.open("a") as log:
            self._service = subprocess.Popen(
                [*FOREWARN, "serve", *operator, "--guest", "127.0.0.1:0", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(folder, FOREWARN_LOG_LEVEL="debug"),
            )
        assert self._service.stdout is not None
        for line in self._service.stdout:
            if line.startswith("ready "):
                addresses = dict(pair.split("=", 1) for pair in line.split()[1:])
                self.guest, self.url = addresses["guest"], addresses["operator"]
                break
        else:
            pytest.fail(f"the service ended before it was ready: {self.log.read_text()}")

    @property
    def token(self) -> str:
        return (self.folder / "state/operator.token").read_text().strip()

    def run(self, *arguments: str, typed: str = "", **variables: str) -> Result:
        """Run a command to its end, in this process; check that it prints no traceback and no token."""
        result = run_here(*arguments, typed=typed, variables=environment(self.folder, **variables))
        for text in (result.stdout, result.stderr):
            assert "Traceback" not in text
            assert self.token not in text
        return result

    def output(self, *arguments: str) -> str:
        """Run a command that must succeed; return its standard output."""
        result = self.run(*arguments)
        assert result.returncode == DONE, result.stderr
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.output(*arguments, "--json"))

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command and return while it runs."""
        return subprocess.Popen(
            [*FOREWARN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(self.folder, PYTHONUNBUFFERED="1"),
        )

    def poll(self, address: str) -> None:
        """Poll for events as the machine with this address."""
        parts = urlsplit(self.guest)
        connection = http.client.HTTPConnection(
            str(parts.hostname), parts.port, timeout=PATIENCE_S, source_address=(address, 0)
        )
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        connection.request("GET", path, headers={"Metadata": "true"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        connection.close()

    def open_order(self) -> dict[str, Any]:
        """Wait for the one order that can be taken, and return it."""
        orders: list[Any] = []

        def issued() -> bool:
            orders[:] = self.json("order", "list")["items"]
            return bool(orders)

        until(issued)
        assert len(orders) == 1
        order: dict[str, Any] = orders[0]
        return order

    def stop(self) -> None:
        self._service.send_signal(signal.SIGTERM)
        self._service.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        self._service.kill()
        self._service.communicate()


def first_event(maintenance: dict[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = maintenance["waves"][0]["events"][0]
    return event


@contextmanager
def serving(folder: Path, *options: str, fleet: str = FLEET) -> Iterator[CommandLine]:
    cli = CommandLine(folder, *options, "--fleet", str(folder / "fleet.toml"), fleet=fleet)
    try:
        yield cli
    finally:
        cli.kill()


def run_on_terminal(
    cli: CommandLine,
    *arguments: str,
    typed: bytes = b"",
    columns: int = 100,
    interrupt_at: Callable[[str], bool] | None = None,
) -> tuple[int, str]:
    """Run a command on a terminal; press Ctrl-C once `interrupt_at` is true of its output. Return exit code and output."""
    child, screen = pty.fork()
    if child == 0:
        variables = environment(cli.folder, COLUMNS=str(columns), LINES="40", TERM="xterm-256color")
        os.execve(FOREWARN[0], [*FOREWARN, *arguments], variables)
    output, interrupted = "", False
    if typed:
        os.write(screen, typed)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if select.select([screen], [], [], 0.1)[0]:
            try:
                chunk = os.read(screen, 65_536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk.decode("utf-8", "replace")
        if interrupt_at is not None and not interrupted and interrupt_at(ESCAPES.sub("", output)):
            os.kill(child, signal.SIGINT)
            interrupted = True
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail(f"the command did not end: {output}")
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ESCAPES.sub("", output)
