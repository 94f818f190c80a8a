"""Maintenance of hosts in the portal, without JavaScript: the plan, the hosts in turn, a failed host, a skipped one."""

from collections.abc import Iterator

import pytest

from tests.support.portal_client import MAINTENANCE, PortalClient, page_text
from tests.support.running_service import FLEET, RunningService, running_service

HOSTS = "".join(f'\n[[hosts]]\nname = "{name}"\n' for name in ("rack1-a", "rack1-b", "rack1-c"))
PLAN = {**MAINTENANCE, "type": "Freeze", "target": "hosts", "scope": "", "machines": "", "host_mode": "evacuate"}


@pytest.fixture
def service() -> Iterator[RunningService]:
    """web-0 and db are on rack1-a, web-1 is on rack1-b, and rack1-c is empty."""
    with running_service(FLEET + HOSTS) as running:
        yield running


def move(service: RunningService, to: str) -> None:
    """Report that the machines of all open event orders are on this host now."""
    service.service.ticker.advance(1)
    for order in service.get("/v1/orders?state=open")["items"]:
        if not order["host"]:
            service.post(f"/v1/orders/{order['id']}/finish", {"new_hosts": dict.fromkeys(order["machines"], to)})
    service.service.ticker.advance(1)


def test_hosts_are_planned_and_evacuated(service: RunningService) -> None:
    """The preview has the hosts with their machines and targets; then each host has a page with its buttons."""
    operator = PortalClient(service)
    form = {**PLAN, "hosts": "rack1-a rack1-b"}
    preview = page_text(operator.post("/plan", form))
    assert "Evacuation of 2 hosts, one after the other" in preview
    assert "blog/db : rack1-c, rack1-b" in preview
    assert "Its work begins Its turn ends" in preview
    assert "the work of each event and on each host takes 5m" in preview
    made = operator.confirm(form, key="once")
    assert made.status == 303
    page = made.headers["location"].partition("?")[0]
    shown = page_text(operator.get(page))
    assert "rack1-a planned blog/db, shop/web-0" in shown
    assert "host rack1-a comes first, and its turn has not ended" in shown
    assert "order" in page_text(operator.get("/hosts/rack1-a"))
    move(service, "rack1-c")
    (order,) = service.get("/v1/orders?state=open")["items"]
    work = page_text(operator.get(f"/orders/{order['id']}"))
    assert "Work on host rack1-a" in work
    assert "Take the order" in work
    host = page_text(operator.get("/hosts/rack1-a"))
    assert "State in-maintenance" in host
    assert "the host stays in maintenance: no machine is sent there" in host
    assert operator.get(f"/events/{order['id']}").status == 200
    assert "Work on host rack1-a" in page_text(operator.get("/orders"))
    now = page_text(operator.get("/"))
    assert "Work on hosts open Host rack1-a in Freeze" in now
    assert "planned Host rack1-b in Freeze" in now
    assert "hosts: 0 of 2 done, 1 running, 1 left" in page_text(operator.get("/maintenances"))
    taken = operator.post(f"/orders/{order['id']}/start", {})
    assert taken.headers["location"] == f"/orders/{order['id']}?done=host-start"
    failed = operator.post(f"/orders/{order['id']}/fail", {"reason": "no boot"})
    assert "reported as failed" in page_text(operator.get(failed.headers["location"]))
    service.service.ticker.advance(1)
    for path in ("/", page):
        text = page_text(operator.get(path))
        assert "1 order failed" in text
        assert "Work on host rack1-a" in text
        assert "no boot" in text
    assert "Held: 1 order failed" in page_text(operator.get("/maintenances"))
    again = operator.post(f"/orders/{order['id']}/retry", {"back": "/"})
    assert again.headers["location"] == "/?done=host-retry"
    assert "Report as done" not in page_text(operator.get(f"/orders/{order['id']}"))
    operator.post(f"/orders/{order['id']}/start", {})
    done = operator.post(f"/orders/{order['id']}/finish", {})
    assert "The work on the host is done" in page_text(operator.get(done.headers["location"]))
    viewer = PortalClient(service, service.token_of("viewer"))
    other = next(host["order_id"] for host in service.get(f"/v1{page}")["hosts"] if host["host"] == "rack1-b")
    assert "leave this host out" in page_text(operator.get(f"/orders/{other}"))
    assert "leave this host out" not in page_text(viewer.get(f"/orders/{other}"))


def test_a_host_is_skipped_or_abandoned_after_a_question(service: RunningService) -> None:
    """Both ask first, and the page says what became of the host; an owner sees neither the hosts nor their orders."""
    operator = PortalClient(service)
    made = service.post(
        "/v1/maintenances",
        {"type": "Freeze", "targets": {"hosts": ["rack1-a", "rack1-b"]}, "host_mode": "evacuate"},
        201,
    )
    first, second = (host["order_id"] for host in made["hosts"])
    asked = page_text(operator.get(f"/orders/{second}/skip"))
    assert "The work on host rack1-b: planned" in asked
    skipped = operator.post(f"/orders/{second}/skip", {})
    assert "Skipped. What had not started is cancelled" in page_text(operator.get(skipped.headers["location"]))
    move(service, "rack1-c")
    service.post(f"/v1/orders/{first}/fail", {"reason": "no boot"})
    assert "This cannot be undone" in page_text(operator.get(f"/orders/{first}/abandon"))
    operator.post(f"/orders/{first}/abandon", {})
    assert [host["state"] for host in service.get(f"/v1/maintenances/{made['id']}")["hosts"]] == [
        "abandoned",
        "cancelled",
    ]
    owner = PortalClient(service, service.token_of("owner", "shop"))
    assert owner.get(f"/orders/{first}").status == 404
    assert "rack1-b" not in page_text(owner.get(f"/maintenances/{made['id']}"))


def test_a_plan_of_empty_hosts_has_no_events(service: RunningService) -> None:
    """It can be previewed and confirmed all the same; wrong combinations show the form with the API's message."""
    operator = PortalClient(service)
    preview = page_text(operator.post("/plan", {**PLAN, "hosts": "rack1-c"}))
    assert "Evacuation of 1 host" in preview
    assert "0 machines in 0 events" in preview
    assert operator.confirm({**PLAN, "hosts": "rack1-c"}, key="k").status == 303
    wrong = operator.post("/plan", {**PLAN, "hosts": "rack1-a", "host_mode": "", "to_host": "rack1-b"})
    assert wrong.status == 400
    assert "machines go to a named host only in an evacuation" in page_text(wrong)
