"""A real `forewarn serve` that has announced an event to one machine, and that machine's agent, which may be killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, Request, Status, Targets
from forewarn.guest.clock import Time
from forewarn.guest.journal import read
from forewarn.guest.steps import Run
from forewarn.server import Service
from forewarn.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite import SqliteStore
from tests.e2e.test_serve import Served, serving
from tests.guest.talking import event

ROOT = Path(__file__).parents[2]
OPERATOR = Actor("operator", "test")
ADDRESS = "127.0.0.10"
FLEET = f"""
[[scopes]]
name = "shop"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "db-0"
addresses = ["{ADDRESS}"]
"""
TOP = f"""
endpoint = "{{endpoint}}"
source_address = "{ADDRESS}"
state_dir = "state"
boot_id_file = "boot"
"""


def page_steps(handler: str) -> list[str]:
    """The examples on a handler's page of the documentation."""
    page = (ROOT / "docs" / "handlers" / f"{handler}.md").read_text("utf-8")
    return [str(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]


def run_of(share_s: float = 20.0, **kept: object) -> Run:
    """A step's turn, without an agent around it."""
    return Run(step="one", phase="prepare", event=event(NotBefore="soon"), share_s=share_s, time=Time(), kept=kept)


class Agent:
    """The machine's agent, as a process."""

    def __init__(self, folder: Path, endpoint: str, steps: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "boot").write_text("boot-1")
        config = folder / "agent.toml"
        config.write_text(TOP.format(endpoint=endpoint) + steps)
        config.chmod(0o600)
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        command = [sys.executable, "-m", "forewarn.guest", "run", "--config", "agent.toml"]
        with (self.folder / "log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            self.process = subprocess.Popen(command, cwd=self.folder, stderr=log, env=environment)
        (self.folder / "pid").write_text(str(self.process.pid))

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    @property
    def records(self) -> list[dict[str, object]]:
        return read(self.folder / "state" / "journal.jsonl")[0]

    @property
    def kinds(self) -> list[object]:
        return [record["kind"] for record in self.records]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ended(self, phase: str) -> list[dict[str, object]]:
        return [record for record in self.records if record["kind"] == "end" and record["phase"] == phase]


class Announced:
    """The service's side: what became of the event."""

    def __init__(self, folder: Path, service: Served) -> None:
        self._folder, self.service = folder, service
        self.agents: list[Agent] = []

    @property
    def status(self) -> Status:
        store = SqliteStore(self._folder / "f.db")
        try:
            return store.events(EventQuery()).events[0].status
        finally:
            store.close()

    def agent(self, steps: str) -> Agent:
        self.agents.append(Agent(self._folder / f"agent-{len(self.agents)}", self.service.guest, steps))
        return self.agents[-1]


@contextmanager
def announced(folder: Path, event_type: EventType = EventType.REDEPLOY, command: str = "") -> Iterator[Announced]:
    """`command` is what the event does to the machine; without it an event that has started stays so."""
    made = Service(load({"store": f"sqlite:{folder}/f.db"}, {}))
    made.control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
    made.control.enable("shop", OPERATOR)
    made.control.submit(Request(type=event_type, targets=Targets(scope="shop")), OPERATOR)
    made.close()
    settings = f'store = "sqlite:{folder}/f.db"\nstate_dir = "{folder}/service"\n'
    if command:
        script = folder / "platform"
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o700)
        settings += f'executor = "command"\ncommand = ["{script}"]\n'
    (folder / "serve.toml").write_text(settings)
    with serving("--config", str(folder / "serve.toml")) as service:
        side = Announced(folder, service)
        try:
            yield side
        finally:
            for agent in side.agents:
                agent.kill()
