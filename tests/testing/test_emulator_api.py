"""The calls that only an emulator's API has, for tests in any language."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forewarn.operator.api.calls import CALLS
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_api import MAX_WAITING, emulator_calls
from forewarn.testing.expectations import Expectations
from forewarn.testing.request_log import MAX_REQUESTS, RequestLog
from tests.support.waiting import PATIENCE_S, until
from tests.testing.http_guest import Reply, approve, send


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(seed=1) as running:
        yield running


def call(emulator: Emulator, method: str, path: str, body: object = None) -> Reply:
    return send(emulator.operator_url, method, path, body, headers={"Content-Type": "application/json"})


def expect(emulator: Emulator, **expectation: object) -> Any:
    reply = call(emulator, "POST", "/v1/emulator/expect", expectation)
    assert reply.status == (200 if reply.json["passed"] else 409), reply.raw
    return reply.json


def test_a_whole_test_needs_only_http(emulator: Emulator) -> None:
    """Schedule, see, advance, approve and finish are calls of the API."""
    maintenance = {"type": "Reboot", "targets": {"machines": ["vm-0"]}}
    event = call(emulator, "POST", "/v1/maintenances", maintenance).json["waves"][0]["events"][0]["id"]
    guest = threading.Timer(0.05, send, [emulator.endpoint])
    guest.start()
    assert expect(emulator, what="seen", event=event, machine="vm-0", within_s=30)["passed"]
    guest.join()
    assert call(emulator, "POST", "/v1/clock/advance", {"seconds": 120}).json["now"] == "2030-01-01T00:02:00Z"
    assert expect(emulator, what="no-approval", event=event, within_s=0)["passed"]
    approve(emulator.endpoint, event)
    assert expect(emulator, what="approval", event=event, times=1, within_s=5)["passed"]
    assert expect(emulator, what="poll", since=0, machine="emulated/vm-0")["passed"]
    assert call(emulator, "POST", f"/v1/orders/{event}/finish").status == 200
    assert send(emulator.endpoint).events == {}


def test_a_failed_expectation_has_a_message_and_the_timeline(emulator: Emulator) -> None:
    """It answers 409, and `passed` is false."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    for expectation in (
        {"what": "seen", "status": "Started", "event": event.id},
        {"what": "approval", "event": event.id.lower()},
        {"what": "poll"},
    ):
        verdict = expect(emulator, **expectation, within_s=0)
        assert verdict["passed"] is False
        assert "within 0 s" in verdict["message"]
        assert any("#1 vm-0 GET" in line for line in verdict["timeline"])
    approve(emulator.endpoint, event.id)
    assert "should not be approved" in expect(emulator, what="no-approval", event=event.id)["message"]


@pytest.mark.parametrize(
    ("expectation", "status", "message"),
    [
        ({"what": "applause"}, 422, "what"),
        ({"what": "poll", "within_s": 301}, 422, "within_s"),
        ({"what": "poll", "often": 3}, 422, "often"),
        ({"what": "seen"}, 404, "there is no event"),
        ({"what": "approval", "event": "NONE"}, 404, "there is no event NONE"),
        (
            {"what": "poll", "machine": "vm-1", "within_s": 0},
            404,
            "there is no machine 'vm-1': there are emulated/vm-0",
        ),
    ],
)
def test_wrong_expectations_are_refused(emulator: Emulator, expectation: object, status: int, message: str) -> None:
    """The error has the shape of all errors of the API."""
    reply = call(emulator, "POST", "/v1/emulator/expect", expectation)
    assert reply.status == status
    assert message in reply.json["error"]["message"]


