"""The chart of open events against time: the position of each bar, mark and tick, in percent of the width.

Pure geometry. One event far in the future must not squeeze all others: the chart reaches as far as most events need, and bars
that go further end at its edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

from forewarn.core.formatting import distance, short_time
from forewarn.operator.api.bodies import EventOut

STEPS_S = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
MAX_TICKS = 6
MIN_LENGTH_S = 600
SHARE_INSIDE = 0.9  # of the events lie within the chart
EDGE = 4.0  # percent: labels nearer to the edge would be cut


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from `at`, `width` wide, in percent; `beyond` if it continues past the edge."""

    at: float
    width: float
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class ChartRow:
    """The line of one event: its notice, its work, and the marks on it; `description` says the same as text."""

    notice: Bar | None
    work: Bar | None
    not_before: float | None
    approved: tuple[float, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Chart:
    now: float
    ticks: tuple[Tick, ...]
    rows: tuple[ChartRow, ...]


def chart_of(events: Sequence[EventOut], now: datetime) -> Chart:
    begin, end = _limits(events, now)

    def at(moment: datetime) -> float:
        share = (moment - begin) / (end - begin) * 100
        return round(min(100.0, max(0.0, share)), 2)

    def bar(first: datetime, last: datetime) -> Bar:
        return Bar(at(first), round(max(0.4, at(last) - at(first)), 2), last > end)

    def row(event: EventOut) -> ChartRow:
        notice = work = None
        if event.published is not None:
            notice = bar(event.published, event.not_before or event.started or now)
        if event.started is not None:
            work = bar(event.started, event.ended or now)
        marks = tuple(sorted({at(approval.when) for approval in event.approved_by[:MAX_TICKS]}))
        not_before = at(event.not_before) if event.not_before is not None and event.not_before <= end else None
        return ChartRow(notice, work, not_before, marks, _description(event, now))

    return Chart(at(now), _ticks(begin, end, at(begin)), tuple(row(event) for event in events))


def _limits(events: Sequence[EventOut], now: datetime) -> tuple[datetime, datetime]:
    back = sorted((now - e.published).total_seconds() for e in events if e.published is not None)
    ahead = sorted((e.not_before - now).total_seconds() for e in events if e.not_before is not None)
    back_s, ahead_s = (max(0.0, each[ceil((len(each) - 1) * SHARE_INSIDE)]) if each else 0.0 for each in (back, ahead))
    length_s = max(MIN_LENGTH_S, back_s + ahead_s)
    return now - timedelta(seconds=back_s + length_s * 0.06), now + timedelta(
        seconds=max(ahead_s, MIN_LENGTH_S / 4) + length_s * 0.1
    )


def _ticks(begin: datetime, end: datetime, zero: float) -> tuple[Tick, ...]:
    length_s = (end - begin).total_seconds()
    step_s = next((s for s in STEPS_S if length_s / s <= MAX_TICKS), STEPS_S[-1])
    first = int(begin.timestamp()) // step_s * step_s
    label_format = "%H:%M" if step_s < 86_400 else "%-d %b"
    ticks = []
    for number in range(1, MAX_TICKS + 2):
        moment = datetime.fromtimestamp(first + number * step_s, UTC)
        share = zero + (moment - begin) / (end - begin) * 100
        if EDGE <= share <= 100 - EDGE:
            ticks.append(Tick(round(share, 2), f"{moment:{label_format}}"))
    return tuple(ticks)


def _description(event: EventOut, now: datetime) -> str:
    """Describe the row for readers who cannot see it."""
    parts = [f"{event.status}"]
    for what, moment in (("published", event.published), ("NotBefore", event.not_before), ("started", event.started)):
        if moment is not None:
            parts.append(f"{what} {short_time(moment, now)}, {distance(moment, now)}")
    if event.approved_by:
        parts.append(f"approved {short_time(event.approved_by[0].when, now)}")
    return "; ".join(parts)
