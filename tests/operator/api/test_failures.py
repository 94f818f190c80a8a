"""What failed and how it is resolved, through the API alone."""

import logging
from collections.abc import Iterator

import pytest

from forewarn.core.model import Actor
from forewarn.core.needs_operator import needs_operator
from forewarn.core.order_verbs import Unknown
from forewarn.operator.api.views import EventBodies
from forewarn.store import Focus
from tests.support import forty_hosts
from tests.support.running_service import RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def started(service: RunningService, *machines: str) -> tuple[str, list[str]]:
    """Schedule a reboot without notice; return the maintenance's id and the ids of its events."""
    made = service.schedule(*machines)
    service.post("/v1/clock/advance", {"seconds": 1})
    return str(made["id"]), [event["id"] for wave in made["waves"] for event in wave["events"]]


def fail(service: RunningService, event_id: str) -> None:
    service.post(f"/v1/orders/{event_id}/fail", {"reason": "no power"})
    service.post("/v1/clock/advance", {"seconds": 1})


def test_forty_hosts_through_the_api_alone() -> None:
    """Three orders of the second wave fail and hold the rest; the operator finds them, retries all, and it completes."""
    with forty_hosts.running() as service:
        request = {"type": "Reboot", "targets": {"hosts": forty_hosts.HOSTS}}
        path = f"/v1/maintenances/{service.post('/v1/maintenances', request, 201)['id']}"
        service.post("/v1/clock/advance", {"seconds": 4 * forty_hosts.WORK_S})
        held = service.get(path)
        assert (held["status"], held["paused"], held["held"], held["progress"]["failed"]) == ("Paused", False, True, 3)
        assert held["event_counts"] == {"Completed": 17, "Started": 3, "Planned": 20}
        assert {reason["code"] for reason in held["needs_operator"]} == {"order-failed"}
        found = service.get("/v1/orders?state=failed")["items"]
        assert sorted(order["machines"][0] for order in found) == sorted(forty_hosts.FAILING)
        assert {order["reason"] for order in found} == {"simulated failure of attempt 1"}
        waiting = service.get(f"/v1/events?maintenance={held['id']}&status=Planned&limit=1")["items"][0]["waiting_for"]
        assert waiting[0]["code"] == "unresolved"
        assert "3 orders failed and hold the maintenance" in waiting[0]["message"]
        assert set(waiting[0]["events"]) == {order["id"] for order in found}
        retried = service.post(f"{path}/retry-failed")
        assert (retried["status"], retried["held"], retried["progress"]["failed"]) == ("Running", False, 0)
        service.post("/v1/clock/advance", {"seconds": 4 * forty_hosts.WORK_S})
        done = service.get(path)
        assert (done["status"], done["event_counts"]) == ("Completed", {"Completed": 40})
        attempts = {order["machines"][0]: order["attempt"] for order in service.get("/v1/orders?limit=40")["items"]}
        assert {machine for machine, attempt in attempts.items() if attempt == 2} == set(forty_hosts.FAILING)


def test_only_an_operator_retries_all_and_only_what_failed(service: RunningService) -> None:
    """Without a failed order there is nothing to retry; another role is refused, and an unknown maintenance is not found."""
    maintenance_id, (event_id,) = started(service, "shop/web-0")
    path = f"/v1/maintenances/{maintenance_id}/retry-failed"
    refused = service.request("POST", path)
    assert (refused.status, "there is nothing to retry" in refused.message) == (409, True)
    fail(service, event_id)
    for role, scopes in (("viewer", ()), ("owner", ("shop",))):
        assert service.request("POST", path, token=service.token_of(role, *scopes, name=role)).status == 403
    assert service.get(f"/v1/orders/{event_id}")["state"] == "failed"
    assert service.post(path)["progress"]["failed"] == 0
    assert service.request("POST", "/v1/maintenances/none/retry-failed").status == 404


