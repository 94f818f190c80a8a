"""Bodies about the hold of the store."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.model import EventType, HoldCause
from forewarn.operator.api.bodies.common import RequestBody, ResponseBody, Text
from forewarn.operator.api.bodies.orders import OrderOut


class StoreHoldIn(RequestBody):
    """Why an operator holds the store, for the audit log."""

    reason: Text = ""


class ResumeIn(RequestBody):
    """The time of the hold that the operator was shown: `held` of what would happen."""

    held: Annotated[datetime, msgspec.Meta(tz=True)]


class StoreHoldOut(ResponseBody):
    """Why the store is held and since when: nothing starts and no order is handed out until an operator resumes it."""

    cause: HoldCause
    detail: str
    who: str
    held: datetime


class StoreOut(ResponseBody):
    """Whether the store is held."""

    held: StoreHoldOut | None


class StartOut(ResponseBody):
    """An event that would start."""

    id: str
    maintenance_id: str
    scope: str
    update_domain: int
    type: EventType
    resources: list[str]
    not_before: datetime | None


class ResumeEffectsOut(ResponseBody):
    """What would happen at once if the store were resumed.

    The events in `starts` would start. Of the `orders`, the open ones would be handed out. The ticker would ask the executor
    about the running ones: an order that its executor does not know is left in doubt, or begins again if it may be repeated.
    `more` says that the lists are not complete.
    """

    held: StoreHoldOut | None
    starts: list[StartOut]
    orders: list[OrderOut]
    more: bool
