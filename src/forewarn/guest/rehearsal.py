"""`simulate`: the steps rehearsed on this machine against a made-up event, approved, started, ended and undone; nobody is asked.

It has a journal of its own beside the agent's: a rehearsal that was killed is undone at the beginning of the next.
Whoever calls it holds the agent's own journal: a step is the machine's, and two must not have it at once.
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
from forewarn.guest.transport import Answer, Transport

NOTICE_S: Mapping[str, float] = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Preempt": 30, "Terminate": 300}
EVENT_ID = "FFFFFFFF-0000-4000-8000-000000000000"
MAX_TRIES = 4


class MadeUp(Transport):
    """An endpoint that is not there: one event for one machine."""

    def __init__(self, name: str, time: Time) -> None:
        super().__init__()
        self._name, self._time = name, time
        self._event: Optional[Dict[str, Any]] = None
        self._incarnation = 1
        self.approved = False

    def announce(self, event_type: str, in_s: float) -> None:
        self._change(
            {
                "EventId": EVENT_ID,
                "EventStatus": "Scheduled",
                "EventType": event_type,
                "ResourceType": "VirtualMachine",
                "Resources": [self._name],
                "NotBefore": formatdate(self._time.wall() + in_s, usegmt=True),
                "Description": "a rehearsal",
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
    ) -> Answer:
        del endpoint, path, headers, body, timeout_s
        if method == "POST":
            self.approved = True
            return Answer(200, {}, b"")
        events = [self._event] if self._event is not None else []
        document = json.dumps({"DocumentIncarnation": self._incarnation, "Events": events}).encode()
        tag = f'"{self._incarnation}"'
        return Answer(200, {"date": formatdate(self._time.wall(), usegmt=True), "etag": tag}, document)


def rehearse(
    config: Config, event_type: str, in_s: float, say: Callable[[str], None], time: Optional[Time] = None
) -> bool:
    """Whether everything went as it should in earnest: what must be prepared was, and the machine came back."""
    time = time or Time()
    name = config.name or socket.gethostname().partition(".")[0]
    made_up = MadeUp(name, time)
    journal = Journal(config.state_dir / "rehearsal", time)
    try:
        agent = Agent(config.plan, Client("rehearsal", name=name, transport=made_up, time=time), journal, time=time)
        _until_quiet(agent)  # what an earlier rehearsal left behind
        say(f"{event_type} of {name} in {in_s:.0f} s, made up")
        made_up.announce(event_type, in_s)
        _step(agent)
        good = _verdict(agent, made_up, say)
        made_up.start()
        _step(agent)
        made_up.end()
        back = _until_quiet(agent)
        say("undone: the machine is as before" if back else "NOT UNDONE: see the log; run it again to try again")
    finally:
        journal.close()
    return good and back


def _step(agent: Agent) -> Optional[float]:
    agent.look(5.0)
    return agent.turn()


def _until_quiet(agent: Agent) -> bool:
    for _ in range(MAX_TRIES):
        wait_s = _step(agent)
        if not agent.state.out_of_service:
            return True
        agent.time.sleep(min(wait_s or 1.0, 10.0))
    return False


def _verdict(agent: Agent, made_up: MadeUp, say: Callable[[str], None]) -> bool:
    known = agent.state.events[EVENT_ID]
    for line in _step_lines(agent):
        say(line)
    if made_up.approved:
        say("it would be approved")
        return True
    why = why_not_approved(agent.plan, agent.me or Me(""), agent.state, known)
    say(f"it would not be approved: {why}")
    return "step" not in why


def _step_lines(agent: Agent) -> List[str]:
    known = agent.state.events[EVENT_ID]
    told = []
    for step in agent.plan.wanted(known.event) if known.prepares else ():
        remembered = agent.state.step(step.name)
        took_s = agent.state.tally.step_s.get((step.name, "prepare"), 0.0)
        _, reason = remembered.outcomes.get(EVENT_ID, (False, ""))
        told.append(
            f"step {step.name!r}: " + (f"prepared in {took_s:.1f} s" if remembered.held else f"not prepared: {reason}")
        )
    return told