def test_the_log_has_pages_and_filters(emulator: Emulator) -> None:
    """Requests are listed oldest first, and can be filtered by machine, method and number."""
    event = emulator.schedule("Reboot", "vm-0")
    for _ in range(3):
        send(emulator.endpoint)
    approve(emulator.endpoint, event.id)
    page = call(emulator, "GET", "/v1/emulator/requests?limit=2").json
    assert [item["number"] for item in page["items"]] == [1, 2]
    rest = call(emulator, "GET", f"/v1/emulator/requests?limit=2&cursor={page['next_cursor']}").json
    assert [item["number"] for item in rest["items"]] == [3, 4]
    assert rest["next_cursor"] is None
    first, last = page["items"][0], rest["items"][1]
    assert first["events"] == [{"id": event.id, "status": "Scheduled"}]
    assert (first["at"], first["status"], first["incarnation"]) == ("2030-01-01T00:00:00Z", 200, 2)
    assert ["metadata", "true"] in first["headers"]
    assert (last["method"], last["approves"]) == ("POST", [event.id])
    assert "StartRequests" in last["body"]
    for query, numbers in (
        ("method=POST", [4]),
        ("since=3", [4]),
        ("machine=vm-0", [1, 2, 3, 4]),
    ):
        items = call(emulator, "GET", f"/v1/emulator/requests?{query}").json["items"]
        assert [item["number"] for item in items] == numbers
    assert call(emulator, "GET", "/v1/emulator/requests?machine=vm-1").status == 404
    for _ in range(MAX_REQUESTS):
        emulator.log.add_request(scope="", machine="", method="", target="", headers=(), body=b"")
    page = call(emulator, "GET", "/v1/emulator/requests?limit=2").json
    assert (page["gone"], [item["number"] for item in page["items"]]) == (4, [4, 6]), "the approval is kept"


def test_faults_can_be_set_and_ended(emulator: Emulator) -> None:
    """Wrong faults are refused, and then the previous faults stay."""
    faults = [{"fault": "status", "status": 503}]
    assert call(emulator, "PUT", "/v1/emulator/faults", {"faults": faults}).json == {"faults": 1}
    assert send(emulator.endpoint).status == 503
    wrong = call(emulator, "PUT", "/v1/emulator/faults", {"faults": [{"fault": "status", "status": 99}]})
    assert (wrong.status, wrong.json["error"]["code"]) == (400, "invalid_settings")
    assert "fault 1: status: 99" in wrong.json["error"]["message"]
    assert send(emulator.endpoint).status == 503
    assert call(emulator, "PUT", "/v1/emulator/faults", {"faults": []}).json == {"faults": 0}
    assert send(emulator.endpoint).status == 200


def test_the_openapi_document_has_the_emulators_calls(emulator: Emulator) -> None:
    """It also has all calls of the service, and the service has no call of the emulator."""
    described = call(emulator, "GET", "/v1/openapi.json").json["paths"]
    expected = described["/v1/emulator/expect"]["post"]["responses"]
    assert expected["409"]["content"] == expected["200"]["content"], "a failed expectation has the same body"
    assert {c.path for c in emulator_calls(emulator)} <= described.keys()
    assert {c.path for c in CALLS} <= described.keys()
    assert not any("emulator" in c.path for c in CALLS)


def test_the_emulator_has_health_pages(emulator: Emulator) -> None:
    """A script can wait until the emulator is ready."""
    reply = call(emulator, "GET", "/healthz")
    assert (reply.status, reply.json["status"]) == (200, "ok")
    assert call(emulator, "GET", "/readyz").status == 200


def test_web_pages_are_refused(emulator: Emulator) -> None:
    """Without tokens the API refuses requests with a foreign Origin or Host."""
    for headers in ({"Origin": "http://example.org"}, {"Host": "example.org"}):
        reply = send(emulator.operator_url, "GET", "/v1/emulator/requests", headers=headers)
        assert reply.status == 403


class TimesExpectations(Expectations):
    """Records for how long `no_approval` is called, and does not wait."""

    def __init__(self, log: RequestLog) -> None:
        super().__init__(log)
        self.times_s: list[float] = []

    def no_approval(self, event_id: str, *, by: str | None = None, within_s: float = -1.0) -> None:
        self.times_s.append(within_s)


