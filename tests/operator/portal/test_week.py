"""The page of a week: windows, no-go times and the starts of events, day by day."""

from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

from forewarn.operator.portal.week import monday_of
from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import START, RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def test_a_week_shows_windows_no_go_times_and_events(service: RunningService) -> None:
    """A window over midnight has a part on each day; a planned event stands where it may be announced."""
    service.enable("shop", "blog")
    service.request("PUT", "/v1/windows/nights", {"when": ["Wed 22:00-05:00"], "zone": "Europe/Berlin"})
    fair = {"reason": "the fair", "start": "2030-01-03T10:00:00Z", "end": "2030-01-04T12:30:00Z", "scopes": ["blog"]}
    service.request("PUT", "/v1/no-go-times/fair", fair)
    service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["nights"]})
    service.schedule("shop/web-0")
    service.schedule("blog/db", not_before="2030-01-05T08:00:00Z")
    text = page_text(PortalClient(service).get("/week"))
    assert "Week of 2029-12-31" in text
    assert "Wed 02 Jan 21:00–24:00 nights — 20:45 Reboot of web-0 in shop , may be announced" in text
    assert "Thu 03 Jan 00:00–04:00 nights 10:00–24:00 fair: the fair —" in text
    assert "Fri 04 Jan — 00:00–12:30 fair: the fair 12:15 Reboot of db in blog , may be announced" in text
    assert "nights Wed 22:00-05:00 Europe/Berlin: closed now" in text
    next_week = page_text(PortalClient(service).get("/week?week=2030-01-09"))
    assert "Week of 2030-01-07" in next_week
    assert "fair: the fair" not in next_week.partition("Rules")[0]


def test_an_announced_event_stands_at_its_start(service: RunningService) -> None:
    """Without windows and no-go times the page says so."""
    service.enable("shop")
    service.schedule("shop/web-0")
    text = page_text(PortalClient(service).get("/week"))
    assert "Reboot of web-0 in shop" in text
    assert "may be announced" not in text
    assert "There are no windows and no no-go times" in text


@pytest.mark.parametrize("query", ["never", "9999-12-31", "0001-01-01", ""])
def test_another_date_than_one_near_today_shows_this_week(query: str) -> None:
    """The address of the page is typed by anybody."""
    assert monday_of(query, START) == date(2029, 12, 31)
    assert monday_of("2031-06-15", datetime(2030, 1, 1, tzinfo=UTC)) == date(2031, 6, 9)
