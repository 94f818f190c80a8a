"""The agent's status file for people and its Prometheus textfile, both derived from its state."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from forewarn.guest.agent import Agent
from forewarn.guest.budget import budget_left_s
from forewarn.guest.clock import format_time
from forewarn.guest.decide import why_not_approved
from forewarn.guest.document import moment_text
from forewarn.guest.names import Me
from forewarn.guest.printable import printable, word
from forewarn.guest.safe_files import replace_file
from forewarn.guest.state import EventState, State

NAME = "status.json"


def describe(agent: Agent) -> Dict[str, Any]:
    """Return the content of the status file: current activity, remaining budget, and why an event is not approved."""
    wall_s = agent.time.wall()
    return {
        "at": format_time(wall_s),
        "pid": os.getpid(),
        "machine": agent.me.name if agent.me is not None else "",
        "endpoint": agent.client.endpoint,
        "failing": agent.client.failures.last,
        "doing": agent.activity,
        "dry_run": agent.dry_run,
        "in_service": not agent.state.out_of_service,
        "health": agent.state.last_health,
        "events": [_event(agent, known, wall_s) for known in agent.state.events.values()],
        "steps": [_step(agent.state, step.name) for step in agent.plan.steps if not step.notifies],
        "clients": _clients(agent),
    }


def _clients(agent: Agent) -> List[Dict[str, Any]]:
    if agent.clients is None:
        return []
    awaited = agent.clients.awaited()
    return [
        {
            "name": client.name,
            "address": client.address,
            "state": contact,
            "approves": client.approves,
            "awaited": client.name in awaited,
            "approved": [known for known, names in agent.state.client_approvals.items() if client.name in names],
        }
        for client, contact in zip(agent.clients.served, agent.clients.contacts())
    ]


def _event(agent: Agent, known: EventState, wall_s: float) -> Dict[str, Any]:
    event, view = known.event, agent.view()
    left_s, budget_s = view.left_s(event), budget_left_s(known, view)
    why = why_not_approved(agent.plan, agent.me or Me(""), agent.state, known, view.awaited)
    if not why:
        why = known.refused or "it is about to be"
    return {
        "id": event.id,
        "type": event.type,
        "status": "over" if known.over else event.status,
        "do": known.do,
        "not_before": moment_text(event.not_before),
        # By this machine's clock, so that a later reader can compute what is left.
        "starts_at": _at(wall_s, left_s),
        "budget_ends_at": _at(wall_s, budget_s),
        "approved": known.approved,
        "approved_again": known.repeats,
        "why_not_approved": "" if known.approved else why,
        "over": known.over,
        "missed_notice": known.missed,
    }


def _at(wall_s: float, in_s: Optional[float]) -> Optional[float]:
    return None if in_s is None else round(wall_s + in_s, 1)


def _step(state: State, name: str) -> Dict[str, Any]:
    step_state = state.steps.get(name)
    if step_state is None:
        return {"name": name, "state": "idle", "reason": ""}
    reason = next((why for ok, why in step_state.outcomes.values() if not ok), "")
    if step_state.under_way:
        step_text = f"{step_state.under_way} under way"
    elif step_state.prepared:
        step_text, reason = "prepared", ""
    elif step_state.doubtful:
        step_text = "in doubt: verified again before it is trusted"
    else:
        step_text = ("failed" if step_state.dirty else "skipped") if reason else "idle"
    return {"name": name, "state": step_text, "reason": reason}


def terminal_lines(status: Mapping[str, Any], now_s: float, running: bool) -> List[str]:
    """Return the status as lines for a terminal; nothing in them can forge a line."""
    lines = [
        f"agent      {'running, pid ' + str(status['pid']) if running else 'NOT RUNNING'}"
        + (" (dry run)" if status["dry_run"] else ""),
        f"machine    {status['machine'] or 'not known yet'}, asking {status['endpoint']}",
        f"service    {'in service' if status['in_service'] else 'OUT OF SERVICE'}"
        + (f": not healthy: {status['health']}" if status["health"] else ""),
    ]
    if status["failing"]:
        lines.append(f"endpoint   does not answer: {status['failing']}")
    lines.append(f"doing      {status['doing'] or 'waiting'}")
    for event in status["events"]:
        names = " ".join(word(event[key]) for key in ("type", "id", "status"))
        lines.append(f"event      {names}: {event['do']}{_left(event, now_s)}")
        lines.append(
            "           approved"
            + (f", and {event['approved_again']} more time(s)" if event.get("approved_again") else "")
            if event["approved"]
            else f"           not approved: {event['why_not_approved']}"
            + (" (there was no notice)" if event["missed_notice"] else "")
        )
    lines += [
        f"step       {step['name']}: {step['state']}" + (f": {step['reason']}" if step["reason"] else "")
        for step in status["steps"]
    ]
    lines += [_client_line(client) for client in status.get("clients", ())]
    return [printable(line) for line in lines]


def _client_line(client: Mapping[str, Any]) -> str:
    role = "its approval is awaited" if client["awaited"] else "NOT WAITED FOR" if client["approves"] else "only reads"
    approved = "".join(f", approved {word(each)}" for each in client["approved"])
    return f"client     {client['name']} at {client['address']}: {client['state']}, {role}{approved}"


def _left(event: Mapping[str, Any], now_s: float) -> str:
    if event["status"] != "Scheduled" or event["starts_at"] is None:
        return ""
    start_s, budget_s = (max(0.0, event[key] - now_s) for key in ("starts_at", "budget_ends_at"))
    return f"; starts in {start_s:.0f} s or later, {budget_s:.0f} s of the budget remain"


def metrics(state: State, failures: int, silent_clients: int = 0) -> str:
    """Return the metrics in Prometheus' text format, for the textfile collector of the node exporter."""
    tally = state.tally
    samples = [
        ("events_total", "counter", "Events that meant this machine.", tally.events),
        ("approvals_total", "counter", "Events this machine approved.", tally.approvals),
        ("missed_notices_total", "counter", "Events first seen when they had started.", tally.missed_notices),
        ("recoveries_total", "counter", "Times the machine went back into service.", tally.recoveries),
        ("health_failures_total", "counter", "Failed health checks after an event.", tally.health_failures),
        ("step_failures_total", "counter", "Steps that failed to prepare or to be undone.", tally.step_failures),
        ("endpoint_failures_total", "counter", "Requests the endpoint did not answer as it should.", failures),
        ("in_service", "gauge", "Whether the machine is in service.", int(not state.out_of_service)),
        ("silent_clients", "gauge", "Approving clients that are not waited for: they are silent.", silent_clients),
        (
            "detection_delay_seconds",
            "gauge",
            "How long the last event may have gone unseen, at most; 0 by long poll.",
            tally.detection_delay_s,
        ),
        ("lead_time_seconds", "gauge", "Time that was left to NotBefore at the last approval.", tally.lead_time_s),
    ]
    out: List[str] = []
    for name, kind, text, value in samples:
        out += [
            f"# HELP forewarn_agent_{name} {text}",
            f"# TYPE forewarn_agent_{name} {kind}",
            f"forewarn_agent_{name} {value:g}",
        ]
    out += ["# HELP forewarn_agent_step_seconds How long a step took last.", "# TYPE forewarn_agent_step_seconds gauge"]
    for (step, phase), seconds in sorted(tally.step_s.items()):
        out.append(f'forewarn_agent_step_seconds{{step="{_label(step)}",phase="{phase}"}} {seconds:g}')
    return "\n".join(out) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write(agent: Agent, folder: Path, metrics_file: Optional[Path]) -> None:
    replace_file(folder / NAME, json.dumps(describe(agent)).encode() + b"\n", 0o600)
    if metrics_file is not None:
        silent = sum(each["approves"] and not each["awaited"] for each in _clients(agent))
        replace_file(metrics_file, metrics(agent.state, agent.client.failures.total, silent).encode(), 0o644)
