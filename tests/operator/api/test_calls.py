"""Every call of the API does what the table says, on a real service."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from forewarn.core.change import Change
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, ClockHold
from forewarn.core.order_verbs import Unknown
from forewarn.store import MAX_SEARCHED, SEARCHED_AT_ONCE
from tests.support.records import at, change, ended, entry, maintenance
from tests.support.running_service import FLEET, START, RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


# -- scopes and machines


def test_scopes_are_listed_by_name(service: RunningService) -> None:
    """With their settings and the state of their documents."""
    service.enable("shop")
    assert [scope["name"] for scope in service.get("/v1/scopes")["items"]] == ["blog", "shop"]
    assert service.get("/v1/scopes/shop") == {
        "name": "shop", "kind": "availability-set", "approval": "any", "approve_user_events": False,
        "max_user_operations": 0, "terminate_notice_s": 300, "minimum_notice_s": {}, "max_unavailable": "",
        "windows": [], "approval_opens_window": False, "enabled": True, "epoch": 1, "incarnation": 1,
    }  # fmt: skip
    assert service.request("GET", "/v1/scopes/none").status == 404


def test_a_scope_is_created_changed_and_removed(service: RunningService) -> None:
    """201, 200 and 204; a scope with machines cannot be removed."""
    wanted = {"kind": "placement-group", "approval": "all", "minimum_notice_s": {"Reboot": 1800}}
    made = service.request("PUT", "/v1/scopes/new", wanted)
    assert (made.status, made.json["minimum_notice_s"]) == (201, {"Reboot": 1800})
    changed = service.request("PUT", "/v1/scopes/new", {"kind": "placement-group"})
    assert (changed.status, changed.json["approval"]) == (200, "any")
    assert service.request("DELETE", "/v1/scopes/new").status == 204
    assert service.request("DELETE", "/v1/scopes/new").status == 404
    refused = service.request("DELETE", "/v1/scopes/shop")
    assert (refused.status, "remove them first" in refused.message) == (409, True)


def test_machines_are_listed_added_moved_and_removed(service: RunningService) -> None:
    """By name, by scope and by host."""
    assert [f"{m['scope']}/{m['name']}" for m in service.get("/v1/machines")["items"]] == [
        "blog/db",
        "shop/web-0",
        "shop/web-1",
    ]
    assert [m["name"] for m in service.get("/v1/machines?scope=shop")["items"]] == ["web-0", "web-1"]
    assert [m["name"] for m in service.get("/v1/machines?host=rack1-a")["items"]] == ["db", "web-0"]
    body = {"host": "rack2-a", "addresses": ["127.0.0.12"], "labels": {"env": "prod"}}
    added = service.request("PUT", "/v1/scopes/shop/machines/web-2", body)
    assert (added.status, added.json["last_seen"], added.json["labels"]) == (201, None, {"env": "prod"})
    assert service.get("/v1/fleet")["machines"][-1]["labels"] == {"env": "prod"}
    wrong = service.request("PUT", "/v1/scopes/shop/machines/web-2", {"labels": {"a b": "c"}})
    assert (wrong.status, "labels" in wrong.message) == (422, True)
    moved = service.request("PUT", "/v1/scopes/shop/machines/web-2", {"host": "rack2-b"})
    assert (moved.status, moved.json["host"], moved.json["addresses"], moved.json["labels"]) == (200, "rack2-b", [], {})
    assert service.request("DELETE", "/v1/scopes/shop/machines/web-2").status == 204
    assert service.request("GET", "/v1/scopes/shop/machines/web-2").status == 404
    assert service.request("PUT", "/v1/scopes/none/machines/x", {}).status == 404


def test_an_address_belongs_to_one_machine(service: RunningService) -> None:
    """The refusal names the machine that has it, and nothing changes."""
    refused = service.request("PUT", "/v1/scopes/blog/machines/db", {"addresses": ["127.0.0.10"]})
    assert refused.status == 400
    assert "shop/web-0" in refused.message
    assert service.get("/v1/scopes/blog/machines/db")["addresses"] == ["127.0.0.20"]


def test_a_machine_with_an_open_event_is_neither_removed_nor_moved(service: RunningService) -> None:
    """The refusal names the event."""
    event = service.schedule("shop/web-0", not_before="2030-01-01T05:00:00Z")["waves"][0]["events"][0]
    for reply in (
        service.request("DELETE", "/v1/scopes/shop/machines/web-0"),
        service.request("PUT", "/v1/scopes/shop/machines/web-0", {"update_domain": 3}),
    ):
        assert (reply.status, reply.code) == (409, "machine_busy")
        assert event["id"] in reply.message


def test_a_poll_is_shown_as_last_seen(service: RunningService) -> None:
    """Of its machine, in the list and alone."""
    service.guests.endpoint.seen_callers.clear()
    caller = service.guests.documents.callers.named("shop", "web-0")
    view = service.guests.documents.views["shop"]
    assert caller is not None
    service.guests.endpoint.record_seen(caller, view)
    service.guests.parts.last_seen.write(service.guests.endpoint.take_seen())
    assert service.get("/v1/scopes/shop/machines/web-0")["last_seen"] == "2030-01-01T00:00:00Z"
    assert service.get("/v1/machines?scope=shop")["items"][0]["last_seen"] == "2030-01-01T00:00:00Z"


def test_a_user_restarts_and_redeploys(service: RunningService) -> None:
    """202 with the event; 409 over the scope's limit, and for a second open operation of the same machine and type."""
    service.enable("shop", "blog")
    event = service.post("/v1/scopes/blog/machines/db/restart", status=202)
    assert (event["type"], event["source"], event["resources"], event["status"]) == (
        "Reboot",
        "User",
        ["db"],
        "Scheduled",
    )
    refused = service.request("POST", "/v1/scopes/blog/machines/db/redeploy")
    assert (refused.status, refused.code) == (409, "too_many_user_operations")
    first = service.post("/v1/scopes/shop/machines/web-0/redeploy", status=202)
    assert first["type"] == "Redeploy"
    second = service.request("POST", "/v1/scopes/shop/machines/web-0/redeploy")
    assert (second.status, second.code) == (409, "machine_busy")
    assert first["id"] in second.message
    assert service.request("POST", "/v1/scopes/shop/machines/none/restart").status == 404


