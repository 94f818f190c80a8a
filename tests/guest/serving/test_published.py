"""The document as clients get it, in every version that is served."""

import json

import pytest

from forewarn.guest.document import parse_document
from forewarn.guest.names import Me
from forewarn.guest.serving.protocol import VERSIONS, served_versions
from forewarn.guest.serving.published import Published
from tests.support.fake_endpoint import E2, document, event

ME = Me("web-0", "instance")
OLDEST = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"]


def published(*events: dict[str, object], date: str = "") -> Published:
    return Published(parse_document(document(*events, incarnation=7), date=date, received_s=10.0), ME)


def test_a_version_has_its_fields_and_types() -> None:
    """A field or an event type that is newer than the version is absent."""
    every = published(event(), event(E2, EventType="Preempt"), event("3", EventType="Terminate"))
    keys, types = {}, {}
    for version in VERSIONS:
        shown = json.loads(every.body(version))
        assert shown["DocumentIncarnation"] == 7
        keys[version] = list(shown["Events"][0])
        types[version] = [each["EventType"] for each in shown["Events"]]
    assert keys["2017-08-01"] == keys["2019-01-01"] == OLDEST
    assert keys["2019-04-01"] == [*OLDEST, "Description"]
    assert keys["2019-08-01"] == [*OLDEST, "Description", "EventSource"]
    assert keys["2020-07-01"] == [*OLDEST, "Description", "EventSource", "DurationInSeconds"]
    assert types["2017-08-01"] == ["Reboot"]
    assert types["2017-11-01"] == ["Reboot", "Preempt"]
    assert types["2019-01-01"] == ["Reboot", "Preempt", "Terminate"]


def test_other_forms_become_those_of_the_served_versions() -> None:
    """The preview's names and times are shown as since 2017-08-01; an id is shown as it came."""
    names = [f"web-{number}" for number in range(1_200)]
    odd = event(
        "aaaa-Bb", Resources=[f"_{name}" for name in names], NotBefore="2030-01-02T03:04:05.678Z", Description="é"
    )
    (shown,) = json.loads(published(odd).body("2020-07-01"))["Events"]
    assert shown["EventId"] == "aaaa-Bb"
    assert shown["Resources"] == names
    assert shown["NotBefore"] == "Wed, 02 Jan 2030 03:04:05 GMT"
    assert shown["Description"] == "é"
    started = event(EventStatus="Started", NotBefore="2030-01-02T03:04:05Z")
    assert json.loads(published(started).body("2020-07-01"))["Events"][0]["NotBefore"] == ""


def test_the_document_is_compact() -> None:
    """As the endpoint's: no spaces, and no events is an empty list."""
    assert published().body("2020-07-01") == b'{"DocumentIncarnation":7,"Events":[]}'


def test_the_tag_is_of_the_content() -> None:
    """The same content has the same tag, also after a restart of the agent; other content has another."""
    one, again = published(event()), published(event())
    assert one.etag == again.etag
    assert one.etag != published(event(EventStatus="Started")).etag
    same = one.updated(again.document, ME)
    assert same.etag == one.etag
    assert same.body("2020-07-01") is one.body("2020-07-01")
    assert one.updated(published().document, ME).etag == published().etag


def test_the_date_is_the_services() -> None:
    """A client computes the time left from it, so it goes on from the last response."""
    known = published(date="Tue, 01 Jan 2030 00:00:00 GMT")
    assert known.date(10.0) == "Tue, 01 Jan 2030 00:00:00 GMT"
    assert known.date(75.5) == "Tue, 01 Jan 2030 00:01:05 GMT"
    assert published().date(10.0) == ""


@pytest.mark.parametrize(
    ("upstream", "newest", "count"),
    [
        ("2017-03-01", "2017-08-01", 1),
        ("2019-01-01", "2019-01-01", 3),
        ("2020-07-01", "2020-07-01", 6),
        ("2030-01-01", "2020-07-01", 6),
    ],
)
def test_no_later_version_than_the_agents_own_is_served(upstream: str, newest: str, count: int) -> None:
    """The agent cannot show fields that it does not get."""
    assert served_versions(upstream)[-1] == newest
    assert len(served_versions(upstream)) == count


def test_an_incarnation_that_is_no_number() -> None:
    """It is shown as it is."""
    odd = Published(parse_document(document(incarnation="abc")), ME)
    assert json.loads(odd.body("2020-07-01"))["DocumentIncarnation"] == "abc"
