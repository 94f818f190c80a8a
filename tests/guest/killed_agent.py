"""Runs agents that are killed at a boundary of their journal: `python -m tests.guest.killed_agent` reads commands from stdin.

A command is a line `FOLDER BOUNDARY REBOOTS`. For each line the program forks a process that runs an agent on FOLDER until it has
nothing left to do (exit code 0) or reaches the boundary, where SIGKILL ends it. A boundary lies before each record, in the middle
of its line, and after it. The endpoint is a file, so that it outlives the agent; sleeping takes no time. With REBOOTS 1 the
machine is in another boot from the approval on. The answer is a line with the exit status and the number of boundaries passed.
"""

import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.clock import Time
from forewarn.guest.config import parse
from forewarn.guest.journal import Journal
from forewarn.guest.transport import Response, Transport
from tests.support.fake_endpoint import document, event

STARTED_FOR = 2
PLAN = """
[[steps]]
name = "verified"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare verified >> did; touch flag"]
verify = ["test", "-e", "flag"]
recover = ["/bin/sh", "-c", "echo recover verified >> did; rm -f flag"]
[[steps]]
name = "plain"
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare plain >> did"]
recover = ["/bin/sh", "-c", "echo recover plain >> did"]
[[steps]]
name = "once"
repeatable = false
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare once >> did"]
recover = ["/bin/sh", "-c", "echo recover once >> did"]
[[steps]]
name = "written"
log = { file = "told" }
[health]
command = ["/bin/sh", "-c", "echo health >> did"]
"""


class NoSleepTime(Time):
    """Real time, in which sleeping takes no time."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_s

    def sleep(self, seconds: float) -> None:
        self.skipped_s += max(0.0, seconds)


class FileTransport(Transport):
    """An event that is Scheduled until approved, Started for two requests, then gone; its state is in files."""

    def request(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
    ) -> Response:
        if path.startswith("/metadata/instance"):
            return Response(200, {}, b'{"name":"web-0"}')
        if method == "POST":
            with Path("approvals").open("a") as file:
                file.write(f"{'ready' if Path('flag').exists() else 'TOO EARLY'}\n")
            return Response(200, {}, b"")
        return Response(200, {"date": formatdate(usegmt=True)}, self._document())

    def _document(self) -> bytes:
        if not Path("approvals").exists():
            due = Path("due")
            if not due.exists():
                due.write_text(formatdate(time.time() + 900, usegmt=True))
            return document(event(NotBefore=due.read_text()), incarnation=2)
        with Path("looks").open("a") as file:
            file.write(".")
        if Path("looks").stat().st_size <= STARTED_FOR:
            return document(event(EventStatus="Started"), incarnation=3)
        return document(incarnation=4)


class DyingJournal(Journal):
    """A journal with three boundaries for each record, which kills the process at one of them."""

    def __init__(self, folder: Path, clock: Time, die_at: int, passed: int) -> None:
        self.passed, self._die_at = passed, die_at
        super().__init__(folder, clock)

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        self._boundary()
        if self._die_at == self.passed + 1:
            os.write(self._file, json.dumps({"at": "", **record}).encode()[:-5])
        self._boundary()
        dated = super().append(record)
        self._boundary()
        return dated

    def _boundary(self) -> None:
        self.passed += 1
        if self.passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def live(folder: str, die_at: int, *, reboots: bool) -> int:
    """Run an agent to its end, or two with a reboot between them; return the number of boundaries passed."""
    os.chdir(folder)
    agent, journal = born(die_at, 0, reboots=reboots)
    while agent.document is None or agent.document.events or not agent.state.quiet:
        if agent.state.boot != boot(reboots=reboots):
            journal.close()
            agent, journal = born(die_at, journal.passed, reboots=reboots)
        agent.poll(1.0)
        agent.turn()
    return journal.passed


def born(die_at: int, passed: int, *, reboots: bool) -> tuple[Agent, DyingJournal]:
    clock = NoSleepTime()
    journal = DyingJournal(Path("state"), clock, die_at, passed)
    client = Client("10.0.0.1", transport=FileTransport(), time=clock)
    plan = parse(tomllib.loads(PLAN), {}).plan
    return Agent(plan, client, journal, boot=boot(reboots=reboots), time=clock), journal


def boot(*, reboots: bool) -> str:
    return "boot-2" if reboots and Path("approvals").exists() else "boot-1"


def main() -> None:
    for line in sys.stdin:
        folder, die_at, reboots = line.split()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.write(writing, b"%d" % live(folder, int(die_at), reboots=reboots == "1"))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        status = os.waitpid(pid, 0)[1]
        print(os.waitstatus_to_exitcode(status), os.read(reading, 32).decode() or 0, flush=True)
        os.close(reading)


if __name__ == "__main__":
    main()
