"""The maintenance of the demo: a list for each scope, which repeats for ever on the service clock.

A scope gets its next maintenance only when the previous one has ended, so each list has at most one open maintenance. The lists
are fixed and not random, so that every demo runs the same.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forewarn.core.errors import ForewarnError
from forewarn.core.model import Actor, EventType, Maintenance, MaintenanceRequest, Scope, Source, Targets
from forewarn.service.control import Control
from forewarn.store import Store

SCHEDULER = Actor("demo", "its schedule")
PAUSE_S = 120

log = logging.getLogger("forewarn.demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMaintenance:
    """A maintenance to submit. Times are seconds of the service clock; 0 means that there is none."""

    request: MaintenanceRequest
    earliest_in_s: int = 0
    cancel_after_s: int = 0


def _rolling(type_: EventType, scope: str, description: str, duration_s: int) -> MaintenanceRequest:
    return MaintenanceRequest(type=type_, targets=Targets(scope=scope), description=description, duration_s=duration_s)


MAINTENANCES: Mapping[str, Sequence[DemoMaintenance]] = {
    # This scope has a maintenance nearly all the time, because the user acts as one of its machines.
    "shop": (
        DemoMaintenance(
            request=_rolling(EventType.REBOOT, "shop", "New kernel, one update domain after the other", 300)
        ),
        DemoMaintenance(
            request=MaintenanceRequest(
                type=EventType.REDEPLOY,
                source=Source.USER,
                targets=Targets(machines=(("shop", "web-2"),)),
                description="Move to another host, on the owner's request",
            )
        ),
        DemoMaintenance(request=_rolling(EventType.FREEZE, "shop", "Live migration from old hosts", 5)),
    ),
    "workers": (
        DemoMaintenance(request=_rolling(EventType.REBOOT, "workers", "Security update of the hypervisor", 300)),
        DemoMaintenance(
            request=MaintenanceRequest(
                type=EventType.REDEPLOY,
                emergency=True,
                targets=Targets(machines=(("workers", "worker-1"),)),
                description="The host has failed",
            )
        ),
        DemoMaintenance(
            request=MaintenanceRequest(
                type=EventType.FREEZE,
                targets=Targets(hosts=("rack-b",)),
                description="Memory replacement in rack-b",
                duration_s=5,
            )
        ),
    ),
    "db": (
        DemoMaintenance(
            request=_rolling(EventType.REBOOT, "db", "New firmware in an hour; will be cancelled", 600),
            earliest_in_s=3_600,
            cancel_after_s=900,
        ),
        DemoMaintenance(request=_rolling(EventType.REDEPLOY, "db", "Move to hosts with faster disks", 600)),
    ),
    "legacy": (DemoMaintenance(request=_rolling(EventType.REBOOT, "legacy", "New power supply", 600)),),
}
# The machine of this scope never polls, so its maintenance does not wait for a poll.
NEVER_ENABLED = "legacy"
PAUSES_S: Mapping[str, int] = {"legacy": 1_200}


@dataclass(slots=True)
class ScopeSchedule:
    """The list of one scope, and how far it has got."""

    scope: str
    maintenances: Sequence[DemoMaintenance]
    submitted: int = 0
    open_id: str = ""
    due: datetime | None = None  # when to submit the next maintenance, or to cancel the open one


class DemoSchedule:
    """Submits the maintenance of all scopes. The ticker calls it. `begun` is set once every scope has its first one."""

    def __init__(self, control: Control, store: Store) -> None:
        self._control = control
        self._store = store
        self._schedules = [ScopeSchedule(scope, each) for scope, each in MAINTENANCES.items()]
        self.begun = threading.Event()

    def next_due(self) -> datetime | None:
        return min((schedule.due for schedule in self._schedules if schedule.due is not None), default=None)

    def do(self, now: datetime) -> int:
        count = sum(self._continue(schedule, now) for schedule in self._schedules)
        if count and all(schedule.submitted for schedule in self._schedules):
            self.begun.set()
        return count

    def _continue(self, schedule: ScopeSchedule, now: datetime) -> bool:
        if schedule.open_id:
            return self._follow(schedule, now)
        if schedule.due is not None and now < schedule.due:
            return False
        if not schedule.submitted and not self._is_polled(schedule.scope):
            return False
        return self._submit(schedule, now)

    def _is_polled(self, name: str) -> bool:
        """Whether agents have polled. Maintenance that is submitted before the first poll gets no notice."""
        scope: Scope | None = self._store.scopes().get(name)
        return name == NEVER_ENABLED or (scope is not None and scope.enabled)

    def _submit(self, schedule: ScopeSchedule, now: datetime) -> bool:
        maintenance = schedule.maintenances[schedule.submitted % len(schedule.maintenances)]
        schedule.submitted += 1
        earliest = now + timedelta(seconds=maintenance.earliest_in_s) if maintenance.earliest_in_s else None
        try:
            schedule.open_id = self._control.submit(replace(maintenance.request, earliest=earliest), SCHEDULER)
        except (
            ForewarnError
        ) as error:  # the user changed the fleet or has a maintenance there; the next one may succeed
            log.info("the demo leaves out a maintenance in %s: %s", schedule.scope, error)
            self._pause(schedule, now)
            return True
        cancel_after_s = maintenance.cancel_after_s
        schedule.due = now + timedelta(seconds=cancel_after_s) if cancel_after_s else None
        return True

    def _follow(self, schedule: ScopeSchedule, now: datetime) -> bool:
        maintenance = self._find(schedule.open_id)
        if maintenance is None or maintenance.ended is not None:
            schedule.open_id = ""
            self._pause(schedule, now)
            return True
        if schedule.due is None or now < schedule.due:
            return False
        schedule.due = None
        try:
            self._control.cancel_maintenance(schedule.open_id, SCHEDULER)
        except ForewarnError as error:
            log.info("the demo could not cancel its maintenance in %s: %s", schedule.scope, error)
        return True

    def _find(self, maintenance_id: str) -> Maintenance | None:
        try:
            return self._control.maintenance(maintenance_id)[0]
        except ForewarnError:
            return None

    def _pause(self, schedule: ScopeSchedule, now: datetime) -> None:
        schedule.due = now + timedelta(seconds=PAUSES_S.get(schedule.scope, PAUSE_S))
