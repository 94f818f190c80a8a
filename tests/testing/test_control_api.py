"""The emulator's control API: what a test in any language needs, over HTTP alone."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forewarn.operator.api.calls import CALLS
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_api import MAX_WAITING
from forewarn.testing.request_log import MAX_REQUESTS
from tests.support.waiting import PATIENCE_S, until
from tests.testing.guests import Reply, approve, ask


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(seed=1) as made:
        yield made


def call(emulator: Emulator, method: str, path: str, body: object = None) -> Reply:
    return ask(emulator.operator_url, method, path, body, headers={"Content-Type": "application/json"})


def expect(emulator: Emulator, **said: object) -> Any:
    reply = call(emulator, "POST", "/v1/emulator/expect", said)
    assert reply.status == 200, reply.raw
    return reply.json


def test_the_example_test_in_any_language(emulator: Emulator) -> None:
    """Schedule, see, advance, approve, finish: each is a call."""
    asked = {"type": "Reboot", "targets": {"machines": ["vm-0"]}}
    event = call(emulator, "POST", "/v1/maintenances", asked).json["waves"][0]["events"][0]["id"]
    guest = threading.Timer(0.05, ask, [emulator.endpoint])
    guest.start()
    assert expect(emulator, what="seen", event=event, machine="vm-0", within_s=30)["passed"]
    guest.join()
    assert call(emulator, "POST", "/v1/clock/advance", {"seconds": 120}).json["now"] == "2030-01-01T00:02:00Z"
    assert expect(emulator, what="no-approval", event=event, within_s=0)["passed"]
    approve(emulator.endpoint, event)
    assert expect(emulator, what="approval", event=event, times=1, within_s=5)["passed"]
    assert expect(emulator, what="poll", since=0, machine="emulated/vm-0")["passed"]
    assert call(emulator, "POST", f"/v1/orders/{event}/finish").status == 200
    assert ask(emulator.endpoint).events == {}


def test_what_is_not_met_says_so(emulator: Emulator) -> None:
    """Passed is false, with a sentence and the timeline."""
    event = emulator.schedule("Reboot", "vm-0")
    ask(emulator.endpoint)
    for said in (
        {"what": "seen", "status": "Started", "event": event.id},
        {"what": "approval", "event": event.id.lower()},
        {"what": "poll"},
    ):
        verdict = expect(emulator, **said, within_s=0)
        assert verdict["passed"] is False
        assert "within 0 s" in verdict["message"]
        assert any("#1 vm-0 GET" in line for line in verdict["timeline"])
    approve(emulator.endpoint, event.id)
    assert "should not be approved" in expect(emulator, what="no-approval", event=event.id)["message"]


@pytest.mark.parametrize(
    ("said", "status", "words"),
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
def test_wrong_expectations_are_refused(emulator: Emulator, said: object, status: int, words: str) -> None:
    """In the API's one shape."""
    reply = call(emulator, "POST", "/v1/emulator/expect", said)
    assert reply.status == status
    assert words in reply.json["error"]["message"]


def test_the_log_over_http(emulator: Emulator) -> None:
    """Oldest first, by page; of a machine, of a method, after a number."""
    event = emulator.schedule("Reboot", "vm-0")
    for _ in range(3):
        ask(emulator.endpoint)
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
        found = call(emulator, "GET", f"/v1/emulator/requests?{query}").json["items"]
        assert [item["number"] for item in found] == numbers
    assert call(emulator, "GET", "/v1/emulator/requests?machine=vm-1").status == 404
    for _ in range(MAX_REQUESTS):
        emulator.log.add_request(scope="", machine="", method="", target="", headers=(), body=b"")
    page = call(emulator, "GET", "/v1/emulator/requests?limit=2").json
    assert (page["gone"], [item["number"] for item in page["items"]]) == (4, [4, 6]), "the approval is kept"


def test_faults_over_http(emulator: Emulator) -> None:
    """Set, struck, refused when wrong (and then the old ones stay), and ended."""
    faults = [{"fault": "status", "status": 503}]
    assert call(emulator, "PUT", "/v1/emulator/faults", {"faults": faults}).json == {"faults": 1}
    assert ask(emulator.endpoint).status == 503
    wrong = call(emulator, "PUT", "/v1/emulator/faults", {"faults": [{"fault": "status", "status": 418}]})
    assert (wrong.status, wrong.json["error"]["code"]) == (400, "invalid_settings")
    assert "fault 1: status: 418" in wrong.json["error"]["message"]
    assert ask(emulator.endpoint).status == 503
    assert call(emulator, "PUT", "/v1/emulator/faults", {"faults": []}).json == {"faults": 0}
    assert ask(emulator.endpoint).status == 200


def test_the_calls_are_described(emulator: Emulator) -> None:
    """In the emulator's OpenAPI document, beside those of the service, whose table has none of them."""
    described = call(emulator, "GET", "/v1/openapi.json").json["paths"]
    ours = {"/v1/emulator/requests", "/v1/emulator/expect", "/v1/emulator/faults"}
    assert ours <= described.keys()
    assert {c.path for c in CALLS} <= described.keys()
    assert not any("emulator" in c.path for c in CALLS)


def test_health_for_ci(emulator: Emulator) -> None:
    """Whoever starts an emulator first can ask whether it is ready."""
    reply = call(emulator, "GET", "/healthz")
    assert (reply.status, reply.json["status"]) == (200, "ok")
    assert call(emulator, "GET", "/readyz").status == 200


def test_pages_of_others_are_refused(emulator: Emulator) -> None:
    """Without tokens only this machine's own programs are answered: a web page is not one."""
    for headers in ({"Origin": "http://example.org"}, {"Host": "example.org"}):
        reply = ask(emulator.operator_url, "GET", "/v1/emulator/requests", headers=headers)
        assert reply.status == 403


def test_nobody_approves_is_told_at_once(emulator: Emulator) -> None:
    """Each expectation has the time it has in Python: no-approval looks, and does not wait."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.expectations.no_approval = lambda event_id, *, by=None, within_s=-1.0: waited.append(within_s)  # type: ignore[method-assign]
    waited: list[float] = []
    assert expect(emulator, what="no-approval", event=event.id)["passed"]
    assert expect(emulator, what="no-approval", event=event.id, within_s=0.5)["passed"]
    assert waited == [0.0, 0.5]


def test_no_more_approvals(emulator: Emulator) -> None:
    """What was counted is counted again on request, as the fixture does at the end of a test."""
    event = emulator.schedule("Reboot", "vm-0")
    approve(emulator.endpoint, event.id)
    assert expect(emulator, what="approval", event=event.id)["passed"]
    assert expect(emulator, what="no-more")["passed"]
    approve(emulator.endpoint, event.id)
    assert "by the end it was approved twice" in expect(emulator, what="no-more")["message"]


def test_many_who_wait_leave_room_for_others(emulator: Emulator) -> None:
    """However many expectations wait, the clock can be moved; one too many is refused, and the others are met."""
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
    assert [reply.status for reply in replies] == [409] * 30
    assert f"{MAX_WAITING} expectations are waiting already" in replies[0].json["error"]["message"]
    ask(emulator.endpoint)
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert [reply.json["passed"] for reply in replies[30:]] == [True] * MAX_WAITING
