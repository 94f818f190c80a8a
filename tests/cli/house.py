"""A real `forewarn serve` on ports of its own, and the command line as a real process beside it."""

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

from tests.support.waiting import PATIENCE_S, until

FOREWARN = [sys.executable, "-m", "forewarn"]
DONE, FAILED, USAGE, NOT_REACHABLE = 0, 1, 2, 3
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


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Ours without any setting of forewarn's; the service and the command line share a state directory."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return {**clean, "FOREWARN_STATE_DIR": str(folder / "state"), "COLUMNS": "80", **more}


class House:
    """A service that runs, and an operator on the same machine."""

    def __init__(self, folder: Path, *arguments: str, fleet: str = FLEET) -> None:
        self.folder = folder
        (folder / "fleet.toml").write_text(fleet)
        self.log = folder / "serve.log"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*FOREWARN, "serve", "--operator", "127.0.0.1:0", "--guest", "127.0.0.1:0", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(folder, FOREWARN_LOG_LEVEL="debug"),
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ready "):
                told = dict(pair.split("=", 1) for pair in line.split()[1:])
                self.guest, self.url = told["guest"], told["operator"]
                break
        else:
            pytest.fail(f"it ended before it was ready: {self.log.read_text()}")

    @property
    def token(self) -> str:
        return (self.folder / "state/operator.token").read_text().strip()

    def run(self, *words: str, answer: str = "", **more: str) -> Result:
        """A command to its end. There are never tracebacks, and the token is never seen."""
        result = subprocess.run(
            [*FOREWARN, *words],
            input=answer,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(self.folder, **more),
            check=False,
        )
        for text in (result.stdout, result.stderr):
            assert "Traceback" not in text
            assert self.token not in text
        return result

    def say(self, *words: str) -> str:
        """A command that must do what it says; its output."""
        result = self.run(*words)
        assert result.returncode == DONE, result.stderr
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.say(*words, "--json"))

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """A command that goes on beside us."""
        return subprocess.Popen(
            [*FOREWARN, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(self.folder, PYTHONUNBUFFERED="1"),
        )

    def poll(self, address: str) -> None:
        """A machine asks for events, from its own address."""
        parts = urlsplit(self.guest)
        connection = http.client.HTTPConnection(
            str(parts.hostname), parts.port, timeout=PATIENCE_S, source_address=(address, 0)
        )
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        connection.request("GET", path, headers={"Metadata": "true"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()

    def order(self) -> dict[str, Any]:
        """The one order that waits to be taken, as soon as there is one."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = self.json("order", "list")["items"]
            return bool(found)

        until(there)
        assert len(found) == 1
        order: dict[str, Any] = found[0]
        return order

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def serving(folder: Path, *arguments: str, fleet: str = FLEET) -> Iterator[House]:
    house = House(folder, *arguments, "--fleet", str(folder / "fleet.toml"), fleet=fleet)
    try:
        yield house
    finally:
        house.kill()


def on_a_terminal(
    house: House, *words: str, typed: bytes = b"", columns: int = 100, enough: Callable[[str], bool] | None = None
) -> tuple[int, str]:
    """The command on a terminal, to its end or until we have seen enough (then Ctrl-C); its exit code and what was seen."""
    child, screen = pty.fork()
    if child == 0:
        told = environment(house.folder, COLUMNS=str(columns), LINES="40", TERM="xterm-256color")
        os.execve(FOREWARN[0], [*FOREWARN, *words], told)
    seen, interrupted = "", False
    if typed:
        os.write(screen, typed)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if select.select([screen], [], [], 0.1)[0]:
            try:
                heard = os.read(screen, 65_536)
            except OSError:
                break
            if not heard:
                break
            seen += heard.decode("utf-8", "replace")
        if enough is not None and not interrupted and enough(ESCAPES.sub("", seen)):
            os.kill(child, signal.SIGINT)
            interrupted = True
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail(f"it did not end: {seen}")
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ESCAPES.sub("", seen)
