"""A large fleet makes no large page: whatever there is, a page is paged and below 300 KB."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.portal import LARGEST_PAGE_BYTES, place

from forewarn.core.lifecycle import Outcome
from forewarn.core.model import Actor
from forewarn.store import EventFirstSeen, MachineLastSeen
from tests.integration.browser.people import MAINTENANCE, Caller, words
from tests.support.running_service import RunningService, running_service

PAGED = ("Now", "Scopes", "Machines", "Maintenance", "Audit", "History", "Orders")


@pytest.mark.parametrize("at_once", [False, True], ids=["many maintenances", "one maintenance"])
def test_every_page_of_a_large_fleet_is_small_and_paged(tmp_path: Path, at_once: bool) -> None:
    """10,000 machines and 1,000 open events."""
    with place(tmp_path / "large", 10_000, 1_000, at_once=at_once) as large:
        for page in large.paths:
            text = large.fetch(page)
            assert len(text) < LARGEST_PAGE_BYTES, page
            if page in PAGED and (at_once or page != "Maintenance"):
                assert b'rel="next"' in text, page
        assert b"What would happen" in large.fetch("Plan, looked at")
        counted = re.sub(rb"<[^>]+>|\s+", b" ", large.fetch("Now"))
        assert b"10,000  machines" in counted


def test_paging_shows_everything_once(tmp_path: Path) -> None:
    """From page to page by its own links: every open event is met once."""
    with place(tmp_path / "fleet", 400, 100, at_once=True) as fleet:
        for begin in ("/", fleet.paths["Maintenance"]):
            met: list[bytes] = []
            path = begin
            while path:
                fleet.paths["next"] = path  # type: ignore[index]
                text = fleet.fetch("next")
                shown = text.partition(b"<details")[0] if begin == "/" else text
                met += re.findall(rb'href="/events/([0-9A-F-]{36})"><bdi>', shown)
                link = re.search(r'<a href="([^"]+)" rel="next"', text.decode())
                path = begin + link[1].replace("&amp;", "&") if link else ""
            assert len(met) == len(set(met)) == 100, begin


LARGE_SCOPE = "\n".join(
    [
        '[[scopes]]\nname = "shop"\nkind = "availability-set"\napproval = "all"',
        *(
            f'[[machines]]\nscope = "shop"\nname = "{"x" * 58}-{number:04d}"\naddresses = ["10.0.{number // 250}.{number % 250}"]'
            for number in range(1_000)
        ),
    ]
)


@pytest.fixture
def crowded() -> Iterator[RunningService]:
    """One event of a thousand machines with long names, each of which saw and approved it, and an order that said much."""
    with running_service(LARGE_SCOPE, store="memory:") as running:
        running.enable("shop")
        yield running


def test_pages_about_a_crowd_are_bounded(crowded: RunningService) -> None:
    """Names, approvals, sightings, output, the document: shown in part, and it says so."""
    caller = Caller(crowded)
    looked = caller.post("/plan", MAINTENANCE)
    assert "1,000 machines in 1 event" in words(looked)
    assert len(looked.raw) < LARGEST_PAGE_BYTES
    made = crowded.post(
        "/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}, "description": '"' * 1_024}, 201
    )
    event = crowded.get(f"/v1/events?maintenance={made['id']}")["items"][0]
    now = crowded.clock.now()
    crowded.service.store.record_first_seen([EventFirstSeen(event["id"], name, now) for name in event["resources"]])
    crowded.service.store.record_last_seen([MachineLastSeen("shop", name, now) for name in event["resources"]])
    for name in event["resources"]:
        crowded.control.approve("shop", name, [event["id"]], Actor(f"shop/{name}"))
    crowded.service.ticker.advance(1)
    crowded.control.report_order(event["id"], Outcome(False, reason='"' * 1_024, output='"' * 65_536), Actor("x"))
    paths = [
        "/",
        "/scopes/shop",
        "/machines",
        "/audit",
        "/orders",
        f"/events/{event['id']}",
        f"/maintenances/{made['id']}",
    ]
    for path in paths:
        reply = caller.get(path)
        assert reply.status == 200, path
        assert len(reply.raw) < LARGEST_PAGE_BYTES, (path, len(reply.raw))
    page = words(caller.get(f"/events/{event['id']}"))
    assert "entries are not shown" in page
    assert "characters before it are not shown" in page
    assert "and 980 more" in page
