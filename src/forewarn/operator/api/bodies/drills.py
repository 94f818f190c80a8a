"""Bodies about drills and readiness."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.model import MAX_DRILL_HOLD_S, EventType, MaintenanceStatus
from forewarn.operator.api.bodies.common import RequestBody, ResponseBody, Text
from forewarn.operator.api.bodies.maintenances import TargetsIn


class DrillIn(RequestBody):
    """A drill: guests see events of this type, prepare and approve, and nothing touches their machines.

    An event ends `hold_s` after its start. An owner names own scopes, or machines of them.
    """

    type: EventType
    targets: TargetsIn
    hold_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_DRILL_HOLD_S)] = 60
    not_before: datetime | None = None
    description: Text = ""


class ReadinessOut(ResponseBody):
    """The machines of a drill: how many, how many were measured, and how many of these approved before NotBefore.

    `share` is `ready` divided by `measured`, `slowest_s` the longest time that a ready machine needed.
    """

    machines: int
    measured: int
    ready: int
    share: float | None
    slowest_s: int | None


class DrillRow(ResponseBody):
    """A drill in a list: of an owner's drills, only the machines of the owner's scopes count."""

    id: str
    type: EventType
    status: MaintenanceStatus
    created: datetime
    created_by: str
    ended: datetime | None
    description: str
    hold_s: int
    scopes: list[str]
    readiness: ReadinessOut


class MachineReadinessOut(ResponseBody):
    """A machine of a drill. `ready` is null if it was not measured, `seen` if it has not polled since the announcement."""

    scope: str
    name: str
    event_id: str
    ready: bool | None
    needed_s: int | None
    seen: datetime | None


class DrillOut(DrillRow):
    """The report of a drill, with its machines: first those that were not ready."""

    machines: list[MachineReadinessOut]