# -- hosts


KVM = {"name": "kvm-07", "labels": {"rack": "b4"}, "fault_domain": 2, "connection": "qemu+ssh://kvm-07/system"}


def test_hosts_are_listed_with_what_the_fleet_says(service: RunningService) -> None:
    """Also a host without machines; an owner sees the name of the hosts of their machines and nothing else of them."""
    assert service.post("/v1/fleet", {**service.get("/v1/fleet"), "hosts": [KVM]})["lines"] == ["+ host kvm-07"]
    assert service.get("/v1/fleet")["hosts"] == [KVM]
    listed = {
        **KVM,
        "machines": 0,
        "state": "up",
        "listed": True,
        "cordoned": None,
        "cordoned_by": "",
        "cordon_left": False,
    }
    plain = {"labels": {}, "fault_domain": 0, "connection": "", "listed": False}
    racks = [{**listed, **plain, "name": f"rack1-{each}", "machines": n} for each, n in (("a", 2), ("b", 1))]
    assert service.get("/v1/hosts")["items"] == [listed, *racks]
    assert service.get("/v1/hosts/kvm-07") == {**listed, "orders": []}
    assert service.get("/v1/hosts/rack1-b", token=service.token_of("viewer")) == {**racks[1], "orders": []}
    owner = service.token_of("owner", "blog")
    assert service.get("/v1/hosts/rack1-a", token=owner) == {"name": "rack1-a", "machines": 1}
    for hidden in ("rack1-b", "kvm-07"):
        assert service.request("GET", f"/v1/hosts/{hidden}", token=owner).status == 404
    assert service.get("/v1/fleet", token=owner)["hosts"] == []
    assert service.request("GET", "/v1/hosts/nowhere").status == 404


def test_a_host_is_cordoned_until_it_is_uncordoned(service: RunningService) -> None:
    """A repeated request changes nothing; only an operator may; a machine may still be recorded on a cordoned host."""
    newest = service.get("/v1/audit")["items"][0]["id"]
    for _ in range(2):
        cordoned = service.post("/v1/hosts/rack1-a/cordon")
        assert (cordoned["state"], cordoned["cordoned"], cordoned["machines"]) == (
            "cordoned",
            "2030-01-01T00:00:00Z",
            2,
        )
    metrics = service.request("GET", "/metrics").raw.decode().splitlines()
    assert {'forewarn_hosts{state="up"} 0.0', 'forewarn_hosts{state="cordoned"} 1.0'} <= set(metrics)
    moved = service.request("PUT", "/v1/scopes/shop/machines/web-1", {"host": "rack1-a", "update_domain": 1})
    assert moved.status == 200
    for _ in range(2):
        freed = service.post("/v1/hosts/rack1-a/uncordon")
        assert (freed["state"], freed["cordoned"], freed["machines"]) == ("up", None, 3)
    entries = [entry for entry in service.get("/v1/audit")["items"] if entry["id"] > newest]
    assert [(e["action"], e["detail"], e["who"]) for e in reversed(entries) if e["action"].startswith("host")] == [
        ("host cordoned", "rack1-a", entries[0]["who"]),
        ("host uncordoned", "rack1-a", entries[0]["who"]),
    ]
    for role in (("viewer",), ("owner", "shop")):
        assert service.request("POST", "/v1/hosts/rack1-a/cordon", token=service.token_of(*role)).status == 403
    assert service.request("POST", "/v1/hosts/nowhere/cordon").status == 404


def test_an_order_that_moves_machines_names_their_targets(service: RunningService) -> None:
    """Hosts that the fleet lists and that are not cordoned, the emptiest first; an owner sees none."""
    hosts = [{"name": name} for name in ("rack1-a", "rack1-b", "rack1-c", "rack1-d")]
    service.post("/v1/fleet", {**service.get("/v1/fleet"), "hosts": hosts})
    service.post("/v1/hosts/rack1-c/cordon")
    made = service.schedule("shop/web-0", type_="Redeploy")
    service.service.ticker.advance(1)
    order = made["waves"][0]["events"][0]["id"]
    assert service.get(f"/v1/orders/{order}")["targets"] == {"shop/web-0": ["rack1-d", "rack1-b"]}
    assert "targets" not in service.get(f"/v1/orders/{order}", token=service.token_of("owner", "shop"))
    assert service.post(f"/v1/orders/{order}/start")["targets"] == {"shop/web-0": ["rack1-d", "rack1-b"]}
    done = service.post(f"/v1/orders/{order}/finish", {"new_hosts": {"shop/web-0": "rack1-c"}})
    assert "targets" not in done
    assert service.get("/v1/hosts/rack1-c")["machines"] == 1


# -- the fleet


def test_the_fleet_is_applied_from_toml_and_exported(service: RunningService) -> None:
    """A dry run, applying, applying again and pruning; an export changes nothing when it is applied."""
    more = FLEET + '\n[[machines]]\nscope = "shop"\nname = "web-2"\n'
    as_toml = {"Content-Type": "application/toml"}
    dry = service.request("POST", "/v1/fleet?dry_run=true", more, headers=as_toml).json
    assert dry == {
        "lines": ["+ machine shop/web-2"],
        "warnings": [],
        "dry_run": True,
        "removed_scopes": 0,
        "removed_machines": 0,
        "removed_hosts": 0,
        "large_removal": False,
    }
    assert service.request("GET", "/v1/scopes/shop/machines/web-2").status == 404
    assert service.request("POST", "/v1/fleet", more, headers=as_toml).json["lines"] == ["+ machine shop/web-2"]
    assert service.request("POST", "/v1/fleet", more, headers=as_toml).json["lines"] == []
    assert service.request("POST", "/v1/fleet?prune=true", FLEET, headers=as_toml).json["lines"] == [
        "- machine shop/web-2"
    ]
    exported = service.request("GET", "/v1/fleet", headers={"Accept": "application/toml"})
    assert exported.headers["content-type"] == "application/toml"
    assert parse_fleet(exported.raw.decode(), "the export") == parse_fleet(FLEET, "the test")
    assert service.request("POST", "/v1/fleet?prune=true", exported.raw, headers=as_toml).json["lines"] == []


