"""Times and spans as people read them. Moments are UTC and say so; how far away they are comes beside."""

import re
from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup, escape

EVENT_ID = re.compile(r"event ([0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})")
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400


def span(seconds: float) -> str:
    """Two units at most: `45 s`, `12 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = int(abs(seconds))
    if whole < 2 * MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min"
    if whole < DAY_S:
        return _two(whole, HOUR_S, "h", MINUTE_S, "min")
    return _two(whole, DAY_S, "d", HOUR_S, "h")


def _two(whole: int, large_s: int, large: str, small_s: int, small: str) -> str:
    rest = whole % large_s // small_s
    return f"{whole // large_s} {large}" + (f" {rest} {small}" if rest else "")


def distance(moment: datetime, now: datetime) -> str:
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"


def iso(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def stamp(moment: datetime, now: datetime) -> str:
    """The time; the date too, unless it is today."""
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def some(names: Sequence[str], most: int = 3) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def linked(message: str) -> Markup:
    """A sentence whose events lead to their pages, under the first letters of their ids."""
    told = Markup()
    for number, part in enumerate(EVENT_ID.split(message)):
        told += escape(part) if number % 2 == 0 else Markup('event <a href="/events/{}">{}</a>').format(part, part[:8])
    return told


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
