"""The end of a run: an operator sees to everything that is still open, and what is there then is read through the API."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.integration.chaos.asking import Answer, Asker, Peer, Peers
from tests.integration.chaos.history import Audited, Event, Maintenance, Recorder, Scope
from tests.integration.chaos.house import work_done
from tests.integration.chaos.load import events_waiting, failed_events

PAGE = 500
OPEN = ("Planned", "Running", "Paused")
LOOK_EVERY_S = 0.5
# So long what is open is helped along; then what has not started is cancelled.
PATIENT_S = 6.0
# A node that knows what became of an order ends its doubt when it next renews its lease, every 3 s.
DOUBTED_S = 10.0


class Closer:
    """The last operator: resumes, approves, tries again and in the end cancels, until every maintenance has ended."""

    def __init__(self, peers: Peers, asker: Asker, witness: Path) -> None:
        self._peers, self._asker, self._witness = peers, asker, witness
        self._doubted_s: dict[tuple[str, str], float] = {}

    def end_everything(self, within_s: float) -> None:
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + within_s:
            still_open = self._items("/v1/maintenances?" + "&".join(f"status={each}" for each in OPEN))
            if not still_open:
                return
            late = time.monotonic() > begun_s + PATIENT_S
            for maintenance in still_open:
                # A Preempt is left alone until its notice has run: that shows that nothing starts early.
                if late and maintenance["type"] != "Preempt":
                    self._asker.verb(self._peer(), "cancel", "maintenance", maintenance["id"])
                elif maintenance["status"] == "Paused":
                    self._asker.verb(self._peer(), "resume", "maintenance", maintenance["id"])
            for event in self._items("/v1/events?status=Scheduled"):
                if event["type"] != "Preempt" and not event["approved_by"]:
                    self._asker.verb(self._peer(), "approve", "event", event["id"])
            for event_id in failed_events(self._asker, self._peer()):
                self._asker.verb(self._peer(), "retry", "event", event_id)
            self._resolve_doubts()
            time.sleep(LOOK_EVERY_S)

    def _resolve_doubts(self) -> None:
        """Like an operator who checks the machines: look at what the commands wrote down, and decide on that alone."""
        now_s = time.monotonic()
        for event in events_waiting(self._asker, self._peer(), "in-doubt"):
            worked = [each for each in work_done(self._witness) if each.order == event["id"]]
            attempt = max((each.attempt for each in worked), default=0)
            if now_s < self._doubted_s.setdefault((event["id"], str(event["timeline"])), now_s) + DOUBTED_S:
                continue
            running = sum(1 if each.what == "began" else -1 for each in worked)
            order = self._asker.look(self._peer(), f"/v1/orders/{event['id']}")
            if running or order.status != 200:
                continue
            verb = "finish" if order.json()["attempt"] == attempt else "retry"
            self._asker.verb(self._peer(), verb, "event", event["id"])

    def read(self, recorder: Recorder) -> None:
        """All there is, into the history."""
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

    def _peer(self) -> Peer:
        """One that is ready."""
        for peer in self._peers():
            if self._asker.look(peer, "/readyz").status == 200:
                return peer
        return self._peers()[0]

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
        """From whichever node answers: everything is mended, so one does soon."""
        deadline_s = time.monotonic() + 60.0
        while time.monotonic() < deadline_s:
            answer = self._asker.look(self._peer(), path)
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
