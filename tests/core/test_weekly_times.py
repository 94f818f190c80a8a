"""Times of the week as intervals of UTC: days, midnight, daylight saving and other changes of the clocks."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.errors import Invalid
from forewarn.core.weekly_times import (
    DAYS,
    Interval,
    common,
    merged,
    parse_span,
    weekly_times,
    without,
    zone_named,
)

ZONES = sorted(available_timezones() - {"localtime", "Factory"})
HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(span: str, zone: str, day: str) -> list[str]:
    """Return the intervals that touch the noon of this day in UTC, or lie in the twelve hours around it."""
    noon = utc(f"{day}T12:00")
    found = weekly_times((span,), zone, noon - 12 * HOUR, noon + 12 * HOUR)
    return [f"{begin:%d %H:%M}-{end:%d %H:%M}" for begin, end in found]


@pytest.mark.parametrize(
    ("text", "days", "begin", "end"),
    [
        ("Mon-Fri 22:00-05:00", {0, 1, 2, 3, 4}, 22 * 60, 29 * 60),
        ("sat,SUN 08:30 - 12:00", {5, 6}, 510, 720),
        ("Fri-Mon 00:00-24:00", {4, 5, 6, 0}, 0, 1440),
        ("daily 12:00-13:00", set(range(7)), 720, 780),
        ("Sun 23:00-00:00", {6}, 1380, 1440),
    ],
)
def test_a_span_has_days_and_two_times(text: str, days: set[int], begin: int, end: int) -> None:
    span = parse_span(text)
    assert (set(span.days), span.begin, span.end) == (days, begin, end)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mon",
        "22:00-05:00",
        "Mon 22-05",
        "Mon- 22:00-23:00",
        "Mon-Xyz 22:00-23:00",
        "Noday 22:00-23:00",
        "Mon,,Tue 22:00-23:00",
        "Mon 22:60-23:00",
        "Mon 22:00-23:61",
        "Mon 24:00-23:00",
        "Mon 22:00-24:01",
        "Mon 22:00-22:00",
        "Mon 22:00-23:00 " + "x" * 99,
    ],
)
def test_other_text_is_no_span(text: str) -> None:
    with pytest.raises(Invalid, match=r"write it like|write two different times"):
        parse_span(text)


def test_the_whole_day_is_written_with_24_00() -> None:
    with pytest.raises(
        Invalid, match="write two different times from 00:00 to 24:00, and 00:00-24:00 for the whole day"
    ):
        parse_span("daily 00:00-00:00")


@pytest.mark.parametrize("name", ["", "Europe/Nowhere", "Europe", "/etc/passwd", "../UTC", "Europe/Berlin\0", "\ud800"])
def test_a_zone_must_exist(name: str) -> None:
    with pytest.raises(Invalid, match="there is no time zone"):
        zone_named(name)


def test_a_span_over_midnight_ends_on_the_next_day() -> None:
    assert times("Mon 22:00-05:00", "UTC", "2030-01-07") == ["07 22:00-08 05:00"]
    assert times("Mon 22:00-05:00", "UTC", "2030-01-08") == ["07 22:00-08 05:00"]
    assert times("Mon 22:00-05:00", "Asia/Tokyo", "2030-01-07") == ["07 13:00-07 20:00"]


def test_touching_spans_are_one_interval() -> None:
    assert times("Mon 22:00-24:00", "UTC", "2030-01-07") == ["07 22:00-08 00:00"]
    found = weekly_times(
        ("Mon 22:00-24:00", "Tue 00:00-05:00"), "UTC", utc("2030-01-07T23:00"), utc("2030-01-07T23:00")
    )
    assert found == ((utc("2030-01-07T22:00"), utc("2030-01-08T05:00")),)


def test_clocks_put_forward_shorten_the_night() -> None:
    """Berlin, 31 March 2030: 02:00 becomes 03:00."""
    assert times("Sat 22:00-05:00", "Europe/Berlin", "2030-03-31") == ["30 21:00-31 03:00"]
    assert times("Sun 02:30-04:00", "Europe/Berlin", "2030-03-31") == ["31 01:00-31 02:00"]
    assert times("Sun 01:00-02:30", "Europe/Berlin", "2030-03-31") == ["31 00:00-31 01:00"]
    assert times("Sun 02:10-02:50", "Europe/Berlin", "2030-03-31") == []


def test_clocks_put_back_lengthen_the_night() -> None:
    """Berlin, 27 October 2030: 03:00 becomes 02:00."""
    assert times("Sat 22:00-05:00", "Europe/Berlin", "2030-10-27") == ["26 20:00-27 04:00"]
    assert times("Sun 02:15-02:30", "Europe/Berlin", "2030-10-27") == ["27 00:15-27 01:30"]


def test_a_day_that_a_zone_skips_has_no_times() -> None:
    """Samoa had no 30 December 2011, a Friday."""
    assert times("Fri 10:00-12:00", "Pacific/Apia", "2011-12-30") == []
    assert times("Thu 22:00-05:00", "Pacific/Apia", "2011-12-30") == ["30 08:00-30 10:00"]
    assert times("Sat 10:00-12:00", "Pacific/Apia", "2011-12-30") == ["30 20:00-30 22:00"]


spans = st.builds(
    lambda days, begin, minutes: (
        f"{','.join(DAYS[day] for day in sorted(days))} {begin // 60:02}:{begin % 60:02}-"
        f"{(begin + minutes) % 1440 // 60:02}:{(begin + minutes) % 60:02}"
    ),
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 1439),
)
moments = st.integers(0, 12 * 365 * 24 * 60).map(lambda minutes: utc("2024-01-01") + timedelta(minutes=minutes))


def shows(span: str, zone: str, moment: datetime) -> bool:
    """Whether a clock of the zone shows a time inside the span: this is what a span means while no clock is changed."""
    clock, parsed = moment.astimezone(zone_named(zone)), parse_span(span)
    minute = clock.hour * 60 + clock.minute
    today, yesterday = clock.weekday() in parsed.days, (clock.weekday() - 1) % 7 in parsed.days
    return (today and parsed.begin <= minute < parsed.end) or (yesterday and minute + 1440 < parsed.end)


@given(span=spans, zone=st.sampled_from(ZONES), moment=moments)
def test_a_moment_is_in_a_span_if_the_clocks_show_it(span: str, zone: str, moment: datetime) -> None:
    """In every zone, except in the days around a change of its clocks."""
    offsets = {(moment + days * 24 * HOUR).astimezone(zone_named(zone)).utcoffset() for days in range(-2, 3)}
    found = weekly_times((span,), zone, moment, moment)
    if len(offsets) == 1:
        assert any(begin <= moment < end for begin, end in found) == shows(span, zone, moment)


@given(span=spans, zone=st.sampled_from(ZONES), moment=moments)
def test_intervals_are_in_order_and_begin_and_end_when_the_clocks_show_it(
    span: str, zone: str, moment: datetime
) -> None:
    """Also on days on which the clocks change: just before its begin and at its end, the clocks show no time of the span."""
    found = weekly_times((span,), zone, moment, moment + 7 * 24 * HOUR)
    assert found == merged(found)
    assert len(found) <= 9
    for begin, end in found:
        assert shows(span, zone, begin)
        assert not shows(span, zone, end)
        assert begin.second == begin.microsecond == end.second == end.microsecond == 0


CHANGES = [
    ("Europe/Berlin", "2030-03-31T01:00"),
    ("Europe/Berlin", "2030-10-27T01:00"),
    ("America/New_York", "2030-03-10T07:00"),
    ("America/New_York", "2030-11-03T06:00"),
    ("Australia/Lord_Howe", "2030-04-06T15:00"),
    ("Australia/Lord_Howe", "2030-10-05T15:30"),
    ("Africa/Casablanca", "2030-02-03T01:00"),
    ("Asia/Pyongyang", "2015-08-14T15:00"),
    ("Europe/Volgograd", "2020-12-26T22:00"),
    ("America/Caracas", "2016-05-01T07:00"),
]


@given(
    change=st.sampled_from(CHANGES), day=st.integers(-1, 1), begin=st.integers(0, 1439), minutes=st.integers(1, 1439)
)
def test_a_span_lasts_from_the_first_showing_of_its_begin_to_the_last_showing_of_its_end(
    change: tuple[str, str], day: int, begin: int, minutes: int
) -> None:
    """Compare with a clock that is read every minute of the days around a change of the clocks."""
    zone, changed = ZoneInfo(change[0]), utc(change[1])
    readings = [
        (moment, moment.astimezone(zone).replace(tzinfo=None))
        for moment in (changed + timedelta(minutes=minute) for minute in range(-4_320, 5_760, 5))
    ]
    midnight = changed.astimezone(zone).replace(tzinfo=None, hour=0, minute=0) + timedelta(days=day)
    begin, minutes = begin // 5 * 5, minutes // 5 * 5 or 5
    first, last = midnight + timedelta(minutes=begin), midnight + timedelta(minutes=begin + minutes)
    expected = (
        min(moment for moment, shown in readings if shown >= first),
        max(moment for moment, shown in readings if shown < last) + timedelta(minutes=5),
    )
    span = f"{DAYS[first.weekday()]} {first:%H:%M}-{last:%H:%M}"
    found = weekly_times((span,), change[0], expected[0], expected[1])
    assert found == ((expected,) if expected[0] < expected[1] else ())


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(
        lambda pair: (utc("2030-01-01") + pair[0] * HOUR, utc("2030-01-01") + pair[1] * HOUR)
    ),
    max_size=5,
)


@given(some=intervals, others=intervals, hour=st.integers(0, 50))
def test_union_intersection_and_difference(some: list[Interval], others: list[Interval], hour: int) -> None:
    moment = utc("2030-01-01") + hour * HOUR + timedelta(minutes=30)

    def within(intervals: tuple[Interval, ...] | list[Interval]) -> bool:
        return any(begin <= moment < end for begin, end in intervals)

    assert within(merged(some)) == within(some)
    assert within(common(merged(some), merged(others))) == (within(some) and within(others))
    assert within(without(merged(some), merged(others))) == (within(some) and not within(others))
