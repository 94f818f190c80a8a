"""Bodies about orders."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.model import EventType, OrderState, Phase
from forewarn.operator.api.bodies.common import MachineName, Name, RequestBody, ResponseBody

Attempt = Annotated[
    Annotated[int, msgspec.Meta(ge=1)] | None,
    msgspec.Meta(
        description="the attempt that is reported, as returned when the order was taken; an earlier attempt is refused"
    ),
]


class FinishIn(RequestBody):
    """Where the machines of a finished order are now: `{"new_hosts": {"shop/web-0": "rack2-b"}}`."""

    new_hosts: dict[MachineName, Name] = {}
    attempt: Attempt = None
    output: Annotated[str, msgspec.Meta(max_length=65_536)] = ""


class FailIn(RequestBody):
    """Why an order failed."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
    attempt: Attempt = None
    output: Annotated[str, msgspec.Meta(max_length=65_536)] = ""


class OrderOut(ResponseBody):
    """The work of one started event, whose id is the event's id, or the work on a `host`.

    The order of a host names no scope and no machines; its type is that of the maintenance. `phase` says what an order of
    in-place maintenance does: `stop` its machines, or `start` them again.

    `hosts` are the hosts of
    its machines now. What resuming the store would do is listed without them. One order that has not ended also has `targets`
    for an operator or viewer: the hosts that each machine may be moved to, the best first.
    """

    id: str
    maintenance_id: str
    state: OrderState
    scope: str
    type: EventType
    machines: list[str]
    issued: datetime
    deadline: datetime | None
    attempt: int
    node: str
    taken: datetime | None
    ended: datetime | None
    reason: str
    output: str
    host: str = ""
    phase: Phase = Phase.NONE
    hosts: list[str] | msgspec.UnsetType = msgspec.UNSET
    targets: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET
