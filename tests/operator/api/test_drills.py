"""Drills through the API: who may schedule them, the report, and the metric."""

from collections.abc import Iterator

import pytest

from forewarn.core.model import Actor
from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import RunningService, running_service

REQUEST = {"type": "Reboot", "targets": {"scopes": ["shop"]}, "hold_s": 30}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def advance(service: RunningService, seconds: int) -> None:
    service.post("/v1/clock/advance", {"seconds": seconds})


def test_a_drill_ends_by_itself_and_reports_who_was_ready(service: RunningService) -> None:
    """No order can be taken; the portal and the metric show the same as the report."""
    operator = PortalClient(service)
    assert "No drills yet" in page_text(operator.get("/drills"))
    plan = service.post("/v1/drills?dry_run=true", REQUEST, 200)
    owners = service.post("/v1/drills?dry_run=true", REQUEST, 200, token=service.token_of("owner", "shop"))
    made = service.post("/v1/drills", REQUEST, 201)
    assert (plan["id"], plan["drill_hold_s"], made["drill_hold_s"]) == (None, 30, 30)
    assert owners["calendar"] == plan["calendar"]
    assert (plan["calendar"]["work_s"], len(plan["calendar"]["waves"])) == (30, 2)
    first = made["waves"][0]["events"][0]
    service.service.control.approve("shop", first["resources"][0], [first["id"]], Actor("web-0", "guest"))
    advance(service, 10)
    taken = service.request("POST", f"/v1/orders/{first['id']}/start")
    assert (taken.status, taken.json["error"]["code"]) == (409, "illegal_transition")
    assert [r["code"] for r in service.get(f"/v1/events/{first['id']}")["waiting_for"]] == ["drill"]
    advance(service, 3_600)
    report = service.get(f"/v1/drills/{made['id']}")
    assert (report["status"], report["scopes"]) == ("Completed", ["shop"])
    assert report["readiness"] == {"machines": 2, "measured": 2, "ready": 1, "share": 0.5, "slowest_s": 0}
    assert [(each["name"], each["ready"], each["seen"]) for each in report["machines"]] == [
        ("web-1", False, None),
        ("web-0", True, None),
    ]
    assert service.get("/v1/drills")["items"][0]["readiness"] == report["readiness"]
    assert "50% ready (1 of 2)" in page_text(operator.get("/drills"))
    page = page_text(operator.get(f"/drills/{made['id']}"))
    assert ("Drill of a Reboot" in page, "2 machines" in page) == (True, True)
    assert operator.get(f"/drills/{made['id'][:8]}").headers["location"] == f"/drills/{made['id']}"
    metrics = service.request("GET", "/metrics").raw.decode().splitlines()
    assert {'forewarn_drill_machines{result="ready"} 1.0', 'forewarn_drill_machines{result="not-ready"} 1.0'} <= set(
        metrics
    )


def test_an_owner_drills_the_own_scopes(service: RunningService) -> None:
    """And sees the readiness of their machines alone."""
    owner = service.token_of("owner", "blog")
    mine = {"type": "Freeze", "targets": {"scopes": ["blog"]}}
    for targets in ({"scopes": ["shop"]}, {"scopes": ["blog", "shop"]}, {"hosts": ["rack1-a"]}):
        assert service.request("POST", "/v1/drills", {**mine, "targets": targets}, token=owner).status == 403
    made = service.request("POST", "/v1/drills", mine, token=owner)
    assert made.status == 201
    assert service.request("POST", "/v1/drills", mine, token=service.token_of("viewer")).status == 403
    assert [each["id"] for each in service.get("/v1/drills", token=owner)["items"]] == [made.json["id"]]
    advance(service, 1)
    foreign = service.post("/v1/drills", REQUEST, 201)
    assert [each["id"] for each in service.get("/v1/drills?limit=1")["items"]] == [foreign["id"]]
    assert service.request("GET", f"/v1/drills/{foreign['id']}", token=owner).status == 404
    assert service.request("GET", f"/v1/drills/{made.json['id']}", token=owner).status == 200
    real = service.schedule("shop/web-0")
    assert service.request("GET", f"/v1/drills/{real['id']}").status == 404


def test_an_owner_cancels_a_drill_of_the_own_scopes(service: RunningService) -> None:
    """Not one in other scopes, wholly or in part, and no real maintenance; the portal has a button."""
    owner, viewer = service.token_of("owner", "blog"), service.token_of("viewer")
    mine = service.request("POST", "/v1/drills", {"type": "Freeze", "targets": {"scopes": ["blog"]}}, token=owner).json
    path = f"/v1/drills/{mine['id']}/cancel"
    assert service.request("POST", path, token=viewer).status == 403
    page = PortalClient(service, owner)
    assert "Cancel the rest" in page_text(page.get(f"/drills/{mine['id']}"))
    assert "Cancel the rest" not in page_text(PortalClient(service, viewer).get(f"/drills/{mine['id']}"))
    assert "Drill of a Freeze in blog" in page_text(page.get(f"/drills/{mine['id']}/cancel"))
    assert page.get(f"/drills/{mine['id'][:8]}/cancel").headers["location"] == f"/drills/{mine['id']}"
    done = page.post(f"/drills/{mine['id']}/cancel", {})
    assert done.headers["location"] == f"/drills/{mine['id']}?done=cancel"
    assert service.get(f"/v1/drills/{mine['id']}", token=owner)["status"] == "Cancelled"
    assert "Cancel the rest" not in page_text(page.get(f"/drills/{mine['id']}"))
    both = service.post("/v1/drills", {**REQUEST, "targets": {"scopes": ["blog", "shop"]}}, 201)
    refused = service.request("POST", f"/v1/drills/{both['id']}/cancel", token=owner)
    assert (refused.status, "other scopes too" in refused.message) == (403, True)
    assert service.post(f"/v1/drills/{both['id']}/cancel")["status"] == "Cancelled"
    foreign, real = service.post("/v1/drills", REQUEST, 201), service.schedule("blog/db")
    for other in (foreign, real):
        assert service.request("POST", f"/v1/drills/{other['id']}/cancel", token=owner).status == 404


def test_the_list_has_pages(service: RunningService) -> None:
    """The cursor leads to the older drills."""
    first = service.post("/v1/drills", REQUEST, 201)["id"]
    second = service.post("/v1/drills", {**REQUEST, "targets": {"scopes": ["blog"]}}, 201)["id"]
    page = service.get("/v1/drills?limit=1")
    rest = service.get(f"/v1/drills?limit=1&cursor={page['next_cursor']}")
    assert {each["id"] for each in (*page["items"], *rest["items"])} == {first, second}
    assert rest["next_cursor"] is None
