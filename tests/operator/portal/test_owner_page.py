"""The first page of an owner is about its machines: what is coming first, then what can be done, then the machines."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest

from forewarn.core.model import Actor, Machine
from forewarn.operator.portal.pages import ROWS
from forewarn.store import MachineLastSeen
from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import START, Reply, RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def owner_of(service: RunningService, scope: str) -> PortalClient:
    return PortalClient(service, service.token_of("owner", scope, name=f"owner of {scope}"))


def rows(reply: Reply, section: str) -> list[str]:
    """Return the rows of a table, each as text."""
    part = reply.raw.decode().partition(f'<section id="{section}"')[2].partition("</section>")[0]
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)][
        1:
    ]


def test_started_events_come_first_then_by_their_start(service: RunningService) -> None:
    """Whatever the order in which they were scheduled; other scopes are not named."""
    later = {"not_before": "2030-01-01T05:00:00Z"}
    service.schedule("shop/web-0", "shop/web-1", **later)
    service.schedule("shop/web-1", type_="Freeze")
    service.schedule("blog/db")
    service.post("/v1/scopes/shop/machines/web-0/redeploy", status=202)
    service.post("/v1/clock/advance", {"seconds": 600})
    page = owner_of(service, "shop").get("/")
    assert "<h1>Your machines</h1>" in page.raw.decode()
    assert "blog" not in page_text(page)
    found = rows(page, "coming")
    assert [re.search(r"(\w+) of ([\w-]+)", row)[0] for row in found] == [  # type: ignore[index]
        "Redeploy of web-0",
        "Freeze of web-1",
        "Reboot of web-0",
        "Reboot of web-1",
    ]
    assert ["Started" in found[0], "Scheduled" in found[1], "not announced yet" in found[3]] == [True, True, True]


def test_an_owner_approves_and_cancels_from_there_what_it_may(service: RunningService) -> None:
    """A platform event has Approve alone, a user event can be cancelled, a planned one offers nothing."""
    service.schedule("shop/web-0", "shop/web-1")
    user = service.post("/v1/scopes/shop/machines/web-1/restart", status=202)["id"]
    owner = owner_of(service, "shop")
    page = owner.get("/")
    offers = {
        re.search(r"(\w+) of ([\w-]+)", row)[0]: re.findall(r"Approve|Cancel|nothing", row)  # type: ignore[index]
        for row in rows(page, "coming")
    }
    assert offers["Reboot of web-0"] == ["Approve"]
    assert page.raw.decode().count(f'action="/events/{user}/cancel"') == 1
    (platform,) = [e for e in service.get("/v1/events?status=Scheduled")["items"] if e["source"] == "Platform"]
    approved = owner.post(f"/events/{platform['id']}/approve", {})
    assert approved.status == 303
    assert service.get(f"/v1/events/{platform['id']}")["approved_by"][0]["who"] == "owner of shop"
    refused = owner.post(f"/events/{platform['id']}/cancel", {})
    assert refused.status in (403, 409)


def test_its_machines_are_listed_with_their_last_request(service: RunningService) -> None:
    """Each can be restarted and redeployed; the list of a large scope goes on elsewhere."""
    service.service.store.record_last_seen([MachineLastSeen("shop", "web-0", START - timedelta(minutes=5))])
    owner = owner_of(service, "shop")
    page = owner.get("/")
    machines = rows(page, "machines")
    assert len(machines) == 2
    assert "5m ago" in machines[0]
    assert "never" in machines[1]
    assert 'href="/plan?kind=restart&amp;machine=shop/web-1"' in page.raw.decode()
    assert 'href="/tokens"' in page.raw.decode().partition("<main")[2]
    assert rows(page, "coming") == []
    assert "No event is coming for your machines." in page_text(page)


def test_a_long_list_is_cut_and_says_so(service: RunningService) -> None:
    """The page stays small however many events are open; the numbers lead to the page Now."""
    for number in range(ROWS - 1):
        service.control.put_machine(Machine(scope="shop", name=f"x-{number}"), Actor("operator"))
    service.schedule("shop/web-1", type_="Freeze")
    for number in range(ROWS):
        service.schedule(f"shop/web-{number % 2}", not_before="2030-01-01T05:00:00Z")
    owner = owner_of(service, "shop")
    page = owner.get("/")
    text = page_text(page)
    assert "by their start: 25 of 26" in text
    assert "Freeze of web-1" in rows(page, "coming")[0], "it starts first, though it is not the newest"
    assert "Machines by name: 25 of 26" in text
    assert "All machines" in text
    assert "<h1>Now</h1>" in owner.get("/?status=Planned").raw.decode()


def test_everyone_else_gets_the_page_now(service: RunningService) -> None:
    """Operators and viewers see the whole fleet."""
    for role in ("operator", "viewer"):
        assert "<h1>Now</h1>" in PortalClient(service, service.token_of(role)).get("/").raw.decode()
