"""The portal's actions: who may perform them, and which ask first."""

import re

from tests.support.portal_client import MAINTENANCE, PortalClient, page_text
from tests.support.running_service import RunningService


def test_the_api_refuses_actions_that_the_role_forbids(fresh_service: RunningService) -> None:
    """The page shows the API's message, and nothing changes."""
    made = fresh_service.schedule("shop/web-1")
    event = made["waves"][0]["events"][0]["id"]
    viewer = PortalClient(fresh_service, fresh_service.token_of("viewer"))
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    before = fresh_service.get("/v1/audit")["items"][0]["id"]
    for path in (
        f"/events/{event}/approve",
        f"/events/{event}/cancel",
        f"/maintenances/{made['id']}/pause",
        "/tokens/X/revoke",
    ):
        reply = viewer.post(path, {})
        assert reply.status == 403, path
        assert "viewer" in page_text(reply)
    assert viewer.post("/plan", {**MAINTENANCE, "step": "do", "key": "k"}).status == 403
    assert owner.post("/plan", {**MAINTENANCE, "step": "do", "key": "k"}).status == 403
    assert owner.post("/plan", {"kind": "restart", "machine": "shop/web-0", "step": "do", "key": "k"}).status == 403
    assert owner.post(f"/events/{event}/approve", {}).status == 404
    assert fresh_service.get("/v1/audit")["items"][0]["id"] == before


def test_an_owner_sees_and_changes_only_its_scopes(fresh_service: RunningService) -> None:
    """Other scopes are not even named; in its own scope an owner restarts a machine, once."""
    fresh_service.schedule("shop/web-0")
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    for path in ("/", "/scopes", "/machines", "/history", "/audit", "/maintenances", "/orders", "/plan"):
        reply = owner.get(path)
        assert reply.status == 200, path
        assert "shop" not in reply.raw.decode(), path
    assert owner.get("/scopes/shop").status == 403
    form = {"kind": "restart", "machine": "blog/db"}
    preview = owner.post("/plan", form)
    assert preview.status == 200
    assert "1 machine in 1 event" in page_text(preview)
    first = owner.confirm(form, key="once")
    again = owner.post("/plan", {**form, "step": "do", "key": "once"})
    assert first.status == 303
    assert first.headers["location"] == again.headers["location"]
    assert "The event is created" in page_text(owner.get(first.headers["location"]))
    assert len(fresh_service.get("/v1/events?scope=blog&status=Scheduled&status=Started")["items"]) == 1


def test_get_of_an_action_asks_for_confirmation_or_redirects(fresh_service: RunningService) -> None:
    """An irreversible action asks and changes nothing; for any other the page with its button is shown."""
    operator = PortalClient(fresh_service)
    made = fresh_service.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    viewer = PortalClient(fresh_service, fresh_service.token_of("viewer", name="to be revoked"))
    (token,) = [t["id"] for t in fresh_service.get("/v1/tokens?limit=500")["items"] if t["name"] == "to be revoked"]
    for path, page in (
        (f"/events/{event}/approve", f"/events/{event}"),
        (f"/events/{event}/abandon", f"/events/{event}"),
        (f"/orders/{event}/fail", f"/events/{event}"),
        (f"/maintenances/{made['id']}/pause", f"/maintenances/{made['id']}"),
        ("/logout", "/"),
    ):
        reply = operator.get(path)
        assert (reply.status, reply.headers.get("location")) == (303, page), path
    for path in (f"/events/{event}/cancel", f"/maintenances/{made['id']}/cancel", f"/tokens/{token}/revoke"):
        confirmation = operator.get(path)
        assert confirmation.status == 200, path
        assert f'<form method="post" action="{path}" class="confirm"' in confirmation.raw.decode()
        assert "cannot be undone" in page_text(confirmation)
    assert operator.get("/tokens/NOWHERE/revoke").status == 404
    assert viewer.get(f"/tokens/{token}/revoke").status == 403
    assert viewer.get(f"/events/{event}/cancel").status == 303
    assert fresh_service.get(f"/v1/events/{event}")["status"] == "Scheduled"


