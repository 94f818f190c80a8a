"""Large fleets and large events: every page is paged and below 300 KB."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.portal import LARGEST_PAGE_BYTES, place

from forewarn.core.model import Actor
from forewarn.core.order_verbs import Outcome
from forewarn.store import EventFirstSeen, MachineLastSeen
from tests.support.portal_client import MAINTENANCE, PortalClient, page_text
from tests.support.running_service import RunningService, running_service

PAGED = ("Now", "Scopes", "Machines", "Maintenance", "Audit", "History", "Orders")
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
def large_scope() -> Iterator[RunningService]:
    """A scope of a thousand machines with long names."""
    with running_service(LARGE_SCOPE, store="memory:") as running:
        running.enable("shop")
        yield running


@pytest.mark.parametrize("at_once", [False, True], ids=["many maintenances", "one maintenance"])
def test_every_page_of_a_large_fleet_is_small_and_paged(tmp_path: Path, at_once: bool) -> None:
    """With 10,000 machines and 1,000 open events."""
    with place(tmp_path / "large", 10_000, 1_000, at_once=at_once) as large:
        for page in large.paths:
            text = large.fetch(page)
            assert len(text) < LARGEST_PAGE_BYTES, page
            if page in PAGED and (at_once or page != "Maintenance"):
                assert b'rel="next"' in text, page
        assert b"Plan preview" in large.fetch("Plan, previewed")
        counted = re.sub(rb"<[^>]+>|\s+", b" ", large.fetch("Now"))
        assert b"10,000  machines" in counted


def test_paging_shows_every_event_once(tmp_path: Path) -> None:
    """Following the links from page to page."""
    with place(tmp_path / "fleet", 400, 100, at_once=True) as fleet:
        for begin, number in (("/", 20), ("/?status=Planned", 80), (fleet.paths["Maintenance"], 100)):
            met: list[bytes] = []
            path = begin
            while path:
                fleet.paths["next"] = path  # type: ignore[index]
                text = fleet.fetch("next")
                shown = text.partition(b'<details id="as-table"')[0]
                met += re.findall(rb'href="/events/([0-9A-F-]{36})"><bdi>', shown)
                link = re.search(r'<a href="([^"]+)" rel="next"', text.decode())
                path = begin.partition("?")[0] + link[1].replace("&amp;", "&") if link else ""
            assert len(met) == len(set(met)) == number, begin


def test_pages_about_a_large_event_are_bounded(large_scope: RunningService) -> None:
    """Names, approvals, sightings, output and the document are truncated, and the pages say so."""
    operator = PortalClient(large_scope)
    preview = operator.post("/plan", MAINTENANCE)
    assert "1,000 machines in 1 event" in page_text(preview)
    assert len(preview.raw) < LARGEST_PAGE_BYTES
    made = large_scope.post(
        "/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}, "description": '"' * 1_024}, 201
    )
    event = large_scope.get(f"/v1/events?maintenance={made['id']}")["items"][0]
    now = large_scope.clock.now()
    large_scope.service.store.record_first_seen([EventFirstSeen(event["id"], name, now) for name in event["resources"]])
    large_scope.service.store.record_last_seen([MachineLastSeen("shop", name, now) for name in event["resources"]])
    for name in event["resources"]:
        large_scope.control.approve("shop", name, [event["id"]], Actor(f"shop/{name}"))
    large_scope.service.ticker.advance(1)
    large_scope.control.report_order(event["id"], Outcome(False, reason='"' * 1_024, output='"' * 65_536), Actor("x"))
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
        reply = operator.get(path)
        assert reply.status == 200, path
        assert len(reply.raw) < LARGEST_PAGE_BYTES, (path, len(reply.raw))
    page = page_text(operator.get(f"/events/{event['id']}"))
    assert "entries are not shown" in page
    assert "characters before it are left out" in page
    assert "and 980 more" in page
