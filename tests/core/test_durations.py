"""Durations as people write them."""

import pytest

from forewarn.core.durations import duration_text, parse_duration
from forewarn.core.errors import Invalid


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("0", 0),
        ("0s", 0),
        ("90s", 90),
        ("15m", 900),
        ("24h", 86_400),
        ("30d", 2_592_000),
        ("007m", 420),
        ("3650d", 3_650 * 86_400),
        ("1h30m", 5_400),
        ("1d2h3m4s", 93_784),
        ("1d30s", 86_430),
        ("0h90m", 5_400),
    ],
)
def test_numbers_and_units(text: str, seconds: int) -> None:
    """Whole numbers with d, h, m and s, in this order, add up to seconds; 0 alone needs no unit."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "15",
        "00",
        "m",
        "15 m",
        " 15m",
        "15m ",
        "15m\n",
        "15M",
        "15min",
        "30m1h",
        "1h1h",
        "1h30",
        "1h 30m",
        "1.5h",
        "-15m",
        "+15m",
        "1e3s",
        "1w",
        "9999999999s",
        "٣m",
        0,
        15,
        1.5,
        True,
        None,
        ["15m"],
        {"m": 15},
    ],
)
def test_anything_else_is_refused_with_an_example(text: object) -> None:
    """A refused text is quoted, with an example of a duration."""
    with pytest.raises(Invalid) as refusal:
        parse_duration(text)
    assert str(refusal.value) == (
        f'{text!r} is not a duration: write numbers with units, largest first, like "90s", "1h30m" or "30d"'
    )


@pytest.mark.parametrize("text", ["3651d", "999999999d", "3650d1s"])
def test_a_duration_is_at_most_ten_years(text: str) -> None:
    """A duration that would overflow a date is refused."""
    with pytest.raises(Invalid, match="longer than ten years: write at most 3650d"):
        parse_duration(text)


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0s"), (1, "1s"), (59, "59s"), (60, "1m"), (90, "90s"), (3_600, "1h"), (5_400, "90m"), (86_400, "1d")],
)
def test_the_shortest_text_of_a_duration(seconds: int, text: str) -> None:
    """The text uses the largest unit without a fraction, and parses to the same duration."""
    assert duration_text(seconds) == text
    assert parse_duration(text) == seconds
