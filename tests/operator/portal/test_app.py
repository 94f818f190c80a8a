"""The portal on HTTP: kept forms, error pages, limits, headers, and the banner."""

import re

import pytest

from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Actor
from forewarn.core.order_verbs import Outcome
from forewarn.operator.portal.app import ACTIONS, HINTS, MAX_FORM_BYTES, local_path
from forewarn.store import Counts
from forewarn.store.memory import MemoryStore
from tests.support.portal_client import (
    FORM,
    HOSTILE,
    MAINTENANCE,
    PortalClient,
    hidden_fields,
    page_text,
    post_without_login,
)
from tests.support.running_service import FLEET, RunningService, running_service


def test_a_login_redirects_only_to_this_site() -> None:
    """Any other target becomes the first page."""
    for to in ("//evil.example/", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nX: y", ""):
        assert local_path(to) == "/"
    assert local_path("/events/E?x=1") == "/events/E?x=1"


@pytest.mark.parametrize("path, name", [("/plan", "description"), ("/tokens", "name")])
def test_a_refused_form_returns_with_its_input(operator: PortalClient, path: str, name: str) -> None:
    """Nothing is changed, and the returned form has the right proof."""
    reply = operator.post(path, {**MAINTENANCE, name: "as typed"}, proof="0" * 64)
    assert reply.status == 403
    assert 'value="as typed"' in reply.raw.decode()
    assert hidden_fields(reply)["proof"] == operator.proof


def test_a_form_submitted_after_the_login_ended_is_kept(service: RunningService) -> None:
    """In the login page, up to a limit, never in an address; other content is refused."""
    late = post_without_login(service, "/plan", {**MAINTENANCE, "description": HOSTILE})
    assert late.status == 401
    assert "Your input is kept" in page_text(late)
    assert "<script>alert" not in late.raw.decode()
    huge = post_without_login(service, "/plan", {**MAINTENANCE, "description": "x" * 70_000})
    assert "Your input is kept" not in page_text(huge)
    assert "too long to be kept" in page_text(huge)
    for carried in ("{", "[]", '{"path": 1}'):
        assert post_without_login(service, "/login", {"token": service.token, "carried": carried}).status == 400
    foreign = '{"path": "/events/X/approve", "fields": {}}'
    assert post_without_login(service, "/login", {"token": service.token, "carried": foreign}).status == 303


def test_every_late_form_leads_to_its_page() -> None:
    """After the login the page has the action's button, and the typed reason."""
    with running_service() as service:
        service.enable("shop")
        made = service.schedule("shop/web-0", emergency=True)
        service.service.ticker.advance(1)
        event = made["waves"][0]["events"][0]["id"]
        hook = service.post("/v1/hooks", {"url": "https://receiver.invalid/in", "on": ["resumed"]}, 201)
        drill = service.post("/v1/drills", {"type": "Freeze", "targets": {"scopes": ["blog"]}}, 201)
        expected = {"/plan": "/plan", "/bulk": "/", "/tokens": "/tokens", "/tokens/{id}/revoke": "/tokens"} | {
            "/events/{id}/{verb}": f"/events/{event}",
            "/orders/{id}/{verb}": f"/events/{event}",
            "/maintenances/{id}/{verb}": f"/maintenances/{made['id']}",
            "/drills/{id}/{verb}": f"/drills/{drill['id']}",
            "/hosts/{host}/{verb}": "/hosts/rack1-a",
            "/hooks": "/hooks",
            "/hooks/{id}/{verb}": f"/hooks/{hook['id']}",
            "/budget": "/budget",
            **dict.fromkeys(("/windows", "/windows/{name}/extend", "/windows/{name}/remove"), "/windows"),
            **dict.fromkeys(("/no-go-times", "/no-go-times/{name}/remove"), "/windows"),
            "/store/hold": "/store",
            "/store/resume": "/store",
        }
        operator = PortalClient(service)
        things = {"maintenances": made["id"], "drills": drill["id"], "hooks": hook["id"]}
        for path, _ in ACTIONS:
            thing = things.get(path.split("/")[1], event)
            late = post_without_login(service, path.format(id=thing, host="rack1-a", name="nights", verb="finish"), {})
            assert late.status == 401
            to = hidden_fields(late)["to"]
            assert to == expected[path]
            assert operator.get(to).status == 200
        typed = hidden_fields(post_without_login(service, f"/orders/{event}/fail", {"reason": "the disk is gone"}))
        back = post_without_login(service, "/login", {"token": service.token, **typed})
        assert back.status == 200
        assert 'name="reason" value="the disk is gone"' in back.raw.decode()


def test_the_error_page_of_an_action_links_to_the_changed_thing(fresh_service: RunningService) -> None:
    """Reload goes to the event's page, not to the action."""
    operator = PortalClient(fresh_service)
    made = fresh_service.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    reply = operator.post(f"/events/{event}/retry", {})
    assert reply.status == 409
    assert f'<a href="/events/{event}">Reload</a>' in reply.raw.decode()
    wrong = operator.service.request("PUT", "/plan")
    assert wrong.status == 405
    assert "PUT is not for this page" in wrong.message
    assert "its forms with POST" in wrong.message


def test_text_of_others_is_escaped(fresh_service: RunningService) -> None:
    """Descriptions, names of tokens, reasons and output never become markup."""
    operator = PortalClient(fresh_service)
    fresh_service.post("/v1/tokens", {"name": HOSTILE[:60], "role": "viewer"}, 201)
    made = fresh_service.schedule("shop/web-1", description=HOSTILE, emergency=True)
    event = made["waves"][0]["events"][0]["id"]
    fresh_service.service.ticker.advance(1)
    fresh_service.control.report_order(
        event, Outcome(False, reason=HOSTILE, output=HOSTILE + "\x1b[31m\x00"), Actor(HOSTILE, HOSTILE)
    )
    for path in (
        "/",
        f"/events/{event}",
        f"/maintenances/{made['id']}",
        "/tokens",
        "/audit",
        "/orders",
        "/maintenances",
        "/scopes/shop",
    ):
        page = operator.get(path).raw.decode()
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path
    assert "&lt;script&gt;alert(1)" in operator.get(f"/events/{event}").raw.decode()


def test_every_page_has_the_security_headers(operator: PortalClient) -> None:
    """A strict policy, no framing, no sniffing, no caching, and no inline script, style or handler."""
    for path in ("/", "/plan", "/login", "/nowhere", "/portal.css", "/portal.js"):
        headers = operator.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    page = operator.get("/").raw.decode()
    assert operator.get("/").headers["cache-control"] == "no-store"
    assert not re.search(r"<style|style=|\son\w+=|<script(?! src=)|javascript:", page)


@pytest.mark.parametrize(
    "path, status",
    [
        ("/nowhere", 404),
        ("/events/NOWHERE", 404),
        ("/maintenances/NOWHERE", 404),
        ("/scopes/nowhere", 404),
        ("/?cursor=garbage", 400),
        ("/scopes/shop?api-version=latest", 400),
        ("/hosts?cursor=AAAA", 400),
        ("/tokens?cursor=%00", 400),
    ],
)
def test_an_error_page_says_what_to_do(operator: PortalClient, path: str, status: int) -> None:
    """With a link to the history."""
    reply = operator.get(path)
    assert reply.status == status
    assert HINTS[status] in page_text(reply)
    assert 'href="/history"' in reply.raw.decode()


def test_the_page_of_an_unknown_event_says_that_there_is_no_event(operator: PortalClient) -> None:
    """The address may also be that of the work on a host; the message is about the event all the same."""
    assert "there is no event NOWHERE" in page_text(operator.get("/events/NOWHERE"))


@pytest.mark.parametrize("path", ["//evil.example/x", "//evil.example", "/%5Cevil.example", "///evil.example?a=1"])
def test_no_page_links_to_another_site(operator: PortalClient, service: RunningService, path: str) -> None:
    """An address without a scheme, such as //evil.example, is one of another site: no page repeats it as a link."""
    without_login = service.request("GET", path, token="", headers={"Accept": "text/html"})
    for reply in (operator.get(path), without_login):
        addresses = re.findall(r'(?:href|src|action|data-url|name="to" value)="([^"]*)"', reply.raw.decode())
        assert addresses
        assert [each for each in addresses if not re.match(r"/(?![/\\])|#", each)] == []


def test_programs_get_the_apis_errors(service: RunningService) -> None:
    """A request that does not accept HTML gets JSON."""
    reply = service.request("GET", "/nowhere")
    assert (reply.status, reply.code) == (404, "not_found")


def test_a_form_has_limits(operator: PortalClient) -> None:
    """A form that is too large, has too many fields, another content type or no UTF-8 is refused."""
    assert operator.post("/plan", {"machines": "x" * MAX_FORM_BYTES}).status == 413
    assert operator.post("/plan", {f"field{n}": "" for n in range(200)}).status == 400
    sent = {"Cookie": operator.cookie}
    assert operator.service.request("POST", "/plan", "{}", token="", headers=sent).status == 400
    assert (
        operator.service.request(
            "POST", "/plan", b"proof=%ff%fe", token="", headers={**sent, "Content-Type": FORM}
        ).status
        == 400
    )


class StoreWithoutCounts(MemoryStore):
    def counts(self, within: tuple[str, ...] | None) -> Counts:
        raise StoreUnavailable("the store does not respond")


def test_a_store_that_is_away_gives_a_503_page() -> None:
    """It says what to do."""
    with running_service(in_store=StoreWithoutCounts()) as running:
        login = post_without_login(running, "/login", {"token": running.token})
        cookie = login.headers["set-cookie"].partition(";")[0]
        reply = running.request("GET", "/", token="", headers={"Cookie": cookie, "Accept": "text/html"})
    assert reply.status == 503
    assert HINTS[503] in page_text(reply)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"executor": "simulated"}, ["Simulated work:", "Manual clock:"]),
        ({"executor": "external"}, ["Manual clock:"]),
    ],
    ids=str,
)
def test_a_banner_says_what_is_simulated(settings: dict[str, str], expected: list[str]) -> None:
    """Simulated work and a manual clock; the guide is shown only in the demo."""
    with running_service(FLEET, None, **settings) as running:
        page = page_text(PortalClient(running).get("/"))
    assert [each for each in ("Simulated work:", "Manual clock:", "About this demo") if each in page] == expected


def test_the_demo_has_a_guide() -> None:
    """On the first page, unless a status is selected."""
    with running_service(demo="true", token_free="true") as running:
        assert "About this demo" in page_text(running.request("GET", "/"))
        assert "About this demo" not in page_text(running.request("GET", "/?status=Started"))
