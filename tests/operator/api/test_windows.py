"""Windows and no-go times in the API, and what waits for them."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.running_service import START, RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def hours(number: float) -> str:
    """Return the time so many hours after the start of the service."""
    return (START + timedelta(hours=number)).isoformat().replace("+00:00", "Z")


def times_from(begin: float, end: float) -> list[str]:
    """Return the time of every day from so many to so many hours after the start."""
    return [f"daily {START + timedelta(hours=begin):%H:%M}-{START + timedelta(hours=end):%H:%M}"]


def test_a_window_is_added_shown_extended_and_removed(service: RunningService) -> None:
    """PUT adds and changes; a window in use stays."""
    made = service.request("PUT", "/v1/windows/soon", {"when": times_from(1, 2)})
    assert (made.status, made.json["open"], made.json["opens"], made.json["closes"]) == (201, False, hours(1), hours(2))
    changed = service.request("PUT", "/v1/windows/soon", {"when": times_from(0, 2), "zone": "Etc/UTC"})
    assert (changed.status, changed.json["open"], changed.json["opens"]) == (200, True, None)
    assert service.get("/v1/windows?q=SO")["items"] == [service.get("/v1/windows/soon")]
    extended = service.post("/v1/windows/soon/extend", {"until": hours(3)}, 200)
    assert (extended["closes"], extended["extended_until"]) == (hours(3), hours(3))
    service.request("PUT", "/v1/windows/later", {"when": times_from(5, 6)})
    page = service.get("/v1/windows?limit=1")
    assert [each["name"] for each in page["items"]] == ["later"]
    assert [w["name"] for w in service.get(f"/v1/windows?cursor={page['next_cursor']}")["items"]] == ["soon"]
    assert service.request("POST", "/v1/windows/later/extend", {"until": hours(7)}).status == 409
    service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["soon"]})
    refused = service.request("DELETE", "/v1/windows/soon")
    assert (refused.status, "used by scope shop" in refused.message) == (409, True)
    assert service.request("DELETE", "/v1/windows/later").status == 204
    assert service.request("GET", "/v1/windows/later").status == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/windows/x", {"when": []}, 422),
        ("/v1/windows/x", {"when": ["always"]}, 400),
        ("/v1/windows/x", {"when": ["Mon 10:00-11:00"], "zone": "Nowhere"}, 400),
        ("/v1/no-go-times/x", {"reason": "r", "when": ["Mon 10:00-11:00"], "start": hours(1)}, 400),
        ("/v1/no-go-times/x", {"reason": "", "when": ["Mon 10:00-11:00"]}, 400),
        ("/v1/no-go-times/x", {"reason": "r", "start": "2030-01-01T00:00:00", "end": hours(2)}, 400),
        ("/v1/no-go-times/x", {"reason": "r", "when": ["Mon 10:00-11:00"], "labels": "rack=a3,"}, 400),
        ("/v1/scopes/shop", {"kind": "availability-set", "windows": ["none"]}, 400),
    ],
)
def test_wrong_times_are_refused(service: RunningService, path: str, body: dict[str, object], status: int) -> None:
    """Nothing is saved, and the message says what to write."""
    assert service.request("PUT", path, body).status == status
    assert service.get("/v1/windows")["items"] == service.get("/v1/no-go-times")["items"] == []


def test_an_event_waits_for_its_window(service: RunningService) -> None:
    """The event says so, and an owner may read it too."""
    service.enable("shop")
    service.request("PUT", "/v1/windows/soon", {"when": times_from(1, 2)})
    service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["soon"]})
    event = service.schedule("shop/web-0")["waves"][0]["events"][0]
    (reason,) = service.get(f"/v1/events/{event['id']}")["waiting_for"]
    assert (reason["code"], reason["until"]) == ("window", hours(0.75))
    owner = service.token_of("owner", "shop")
    assert service.request("GET", f"/v1/events/{event['id']}", token=owner).json["waiting_for"] == [reason]
    assert service.request("PUT", "/v1/windows/soon", {"when": times_from(0, 2)}, token=owner).status == 403
    service.request("PUT", "/v1/windows/soon", {"when": times_from(-1, 2)})
    service.service.ticker.cycle_until_idle()
    published = service.get(f"/v1/events/{event['id']}")
    assert (published["status"], published["not_before"]) == ("Scheduled", hours(0.25))


@pytest.mark.parametrize("late", ["9000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00"])
def test_a_time_at_the_end_of_the_calendar_is_refused(service: RunningService, late: str) -> None:
    """No window can be computed after it, so the ticker would fail."""
    service.enable("shop")
    service.request("PUT", "/v1/windows/soon", {"when": times_from(1, 2)})
    service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["soon"]})
    body = {"type": "Reboot", "targets": {"scope": "shop"}}
    for key in ("not_before", "earliest", "not_after"):
        refused = service.request("POST", "/v1/maintenances", {**body, key: late})
        assert (refused.status, "before the year 9000" in refused.message) == (400, True)
    event = service.schedule("shop/web-0")["waves"][0]["events"][0]
    refused = service.request("POST", f"/v1/events/{event['id']}/reschedule", {"not_before": late})
    assert (refused.status, "before the year 9000" in refused.message) == (400, True)
    service.service.ticker.cycle_until_idle()
    assert service.get(f"/v1/events/{event['id']}")["status"] == "Planned"


def test_a_maintenance_has_windows_of_its_own(service: RunningService) -> None:
    """They are kept, shown, and must exist."""
    service.request("PUT", "/v1/windows/soon", {"when": times_from(1, 2)})
    request = {"type": "Reboot", "targets": {"scope": "shop"}, "strategy": {"windows": ["soon"]}}
    made = service.post("/v1/maintenances", request, 201)
    assert made["strategy"]["windows"] == ["soon"]
    assert [each["code"] for each in made["waves"][0]["events"][0]["waiting_for"]] == ["window"]
    assert service.request("DELETE", "/v1/windows/soon").status == 409
    unknown = {**request, "strategy": {"windows": ["none"]}}
    assert service.request("POST", "/v1/maintenances", unknown).status == 404


def test_a_no_go_time_is_added_shown_and_removed(service: RunningService) -> None:
    """An owner sees the no-go times of the fleet and of the own scopes, without the names of other scopes."""
    fair = {"reason": "the fair", "start": hours(-1), "end": hours(1), "scopes": ["shop", "blog"]}
    made = service.request("PUT", "/v1/no-go-times/fair", fair)
    assert (made.status, made.json["active"], made.json["when"]) == (201, True, [])
    changed = service.request("PUT", "/v1/no-go-times/fair", {**fair, "start": hours(0.5)})
    assert (changed.status, changed.json["active"]) == (200, False)
    service.request("PUT", "/v1/no-go-times/blog", {"reason": "blog", "when": times_from(0, 1), "scopes": ["blog"]})
    service.request("PUT", "/v1/no-go-times/all", {"reason": "all", "when": times_from(0, 1)})
    assert [each["name"] for each in service.get("/v1/no-go-times")["items"]] == ["all", "blog", "fair"]
    owner = service.token_of("owner", "shop")
    seen = service.request("GET", "/v1/no-go-times", token=owner).json["items"]
    assert [(each["name"], each["scopes"]) for each in seen] == [("all", []), ("fair", ["shop"])]
    assert service.request("GET", "/v1/no-go-times/blog", token=owner).status == 404
    assert service.get("/v1/no-go-times/blog")["scopes"] == ["blog"]
    assert service.request("DELETE", "/v1/no-go-times/blog").status == 204
    assert service.request("DELETE", "/v1/no-go-times/blog").status == 404


def test_a_no_go_time_by_labels_names_its_scopes_to_owners(service: RunningService) -> None:
    """Owners do not see the labels of hosts. A machine that gets other labels is examined again."""
    service.enable("shop", "blog")
    rack = {"reason": "wiring", "start": hours(-1), "end": hours(1), "labels": " rack=a3 "}
    refused = service.request("PUT", "/v1/no-go-times/rack", rack)
    assert (refused.status, refused.json["error"]["message"]) == (404, "no machine has labels like rack=a3")
    service.request("PUT", "/v1/scopes/shop/machines/web-0", {"addresses": ["127.0.0.10"], "labels": {"rack": "a3"}})
    made = service.request("PUT", "/v1/no-go-times/rack", rack)
    assert (made.status, made.json["labels"], made.json["scopes"]) == (201, "rack=a3", [])
    owner = service.token_of("owner", "shop")
    (seen,) = service.request("GET", "/v1/no-go-times", token=owner).json["items"]
    assert (seen["name"], seen["labels"], seen["scopes"]) == ("rack", "", ["shop"])
    other = service.token_of("owner", "blog")
    assert service.request("GET", "/v1/no-go-times", token=other).json["items"] == []
    event = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    (reason,) = service.request("GET", f"/v1/events/{event}", token=owner).json["waiting_for"]
    assert "rack (wiring)" in reason["message"]


def test_an_owner_learns_nothing_of_the_rules_of_other_scopes(service: RunningService) -> None:
    """Neither from a wave that it shares with them, nor from the list of windows, nor from what became of an event."""
    service.enable("shop", "blog")
    owner, outside = service.token_of("owner", "shop"), "it waits for something outside your scopes"

    def seen(path: str) -> Any:
        return service.request("GET", path, token=owner).json

    for name, scope in (("merger", "blog"), ("nights", "shop")):
        service.request("PUT", f"/v1/windows/{name}", {"when": times_from(2, 3)})
        service.request("PUT", f"/v1/scopes/{scope}", {"kind": "availability-set", "windows": [name]})
    request = {"type": "Reboot", "targets": {"machines": ["shop/web-0", "blog/db"]}}
    made = service.post("/v1/maintenances", request, 201)
    event = next(each for each in made["waves"][0]["events"] if each["scope"] == "shop")["id"]
    (reason,) = service.get(f"/v1/events/{event}")["waiting_for"]
    assert "merger" in reason["message"]
    (shown,) = seen(f"/v1/events/{event}")["waiting_for"]
    assert (shown["code"], shown["message"], shown["until"]) == ("window", outside, reason["until"])
    assert [window["name"] for window in seen("/v1/windows")["items"]] == ["nights"]
    assert service.request("GET", "/v1/windows/merger", token=owner).status == 404
    assert seen("/v1/windows/nights")["name"] == "nights"
    sale = {"reason": "blog is sold", "start": hours(0), "end": hours(30), "scopes": ["blog"]}
    for scopes, message in ((["blog"], outside), (["blog", "shop"], None), ([], None)):
        service.request("PUT", "/v1/no-go-times/sale", {**sale, "scopes": scopes})
        (reason,) = service.get(f"/v1/events/{event}")["waiting_for"]
        assert (reason["code"], "blog is sold" in reason["message"]) == ("no-go", True)
        (shown,) = seen(f"/v1/events/{event}")["waiting_for"]
        assert shown["message"] == (message or reason["message"])


def test_an_owner_does_not_learn_the_no_go_time_that_cancelled_its_event(service: RunningService) -> None:
    """The wave of both scopes is planned again; its reason names no rule."""
    service.enable("shop", "blog")
    owner = service.token_of("owner", "shop")
    request = {"type": "Reboot", "targets": {"machines": ["shop/web-0", "blog/db"]}}
    made = service.post("/v1/maintenances", request, 201)
    event = next(each for each in made["waves"][0]["events"] if each["scope"] == "shop")["id"]
    sale = {"reason": "blog is sold", "start": hours(0), "end": hours(30), "scopes": ["blog"]}
    service.request("PUT", "/v1/no-go-times/sale", sale)
    service.service.ticker.cycle_until_idle()
    shown = service.request("GET", f"/v1/events/{event}", token=owner).json
    assert (shown["status"], shown["reason"]) == ("Cancelled", "it cannot start in a no-go time")
    assert "sale" not in str(service.request("GET", "/v1/audit", token=owner).json)


def test_the_estimated_end_respects_windows(service: RunningService) -> None:
    """The second wave comes in the next window. A list does not read events, so it has no estimate then."""
    service.enable("shop")
    made = service.schedule("shop/web-0", "shop/web-1", duration_s=600)
    path = f"/v1/maintenances/{made['id']}"
    assert len(made["waves"]) == 2
    assert (
        service.get(path)["estimated_end"] == service.get("/v1/maintenances")["items"][0]["estimated_end"] is not None
    )
    service.request("PUT", "/v1/windows/now", {"when": ["Tue 00:00-00:30"]})
    service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["now"]})
    assert service.get(path)["estimated_end"] == "2030-01-08T00:10:00Z"
    assert service.get("/v1/maintenances")["items"][0]["estimated_end"] is None
    request = {"type": "Reboot", "duration_s": 600, "targets": {"scope": "shop"}}
    assert service.post("/v1/maintenances?dry_run=true", request)["estimated_end"] >= "2030-01-08T00:10:00Z"


def test_times_are_in_utc() -> None:
    """The helper of this module writes what the API writes."""
    assert datetime.fromisoformat(hours(0)) == START


def test_new_windows_of_a_scope_that_leave_a_maintenance_no_time_are_warned_of(service: RunningService) -> None:
    """By the change of the scope, and by a fleet that is applied or compared. The change is saved all the same."""
    for name, begin in (("soon", 1), ("later", 5)):
        service.request("PUT", f"/v1/windows/{name}", {"when": times_from(begin, begin + 1)})
    request = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}, "strategy": {"windows": ["soon"]}}
    made = service.post("/v1/maintenances", request, 201)
    stated = service.get("/v1/fleet")
    for scope in stated["scopes"]:
        scope["windows"] = ["later"] if scope["name"] == "shop" else []
    compared = service.post("/v1/fleet?dry_run=true", stated)
    changed = service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["later"]})
    text = f"maintenance {made['id']} cannot start in scope shop with these windows"
    assert changed.json["warnings"] == [f"{text}: windows and no-go times leave it no time"] == compared["warnings"]
    shown = service.get("/v1/scopes/shop")
    assert (shown["windows"], "warnings" in shown) == (["later"], False)
    changed = service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["soon"]})
    assert (changed.status, changed.json["warnings"]) == (200, [])
