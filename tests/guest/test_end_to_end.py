"""Real agents as processes against a real `forewarn serve`, from the notice through the reboot to the return."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, Event, EventType, MaintenanceRequest, Status, Targets
from forewarn.guest.journal import read
from forewarn.service.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.support import waiting
from tests.support.agent_command import agent_command, recording_pid
from tests.support.serve_process import Served, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OPERATOR = Actor("operator", "test")
NOTICE_S = 900
# `Date` is cut to a second, and the agent takes one off for that.
DATE_S = 2
MACHINES = ("web-0", "web-1", "web-2")

AGENT = """
endpoint = "{endpoint}"
source_address = "{address}"
api_version = "{version}"
state_dir = "state"
metrics_file = "agent.prom"
boot_id_file = "boot"
[[steps]]
name = "stop the worker"
required = true
timeout = "1m"
[steps.command]
prepare = ["/bin/sh", "-c", "sleep {slow}; echo prepare >> did; touch stopped"]
verify = ["test", "-e", "stopped"]
recover = ["/bin/sh", "-c", "echo recover >> did; rm stopped"]
[health]
command = ["/bin/sh", "-c", "echo health >> did"]
"""
# What an operator's tooling would do: every machine of the event goes down and comes up again. It waits until each agent has
# written its approval down, because an agent that dies before that cannot know that it approved; and for `done` at the end.
REBOOT = """import os, pathlib, signal, time
machines = [pathlib.Path("{folder}") / name for name in os.environ["FOREWARN_RESOURCES"].split()]
for machine in machines:
    while b'"kind":"approved"' not in (machine / "state" / "journal.jsonl").read_bytes():
        time.sleep(0.02)
for machine in machines:
    os.kill(int((machine / "pid").read_text()), signal.SIGKILL)
    with (machine / "did").open("a") as did:
        did.write("reboot\\n")
    (machine / "boot").write_text("boot-2")
    (machine / "down").touch()
while not pathlib.Path("{folder}/done").exists():
    time.sleep(0.02)