def test_an_operator_cordons_a_host(fresh_service: RunningService) -> None:
    """A page confirms it; the host's page then says so and has the opposite button. A viewer sees the state and no button."""
    operator = PortalClient(fresh_service)
    viewer = PortalClient(fresh_service, fresh_service.token_of("viewer"))
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    fresh_service.post(
        "/v1/fleet", {**fresh_service.get("/v1/fleet"), "hosts": [{"name": "kvm-07", "labels": {"rack": "b4"}}]}
    )
    text = page_text(operator.get("/hosts/rack1-a/cordon"))
    assert "Host rack1-a, which carries 2 machines" in text
    assert "cannot be undone" not in text
    done = operator.post("/hosts/rack1-a/cordon", {})
    assert done.headers["location"] == "/hosts/rack1-a?done=cordon"
    shown = page_text(operator.get("/hosts/rack1-a?done=cordon"))
    assert "Cordoned. No machine is sent to this host" in shown
    assert "State cordoned since 00:00:00Z" in shown
    assert "Uncordon" in shown
    assert "Uncordon" not in page_text(viewer.get("/hosts/rack1-a"))
    assert "cordoned since" in page_text(viewer.get("/hosts/rack1-a"))
    listed = page_text(operator.get("/hosts"))
    assert "kvm-07 up 0 0 rack=b4" in listed
    assert "rack1-a cordoned 2" in listed
    assert "cordoned" not in page_text(owner.get("/hosts")) + page_text(owner.get("/hosts/rack1-a"))
    assert "The fleet does not list this host" in shown
    assert "The fleet does not list this host" not in page_text(operator.get("/hosts/kvm-07"))
    assert operator.get("/hosts/rack1-a/cordon").headers["location"] == "/hosts/rack1-a"
    assert operator.post("/hosts/rack1-a/uncordon", {}).status == 303
    assert fresh_service.get("/v1/hosts/rack1-a")["state"] == "up"
    assert viewer.post("/hosts/rack1-a/cordon", {}).status == 403


def test_a_token_form_submitted_twice_creates_one_token(service: RunningService, operator: PortalClient) -> None:
    """The second response shows the same secret; another login cannot open the saved secret, and says so."""
    form = {"name": "once", "role": "viewer", "scopes": "", "key": "made-once"}
    secrets = [re.search(r"<code>(fw_[\w-]+)</code>", operator.post("/tokens", form).raw.decode()) for _ in range(2)]
    assert secrets[0] is not None
    assert secrets[1] is not None
    assert secrets[0][1] == secrets[1][1]
    assert len([t for t in service.get("/v1/tokens")["items"] if t["name"] == "once"]) == 1
    elsewhere = PortalClient(service).post("/tokens", form)
    assert elsewhere.status == 409
    assert "cannot be shown again" in page_text(elsewhere)
    wrong = operator.post("/tokens", {**form, "name": "nobody's", "role": "owner", "key": "another"})
    assert wrong.status == 400
    assert 'value="nobody&#39;s"' in wrong.raw.decode()


def test_an_owner_makes_a_calendar_of_its_scopes(fresh_service: RunningService) -> None:
    """The form offers no other role, and names its scopes; the page of the new token shows the calendar's address once."""
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog", name="bob"))
    page = owner.get("/tokens").raw.decode()
    assert re.findall(r"<option[^>]*>(\w+)</option>", page) == ["calendar"]
    assert 'name="scopes" value="blog"' in page
    assert "bob" not in page.partition('<h2 id="list-title">')[2]
    form = {"name": "calendar of bob", "role": "calendar", "scopes": "blog", "key": "k"}
    made = owner.post("/tokens", form, Origin=fresh_service.url)
    address = re.search(rf"<code>({fresh_service.url}/v1/calendar\.ics\?token=fw_[\w-]+)</code>", made.raw.decode())
    assert address is not None
    assert fresh_service.request("GET", address[1].removeprefix(fresh_service.url), token="").status == 200
    listed = owner.get("/tokens")
    assert "calendar of bob" in page_text(listed)
    assert owner.post("/tokens", {**form, "scopes": "", "key": "l"}).status == 403
    (revoke,) = re.findall(r'action="(/tokens/[^"]+/revoke)"', listed.raw.decode())
    assert owner.post(revoke, {}).status == 303
    assert fresh_service.request("GET", address[1].removeprefix(fresh_service.url), token="").status == 401


