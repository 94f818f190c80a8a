"""The agent through hours of endpoint failures, on a manual clock."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from forewarn.guest.errors import CutShort, NoAnswer, Unreachable
from tests.guest.in_process_agent import AgentHarness, step
from tests.support.fake_endpoint import E1, Reply, answer, document


class FailingStart:
    """70 s of 410, then 500s, then broken bodies, then a first call of 120 s; then correct responses."""

    def __init__(self, harness: AgentHarness) -> None:
        self.honest, self.clock = harness.endpoint.transport.reply, harness.clock
        self.began_s = self.clock.now_s
        self.slow_to_come = 1
        harness.endpoint.transport.reply = self.reply

    def reply(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        passed_s = self.clock.now_s - self.began_s
        if passed_s < 70:
            return answer(b"Gone", 410)
        if passed_s < 130:
            return answer(b'{"error":"Internal"}', 500)
        if passed_s < 160:
            return answer(document()[:20])
        if passed_s < 190:
            return CutShort("the answer broke off")
        if self.slow_to_come and not path.startswith("/metadata/instance"):
            self.slow_to_come -= 1
            self.clock.now_s += 120
        return self.honest(method, path, headers, body)


def test_an_agent_survives_a_bad_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It misses no event, does not exit or loop, and logs one line for each kind of failure."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"))
    FailingStart(harness)
    harness.endpoint.at(30, harness.endpoint.announce)
    began_s = harness.clock.now_s
    harness.run(lambda: harness.endpoint.approved == [E1], for_s=800)
    assert harness.endpoint.approved == [E1]
    assert harness.actions == ["prepare one"]
    assert 310 <= harness.clock.now_s - began_s <= 330
    assert len(harness.endpoint.transport.requests) < 60
    messages = [record.getMessage() for record in caplog.records if record.name == "forewarn.guest"]
    assert [line.partition(": ")[2][:3] for line in messages[:2]] == ["410", "500"]
    assert len(messages) == 5
    longest_s = max(timeout_s for _, _, _, _, timeout_s in harness.endpoint.transport.requests)
    assert longest_s >= 120, "the first call may take so long"


def test_an_endpoint_that_goes_away_in_the_middle(tmp_path: Path) -> None:
    """An endpoint that is away for two hours after the steps gets the approval when it is back."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    honest = harness.endpoint.transport.reply

    def away(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return Unreachable("nobody there") if method == "GET" else NoAnswer("late")

    def away_for_approvals(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return away(method, path, headers, body) if method == "POST" else honest(method, path, headers, body)

    harness.endpoint.announce(in_s=9_000)
    harness.endpoint.transport.reply = away_for_approvals
    harness.run(lambda: harness.actions == ["prepare one"], for_s=60)
    harness.restart()
    harness.endpoint.transport.reply = away
    harness.run(for_s=7_200)
    requests = len(harness.endpoint.transport.requests)
    assert requests < 7_200 / 4
    assert not harness.endpoint.approved
    assert not harness.known().approved
    harness.endpoint.transport.reply = honest
    harness.run(for_s=60)
    assert harness.endpoint.approved == [E1]
    assert harness.actions == ["prepare one"]
    harness.endpoint.end()
    harness.run(for_s=60)
    assert harness.in_service()


def test_an_idle_agent_polls_once_a_minute(tmp_path: Path) -> None:
    """It uses long polls, and its journal does not grow."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    harness.run(for_s=3_600)
    assert len(harness.endpoint.transport.requests) <= 64
    assert harness.kinds == ["start"]
