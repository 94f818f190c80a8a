"""Times of the week on the clocks of a time zone, as intervals of UTC. Calendar arithmetic only: it knows no window.

A span is like "Mon-Fri 22:00-05:00": days, and two times of day. If the second time is not later than the first, it lies on
the next day; "24:00" is the end of a day. A span lasts from the first moment at which the clocks show its begin until the
last moment at which they show its end. If the clocks skip a time, the moment at which they are put forward counts.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from forewarn.core.errors import Invalid
from forewarn.core.lazy_dataclass import dataclass

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MAX_SPAN_CHARS = 64
_SPAN = re.compile(r"([A-Za-z,-]+) (\d\d):(\d\d) ?- ?(\d\d):(\d\d)")
_DAY_MINUTES = 24 * 60
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
# The clocks of a zone differ from UTC by at most a day, and a span ends on the next day at the latest.
_MARGIN = 3 * _DAY

FIRST_MOMENT, LAST_MOMENT = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

Interval = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Span:
    """The days of the week on which a span begins (Monday is 0), and the minutes after midnight of its begin and end."""

    days: frozenset[int]
    begin: int
    end: int


@lru_cache(maxsize=4_096)
def parse_span(text: str) -> Span:
    """Return the span that the text describes, or raise Invalid."""
    match = _SPAN.fullmatch(text) if len(text) <= MAX_SPAN_CHARS else None
    days = _days(match[1]) if match is not None else None
    if match is None or days is None:
        raise Invalid(f"{text[:MAX_SPAN_CHARS]!r} is not a time of the week: write it like 'Mon-Fri 22:00-05:00'")
    begin, end = (int(match[i]) * 60 + int(match[i + 1]) for i in (2, 4))
    valid = int(match[3]) < 60 and int(match[5]) < 60 and begin < _DAY_MINUTES and end <= _DAY_MINUTES
    if not valid or begin == end:
        whole = ", and 00:00-24:00 for the whole day" if begin == end else ""
        raise Invalid(f"{text!r} has no valid times of day: write two different times from 00:00 to 24:00{whole}")
    return Span(days, begin, end if end > begin else end + _DAY_MINUTES)


def _days(text: str) -> frozenset[int] | None:
    """Return the days named by text like "Mon-Fri", "Sat,Sun" or "daily", or None if the text names something else."""
    if text.lower() == "daily":
        return frozenset(range(7))
    numbers = {name.lower(): number for number, name in enumerate(DAYS)}
    days: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        if first not in numbers or (last or first) not in numbers or part.endswith("-"):
            return None
        begin, end = numbers[first], numbers[last or first]
        days |= {day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)}
    return frozenset(days)


@lru_cache(maxsize=1_024)
def zone_named(name: str) -> tzinfo:
    """Return the time zone, or raise Invalid."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # most services use no other zone than UTC

    try:
        return ZoneInfo(name)
    # A name that is a folder of the database raises OSError, and a file that is no time zone raises ValueError.
    except (KeyError, ValueError, OSError):
        raise Invalid(f"there is no time zone {name[:64]!r}: use a name like Europe/Berlin or UTC") from None


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the union of the intervals: in order, without empty ones, none touching the next."""
    found: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[0] < each[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def common(some: Iterable[Interval], others: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return the times that lie in both. Each is in order, and its intervals do not touch."""
    found: list[Interval] = []
    rest = list(reversed(others))
    for begin, end in some:
        while rest and rest[-1][0] < end:
            found.append((max(begin, rest[-1][0]), min(end, rest[-1][1])))
            if rest[-1][1] > end:
                break
            rest.pop()
    return merged(found)


def without(some: Iterable[Interval], others: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return the times of `some` that lie in none of `others`. Each is in order, and its intervals do not touch."""
    edges = [FIRST_MOMENT, *(edge for interval in others for edge in interval), LAST_MOMENT]
    return common(some, tuple(zip(edges[::2], edges[1::2], strict=True)))


def weekly_times(spans: tuple[str, ...], zone: str, begin: datetime, end: datetime) -> tuple[Interval, ...]:
    """Return when one of the spans lasts: every interval that touches the time from `begin` to `end`, whole.

    An interval that continues for weeks is cut some days before `begin` and after `end`.
    """
    first = (begin - _MARGIN).astimezone(UTC).date()
    weeks = ((end + _MARGIN).astimezone(UTC).date() - first).days // 7 + 1
    monday = first - timedelta(days=first.weekday())
    found = merged(each for week in range(weeks + 1) for each in _week(spans, zone, monday + timedelta(weeks=week)))
    return tuple(each for each in found if each[1] >= begin and each[0] <= end)


@lru_cache(maxsize=4_096)
def _week(spans: tuple[str, ...], zone: str, monday: date) -> tuple[Interval, ...]:
    return merged(_times_of_week([parse_span(text) for text in spans], zone_named(zone), monday))


def _times_of_week(spans: Iterable[Span], zone: tzinfo, monday: date) -> Iterator[Interval]:
    for span in spans:
        for day in sorted(span.days):
            midnight = datetime.combine(monday + timedelta(days=day), time.min)
            begin, end = (midnight + timedelta(minutes=minutes) for minutes in (span.begin, span.end))
            yield _moment(begin, zone, last=False), _moment(end, zone, last=True)


def _moment(clock_time: datetime, zone: tzinfo, *, last: bool) -> datetime:
    """Return when the clocks of the zone show this time: the first or the last moment, if they show it twice."""
    moment = clock_time.replace(tzinfo=zone, fold=int(last)).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == clock_time:
        return moment
    # The clocks skip this time. Search for the moment at which they are put forward.
    early, late = (clock_time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (1, 0))
    while late - early > _SECOND:
        middle = early + (late - early) // 2 // _SECOND * _SECOND
        if middle.astimezone(zone).replace(tzinfo=None) < clock_time:
            early = middle
        else:
            late = middle
    return late
