"""Expectations on what guests do: met, not met, and what a failure says."""

import re
import threading
from collections.abc import Iterator

import pytest

from forewarn.testing.emulator import Emulator
from forewarn.testing.expectations import ExpectationFailed
from tests.testing.guests import approve, ask


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(2, seed=1) as made:
        yield made


def test_waiting_ends_as_soon_as_it_is_seen(emulator: Emulator) -> None:
    """`wait_seen` returns the very request, also one that comes while it waits."""
    event = emulator.schedule("Reboot", "vm-0")
    guest = threading.Timer(0.05, ask, [emulator.endpoint])
    guest.start()
    asked = emulator.wait_seen(event, by="vm-0", within_s=30)
    assert (asked.number, asked.events) == (1, ((event.id, "Scheduled"),))
    guest.join()


def test_seen_in_a_status(emulator: Emulator) -> None:
    """With a status it is not enough to have seen the event earlier."""
    event = emulator.schedule("Reboot", "vm-0")
    ask(emulator.endpoint)
    with pytest.raises(ExpectationFailed, match="as Started within 0 s"):
        emulator.wait_seen(event, status="Started", within_s=0)
    emulator.approve(event)
    ask(emulator.endpoint)
    assert emulator.wait_seen(event, status="Started", within_s=0).number == 2


def test_approved_so_many_times(emulator: Emulator) -> None:
    """Neither fewer nor more."""
    event = emulator.schedule("Reboot", "vm-0")
    with pytest.raises(ExpectationFailed, match="it was approved never"):
        emulator.expect_approval(event, within_s=0)
    approve(emulator.endpoint, event.id, event.id)  # twice in one request is once
    assert [r.machine for r in emulator.expect_approval(event, within_s=0)] == ["vm-0"]
    approve(emulator.endpoint, event.id, source="127.0.0.2")
    with pytest.raises(ExpectationFailed, match=r"approve event .* once within 0 s: it was approved twice"):
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
    with pytest.raises(ExpectationFailed, match="was not to be approved, and request 1 did"):
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
    ask(emulator.endpoint)
    emulator.expect_no_approval(event, within_s=0.05)
    guest = threading.Timer(0.05, approve, [emulator.endpoint, event.id])
    guest.start()
    with pytest.raises(ExpectationFailed):
        emulator.expect_no_approval(event, within_s=30)
    guest.join()
    emulator.expect_no_approval(event, by="vm-1")


def test_polls_count_from_now(emulator: Emulator) -> None:
    """`expect_poll` wants new ones of the machine, or all after a request number."""
    ask(emulator.endpoint)
    ask(emulator.endpoint, path="/metadata/versions")
    with pytest.raises(ExpectationFailed, match="vm-0 was expected to poll once within 0 s"):
        emulator.expect_poll(by="vm-0", within_s=0)
    assert len(emulator.expect_poll(since=0, within_s=0)) == 1
    guest = threading.Timer(0.05, ask, [emulator.endpoint])
    guest.start()
    assert [r.number for r in emulator.expect_poll(by="vm-0", within_s=30)] == [3]
    guest.join()


def test_a_failure_shows_the_timeline(emulator: Emulator) -> None:
    """What guests asked and what the service did, in order, with real time and the service's."""
    event = emulator.schedule("Reboot", "vm-0")
    ask(emulator.endpoint)
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
