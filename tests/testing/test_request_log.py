"""The request log: what it has of each request, how it is read, and its limits."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_settings import START
from forewarn.testing.request_log import MAX_BODY_BYTES, MAX_EQUAL_POLLS, MAX_REQUESTS, MAX_TIMELINE, RequestLog
from tests.support.waiting import PATIENCE_S
from tests.testing.http_guest import DOCUMENT, METADATA, approve, send, send_raw


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(seed=1) as running:
        yield running


def test_the_log_has_all_details_of_a_request(emulator: Emulator) -> None:
    """Each request has number, both clocks, machine, method, target, headers, body, status, document and approvals."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint, headers={**METADATA, "X-Mine": "yes"})
    emulator.advance(minutes=1)
    approve(emulator.endpoint, event.id.lower())
    send(emulator.endpoint, path="/nowhere")
    first, second, third = emulator.requests()
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert [first.at, second.at] == [START, START + timedelta(minutes=1)]
    assert 0 < first.at_s <= (first.answered_s or 0) <= second.at_s
    assert (first.scope, first.machine, first.method, first.target) == ("emulated", "vm-0", "GET", DOCUMENT)
    assert (first.header("x-mine"), first.header("Metadata"), first.header("absent")) == ("yes", "true", None)
    assert (first.status, first.incarnation, first.events) == (200, 2, ((event.id, "Scheduled"),))
    assert (second.method, second.approves, second.status) == ("POST", (event.id,), 200)
    assert b"StartRequests" in second.body
    assert (third.status, third.incarnation, third.events) == (404, None, ())


def test_requests_can_be_filtered(emulator: Emulator) -> None:
    """Filters are the method, the event, and the number of an earlier request."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    approve(emulator.endpoint, event.id)
    send(emulator.endpoint, path="/metadata/versions")
    assert [r.number for r in emulator.requests(method="POST")] == [2]
    assert [r.number for r in emulator.requests(event=event)] == [1, 2]
    assert [r.number for r in emulator.requests(since=1)] == [2, 3]


def test_control_characters_are_escaped() -> None:
    """A guest cannot send commands to the terminal of a reader."""
    log = RequestLog(lambda: START)
    log.add_request(scope="", machine="", method="GET", target="/\x9b2J", headers=(), body=b"")
    assert log.trace() == "+0s #1 unknown GET /\\x9b2J -> no answer yet\n"


def test_an_invalid_request_is_logged(emulator: Emulator) -> None:
    """It has a status, but no method."""
    send_raw(emulator.endpoint, b"\x00\x01\r\n\r\n")
    (request,) = emulator.requests()
    assert (request.method, request.status, request.machine) == ("", 400, "vm-0")


def test_requests_on_one_connection_are_each_logged(emulator: Emulator) -> None:
    """Pipelined and repeated requests are logged one by one, not answered from a cache."""
    request = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n" % DOCUMENT.encode()
    last = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert send_raw(emulator.endpoint, request * 3 + last).count(b"HTTP/1.1 200 OK") == 4
    assert [r.number for r in emulator.requests()] == [1, 2, 3, 4]


def test_a_waiting_long_poll_is_in_the_log(emulator: Emulator) -> None:
    """It has no status until it is answered."""
    replies = []
    headers = {**METADATA, "If-None-Match": '"1"', "Prefer": "wait=30"}
    guest = threading.Thread(
        target=lambda: replies.append(send(emulator.endpoint, headers=headers, timeout_s=PATIENCE_S))
    )
    guest.start()
    request = emulator.log.wait(lambda requests: requests[0] if requests else None, PATIENCE_S)
    assert request is not None
    assert request.status is None
    assert "no answer yet" in str(request)
    event = emulator.schedule("Reboot", "vm-0")
    assert emulator.wait_seen(event, within_s=PATIENCE_S).number == 1
    guest.join(PATIENCE_S)
    assert replies[0].events == {event.id: "Scheduled"}


def test_the_log_is_bounded(emulator: Emulator) -> None:
    """It keeps the beginning of bodies, the latest requests, and the end of the timeline."""
    send(emulator.endpoint, "POST", body="x" * 2 * MAX_BODY_BYTES)
    assert len(emulator.requests()[0].body) == MAX_BODY_BYTES
    log = RequestLog(lambda: START)
    for _ in range(MAX_REQUESTS + 5):
        log.add_request(scope="", machine="", method="GET", target="/", headers=(), body=b"")
    assert [log.requests()[0].number, log.requests()[-1].number] == [6, MAX_REQUESTS + 5]
    assert len(log.timeline()) == MAX_TIMELINE + 1
    assert log.timeline()[0] == f"… {MAX_REQUESTS + 5 - MAX_TIMELINE} earlier entries"


def test_the_timeline_shortens_equal_polls_in_a_row() -> None:
    """It shows the first and the last, and how many polls are between. Other requests and few polls stay as they are."""
    log = RequestLog(lambda: START)

    def poll(times: int, incarnation: int) -> None:
        for _ in range(times):
            request = log.add_request(scope="s", machine="vm-0", method="GET", target=DOCUMENT, headers=(), body=b"")
            log.add_answer(request.number, status=200, incarnation=incarnation)

    poll(MAX_EQUAL_POLLS, 1)
    poll(MAX_EQUAL_POLLS + 1, 2)
    log.add_note("a note")
    poll(MAX_TIMELINE * 2, 2)
    lines = [line[23:] for line in log.timeline()]
    numbers = [line.partition(" ")[0] for line in lines]
    assert numbers == ["#1", "#2", "#3", "#4", "#5", "…", "#9", "a", "#10", "…", "#209"]
    assert lines[5] == "… 3 more polls with this answer"
    assert lines[9] == "… 198 more polls with this answer"


def test_the_timeline_counts_shortened_polls_among_the_earlier_entries() -> None:
    """A line that stands for several polls counts as many entries when it is left out."""
    log = RequestLog(lambda: START)
    for _ in range(MAX_EQUAL_POLLS + 1):
        request = log.add_request(scope="s", machine="vm-0", method="GET", target=DOCUMENT, headers=(), body=b"")
        log.add_answer(request.number, status=200)
    for _ in range(MAX_TIMELINE):
        log.add_note("a note")
    assert log.timeline()[0] == f"… {MAX_EQUAL_POLLS + 1} earlier entries"