def test_an_operator_holds_and_resumes_the_store(fresh_service: RunningService) -> None:
    """Every page has a banner; the page of the store lists what would happen and resumes; a viewer only reads."""
    operator = PortalClient(fresh_service)
    viewer = PortalClient(fresh_service, fresh_service.token_of("viewer"))
    assert "Hold the store" in page_text(operator.get("/store"))
    assert "Hold the store" not in page_text(viewer.get("/store"))
    assert operator.post("/store/hold", {"reason": "a drill"}).headers["location"] == "/store?done=store-hold"
    made = fresh_service.schedule("shop/web-0", emergency=True)
    event = made["waves"][0]["events"][0]["id"]
    assert "The store is held" in page_text(viewer.get("/"))
    assert viewer.post("/store/resume", {"held": "x"}).status == 403
    page = operator.get("/store").raw.decode()
    assert "a drill" in page
    assert event[:8] in page
    (held,) = re.findall(r'name="held" value="([^"]+)"', page)
    assert operator.post("/store/resume", {"held": "2029-01-01T00:00:00Z"}).status == 409
    assert operator.post("/store/resume", {"held": held.replace("&#43;", "+")}).status == 303
    assert "The store is held" not in page_text(operator.get("/"))
    assert operator.get("/store/resume").headers["location"] == "/store"


def test_an_event_and_a_host_are_rescheduled(fresh_service: RunningService) -> None:
    """The form takes a time; the pages link the two events."""
    operator = PortalClient(fresh_service)
    fresh_service.enable("shop")
    event = fresh_service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    refused = operator.post(f"/events/{event}/reschedule", {"not_before": "2001-01-01T10:00"})
    assert (refused.status, "not_before has passed" in page_text(refused)) == (409, True)
    moved = operator.post(f"/events/{event}/reschedule", {"not_before": "2040-01-01T10:00"})
    page = page_text(operator.get(moved.headers["location"]))
    for text in ("Rescheduled. Guests see it", "Rescheduled to 2040-01-01 10:00:00Z", f"event {event[:8]}"):
        assert text in page
    assert "Replaced by" in page_text(operator.get(f"/events/{event}"))
    maintenance = fresh_service.get(f"/v1/events/{event}")["maintenance_id"]
    assert "or later, rescheduled" in page_text(operator.get(f"/maintenances/{maintenance}"))
    made = fresh_service.post(
        "/v1/maintenances",
        {
            "type": "Freeze",
            "targets": {"hosts": ["rack1-a", "rack1-b"]},
            "host_mode": "evacuate",
            "not_before": "2039-01-01T00:00:00Z",
        },
        201,
    )
    order = made["hosts"][0]["order_id"]
    moved = operator.post(f"/orders/{order}/reschedule", {"not_before": "2040-01-01T10:00"})
    assert "Rescheduled to 2040-01-01 10:00:00Z" in page_text(operator.get(moved.headers["location"]))


def test_an_operator_sets_the_budget_of_the_fleet(fresh_service: RunningService) -> None:
    """The page shows what is down and what uses it; a viewer only reads, and an owner does not see the fleet."""
    operator = PortalClient(fresh_service)
    viewer = PortalClient(fresh_service, fresh_service.token_of("viewer"))
    made = fresh_service.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    set_budget = {"max_machines_down": "1", "max_hosts_down": "2"}
    assert viewer.post("/budget", set_budget).status == 403
    assert operator.post("/budget", set_budget).headers["location"] == "/budget?done=budget"
    assert operator.post("/budget", {**set_budget, "max_hosts_down": "few"}).status == 422
    page = operator.get("/budget")
    assert "1 machine of 1" in page_text(page)
    assert "0 hosts of 2" in page_text(page)
    assert event[:8] in page_text(page)
    assert 'action="/budget"' in page.raw.decode()
    assert 'action="/budget"' not in viewer.get("/budget").raw.decode()
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "shop"))
    assert owner.get("/budget").status == 403
    assert "/budget" not in owner.get("/").raw.decode()
