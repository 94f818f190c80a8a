"""Every call of the API does what its row says, on a real service."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.change import Change
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Hold
from tests.operator.api.house import FLEET, START, House, house


@pytest.fixture
def home() -> Iterator[House]:
    with house() as running:
        yield running


# -- scopes and machines


def test_scopes_are_listed_by_name_and_shown(home: House) -> None:
    """Settings, and where the document stands."""
    home.enable("shop")
    assert [scope["name"] for scope in home.get("/v1/scopes")["items"]] == ["blog", "shop"]
    assert home.get("/v1/scopes/shop") == {
        "name": "shop", "kind": "availability-set", "approval": "any", "approve_user_events": False,
        "max_user_operations": 0, "terminate_notice_s": 300, "minimum_notice_s": {}, "enabled": True, "epoch": 1,
        "incarnation": 1,
    }  # fmt: skip
    assert home.ask("GET", "/v1/scopes/none").status == 404


def test_a_scope_is_made_changed_and_removed(home: House) -> None:
    """201, then 200, then 204; one with machines stays."""
    wanted = {"kind": "placement-group", "approval": "all", "minimum_notice_s": {"Reboot": 1800}}
    made = home.ask("PUT", "/v1/scopes/new", wanted)
    assert (made.status, made.json["minimum_notice_s"]) == (201, {"Reboot": 1800})
    changed = home.ask("PUT", "/v1/scopes/new", {"kind": "placement-group"})
    assert (changed.status, changed.json["approval"]) == (200, "any")
    assert home.ask("DELETE", "/v1/scopes/new").status == 204
    assert home.ask("DELETE", "/v1/scopes/new").status == 404
    refused = home.ask("DELETE", "/v1/scopes/shop")
    assert (refused.status, "remove them first" in refused.message) == (409, True)


def test_machines_are_listed_added_moved_and_removed(home: House) -> None:
    """By name, by scope, by host; the inventory follows."""
    assert [f"{m['scope']}/{m['name']}" for m in home.get("/v1/machines")["items"]] == [
        "blog/db",
        "shop/web-0",
        "shop/web-1",
    ]
    assert [m["name"] for m in home.get("/v1/machines?scope=shop")["items"]] == ["web-0", "web-1"]
    assert [m["name"] for m in home.get("/v1/machines?host=rack1-a")["items"]] == ["db", "web-0"]
    added = home.ask("PUT", "/v1/scopes/shop/machines/web-2", {"host": "rack2-a", "addresses": ["127.0.0.12"]})
    assert (added.status, added.json["last_seen"]) == (201, None)
    moved = home.ask("PUT", "/v1/scopes/shop/machines/web-2", {"host": "rack2-b"})
    assert (moved.status, moved.json["host"], moved.json["addresses"]) == (200, "rack2-b", [])
    assert home.ask("DELETE", "/v1/scopes/shop/machines/web-2").status == 204
    assert home.ask("GET", "/v1/scopes/shop/machines/web-2").status == 404
    assert home.ask("PUT", "/v1/scopes/none/machines/x", {}).status == 404


def test_an_address_belongs_to_one_machine(home: House) -> None:
    """Refused with whose it is, and nothing changed."""
    refused = home.ask("PUT", "/v1/scopes/blog/machines/db", {"addresses": ["127.0.0.10"]})
    assert refused.status == 400
    assert "shop/web-0" in refused.message
    assert home.get("/v1/scopes/blog/machines/db")["addresses"] == ["127.0.0.20"]


def test_a_machine_with_an_open_event_stays_where_it_is(home: House) -> None:
    """Removal and a change of its update domain are refused with the event in the way."""
    event = home.schedule("shop/web-0", not_before="2030-01-01T05:00:00Z")["waves"][0]["events"][0]
    for reply in (
        home.ask("DELETE", "/v1/scopes/shop/machines/web-0"),
        home.ask("PUT", "/v1/scopes/shop/machines/web-0", {"update_domain": 3}),
    ):
        assert (reply.status, reply.code) == (409, "machine_busy")
        assert event["id"] in reply.message


def test_who_asked_is_seen(home: House) -> None:
    """A guest's poll shows as last_seen of its machine, in the list and alone."""
    home.guests.endpoint.seen_callers.clear()
    caller = home.guests.documents.callers.named("shop", "web-0")
    view = home.guests.documents.views["shop"]
    assert caller is not None
    home.guests.endpoint.record_seen(caller, view)
    home.guests.parts.last_seen.write(home.guests.endpoint.take_seen())
    assert home.get("/v1/scopes/shop/machines/web-0")["last_seen"] == "2030-01-01T00:00:00Z"
    assert home.get("/v1/machines?scope=shop")["items"][0]["last_seen"] == "2030-01-01T00:00:00Z"


