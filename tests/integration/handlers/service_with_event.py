"""A real `forewarn serve` that has announced an event to one machine, and the agent of that machine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Status, Targets
from forewarn.service.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.integration.handlers.agent_process import ROOT, Agent
from tests.support.serve_process import Served, serving

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


def page_steps(handler: str) -> list[str]:
    """Return the examples on the handler's page of the documentation."""
    page = (ROOT / "docs" / "guide" / "handlers" / f"{handler}.md").read_text("utf-8")
    return [str(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]


class ServiceWithEvent:
    """The service, and what became of the event."""

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
        folder = self._folder / f"agent-{len(self.agents)}"
        folder.mkdir()
        self.agents.append(Agent(folder, self.service.guest, f'source_address = "{ADDRESS}"\n{steps}'))
        return self.agents[-1]


@contextmanager
def service_with_event(
    folder: Path, event_type: EventType = EventType.REDEPLOY, command: str = ""
) -> Iterator[ServiceWithEvent]:
    """Run the service. `command` carries out the event; without it a started event stays started."""
    made = Service(load({"store": f"sqlite:{folder}/f.db", "state_dir": f"{folder}/prepared"}, {}))
    made.control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
    made.control.enable("shop", OPERATOR)
    made.control.submit(MaintenanceRequest(type=event_type, targets=Targets(scope="shop")), OPERATOR)
    made.close()
    settings = f'store = "sqlite:{folder}/f.db"\nstate_dir = "{folder}/service"\n'
    if command:
        script = folder / "platform"
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o700)
        settings += f'executor = "command"\ncommand = ["{script}"]\n'
    (folder / "serve.toml").write_text(settings)
    with serving("--config", str(folder / "serve.toml")) as service:
        side = ServiceWithEvent(folder, service)
        try:
            yield side
        finally:
            for agent in side.agents:
                agent.kill()
