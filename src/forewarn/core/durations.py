"""Durations as text: whole numbers with units, the largest unit first, such as `90s`, `1h30m`, `30d`."""

import re

from forewarn.core.errors import Invalid

MAX_DURATION_S = 3_650 * 86_400
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("(?=.)" + "".join(f"(?:([0-9]{{1,9}}){unit})?" for unit in _SECONDS))


def parse_duration(text: object) -> int:
    """Return the duration in seconds. Only `0` needs no unit."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Invalid(
            f'{text!r} is not a duration: write numbers with units, largest first, like "90s", "1h30m" or "30d"'
        )
    seconds = sum(int(number or 0) * size for number, size in zip(match.groups(), _SECONDS.values(), strict=True))
    if seconds > MAX_DURATION_S:
        raise Invalid(f"{text!r} is longer than ten years: write at most {duration_text(MAX_DURATION_S)}")
    return seconds


def duration_text(seconds: int) -> str:
    """Return the shortest text of the duration."""
    for unit, size in _SECONDS.items():
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