def test_a_dry_run_refuses_what_applying_refuses(service: RunningService) -> None:
    """A machine with an open event can be neither removed nor moved: both requests get the same error."""
    service.enable("shop")
    service.schedule("shop/web-0")
    moved = service.get("/v1/fleet")
    next(m for m in moved["machines"] if m["name"] == "web-0")["update_domain"] = 7
    for query, body in (("prune=true", {"scopes": [], "machines": []}), ("prune=false", moved)):
        dry = service.request("POST", f"/v1/fleet?{query}&dry_run=true", body)
        real = service.request("POST", f"/v1/fleet?{query}", body)
        assert (dry.status, dry.code, dry.message) == (real.status, real.code, real.message)
        assert dry.status == 409
        assert "open event" in dry.message


def test_an_empty_fleet_removes_everything_on_request(service: RunningService) -> None:
    """The API does not ask; its dry run says how much would go."""
    nothing: dict[str, object] = {"scopes": [], "machines": []}
    dry = service.post("/v1/fleet?prune=true&dry_run=true", nothing)
    assert dry["large_removal"]
    assert (dry["removed_scopes"], dry["removed_machines"]) == (2, 3)
    assert service.get("/v1/counts")["machines"] == 3
    assert service.post("/v1/fleet?prune=true", nothing)["large_removal"]
    assert service.get("/v1/counts")["machines"] == 0


def test_an_exported_fleet_can_be_applied_as_json(service: RunningService) -> None:
    """An edited export changes what was edited."""
    exported = service.get("/v1/fleet")
    exported["machines"][0]["host"] = "rack9-z"
    assert service.post("/v1/fleet", exported)["lines"] == ["~ machine blog/db: host rack1-a -> rack9-z"]


def test_a_bad_fleet_changes_nothing(service: RunningService) -> None:
    """The refusal names the field; a fleet without its scopes is refused too."""
    bad = FLEET.replace('kind = "availability-set"', 'kind = "sometimes"', 1)
    refused = service.request("POST", "/v1/fleet", bad, headers={"Content-Type": "application/toml"})
    assert (refused.status, refused.code) == (400, "invalid_fleet")
    assert "scopes[0]" in refused.message
    assert service.request("POST", "/v1/fleet?prune=true", {}).status == 422
    twice = {"scopes": [], "machines": [{"scope": "shop", "name": "x"}]}
    assert service.request("POST", "/v1/fleet", twice).status == 400


# -- maintenances


def test_warnings_are_in_the_plan_and_in_the_result(service: RunningService) -> None:
    """The API warns and never refuses: no notice, a time that has passed, and a machine with an open event."""
    restart = "/v1/scopes/blog/machines/db/restart"
    assert not service.get("/v1/scopes/blog")["enabled"]
    planned = service.post(restart + "?dry_run=true")
    made = service.post(restart, status=202)
    assert [w["code"] for w in planned["warnings"]] == ["no-notice"]
    assert made["warnings"] == planned["warnings"]
    assert made["status"] == "Started"
    body = {"type": "Freeze", "targets": {"machines": ["blog/db"]}, "not_before": "2001-01-01T00:00:00Z"}
    planned = service.post("/v1/maintenances?dry_run=true", body)
    made = service.post("/v1/maintenances", body, 201)
    assert [w["code"] for w in planned["warnings"]] == ["no-notice", "past-not-before", "already-open"]
    assert made["warnings"] == planned["warnings"]
    assert "warnings" not in service.get(f"/v1/maintenances/{made['id']}")


def test_the_plan_shown_is_the_plan_that_happens(service: RunningService) -> None:
    """A dry run saves nothing, has no ids and no times, and is otherwise equal to the real response."""
    service.enable("shop", "blog")
    body = {"type": "Reboot", "targets": {"hosts": ["rack1-a", "rack1-b"]}, "description": "new kernel"}
    dry = service.post("/v1/maintenances?dry_run=true", body)
    assert service.get("/v1/maintenances")["items"] == []
    real = service.post("/v1/maintenances", body, 201)
    gone = {"id", "maintenance_id", "published", "not_before", "started", "status", "waiting_for", "timeline"}

    def bare(shown: dict[str, object]) -> list[object]:
        return [
            [{key: value for key, value in event.items() if key not in gone} for event in wave["events"]]
            for wave in shown["waves"]  # type: ignore[attr-defined]
        ]

    assert bare(dry) == bare(real)
    assert dry["id"] is None
    assert {event["id"] for wave in dry["waves"] for event in wave["events"]} == {None}
    assert [len(wave["events"]) for wave in real["waves"]] == [2, 1]
    assert [event["notice_s"] for wave in dry["waves"] for event in wave["events"]] == [900, 900, 900]


