"""`forewarn-agent simulate`: prepare and undo the steps on this machine for an invented event, without asking an endpoint.

The simulation has its own journal beside the agent's. If it is killed, the next simulation first undoes what it left.
The caller holds the agent's journal meanwhile, so that no agent runs the same steps at the same time.
"""

from __future__ import annotations

import json
import socket
from email.utils import formatdate
from typing import Any, Callable, Dict, List, Mapping, Optional

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.clock import Time
from forewarn.guest.config import Config
from forewarn.guest.decide import why_not_approved
from forewarn.guest.journal import Journal
from forewarn.guest.names import Me
from forewarn.guest.transport import Response, Transport

NOTICE_S: Mapping[str, float] = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Preempt": 30, "Terminate": 300}
EVENT_ID = "FFFFFFFF-0000-4000-8000-000000000000"
MAX_TRIES = 4


class FakeEndpoint(Transport):
    """Answers in place of an endpoint: one event for one machine."""

    def __init__(self, name: str, time: Time) -> None:
        super().__init__()
        self._name, self._time = name, time
        self._event: Optional[Dict[str, Any]] = None
        self._incarnation = 1
        self.approved = False

    def schedule(self, event_type: str, notice_s: float) -> None:
        self._change(
            {
                "EventId": EVENT_ID,
                "EventStatus": "Scheduled",
                "EventType": event_type,
                "ResourceType": "VirtualMachine",
                "Resources": [self._name],
                "NotBefore": formatdate(self._time.wall() + notice_s, usegmt=True),
                "Description": "a simulation",
                "EventSource": "User",
                "DurationInSeconds": -1,
            }
        )

    def start(self) -> None:
        self._change({**(self._event or {}), "EventStatus": "Started", "NotBefore": ""})

    def end(self) -> None:
        self._change(None)

    def _change(self, event: Optional[Dict[str, Any]]) -> None:
        self._event = event
        self._incarnation += 1

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
        del endpoint, path, headers, body, timeout_s
        if method == "POST":
            self.approved = True
            return Response(200, {}, b"")
        events = [self._event] if self._event is not None else []
        document = json.dumps({"DocumentIncarnation": self._incarnation, "Events": events}).encode()
        tag = f'"{self._incarnation}"'
        return Response(200, {"date": formatdate(self._time.wall(), usegmt=True), "etag": tag}, document)


def simulate(config: Config, event_type: str, notice_s: float, print_line: Callable[[str], None]) -> bool:
    """Return whether every required step was prepared and the machine came back into service."""
    time = Time()
    name = config.name or socket.gethostname().partition(".")[0]
    endpoint = FakeEndpoint(name, time)
    journal = Journal(config.state_dir / "rehearsal", time)
    try:
        agent = Agent(config.plan, Client("rehearsal", name=name, transport=endpoint, time=time), journal, time=time)
        _return_to_service(agent)  # undo what an earlier simulation left behind
        print_line(f"{event_type} of {name} in {notice_s:.0f} s, simulated")
        endpoint.schedule(event_type, notice_s)
        _poll_and_act(agent)
        would_approve = _report_approval(agent, endpoint, print_line)
        endpoint.start()
        _poll_and_act(agent)
        endpoint.end()
        back = _return_to_service(agent)
        print_line("undone: the machine is as before" if back else "NOT UNDONE: see the log; run it again to try again")
    finally:
        journal.close()
    return would_approve and back


def _poll_and_act(agent: Agent) -> Optional[float]:
    agent.poll(5.0)
    return agent.turn()


def _return_to_service(agent: Agent) -> bool:
    for _ in range(MAX_TRIES):
        wait_s = _poll_and_act(agent)
        if not agent.state.out_of_service:
            return True
        agent.time.sleep(min(wait_s or 1.0, 10.0))
    return False


def _report_approval(agent: Agent, endpoint: FakeEndpoint, print_line: Callable[[str], None]) -> bool:
    known = agent.state.events[EVENT_ID]
    for line in _step_lines(agent):
        print_line(line)
    if endpoint.approved:
        print_line("it would be approved")
        return True
    why = why_not_approved(agent.plan, agent.me or Me(""), agent.state, known)
    print_line(f"it would not be approved: {why}")
    return "step" not in why


def _step_lines(agent: Agent) -> List[str]:
    known = agent.state.events[EVENT_ID]
    lines = []
    for step in agent.plan.preparing(known.event) if known.prepares else ():
        step_state = agent.state.step(step.name)
        took_s = agent.state.tally.step_s.get((step.name, "prepare"), 0.0)
        _, reason = step_state.outcomes.get(EVENT_ID, (False, ""))
        lines.append(
            f"step {step.name!r}: "
            + (f"prepared in {took_s:.1f} s" if step_state.prepared else f"not prepared: {reason}")
        )
    return lines
