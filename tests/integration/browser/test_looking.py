"""Looking and searching without a browser: what stands first, what is found, and how it is told."""

import re
from collections.abc import Iterator

import pytest

from tests.integration.browser.people import Caller, words
from tests.support.running_service import RunningService, running_service

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
def large() -> Iterator[RunningService]:
    with running_service(LARGE) as running:
        running.enable("shop", "blog")
        yield running


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop")
        yield running


@pytest.fixture(scope="module")
def caller(service: RunningService) -> Caller:
    return Caller(service)


def shown(page: str) -> list[str]:
    """The events of Now, in the order they stand there."""
    return re.findall(r'href="/events/([0-9A-F-]{36})"><bdi>', page.partition("<details")[0])


def test_what_is_under_way_stands_on_the_first_page(large: RunningService) -> None:
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


def test_a_page_filled_by_one_status_leads_to_the_next(large: RunningService) -> None:
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


# -- how it is told


def test_a_deadline_is_not_told_as_the_end_of_the_work(large: RunningService) -> None:
    """What runs fails at its deadline; what has notice waits until then."""
    large.schedule("one/one-00")
    large.service.ticker.advance(1)
    page = words(Caller(large).get("/"))
    assert re.search(r"waits for an executor to take it; unless it is done by then it fails at \d", page)
    large.schedule("shop/shop-00")
    assert re.search(r"its notice runs, until \d", words(Caller(large).get("/")))


def test_every_open_event_says_for_how_long(large: RunningService) -> None:
    """Planned ones too, as long as their wave is not published."""
    large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}}, 201)
    large.service.ticker.advance(300)
    page = words(Caller(large).get("/"))
    assert page.count("waiting for 5 min") == 1
    assert page.count("planned 5 min ago") == DOMAINS - 1


def test_the_guide_can_be_followed_whatever_is_open() -> None:
    """Making an event comes before approving one, and there is a way to make the one to approve."""
    with running_service(demo="true", token_free="true") as running:
        page = words(running.request("GET", "/"))
        assert page.index("Make an event:") < page.index("Say go.") < page.index("If there is none,")
        form = running.request("GET", "/plan?kind=maintenance&target=machines&machines=shop/web-0").raw.decode()
    assert re.search(r'value="machines" checked', form)
    assert ">shop/web-0</textarea>" in form


# -- what is found


def test_the_first_letters_of_an_id_will_do(service: RunningService, caller: Caller) -> None:
    """As they are shown, in small letters as well, for what is open and what has ended; on the audit too."""
    made = service.schedule("blog/db", source="User")
    event, maintenance = made["waves"][0]["events"][0]["id"], made["id"]
    for text in (event[:8], event[:8].lower(), event[:20], event.lower()):
        reply = caller.get(f"/events/{text}")
        assert (reply.status, reply.headers.get("location")) == (303, f"/events/{event}")
        assert "No entry fits" not in words(caller.get(f"/audit?event={text}"))
    for text in (maintenance[:8], maintenance.lower()):
        reply = caller.get(f"/maintenances/{text}")
        assert (reply.status, reply.headers.get("location")) == (303, f"/maintenances/{maintenance}")
        assert "No entry fits" not in words(caller.get(f"/audit?maintenance={text}"))
    assert caller.get(f"/events/{event[:7]}").status == 404
    assert "No entry fits" in words(caller.get("/audit?event=00000000"))


def test_an_owner_finds_nothing_of_others_by_its_first_letters(service: RunningService) -> None:
    """Neither the event nor that there is one."""
    event = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    owner = Caller(service, service.token_of("owner", "blog"))
    assert owner.get(f"/events/{event[:8]}").status == 404


@pytest.mark.parametrize("asked", ["machine=web-1", "machine=shop/web-1", "scope=shop&machine=shop/web-1"])
def test_the_history_of_a_machine_is_found_by_its_name(service: RunningService, caller: Caller, asked: str) -> None:
    """Alone where no other has it, or with its scope."""
    service.schedule("shop/web-1")
    reply = caller.get(f"/history?{asked}&status=Scheduled")
    assert reply.status == 200
    assert "Reboot of web-1" in words(reply)


@pytest.mark.parametrize(
    "asked, status, told",
    [
        ("machine=nobody", 400, "no machine is called nobody"),
        ("since=yesterday&machine=shop/web-0", 422, "since"),
        ("type=Explode&scope=shop", 422, "type"),
    ],
)
def test_a_search_that_is_refused_keeps_its_form(caller: Caller, asked: str, status: int, told: str) -> None:
    """What is wrong stands above it, what was typed stays in it."""
    reply = caller.get(f"/history?{asked}")
    assert reply.status == status
    alert = re.search(r'role="alert">(.*?)</p>', reply.raw.decode())
    assert alert is not None
    assert told in alert[1]
    assert 'role="search"' in reply.raw.decode()
    for value in re.findall(r"(?:machine|scope)=([^&]+)", asked):
        assert f'value="{value}"' in reply.raw.decode()


def test_a_name_of_several_machines_asks_which() -> None:
    """And names them."""
    twins = "".join(
        f'[[scopes]]\nname = "{scope}"\nkind = "standalone"\n[[machines]]\nscope = "{scope}"\nname = "db"\n'
        for scope in ("blog", "shop")
    )
    with running_service(twins) as running:
        caller = Caller(running)
        assert "say which, blog/db or shop/db" in words(caller.get("/history?machine=db"))
        both = words(caller.get("/machines?name=db"))
        assert "blog / db" in both
        assert "shop / db" in both
        owner = Caller(running, running.token_of("owner", "shop"))
        assert "blog" not in words(owner.get("/machines?name=db"))


@pytest.mark.parametrize(
    "asked, found",
    [
        ("name=web-0", True),
        ("name=shop/web-0", True),
        ("name=web-0&scope=shop", True),
        ("name=web-0&host=rack1-a", True),
        ("name=web-0&host=rack1-b", False),
        ("name=web-0&scope=blog", False),
        ("name=a/b/c", False),
        ("name=nobody", False),
    ],
)
def test_machines_are_found_by_name(caller: Caller, asked: str, found: bool) -> None:
    """With or without its scope; what else is asked for counts too."""
    reply = caller.get(f"/machines?{asked}")
    assert reply.status == 200
    assert ("shop / web-0" in words(reply)) == found
    assert "web-1" not in words(reply)
    assert ("No machine is there that fits" in words(reply)) != found