def test_a_machine_name_alone_is_enough_if_only_one_machine_has_it(service: RunningService) -> None:
    """If several machines have it, the refusal names them."""
    assert service.schedule("db")["waves"][0]["events"][0]["scope"] == "blog"
    service.request("PUT", "/v1/scopes/shop/machines/db", {})
    refused = service.request("POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["db"]}})
    assert (refused.status, "blog/db or shop/db" in refused.message) == (400, True)
    assert service.request("POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["x"]}}).status == 404


def test_a_maintenance_is_paused_resumed_and_cancelled(service: RunningService) -> None:
    """Each response is the maintenance; a maintenance that has ended stays ended."""
    service.enable("shop")
    made = service.schedule("shop/web-0", "shop/web-1")
    path = f"/v1/maintenances/{made['id']}"
    assert service.post(f"{path}/pause")["status"] == "Paused"
    assert service.get(path)["waves"][0]["events"][0]["waiting_for"][0]["code"] == "paused"
    assert service.post(f"{path}/resume")["status"] == "Planned"
    cancelled = service.post(f"{path}/cancel")
    assert cancelled["status"] == "Cancelled"
    assert {event["status"] for wave in cancelled["waves"] for event in wave["events"]} == {"Cancelled"}
    assert service.request("POST", f"{path}/pause").status == 409
    assert [row["status"] for row in service.get("/v1/maintenances")["items"]] == ["Cancelled"]
    assert service.get("/v1/maintenances?status=Running")["items"] == []
    assert service.request("POST", "/v1/maintenances/none/pause").status == 404


def test_a_maintenance_keeps_its_targets_and_shows_its_progress(service: RunningService) -> None:
    """The same in the plan, the response, the list and the maintenance, with the end that time alone leads to."""
    service.enable("shop")
    requested = {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}, "duration_s": 300}
    plan = service.post("/v1/maintenances?dry_run=true", requested)
    made = service.post("/v1/maintenances", requested, 201)
    shown, (row,) = service.get(f"/v1/maintenances/{made['id']}"), service.get("/v1/maintenances")["items"]
    for body in (plan, made, shown, row):
        assert body["targets"] == {"count": 1, "hosts": ["rack1-a"]}
        assert body["progress"] == {"done": 0, "running": 0, "failed": 0, "in_doubt": 0, "left": 2, "undone": 0}
        assert body["estimated_end"] == "2030-01-01T00:20:00Z"
    paused = service.post(f"/v1/maintenances/{made['id']}/pause")
    assert (paused["estimated_end"], service.get("/v1/maintenances")["items"][0]["estimated_end"]) == (None, None)
    service.post(f"/v1/maintenances/{made['id']}/resume")
    service.post("/v1/store/hold")
    assert service.get(f"/v1/maintenances/{made['id']}")["estimated_end"] is None
    assert service.get("/v1/maintenances")["items"][0]["estimated_end"] is None


def test_labels_choose_machines_when_a_maintenance_is_submitted(service: RunningService) -> None:
    """The maintenance keeps the selector; machines that get the label later are not added."""
    hosts = [{"name": "rack1-a", "labels": {"rack": "a3"}}]
    service.post("/v1/fleet", {**service.get("/v1/fleet"), "hosts": hosts})
    targets = {"labels": "rack=a3", "scopes": ["shop", "blog"]}
    made = service.post("/v1/maintenances", {"type": "Reboot", "targets": targets}, 201)
    assert made["targets"] == {"count": 2, **targets}
    service.request("PUT", "/v1/scopes/shop/machines/web-1", {"update_domain": 1, "labels": {"rack": "a3"}})
    shown = service.get(f"/v1/maintenances/{made['id']}")
    assert shown["targets"] == made["targets"]
    assert [(e["scope"], e["resources"]) for w in shown["waves"] for e in w["events"]] == [
        ("blog", ["db"]),
        ("shop", ["web-0"]),
    ]
    assert [row["id"] for row in service.get("/v1/maintenances?q=RACK%3Da3")["items"]] == [made["id"]]
    for wrong, status in (
        ({"labels": "rack=z9"}, 404),
        ({"names": ["x*"]}, 404),
        ({"labels": "rack=a3", "hosts": ["rack1-a"]}, 400),
        ({"labels": "a b"}, 400),
        ({"names": ["a b"]}, 422),
        ({"host_labels": "rack=z9"}, 404),
        ({"everything": True, "scope": "shop"}, 400),
    ):
        assert service.request("POST", "/v1/maintenances", {"type": "Reboot", "targets": wrong}).status == status


def test_machines_are_listed_by_label(service: RunningService) -> None:
    """In pages, of a scope or a host; an owner's selector reads neither other scopes nor labels of hosts."""
    hosts = [{"name": "rack1-a", "labels": {"rack": "a3"}}]
    service.post("/v1/fleet", {**service.get("/v1/fleet"), "hosts": hosts})
    service.request("PUT", "/v1/scopes/shop/machines/web-1", {"update_domain": 1, "labels": {"rack": "a3", "gpu": "x"}})

    def listed(query: str, token: str | None = None) -> list[str]:
        page = service.get(f"/v1/machines?{query}", **({"token": token} if token else {}))
        return [f"{m['scope']}/{m['name']}" for m in page["items"]]

    assert listed("labels=rack%3Da3") == ["blog/db", "shop/web-0", "shop/web-1"]
    assert listed("labels=rack%3Da3&host=rack1-a&scope=shop") == ["shop/web-0"]
    first = service.get("/v1/machines?labels=rack&limit=2")
    assert [m["name"] for m in first["items"]] == ["db", "web-0"]
    second = service.get(f"/v1/machines?labels=rack&limit=2&cursor={first['next_cursor']}")
    assert ([m["name"] for m in second["items"]], second["next_cursor"]) == (["web-1"], None)
    owner = service.token_of("owner", "shop")
    assert listed("labels=rack%3Da3", owner) == ["shop/web-1"]
    assert listed("labels=!rack", owner) == ["shop/web-0"]
    assert listed("names=web-*&labels=!gpu") == ["shop/web-0"]
    assert listed("names=blog/*&names=*-1") == ["blog/db", "shop/web-1"]
    assert service.request("GET", "/v1/machines?names=web&q=web").status == 400
    refused = service.request("GET", "/v1/machines?labels=rack&q=web")
    assert (refused.status, "q excludes labels and names" in refused.message) == (400, True)


def test_an_owner_sees_targets_and_progress_of_their_scopes(service: RunningService) -> None:
    """Names of other scopes and of hosts are left out; the end is that of the whole maintenance."""
    service.enable("shop", "blog")
    service.schedule("shop/web-0", "shop/web-1", "blog/db", duration_s=60)
    service.post("/v1/maintenances", {"type": "Freeze", "targets": {"scopes": ["blog", "shop"]}}, 201)
    service.post("/v1/maintenances", {"type": "Freeze", "targets": {"hosts": ["rack1-a"]}}, 201)
    token = service.token_of("owner", "blog")
    rows = service.get("/v1/maintenances", token=token)["items"]
    machines, scopes, hosts = sorted(rows, key=lambda row: (row["type"] != "Reboot", -row["targets"]["count"]))
    assert machines["targets"] == {"count": 1, "machines": ["blog/db"]}
    assert (machines["progress"]["left"], machines["estimated_end"]) == (1, "2030-01-01T00:32:00Z")
    assert service.get(f"/v1/maintenances/{machines['id']}", token=token)["estimated_end"] == machines["estimated_end"]
    assert scopes["targets"] == {"count": 1, "scopes": ["blog"]}
    assert hosts["targets"] == {"count": 0}


# -- events and orders


def test_an_event_from_notice_to_end(service: RunningService) -> None:
    """What it waits for at each moment, and a timeline of who did what."""
    service.enable("shop")
    event = service.schedule("shop/web-0", description="new kernel", duration_s=30)["waves"][0]["events"][0]
    path = f"/v1/events/{event['id']}"
    assert event["not_before"] == "2030-01-01T00:15:00Z"
    assert event["notice_s"] == 900
    assert {reason["code"] for reason in event["waiting_for"]} == {"notice", "approval"}
    approved = service.post(f"{path}/approve")
    assert approved["approved_by"] == [{"who": "operator", "when": "2030-01-01T00:00:00Z"}]
    service.post("/v1/clock/advance", {"seconds": 1})
    started = service.get(path)
    assert (started["status"], started["started"]) == ("Started", "2030-01-01T00:00:00Z")
    assert [reason["code"] for reason in started["waiting_for"]] == ["executor"]
    assert service.request("POST", f"{path}/cancel").status == 409
    order = service.get("/v1/orders?state=open")["items"][0]
    assert (order["id"], order["machines"]) == (event["id"], ["shop/web-0"])
    assert order["hosts"] == [service.get("/v1/scopes/shop/machines/web-0")["host"]]
    assert order["maintenance_id"] == event["maintenance_id"]
    assert service.get(f"/v1/orders?maintenance={event['maintenance_id']}&state=open")["items"] == [order]
    assert service.get(f"/v1/orders?maintenance={event['maintenance_id']}&state=done")["items"] == []
    assert service.get("/v1/orders?maintenance=none")["items"] == []
    assert service.post(f"/v1/orders/{order['id']}/start")["state"] == "running"
    done = {"new_hosts": {"shop/web-0": "rack2-b"}, "output": "moved it"}
    finished = service.post(f"/v1/orders/{order['id']}/finish", done)
    assert (finished["state"], finished["hosts"]) == ("done", ["rack2-b"])
    ended = service.get(path)
    assert (ended["status"], ended["waiting_for"]) == ("Completed", [])
    assert service.get("/v1/scopes/shop/machines/web-0")["host"] == "rack2-b"
    timeline = [(entry["what"], entry.get("who", "")) for entry in ended["timeline"]]
    for expected in [("published", "operator"), ("approved", "operator"), ("order taken", "operator")]:
        assert expected in timeline
    assert any("moved it" in entry.get("detail", "") for entry in ended["timeline"])
    assert ended["timeline"][-1]["what"] == "completed"


def test_a_failed_order_is_settled_by_an_operator(service: RunningService) -> None:
    """It waits and says so, until an operator retries, finishes or abandons it."""
    machines = ["shop/web-0", "shop/web-1", "blog/db"]
    ids = [service.schedule(machine)["waves"][0]["events"][0]["id"] for machine in machines]
    service.post("/v1/clock/advance", {"seconds": 1})
    assert service.request("POST", f"/v1/events/{ids[0]}/retry").status == 409
    for verb, status in (("retry", "Started"), ("abandon", "Abandoned"), ("finish", "Completed")):
        event_id = ids.pop(0)
        service.post("/v1/clock/advance", {"seconds": 1})
        service.post(f"/v1/orders/{event_id}/start")
        failed = service.post(f"/v1/orders/{event_id}/fail", {"reason": "no power", "output": "click", "attempt": 1})
        assert (failed["state"], failed["reason"]) == ("failed", "no power")
        shown = service.get(f"/v1/events/{event_id}")
        assert [reason["code"] for reason in shown["waiting_for"]] == ["order-failed"]
        assert service.post(f"/v1/events/{event_id}/{verb}")["status"] == status
        if verb == "retry":
            service.post("/v1/clock/advance", {"seconds": 1})
            assert service.post(f"/v1/orders/{event_id}/start")["attempt"] == 2
            late = service.request("POST", f"/v1/orders/{event_id}/finish", {"attempt": 1})
            assert (late.status, "attempt 1 no longer counts" in late.message) == (409, True)
            service.post(f"/v1/orders/{event_id}/finish", {})
            timeline = service.get(f"/v1/events/{event_id}")["timeline"]
            what = [entry["what"] for entry in timeline]
            assert any(entry.get("detail") == "no power\nclick" for entry in timeline)
            assert what.count("order taken") == 2
            assert what.count("order failed") == 1


def test_an_order_in_doubt_is_listed_counted_and_resolved(service: RunningService) -> None:
    """It has no deadline and no end, and cannot be taken; an operator retries, finishes or abandons its event."""
    machines = ["shop/web-0", "shop/web-1", "blog/db"]
    ids = [service.schedule(machine)["waves"][0]["events"][0]["id"] for machine in machines]
    before = service.get("/v1/counts")["in_doubt"]
    for verb, status in (("retry", "Started"), ("abandon", "Abandoned"), ("finish", "Completed")):
        event_id = ids.pop(0)
        service.post("/v1/clock/advance", {"seconds": 1})
        service.post(f"/v1/orders/{event_id}/start")
        service.control.report_order(event_id, Unknown("its node is gone"), Actor("ticker"))
        (order,) = service.get("/v1/orders?state=in-doubt")["items"]
        assert (order["id"], order["state"], order["reason"]) == (event_id, "in-doubt", "its node is gone")
        assert (order["deadline"], order["ended"]) == (None, None)
        assert service.get("/v1/counts")["in_doubt"] == before + 1
        shown = service.get(f"/v1/events/{event_id}")
        assert [reason["code"] for reason in shown["waiting_for"]] == ["in-doubt"]
        assert "order in doubt" in [entry["what"] for entry in shown["timeline"]]
        assert service.request("POST", f"/v1/orders/{event_id}/start").status == 409
        assert service.post(f"/v1/events/{event_id}/{verb}")["status"] == status
        assert service.get("/v1/orders?state=in-doubt")["items"] == []
        if verb == "retry":
            service.post(f"/v1/orders/{event_id}/start")
            service.post(f"/v1/orders/{event_id}/finish", {})


def test_events_are_found_by_every_filter(service: RunningService) -> None:
    """By status, scope, machine, type and since, alone and together."""
    service.enable("shop", "blog")
    first = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    second = service.schedule("blog/db", type_="Redeploy")["waves"][0]["events"][0]["id"]
    service.post(f"/v1/events/{first}/cancel")
    found = {
        query: [event["id"] for event in service.get(f"/v1/events?{query}")["items"]]
        for query in (
            "", "status=Cancelled", "status=Scheduled&status=Started", "scope=shop", "scope=shop&machine=web-0",
            "machine=shop/web-0",
            "scope=shop&machine=web-1", "type=Redeploy", "type=Redeploy&status=Cancelled",
            "since=2030-01-01T00:00:01Z", "since=2029-12-31T00:00:00Z", "limit=1",
        )
    }  # fmt: skip
    assert found == {
        "": [second, first],
        "status=Cancelled": [first],
        "status=Scheduled&status=Started": [second],
        "scope=shop": [first],
        "scope=shop&machine=web-0": [first],
        "machine=shop/web-0": [first],
        "scope=shop&machine=web-1": [],
        "type=Redeploy": [second],
        "type=Redeploy&status=Cancelled": [],
        "since=2030-01-01T00:00:01Z": [second],
        "since=2029-12-31T00:00:00Z": [second, first],
        "limit=1": [second],
    }


def test_every_list_is_searched_by_a_part_of_a_text(service: RunningService) -> None:
    """In any case, together with the other filters, and only in what the caller may see."""
    service.enable("shop", "blog")
    kernel = service.schedule("shop/web-0", description="New Kernel Über")
    disk = service.post("/v1/maintenances", {"type": "Freeze", "targets": {"hosts": ["rack1-b"]}}, 201)
    service.post(f"/v1/events/{disk['waves'][0]['events'][0]['id']}/approve")
    service.service.ticker.advance(1)

    def found(path: str, key: str = "id", token: str | None = None) -> list[Any]:
        return [item[key] for item in service.get(path, token=token)["items"]]

    assert found("/v1/scopes?q=HO", "name") == ["shop"]
    assert found("/v1/machines?q=WEB-", "name") == ["web-0", "web-1"]
    assert found("/v1/machines?q=rack1-a&scope=blog", "name") == ["db"]
    (host,) = service.get("/v1/hosts?q=1-A")["items"]
    assert (host["name"], host["machines"], host["state"]) == ("rack1-a", 2, "up")
    assert found(f"/v1/maintenances?q=kernel+{quote('Über')}") == [kernel["id"]]
    assert found("/v1/maintenances?q=rack1-b") == [disk["id"]]
    assert found("/v1/maintenances?q=rack1-b&status=Planned") == []
    assert found("/v1/events?q=op/web-0", "resources") == [["web-0"]]
    assert found("/v1/events?host=rack1-b", "resources") == found("/v1/events?q=freeze", "resources") == [["web-1"]]
    assert found("/v1/orders?q=web-1", "machines") == [["shop/web-1"]]
    assert found(f"/v1/orders?q=web-0&maintenance={disk['id']}") == []
    assert found("/v1/audit?q=SUBMITTED", "maintenance_id") == [disk["id"], kernel["id"]]
    owner = service.token_of("owner", "blog", name="wall screen")
    assert found("/v1/tokens?q=wall", "name") == ["wall screen"]
    assert service.get("/v1/hosts", token=owner)["items"] == [{"name": "rack1-a", "machines": 1}]
    for path in ("machines?q=web", "scopes?q=shop", "maintenances?q=kernel", "events?q=web", "orders?q=web"):
        assert found(f"/v1/{path}", "name" if "/" in path else "id", owner) == [], path
    for kind in (
        "scopes",
        "machines",
        "hosts",
        "maintenances",
        "events",
        "waves",
        "orders",
        "audit",
        "tokens",
        "hooks",
    ):
        refused = service.request("GET", f"/v1/{kind}?q=we%00b")
        assert (refused.status, refused.message) == (400, "q: it contains a control character: write plain text")
    for parameter in ("events?scope", "events?host", "events?scope=shop&machine", "machines?host", "audit?event"):
        refused = service.request("GET", f"/v1/{parameter}=we%00b")
        name = parameter.rpartition("&")[2].rpartition("?")[2]
        assert (refused.status, refused.message) == (400, f"{name}: it contains a control character: write plain text")


def test_the_orders_of_a_maintenance_come_in_pages_if_a_limit_is_given(service: RunningService) -> None:
    """Without one they come all at once, in the order of their events."""
    service.enable("shop")
    made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "shop"}, "emergency": True}, 201)
    service.service.ticker.advance(1)
    path = f"/v1/orders?maintenance={made['id']}"
    every = service.get(path)
    assert (len(every["items"]) > 1, every["next_cursor"]) == (True, None)
    met: list[object] = []
    page = service.get(f"{path}&limit=1")
    while page["next_cursor"] is not None:
        met += page["items"]
        page = service.get(f"{path}&limit=1&cursor={page['next_cursor']}")
        assert len(page["items"]) == 1
    assert [*met, *page["items"]] == every["items"]


