"""Expectations on guests: when they are met, when they fail, and the message of a failure."""

import re
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from forewarn.core.errors import NotFound
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_settings import START
from forewarn.testing.expectations import ExpectationFailed, Expectations
from forewarn.testing.request_log import LONG_WAIT_S, MAX_REQUESTS, RequestLog
from tests.support.waiting import PATIENCE_S
from tests.testing.http_guest import METADATA, approve, send

LONG_POLL = {**METADATA, "If-None-Match": '"1"', "Prefer": "wait=30"}
ORDER = ("event published", "#2 vm-0 GET", "#3 vm-0 POST", "event approved", "event started")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(2, seed=1) as running:
        yield running


def poll_until(ended: threading.Event, endpoint: str) -> None:
    """Poll again and again, so that some polls come after the moment at which the test began to wait."""
    while not ended.is_set():
        send(endpoint)


def test_waiting_ends_when_the_event_is_seen(emulator: Emulator) -> None:
    """`wait_seen` returns the request, also one that comes while it waits."""
    event = emulator.schedule("Reboot", "vm-0")
    guest = threading.Timer(0.05, send, [emulator.endpoint])
    guest.start()
    request = emulator.wait_seen(event, by="vm-0", within_s=30)
    assert (request.number, request.events) == (1, ((event.id, "Scheduled"),))
    guest.join()


def test_an_event_must_be_seen_in_the_expected_status(emulator: Emulator) -> None:
    """An earlier document with another status is not enough."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    with pytest.raises(ExpectationFailed, match="as Started within 0 s"):
        emulator.wait_seen(event, status="Started", within_s=0)
    emulator.approve(event)
    send(emulator.endpoint)
    assert emulator.wait_seen(event, status="Started", within_s=0).number == 2


def test_the_number_of_approvals_must_be_exact(emulator: Emulator) -> None:
    """Fewer or more approvals fail. Two in one request count once."""
    event = emulator.schedule("Reboot", "vm-0")
    with pytest.raises(ExpectationFailed, match="it was approved 0 times"):
        emulator.expect_approval(event, within_s=0)
    approve(emulator.endpoint, event.id, event.id)
    assert [r.machine for r in emulator.expect_approval(event, within_s=0)] == ["vm-0"]
    approve(emulator.endpoint, event.id, source="127.0.0.2")
    with pytest.raises(ExpectationFailed, match=r"approve event .* once within 0 s, but it was approved twice"):
        emulator.expect_approval(event, within_s=0)
    emulator.expect_approval(event, within_s=0, times=2)
    emulator.expect_approval(event, within_s=0, by="vm-1")


def test_a_refused_approval_does_not_count(emulator: Emulator) -> None:
    """`expect_no_approval` fails all the same, because the guest tried to approve."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.set_faults([{"fault": "status", "status": 503, "method": "POST"}])
    assert approve(emulator.endpoint, event.id).status == 503
    with pytest.raises(ExpectationFailed):
        emulator.expect_approval(event, within_s=0)
    with pytest.raises(ExpectationFailed, match="should not be approved, but request 1 approves it"):
        emulator.expect_no_approval(event)


def test_an_approval_whose_answer_was_lost_counts_once(emulator: Emulator) -> None:
    """It counts if it is the only one. A guest that repeats it has not approved twice."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.set_faults([{"fault": "reset", "requests": "1-2", "method": "POST"}])
    for _ in range(2):
        with pytest.raises(ConnectionError):
            approve(emulator.endpoint, event.id)
        emulator.expect_approval(event, within_s=0, times=1)
    approve(emulator.endpoint, event.id)
    emulator.expect_approval(event, within_s=0, times=1)
    assert emulator.status(event) == "Started"


def test_no_approval_fails_at_the_first_approval(emulator: Emulator) -> None:
    """Without an approval `expect_no_approval` passes when its time is up."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    emulator.expect_no_approval(event, within_s=0.05)
    guest = threading.Timer(0.05, approve, [emulator.endpoint, event.id])
    guest.start()
    with pytest.raises(ExpectationFailed):
        emulator.expect_no_approval(event, within_s=30)
    guest.join()
    emulator.expect_no_approval(event, by="vm-1")


def test_polls_count_from_now(emulator: Emulator) -> None:
    """With `since`, `expect_poll` counts polls after that request number."""
    send(emulator.endpoint)
    send(emulator.endpoint, path="/metadata/versions")
    with pytest.raises(ExpectationFailed, match="vm-0 should poll once within 0 s, but did not"):
        emulator.expect_poll(by="vm-0", within_s=0)
    assert len(emulator.expect_poll(since=0, within_s=0)) == 1
    seen = threading.Event()
    guest = threading.Thread(target=poll_until, args=[seen, emulator.endpoint])
    guest.start()
    assert min(r.number for r in emulator.expect_poll(by="vm-0", within_s=PATIENCE_S)) >= 3
    seen.set()
    guest.join()


