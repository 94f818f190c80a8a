"""Documents of every version, as a guest reads them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forewarn.guest.document import Document, event_json, parse_document, parse_event, parse_moment
from forewarn.guest.errors import BadDocument
from tests.support.fake_endpoint import E1, E2, document, event

GOLDEN = Path(__file__).parent.parent / "core" / "golden"
MOMENT = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_every_golden_document_is_read(path: Path) -> None:
    """Every version that the service renders gives ids, names without underscore, and NotBefore while Scheduled."""
    read = parse_document(path.read_bytes())
    assert read.incarnation
    for each in read.events:
        assert len(each.id) == 36
        assert each.resources
        assert not any(name.startswith("_") for name in each.resources)
        assert (each.not_before is None) == each.started


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("Mon, 19 Sep 2016 18:29:47 GMT", MOMENT),
        ("2016-09-19T18:29:47Z", MOMENT),
        ("2016-09-19T18:29:47.1234567Z", MOMENT),
        ("2016-09-19T20:29:47+02:00", MOMENT),
        ("2016-09-19T20:29:47+0200", MOMENT),
        ("2016-09-19 18:29:47", MOMENT),
        ("", None),
        ("soon", None),
        ("2016-13-19T18:29:47Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("Fri, 31 Dec 9999 23:59:59 -1400", None),
    ],
)
def test_not_before_in_both_formats(text: str, moment: datetime | None) -> None:
    """RFC 1123 and ISO 8601 are read, with and without fractions; anything else gives None."""
    assert parse_moment(text) == moment


def test_unknown_fields_and_values_are_tolerated() -> None:
    """Fields of later versions are kept in `raw`; fields that older versions lack have defaults."""
    later = parse_event({**event(), "Severity": 3, "EventStatus": "Paused", "DurationInSeconds": "9"})
    assert (later.status, later.raw["Severity"], later.duration_s) == ("Paused", 3, 9)
    older = parse_event({"EventId": E1.lower(), "EventStatus": "Scheduled"})
    assert (older.id, older.duration_s, older.source, older.resources) == (E1, -1, "", ())
    odd = parse_event({**event(), "Resources": None, "NotBefore": 7, "DurationInSeconds": [1]})
    assert (odd.resources, odd.not_before, odd.duration_s) == ((), None, -1)


def test_ids_are_compared_in_any_case() -> None:
    """The id stays as received; `key` and `Document.event` do not depend on its case; a second spelling is a duplicate."""
    read = parse_document(document(event("0000abcd"), event("0000ABCD"), event("0000Abce")))
    assert [(each.id, each.key) for each in read.events] == [("0000abcd", "0000ABCD"), ("0000Abce", "0000ABCE")]
    assert read.event("0000aBCD") is read.events[0]
    assert event_json(read.events[1])["EventId"] == "0000Abce"


@pytest.mark.parametrize("incarnation", [1, "1", 17, "text"])
def test_an_incarnation_is_a_number_or_a_text(incarnation: object) -> None:
    """It is compared as text."""
    assert parse_document(document(incarnation=incarnation)).incarnation == str(incarnation)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"DocumentIncarnation":1,"Events":{}}', b"\xff"],
)
def test_a_malformed_document_raises_bad_document(body: bytes) -> None:
    """A document is never read in part."""
    with pytest.raises(BadDocument):
        parse_document(body)


@pytest.mark.parametrize("wrong", [{}, [], None, "text", {**event(), "EventId": None}])
def test_a_malformed_event_does_not_hide_the_others(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored, and a line is logged."""
    assert [each.id for each in parse_document(document(wrong, event(E2))).events] == [E2]
    assert "an event cannot be read and is ignored" in caplog.text


def test_difference_is_not_order() -> None:
    """A lower number is a change, and so is the same number with other content."""
    high, low = parse_document(document(incarnation=9)), parse_document(document(incarnation=1))
    assert low.differs(high)
    assert high.differs(None)
    assert not high.differs(parse_document(document(incarnation="9")))
    assert low.differs(parse_document(document(event(), incarnation=1)))


def test_time_left_is_the_services() -> None:
    """NotBefore less Date, less the time since the response, less the second that Date is rounded by."""
    date = "Mon, 19 Sep 2016 18:14:47 GMT"
    body = document(event(NotBefore="Mon, 19 Sep 2016 18:29:47 GMT"), event(E2, EventStatus="Started"))
    read = parse_document(body, date=date, received_s=50.0)
    scheduled, started = read.events
    assert read.time_left_s(scheduled, 50.0) == 899
    assert read.time_left_s(scheduled, 150.0) == 799
    assert read.time_left_s(scheduled, 5_000.0) == 0
    assert read.time_left_s(started, 50.0) == 0
    assert Document("1").time_left_s(scheduled, 50.0) is None
    later = read.confirmed(MOMENT - timedelta(seconds=61), 900.0)
    assert later.time_left_s(scheduled, 900.0) == 60
    assert read.confirmed(None, 900.0) == read


def test_an_event_is_written_as_the_newest_version_has_it() -> None:
    """Commands get one format, whatever version the endpoint speaks."""
    read = parse_event(event(Resources=["_vm"], NotBefore="Mon, 19 Sep 2016 18:29:47 GMT"))
    assert event_json(read) == {**event(), "Resources": ["vm"], "NotBefore": "2016-09-19T18:29:47Z"}