def test_what_is_not_found_comes_with_the_nearest_that_is(service: RunningService) -> None:
    """Scopes that the caller sees, and the whole id behind a short one."""
    owner = service.token_of("owner", "shop")
    made = service.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    whole = "ids are written in full, with 36 characters"
    for path, message in (
        ("/v1/scopes/shopp", "there is no scope 'shopp'; did you mean shop?"),
        ("/v1/scopes/elsewhere", "there is no scope 'elsewhere'"),
        (f"/v1/events/{event[:8]}", f"there is no event {event[:8]}; {whole}: did you mean {event}?"),
        ("/v1/events/ABC", f"there is no event ABC; {whole}"),
        (f"/v1/orders/{'0' * 36}", f"there is no order {'0' * 36}"),
        (
            f"/v1/maintenances/{made['id'][:9]}",
            f"there is no maintenance {made['id'][:9]}; {whole}: did you mean {made['id']}?",
        ),
    ):
        found = service.request("GET", path)
        assert (found.status, found.message) == (404, message)
    assert service.request("GET", f"/v1/events/{event[:8]}", token=owner).message.endswith(f"did you mean {event}?")
    body = {"type": "Reboot", "targets": {"scope": "shp"}}
    assert service.request("POST", "/v1/maintenances", body).message.endswith("in the fleet; did you mean shop?")


