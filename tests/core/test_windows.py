"""Windows and no-go times as intervals: unions, intersections, extensions, and the first time that they leave."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.windows import StartLimits, no_go_intervals, window_times

HOUR = timedelta(hours=1)
# A Tuesday.
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NIGHTS = Window(name="nights", spans=("daily 22:00-05:00",))
EARLY = Window(name="early", spans=("daily 03:00-09:00",))
ALWAYS = Window(name="always", spans=("daily 00:00-24:00",))
MIDDAY = Window(name="midday", spans=("daily 12:00-13:00",))
BERLIN = Window(name="berlin", spans=("Sat 22:00-05:00",), zone="Europe/Berlin")
LUNCH = NoGoTime(name="lunch", reason="lunch", spans=("daily 12:00-13:00",))
FAIR = NoGoTime(name="fair", reason="the fair", start=NOON, end=NOON + 30 * HOUR)


def hours(*intervals: tuple[float, float]) -> tuple[tuple[datetime, datetime], ...]:
    return tuple((NOON + begin * HOUR, NOON + end * HOUR) for begin, end in intervals)


def test_a_window_is_open_in_its_spans() -> None:
    assert window_times(NIGHTS, NOON, NOON + 12 * HOUR) == hours((10, 17))


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (None, [(-14, -7), (10, 17)]),
        (19, [(-14, -7), (10, 19)]),
        (-5, [(-14, -5), (10, 17)]),
        (0, [(-14, 0), (10, 17)]),
        (40, [(-14, -7), (10, 40)]),
        (-100, [(-14, -7), (10, 17)]),
    ],
)
def test_an_extension_prolongs_the_last_interval_that_would_have_ended_by_then(
    until: float | None, expected: list[tuple[float, float]]
) -> None:
    extended = replace(NIGHTS, extended_until=NOON + until * HOUR if until is not None else None)
    found = window_times(extended, NOON - 14 * HOUR, NOON + 12 * HOUR)
    assert found == hours(*expected)


def test_a_no_go_time_is_once_or_weekly() -> None:
    assert no_go_intervals(FAIR, NOON, NOON) == hours((0, 30))
    assert no_go_intervals(LUNCH, NOON, NOON) == hours((0, 1))


def test_limits_are_the_intersection_of_windows_without_the_no_go_times() -> None:
    limits = StartLimits(((NIGHTS, EARLY), (ALWAYS,)), (FAIR, LUNCH))
    assert limits.times(NOON - 12 * HOUR, NOON + 40 * HOUR) == hours((-14, -3), (34, 45))
    assert limits.first_after(NOON, NOON) == hours((34, 45))[0]
    assert StartLimits(((NIGHTS,), (EARLY,))).first_after(NOON, NOON) == hours((15, 17))[0]
    assert StartLimits(((NIGHTS,), (MIDDAY,))).first_after(NOON, NOON) is None
    assert StartLimits(((),)).first_after(NOON, NOON) is None


def test_limits_name_the_no_go_times_in_the_way() -> None:
    limits = StartLimits((), (FAIR, LUNCH))
    assert limits.in_the_way(NOON) == (FAIR, LUNCH)
    assert limits.in_the_way(NOON + 2 * HOUR) == (FAIR,)
    assert limits.in_the_way(NOON - HOUR) == ()
    assert limits.allow(NOON - HOUR)
    assert not limits.allow(NOON)


def test_a_long_no_go_time_is_searched_through() -> None:
    """The next window may be months away."""
    freeze = NoGoTime(name="freeze", reason="year end", start=NOON, end=NOON + 100 * 24 * HOUR)
    found = StartLimits(((BERLIN,),), (freeze,)).first_after(NOON, NOON)
    assert found == (datetime(2030, 4, 13, 20, tzinfo=UTC), datetime(2030, 4, 14, 3, tzinfo=UTC))


windows = st.lists(
    st.sampled_from([NIGHTS, EARLY, ALWAYS, BERLIN, MIDDAY, replace(EARLY, extended_until=NOON - HOUR)]),
    min_size=1,
    max_size=2,
).map(tuple)
limits = st.builds(
    StartLimits,
    st.lists(windows, max_size=2).map(tuple),
    st.lists(st.sampled_from([FAIR, LUNCH]), max_size=2).map(tuple),
)


@given(limits=limits, before=st.integers(0, 100), after=st.integers(0, 200))
def test_a_start_is_allowed_at_the_first_time_found_and_at_no_earlier_time(
    limits: StartLimits, before: int, after: int
) -> None:
    moment = NOON + (before - 50) * HOUR
    wanted = moment + after * HOUR
    found = limits.first_after(moment, wanted)
    if found is None:
        assert not any(limits.allow(wanted + hour * HOUR) for hour in range(24 * 8))
        return
    begin, end = found
    first = max(begin, wanted)
    assert limits.allow(first)
    assert limits.allow(end - timedelta(seconds=1))
    assert not any(limits.allow(wanted + half * HOUR / 2) for half in range(int((first - wanted) / HOUR * 2)))


@given(limits=limits, hour=st.integers(0, 400))
def test_a_start_is_allowed_if_every_choice_has_an_open_window_and_no_no_go_time_lasts(
    limits: StartLimits, hour: int
) -> None:
    moment = NOON + (hour / 2 - 100) * HOUR
    is_open = all(
        any(begin <= moment < end for window in choice for begin, end in window_times(window, moment, moment))
        for choice in limits.windows
    )
    assert limits.allow(moment) == (is_open and not limits.in_the_way(moment))
