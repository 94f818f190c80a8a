"""What is said to people: times, durations, names, and why an event has not moved. Pure text; nothing is asked here."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid

ID_CHARS = 36
SHORT_CHARS = 8
MOST_NAMES = 5
ENDED = ("Completed", "Cancelled", "Abandoned")

Json = dict[str, Any]


def parse_time(text: str) -> datetime | timedelta:
    """A moment as RFC 3339, or its distance from now: `+2h`, `-12h`."""
    if text[:1] in ("+", "-"):
        distance = timedelta(seconds=parse_duration(text[1:]))
        return distance if text[0] == "+" else -distance
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a time: write it like 2030-01-31T22:00:00Z, or +2h from now") from None
    if moment.tzinfo is None:
        raise Invalid(f"{text!r} names no time zone: write it like {text.replace(' ', 'T')}Z, or +2h from now")
    return moment.astimezone(UTC)


def resolve_time(text: str, now: str) -> str:
    """The moment meant, as the API reads it."""
    meant = parse_time(text)
    return iso(read_iso(now) + meant if isinstance(meant, timedelta) else meant)


def iso(moment: datetime) -> str:
    """RFC 3339 in UTC, as the API reads it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def read_iso(text: str) -> datetime:
    return datetime.fromisoformat(text)


def span(seconds: float) -> str:
    """A length of time to the two units that matter: `2h 5m`, `45s`."""
    left = round(abs(seconds))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def shown_time(text: str | None) -> str:
    """`2026-11-15 13:04:05Z`; nothing for nothing."""
    return "" if text is None else f"{read_iso(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def distance(text: str | None, now: str) -> str:
    """`in 15m`, `3m ago`, `now`."""
    if text is None:
        return ""
    seconds = (read_iso(text) - read_iso(now)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"


def when(text: str | None, now: str) -> str:
    """Both: `2026-11-15 13:04:05Z (in 15m)`."""
    return f"{shown_time(text)} ({distance(text, now)})" if text else ""


def plain(text: str) -> str:
    """Fit for a terminal: what others wrote must not move its cursor or change its colours."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", "\ufffd", text)


def names(some: Sequence[str], most: int = MOST_NAMES) -> str:
    """`web-0, web-1 and 3 more`."""
    if len(some) <= most:
        return ", ".join(some)
    return f"{', '.join(some[:most])} and {len(some) - most} more"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def shortened(ids: Iterable[str | None]) -> dict[str, str]:
    """Each id by its first characters where that names one alone."""
    known = {each for each in ids if each}
    heads: dict[str, int] = {}
    for each in known:
        heads[each[:SHORT_CHARS]] = heads.get(each[:SHORT_CHARS], 0) + 1
    return {each: each[:SHORT_CHARS] if heads[each[:SHORT_CHARS]] == 1 else each for each in known}


def place(event: Json) -> str:
    """`shop#0`: a scope and its update domain."""
    return f"{event['scope']}#{event['update_domain']}"


def deed(what: str, who: str) -> str:
    """`started by ticker`; what already ends with who did it is not said twice."""
    return f"{what.removesuffix(' by operator')} by {who}" if who else what


def order_failed(event: Json) -> str:
    """The sentence about a failed order, or nothing."""
    return next((w["message"] for w in event["waiting_for"] if w["code"] == "order-failed"), "")


def missing(event: Json) -> str:
    """Who has not approved, as far as that is what it waits for."""
    for waiting in event["waiting_for"]:
        if waiting["code"] == "approval":
            return names(waiting.get("machines", [])) or "an operator"
    return ""


def reasons(event: Json, now: str) -> str:
    """What an open event waits for, as half a sentence."""
    said = []
    codes = {w["code"] for w in event["waiting_for"]}
    for waiting in event["waiting_for"]:
        text = waiting["message"].rstrip(".")
        if until := waiting.get("until"):
            # An order has no set end, it has a deadline.
            till = ", with a deadline at" if waiting["code"] == "executor" else " until"
            text += f"{till} {when(until, now)}"
        said.append(text)
    joined = ", and ".join(said)
    return f"{joined}, and either is enough" if {"approval", "notice"} == codes else joined


def why(event: Json, now: str) -> str:
    """One sentence: what became of an event, or why it has not moved on."""
    subject = f"{event['type']} of {names(event['resources'])} in {event['scope']}"
    status, waits = event["status"], reasons(event, now)
    if status in ENDED:
        because = f": {event['reason'].rstrip('.')}" if event["reason"] else ""
        sentence = f"{subject} was {status.lower()} at {shown_time(event['ended'])}{because}"
    elif status == "Started":
        sentence = f"{subject} started at {shown_time(event['started'])}, and {waits or 'it is under way'}"
    else:
        sentence = f"{subject} has not started: {waits or 'nothing stands in its way'}"
    return " ".join(plain(sentence).split()) + "."