def test_a_maintenance_tells_a_pause_from_a_failure(service: RunningService) -> None:
    """`paused` is an operator's pause, `held` a stop by failures; a list has `paused` too. An owner sees the own scopes."""
    maintenance_id, events = started(service, "shop/web-0", "shop/web-1", "blog/db")
    by_scope = {service.get(f"/v1/events/{each}")["scope"]: each for each in events[:2]}
    path = f"/v1/maintenances/{maintenance_id}"
    assert service.post(f"{path}/pause")["paused"]
    shown = service.get(path)
    assert (shown["status"], shown["held"], shown["needs_operator"]) == ("Paused", False, [])
    assert service.get("/v1/maintenances")["items"][0]["paused"]
    service.post(f"{path}/resume")
    service.post(f"/v1/orders/{by_scope['blog']}/start")
    service.control.report_order(by_scope["blog"], Unknown("its node is gone"), Actor("ticker"))
    fail(service, by_scope["shop"])
    shown = service.get(path)
    assert (shown["paused"], shown["held"]) == (False, True)
    assert sorted(reason["code"] for reason in shown["needs_operator"]) == ["in-doubt", "order-failed"]
    (row,) = service.get("/v1/maintenances")["items"]
    assert (row["paused"], row["held"]) == (False, True)
    token = service.token_of("owner", "blog")
    owners = service.get(path, token=token)
    for shown in (owners, *service.get("/v1/maintenances", token=token)["items"]):
        assert (shown["held"], shown["progress"]["failed"], shown["progress"]["in_doubt"]) == (True, 0, 1)
    assert sorted(reason["message"] for reason in owners["needs_operator"])[0] == (
        "it waits for something outside your scopes"
    )
    now = service.clock.now()
    snapshot = service.service.store.snapshot(Focus(maintenances=(maintenance_id,)))
    for scope, code in (("shop", "order-failed"), ("blog", "in-doubt")):
        builder = EventBodies(snapshot, [], within=(scope,), now=now)
        (reason,) = builder.reasons(needs_operator(snapshot, maintenance_id, now), 1)
        assert (reason.code, reason.events) == (code, [by_scope[scope]]), "the owner's own reasons come first"


def test_a_failure_of_another_maintenance_is_named_and_hidden_from_strangers(service: RunningService) -> None:
    """The event that waits for the update domain names the failed event, also in a plan."""
    _, (failed,) = started(service, "shop/web-0")
    request = {"type": "Reboot", "targets": {"machines": ["shop/web-1"]}, "duration_s": 60}
    assert service.post("/v1/maintenances?dry_run=true", request, 200)["estimated_end"] is not None
    fail(service, failed)
    plan = service.post("/v1/maintenances?dry_run=true", request, 200)
    assert plan["estimated_end"] is None  # an operator must act, and nobody knows when
    assert [reason["code"] for reason in plan["waves"][0]["events"][0]["waiting_for"]] == ["unresolved"]
    assert plan["needs_operator"] == []
    other, (event_id,) = started(service, "shop/web-1")
    (reason,) = service.get(f"/v1/events/{event_id}")["waiting_for"]
    assert (reason["code"], reason["events"]) == ("unresolved", [failed])
    assert reason["message"].endswith("and its order failed (no power)")
    assert service.get(f"/v1/maintenances/{other}")["needs_operator"] == [reason]


@pytest.mark.parametrize("of_maintenance", [False, True])
def test_the_failed_orders_are_those_that_can_be_resolved(service: RunningService, of_maintenance: bool) -> None:
    """The order of an abandoned event stays failed, but only a list without a state shows it."""
    maintenance_id, (event_id,) = started(service, "shop/web-0")
    fail(service, event_id)
    which = f"&maintenance={maintenance_id}" if of_maintenance else ""
    assert [order["id"] for order in service.get(f"/v1/orders?state=failed{which}")["items"]] == [event_id]
    service.post(f"/v1/events/{event_id}/abandon")
    assert service.get(f"/v1/orders?state=failed&state=in-doubt{which}")["items"] == []
    (order,) = service.get(f"/v1/orders?{which}")["items"]
    assert (order["id"], order["state"]) == (event_id, "failed")


def test_a_failure_is_logged_as_an_error(service: RunningService, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the event, its scope, machines and reason, as text and as fields; so has a time-out and a doubt."""
    caplog.set_level(logging.ERROR, "forewarn")
    _, (reported,) = started(service, "shop/web-0")
    fail(service, reported)
    _, (doubtful,) = started(service, "blog/db")
    service.post(f"/v1/orders/{doubtful}/start")
    service.control.report_order(doubtful, Unknown("its node is gone"), Actor("ticker"))
    service.post(f"/v1/events/{reported}/retry")
    service.post("/v1/clock/advance", {"seconds": 86_400})
    failed, doubt, late = caplog.records
    assert failed.getMessage() == f"the order of event {reported} failed: Reboot of web-0 in shop: no power"
    assert vars(failed)["fields"] == {"event": reported, "scope": "shop", "machines": ["web-0"], "reason": "no power"}
    assert doubt.getMessage() == f"the order of event {doubtful} is in doubt: Reboot of db in blog: its node is gone"
    assert f"the order of event {reported} failed: Reboot of web-0 in shop: timed out" in late.getMessage()


def test_a_caller_can_ask_who_it_is(service: RunningService) -> None:
    """The name and role of the token, and the scopes of an owner."""
    assert service.get("/v1/caller") == {"name": "operator", "role": "operator", "scopes": None}
    token = service.token_of("owner", "shop", "blog", name="ann")
    assert service.get("/v1/caller", token=token) == {"name": "ann", "role": "owner", "scopes": ["blog", "shop"]}
