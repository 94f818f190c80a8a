"""Text for people from the API's JSON: reads its times, and leaves the wording to `core.formatting`."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from forewarn.core import formatting
from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.formatting import action_by as deed
from forewarn.core.formatting import count, iso, names, span
from forewarn.core.formatting import printable as plain
from forewarn.core.formatting import short_ids as shortened

__all__ = ["count", "deed", "iso", "names", "plain", "shortened", "span"]

ID_CHARS = 36
SHORT_CHARS = formatting.SHORT_ID_CHARS
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


def read_iso(text: str) -> datetime:
    return datetime.fromisoformat(text)


def shown_time(text: str | None) -> str:
    """`2026-11-15 13:04:05Z`; nothing for nothing."""
    return "" if text is None else formatting.full_time(read_iso(text))


def distance(text: str | None, now: str) -> str:
    """`in 15m`, `3m ago`, `now`."""
    return "" if text is None else formatting.distance(read_iso(text), read_iso(now))


def when(text: str | None, now: str) -> str:
    """Both: `2026-11-15 13:04:05Z (in 15m)`."""
    return formatting.when(read_iso(text), read_iso(now)) if text else ""


def place(event: Json) -> str:
    """`shop#0`: a scope and its update domain."""
    return formatting.update_domain_name(event["scope"], event["update_domain"])


def waiting(event: Json) -> list[SimpleNamespace]:
    """The reasons of an event, with their defaults and with times."""
    return [
        SimpleNamespace(
            code=each["code"],
            message=each["message"],
            until=read_iso(each["until"]) if each.get("until") else None,
            machines=each.get("machines", ()),
        )
        for each in event["waiting_for"]
    ]


def order_failed(event: Json) -> str:
    return formatting.order_failure(waiting(event))


def missing(event: Json) -> str:
    return formatting.missing_approvals(waiting(event))


def reasons(event: Json, now: str) -> str:
    return formatting.reasons(waiting(event), read_iso(now))


def why(event: Json, now: str) -> str:
    times = {key: read_iso(event[key]) if event[key] else None for key in ("started", "ended")}
    return formatting.why(SimpleNamespace(**{**event, **times, "waiting_for": waiting(event)}), read_iso(now))