def test_a_search_reads_a_bounded_part_and_its_cursor_continues(service: RunningService) -> None:
    """A page may be empty although the search is not over; nothing is missed and nothing is found twice."""
    most = 2 * MAX_SEARCHED + SEARCHED_AT_ONCE
    needles = {0, 10, MAX_SEARCHED - 1, MAX_SEARCHED}
    texts = ["needle" if number in needles else "hay" for number in range(most)]
    made = [
        ended(maintenance(f"M{number:05}", created=at(number), description=text), at(number))
        for number, text in enumerate(texts)
    ]
    service.service.store.apply(change(maintenances=made, audit=[entry(detail=text) for text in texts]))
    last_entry = service.get("/v1/audit?limit=1")["items"][0]["id"]
    newest_first = sorted(needles, reverse=True)
    wanted_of = {
        "/v1/maintenances": [made[number].id for number in newest_first],
        "/v1/audit": [last_entry - (most - 1 - number) for number in newest_first],
    }
    for path, text, limit in (
        ("/v1/maintenances", "needle", 1),
        ("/v1/maintenances", "needle", 5),
        ("/v1/audit", "needle", 2),
    ):
        wanted = wanted_of[path]
        met: list[object] = []
        page = service.get(f"{path}?q={text}&limit={limit}")
        assert len(page["items"]) <= limit
        while page["next_cursor"] is not None:
            met += [item["id"] for item in page["items"]]
            page = service.get(f"{path}?q={text}&limit={limit}&cursor={page['next_cursor']}")
        assert [*met, *(item["id"] for item in page["items"])] == wanted
    first_page = service.get("/v1/maintenances?q=needle&limit=5")
    assert (first_page["items"], bool(first_page["next_cursor"])) == ([], True)


