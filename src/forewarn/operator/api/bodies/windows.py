"""Bodies about windows and no-go times."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.fleet_rules import MAX_SPANS
from forewarn.core.weekly_times import MAX_SPAN_CHARS
from forewarn.operator.api.bodies.common import MAX_LIST, Name, RequestBody, ResponseBody, Text

WeeklyTime = Annotated[
    str, msgspec.Meta(max_length=MAX_SPAN_CHARS, description="days and two times of day, like `Mon-Fri 22:00-05:00`")
]
WeeklyTimes = Annotated[list[WeeklyTime], msgspec.Meta(max_length=MAX_SPANS)]
Zone = Annotated[str, msgspec.Meta(max_length=64, description="a time zone, like `Europe/Berlin`")]


class WindowIn(RequestBody):
    """The times of the week at which maintenance may start, on the clocks of a time zone."""

    when: Annotated[WeeklyTimes, msgspec.Meta(min_length=1)]
    zone: Zone = "UTC"


class WindowOut(ResponseBody):
    """A window, and whether it is open now. `closes` is when it closes next, `opens` when it opens next if it is closed."""

    name: str
    when: list[str]
    zone: str
    extended_until: datetime | None
    open: bool
    opens: datetime | None
    closes: datetime | None


class ExtendIn(RequestBody):
    """Until when an open window stays open."""

    until: datetime


class NoGoTimeIn(RequestBody):
    """A time at which nothing may start: once from `start` to `end`, or weekly as in `when`.

    It binds the machines of `scopes` that the selector `labels` chooses; without both, the whole fleet.
    """

    reason: Text
    start: datetime | None = None
    end: datetime | None = None
    when: WeeklyTimes = []
    zone: Zone = "UTC"
    scopes: Annotated[list[Name], msgspec.Meta(max_length=MAX_LIST)] = []
    labels: Text = ""


class NoGoTimeOut(ResponseBody):
    """A no-go time, and whether it lasts now.

    An owner sees those that bind machines of the owner's scopes, without the other scopes; instead of labels, the scopes.
    """

    name: str
    reason: str
    start: datetime | None
    end: datetime | None
    when: list[str]
    zone: str
    scopes: list[str]
    labels: str
    active: bool
