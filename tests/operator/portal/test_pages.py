"""What pages show, in which order, and what searches find."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from urllib.parse import unquote

import pytest

from forewarn import __version__
from forewarn.core.model import ENDED, OPEN, Actor
from forewarn.core.order_verbs import Outcome
from forewarn.operator.portal import now, pages
from tests.support import forty_hosts
from tests.support.portal_client import PortalClient, page_text
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


def listed_events(page: str) -> list[str]:
    """Return the events of the page Now in their order."""
    return re.findall(r'href="/events/([0-9A-F-]{36})"><bdi>', page.partition('<details id="as-table"')[0])


def test_every_status_is_on_a_page() -> None:
    """Open events are on the page Now, ended events in the history."""
    assert set(now.OPEN_FIRST) == OPEN
    assert set(pages.ENDED_FIRST) == ENDED


def test_a_scope_shows_its_document_in_any_version(fresh_service: RunningService) -> None:
    """Older versions lack the newer fields."""
    operator = PortalClient(fresh_service)
    fresh_service.schedule("shop/web-0")
    assert "DurationInSeconds" in page_text(operator.get("/scopes/shop"))
    oldest = page_text(operator.get("/scopes/shop?api-version=2017-03-01"))
    assert "DurationInSeconds" not in oldest
    assert "_web-0" in oldest


def test_a_scope_shows_its_windows(fresh_service: RunningService) -> None:
    """Without windows, maintenance starts at any time."""
    operator = PortalClient(fresh_service)
    assert "maintenance starts at any time" in page_text(operator.get("/scopes/shop"))
    for name in ("nights", "weekends"):
        assert fresh_service.request("PUT", f"/v1/windows/{name}", {"when": ["Sat 22:00-05:00"]}).status == 201
    body = {"kind": "availability-set", "windows": ["nights", "weekends"], "approval_opens_window": True}
    assert fresh_service.request("PUT", "/v1/scopes/shop", body).status == 200
    page = page_text(operator.get("/scopes/shop"))
    assert "maintenance starts only while nights or weekends is open, or once it is approved" in page


def test_a_scope_lists_its_open_events_first(large: RunningService) -> None:
    """The scheduled event is not hidden by the planned events of later waves, and the footer names the release."""
    large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}}, 201)
    page = page_text(PortalClient(large).get("/scopes/shop"))
    assert "Scheduled" in page[page.index("Newest events") :]
    assert f"forewarn {__version__} " in page


def test_the_output_of_an_order_keeps_its_lines(fresh_service: RunningService) -> None:
    """In the order and in the timeline."""
    event = fresh_service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    fresh_service.post(f"/v1/events/{event}/approve")
    fresh_service.service.ticker.advance(1)
    fresh_service.post(f"/v1/orders/{event}/start")
    fresh_service.control.report_order(event, Outcome(False, reason="disk", output="one\n two"), Actor("x"))
    page = PortalClient(fresh_service).get(f"/events/{event}").raw.decode()
    assert "<code>one\n two</code>" in page
    assert '<span class="quiet lines"><bdi>disk\none\n two</bdi>' in page


def all_pages(operator: PortalClient, path: str) -> list[list[str]]:
    """Return the events of each page of Now, following the links to the next page."""
    listed = []
    while path:
        page = operator.get(path).raw.decode()
        listed.append(listed_events(page))
        link = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = "/" + unescape(link[1]) if link else ""
    return listed


def test_started_events_come_first(large: RunningService) -> None:
    """Then scheduled ones; planned events are summed up by maintenance, and have pages of their own; each event once."""
    started = large.schedule("one/one-00")["waves"][0]["events"][0]["id"]
    large.service.ticker.advance(1)
    for scope in ("shop", "blog"):
        large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": scope}}, 201)
    operator = PortalClient(large)
    status = {event["id"]: event["status"] for event in large.get("/v1/events?limit=100")["items"]}
    (first,) = all_pages(operator, "/")
    assert [status[i] for i in first] == ["Started", "Scheduled", "Scheduled"]
    assert first[0] == started
    text = page_text(operator.get("/"))
    assert text.count("waves 2 to 20, 19 events") == 2
    assert "38 events in later waves" in text
    planned = all_pages(operator, "/?status=Planned")
    assert [len(each) for each in planned] == [20, 18]
    assert sorted([*first, *planned[0], *planned[1]]) == sorted(status)


def test_the_next_page_continues_with_the_next_status(large: RunningService) -> None:
    """A full page of started events links to the scheduled events."""
    for number in range(DOMAINS):
        large.schedule(f"blog/blog-{number:02d}", emergency=True, type_="Freeze")
    large.service.ticker.advance(1)
    operator = PortalClient(large)
    assert 'rel="next"' not in operator.get("/").raw.decode()
    large.schedule("shop/shop-00")
    first = operator.get("/").raw.decode()
    assert len(listed_events(first)) == DOMAINS
    assert "20 of 21 started or scheduled events" in page_text(operator.get("/"))
    link = re.search(r'<a href="([^"]+)" rel="next"', first)
    assert link is not None
    assert link[1] == "?cursor=Scheduled."
    assert len(listed_events(operator.get("/" + link[1]).raw.decode())) == 1


def test_events_that_are_the_same_are_one_line(large: RunningService) -> None:
    """A wave of many scopes is one group; an event that differs has a line of its own, and shared reasons come once."""
    targets = {"machines": [f"{scope}/{scope}-{number:02d}" for scope in ("shop", "blog") for number in range(2)]}
    made = large.post("/v1/maintenances", {"type": "Reboot", "targets": targets, "description": "Kernel"}, 201)
    wave = made["waves"][0]["events"]
    operator = PortalClient(large)
    text = page_text(operator.get("/"))
    assert f"Reboot {made['id'][:8]} Kernel wave 1: 2 events" in text
    assert "2 events that are the same" in text
    assert text.count("approvals are missing") == 1
    large.post(f"/v1/events/{wave[0]['id']}/approve")
    text = page_text(operator.get("/"))
    assert "that are the same" not in text
    assert text.count("its notice runs") == text.count("has approved") == 1


def test_open_events_are_filtered(large: RunningService) -> None:
    """By scope, host, type, status and text; the number of matches is shown, and the form keeps the filter."""
    freeze = large.schedule("shop/shop-03", type_="Freeze", description="Firmware")["waves"][0]["events"][0]["id"]
    large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "blog"}, "description": "Kernel"}, 201)
    operator = PortalClient(large)
    for query in (
        "scope=shop",
        "host=rack-3&type=Freeze",
        "type=Freeze",
        "q=FIRM",
        "q=shop-03",
        "status=Scheduled&q=shop/",
    ):
        page = operator.get(f"/?{query}")
        assert listed_events(page.raw.decode()) == [freeze], query
        assert "1 of 1 " in page_text(page)
        assert "Kernel" not in page_text(page)
    by_host = page_text(operator.get("/?host=rack-3"))
    assert "Firmware" in by_host
    assert "Kernel : wave 4, 1 event planned" in by_host
    assert '<input name="host" value="rack-3"' in operator.get("/?host=rack-3").raw.decode()
    assert "No open events match." in page_text(operator.get("/?scope=one"))
    assert operator.get("/?type=Explode").status == 422


def test_a_maintenance_without_an_announced_wave_says_what_it_waits_for(large: RunningService) -> None:
    """A budget holds back its first wave. The maintenance that has the budget is shown with its events."""
    large.post("/v1/budget", {"max_machines_down": 1}, 200)
    large.schedule("shop/shop-00")
    large.schedule("blog/blog-00")
    planned = page_text(PortalClient(large).get("/")).partition("1 event in later waves")[2]
    assert "max_machines_down allows 1 machine of the fleet at once: 1 in use, and 1 more needed" in planned


def test_a_deadline_that_has_passed_is_named(large: RunningService) -> None:
    """Before, the page says what will happen then; afterwards, what happened."""
    deadline = (large.clock.now() + timedelta(minutes=5)).isoformat()
    body = {"type": "Reboot", "targets": {"machines": ["shop/shop-00"]}, "not_after": deadline}
    path = f"/maintenances/{large.post('/v1/maintenances', body, 201)['id']}"
    assert "; what has not started by then is cancelled" in page_text(PortalClient(large).get(path))
    large.service.ticker.advance(301)
    assert ", passed: what had not started by then was cancelled" in page_text(PortalClient(large).get(path))


def test_an_unknown_cursor_is_refused(operator: PortalClient) -> None:
    """The message names the parameter."""
    for cursor in ("x", "Completed."):
        reply = operator.get(f"/?cursor={cursor}")
        assert (reply.status, "cursor" in page_text(reply)) == (400, True)


def test_an_order_has_a_deadline_and_notice_has_an_end(large: RunningService) -> None:
    """The page uses different words for them."""
    large.schedule("one/one-00")
    large.service.ticker.advance(1)
    page = page_text(PortalClient(large).get("/"))
    assert re.search(r"waits for an executor to take it, with a deadline at \d", page)
    large.schedule("shop/shop-00")
    assert re.search(r"its notice runs until \d", page_text(PortalClient(large).get("/")))


def test_every_open_event_shows_its_age(large: RunningService) -> None:
    """Planned events since their maintenance was created, scheduled events since their publication."""
    large.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}}, 201)
    large.service.ticker.advance(300)
    page = page_text(PortalClient(large).get("/"))
    assert page.count("waiting for 5m") == 1
    assert page.count("planned 5m ago") == 1
    assert page_text(PortalClient(large).get("/?status=Planned")).count("planned 5m ago") == DOMAINS - 1


def test_the_guide_works_without_any_open_event() -> None:
    """It has a link that creates the event to approve."""
    with running_service(demo="true", token_free="true") as running:
        page = page_text(running.request("GET", "/"))
        assert page.index("Create an event:") < page.index("Approve an event.") < page.index("If there is none,")
        form = running.request("GET", "/plan?kind=maintenance&target=machines&machines=shop/web-0").raw.decode()
    assert re.search(r'value="machines" checked', form)
    assert ">shop/web-0</textarea>" in form


def test_the_first_eight_characters_of_an_id_are_enough(fresh_service: RunningService) -> None:
    """In upper or lower case, for events and maintenances, and in the audit log."""
    operator = PortalClient(fresh_service)
    made = fresh_service.schedule("blog/db", source="User")
    event, maintenance = made["waves"][0]["events"][0]["id"], made["id"]
    for text in (event[:8], event[:8].lower(), event[:20], event.lower()):
        reply = operator.get(f"/events/{text}")
        assert (reply.status, reply.headers.get("location")) == (303, f"/events/{event}")
        assert "No entries match" not in page_text(operator.get(f"/audit?event={text}"))
    for text in (maintenance[:8], maintenance.lower()):
        reply = operator.get(f"/maintenances/{text}")
        assert (reply.status, reply.headers.get("location")) == (303, f"/maintenances/{maintenance}")
        assert "No entries match" not in page_text(operator.get(f"/audit?maintenance={text}"))
    assert operator.get(f"/events/{event[:7]}").status == 404
    assert "No entries match" in page_text(operator.get("/audit?event=00000000"))


def test_an_owner_finds_no_ids_of_other_scopes(fresh_service: RunningService) -> None:
    """The response is the same as for an unknown id."""
    event = fresh_service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    assert owner.get(f"/events/{event[:8]}").status == 404


@pytest.mark.parametrize("search", ["machine=web-1", "machine=shop/web-1", "scope=shop&machine=shop/web-1"])
def test_the_history_finds_a_machine_by_name(fresh_service: RunningService, search: str) -> None:
    """The name alone if it is unique, or with its scope."""
    fresh_service.schedule("shop/web-1")
    reply = PortalClient(fresh_service).get(f"/history?{search}&status=Scheduled")
    assert reply.status == 200
    assert "Reboot of web-1" in page_text(reply)


@pytest.mark.parametrize(
    "search, status, expected",
    [
        ("machine=nobody", 400, "there is no machine nobody"),
        ("since=yesterday&machine=shop/web-0", 422, "since"),
        ("type=Explode&scope=shop", 422, "type"),
    ],
)
def test_a_refused_search_keeps_its_form(operator: PortalClient, search: str, status: int, expected: str) -> None:
    """The message is above the form, which keeps the input."""
    reply = operator.get(f"/history?{search}")
    assert reply.status == status
    alert = re.search(r'role="alert">(.*?)</p>', reply.raw.decode())
    assert alert is not None
    assert expected in alert[1]
    assert 'role="search"' in reply.raw.decode()
    for value in re.findall(r"(?:machine|scope)=([^&]+)", search):
        assert f'value="{value}"' in reply.raw.decode()


def test_an_ambiguous_machine_name_lists_the_choices() -> None:
    """The history names them, the page Machines shows all of them; an owner sees only its own."""
    twins = "".join(
        f'[[scopes]]\nname = "{scope}"\nkind = "standalone"\n[[machines]]\nscope = "{scope}"\nname = "db"\n'
        for scope in ("blog", "shop")
    )
    with running_service(twins) as running:
        operator = PortalClient(running)
        assert "write blog/db or shop/db" in page_text(operator.get("/history?machine=db"))
        both = page_text(operator.get("/machines?q=db"))
        assert "blog / db" in both
        assert "shop / db" in both
        owner = PortalClient(running, running.token_of("owner", "shop"))
        assert "blog" not in page_text(owner.get("/machines?q=db"))


@pytest.mark.parametrize(
    "search, found",
    [
        ("q=web-0", True),
        ("q=shop/web-0", True),
        ("q=web-0&scope=shop", True),
        ("q=web-0&host=rack1-a", True),
        ("q=web-0&host=rack1-b", False),
        ("q=web-0&scope=blog", False),
        ("q=a/b/c", False),
        ("q=nobody", False),
    ],
)
def test_machines_are_found_by_name(operator: PortalClient, search: str, found: bool) -> None:
    """With or without the scope; the other fields of the search count too."""
    reply = operator.get(f"/machines?{search}")
    assert reply.status == 200
    assert ("shop / web-0" in page_text(reply)) == found
    assert "web-1" not in page_text(reply)
    assert ("No machines match" in page_text(reply)) != found


def test_a_maintenance_shows_targets_progress_and_estimated_end(fresh_service: RunningService) -> None:
    """On its page and in the list; without a duration the end is unknown."""
    operator = PortalClient(fresh_service)
    made = fresh_service.post(
        "/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}, "duration_s": 300}, 201
    )
    for path in (f"/maintenances/{made['id']}", "/maintenances"):
        reply = operator.get(path)
        assert "host rack1-a" in page_text(reply)
        assert "0 of 2 done, 2 left" in page_text(reply)
        assert b'datetime="2030-01-01T00:20:00Z"' in reply.raw
    unknown = fresh_service.schedule("shop/web-1")
    assert "Estimated end unknown" in page_text(operator.get(f"/maintenances/{unknown['id']}"))


def test_an_event_whose_order_failed_is_red_everywhere() -> None:
    """It is not "running" any more: on the page Now, of its maintenance, host, machine and scope, and in the search.

    What all events of a later wave wait for is said once, in the heading of the wave.
    """
    with forty_hosts.running() as service:
        operator, hosts = PortalClient(service), forty_hosts.HOSTS
        made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": hosts}}, 201)
        service.service.ticker.advance(4 * forty_hosts.WORK_S)
        service.post(f"/v1/maintenances/{made['id']}/pause")
        page, machine = f"/maintenances/{made['id']}", forty_hosts.FAILING[0]
        red = b'<span class="status status-failed">Started, order failed</span>'
        host = f"/hosts/{hosts[forty_hosts.PER_WAVE + 1]}"
        for path in ("/", page, host, f"/machines/{machine}", "/scopes/s1", "/history?status=Started"):
            reply = operator.get(path)
            assert red in reply.raw, path
            assert b">Started</span>" not in reply.raw, path
        assert "running for" not in page_text(operator.get("/"))
        assert "in s1 Started, order failed" in page_text(operator.get(f"/search?q={machine}"))
        shown = page_text(operator.get(page))
        assert "Held: 3 orders failed, and it is paused" in shown
        assert shown.count("wave 2 has not ended") == 1
        heading, _, rows = shown.partition("Wave 3")[2].partition("s0 , update domain 2")
        assert "All wait: 3 orders failed and hold the maintenance" in heading
        assert "the maintenance is paused" in heading
        assert rows.count("as above") == 5


def test_a_machine_shows_what_comes_then_what_happened(fresh_service: RunningService) -> None:
    """Then how it approves and when it last did; the link plans for this machine."""
    service, operator = fresh_service, PortalClient(fresh_service)
    ended = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    service.control.approve("shop", "web-0", [ended], Actor("shop/web-0", "guest"))
    service.service.ticker.advance(1)
    service.post(f"/v1/orders/{ended}/finish")
    service.schedule("shop/web-0", type_="Freeze")
    service.schedule("shop/web-0", type_="Redeploy", not_before="2030-01-02T00:00:00Z")
    reply = operator.get("/machines/shop/web-0")
    shown = page_text(reply)
    order = [
        "Coming events",
        "Freeze of web-0",
        "Redeploy of web-0",
        "Ended events",
        "Reboot of web-0",
        "How it approves",
    ]
    assert sorted(order, key=shown.index) == order
    assert "any machine of the scope may approve an event" in shown
    assert "Last approval 00:00:00Z" in shown
    assert "Last seen: never" in shown
    assert b"/plan?kind=maintenance&amp;target=machines&amp;machines=shop/web-0" in reply.raw
    viewer = PortalClient(service, service.token_of("viewer"))
    assert "Plan for this machine" not in page_text(viewer.get("/machines/shop/web-0"))
    assert operator.get("/machines/shop/none").status == 404


def test_a_host_shows_its_machines_and_open_events(fresh_service: RunningService) -> None:
    """The link fills in the plan; an owner sees their own machines and no link."""
    fresh_service.schedule("shop/web-0", "shop/web-1")
    operator = PortalClient(fresh_service)
    shown = page_text(operator.get("/hosts/rack1-a"))
    assert "Reboot of web-0" in shown
    assert "Reboot of web-1" not in shown
    assert "shop / web-0" in shown
    assert "blog / db" in shown
    plan = operator.get("/plan?kind=maintenance&target=hosts&hosts=rack1-a").raw.decode()
    assert re.search(r'name="target" value="hosts" checked', plan)
    assert re.search(r'name="hosts"[^>]* value="rack1-a"', plan)
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    seen = page_text(owner.get("/hosts/rack1-a"))
    assert "blog / db" in seen
    assert "web-0" not in seen
    assert "Plan for this host" not in seen
    assert operator.get("/hosts/nowhere").status == 404
    assert owner.get("/hosts/rack1-b").status == 404


def test_many_coming_events_are_cut(large: RunningService) -> None:
    """The page says so."""
    for _ in range(pages.ROWS + 1):
        large.post("/v1/maintenances", {"type": "Freeze", "targets": {"machines": ["shop/shop-00"]}}, 201)
    shown = page_text(PortalClient(large).get("/machines/shop/shop-00"))
    assert shown.count("Freeze of shop-00") == pages.ROWS
    assert f"Only the first {pages.ROWS} are shown." in shown


def test_one_search_finds_everything_by_kind(fresh_service: RunningService) -> None:
    """Names and descriptions that contain the text, ids that begin with it; an owner finds only their own."""
    made = fresh_service.schedule("shop/web-0", description="replace the rack switch")
    event = made["waves"][0]["events"][0]["id"]
    operator = PortalClient(fresh_service)

    def links(text: str, client: PortalClient = operator) -> list[str]:
        page = client.get(f"/search?q={text}").raw.decode().partition("<main")[2].partition("<footer")[0]
        return [unquote(each) for each in re.findall(r'<li><a href="([^"]+)"', page)]

    assert links("rack") == [
        "/machines/blog/db", "/machines/shop/web-0", "/machines/shop/web-1", "/hosts/rack1-a", "/hosts/rack1-b",
        f"/maintenances/{made['id']}", f"/events/{event}",
    ]  # fmt: skip
    assert "/scopes/shop" in links("SHO")
    assert links(event[:8]) == [f"/events/{event}"]
    assert links(made["id"][:8].lower()) == [f"/maintenances/{made['id']}", f"/events/{event}"]
    assert links("operator") == [f"/maintenances/{made['id']}", "/tokens?q=operator"]
    fresh_service.post(f"/v1/events/{event}/cancel")
    assert links(event[:8]) == [f"/events/{event}"]
    assert "Nothing contains" in page_text(operator.get("/search?q=nosuch"))
    assert "Type a part of a name" in page_text(operator.get("/search"))
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    assert links("rack", owner) == ["/machines/blog/db", "/hosts/rack1-a"]
    assert links(event[:8], owner) == []


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("/scopes", "sho"),
        ("/hosts", "1-a"),
        ("/maintenances", "switch"),
        ("/history?status=Scheduled", "web-0"),
        ("/audit", "submitted"),
        ("/tokens", "operator"),
    ],
)
def test_every_list_has_a_search(fresh_service: RunningService, path: str, match: str) -> None:
    """It keeps what was typed, and says if nothing matches."""
    fresh_service.schedule("shop/web-0", description="replace the switch")
    operator, join = PortalClient(fresh_service), "&" if "?" in path else "?"
    assert "<tbody>" in operator.get(f"{path}{join}q={match}").raw.decode()
    nothing = operator.get(f"{path}{join}q=nosuch")
    assert 'value="nosuch"' in nothing.raw.decode()
    assert " match." in page_text(nothing)
    assert "<tbody>" not in nothing.raw.decode()