def test_the_timeline_says_when_a_machine_first_saw_the_event(service: RunningService) -> None:
    """For each machine of the event; other machines of the scope are not in it."""
    service.enable("shop")
    event = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    guests = service.guests.endpoint
    state = service.guests.documents.views["shop"].state
    for name in ("web-0", "web-0", "web-1"):
        caller = service.guests.documents.callers.named("shop", name)
        assert caller is not None
        guests.record_shown(caller, state)
    service.guests.parts.last_seen.write_first_seen(guests.take_first_seen())
    seen = [entry for entry in service.get(f"/v1/events/{event}")["timeline"] if entry["what"] == "seen"]
    assert seen == [{"at": "2030-01-01T00:00:00Z", "what": "seen", "who": "web-0"}]


# -- pages


@pytest.mark.parametrize(
    "path", ["/v1/scopes", "/v1/machines", "/v1/maintenances", "/v1/events", "/v1/orders", "/v1/audit", "/v1/tokens"]
)
def test_pages_hold_everything_once(service: RunningService, path: str) -> None:
    """Reading one by one by cursor gives the same as reading all at once, for every list."""
    for machine in ("shop/web-0", "shop/web-1", "blog/db"):
        service.schedule(machine)
    service.token_of("viewer")
    service.post("/v1/clock/advance", {"seconds": 1})
    everything = service.get(f"{path}?limit=500")
    assert everything["next_cursor"] is None
    assert len(everything["items"]) > 1
    seen: list[object] = []
    cursor: str | None = ""
    while cursor is not None:
        page = service.get(f"{path}?limit=1&cursor={cursor}")
        assert len(page["items"]) == 1
        seen += page["items"]
        cursor = page["next_cursor"]
    assert seen == everything["items"]


# -- audit, tokens, clock


def test_the_audit_says_who_and_from_where(service: RunningService) -> None:
    """Newest first, by scope, maintenance and event, with the token that was used."""
    made = service.schedule("shop/web-0")
    service.schedule("blog/db")
    entry = service.get(f"/v1/audit?maintenance={made['id']}")["items"][-1]
    assert (entry["who"], entry["action"]) == ("operator", "maintenance submitted")
    assert entry["origin"].startswith("127.0.0.1 by token ")
    event = made["waves"][0]["events"][0]["id"]
    assert {e["event_id"] for e in service.get(f"/v1/audit?event={event}")["items"]} == {event}
    assert {e["scope"] for e in service.get("/v1/audit?scope=shop")["items"]} == {"shop"}


def test_tokens_are_created_listed_and_revoked(service: RunningService) -> None:
    """The secret is shown once, a revoked token is refused at once, and a token cannot revoke itself."""
    made = service.post("/v1/tokens", {"name": "ci", "role": "viewer"}, 201)
    assert service.get("/v1/scopes", token=made["token"])["items"]
    listed = service.get("/v1/tokens")["items"]
    assert {token["name"] for token in listed} == {"ci", "operator"}
    assert not any("token" in token or "digest" in token for token in listed)
    assert service.request("DELETE", f"/v1/tokens/{made['id']}").status == 204
    assert service.request("GET", "/v1/scopes", token=made["token"]).status == 401
    assert service.request("DELETE", f"/v1/tokens/{made['id']}").status == 404
    own = next(token["id"] for token in listed if token["name"] == "operator")
    assert service.request("DELETE", f"/v1/tokens/{own}").status == 409
    assert service.request("POST", "/v1/tokens", {"name": "x", "role": "owner"}).status == 400
    assert service.request("POST", "/v1/tokens", {"name": "x", "role": "owner", "scopes": ["none"]}).status == 404


def test_the_audit_is_exported_as_a_chain(service: RunningService) -> None:
    """Oldest first, with every hash, page by page; the chain names its start and its head; only operators read it."""
    service.schedule("shop/web-0")
    chain = service.get("/v1/audit/chain")
    first = service.get("/v1/audit/export?limit=1")
    rest = service.get(f"/v1/audit/export?cursor={first['next_cursor']}")
    entries = [*first["items"], *rest["items"]]
    assert [entry["id"] for entry in entries] == list(range(1, len(entries) + 1))
    assert chain == {
        "start": {"id": 0, "hash": ""},
        "head": {"id": entries[-1]["id"], "hash": entries[-1]["hash"]},
    }
    assert rest["next_cursor"] is None
    for path in ("/v1/audit/chain", "/v1/audit/export"):
        assert service.request("GET", path, token=service.token_of("viewer")).status == 403


