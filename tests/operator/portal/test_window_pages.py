"""The page of windows and no-go times: its forms, without JavaScript, and who may use them."""

import re
from collections.abc import Iterator

import pytest

from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import RunningService, running_service

NIGHTS = {"name": "nights", "when": "Mon-Fri 22:00-05:00\r\nSat,Sun 00:00-24:00", "zone": "Europe/Berlin"}
FAIR = {
    "no_go_name": "fair",
    "reason": "the fair",
    "start": "2030-01-03T10:00",
    "end": "2030-01-04T12:30",
    "no_go_when": "",
    "no_go_zone": "UTC",
    "scopes": "shop, blog",
    "labels": "",
}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def test_a_window_is_added_changed_extended_and_removed(service: RunningService) -> None:
    """The week links to the page; an open window can be extended, and a removal asks first."""
    operator = PortalClient(service)
    assert "Change windows and no-go times" in page_text(operator.get("/week"))
    made = operator.post("/windows", NIGHTS)
    assert (made.status, made.headers["location"]) == (303, "/windows?done=window-set")
    assert service.get("/v1/windows/nights")["when"] == ["Mon-Fri 22:00-05:00", "Sat,Sun 00:00-24:00"]
    shown = page_text(operator.get("/windows?done=window-set"))
    assert "Scopes and maintenances can use the window" in shown
    assert "Extend window nights" in shown
    # It is Tuesday, one o'clock in Berlin.
    extended = operator.post("/windows/nights/extend", {"until": "2030-01-01T06:30"})
    assert (extended.status, extended.headers["location"]) == (303, "/windows?done=window-extend")
    assert service.get("/v1/windows/nights")["extended_until"] == "2030-01-01T06:30:00Z"
    assert ", extended" in page_text(operator.get("/windows")).replace(" ,", ",")
    operator.post("/windows", {**NIGHTS, "when": "Sat 10:00-12:00"})
    assert service.get("/v1/windows/nights")["when"] == ["Sat 10:00-12:00"]
    asked = page_text(operator.get("/windows/nights/remove"))
    assert "The window nights: Sat 10:00-12:00 Europe/Berlin" in asked
    removed = operator.post("/windows/nights/remove", {})
    assert (removed.status, removed.headers["location"]) == (303, "/windows?done=window-remove")
    assert "There are no windows" in page_text(operator.get("/windows"))


def test_a_no_go_time_is_added_and_removed(service: RunningService) -> None:
    """Once or every week, for scopes, labels or the fleet."""
    operator = PortalClient(service)
    assert operator.post("/no-go-times", FAIR).headers["location"] == "/windows?done=no-go-set"
    found = service.get("/v1/no-go-times/fair")
    assert (found["start"], found["scopes"]) == ("2030-01-03T10:00:00Z", ["shop", "blog"])
    weekly = {**FAIR, "no_go_name": "office", "start": "", "end": "", "no_go_when": "Mon-Fri 08:00-18:00", "scopes": ""}
    assert operator.post("/no-go-times", weekly).status == 303
    shown = page_text(operator.get("/windows"))
    assert "shop, blog the fair" in shown
    assert "office Mon-Fri 08:00-18:00 UTC the whole fleet" in shown
    assert "The no-go time fair: the fair" in page_text(operator.get("/no-go-times/fair/remove"))
    assert operator.post("/no-go-times/fair/remove", {}).headers["location"] == "/windows?done=no-go-remove"
    assert service.request("GET", "/v1/no-go-times/fair").status == 404


def test_a_refused_form_keeps_what_was_typed(service: RunningService) -> None:
    """The message stands at the form, which has its fields again."""
    operator = PortalClient(service)
    wrong = operator.post("/windows", {**NIGHTS, "when": "noon"})
    assert wrong.status == 400
    assert "is not a time of the week" in page_text(wrong)
    assert len(re.findall(r'<input id="name" [^>]* autofocus>', wrong.raw.decode())) == 1
    assert ">noon</textarea>" in wrong.raw.decode()
    unnamed = operator.post("/windows", {**NIGHTS, "name": "a/b"})
    assert "is not a name" in page_text(unnamed)
    neither = operator.post("/no-go-times", {**FAIR, "start": "", "no_go_name": "x y"})
    assert (neither.status, 'value="x y"' in neither.raw.decode()) == (400, True)
    assert "needs a start and an end" in page_text(operator.post("/no-go-times", {**FAIR, "end": ""}))
    operator.post("/windows", NIGHTS)
    late = operator.post("/windows/nights/extend", {"until": "2029-01-01T06:30"})
    assert (late.status >= 400, 'value="2029-01-01T06:30"' in late.raw.decode()) == (True, True)
    # A form that was submitted after the login had ended, or by another site.
    for path in ("/windows", "/no-go-times", "/windows/nights/extend"):
        forged = operator.post(path, {"until": "2030-01-01T07:00", "name": "kept", "no_go_name": "kept", "proof": "x"})
        assert forged.status == 403
        assert "kept" in forged.raw.decode() or "2030-01-01T07:00" in forged.raw.decode()
    assert operator.get("/windows/nights/extend").headers["location"] == "/windows"
    assert operator.get("/no-go-times").headers["location"] == "/windows"


def test_others_see_the_page_without_forms(service: RunningService) -> None:
    """An owner sees what concerns the owner's scopes, and may change nothing."""
    operator = PortalClient(service)
    operator.post("/windows", NIGHTS)
    service.request("PUT", "/v1/scopes/shop", {"kind": "availability-set", "windows": ["nights"]})
    owner = PortalClient(service, token=service.token_of("owner", "shop"))
    shown = page_text(owner.get("/windows"))
    assert "nights" in shown
    assert "Remove" not in shown
    assert "Save" not in shown
    assert "Change windows" not in page_text(owner.get("/week"))
    refused = owner.post("/windows", NIGHTS)
    assert refused.status == 403
    assert owner.post("/windows/nights/remove", {}).status == 403
