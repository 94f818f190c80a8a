"""Maintenance of hosts through the API alone: schedule it, do the work, skip, retry and abandon."""

from collections.abc import Iterator
from typing import Any

import pytest

from forewarn.core.model import Order
from forewarn.operator.api.views import OUTSIDE_SCOPES
from tests.support.portal_client import PortalClient
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until
from tests.support.webhook_receiver import receiving

FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"

[[machines]]
scope = "shop"
name = "web-0"
host = "kvm-1"

[[machines]]
scope = "shop"
name = "web-1"
update_domain = 1
host = "kvm-2"
"""


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(FLEET, executor="external", node_host="elsewhere") as running:
        yield running


def work_on(service: RunningService, *hosts: str, mode: str = "evacuate", type_: str = "Freeze", **more: object) -> Any:
    request = {"type": type_, "targets": {"hosts": list(hosts)}, "host_mode": mode, **more}
    return service.post("/v1/maintenances", request, 201)


def tick(service: RunningService) -> None:
    service.post("/v1/clock/advance", {"seconds": 1})


def hosts_of(service: RunningService, maintenance_id: str) -> list[tuple[str, str, list[str]]]:
    found = service.get(f"/v1/maintenances/{maintenance_id}")["hosts"]
    return [(each["host"], each["state"], [reason["code"] for reason in each["waiting_for"]]) for each in found]


def test_a_host_is_emptied_and_worked_on(service: RunningService) -> None:
    """The maintenance shows its hosts in their turn; a tool takes and reports the order of a host like any other."""
    made = work_on(service, "kvm-1", "kvm-2", to_host="kvm-3", return_machines=True)
    assert (made["host_mode"], made["to_host"], made["return_machines"]) == ("evacuate", "kvm-3", True)
    tick(service)
    (event,) = service.get("/v1/orders?state=open")["items"]
    assert hosts_of(service, made["id"]) == [
        ("kvm-1", "planned", ["host-not-empty"]),
        ("kvm-2", "planned", ["earlier-host"]),
    ]
    service.post(f"/v1/orders/{event['id']}/finish", {"new_hosts": {"shop/web-0": "kvm-3"}})
    tick(service)
    (order,) = service.get("/v1/orders?state=open&q=kvm-1")["items"]
    assert (order["host"], order["hosts"], order["machines"], order["scope"]) == ("kvm-1", ["kvm-1"], [], "")
    assert order["maintenance_id"] == made["id"]
    untaken = service.request("POST", f"/v1/orders/{order['id']}/finish", {})
    assert (untaken.status, untaken.message.split(":")[0]) == (409, "the order of host kvm-1 is not taken yet")
    taken = service.post(f"/v1/orders/{order['id']}/start")
    assert taken["state"] == "running"
    listed = service.get(f"/v1/orders?maintenance={made['id']}")["items"]
    assert [each["host"] for each in listed] == ["", "kvm-1", "kvm-2"]
    service.post(f"/v1/orders/{order['id']}/fail", {"reason": "no reboot"})
    tick(service)
    held = service.get(f"/v1/maintenances/{made['id']}")
    assert (held["held"], [reason["code"] for reason in held["needs_operator"]]) == (True, ["order-failed"])
    assert service.get("/v1/counts")["failed"] == 1
    assert service.post(f"/v1/orders/{order['id']}/retry")["attempt"] == 2
    service.post(f"/v1/orders/{order['id']}/start")
    service.post(f"/v1/orders/{order['id']}/finish")
    assert service.get(f"/v1/orders/{order['id']}")["state"] == "done"
    assert service.get("/v1/hosts/kvm-1")["cordoned"] is None


def test_a_host_is_skipped_and_abandoned(service: RunningService) -> None:
    """What is skipped or abandoned stays undone, and the maintenance ends as Failed."""
    made = work_on(service, "kvm-1", "kvm-2")
    path = f"/v1/maintenances/{made['id']}"
    skipped = service.post(f"{path}/hosts/kvm-2/skip")
    assert [host["state"] for host in skipped["hosts"]] == ["planned", "cancelled"]
    assert service.request("POST", f"{path}/hosts/kvm-9/skip").status == 404
    tick(service)
    (event,) = service.get("/v1/orders?state=open")["items"]
    assert service.request("POST", f"/v1/orders/{event['id']}/abandon").status == 400
    service.post(f"/v1/orders/{event['id']}/finish", {"new_hosts": {"shop/web-0": "kvm-3"}})
    tick(service)
    (order,) = service.get("/v1/orders?state=open")["items"]
    service.post(f"/v1/orders/{order['id']}/fail", {"reason": "no reboot"})
    service.post(f"/v1/orders/{order['id']}/abandon")
    tick(service)
    assert service.get(path)["status"] == "Failed"
    assert service.get("/v1/hosts/kvm-1")["cordoned"] is not None


def test_owners_do_not_see_hosts(service: RunningService) -> None:
    """An owner sees the events of the own scopes, and neither the hosts nor their orders."""
    made = work_on(service, "kvm-1")
    token = service.token_of("owner", "shop")
    order_id = made["hosts"][0]["order_id"]
    assert service.get(f"/v1/maintenances/{made['id']}", token=token)["hosts"] == []
    assert service.request("GET", f"/v1/orders/{order_id}", token=token).status == 404
    assert service.request("GET", f"/v1/orders/{order_id}").status == 200
    assert order_id not in [order["id"] for order in service.get("/v1/orders", token=token)["items"]]


def test_owners_do_not_learn_what_else_is_on_a_host() -> None:
    """Neither a machine of another scope nor a domain that forewarn does not know: in the API, portal, hooks and calendar."""
    fleet = FLEET + '[[scopes]]\nname = "secret"\nkind = "availability-set"\n'
    with running_service(fleet, executor="external", hook_targets="127.0.0.0/8") as service, receiving() as receiver:
        owner, calendar = service.token_of("owner", "shop"), service.token_of("calendar", "shop")
        hook = {"url": receiver.url, "scope": "shop", "on": ["completed", "finished", "host-work", "started"]}
        receiver.secrets.append(service.post("/v1/hooks", hook, 201, token=owner)["secret"])
        made = work_on(service, "kvm-1")
        tick(service)
        (event,) = service.get("/v1/orders?state=open")["items"]
        service.post(f"/v1/orders/{event['id']}/finish", {"new_hosts": {"shop/web-0": "kvm-3"}})
        assert service.request("PUT", "/v1/scopes/secret/machines/payroll", {"host": "kvm-1"}).status == 201
        tick(service)
        path = f"/v1/maintenances/{made['id']}"
        (reason,) = service.get(path)["needs_operator"]
        assert (reason["code"], reason["machines"]) == ("host-not-empty", ["secret/payroll"])
        (hidden,) = service.get(path, token=owner)["needs_operator"]
        assert (hidden["code"], hidden["message"], "machines" in hidden) == ("host-not-empty", OUTSIDE_SCOPES, False)
        _seen_by_owner(service, made["id"], owner, calendar, "payroll")

        assert service.request("PUT", "/v1/scopes/secret/machines/payroll", {"host": "kvm-2"}).status == 200
        tick(service)
        (order,) = service.get("/v1/orders?state=open")["items"]
        service.control.host_check = Occupied()
        assert service.request("POST", f"/v1/orders/{order['id']}/start").status == 409
        (reason,) = service.get(path)["needs_operator"]
        assert reason["message"] == "host kvm-1 still runs payroll"
        (hidden,) = service.get(path, token=owner)["needs_operator"]
        assert (hidden["code"], hidden["message"]) == ("host-not-empty", OUTSIDE_SCOPES)
        _seen_by_owner(service, made["id"], owner, calendar, "payroll")
        service.schedule("shop/web-1")
        tick(service)
        until(lambda: [message["type"] for message in receiver.received].count("forewarn.event.started") == 2)
        assert "forewarn.event.completed" in [message["type"] for message in receiver.received]
        assert "payroll" not in str(receiver.received)


class Occupied:
    """A check that finds a domain on every host."""

    def stops_us(self, host: str) -> str:
        return ""

    def unreported_moves(self) -> str:
        return ""

    def obstacle(self, order: Order) -> str:
        return f"host {order.host} still runs payroll"


def _seen_by_owner(service: RunningService, maintenance_id: str, owner: str, calendar: str, hidden: str) -> None:
    """Read all that an owner can read of a maintenance: nothing has the hidden word."""
    calls = ("maintenances", "events", "orders", "audit", "hosts", "machines", "scopes", "waves", "hooks")
    replies = [service.request("GET", f"/v1/{call}", token=owner) for call in calls]
    replies.append(service.request("GET", f"/v1/maintenances/{maintenance_id}", token=owner))
    replies.append(service.request("GET", f"/v1/calendar.ics?token={calendar}", token=""))
    portal = PortalClient(service, owner)
    replies += [portal.get(page) for page in ("/", f"/maintenances/{maintenance_id}", "/orders", "/audit")]
    assert [reply.status for reply in replies] == [200] * len(replies)
    assert not [reply.raw for reply in replies if hidden.encode() in reply.raw]


def test_a_plan_shows_hosts_without_ids_and_a_refusal(service: RunningService) -> None:
    """A dry run changes nothing; a host that cannot be worked on in place is refused with the machines to move."""
    request = {"type": "Freeze", "targets": {"hosts": ["kvm-1"]}, "host_mode": "evacuate"}
    plan = service.post("/v1/maintenances?dry_run=true", request)
    assert [(host["host"], host["order_id"]) for host in plan["hosts"]] == [("kvm-1", None)]
    body = {"update_domain": 1, "host": "kvm-1"}
    assert service.request("PUT", "/v1/scopes/shop/machines/web-1", body).status == 200
    request |= {"type": "Reboot", "host_mode": "in-place"}
    refused = service.request("POST", "/v1/maintenances?dry_run=true", request)
    assert refused.status == 409
    assert "several update domains of shop" in refused.message


def test_a_maintenance_without_events_can_be_read(service: RunningService) -> None:
    """A host without machines has an order and no event."""
    service.post("/v1/hosts/kvm-1/cordon")
    assert service.request("DELETE", "/v1/scopes/shop/machines/web-0").status == 204
    made = work_on(service, "kvm-1")
    assert made["waves"] == []
    assert hosts_of(service, made["id"]) == [("kvm-1", "open", ["executor"])]
    order_id = made["hosts"][0]["order_id"]
    service.post(f"/v1/orders/{order_id}/start")
    service.post(f"/v1/orders/{order_id}/finish")
    tick(service)
    assert service.get(f"/v1/maintenances/{made['id']}")["status"] == "Completed"


def test_a_host_is_rescheduled(service: RunningService) -> None:
    """It becomes the last host, and has its turn at the requested time or later; its event cannot be moved alone."""
    made = work_on(service, "kvm-1", "kvm-2", not_before="2039-01-01T00:00:00Z")
    event = service.get(f"/v1/maintenances/{made['id']}")["waves"][0]["events"][0]
    later = {"not_before": "2040-01-01T00:00:00Z"}
    refused = service.request("POST", f"/v1/events/{event['id']}/reschedule", later)
    assert (refused.status, refused.json["error"]["code"]) == (409, "refused")
    moved = service.post(f"/v1/maintenances/{made['id']}/hosts/kvm-1/reschedule", later)
    assert [host["host"] for host in moved["hosts"]] == ["kvm-2", "kvm-1"]
    assert (moved["hosts"][1]["requested_not_before"], moved["hosts"][1]["reschedules"]) == (later["not_before"], 1)
    cancelled = service.get(f"/v1/events/{event['id']}")
    assert (cancelled["status"], cancelled["replaced_by"]) == ("Cancelled", "")
    owner = service.token_of("owner", "shop")
    path = f"/v1/maintenances/{made['id']}/hosts/kvm-2/reschedule"
    assert service.request("POST", path, later, token=owner).status == 403