def test_a_held_store_hands_out_nothing_until_it_is_resumed(service: RunningService) -> None:
    """No order is offered or can be taken; what would happen is shown; only the hold that was shown is resumed."""
    made = service.schedule("shop/web-0", emergency=True)
    event = made["waves"][0]["events"][0]["id"]
    service.post("/v1/clock/advance", {"seconds": 0})
    assert [order["id"] for order in service.get("/v1/orders?state=open")["items"]] == [event]
    assert service.get("/v1/store") == {"held": None}
    held = service.post("/v1/store/hold", {"reason": "a drill"})["held"]
    assert (held["cause"], held["detail"]) == ("requested", "operator requested it: a drill")
    assert service.request("POST", "/v1/store/hold").status == 409
    assert (
        service.get("/v1/orders?state=open")["items"]
        == service.get(f"/v1/orders?maintenance={made['id']}")["items"]
        == []
    )
    refused = service.request("POST", f"/v1/orders/{event}/start")
    assert (refused.status, refused.json["error"]["code"]) == (409, "store_held")
    waiting = service.schedule("shop/web-1", emergency=True)["waves"][0]["events"][0]
    assert (waiting["status"], waiting["waiting_for"][0]["code"]) == ("Planned", "store-held")
    effects = service.get("/v1/store/resume")
    assert [start["id"] for start in effects["starts"]] == [waiting["id"]]
    assert [(order["id"], order["state"]) for order in effects["orders"]] == [(event, "open")]
    assert (effects["held"], effects["more"]) == (held, False)
    assert service.request("GET", "/v1/store/resume", token=service.token_of("viewer")).status == 403
    assert service.request("POST", "/v1/store/resume", {"held": "2029-01-01T00:00:00Z"}).status == 409
    assert service.post("/v1/store/resume", {"held": held["held"]}) == {"held": None}
    assert "store resumed" in [entry["action"] for entry in service.get("/v1/audit")["items"][:3]]
    service.post("/v1/clock/advance", {"seconds": 0})
    assert service.get(f"/v1/events/{waiting['id']}")["status"] == "Started"
    assert service.post(f"/v1/orders/{event}/start")["state"] == "running"


def test_a_held_clock_is_shown_and_confirmed(service: RunningService) -> None:
    """A clock that jumped says until when it is trusted; the confirmation is in the audit log, a second one is refused."""
    assert service.request("POST", "/v1/clock/confirm").status == 409
    hold = ClockHold(trusted=START, noticed=START + timedelta(hours=1), jumped_s=3_600)
    service.service.store.apply(Change(at=START, hold=hold))
    held = {"trusted": "2030-01-01T00:00:00Z", "noticed": "2030-01-01T01:00:00Z", "jumped_s": 3_600}
    assert service.get("/v1/clock")["held"] == held
    assert service.post("/v1/clock/confirm")["held"] is None
    assert service.get("/v1/audit")["items"][0]["action"] == "clock confirmed"


def test_the_clock_is_shown_and_moved(service: RunningService) -> None:
    """A manual clock moves forward only, and everything due happens on the way."""
    service.enable("shop")
    event = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    assert service.get("/v1/clock") == {"now": "2030-01-01T00:00:00Z", "kind": "manual", "held": None}
    assert service.post("/v1/clock/advance", {"seconds": 1200})["now"] == "2030-01-01T00:20:00Z"
    assert service.get(f"/v1/events/{event}")["started"] == "2030-01-01T00:15:00Z"
    assert service.request("POST", "/v1/clock/advance", {"seconds": -1}).status == 422
    assert datetime.fromisoformat(service.get("/v1/clock")["now"]) > START.astimezone(UTC)


# -- the budgets of the fleet


def test_the_budgets_of_the_fleet_are_set_and_shown_with_their_use(service: RunningService) -> None:
    """A wave without room waits with the code budget; an owner learns only that something outside is in its way."""
    service.enable("shop", "blog")
    nothing = {"hosts_down": 0, "machines_down": 0, "hosts": [], "events": []}
    assert service.get("/v1/budget") == {"max_hosts_down": 0, "max_machines_down": 0, **nothing}
    made = service.post("/v1/budget", {"max_machines_down": 1}, 200)
    assert made == {"max_hosts_down": 0, "max_machines_down": 1, **nothing}
    first = service.schedule("shop/web-0")["waves"][0]["events"][0]
    waiting = service.schedule("blog/db")["waves"][0]["events"][0]
    (reason,) = service.get(f"/v1/events/{waiting['id']}")["waiting_for"]
    assert (reason["code"], reason["events"]) == ("budget", [first["id"]])
    use = service.get("/v1/budget")
    metrics = service.request("GET", "/metrics").raw.decode().splitlines()
    shown = {line for line in metrics if line.startswith("forewarn_budget")}
    assert shown == {'forewarn_budget_used{budget="machines"} 1.0', 'forewarn_budget_limit{budget="machines"} 1.0'}
    assert (use["machines_down"], use["events"]) == (1, [first["id"]])
    owner = service.token_of("owner", "blog")
    seen = service.request("GET", f"/v1/events/{waiting['id']}", token=owner).json["waiting_for"]
    assert [(each["code"], each["message"]) for each in seen] == [
        ("budget", "it waits for something outside your scopes")
    ]
    other = service.token_of("owner", "shop", "blog", name="other")
    seen = service.request("GET", f"/v1/events/{waiting['id']}", token=other).json["waiting_for"]
    assert [each["message"] for each in seen] == ["it waits for something outside your scopes"]
    assert service.request("GET", "/v1/budget", token=owner).status == 403
    assert service.request("POST", "/v1/budget", {"max_machines_down": -1}).status == 422
    service.post("/v1/budget", {"max_machines_down": 0}, 200)
    service.service.ticker.cycle_until_idle()
    assert service.get(f"/v1/events/{waiting['id']}")["status"] == "Scheduled"
