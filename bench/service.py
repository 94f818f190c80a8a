"""A real Service on a database file, for the benches that run inside this process, and the few things they ask of it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Status, Targets
from forewarn.core.order_verbs import OrderReport, Outcome
from forewarn.endpoint.documents import Documents
from forewarn.service.clock import Clock
from forewarn.service.settings import Settings

OPERATOR = Actor("bench")


@contextmanager
def service_on(path: Path, clock: Clock) -> Iterator[Service]:
    with service_at(f"sqlite:{path}", path.parent, clock) as (service, _):
        yield service


@contextmanager
def service_at(store: str, folder: Path, clock: Clock) -> Iterator[tuple[Service, Documents]]:
    """Wired as `forewarn serve` does it, the documents in memory too, but nobody listens and nobody ticks."""
    service = Service(Settings(store=store, state_dir=folder), clock=clock)
    try:
        documents = Documents(service.store, clock)
        documents.load()
        service.control.listen(documents.on_change)
        yield service, documents
    finally:
        service.close()


def reboot(service: Service, targets: Iterable[Targets], not_before: datetime | None = None) -> list[str]:
    """A Platform Reboot for each; the ids of the maintenances."""
    return [
        service.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=each, not_before=not_before), OPERATOR)
        for each in targets
    ]


def finish(service: Service, event_ids: Sequence[str], at_once: int) -> None:
    """Report orders as done, so many in one change: the ticker saves what its executor ended by the batch."""
    reports = [OrderReport(event_id, 1, Outcome(ok=True)) for event_id in event_ids]
    for start in range(0, len(reports), at_once):
        service.control.report_orders(reports[start : start + at_once], OPERATOR)


class Moves:
    """Hears which events moved, after the change was committed."""

    def __init__(self, service: Service) -> None:
        self._changes: list[Change] = []
        service.control.listen(self._changes.append)

    def take(self, status: Status) -> list[str]:
        """The events that came to this status since the last call."""
        moved = [event.id for change in self._changes for event in change.events if event.status is status]
        self._changes.clear()
        return moved
