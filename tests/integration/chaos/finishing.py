"""The end of a run: an operator brings everything to its end; then the final state is read through the API."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.integration.chaos.client import Answer, NodeLife, NodesNow, RecordingClient
from tests.integration.chaos.history import Audited, Event, Maintenance, Recorder, Scope
from tests.integration.chaos.load import events_waiting, failed_events
from tests.integration.chaos.three_nodes import work_done

PAGE = 500
OPEN = ("Planned", "Running", "Paused")
LOOK_EVERY_S = 0.5
# For this long open maintenances are helped to complete; then what has not started is cancelled.
PATIENT_S = 6.0
# A node that knows what became of an order ends its doubt when it next renews its lease, every 3 s.
DOUBTED_S = 10.0


class LastOperator:
    """The last operator: resumes, approves, tries again and in the end cancels, until every maintenance has ended."""

    def __init__(self, nodes_now: NodesNow, client: RecordingClient, work_log: Path) -> None:
        self._nodes_now, self._client, self._work_log = nodes_now, client, work_log
        self._doubted_s: dict[tuple[str, str], float] = {}

    def end_everything(self, within_s: float) -> None:
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + within_s:
            still_open = self._items("/v1/maintenances?" + "&".join(f"status={each}" for each in OPEN))
            if not still_open:
                return
            late = time.monotonic() > begun_s + PATIENT_S
            for maintenance in still_open:
                # A Preempt waits for the end of its notice, which shows that nothing starts early.
                if late and maintenance["type"] != "Preempt":
                    self._client.verb(self._node(), "cancel", "maintenance", maintenance["id"])
                elif maintenance["status"] == "Paused":
                    self._client.verb(self._node(), "resume", "maintenance", maintenance["id"])
            for event in self._items("/v1/events?status=Scheduled"):
                if event["type"] != "Preempt" and not event["approved_by"]:
                    self._client.verb(self._node(), "approve", "event", event["id"])
            for event_id in failed_events(self._client, self._node()):
                self._client.verb(self._node(), "retry", "event", event_id)
            self._resolve_doubts()
            time.sleep(LOOK_EVERY_S)

    def _resolve_doubts(self) -> None:
        """Decide as an operator who checks the machines: by what the commands recorded alone."""
        now_s = time.monotonic()
        for event in events_waiting(self._client, self._node(), "in-doubt"):
            worked = [each for each in work_done(self._work_log) if each.order == event["id"]]
            attempt = max((each.attempt for each in worked), default=0)
            if now_s < self._doubted_s.setdefault((event["id"], str(event["timeline"])), now_s) + DOUBTED_S:
                continue
            running = sum(1 if each.what == "began" else -1 for each in worked)
            order = self._client.look(self._node(), f"/v1/orders/{event['id']}")
            if running or order.status != 200:
                continue
            verb = "finish" if order.json()["attempt"] == attempt else "retry"
            self._client.verb(self._node(), verb, "event", event["id"])

    def read(self, recorder: Recorder) -> None:
        """Record the final state in the history."""
        for scope in self._items("/v1/scopes"):
            recorder.record(Scope(name=scope["name"], approval=scope["approval"]))
        for row in self._items("/v1/maintenances"):
            recorder.record(
                Maintenance(
                    id=row["id"], status=row["status"], description=row["description"], ended=row["ended"] is not None
                )
            )
        for row in self._items("/v1/events"):
            recorder.record(_event(row))
        for row in reversed(self._items("/v1/audit")):
            recorder.record(_audited(row))

    def _node(self) -> NodeLife:
        """Return a node that is ready; the first if none is."""
        for node in self._nodes_now():
            if self._client.look(node, "/readyz").status == 200:
                return node
        return self._nodes_now()[0]

    def _items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        join, cursor = "&" if "?" in path else "?", ""
        while True:
            answer = self._ask(f"{path}{join}limit={PAGE}{cursor}")
            found += answer.json()["items"]
            if answer.json()["next_cursor"] is None:
                return found
            cursor = f"&cursor={answer.json()['next_cursor']}"

    def _ask(self, path: str) -> Answer:
        """Read from any node that answers; all faults are over, so one does soon."""
        deadline_s = time.monotonic() + 60.0
        while time.monotonic() < deadline_s:
            answer = self._client.look(self._node(), path)
            if answer.status == 200:
                return answer
            assert not 400 <= answer.status < 500, f"{path}: {answer.body}"
            time.sleep(LOOK_EVERY_S)
        raise AssertionError(f"no node answers {path}")


def _at(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _event(row: dict[str, Any]) -> Event:
    return Event(
        id=row["id"],
        maintenance=row["maintenance_id"],
        scope=row["scope"],
        type=row["type"],
        status=row["status"],
        resources=tuple(row["resources"]),
        published_at=_at(row["published"]),
        not_before_at=_at(row["not_before"]),
        started_at=_at(row["started"]),
        notice_s=row["notice_s"] or 0,
    )


def _audited(row: dict[str, Any]) -> Audited:
    at = _at(row["at"])
    assert at is not None
    return Audited(
        id=row["id"],
        at=at,
        who=row["who"],
        origin=row["origin"],
        action=row["action"],
        scope=row["scope"],
        maintenance=row["maintenance_id"],
        event=row["event_id"],
        detail=row["detail"],
    )