def test_no_approval_does_not_wait_by_default(emulator: Emulator) -> None:
    """`no-approval` checks at once, as in Python, and with `within_s` until the time is up."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.expectations = expectations = TimesExpectations(emulator.log)
    assert expect(emulator, what="no-approval", event=event.id)["passed"]
    assert expect(emulator, what="no-approval", event=event.id, within_s=0.5)["passed"]
    assert expectations.times_s == [0.0, 0.5]


def test_no_more_counts_approvals_again(emulator: Emulator) -> None:
    """`no-more` checks the expected numbers again, as the fixture does at the end of a test."""
    event = emulator.schedule("Reboot", "vm-0")
    approve(emulator.endpoint, event.id)
    assert expect(emulator, what="approval", event=event.id)["passed"]
    assert expect(emulator, what="no-more")["passed"]
    approve(emulator.endpoint, event.id)
    assert "by the end it was approved twice" in expect(emulator, what="no-more")["message"]


def test_waiting_expectations_do_not_block_other_calls(emulator: Emulator) -> None:
    """The clock can be moved while the largest number of expectations wait. More are refused, and the others are met."""
    replies: list[Reply] = []
    body = {"what": "poll", "within_s": 60, "since": 0}
    waiting = [
        threading.Thread(target=lambda: replies.append(call(emulator, "POST", "/v1/emulator/expect", body)))
        for _ in range(MAX_WAITING + 30)
    ]
    for thread in waiting:
        thread.start()
    for thread in waiting[:30]:
        thread.join(0.01)
    assert call(emulator, "POST", "/v1/clock/advance", {"seconds": 60}).status == 200
    until(lambda: len(replies) >= 30)
    assert [reply.status for reply in replies] == [503] * 30
    assert f"{MAX_WAITING} calls are waiting already" in replies[0].json["error"]["message"]
    send(emulator.endpoint)
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert [reply.json["passed"] for reply in replies[30:]] == [True] * MAX_WAITING


def test_approvals_are_held_until_the_test_answers(emulator: Emulator) -> None:
    """A long poll returns the held approval. The test lets it pass or answers with an error, and gets the answered request."""
    event = emulator.schedule("Reboot", "vm-0")
    assert call(emulator, "GET", "/v1/emulator/approvals?within_s=0").status == 409
    assert call(emulator, "PUT", "/v1/emulator/approvals", {"hold": True}).json == {"hold": True}
    assert call(emulator, "GET", "/v1/emulator/approvals?within_s=0").json == {"items": []}
    for answer, status, event_status in (({"status": 503}, 503, "Scheduled"), ({}, 200, "Started")):
        guest = threading.Thread(target=approve, args=[emulator.endpoint, event.id])
        guest.start()
        (held,) = call(emulator, "GET", "/v1/emulator/approvals?within_s=60").json["items"]
        assert (held["machine"], held["approves"], held["status"]) == ("vm-0", [event.id], None)
        assert emulator.service.control.event(event.id)[0].status == "Scheduled"
        path = f"/v1/emulator/approvals/{held['number']}"
        assert call(emulator, "POST", path, answer).json["status"] == status
        guest.join(PATIENCE_S)
        assert emulator.service.control.event(event.id)[0].status == event_status
        assert call(emulator, "POST", path, {}).status == 404
    assert call(emulator, "PUT", "/v1/emulator/approvals", {"hold": False}).json == {"hold": False}
    assert approve(emulator.endpoint, event.id).status == 200
    for path, body, status in (("1", {"status": 200}, 422), ("x", {}, 404), ("99", {}, 404)):
        assert call(emulator, "POST", f"/v1/emulator/approvals/{path}", body).status == status


def test_a_guest_that_hangs_up_is_no_longer_held(emulator: Emulator) -> None:
    """Its approval is not listed any more."""
    event = emulator.schedule("Reboot", "vm-0")
    call(emulator, "PUT", "/v1/emulator/approvals", {"hold": True})
    with pytest.raises(TimeoutError):
        send(emulator.endpoint, "POST", body={"StartRequests": [{"EventId": event.id}]}, timeout_s=0.2)
    until(lambda: [request.left for request in emulator.requests(method="POST")] == [True])
    until(lambda: call(emulator, "GET", "/v1/emulator/approvals?within_s=0").json == {"items": []})


def test_machines_have_urls_and_a_reset_is_a_call() -> None:
    """A test in any language finds the URL of each machine, and brings the emulator back to its start."""
    with Emulator(2, seed=1) as emulator:
        items = call(emulator, "GET", "/v1/emulator/endpoints").json["items"]
        assert [item["machine"] for item in items] == ["emulated/vm-0", "emulated/vm-1"]
        event = emulator.schedule("Reboot", "vm-1")
        assert approve(items[1]["url"], event.id).status == 200
        assert expect(emulator, what="approval", event=event.id, machine="vm-1")["passed"]
        assert call(emulator, "POST", "/v1/emulator/reset").json == {"since": 1}
        assert send(emulator.endpoint).events == {}
        assert [r.number for r in emulator.requests()] == [2]