def test_a_failure_shows_the_timeline(emulator: Emulator) -> None:
    """It has the requests and the changes in order, with real time and service time."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    emulator.advance(minutes=15)
    with pytest.raises(ExpectationFailed) as failure:
        emulator.expect_approval(event, within_s=0)
    text = str(failure.value)
    short = event.id[:8]
    line = (
        r"\n +\d+\.\d{3} s +\+0s  #1 vm-0 GET /metadata/scheduledevents\S+ -> 200, document 2: " + short + " Scheduled"
    )
    assert re.search(line, text), text
    assert re.search(r" s +\+15m  event started " + short, text), text
    assert text.index("event published") < text.index("#1 vm-0") < text.index("event started")
    assert isinstance(failure.value, AssertionError)


def test_unknown_names_are_refused(emulator: Emulator) -> None:
    """Otherwise a misspelt name would satisfy an expectation that nothing happens."""
    event = emulator.schedule("Reboot", "vm-0")
    for call in (emulator.wait_seen, emulator.expect_approval, emulator.expect_no_approval):
        with pytest.raises(NotFound, match="there is no event"):
            call(event.maintenance_id, within_s=0)
        with pytest.raises(NotFound, match="there is no machine 'vm-O': there are emulated/vm-0, emulated/vm-1"):
            call(event, by="vm-O", within_s=0)
    with pytest.raises(NotFound, match="there is no machine 'other/vm-0'"):
        emulator.requests(machine="other/vm-0")
    with pytest.raises(NotFound, match="there is no event NONE"):
        emulator.requests(event="NONE")
    with pytest.raises(NotFound, match="there is no machine 'vm-2'"):
        emulator.expect_poll(by="vm-2", within_s=0)


def test_an_id_may_be_in_lower_case(emulator: Emulator) -> None:
    """It is the same event."""
    event = emulator.schedule("Reboot", "vm-0")
    approve(emulator.endpoint, event.id)
    with pytest.raises(ExpectationFailed):
        emulator.expect_no_approval(event.id.lower())
    emulator.expect_approval(event.id.lower(), by="emulated/vm-0", within_s=0)
    assert len(emulator.requests(event=event.id.lower(), machine="emulated/vm-0")) == 1


def test_approvals_are_counted_again_at_the_end(emulator: Emulator) -> None:
    """An approval that comes after the expectation fails `expect_no_more`. The latest expected number counts."""
    event = emulator.schedule("Reboot", "vm-0")
    approve(emulator.endpoint, event.id)
    emulator.expect_approval(event, within_s=0, times=1)
    emulator.expect_no_more()
    approve(emulator.endpoint, event.id)
    with pytest.raises(ExpectationFailed, match=r"once, and did; but by the end it was approved twice"):
        emulator.expect_no_more()
    emulator.expect_approval(event, within_s=0, times=2)
    emulator.expect_no_more()


def test_polls_do_not_push_approvals_out_of_the_log() -> None:
    """An approval stays in the log, and the number of dropped requests is known."""
    log = RequestLog(lambda: START)
    expectations = Expectations(log)
    add_request(log, approves=("E",))
    for _ in range(MAX_REQUESTS + 4):
        add_request(log)
    assert [log.gone, log.approvals_gone, len(log.requests())] == [5, 0, MAX_REQUESTS]
    assert [r.number for r in log.requests()][:2] == [1, 7]
    assert log.trace().startswith("… 5 earlier requests are no longer kept\n")
    with pytest.raises(ExpectationFailed, match="request 1 approves it"):
        expectations.no_approval("E")


def test_expectations_fail_if_approvals_were_dropped() -> None:
    """Approvals cannot be counted in an incomplete log."""
    log = RequestLog(lambda: START)
    expectations = Expectations(log)
    add_request(log, approves=("E",))
    expectations.approval("E", within_s=0)
    for _ in range(MAX_REQUESTS):
        add_request(log, approves=("F",))
    assert log.approvals_gone == 1
    for check in (partial(expectations.no_approval, "E"), expectations.no_more):
        with pytest.raises(ExpectationFailed, match="the approvals of event E cannot be counted"):
            check()


def add_request(log: RequestLog, approves: tuple[str, ...] = ()) -> None:
    number = log.add_request(scope="", machine="", method="", target="", headers=(), body=b"", approves=approves).number
    if approves:
        log.add_answer(number, status=200)


def test_the_timeline_has_causes_before_effects(emulator: Emulator) -> None:
    """A long poll appears when it was answered, after the change; an approval appears before the start."""
    send(emulator.endpoint)
    guest = threading.Thread(target=send, args=[emulator.endpoint], kwargs={"headers": LONG_POLL})
    guest.start()
    emulator.log.wait(lambda requests: requests if len(requests) == 2 else None, 30)
    emulator.log.wait(lambda _: None, 2 * LONG_WAIT_S)  # long enough for the timeline to show the wait
    emulator.advance(60)
    event = emulator.schedule("Reboot", "vm-0")
    guest.join(PATIENCE_S)
    approve(emulator.endpoint, event.id)
    assert emulator.status(event) == "Started"
    lines = emulator.timeline().splitlines()
    positions = [next(i for i, line in enumerate(lines) if text in line) for text in ORDER]
    assert positions == sorted(positions), lines
    assert re.search(r"\+1m  #2 .* \(received at \d+\.\d{3} s\)$", lines[positions[1]]), lines
    assert "received at" not in lines[positions[2]]
