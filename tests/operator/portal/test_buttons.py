"""Which buttons pages show."""

import re
from html import escape, unescape

from forewarn.core.model import Actor
from forewarn.core.order_verbs import Outcome, Unknown
from tests.support.portal_client import HOSTILE, PortalClient, page_text
from tests.support.running_service import RunningService, running_service


def buttons(client: PortalClient, path: str) -> list[str]:
    """Return the actions of the page's buttons."""
    page = client.get(path).raw.decode()
    return re.findall(r'<form method="(?:get|post)" action="/\w+/[^/"]+/([\w-]+)"', page)


def test_a_page_has_the_buttons_that_the_status_allows() -> None:
    """Approve and cancel before the start, then the order's buttons, then those for a failed order, none at the end."""
    with running_service() as service:
        operator = PortalClient(service)
        service.enable("blog")
        made = service.schedule("blog/db", source="Platform", type_="Freeze")
        event = made["waves"][0]["events"][0]["id"]

        assert buttons(operator, f"/events/{event}") == ["approve", "cancel", "reschedule"]
        assert buttons(operator, f"/maintenances/{made['id']}") == ["pause", "cancel"]
        assert operator.post(f"/events/{event}/retry", {}).status == 409
        operator.post(f"/maintenances/{made['id']}/pause", {})
        assert buttons(operator, f"/maintenances/{made['id']}") == ["resume", "cancel"]
        operator.post(f"/maintenances/{made['id']}/resume", {})
        assert operator.post(f"/events/{event}/approve", {}).status == 303
        service.service.ticker.advance(1)
        assert buttons(operator, f"/events/{event}") == ["start", "finish", "fail"]
        assert operator.post(f"/orders/{event}/start", {}).status == 303
        assert buttons(operator, f"/events/{event}") == ["finish", "fail"]
        assert operator.post(f"/orders/{event}/fail", {"reason": ""}).status == 422
        assert operator.post(f"/orders/{event}/fail", {"reason": HOSTILE}).status == 303
        assert buttons(operator, f"/events/{event}") == ["retry", "finish", "abandon"]
        assert "<script>alert" not in operator.get(f"/events/{event}").raw.decode()
        assert operator.post(f"/events/{event}/finish", {}).status == 303
        assert buttons(operator, f"/events/{event}") == []
        service.service.ticker.advance(1)
        assert buttons(operator, f"/maintenances/{made['id']}") == []


def test_an_order_in_doubt_is_resolved_on_the_page_of_its_event(fresh_service: RunningService) -> None:
    """The first page counts it and leads to the list of orders in doubt; the event has the buttons of a failed one."""
    operator = PortalClient(fresh_service)
    event = fresh_service.schedule("blog/db")["waves"][0]["events"][0]["id"]
    fresh_service.post(f"/v1/events/{event}/approve")
    fresh_service.service.ticker.advance(1)
    fresh_service.post(f"/v1/orders/{event}/start")
    fresh_service.control.report_order(event, Unknown("its node is gone"), Actor("ticker"))
    assert buttons(operator, f"/events/{event}") == ["retry", "finish", "abandon"]
    page = operator.get("/").raw.decode()
    assert re.search(r'href="/orders\?state=in-doubt"><b>1</b> in doubt: it waits for an operator', page)
    listed = operator.get("/orders?state=in-doubt").raw.decode()
    assert f'href="/events/{event}"' in listed
    assert "its node is gone" in listed
    assert "status-in-doubt" in listed


def test_an_owner_has_no_button_to_cancel_platform_events(fresh_service: RunningService) -> None:
    """It may approve them."""
    made = fresh_service.schedule("blog/db")
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    event = made["waves"][0]["events"][0]["id"]
    page = owner.get(f"/events/{event}").raw.decode()
    assert f'action="/events/{event}/approve"' in page
    assert f'action="/events/{event}/cancel"' not in page


def test_an_owner_has_no_button_to_approve_where_only_operators_approve() -> None:
    """The scope has approval = operator; an operator has the button."""
    fleet = '[[scopes]]\nname = "shop"\nkind = "standalone"\napproval = "operator"\n[[machines]]\nscope = "shop"\nname = "db"\n'
    with running_service(fleet) as service:
        service.enable("shop")
        event = service.schedule("shop/db")["waves"][0]["events"][0]["id"]
        owner = PortalClient(service, service.token_of("owner", "shop"))
        assert buttons(PortalClient(service), f"/events/{event}") == ["approve", "cancel", "reschedule"]
        assert buttons(owner, f"/events/{event}") == ["reschedule"]


def test_a_maintenance_that_a_failed_order_holds_is_not_paused(fresh_service: RunningService) -> None:
    """It offers to retry all instead of a pause; what was paused before can be resumed; the failed event has its buttons."""
    operator = PortalClient(fresh_service)
    body = {"type": "Reboot", "targets": {"scope": "shop"}}
    maintenance = fresh_service.post("/v1/maintenances", body, 201)
    event, path = maintenance["waves"][0]["events"][0]["id"], f"/maintenances/{maintenance['id']}"
    fresh_service.post(f"/v1/events/{event}/approve")
    fresh_service.service.ticker.advance(1)
    fresh_service.post(f"/v1/orders/{event}/fail", {"reason": "no power"})
    fresh_service.service.ticker.advance(1)
    assert fresh_service.get(f"/v1{path}")["status"] == "Paused"
    resolutions = ["retry", "finish", "abandon"]
    assert buttons(operator, path) == ["retry-failed", "cancel", *resolutions]
    assert "Held: 1 order failed" in page_text(operator.get(path))
    assert 'class="status status-failed">Held: 1 order failed<' in operator.get("/maintenances").raw.decode()
    fresh_service.post(f"/v1{path}/pause")
    assert buttons(operator, path) == ["retry-failed", "resume", "cancel", *resolutions]
    fresh_service.post(f"/v1{path}/resume")
    operator.post(f"{path}/cancel", {})
    assert buttons(operator, path) == ["retry-failed", *resolutions]
    retried = operator.post(f"{path}/retry-failed", {})
    assert (retried.status, retried.headers["location"]) == (303, f"{path}?done=retry-failed")
    assert "All its failed orders can be taken again" in page_text(operator.get(f"{path}?done=retry-failed"))
    assert buttons(operator, path) == []


