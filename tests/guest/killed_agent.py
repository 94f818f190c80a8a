"""Runs agents that are killed at a boundary of their journal: `python -m tests.guest.killed_agent` reads commands from stdin.

A command is a line `FOLDER BOUNDARY STORY`. For each line the program forks a process that runs an agent on FOLDER until it has
nothing left to do (exit code 0) or reaches the boundary, where SIGKILL ends it. A boundary lies before each record, in the middle
of its line, and after it. The endpoint is a file, so that it outlives the agent; sleeping takes no time. In the story
`reboots` the machine is in another boot from the approval on. In the story `cancelled` the event is cancelled while a step's
program runs, which would run for ten minutes. The answer is a line with the exit status and the number of boundaries passed.
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

from forewarn.guest import client, steps
from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.clock import Time
from forewarn.guest.config import parse
from forewarn.guest.journal import Journal
from forewarn.guest.processes import start_ticks
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
INTERRUPTED_PLAN = """
[[steps]]
name = "verified"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare verified >> did; touch flag"]
verify = ["test", "-e", "flag"]
recover = ["/bin/sh", "-c", "echo recover verified >> did; rm -f flag"]
[[steps]]
name = "slow"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo $$ >> pids; echo prepare slow >> did; exec sleep 600"]
recover = ["/bin/sh", "-c", "echo recover slow >> did"]
[health]
command = ["/bin/sh", "-c", "echo health >> did"]
"""


class NoSleepTime(Time):
    """Real time, in which sleeping takes no time. But the programs of the agent before get the time that they need to end."""

    def __init__(self) -> None:
        self.skipped_s = 0.0
        self.orphans: list[tuple[int, int]] = []

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_s

    def sleep(self, seconds: float) -> None:
        while any(start_ticks(pid) == ticks and not sleeps_on(pid) for pid, ticks in self.orphans):
            time.sleep(0.001)
        self.skipped_s += max(0.0, seconds)


def sleeps_on(pid: int) -> bool:
    """Whether this is a program of the step `slow`, which has written down its number and does not end by itself."""
    return Path("pids").exists() and str(pid) in Path("pids").read_text().split()


class FileTransport(Transport):
    """An event that is Scheduled until approved, Started for two requests, then gone; its state is in files.

    In the story `cancelled` it is gone once the journal has the program of the step `slow`.
    """

    def __init__(self, story: str) -> None:
        super().__init__()
        self._story = story

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
        if self._story == "cancelled" and b'"kind":"child","step":"slow"' in Path("state/journal.jsonl").read_bytes():
            return document(incarnation=4)
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


def live(folder: str, die_at: int, story: str) -> int:
    """Run an agent to its end, or two with a reboot between them; return the number of boundaries passed."""
    os.chdir(folder)
    if story == "cancelled":  # a program runs in real time: poll often meanwhile
        steps.TRIM_OUTPUT_S = client.MIN_BETWEEN_S = client.POLL_EVERY_S = 0.02
    agent, journal = born(die_at, 0, story)
    while agent.document is None or agent.document.events or not agent.state.quiet:
        if agent.state.boot != boot(story):
            journal.close()
            agent, journal = born(die_at, journal.passed, story)
        agent.poll(1.0)
        agent.turn()
    return journal.passed


def born(die_at: int, passed: int, story: str) -> tuple[Agent, DyingJournal]:
    clock = NoSleepTime()
    journal = DyingJournal(Path("state"), clock, die_at, passed)
    clock.orphans = [(record["pid"], record["ticks"]) for record in journal.records if record["kind"] == "child"]
    endpoint = Client("10.0.0.1", transport=FileTransport(story), time=clock, poll_every_s=client.POLL_EVERY_S)
    plan = parse(tomllib.loads(INTERRUPTED_PLAN if story == "cancelled" else PLAN), {}).plan
    return Agent(plan, endpoint, journal, boot=boot(story), time=clock), journal


def boot(story: str) -> str:
    return "boot-2" if story == "reboots" and Path("approvals").exists() else "boot-1"


def main() -> None:
    for line in sys.stdin:
        folder, die_at, story = line.split()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.write(writing, b"%d" % live(folder, int(die_at), story))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        status = os.waitpid(pid, 0)[1]
        print(os.waitstatus_to_exitcode(status), os.read(reading, 32).decode() or 0, flush=True)
        os.close(reading)


if __name__ == "__main__":
    main()
