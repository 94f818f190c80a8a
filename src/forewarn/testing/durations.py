"""Durations as a test writes them: "15m", "200ms", a timedelta, or a number of seconds."""

import re
from datetime import timedelta

from forewarn.core.durations import MAX_DURATION_S, parse_duration
from forewarn.core.errors import Invalid

Duration = str | float | timedelta
_MILLISECONDS = re.compile(r"([0-9]{1,6})ms")


def seconds_of(value: object, name: str) -> float:
    """Return the duration in seconds; raise Invalid with the name of the argument if it is not one."""
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= MAX_DURATION_S:
        raise Invalid(
            f'{name}: {value!r} is not a duration: write it like "15m", "1h30m" or "200ms", as a timedelta, or as a number of'
            " seconds, up to ten years"
        )
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _MILLISECONDS.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        return int(match[1]) / 1_000
    try:
        return float(parse_duration(value))
    except Invalid:
        return None
