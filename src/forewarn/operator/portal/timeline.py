"""The picture of open events against time: where each bar, mark and tick stands, in percent of the width.

Pure geometry. One event far ahead must not press all others together: the picture reaches as far as most of them need, and
what lies beyond is drawn to its edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

from forewarn.operator.api.bodies import EventOut
from forewarn.operator.portal.formatting import distance, stamp

STEPS_S = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
MAX_TICKS = 6
SHORTEST_S = 600
MOST = 0.9  # of the events lie within the picture
EDGE = 4.0  # percent: labels nearer to the edge would be cut


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """From `at`, `width` wide, in percent; `beyond` where it goes on past the edge."""

    at: float
    width: float
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Strip:
    """One event's line: its notice, its work, and the marks on it; `words` say the same."""

    notice: Bar | None
    work: Bar | None
    not_before: float | None
    approved: tuple[float, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    now: float
    ticks: tuple[Tick, ...]
    strips: tuple[Strip, ...]


def picture(events: Sequence[EventOut], now: datetime) -> Picture:
    begin, end = _reach(events, now)

    def at(moment: datetime) -> float:
        share = (moment - begin) / (end - begin) * 100
        return round(min(100.0, max(0.0, share)), 2)

    def bar(first: datetime, last: datetime) -> Bar:
        return Bar(at(first), round(max(0.4, at(last) - at(first)), 2), last > end)

    def strip(event: EventOut) -> Strip:
        notice = work = None
        if event.published is not None:
            notice = bar(event.published, event.not_before or event.started or now)
        if event.started is not None:
            work = bar(event.started, event.ended or now)
        marks = tuple(sorted({at(approval.when) for approval in event.approved_by[:MAX_TICKS]}))
        inside = event.not_before is not None and event.not_before <= end
        return Strip(
            notice, work, at(event.not_before) if event.not_before and inside else None, marks, _words(event, now)
        )

    return Picture(at(now), _ticks(begin, end, at(begin)), tuple(strip(event) for event in events))


def _reach(events: Sequence[EventOut], now: datetime) -> tuple[datetime, datetime]:
    back = sorted((now - e.published).total_seconds() for e in events if e.published is not None)
    ahead = sorted((e.not_before - now).total_seconds() for e in events if e.not_before is not None)
    back_s, ahead_s = (max(0.0, each[ceil((len(each) - 1) * MOST)]) if each else 0.0 for each in (back, ahead))
    whole_s = max(SHORTEST_S, back_s + ahead_s)
    return now - timedelta(seconds=back_s + whole_s * 0.06), now + timedelta(
        seconds=max(ahead_s, SHORTEST_S / 4) + whole_s * 0.1
    )


def _ticks(begin: datetime, end: datetime, zero: float) -> tuple[Tick, ...]:
    whole_s = (end - begin).total_seconds()
    step_s = next((s for s in STEPS_S if whole_s / s <= MAX_TICKS), STEPS_S[-1])
    first = int(begin.timestamp()) // step_s * step_s
    form = "%H:%M" if step_s < 86_400 else "%-d %b"
    found = []
    for number in range(1, MAX_TICKS + 2):
        moment = datetime.fromtimestamp(first + number * step_s, UTC)
        share = zero + (moment - begin) / (end - begin) * 100
        if EDGE <= share <= 100 - EDGE:
            found.append(Tick(round(share, 2), f"{moment:{form}}"))
    return tuple(found)


def _words(event: EventOut, now: datetime) -> str:
    """What a look would tell, for whoever cannot look."""
    told = [f"{event.status}"]
    for what, moment in (("published", event.published), ("NotBefore", event.not_before), ("started", event.started)):
        if moment is not None:
            told.append(f"{what} {stamp(moment, now)}, {distance(moment, now)}")
    if event.approved_by:
        told.append(f"approved {stamp(event.approved_by[0].when, now)}")
    return "; ".join(told)
