"""What happens in the demo: for each lane a list of acts, played in turn for ever. A chore of the ticker, on the service clock.

A lane asks for its next maintenance only when its last has ended, so there is never more than one open per lane, whatever
happens. It is a table and not a dice: every demo plays the same.
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

DIRECTOR = Actor("demo", "its director")
PAUSE_S = 120

log = logging.getLogger("forewarn.demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A maintenance to ask for. Times are seconds of the service clock; 0 is none."""

    request: MaintenanceRequest
    earliest_in_s: int = 0
    cancel_after_s: int = 0


def _rolling(type_: EventType, scope: str, description: str, duration_s: int) -> MaintenanceRequest:
    return MaintenanceRequest(type=type_, targets=Targets(scope=scope), description=description, duration_s=duration_s)


ACTS: Mapping[str, Sequence[Act]] = {
    # Something is nearly always open here: this is the scope of whoever sits at this computer.
    "shop": (
        Act(request=_rolling(EventType.REBOOT, "shop", "New kernel, one update domain after the other", 300)),
        Act(
            request=MaintenanceRequest(
                type=EventType.REDEPLOY,
                source=Source.USER,
                targets=Targets(machines=(("shop", "web-2"),)),
                description="Its owner moves it to another host",
            )
        ),
        Act(request=_rolling(EventType.FREEZE, "shop", "Live migration off ageing hosts", 5)),
    ),
    "workers": (
        Act(request=_rolling(EventType.REBOOT, "workers", "Security update of the hypervisor", 300)),
        Act(
            request=MaintenanceRequest(
                type=EventType.REDEPLOY,
                emergency=True,
                targets=Targets(machines=(("workers", "worker-1"),)),
                description="Its host has failed",
            )
        ),
        Act(
            request=MaintenanceRequest(
                type=EventType.FREEZE,
                targets=Targets(hosts=("rack-b",)),
                description="Memory of rack-b is exchanged",
                duration_s=5,
            )
        ),
    ),
    "db": (
        Act(
            request=_rolling(EventType.REBOOT, "db", "New firmware in an hour; it will be called off", 600),
            earliest_in_s=3_600,
            cancel_after_s=900,
        ),
        Act(request=_rolling(EventType.REDEPLOY, "db", "To hosts with faster disks", 600)),
    ),
    "legacy": (Act(request=_rolling(EventType.REBOOT, "legacy", "New power supply", 600)),),
}
# Guests that never ask cannot be waited for.
NEVER_ENABLED = "legacy"
PAUSES_S: Mapping[str, int] = {"legacy": 1_200}


@dataclass(slots=True)
class Lane:
    name: str
    acts: Sequence[Act]
    played: int = 0
    open: str = ""
    due: datetime | None = None  # when to ask for the next, or to call the open one off


class Director:
    """`begun` is set once every lane has asked for its first maintenance."""

    def __init__(self, control: Control, store: Store, acts: Mapping[str, Sequence[Act]] = ACTS) -> None:
        self._control = control
        self._store = store
        self._lanes = [Lane(name, each) for name, each in acts.items()]
        self.begun = threading.Event()

    def next_due(self) -> datetime | None:
        return min((lane.due for lane in self._lanes if lane.due is not None), default=None)

    def do(self, now: datetime) -> int:
        done = sum(self._move(lane, now) for lane in self._lanes)
        if done and all(lane.played for lane in self._lanes):
            self.begun.set()
        return done

    def _move(self, lane: Lane, now: datetime) -> bool:
        if lane.open:
            return self._follow(lane, now)
        if lane.due is not None and now < lane.due:
            return False
        if not lane.played and not self._guests_ask(lane):
            return False
        return self._ask(lane, now)

    def _guests_ask(self, lane: Lane) -> bool:
        """The first act waits for the agents: without guests that ask there would be no notice."""
        scope: Scope | None = self._store.scopes().get(lane.name)
        return lane.name == NEVER_ENABLED or (scope is not None and scope.enabled)

    def _ask(self, lane: Lane, now: datetime) -> bool:
        act = lane.acts[lane.played % len(lane.acts)]
        lane.played += 1
        request = act.request
        if act.earliest_in_s:
            request = replace(request, earliest=now + timedelta(seconds=act.earliest_in_s))
        try:
            lane.open = self._control.submit(request, DIRECTOR)
        except ForewarnError as error:  # somebody changed the fleet, or is at work there: the next act may do
            log.info("the demo's act in %s is left out: %s", lane.name, error)
            self._rest(lane, now)
            return True
        lane.due = now + timedelta(seconds=act.cancel_after_s) if act.cancel_after_s else None
        return True

    def _follow(self, lane: Lane, now: datetime) -> bool:
        found = self._found(lane.open)
        if found is None or found.ended is not None:
            lane.open = ""
            self._rest(lane, now)
            return True
        if lane.due is None or now < lane.due:
            return False
        lane.due = None
        try:
            self._control.cancel_maintenance(lane.open, DIRECTOR)
        except ForewarnError as error:
            log.info("the demo's maintenance in %s was not called off: %s", lane.name, error)
        return True

    def _found(self, maintenance_id: str) -> Maintenance | None:
        try:
            return self._control.maintenance(maintenance_id)[0]
        except ForewarnError:
            return None

    def _rest(self, lane: Lane, now: datetime) -> None:
        lane.due = now + timedelta(seconds=PAUSES_S.get(lane.name, PAUSE_S))