def test_a_user_restarts_and_redeploys(home: House) -> None:
    """202 with the event; over the scope's limit 409."""
    home.enable("shop", "blog")
    event = home.post("/v1/scopes/blog/machines/db/restart", status=202)
    assert (event["type"], event["source"], event["resources"], event["status"]) == (
        "Reboot",
        "User",
        ["db"],
        "Scheduled",
    )
    refused = home.ask("POST", "/v1/scopes/blog/machines/db/redeploy")
    assert (refused.status, refused.code) == (409, "too_many_user_operations")
    assert home.post("/v1/scopes/shop/machines/web-0/redeploy", status=202)["type"] == "Redeploy"
    assert home.ask("POST", "/v1/scopes/shop/machines/none/restart").status == 404


# -- the fleet


def test_the_fleet_is_applied_from_toml_and_exported(home: House) -> None:
    """Dry run, apply, the same again, prune; what is exported changes nothing when applied."""
    more = FLEET + '\n[[machines]]\nscope = "shop"\nname = "web-2"\n'
    as_toml = {"Content-Type": "application/toml"}
    dry = home.ask("POST", "/v1/fleet?dry_run=true", more, headers=as_toml).json
    assert dry == {"lines": ["+ machine shop/web-2"], "warnings": [], "dry_run": True}
    assert home.ask("GET", "/v1/scopes/shop/machines/web-2").status == 404
    assert home.ask("POST", "/v1/fleet", more, headers=as_toml).json["lines"] == ["+ machine shop/web-2"]
    assert home.ask("POST", "/v1/fleet", more, headers=as_toml).json["lines"] == []
    assert home.ask("POST", "/v1/fleet?prune=true", FLEET, headers=as_toml).json["lines"] == ["- machine shop/web-2"]
    exported = home.ask("GET", "/v1/fleet", headers={"Accept": "application/toml"})
    assert exported.headers["content-type"] == "application/toml"
    assert parse_fleet(exported.raw.decode(), "the export") == parse_fleet(FLEET, "the test")
    assert home.ask("POST", "/v1/fleet?prune=true", exported.raw, headers=as_toml).json["lines"] == []


def test_the_fleet_as_json_goes_round(home: House) -> None:
    """What is exported as JSON can be applied as JSON."""
    exported = home.get("/v1/fleet")
    exported["machines"][0]["host"] = "rack9-z"
    assert home.post("/v1/fleet", exported)["lines"] == ["~ machine blog/db: host rack1-a -> rack9-z"]


def test_a_bad_fleet_changes_nothing(home: House) -> None:
    """The place and what to do; a collision between machines as well."""
    bad = FLEET.replace('kind = "availability-set"', 'kind = "sometimes"', 1)
    refused = home.ask("POST", "/v1/fleet", bad, headers={"Content-Type": "application/toml"})
    assert (refused.status, refused.code) == (400, "invalid_fleet")
    assert "scopes[0]" in refused.message
    assert home.ask("POST", "/v1/fleet?prune=true", {}).status == 422
    twice = {"scopes": [], "machines": [{"scope": "shop", "name": "x"}]}
    assert home.ask("POST", "/v1/fleet", twice).status == 400


# -- maintenances


