"""Expectations on what guests do: met, not met, and what a failure says."""

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

WAITING = {**METADATA, "If-None-Match": '"1"', "Prefer": "wait=30"}
ORDER = ("event published", "#2 vm-0 GET", "#3 vm-0 POST", "event approved", "event started")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(2, seed=1) as made:
        yield made


def test_waiting_ends_as_soon_as_it_is_seen(emulator: Emulator) -> None:
    """`wait_seen` returns the very request, also one that comes while it waits."""
    event = emulator.schedule("Reboot", "vm-0")
    guest = threading.Timer(0.05, send, [emulator.endpoint])
    guest.start()
    asked = emulator.wait_seen(event, by="vm-0", within_s=30)
    assert (asked.number, asked.events) == (1, ((event.id, "Scheduled"),))
    guest.join()


def test_seen_in_a_status(emulator: Emulator) -> None:
    """With a status it is not enough to have seen the event earlier."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    with pytest.raises(ExpectationFailed, match="as Started within 0 s"):
        emulator.wait_seen(event, status="Started", within_s=0)
    emulator.approve(event)
    send(emulator.endpoint)
    assert emulator.wait_seen(event, status="Started", within_s=0).number == 2


def test_approved_so_many_times(emulator: Emulator) -> None:
    """Neither fewer nor more."""
    event = emulator.schedule("Reboot", "vm-0")
    with pytest.raises(ExpectationFailed, match="it was approved 0 times"):
        emulator.expect_approval(event, within_s=0)
    approve(emulator.endpoint, event.id, event.id)  # twice in one request is once
    assert [r.machine for r in emulator.expect_approval(event, within_s=0)] == ["vm-0"]
    approve(emulator.endpoint, event.id, source="127.0.0.2")
    with pytest.raises(ExpectationFailed, match=r"approve event .* once within 0 s, but it was approved twice"):
        emulator.expect_approval(event, within_s=0)
    emulator.expect_approval(event, within_s=0, times=2)
    emulator.expect_approval(event, within_s=0, by="vm-1")


def test_a_refused_approval_is_none(emulator: Emulator) -> None:
    """What was answered with an error has not approved; that it was tried does count against `expect_no_approval`."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.set_faults([{"fault": "status", "status": 503, "method": "POST"}])
    assert approve(emulator.endpoint, event.id).status == 503
    with pytest.raises(ExpectationFailed):
        emulator.expect_approval(event, within_s=0)
    with pytest.raises(ExpectationFailed, match="should not be approved, but request 1 approves it"):
        emulator.expect_no_approval(event)


def test_an_approval_whose_answer_was_lost(emulator: Emulator) -> None:
    """It counts where it stays the only one; asking again because nothing came back is no second approval."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.set_faults([{"fault": "reset", "requests": "1-2", "method": "POST"}])
    for _ in range(2):
        with pytest.raises(ConnectionError):
            approve(emulator.endpoint, event.id)
        emulator.expect_approval(event, within_s=0, times=1)
    approve(emulator.endpoint, event.id)
    emulator.expect_approval(event, within_s=0, times=1)
    assert emulator.status(event) == "Started"


def test_nobody_approves(emulator: Emulator) -> None:
    """`expect_no_approval` holds for as long as it is told, and fails at the first approval."""
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
    """`expect_poll` wants new ones of the machine, or all after a request number."""
    send(emulator.endpoint)
    send(emulator.endpoint, path="/metadata/versions")
    with pytest.raises(ExpectationFailed, match="vm-0 should poll once within 0 s, but did not"):
        emulator.expect_poll(by="vm-0", within_s=0)
    assert len(emulator.expect_poll(since=0, within_s=0)) == 1
    guest = threading.Timer(0.05, send, [emulator.endpoint])
    guest.start()
    assert [r.number for r in emulator.expect_poll(by="vm-0", within_s=30)] == [3]
    guest.join()


def test_a_failure_shows_the_timeline(emulator: Emulator) -> None:
    """What guests asked and what the service did, in order, with real time and the service's."""
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


def test_wrong_names_are_told(emulator: Emulator) -> None:
    """An expectation that nothing happens would be met by whatever was never there: it is refused instead."""
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


def test_an_id_may_be_written_small(emulator: Emulator) -> None:
    """It is the same event, and its approval is not overlooked."""
    event = emulator.schedule("Reboot", "vm-0")
    approve(emulator.endpoint, event.id)
    with pytest.raises(ExpectationFailed):
        emulator.expect_no_approval(event.id.lower())
    emulator.expect_approval(event.id.lower(), by="emulated/vm-0", within_s=0)
    assert len(emulator.requests(event=event.id.lower(), machine="emulated/vm-0")) == 1


def test_what_was_counted_is_counted_again_at_the_end(emulator: Emulator) -> None:
    """An approval too many is noticed even when it comes after the expectation; the last count is what holds."""
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
    """However long the run, an approval is found; what is no longer kept is counted."""
    log = RequestLog(lambda: START)
    expectations = Expectations(log)
    polled(log, approves=("E",))
    for _ in range(MAX_REQUESTS + 4):
        polled(log)
    assert [log.gone, log.approvals_gone, len(log.requests())] == [5, 0, MAX_REQUESTS]
    assert [r.number for r in log.requests()][:2] == [1, 7]
    assert log.trace().startswith("… 5 earlier requests are no longer kept\n")
    with pytest.raises(ExpectationFailed, match="request 1 approves it"):
        expectations.no_approval("E")


def test_a_log_full_of_approvals_tells_no_number() -> None:
    """Where the log is not whole, nothing is said of it: neither none nor so many."""
    log = RequestLog(lambda: START)
    expectations = Expectations(log)
    polled(log, approves=("E",))
    expectations.approval("E", within_s=0)
    for _ in range(MAX_REQUESTS):
        polled(log, approves=("F",))
    assert log.approvals_gone == 1
    for negative in (partial(expectations.no_approval, "E"), expectations.no_more):
        with pytest.raises(ExpectationFailed, match="the approvals of event E cannot be counted"):
            negative()


def polled(log: RequestLog, approves: tuple[str, ...] = ()) -> None:
    number = log.add_request(scope="", machine="", method="", target="", headers=(), body=b"", approves=approves).number
    if approves:
        log.add_answer(number, status=200)


def test_causes_stand_before_effects(emulator: Emulator) -> None:
    """A long poll stands where it was answered, after what it tells of; an approval before what it led to."""
    send(emulator.endpoint)
    guest = threading.Thread(target=send, args=[emulator.endpoint], kwargs={"headers": WAITING})
    guest.start()
    emulator.log.wait(lambda requests: requests if len(requests) == 2 else None, 30)
    emulator.log.wait(lambda _: None, 2 * LONG_WAIT_S)  # nothing comes: so long that it is shown
    emulator.advance(60)
    event = emulator.schedule("Reboot", "vm-0")
    guest.join(PATIENCE_S)
    approve(emulator.endpoint, event.id)
    assert emulator.status(event) == "Started"
    lines = emulator.timeline().splitlines()
    places = [next(i for i, line in enumerate(lines) if words in line) for words in ORDER]
    assert places == sorted(places), lines
    assert re.search(r"\+1m  #2 .* \(received at \d+\.\d{3} s\)$", lines[places[1]]), lines
    assert "received at" not in lines[places[2]]
