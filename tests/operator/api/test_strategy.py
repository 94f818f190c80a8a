"""The strategy of a maintenance through the API: the request, what is shown, and `continue`."""

from collections.abc import Iterator

import pytest

from tests.support.running_service import FLEET, RunningService, running_service

RACKS = """
[[hosts]]
name = "rack1-a"
labels = {rack = "r2"}
[[hosts]]
name = "rack1-b"
labels = {rack = "r1"}
"""
STRATEGY = {
    "group_by": "label:rack",
    "max_parallel": 1,
    "canary": 1,
    "bake_s": 600,
    "max_failures": "2",
    "pause_after": 1,
    "windows": [],
}
REQUEST = {
    "type": "Reboot",
    "targets": {"scopes": ["shop", "blog"]},
    "on_failure": "continue",
    "duration_s": 60,
    "strategy": STRATEGY,
}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(FLEET + RACKS) as running:
        yield running


def test_a_strategy_is_planned_kept_and_shown(service: RunningService) -> None:
    """The plan, the response, the maintenance and the list have it. Machines inherit the label of their host."""
    service.enable("shop", "blog")
    plan = service.post("/v1/maintenances?dry_run=true", REQUEST)
    made = service.post("/v1/maintenances", REQUEST, 201)
    shown, (row,) = service.get(f"/v1/maintenances/{made['id']}"), service.get("/v1/maintenances")["items"]
    for body in (plan, made, shown, row):
        assert body["strategy"] == STRATEGY
        # Two waves: notice and work of each, and the bake time between them.
        assert body["estimated_end"] == "2030-01-01T00:42:00Z"
    for body in (plan, made, shown):
        waves = [[(event["group"], event["scope"]) for event in wave["events"]] for wave in body["waves"]]
        assert waves == [[("r1", "shop")], [("r2", "blog"), ("r2", "shop")]]
    owners = service.get(f"/v1/maintenances/{made['id']}", token=service.token_of("owner", "shop"))
    assert [event["group"] for wave in owners["waves"] for event in wave["events"]] == ["", ""]


def test_a_plan_has_a_calendar(service: RunningService) -> None:
    """Every wave with its machines, hosts and bounds of its start; what is scheduled has none. Hosts have their turns."""
    service.enable("shop", "blog")
    calendar = service.post("/v1/maintenances?dry_run=true", REQUEST)["calendar"]
    first, second = calendar.pop("waves")
    assert calendar == {
        "work_s": 60,
        "hosts": [],
        "earliest_end": "2030-01-01T00:10:00Z",
        "latest_end": "2030-01-01T00:42:00Z",
    }
    assert first == {
        "wave": 1,
        "groups": ["r1"],
        "events": 1,
        "machines": 1,
        "hosts": ["rack1-b"],
        "earliest": "2030-01-01T00:00:00Z",
        "latest": "2030-01-01T00:15:00Z",
        "may_wait_for": ["approval", "notice"],
        "returns": False,
    }
    assert (second["earliest"], second["latest"]) == ("2030-01-01T00:10:00Z", "2030-01-01T00:41:00Z")
    assert second["may_wait_for"] == ["approval", "bake", "continue", "notice"]
    assert service.post("/v1/maintenances", REQUEST, 201)["calendar"] is None
    evacuation = {"type": "Freeze", "targets": {"hosts": ["rack1-a", "rack1-b"]}, "host_mode": "evacuate"}
    of_hosts = service.post("/v1/maintenances?dry_run=true", evacuation)
    assert of_hosts["estimated_end"] is None
    assert [host["host"] for host in of_hosts["calendar"]["hosts"]] == ["rack1-a", "rack1-b"]
    assert of_hosts["calendar"]["waves"][0]["hosts"] == ["rack1-a"]


def test_an_operator_lets_it_continue(service: RunningService) -> None:
    """Before the wave has ended, and for another role, the call is refused."""
    made = service.post("/v1/maintenances", REQUEST, 201)
    path, first = f"/v1/maintenances/{made['id']}", made["waves"][0]["events"][0]["id"]
    refused = service.request("POST", f"{path}/continue")
    assert (refused.status, "wave 1 has not ended" in refused.message) == (409, True)
    service.post(f"/v1/orders/{first}/finish")
    service.post("/v1/clock/advance", {"seconds": 1})
    for body in (service.get(path), service.get("/v1/maintenances")["items"][0]):
        assert (body["status"], body["paused"], body["held"], body["awaits_continue"]) == ("Paused", False, False, True)
    assert [reason["code"] for reason in service.get(path)["needs_operator"]] == ["continue"]
    assert service.get(path)["estimated_end"] is None
    assert service.request("POST", f"{path}/continue", token=service.token_of("viewer")).status == 403
    continued = service.post(f"{path}/continue")
    assert (continued["status"], continued["awaits_continue"]) == ("Running", False)
    (waiting,) = continued["waves"][1]["events"][0]["waiting_for"]
    assert (waiting["code"], waiting["until"]) == ("bake", "2030-01-01T00:10:00Z")


def test_a_maintenance_is_held_at_the_limit_of_failures(service: RunningService) -> None:
    """With on_failure continue, `held` counts the failures against the limit, also in a list."""
    strategy = {"group_by": "host", "max_parallel": 2, "max_failures": "2"}
    made = service.post("/v1/maintenances", {**REQUEST, "strategy": strategy}, 201)
    events = [event["id"] for event in made["waves"][0]["events"]]
    assert len(events) == 2
    path = f"/v1/maintenances/{made['id']}"
    for event_id, held in zip(events, (False, True), strict=True):
        service.post(f"/v1/orders/{event_id}/fail", {"reason": "no power"})
        service.post("/v1/clock/advance", {"seconds": 1})
        assert (service.get(path)["held"], service.get("/v1/maintenances")["items"][0]["held"]) == (held, held)
    assert service.get(path)["status"] == "Paused"
    (waiting,) = service.get(path)["waves"][1]["events"][0]["waiting_for"]
    assert (waiting["code"], waiting["events"]) == ("failures", events)


@pytest.mark.parametrize(
    "wrong, status, complaint",
    [
        ({"strategy": {"group_by": "row"}}, 400, "group_by is 'row'"),
        ({"strategy": {"max_parallel": 2}}, 400, "use max_parallel 1"),
        ({"strategy": {"max_failures": "many"}}, 400, "is not an amount"),
        ({"strategy": {"max_failures": "1"}, "on_failure": "hold"}, 400, "max_failures needs on_failure continue"),
        ({"strategy": {"bake_s": -1}}, 422, "bake_s"),
        ({"strategy": {"speed": 1}}, 422, "speed"),
    ],
)
def test_a_wrong_strategy_is_refused(
    service: RunningService, wrong: dict[str, object], status: int, complaint: str
) -> None:
    """The message names the field."""
    refused = service.request("POST", "/v1/maintenances", {**REQUEST, **wrong})
    assert (refused.status, complaint in refused.message) == (status, True), refused.message
