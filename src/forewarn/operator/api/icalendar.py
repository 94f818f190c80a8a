"""Write a calendar as iCalendar (RFC 5545): folded lines that end with CRLF, escaped texts, times in UTC.

Pure functions on the entries of a calendar. Knows neither events nor HTTP. There is no METHOD: without it, a calendar is "merely
being used to transport a snapshot of some calendar information", and nothing of it is an invitation.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

# "Lines of text SHOULD NOT be longer than 75 octets, excluding the line break."
MAX_LINE_OCTETS = 75
REFRESH_EVERY = "PT15M"
# A calendar must have a component: an empty one has this.
NO_ENTRY = (
    "BEGIN:VTIMEZONE", "TZID:UTC", "BEGIN:STANDARD", "DTSTART:19700101T000000", "TZOFFSETFROM:+0000", "TZOFFSETTO:+0000",
    "END:STANDARD", "END:VTIMEZONE",
)  # fmt: skip


class EntryStatus(StrEnum):
    """How certain an entry is."""

    TENTATIVE = "TENTATIVE"
    CONFIRMED = "CONFIRMED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarEntry:
    """One entry. Its `uid` never changes, its `sequence` only grows; without `end` its end is not known."""

    uid: str
    sequence: int
    changed: datetime
    start: datetime
    end: datetime | None
    status: EntryStatus
    summary: str
    description: str
    category: str


def calendar_text(name: str, about: str, entries: Iterable[CalendarEntry]) -> str:
    """Return the calendar with this name and these entries."""
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//forewarn//maintenance//EN",
        "CALSCALE:GREGORIAN",
        f"NAME:{escaped(name)}",
        f"X-WR-CALNAME:{escaped(name)}",
        f"X-WR-CALDESC:{escaped(about)}",
        f"REFRESH-INTERVAL;VALUE=DURATION:{REFRESH_EVERY}",
        f"X-PUBLISHED-TTL:{REFRESH_EVERY}",
        *([line for entry in entries for line in _lines(entry)] or NO_ENTRY),
        "END:VCALENDAR",
    ]
    return "".join(map(folded, lines))


def _lines(entry: CalendarEntry) -> list[str]:
    return [
        "BEGIN:VEVENT",
        f"UID:{escaped(entry.uid)}",
        # "In the case of an iCalendar object that doesn't specify a METHOD property": when it was last revised.
        f"DTSTAMP:{_moment(entry.changed)}",
        f"LAST-MODIFIED:{_moment(entry.changed)}",
        f"SEQUENCE:{entry.sequence}",
        f"DTSTART:{_moment(entry.start)}",
        *(
            [f"DTEND:{_moment(entry.end)}"]
            if entry.end is not None and _moment(entry.end) > _moment(entry.start)
            else []
        ),
        f"STATUS:{entry.status}",
        f"SUMMARY:{escaped(entry.summary)}",
        f"DESCRIPTION:{escaped(entry.description)}",
        f"CATEGORIES:{escaped(entry.category)}",
        "TRANSP:TRANSPARENT",  # the reader's own time is not taken
        "END:VEVENT",
    ]


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def escaped(text: str) -> str:
    """Escape a text. Line ends are kept; other characters that a text must not hold are left out."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    plain = "".join(c for c in lines if c == "\n" or unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp"))
    return plain.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,").replace("\n", "\\n")


def folded(line: str) -> str:
    """Return the line with its CRLF, folded so that no part has more than 75 octets and no character is cut."""
    parts, part, octets = [], "", 0
    for character in line:
        size = len(character.encode())
        if octets + size > MAX_LINE_OCTETS:
            parts.append(part)
            part, octets = " ", 1
        part, octets = part + character, octets + size
    return "\r\n".join([*parts, part]) + "\r\n"
