"""Looking and searching without a browser: what stands first, what is found, and how it is told."""

import re
from collections.abc import Iterator

import pytest

from tests.api.house import House, house
from tests.portal.people import Caller, words

DOMAINS = 20
LARGE = "\n".join(
    [
        f'[[scopes]]\nname = "{scope}"\nkind = "availability-set"\n'
        + "\n".join(
            f'[[machines]]\nscope = "{scope}"\nname = "{scope}-{n:02d}"\nupdate_domain = {n % DOMAINS}\nhost = "rack-{n}"'
            for n in range(count)
        )
        for scope, count in (("shop", DOMAINS), ("blog", DOMAINS), ("one", 1))
    ]
)


@pytest.fixture
def large() -> Iterator[House]:
    with house(LARGE) as running:
        running.enable("shop", "blog")
        yield running


@pytest.fixture(scope="module")
def service() -> Iterator[House]:
    with house() as running:
        running.enable("shop")
        yield running


@pytest.fixture(scope="module")
def caller(service: House) -> Caller:
    return Caller(service)


def shown(page: str) -> list[str]:
    """The events of Now, in the order they stand there."""
    return re.findall(r'href="/events/([0-9A-F-]{36})"><bdi>', page.partition("<details")[0])


def test_what_is_under_way_stands_on_the_first_page(large: House) -> None:
    """However much is planned after it: started, then scheduled, then planned, each once."""
    started = large.schedule("one/one-00")["waves"][0]["events"][0]["id"]
    large.service.ticker.advance(1)
    for scope in ("shop", "blog"):
        large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": scope}}, 201)
    caller = Caller(large)
    pages, path = [], "/"
    while path:
        page = caller.get(path).raw.decode()
        pages.append(shown(page))
        link = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = "/" + link[1] if link else ""
    status = {event["id"]: event["status"] for event in large.get("/v1/events?limit=100")["items"]}
    assert started in pages[0]
    assert sorted(status[i] for i in pages[0])[-3:] == ["Scheduled", "Scheduled", "Started"]
    assert {status[i] for page in pages[1:] for i in page} == {"Planned"}
    assert sorted(i for page in pages for i in page) == sorted(status)


def test_a_page_filled_by_one_status_leads_to_the_next(large: House) -> None:
    """Twenty planned and scheduled ones make a page to the row, and one more makes another."""
    large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}}, 201)
    caller = Caller(large)
    assert 'rel="next"' not in caller.get("/").raw.decode()
    for number in range(DOMAINS - 1):
        large.schedule(f"blog/blog-{number:02d}")
    first = caller.get("/").raw.decode()
    assert len(shown(first)) == DOMAINS
    link = re.search(r'<a href="([^"]+)" rel="next"', first)
    assert link is not None
    assert link[1] == "?cursor=Planned."
    assert len(shown(caller.get("/" + link[1]).raw.decode())) == DOMAINS - 1


def test_a_cursor_that_is_not_ours_is_refused(caller: Caller) -> None:
    """By name."""
    for cursor in ("x", "Completed."):
        reply = caller.get(f"/?cursor={cursor}")
        assert (reply.status, "cursor" in words(reply)) == (400, True)
