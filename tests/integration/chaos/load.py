"""Guests and operators: what they do is decided by the seed, when it happens is real.

An operator writes into a maintenance's description what everybody else is to make of it: whether guests approve its events
and after how many seconds, how long the work takes and whether its first attempt fails.
"""

import threading
import time
from random import Random
from typing import Any

from tests.integration.chaos.client import NodeLife, NodesNow, RecordingClient, events_of
from tests.integration.chaos.fleet import MACHINES, Machine
from tests.integration.chaos.history import Recorder

WRONG_ID = "00000000-0000-4000-8000-000000000000"
OPERATORS = 4
# What nobody approves starts half a minute later: every operator asks for some first, so that they start within the run.
PREEMPTED = 3
# Then each asks for work that is still being done when the order of a dead node is taken over.
LONG_WORK_S = 20
REMEMBERED = 12


class Guest(threading.Thread):
    """One machine: polls through any node, most with the tag they hold, and approves what says so."""

    def __init__(
        self, machine: Machine, nodes_now: NodesNow, seed: int, recorder: Recorder, stop: threading.Event
    ) -> None:
        super().__init__(name=str(machine), daemon=True)
        self._machine, self._nodes_now, self._stopping = machine, nodes_now, stop
        self._chance = Random(f"{seed} {machine}")
        self._tagged = self._chance.random() < 0.8
        self._client = RecordingClient(f"guest {machine}", machine.address, recorder)
        self._etag = ""
        self._known: dict[str, float] = {}

    def run(self) -> None:
        chance, shown = self._chance, list[dict[str, Any]]()
        try:
            while not self._stopping.wait(chance.uniform(0.05, 0.4)):
                wait_s = chance.choice((0, 0, 1, 2))
                answer = self._client.poll(
                    chance.choice(self._nodes_now()), self._machine, self._etag, wait_s if self._etag else 0
                )
                if answer.status == 200:
                    shown = events_of(answer)
                    self._etag = answer.etag if self._tagged else ""
                if chance.random() < 0.4:
                    self._approve(shown)
        finally:
            self._client.close()

    def _approve(self, shown: list[dict[str, Any]]) -> None:
        now_s = time.monotonic()
        ready = [
            event["EventId"]
            for event in shown
            if event["EventStatus"] == "Scheduled"
            and (after_s := _said(event["Description"], "approve-after")) is not None
            and now_s - self._known.setdefault(event["EventId"], now_s) >= after_s
        ]
        if ready:
            wrong = [WRONG_ID] if self._chance.random() < 0.05 else []
            self._client.approve(self._chance.choice(self._nodes_now()), self._machine, [*ready, *wrong])


def _said(description: str, name: str) -> float | None:
    _, found, rest = description.partition(f"{name}=")
    return float(rest.partition(";")[0]) if found else None


class KnownIds:
    """The ids of maintenances and events that the operators have submitted lately."""

    def __init__(self) -> None:
        self.maintenances: list[str] = []
        self.events: list[str] = []

    def add(self, maintenance: str, events: list[str]) -> None:
        self.maintenances = [*self.maintenances, maintenance][-REMEMBERED:]
        self.events = [*self.events, *events][-REMEMBERED:]