def test_the_plan_shown_is_the_plan_that_happens(home: House) -> None:
    """A dry run has no ids and no times, saves nothing, and is otherwise what the real one answers."""
    home.enable("shop", "blog")
    asked = {"type": "Reboot", "targets": {"hosts": ["rack1-a", "rack1-b"]}, "description": "new kernel"}
    dry = home.post("/v1/maintenances?dry_run=true", asked)
    assert home.get("/v1/maintenances")["items"] == []
    real = home.post("/v1/maintenances", asked, 201)
    gone = {"id", "maintenance_id", "published", "not_before", "started", "status", "waiting_for", "timeline"}

    def bare(told: dict[str, object]) -> list[object]:
        return [
            [{key: value for key, value in event.items() if key not in gone} for event in wave["events"]]
            for wave in told["waves"]  # type: ignore[attr-defined]
        ]

    assert bare(dry) == bare(real)
    assert dry["id"] is None
    assert {event["id"] for wave in dry["waves"] for event in wave["events"]} == {None}
    assert [len(wave["events"]) for wave in real["waves"]] == [2, 1]
    assert [event["notice_s"] for wave in dry["waves"] for event in wave["events"]] == [900, 900, 900]


def test_a_bare_name_is_taken_where_it_is_clear(home: House) -> None:
    """One machine of that name: that one; several: say which."""
    assert home.schedule("db")["waves"][0]["events"][0]["scope"] == "blog"
    home.ask("PUT", "/v1/scopes/shop/machines/db", {})
    refused = home.ask("POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["db"]}})
    assert (refused.status, "blog/db or shop/db" in refused.message) == (400, True)
    assert home.ask("POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["x"]}}).status == 404


def test_a_maintenance_is_paused_resumed_and_cancelled(home: House) -> None:
    """Each answers with the object; what is ended stays ended."""
    home.enable("shop")
    made = home.schedule("shop/web-0", "shop/web-1")
    place = f"/v1/maintenances/{made['id']}"
    assert home.post(f"{place}/pause")["status"] == "Paused"
    assert home.get(place)["waves"][0]["events"][0]["waiting_for"][0]["code"] == "paused"
    assert home.post(f"{place}/resume")["status"] == "Planned"
    cancelled = home.post(f"{place}/cancel")
    assert cancelled["status"] == "Cancelled"
    assert {event["status"] for wave in cancelled["waves"] for event in wave["events"]} == {"Cancelled"}
    assert home.ask("POST", f"{place}/pause").status == 409
    assert [row["status"] for row in home.get("/v1/maintenances")["items"]] == ["Cancelled"]
    assert home.get("/v1/maintenances?status=Running")["items"] == []
    assert home.ask("POST", "/v1/maintenances/none/pause").status == 404


# -- events and orders


def test_an_event_from_notice_to_end(home: House) -> None:
    """What it waits for at each moment, and a timeline that tells who did what."""
    home.enable("shop")
    event = home.schedule("shop/web-0", description="new kernel", duration_s=30)["waves"][0]["events"][0]
    place = f"/v1/events/{event['id']}"
    assert event["not_before"] == "2030-01-01T00:15:00Z"
    assert event["notice_s"] == 900
    assert {reason["code"] for reason in event["waiting_for"]} == {"notice", "approval"}
    approved = home.post(f"{place}/approve")
    assert approved["approved_by"] == [{"who": "operator", "when": "2030-01-01T00:00:00Z"}]
    home.post("/v1/clock/advance", {"seconds": 1})
    started = home.get(place)
    assert (started["status"], started["started"]) == ("Started", "2030-01-01T00:00:00Z")
    assert [reason["code"] for reason in started["waiting_for"]] == ["executor"]
    assert home.ask("POST", f"{place}/cancel").status == 409
    order = home.get("/v1/orders?state=open")["items"][0]
    assert (order["id"], order["machines"]) == (event["id"], ["shop/web-0"])
    assert order["maintenance_id"] == event["maintenance_id"]
    assert home.get(f"/v1/orders?maintenance={event['maintenance_id']}&state=open")["items"] == [order]
    assert home.get(f"/v1/orders?maintenance={event['maintenance_id']}&state=done")["items"] == []
    assert home.get("/v1/orders?maintenance=none")["items"] == []
    assert home.post(f"/v1/orders/{order['id']}/start")["state"] == "running"
    done = {"new_hosts": {"shop/web-0": "rack2-b"}, "output": "moved it"}
    assert home.post(f"/v1/orders/{order['id']}/finish", done)["state"] == "done"
    ended = home.get(place)
    assert (ended["status"], ended["waiting_for"]) == ("Completed", [])
    assert home.get("/v1/scopes/shop/machines/web-0")["host"] == "rack2-b"
    told = [(entry["what"], entry.get("who", "")) for entry in ended["timeline"]]
    for expected in [("published", "operator"), ("approved", "operator"), ("order taken", "operator")]:
        assert expected in told
    assert any("moved it" in entry.get("detail", "") for entry in ended["timeline"])
    assert ended["timeline"][-1]["what"] == "completed"


def test_a_failed_order_is_settled_by_an_operator(home: House) -> None:
    """Failed: it holds and says so; retried, abandoned and finished as told, and only then."""
    machines = ["shop/web-0", "shop/web-1", "blog/db"]
    ids = [home.schedule(machine)["waves"][0]["events"][0]["id"] for machine in machines]
    home.post("/v1/clock/advance", {"seconds": 1})
    assert home.ask("POST", f"/v1/events/{ids[0]}/retry").status == 409
    for verb, status in (("retry", "Started"), ("abandon", "Abandoned"), ("finish", "Completed")):
        event_id = ids.pop(0)
        home.post("/v1/clock/advance", {"seconds": 1})
        home.post(f"/v1/orders/{event_id}/start")
        failed = home.post(f"/v1/orders/{event_id}/fail", {"reason": "no power", "output": "click", "attempt": 1})
        assert (failed["state"], failed["reason"]) == ("failed", "no power")
        shown = home.get(f"/v1/events/{event_id}")
        assert [reason["code"] for reason in shown["waiting_for"]] == ["order-failed"]
        assert home.post(f"/v1/events/{event_id}/{verb}")["status"] == status
        if verb == "retry":
            home.post("/v1/clock/advance", {"seconds": 1})
            assert home.post(f"/v1/orders/{event_id}/start")["attempt"] == 2
            late = home.ask("POST", f"/v1/orders/{event_id}/finish", {"attempt": 1})
            assert (late.status, "attempt 1 no longer matters" in late.message) == (409, True)
            home.post(f"/v1/orders/{event_id}/finish", {})
            timeline = home.get(f"/v1/events/{event_id}")["timeline"]
            what = [entry["what"] for entry in timeline]
            assert any(entry.get("detail") == "no power\nclick" for entry in timeline)
            assert what.count("order taken") == 2
            assert what.count("order failed") == 1


def test_events_are_found_by_every_filter(home: House) -> None:
    """Status, scope, machine, type, since: alone and together."""
    home.enable("shop", "blog")
    first = home.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    second = home.schedule("blog/db", type_="Redeploy")["waves"][0]["events"][0]["id"]
    home.post(f"/v1/events/{first}/cancel")
    found = {
        query: [event["id"] for event in home.get(f"/v1/events?{query}")["items"]]
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


def test_who_saw_an_event_first_is_in_its_timeline(home: House) -> None:
    """The moment each of its machines first got a document with it; others of the scope are not in it."""
    home.enable("shop")
    event = home.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    guests = home.guests.endpoint
    state = home.guests.documents.views["shop"].state
    for name in ("web-0", "web-0", "web-1"):
        caller = home.guests.documents.callers.named("shop", name)
        assert caller is not None
        guests.record_shown(caller, state)
    home.guests.parts.last_seen.write_sightings(guests.take_sightings())
    seen = [entry for entry in home.get(f"/v1/events/{event}")["timeline"] if entry["what"] == "seen"]
    assert seen == [{"at": "2030-01-01T00:00:00Z", "what": "seen", "who": "web-0"}]


# -- pages


@pytest.mark.parametrize(
    "path", ["/v1/scopes", "/v1/machines", "/v1/maintenances", "/v1/events", "/v1/orders", "/v1/audit", "/v1/tokens"]
)
def test_pages_hold_everything_once(home: House, path: str) -> None:
    """One by one by cursor is the same as all at once, for every list."""
    for machine in ("shop/web-0", "shop/web-1", "blog/db"):
        home.schedule(machine)
    home.token_of("viewer")
    home.post("/v1/clock/advance", {"seconds": 1})
    everything = home.get(f"{path}?limit=500")
    assert everything["next_cursor"] is None
    assert len(everything["items"]) > 1
    seen: list[object] = []
    cursor: str | None = ""
    while cursor is not None:
        page = home.get(f"{path}?limit=1&cursor={cursor}")
        assert len(page["items"]) == 1
        seen += page["items"]
        cursor = page["next_cursor"]
    assert seen == everything["items"]


# -- audit, tokens, clock


def test_the_audit_says_who_and_from_where(home: House) -> None:
    """Newest first; by scope, maintenance and event; the token that was used."""
    made = home.schedule("shop/web-0")
    home.schedule("blog/db")
    entry = home.get(f"/v1/audit?maintenance={made['id']}")["items"][-1]
    assert (entry["who"], entry["action"]) == ("operator", "maintenance submitted")
    assert entry["origin"].startswith("127.0.0.1 by token ")
    event = made["waves"][0]["events"][0]["id"]
    assert {e["event_id"] for e in home.get(f"/v1/audit?event={event}")["items"]} == {event}
    assert {e["scope"] for e in home.get("/v1/audit?scope=shop")["items"]} == {"shop"}


def test_tokens_are_made_listed_and_revoked(home: House) -> None:
    """The secret is shown once; a revoked token is refused at once; one's own cannot be revoked by itself."""
    made = home.post("/v1/tokens", {"name": "ci", "role": "viewer"}, 201)
    assert home.get("/v1/scopes", token=made["token"])["items"]
    listed = home.get("/v1/tokens")["items"]
    assert {token["name"] for token in listed} == {"ci", "operator"}
    assert not any("token" in token or "digest" in token for token in listed)
    assert home.ask("DELETE", f"/v1/tokens/{made['id']}").status == 204
    assert home.ask("GET", "/v1/scopes", token=made["token"]).status == 401
    assert home.ask("DELETE", f"/v1/tokens/{made['id']}").status == 404
    own = next(token["id"] for token in listed if token["name"] == "operator")
    assert home.ask("DELETE", f"/v1/tokens/{own}").status == 409
    assert home.ask("POST", "/v1/tokens", {"name": "x", "role": "owner"}).status == 400
    assert home.ask("POST", "/v1/tokens", {"name": "x", "role": "owner", "scopes": ["none"]}).status == 404


def test_a_held_clock_is_shown_and_confirmed(home: House) -> None:
    """A clock that jumped says from when on it is not trusted; an operator's word goes into the audit, a second is refused."""
    assert home.ask("POST", "/v1/clock/confirm").status == 409
    hold = Hold(trusted=START, noticed=START + timedelta(hours=1), jumped_s=3_600)
    home.service.store.apply(Change(at=START, hold=hold))
    held = {"trusted": "2030-01-01T00:00:00Z", "noticed": "2030-01-01T01:00:00Z", "jumped_s": 3_600}
    assert home.get("/v1/clock")["held"] == held
    assert home.post("/v1/clock/confirm")["held"] is None
    assert home.get("/v1/audit")["items"][0]["action"] == "clock confirmed"


def test_the_clock_is_shown_and_moved(home: House) -> None:
    """A manual clock moves, and what is due happens on the way; it never goes back."""
    home.enable("shop")
    event = home.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    assert home.get("/v1/clock") == {"now": "2030-01-01T00:00:00Z", "kind": "manual", "held": None}
    assert home.post("/v1/clock/advance", {"seconds": 1200})["now"] == "2030-01-01T00:20:00Z"
    assert home.get(f"/v1/events/{event}")["started"] == "2030-01-01T00:15:00Z"
    assert home.ask("POST", "/v1/clock/advance", {"seconds": -1}).status == 422
    assert datetime.fromisoformat(home.get("/v1/clock")["now"]) > START.astimezone(UTC)