def test_the_first_page_has_the_failures_on_top(fresh_service: RunningService) -> None:
    """By maintenance, with the buttons of each event, which lead back to the page; an order in doubt stands beside them."""
    operator = PortalClient(fresh_service)
    made = fresh_service.schedule("shop/web-0", "blog/db", not_before=None)
    first, second = (event["id"] for event in made["waves"][0]["events"])
    for each in (first, second):
        fresh_service.post(f"/v1/events/{each}/approve")
    fresh_service.service.ticker.advance(1)
    assert 'class="failures"' not in operator.get("/").raw.decode()
    fresh_service.post(f"/v1/orders/{first}/fail", {"reason": HOSTILE})
    fresh_service.post(f"/v1/orders/{second}/start")
    fresh_service.control.report_order(second, Unknown("its node is gone"), Actor("ticker"))
    fresh_service.service.ticker.advance(1)
    page = operator.get("/")
    html, text = page.raw.decode(), page_text(page)
    assert html.index('class="failures"') < html.index('id="counts"')
    assert "1 order failed, 1 order in doubt" in text
    assert f"Maintenance {made['id'][:8]} Held: 1 order failed, 1 order in doubt" in text
    assert "its node is gone" in text
    host = fresh_service.get("/v1/scopes/shop/machines/web-0")["host"]
    assert f"on <bdi>{host}</bdi>, attempt 1" in html
    assert '<li><a href="/orders">Orders</a></li>' in html
    assert '<li><a href="/orders" aria-current="page">Orders</a></li>' in operator.get("/orders").raw.decode()
    assert "<script>alert" not in html
    assert buttons(operator, "/") == ["retry-failed", *["retry", "finish", "abandon"] * 2]
    for role, scopes in (("viewer", ()), ("owner", ("shop", "blog"))):
        other = PortalClient(fresh_service, fresh_service.token_of(role, *scopes, name=role))
        assert buttons(other, "/") == []
        assert "1 order failed, 1 order in doubt" in page_text(other.get("/"))
    finished = operator.post(f"/events/{second}/finish", {"back": "/"})
    assert (finished.status, finished.headers["location"]) == (303, "/?done=finish")
    elsewhere = operator.post(f"/maintenances/{made['id']}/retry-failed", {"back": "//evil.example/"})
    assert elsewhere.headers["location"] == f"/maintenances/{made['id']}?done=retry-failed"
    fresh_service.post(f"/v1/orders/{first}/fail", {"reason": "again"})
    back = operator.post(f"/events/{first}/retry", {"back": f"/maintenances/{made['id']}"})
    assert back.headers["location"] == f"/maintenances/{made['id']}?done=retry"
    assert 'class="failures"' not in operator.get("/").raw.decode()


def test_of_many_failures_the_newest_are_shown() -> None:
    """The title counts all of them, and links lead to the lists."""
    names = [f"vm-{n}" for n in range(27)]
    fleet = '[[scopes]]\nname = "s"\nkind = "placement-group"\n' + "".join(
        f'[[machines]]\nscope = "s"\nname = "{name}"\n' for name in names
    )
    with running_service(fleet) as service:
        other, made = (
            service.schedule(*(f"s/{name}" for name in some), type_="Preempt") for some in (names[:1], names[1:])
        )
        service.service.ticker.advance(60)
        for event in (*other["waves"][0]["events"], *made["waves"][0]["events"]):
            service.control.report_order(event["id"], Outcome(False, "no power"), Actor("tool"))
        service.service.ticker.advance(1)
        operator = PortalClient(service)
        for path, failed in (("/", 27), (f"/maintenances/{made['id']}", 26)):
            text = page_text(operator.get(path))
            assert f"{failed} orders failed" in text
            assert f"All failed orders : {failed - 10} more than here" in text
            assert buttons(operator, path).count("abandon") == 10
        assert f"Maintenance {made['id'][:8]} Held: 26 orders failed" in page_text(operator.get("/"))
        link = f"/orders?state=failed&maintenance={made['id']}"
        assert f'href="{escape(link)}"' in operator.get(f"/maintenances/{made['id']}").raw.decode()
        first = operator.get(link).raw.decode()
        link_to_older = re.compile(r'href="(\?state=failed&amp;maintenance=[^"]*cursor=[^"]+)"')
        older = link_to_older.search(first)
        assert older is not None
        rest = operator.get("/orders" + unescape(older[1])).raw.decode()
        pages = [set(re.findall('name="event-([^"]+)"', page)) for page in (first, rest)]
        assert [len(page) for page in pages] == [25, 1]
        assert pages[0] | pages[1] == {event["id"] for event in made["waves"][0]["events"]}
        assert link_to_older.search(rest) is None
        assert "No orders match." in page_text(operator.get("/orders?maintenance=nosuch"))