class Operator(threading.Thread):
    """Schedules under a key until it is answered, and pauses, resumes, cancels, approves and resolves, through any node."""

    def __init__(
        self,
        number: int,
        nodes_now: NodesNow,
        seed: int,
        recorder: Recorder,
        known_ids: KnownIds,
        stop: threading.Event,
        token: str,
    ) -> None:
        super().__init__(name=f"operator {number}", daemon=True)
        self._nodes_now, self._known_ids, self._stopping = nodes_now, known_ids, stop
        self._chance = Random(f"{seed} operator {number}")
        self._client = RecordingClient(self.name, f"127.11.0.{number}", recorder, token)
        # A look at the document just after a change, from a machine of the scope.
        self._eyes = {m.scope: (m, RecordingClient(self.name, m.address, recorder)) for m in MACHINES if m.name == "m0"}
        # Machines alone in their scope are in nobody's way.
        self._own = [m for m in MACHINES if m.scope.startswith("lone")][number % OPERATORS]
        self._keys = 0

    def run(self) -> None:
        chance = self._chance
        work_checks = [self._schedule, self._verb, self._verb, self._verb, self._resolve]
        try:
            while not self._stopping.wait(chance.uniform(0.1, 0.6)):
                (self._schedule if self._keys <= PREEMPTED else chance.choice(work_checks))()
        finally:
            self._client.close()
            for _, eye in self._eyes.values():
                eye.close()

    # -- what it does

    def _schedule(self) -> None:
        chance = self._chance
        self._keys += 1
        key = f"{self.name.replace(' ', '-')}-{self._keys}"
        machine = chance.choice(MACHINES)
        work_s, fails = chance.choice((0.1, 0.3, 1, 3)), chance.random() < 0.15
        after_s = chance.choice((0, 0, 1, 3, 8))
        alone, long = self._keys <= PREEMPTED, self._keys == PREEMPTED + 1
        if long:
            machine, work_s, fails, after_s = self._own, LONG_WORK_S, False, 0
        body: dict[str, object] = {"type": "Preempt", "targets": {"machines": [str(machine)]}}
        if long:
            body["type"] = "Freeze"
        elif not alone:
            body = {"type": chance.choice(("Reboot", "Redeploy", "Freeze")), "targets": _target(chance, machine)}
        approval = "nobody approves;" if alone or (not long and chance.random() < 0.1) else f"approve-after={after_s};"
        body["description"] = f"{key} {approval} work={work_s};{' fails-once;' if fails else ''}"
        for _ in range(50):
            node = chance.choice(self._nodes_now())
            answer = self._client.submit(node, key, body)
            if answer.done:
                made = answer.json()
                if long:
                    self._client.verb(node, "approve", "event", made["waves"][0]["events"][0]["id"])
                if not (alone or long) or chance.random() < 0.3:
                    self._known_ids.add(made["id"], [e["id"] for wave in made["waves"] for e in wave["events"]])
            if answer.done or 400 <= answer.status < 500:
                self._see(node, machine)
                return
            if self._stopping.wait(0.2):
                return

    def _verb(self) -> None:
        chance = self._chance
        verb, kind = chance.choice(
            (("pause", "maintenance"), ("resume", "maintenance"), ("cancel", "maintenance"),
             ("resume", "maintenance"), ("approve", "event"), ("cancel", "event"))
        )  # fmt: skip
        things = self._known_ids.maintenances if kind == "maintenance" else self._known_ids.events
        if things and not (verb == "cancel" and chance.random() < 0.5):
            node = chance.choice(self._nodes_now())
            if self._client.verb(node, verb, kind, chance.choice(things)).done:
                self._see(node, chance.choice(MACHINES))

    def _resolve(self) -> None:
        """Whatever has failed: tried again mostly, else finished or given up."""
        node = self._chance.choice(self._nodes_now())
        for event_id in failed_events(self._client, node):
            verb = self._chance.choice(("retry", "retry", "finish", "abandon"))
            if self._client.verb(node, verb, "event", event_id).done:
                self._see(node, self._chance.choice(MACHINES))

    def _see(self, node: NodeLife, machine: Machine) -> None:
        eye, client = self._eyes[machine.scope]
        client.poll(node, eye)


def failed_events(client: RecordingClient, node: NodeLife) -> list[str]:
    return [event["id"] for event in events_waiting(client, node, "order-failed")]


def events_waiting(client: RecordingClient, node: NodeLife, code: str) -> list[dict[str, Any]]:
    """Return the started events that wait for this reason."""
    answer = client.look(node, "/v1/events?status=Started&limit=100")
    if answer.status != 200:
        return []
    return [event for event in answer.json()["items"] if any(reason["code"] == code for reason in event["waiting_for"])]


def _target(chance: Random, machine: Machine) -> dict[str, object]:
    """One machine, its update domain, or, now and then, all of its scope wave by wave."""
    one: dict[str, object] = {"machines": [str(machine)]}
    domain: dict[str, object] = {"scope": machine.scope, "update_domain": machine.update_domain}
    everything: dict[str, object] = {"scope": machine.scope}
    return chance.choice((one, one, domain, everything))
