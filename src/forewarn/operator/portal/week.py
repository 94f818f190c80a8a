"""The calendar of a week: when windows are open, no-go times last and events start, day by day, in UTC."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.model import Status
from forewarn.core.weekly_times import Interval
from forewarn.core.windows import no_go_intervals, window_times
from forewarn.operator.api.bodies import EventOut, NoGoTimeOut, WindowOut
from forewarn.operator.portal.page_request import PageRequest, RenderedPage

DAYS = 7
ROWS = 200
WEEK, DAY = timedelta(days=DAYS), timedelta(days=1)
DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class DayPart:
    """A part of a day, in minutes after midnight: its name, and its times as text."""

    name: str
    begin: int
    end: int
    text: str
    detail: str = ""

    @property
    def width(self) -> int:
        return max(1, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Day:
    date: date
    windows: tuple[DayPart, ...]
    no_go_times: tuple[DayPart, ...]
    starts: tuple[tuple[str, EventOut], ...]


def week(request: PageRequest) -> RenderedPage:
    """Show the week of the date in the query, or this week."""
    first = monday_of(request.query.get("week", ""), request.now)
    begin = datetime.combine(first, time.min, UTC)
    api = request.api
    windows = api.get("/v1/windows", limit=ROWS).items
    no_go_times = api.get("/v1/no-go-times", limit=ROWS).items
    events = [
        event
        for status in (Status.SCHEDULED, Status.PLANNED)
        for event in api.get("/v1/events", status=status, limit=ROWS).items
    ]
    variables = {
        "days": days_of(begin, windows, no_go_times, events),
        "windows": windows,
        "no_go_times": no_go_times,
        "before": (first - WEEK).isoformat(),
        "after": (first + WEEK).isoformat(),
        "today": request.now.astimezone(UTC).date(),
        "first": first,
        "may_change": api.may("PUT", "/v1/windows/{window}"),
    }
    return RenderedPage("week.html", variables)


def monday_of(text: str, now: datetime) -> date:
    """Return the Monday of the week of this date, or of this week if the text is no date."""
    today = now.astimezone(UTC).date()
    try:
        chosen = date.fromisoformat(text) if text else today
    except ValueError:
        chosen = today
    # Far away from today, the arithmetic of dates would end.
    chosen = chosen if abs((chosen - today).days) < 3_660 else today
    return chosen - timedelta(days=chosen.weekday())


def days_of(
    begin: datetime,
    windows: Sequence[WindowOut],
    no_go_times: Sequence[NoGoTimeOut],
    events: Iterable[EventOut],
) -> list[Day]:
    """Return the days of the week that begins here."""
    end = begin + WEEK
    opened = [(each.name, "", window_times(_window(each), begin, end)) for each in windows]
    forbidden = [(each.name, each.reason, no_go_intervals(_no_go_time(each), begin, end)) for each in no_go_times]
    moments = sorted((moment, event.id or "", event) for event in events if (moment := _start(event)) is not None)
    days = []
    for midnight in (begin + number * DAY for number in range(DAYS)):
        of_day = [(moment, event) for moment, _, event in moments if midnight <= moment < midnight + DAY]
        starts = tuple((f"{moment.astimezone(UTC):%H:%M}", event) for moment, event in of_day)
        days.append(Day(midnight.date(), _bars(opened, midnight), _bars(forbidden, midnight), starts))
    return days


def _start(event: EventOut) -> datetime | None:
    """Return when an announced event starts at the latest, or when a planned one is announced."""
    if event.status is Status.SCHEDULED:
        return event.not_before
    return max((reason.until for reason in event.waiting_for if reason.until is not None), default=None)


def _bars(named: Iterable[tuple[str, str, Iterable[Interval]]], midnight: datetime) -> tuple[DayPart, ...]:
    found = [
        DayPart(name, *_minutes(interval, midnight), _text(interval, midnight), detail)
        for name, detail, intervals in named
        for interval in intervals
        if interval[0] < midnight + DAY and interval[1] > midnight
    ]
    return tuple(sorted(found, key=lambda bar: (bar.begin, bar.name)))


def _minutes(interval: Interval, midnight: datetime) -> tuple[int, int]:
    begin, end = (int((moment - midnight) / timedelta(minutes=1)) for moment in interval)
    return max(0, begin), min(DAY_MINUTES, end)


def _text(interval: Interval, midnight: datetime) -> str:
    begin, end = _minutes(interval, midnight)
    return f"{begin // 60:02}:{begin % 60:02}–{end // 60:02}:{end % 60:02}"


def _window(body: WindowOut) -> Window:
    return Window(name=body.name, spans=tuple(body.when), zone=body.zone, extended_until=body.extended_until)


def _no_go_time(body: NoGoTimeOut) -> NoGoTime:
    return NoGoTime(
        name=body.name, reason=body.reason, start=body.start, end=body.end, spans=tuple(body.when), zone=body.zone
    )
