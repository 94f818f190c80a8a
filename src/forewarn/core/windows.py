"""When maintenance may start: the windows and no-go times that limit a start, as intervals of UTC.

Pure arithmetic on the rules of the fleet. `window_rules` says which of them bind a wave.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.weekly_times import Interval, common, merged, weekly_times, without

# If the windows have no time in common so soon, they are examined again then.
HORIZON = timedelta(days=400)
# The next interval is searched for in parts of the calendar, because it is mostly in the first.
_FIRST_PART, _PART = timedelta(days=8), timedelta(days=28)
_BEYOND = timedelta(days=1)


def window_times(window: Window, begin: datetime, end: datetime) -> tuple[Interval, ...]:
    """Return when the window is open: every interval that touches the time from `begin` to `end`.

    An extension prolongs the last interval that would have ended by then.
    """
    found = weekly_times(window.spans, window.zone, begin, end)
    until = window.extended_until
    if until is None or until < begin:
        return found
    around = weekly_times(window.spans, window.zone, until - timedelta(days=8), until)
    prolonged = [(opened, until) for opened, closed in around if closed <= until]
    return merged([*found, *prolonged[-1:]])


def no_go_intervals(no_go: NoGoTime, begin: datetime, end: datetime) -> tuple[Interval, ...]:
    """Return when nothing may start because of this no-go time."""
    if no_go.start is not None and no_go.end is not None:
        return ((no_go.start, no_go.end),)
    return weekly_times(no_go.spans, no_go.zone, begin, end)


@dataclass(frozen=True, slots=True)
class StartLimits:
    """What limits a start: one window of each entry of `windows` must be open, and none of the no-go times may last."""

    windows: tuple[tuple[Window, ...], ...] = ()
    no_go_times: tuple[NoGoTime, ...] = ()

    def times(self, begin: datetime, end: datetime) -> tuple[Interval, ...]:
        """Return the intervals between `begin` and `end` in which a start is allowed. The first and the last may be cut."""
        allowed: tuple[Interval, ...] = ((begin - _BEYOND, end + _BEYOND),)
        for choice in self.windows:
            allowed = common(allowed, merged(each for window in choice for each in window_times(window, begin, end)))
        forbidden = merged(each for no_go in self.no_go_times for each in no_go_intervals(no_go, begin, end))
        return without(allowed, forbidden) if forbidden else allowed

    def allow(self, moment: datetime) -> bool:
        if not self.windows and not self.no_go_times:
            return True
        return any(begin <= moment < end for begin, end in _times_around(self, _monday(moment)))

    def first_after(self, moment: datetime, wanted: datetime) -> Interval | None:
        """Return the first interval in which a start at `wanted` or later is allowed, as far as it lies after `moment`.

        None if there is none within the horizon.
        """
        if not all(self.windows):
            return None
        monday = _monday(moment)
        for interval in _times_around(self, monday) if wanted < monday + _FIRST_PART else ():
            if interval[1] > wanted:
                return interval
        begin, end = moment, wanted + _FIRST_PART
        while begin < wanted + HORIZON:
            for interval in self.times(begin, end):
                if interval[1] > wanted:
                    return interval
            begin, end = end, end + _PART
        return None

    def in_the_way(self, moment: datetime) -> tuple[NoGoTime, ...]:
        """Return the no-go times that forbid a start at this moment."""
        return tuple(
            no_go
            for no_go in self.no_go_times
            if any(begin <= moment < end for begin, end in no_go_intervals(no_go, moment, moment))
        )


def _monday(moment: datetime) -> datetime:
    """Return the beginning of the week of this moment, in UTC."""
    return datetime(moment.year, moment.month, moment.day, tzinfo=UTC) - timedelta(days=moment.weekday())


@lru_cache(maxsize=4_096)
def _times_around(limits: StartLimits, monday: datetime) -> tuple[Interval, ...]:
    """Return the times of this week and of the day after it. Every tick needs them, and they change with the rules only."""
    return limits.times(monday, monday + _FIRST_PART)
