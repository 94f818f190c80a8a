"""The calendar is iCalendar: two parsers that others wrote read from it what was written, whatever the texts hold."""

from datetime import UTC, datetime, timedelta
from typing import Any

import icalendar
import pytest
import vobject  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from forewarn.operator.api.icalendar import MAX_LINE_OCTETS, CalendarEntry, EntryStatus, calendar_text, escaped, folded

START = datetime(2030, 1, 1, tzinfo=UTC)
# What a text may hold: everything but controls, surrogates and separators of lines. A line end is kept.
plain = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")) | st.sampled_from("\n;,\\:\"'ñ€😀"), max_size=200
)


def entry(**fields: Any) -> CalendarEntry:
    known: dict[str, Any] = {
        "uid": "M1-1@forewarn",
        "sequence": 1,
        "changed": START,
        "start": START + timedelta(hours=1),
        "end": START + timedelta(hours=2),
        "status": EntryStatus.CONFIRMED,
        "summary": "Reboot: shop/web-0",
        "description": "new kernel",
        "category": "Reboot",
    }
    return CalendarEntry(**{**known, **fields})


def parsed(text: str) -> tuple[Any, Any]:
    """Return the one event of a calendar as each parser reads it."""
    (ours,) = icalendar.Calendar.from_ical(text.encode()).walk("VEVENT")
    return ours, vobject.readOne(text).vevent


@given(plain, plain)
def test_two_parsers_read_what_was_written(summary: str, description: str) -> None:
    """Whatever a text holds, both parsers return it; no line is over 75 octets, and each ends with CRLF."""
    text = calendar_text("shop", "about", [entry(summary=summary, description=description)])
    first, second = parsed(text)
    assert (str(first["SUMMARY"]), str(first["DESCRIPTION"])) == (summary, description)
    assert (second.summary.value, second.description.value) == (summary, description)
    lines = text.encode().split(b"\r\n")
    assert lines.pop() == b""
    assert all(len(line) <= MAX_LINE_OCTETS and b"\n" not in line and b"\r" not in line for line in lines)


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_folding_loses_nothing(line: str) -> None:
    """Without the CRLF and the blank after it, the line is as before; every part is UTF-8 by itself."""
    result = folded(line)
    assert result.endswith("\r\n")
    assert result.removesuffix("\r\n").replace("\r\n ", "") == line.replace("\r\n ", "")
    assert all(len(part.encode()) <= MAX_LINE_OCTETS for part in result.removesuffix("\r\n").split("\r\n"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a,b;c\\d", "a\\,b\\;c\\\\d"),
        ("a\nb\r\nc\rd", "a\\nb\\nc\\nd"),
        ("a\x00\x07\x1b\x85\u2028b", "ab"),
        ("\ud800", ""),
        ('colon: "quoted"', 'colon: "quoted"'),
    ],
)
def test_escaping(text: str, expected: str) -> None:
    """Marks are escaped, line ends kept, and what a text must not hold is left out."""
    assert escaped(text) == expected


def test_every_property_is_read_by_both_parsers() -> None:
    """Times in UTC, sequence, status and category; an entry without a known end has none."""
    first, second = parsed(calendar_text("shop", "about", [entry(status=EntryStatus.CANCELLED, sequence=3)]))
    assert (first["UID"], first["SEQUENCE"], first["STATUS"]) == ("M1-1@forewarn", 3, "CANCELLED")
    assert (first.start, first.end, first["DTSTAMP"].dt) == (
        START + timedelta(hours=1),
        START + timedelta(hours=2),
        START,
    )
    assert second.dtstart.value == first.start
    assert second.last_modified.value == START
    for end in (None, START + timedelta(hours=1)):
        without, _ = parsed(calendar_text("shop", "about", [entry(end=end)]))
        assert "DTEND" not in without


def test_an_empty_calendar_has_a_component() -> None:
    """RFC 5545 demands one; both parsers accept it, and find no event."""
    text = calendar_text("the shop", "about", [])
    calendar = icalendar.Calendar.from_ical(text.encode())
    assert (str(calendar["NAME"]), calendar.walk("VEVENT"), len(calendar.walk("VTIMEZONE"))) == ("the shop", [], 1)
    assert "vtimezone" in vobject.readOne(text).contents
