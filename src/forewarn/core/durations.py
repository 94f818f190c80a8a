"""Durations as text: a whole number and a unit, such as `90s`, `15m`, `24h`, `30d`."""

import re

from forewarn.core.errors import Invalid

_DURATION = re.compile(r"([0-9]{1,9})(s|m|h|d)")
MAX_DURATION_S = 3_650 * 86_400
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_duration(text: object) -> int:
    """Return the duration in seconds. Only `0` needs no unit."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Invalid(
            f'{text!r} is not a duration: write a number and a unit in quotes, like "90s", "15m", "24h" or "30d"'
        )
    seconds = int(match[1]) * _SECONDS[match[2]]
    if seconds > MAX_DURATION_S:
        raise Invalid(f"{text!r} is longer than ten years: write at most {duration_text(MAX_DURATION_S)}")
    return seconds


def duration_text(seconds: int) -> str:
    """Return the shortest text of the duration."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]}{unit}"
    return f"{seconds}s"