"""


class Machine:
    """A folder, an address, and an agent that runs while the machine is up."""

    def __init__(self, folder: Path, endpoint: str, *, address: str, version: str, slow: float) -> None:
        self.folder = folder
        folder.mkdir()
        folder.joinpath("boot").write_text("boot-1")
        config = AGENT.format(endpoint=endpoint, address=address, version=version, slow=slow)
        folder.joinpath("agent.toml").write_text(config)
        folder.joinpath("agent.toml").chmod(0o600)
        self.agent: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        command = recording_pid("pid", agent_command("run", "--config", "agent.toml"))
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
        with (self.folder / "log").open("ab") as log:
            self.agent = subprocess.Popen(command, cwd=self.folder, stderr=log, env=environment)

    def boot_if_down(self) -> None:
        if (self.folder / "down").exists():
            assert self.agent is not None
            assert self.agent.wait(waiting.PATIENCE_S) == -signal.SIGKILL
            (self.folder / "down").unlink()
            self.up()

    def off(self) -> int:
        assert self.agent is not None
        self.agent.send_signal(signal.SIGTERM)
        return self.agent.wait(waiting.PATIENCE_S)

    @property
    def did(self) -> list[str]:
        path = self.folder / "did"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def records(self) -> list[dict[str, object]]:
        return read(self.folder / "state" / "journal.jsonl")[0]

    @property
    def kinds(self) -> list[object]:
        return [record["kind"] for record in self.records]

    @property
    def back(self) -> bool:
        """Return whether the machine is in service again; the event may leave the document before or after that."""
        return "in-service" in self.kinds

    @property
    def metrics(self) -> str:
        path = self.folder / "agent.prom"
        return path.read_text() if path.exists() else ""


@contextmanager
def fleet_of(
    folder: Path, names: tuple[str, ...], *, approval: str, version: str, outlasts: bool = False
) -> Iterator[tuple[Served, list[Machine]]]:
    """A service with a Reboot announced, and its machines, still off. The event ends at once, or `outlasts` the boot
    until the test touches `done`."""
    text = f'[[scopes]]\nname = "shop"\nkind = "availability-set"\napproval = "{approval}"\n'
    for number, name in enumerate(names):
        text += f'[[machines]]\nscope = "shop"\nname = "{name}"\naddresses = ["127.0.0.{10 + number}"]\n'
    prepared = Service(load({"store": f"sqlite:{folder}/f.db", "state_dir": f"{folder}/prepared"}, {}))
    prepared.control.apply_fleet(parse_fleet(text, "the test"), OPERATOR)
    prepared.control.enable("shop", OPERATOR)
    prepared.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop")), OPERATOR)
    prepared.close()
    script = folder / "reboot"
    script.write_text(REBOOT.format(folder=folder))
    if not outlasts:
        (folder / "done").touch()
    (folder / "serve.toml").write_text(
        f'store = "sqlite:{folder}/f.db"\nstate_dir = "{folder}/service"\nexecutor = "command"\n'
        f'command = ["{sys.executable}", "{script}"]\n'
    )
    machines: list[Machine] = []
    with serving("--config", str(folder / "serve.toml")) as service:
        for number, name in enumerate(names):
            address = f"127.0.0.{10 + number}"
            slow = 0.2 + 0.4 * number
            machines.append(Machine(folder / name, service.guest, address=address, version=version, slow=slow))
        try:
            yield service, machines
        finally:
            for machine in machines:
                if machine.agent is not None:
                    machine.agent.kill()
                    machine.agent.wait()


def until(true: Callable[[], bool], machines: list[Machine]) -> None:
    """Wait for a condition, and boot every machine that went down meanwhile."""

    def look() -> bool:
        for machine in machines:
            machine.boot_if_down()
        return true()

    waiting.until(look, detail=lambda: [(machine.did, (machine.folder / "log").read_text()) for machine in machines])


def event_of(folder: Path) -> Event:
    store = SqliteStore(folder / "f.db")
    try:
        return store.events(EventQuery()).events[0]
    finally:
        store.close()


def status_of(folder: Path) -> Status:
    return event_of(folder).status


@pytest.mark.parametrize("version", ["2017-08-01", "2020-07-01"])
def test_notice_steps_approval_reboot_and_back(tmp_path: Path, version: str) -> None:
    """The approval ends the notice early; the agent dies with its machine and finishes after the boot."""
    with fleet_of(tmp_path, ("web-0",), approval="any", version=version) as (_, (machine,)):
        begun = datetime.now(UTC)
        machine.up()
        until(lambda: machine.back, [machine])
        ended = datetime.now(UTC)
        assert machine.did == ["prepare", "reboot", "recover", "health"]
        until(lambda: status_of(tmp_path) is Status.COMPLETED, [machine])
        assert machine.kinds.count("approved") == 1
        assert machine.kinds.count("in-service") == 1
        event = event_of(tmp_path)
        assert event.not_before is not None
        assert event.published is not None
        assert NOTICE_S <= (event.not_before - event.published).total_seconds() <= NOTICE_S + 1
        (approved,) = [record for record in machine.records if record["kind"] == "approved"]
        most_s, least_s = ((event.not_before - moment).total_seconds() for moment in (begun, ended))
        assert least_s - DATE_S < float(str(approved["left_s"])) <= most_s
        # Written after the journal; until then the file tells of the time before.
        wanted = ("forewarn_agent_in_service 1", "forewarn_agent_approvals_total 1")
        until(lambda: all(line in machine.metrics for line in wanted), [machine])
        assert machine.off() == 0


def test_the_event_outlives_the_reboot(tmp_path: Path) -> None:
    """The machine is back in service after the boot, and nothing more happens when the event is gone."""
    with fleet_of(tmp_path, ("web-0",), approval="any", version="2020-07-01", outlasts=True) as (_, (machine,)):
        machine.up()
        until(lambda: machine.back, [machine])
        assert status_of(tmp_path) is Status.STARTED
        (tmp_path / "done").touch()
        until(lambda: status_of(tmp_path) is Status.COMPLETED, [machine])
        until(
            lambda: [record["how"] for record in machine.records if record["kind"] == "over"][-1:] == ["completed"],
            [machine],
        )
        assert machine.did == ["prepare", "reboot", "recover", "health"]


def test_three_agents_where_each_must_approve(tmp_path: Path) -> None:
    """With approval = "all" the event starts when the slowest machine is ready, and each machine returns."""
    with fleet_of(tmp_path, MACHINES, approval="all", version="2020-07-01") as (_, machines):
        for machine in machines:
            machine.up()
        until(lambda: all(machine.back for machine in machines), machines)
        for machine in machines:
            assert machine.did == ["prepare", "reboot", "recover", "health"]
            assert machine.kinds.count("approved") == 1
        until(lambda: status_of(tmp_path) is Status.COMPLETED, machines)
        logs = [json.loads(line) for line in (machines[0].folder / "log").read_text().splitlines()]
        assert any("approved Reboot" in line["message"] for line in logs)


def test_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """The step's program goes on, and the next agent waits for it instead of starting a second one."""
    with fleet_of(tmp_path, ("web-0",), approval="any", version="2020-07-01") as (_, (machine,)):
        config = machine.folder / "agent.toml"
        waits = "touch begun; while [ ! -e go ]; do sleep 0.02; done;"
        config.write_text(config.read_text().replace("sleep 0.2;", waits))
        machine.up()
        until(lambda: (machine.folder / "begun").exists(), [machine])
        assert machine.agent is not None
        machine.agent.kill()
        machine.agent.wait()
        machine.up()
        until(lambda: machine.kinds.count("start") == 2, [machine])  # it knows of the program, which still runs
        (machine.folder / "go").touch()
        until(lambda: machine.back, [machine])
        assert machine.did == ["prepare", "reboot", "recover", "health"]
