"""Maintenance of hosts through the API: the plan, the hosts in turn, their orders, and what helps when one fails."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.running_service import FLEET, RunningService, running_service

HOSTS = "".join(f'\n[[hosts]]\nname = "{name}"\n' for name in ("rack1-a", "rack1-b", "rack1-c"))


@pytest.fixture
def service() -> Iterator[RunningService]:
    """web-0 and db are on rack1-a, web-1 is on rack1-b, and rack1-c is empty."""
    with running_service(FLEET + HOSTS) as running:
        yield running


def evacuation(*hosts: str, **more: object) -> dict[str, object]:
    return {"type": "Freeze", "targets": {"hosts": list(hosts)}, "host_mode": "evacuate", **more}


def move(service: RunningService, *, to: str) -> None:
    """Report that all machines of the open event orders are on this host now."""
    service.service.ticker.advance(1)
    for order in service.get("/v1/orders?state=open")["items"]:
        if not order["host"]:
            service.post(f"/v1/orders/{order['id']}/start")
            service.post(f"/v1/orders/{order['id']}/finish", {"new_hosts": dict.fromkeys(order["machines"], to)})
    service.service.ticker.advance(1)


def hosts_of(service: RunningService, maintenance: dict[str, Any]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = service.get(f"/v1/maintenances/{maintenance['id']}")["hosts"]
    return shown


def test_a_plan_shows_hosts_machines_and_targets(service: RunningService) -> None:
    """The hosts in their turn, with the machines that are on them now and where each may go; nothing is saved."""
    service.post("/v1/hosts/rack1-b/cordon")
    plan = service.post("/v1/maintenances?dry_run=true", evacuation("rack1-a", "rack1-b"))
    first, second = plan["hosts"]
    assert (first["host"], first["order_id"], first["state"]) == ("rack1-a", None, "planned")
    assert first["machines"] == ["blog/db", "shop/web-0"]
    assert first["targets"] == {"blog/db": ["rack1-c"], "shop/web-0": ["rack1-c"]}
    assert second["targets"] == {"shop/web-1": ["rack1-c", "rack1-a"]}
    assert (plan["host_mode"], plan["return_machines"], plan["estimated_end"]) == ("evacuate", False, None)
    named = service.post("/v1/maintenances?dry_run=true", evacuation("rack1-a", to_host="rack1-b"))
    assert named["hosts"][0]["targets"] == {"blog/db": [], "shop/web-0": []}
    assert [each["message"] for each in named["warnings"] if each["code"] == "no-target"] == [
        "blog/db, shop/web-0 on host rack1-a cannot go to rack1-b: host rack1-b is cordoned"
    ]
    service.post("/v1/hosts/rack1-c/cordon")
    returning = service.post("/v1/maintenances?dry_run=true", evacuation("rack1-b", "rack1-b", return_machines=True))
    assert [each["message"] for each in returning["warnings"] if each["code"] == "no-return"] == [
        "host rack1-b is cordoned already, and this maintenance does not uncordon it: its machines cannot come back"
        " until an operator does"
    ]
    assert (returning["targets"]["count"], returning["targets"]["hosts"]) == (1, ["rack1-b"])
    nowhere = service.post("/v1/maintenances?dry_run=true", evacuation("rack1-a"))
    assert [each["message"] for each in nowhere["warnings"] if each["code"] == "no-target"] == [
        "blog/db, shop/web-0 on host rack1-a cannot go to any host: every other host is cordoned or in maintenance"
    ]
    assert service.get("/v1/maintenances")["items"] == []


def test_maintenances_that_work_on_hosts_can_be_listed_alone(service: RunningService) -> None:
    """With `on_hosts`, also in a search; an owner finds those of the owner's scopes, and learns nothing of their hosts."""
    made = service.post("/v1/maintenances", evacuation("rack1-a"), 201)
    service.post("/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["shop/web-1"]}}, 201)
    for query in ("on_hosts=true", "on_hosts=true&q=freeze", f"on_hosts=true&status={made['status']}"):
        assert [row["id"] for row in service.get(f"/v1/maintenances?{query}")["items"]] == [made["id"]]
    assert len(service.get("/v1/maintenances")["items"]) == 2
    owner = service.token_of("owner", "blog")
    (row,) = service.get("/v1/maintenances?on_hosts=true", token=owner)["items"]
    assert (row["id"], row["host_progress"], row["failed_hosts"]) == (made["id"], None, 0)


def test_hosts_are_chosen_by_pattern_and_label(service: RunningService) -> None:
    """Also empty hosts that the fleet lists; the maintenance shows their machines while its targets keep the pattern."""
    targets = {"hosts": ["rack1-[bc]"], "host_labels": "!gpu"}
    body = {"type": "Freeze", "targets": targets, "host_mode": "evacuate", "to_host": "rack1-a"}
    made = service.post("/v1/maintenances", body, 201)
    assert [host["host"] for host in made["hosts"]] == ["rack1-b", "rack1-c"]
    shown = service.get(f"/v1/maintenances/{made['id']}")
    assert shown["targets"] == {"count": 1, **targets}
    assert [host["machines"] for host in shown["hosts"]] == [["shop/web-1"], []]
    refused = service.request("POST", "/v1/maintenances", {**body, "targets": {"hosts": ["rack1-*"]}})
    assert (refused.status, "machines cannot go to rack1-a: it is one of the hosts to evacuate" in refused.message) == (
        400,
        True,
    )
    for wrong in ({"hosts": ["rack9-*"]}, {"host_labels": "gpu"}):
        assert service.request("POST", "/v1/maintenances", {**body, "targets": wrong}).status == 404


def test_an_impossible_plan_is_refused(service: RunningService) -> None:
    """The sentence names the machines to move first; a wrong combination of fields is refused too."""
    service.request("PUT", "/v1/scopes/shop/machines/web-1", {"host": "rack1-a", "update_domain": 1})
    body = evacuation("rack1-a") | {"type": "Reboot", "host_mode": "in-place"}
    for query in ("?dry_run=true", ""):
        refused = service.request("POST", f"/v1/maintenances{query}", body)
        assert refused.status == 409
        assert "carries several update domains of shop" in refused.message
    for unknown in (evacuation("nowhere"), evacuation("rack1-a", to_host="nowhere")):
        refused = service.request("POST", "/v1/maintenances", unknown)
        assert refused.status == 404
        assert "there is no host 'nowhere'" in refused.message
    wrong = service.request("POST", "/v1/maintenances", evacuation("rack1-a") | {"type": "Terminate"})
    assert (wrong.status, "needs type" in wrong.message) == (400, True)


def test_hosts_are_evacuated_one_after_another(service: RunningService) -> None:
    """Each host has an order of its own, which can be taken when the host is empty; an owner sees nothing of it."""
    made = service.post("/v1/maintenances", evacuation("rack1-a", "rack1-b"), 201)
    events = f"/v1/events?maintenance={made['id']}"
    assert len(service.get(events)["items"]) == 2
    assert [(host["host"], host["state"]) for host in made["hosts"]] == [("rack1-a", "planned"), ("rack1-b", "planned")]
    first, second = hosts_of(service, made)
    assert [reason["code"] for reason in first["waiting_for"]] == ["host-not-empty"]
    assert [reason["code"] for reason in second["waiting_for"]] == ["earlier-host"]
    assert service.get("/v1/hosts/rack1-a")["cordoned_by"] == made["id"]
    move(service, to="rack1-c")
    (order,) = service.get("/v1/orders?state=open")["items"]
    assert (order["host"], order["hosts"], order["machines"], order["scope"]) == ("rack1-a", ["rack1-a"], [], "")
    assert service.get("/v1/hosts/rack1-a")["state"] == "in-maintenance"
    assert service.post(f"/v1/orders/{order['id']}/start")["state"] == "running"
    assert service.post(f"/v1/orders/{order['id']}/finish")["state"] == "done"
    owner = service.token_of("owner", "shop")
    assert service.get(f"/v1/maintenances/{made['id']}", token=owner)["hosts"] == []
    assert service.request("GET", f"/v1/orders/{order['id']}", token=owner).status == 404
    service.service.ticker.advance(1)
    assert service.get("/v1/hosts/rack1-a")["state"] == "up"
    assert [host["state"] for host in hosts_of(service, made)] == ["done", "planned"]
    assert hosts_of(service, made)[0]["machines"] == []
    assert [event["resources"] for event in service.get(events)["items"]] == [["web-1"], ["web-0"], ["db"]]
    move(service, to="rack1-a")
    (last,) = service.get(f"/v1/orders?state=open&maintenance={made['id']}")["items"]
    service.post(f"/v1/orders/{last['id']}/start")
    service.post(f"/v1/orders/{last['id']}/finish")
    service.service.ticker.advance(1)
    ended = service.get(f"/v1/maintenances/{made['id']}")
    assert (ended["status"], [host["state"] for host in ended["hosts"]]) == ("Completed", ["done", "done"])


def test_a_failed_host_is_retried_or_abandoned(service: RunningService) -> None:
    """A failure holds the maintenance, is listed and counted, and is resolved by its order; the host stays cordoned."""
    made = service.post("/v1/maintenances", evacuation("rack1-a", "rack1-b"), 201)
    move(service, to="rack1-c")
    (order,) = service.get("/v1/orders?state=open")["items"]
    service.post(f"/v1/orders/{order['id']}/start")
    service.post(f"/v1/orders/{order['id']}/fail", {"reason": "no boot"})
    service.service.ticker.advance(1)
    (listed,) = service.get("/v1/maintenances")["items"]
    assert (listed["held"], service.get("/v1/counts")["failed"]) == (True, 1)
    shown = service.get(f"/v1/maintenances/{made['id']}")
    assert (shown["held"], shown["hosts"][0]["reason"]) == (True, "no boot")
    assert [reason["code"] for reason in shown["needs_operator"]] == ["order-failed"]
    again = service.post(f"/v1/orders/{order['id']}/retry")
    assert (again["state"], again["attempt"]) == ("open", 2)
    service.post(f"/v1/orders/{order['id']}/fail", {"reason": "no boot again"})
    assert service.post(f"/v1/orders/{order['id']}/abandon")["state"] == "abandoned"
    assert service.get("/v1/hosts/rack1-a")["state"] == "cordoned"
    assert service.request("POST", f"/v1/orders/{order['id']}/retry").status == 409
    viewer = service.token_of("viewer")
    assert service.request("POST", f"/v1/orders/{order['id']}/retry", token=viewer).status == 403


def test_one_host_is_skipped(service: RunningService) -> None:
    """Its events that have not started are cancelled, the next host begins, and the maintenance ends as Failed."""
    made = service.post("/v1/maintenances", evacuation("rack1-a", "rack1-c"), 201)
    skipped = service.post(f"/v1/maintenances/{made['id']}/hosts/rack1-c/skip")
    assert [host["state"] for host in skipped["hosts"]] == ["planned", "cancelled"]
    assert service.request("POST", f"/v1/maintenances/{made['id']}/hosts/nowhere/skip").status == 404
    move(service, to="rack1-b")
    (order,) = service.get("/v1/orders?state=open")["items"]
    service.post(f"/v1/orders/{order['id']}/start")
    service.post(f"/v1/orders/{order['id']}/finish")
    service.service.ticker.advance(1)
    assert service.get(f"/v1/maintenances/{made['id']}")["status"] == "Failed"


def test_machines_go_to_the_named_host_and_come_back(service: RunningService) -> None:
    """`to_host` is the only target of the orders; with `return_machines` the way back has the host as its target."""
    body = evacuation("rack1-b", to_host="rack1-c", return_machines=True)
    made = service.post("/v1/maintenances", body, 201)
    service.service.ticker.advance(1)
    (order,) = service.get("/v1/orders?state=open")["items"]
    assert service.get(f"/v1/orders/{order['id']}")["targets"] == {"shop/web-1": ["rack1-c"]}
    move(service, to="rack1-c")
    (host,) = service.get("/v1/orders?state=open")["items"]
    service.post(f"/v1/orders/{host['id']}/start")
    service.post(f"/v1/orders/{host['id']}/finish")
    service.service.ticker.advance(1)
    (back,) = service.get("/v1/orders?state=open")["items"]
    assert service.get(f"/v1/orders/{back['id']}")["targets"] == {"shop/web-1": ["rack1-b"]}
    move(service, to="rack1-b")
    assert service.get(f"/v1/maintenances/{made['id']}")["status"] == "Completed"
