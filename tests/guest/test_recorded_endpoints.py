"""The agent with recordings of odd endpoints: it prepares, approves by the id as received, and recovers, each once."""

import json
import socket
import tomllib
from pathlib import Path

import pytest

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.config import parse
from forewarn.guest.journal import Journal
from forewarn.testing.emulator import Emulator
from forewarn.testing.recording_file import Line, read_recording
from tests.guest.in_process_agent import step
from tests.testing.recordings import ShortPauses

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))
MAX_POLLS = 20


def listed(line: Line) -> list[tuple[str, str]]:
    return [(event["EventId"], event["EventStatus"]) for event in json.loads(line.raw)["Events"]]


def see(agent: Agent, line: Line) -> None:
    """Poll until the agent has the document of this line, and let it act."""
    for _ in range(MAX_POLLS):
        agent.poll(2.0)
        if agent.document and [(each.id, each.status) for each in agent.document.events] == listed(line):
            agent.turn()
            return
    pytest.fail(f"the agent never got {line}")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_an_odd_endpoint(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, times, tags, connections and the name of the machine may all be unusual."""
    monkeypatch.setattr(socket, "gethostname", lambda: "web-0.example")
    _, scheduled, _, _ = recorded = read_recording(path).lines
    plan = parse(tomllib.loads(step(tmp_path, "one", more="required = true")), {}).plan
    did = tmp_path / "did"
    with Emulator(replay=path) as emulator:
        clock = ShortPauses()
        client = Client(emulator.endpoint, time=clock)
        agent = Agent(plan, client, Journal(tmp_path / "state", clock), boot="boot-1", time=clock)
        before_s, actions = 0.0, []
        for line in recorded:
            emulator.advance(line.at_s - before_s)
            before_s = line.at_s
            see(agent, line)
            actions.append(did.read_text().split("\n")[:-1] if did.exists() else [])
            if line is scheduled:
                left_s = agent.view().left_s(next(iter(agent.state.events.values())).event)
                assert left_s is not None
                assert 800 < left_s < 900
        client.close()
        bodies = [json.loads(each.body) for each in emulator.requests(method="POST")]
    assert actions == [[], ["prepare one"], ["prepare one"], ["prepare one", "recover one"]]
    assert bodies == [{"StartRequests": [{"EventId": listed(scheduled)[0][0]}]}]
    assert agent.me is not None
    assert agent.me.name == "web-0"
    assert agent.state.quiet
