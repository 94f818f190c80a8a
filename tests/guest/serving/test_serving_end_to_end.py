"""A real agent as a process with six clients on socket files, against a real endpoint; it is killed in the middle."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.guest import Client
from forewarn.guest.errors import EndpointError
from forewarn.guest.journal import read
from forewarn.testing.emulator import Emulator
from tests.support.agent_command import agent_command
from tests.support.budget import BUDGET
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NAMES = ("one", "two", "three", "four", "five", "six")
POLLS = 60
# In `make soak` the clients poll once a second, as six processes would; otherwise as fast as they can.
BETWEEN_POLLS_S = 1.0 if BUDGET > 1 else 0.0
CONFIG = """
endpoint = "{endpoint}"
state_dir = "{folder}/state"
[[steps]]
name = "stop the worker"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare >> {folder}/did"]
recover = ["/bin/sh", "-c", "echo recover >> {folder}/did"]
"""


class AgentProcess:
    """An agent, and what it wrote about itself."""

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        self.folder = folder
        config = folder / "agent.toml"
        clients = [
            f'[[serve.client]]\nname = "{name}"\nsocket = "{folder}/{name}.sock"\napproves = true\n' for name in NAMES
        ]
        config.write_text(CONFIG.format(endpoint=emulator.endpoint, folder=folder) + "".join(clients))
        config.chmod(0o600)
        self.process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        command = agent_command("run", "--config", str(self.folder / "agent.toml"))
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stderr=log, env=environment)

    def kill_and_start(self) -> None:
        self.process.kill()
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL
        self.process = self._started()

    def why_not_approved(self) -> str:
        """Return what the running agent says about the only event; "" before it says anything."""
        try:
            status = json.loads((self.folder / "state" / "status.json").read_bytes())
        except FileNotFoundError:
            return ""
        mine = status["pid"] == self.process.pid
        return "".join(event["why_not_approved"] for event in status["events"]) if mine else ""

    def client(self, name: str) -> Client:
        return Client(f"unix:{self.folder}/{name}.sock")

    def wait_until_it_serves(self) -> None:
        until(lambda: all(self._answers(name) for name in NAMES), detail=(self.folder / "log").read_text)

    def _answers(self, name: str) -> bool:
        client = self.client(name)
        try:
            client.poll()
        except EndpointError:
            return False
        finally:
            client.close()
        return True

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


@pytest.fixture
def agent(tmp_path: Path, emulator: Emulator) -> Iterator[AgentProcess]:
    running = AgentProcess(tmp_path, emulator)
    try:
        running.wait_until_it_serves()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def approve(agent: AgentProcess, name: str) -> None:
    """Act as a client: wait for the event by long poll, then approve it."""
    client = agent.client(name)
    try:
        for document in client.watch():
            if document.events:
                client.approve(*document.events)
                return
    finally:
        client.close()


def test_approval_only_after_the_slowest_client_also_after_a_kill(agent: AgentProcess, emulator: Emulator) -> None:
    """Approvals that were answered outlive SIGKILL; the last of six clients is the one that counts."""
    event = emulator.schedule("Reboot", "vm-0")
    for name in NAMES[:3]:
        approve(agent, name)
    until(lambda: agent.why_not_approved() == "client 'four' has not approved it")
    agent.kill_and_start()
    agent.wait_until_it_serves()
    until(lambda: agent.why_not_approved() == "client 'four' has not approved it")
    for name in NAMES[3:5]:
        approve(agent, name)
    until(lambda: agent.why_not_approved() == "client 'six' has not approved it")
    emulator.expect_no_approval(event)
    approve(agent, "six")
    emulator.expect_approval(event, within_s=PATIENCE_S)
    agent.stop()
    assert not (agent.folder / "six.sock").exists()
    approvals = [each["client"] for each in read(agent.folder / "state" / "journal.jsonl")[0] if "client" in each]
    assert approvals == list(NAMES)
    assert (agent.folder / "did").read_text() == "prepare\n"


def test_six_clients_cost_at_most_one_request_per_second(agent: AgentProcess, emulator: Emulator) -> None:
    """Six clients poll sixty times each, while the endpoint gets at most one GET a second."""
    begun_s = time.monotonic()
    before = len(emulator.requests())
    polled: list[str] = []

    def poll(name: str) -> None:
        client = agent.client(name)
        for _ in range(POLLS):
            client.poll()
            polled.append(name)
            time.sleep(BETWEEN_POLLS_S)
        client.close()

    threads = [threading.Thread(target=poll, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    emulator.schedule("Reboot", "vm-0")
    for thread in threads:
        thread.join()
    assert len(polled) == POLLS * len(NAMES)
    gets = sum(each.method == "GET" for each in emulator.requests()[before:])
    assert gets <= time.monotonic() - begun_s + 2  # one at the beginning and one at the end
    assert gets < len(polled) / 2
    agent.stop()
