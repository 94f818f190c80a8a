"""Callbacks for approvals: they run before an approval is recorded, and may fail the test, delay or refuse."""

import http.client
import re
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.core.errors import NotFound, Refused
from forewarn.testing.approvals import MAX_CALLBACKS, Approvals, OnApproval
from forewarn.testing.emulator import Emulator, Scheduled
from forewarn.testing.emulator_settings import START
from forewarn.testing.expectations import ExpectationFailed
from forewarn.testing.request_log import LoggedRequest
from tests.support.waiting import PATIENCE_S, until
from tests.testing.http_guest import DOCUMENT, METADATA, Reply, approve, send, send_raw


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(2, seed=1) as running:
        yield running


class Guest(threading.Thread):
    """Approves an event in a thread of its own."""

    def __init__(self, emulator: Emulator, event: Scheduled, source: str = "127.0.0.1") -> None:
        super().__init__(daemon=True)
        self._arguments = (emulator.endpoint, event.id, source)
        self.replies: list[Reply] = []
        self.start()

    def run(self) -> None:
        endpoint, event_id, source = self._arguments
        self.replies.append(approve(endpoint, event_id, source=source))

    def status(self) -> int:
        self.join(PATIENCE_S)
        return self.replies[0].status


def test_the_callback_comes_before_the_approval_is_recorded(emulator: Emulator) -> None:
    """It gets the request, in a thread that is neither the test's nor the listener's."""
    event = emulator.schedule("Reboot", "vm-0")
    calls: list[tuple[str, tuple[str, ...], str, str]] = []

    @emulator.on_approval
    def check(request: LoggedRequest) -> None:
        calls.append((request.machine, request.approves, emulator.status(event), threading.current_thread().name))

    assert approve(emulator.endpoint, event.id).status == 200
    assert calls == [("vm-0", (event.id,), "Scheduled", "approval")]
    assert emulator.status(event) == "Started"
    emulator.on_approval(None)
    approve(emulator.endpoint, event.id)
    assert len(calls) == 1


def test_the_callback_gets_only_well_formed_approvals(emulator: Emulator) -> None:
    """Requests that the service refuses before it looks for the event, and those that a fault fails, do not reach it."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.on_approval(lambda _: pytest.fail("it was called"))
    body = {"StartRequests": [{"EventId": event.id}]}
    assert send(emulator.endpoint, "POST", body=body, headers={}).status == 400
    assert send(emulator.endpoint, "POST", body={}).status == 400
    assert send(emulator.endpoint, "POST", body=body, source="127.0.0.9").status == 404
    emulator.set_faults([{"fault": "status", "status": 503}])
    assert approve(emulator.endpoint, event.id).status == 503
    emulator.expect_no_more()


def test_an_error_status_records_nothing(emulator: Emulator) -> None:
    """The guest gets the status, and may approve again."""
    event = emulator.schedule("Reboot", "vm-0")
    statuses = iter((503, 418, 599, None))
    emulator.on_approval(lambda _: next(statuses))
    assert approve(emulator.endpoint, event.id).headers["retry-after"] == "1"
    assert [approve(emulator.endpoint, event.id).status for _ in range(2)] == [418, 599]
    assert emulator.status(event) == "Scheduled"
    assert approve(emulator.endpoint, event.id).status == 200
    emulator.expect_approval(event, within_s=0, times=1)
    assert [r.status for r in emulator.requests(method="POST")] == [503, 418, 599, 200]


def test_other_guests_are_answered_during_a_delay(emulator: Emulator) -> None:
    """A callback that waits delays only its own guest: others poll and approve meanwhile."""
    first, other = emulator.schedule("Reboot", "vm-0"), emulator.schedule("Reboot", "vm-1")
    may_return, waits = threading.Event(), threading.Event()

    def wait_for_vm_0(request: LoggedRequest) -> None:
        if request.machine == "vm-0":
            waits.set()
            assert may_return.wait(PATIENCE_S)

    emulator.on_approval(wait_for_vm_0)
    guest = Guest(emulator, first)
    assert waits.wait(PATIENCE_S)
    assert send(emulator.endpoint).events == {first.id: "Scheduled", other.id: "Scheduled"}
    assert approve(emulator.endpoint, other.id, source="127.0.0.2").status == 200
    assert emulator.status(first) == "Scheduled"
    with pytest.raises(ExpectationFailed, match="approved 0 times"):
        emulator.expect_approval(first, within_s=0)
    assert "approving" in emulator.timeline()
    may_return.set()
    assert guest.status() == 200
    emulator.expect_approval(first, within_s=0)


def test_requests_of_one_connection_stay_in_order(emulator: Emulator) -> None:
    """A request that arrives during the callback is answered after the approval."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.on_approval(lambda _: 503)
    body = f'{{"StartRequests": [{{"EventId": "{event.id}"}}]}}'
    head = f"{DOCUMENT} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n"
    post, get = f"POST {head}Content-Length: {len(body)}\r\n\r\n{body}", f"GET {head}Connection: close\r\n\r\n"
    received = send_raw(emulator.endpoint, (post + get).encode())
    assert re.findall(rb"HTTP/1.1 ([0-9]+)", received) == [b"503", b"200"]
    assert event.id.encode() in received
    assert [r.method for r in emulator.requests()] == ["POST", "GET"]


def test_a_guest_that_hangs_up_has_not_approved(emulator: Emulator) -> None:
    """Nothing is recorded, and the request does not count as an approval whose answer was lost."""
    event = emulator.schedule("Reboot", "vm-0")
    may_return, waits = threading.Event(), threading.Event()

    def wait(_: LoggedRequest) -> None:
        waits.set()
        assert may_return.wait(PATIENCE_S)

    emulator.on_approval(wait)
    address = urlsplit(emulator.endpoint)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
    connection.request("POST", DOCUMENT, f'{{"StartRequests": [{{"EventId": "{event.id}"}}]}}', METADATA)
    assert waits.wait(PATIENCE_S)
    connection.close()
    until(lambda: emulator.requests()[0].left)
    may_return.set()
    emulator.approvals.wait_returned()
    send(emulator.endpoint)
    assert emulator.status(event) == "Scheduled"
    with pytest.raises(ExpectationFailed, match="approved 0 times"):
        emulator.expect_approval(event, within_s=0)
    assert "-> no answer, and the guest hung up" in emulator.timeline()


def test_a_failed_assertion_ends_a_waiting_expectation(emulator: Emulator) -> None:
    """The error is the callback's own. It is raised once, and the guest gets 500."""
    event = emulator.schedule("Reboot", "vm-0")

    def check(_: LoggedRequest) -> None:
        raise AssertionError("not drained")

    emulator.on_approval(check)
    guest = Guest(emulator, event)
    with pytest.raises(AssertionError, match=r"^not drained$"):
        emulator.expect_approval(event, within_s=PATIENCE_S)
    assert guest.status() == 500
    assert emulator.status(event) == "Scheduled"
    emulator.expect_no_more()


def run_and_approve(
    callback: OnApproval, called: threading.Event, error: Exception | None = None, *, ends_within_s: float = PATIENCE_S
) -> None:
    """Run an emulator whose guest approves, until the callback is called; then end with the error, if there is one."""
    with Emulator() as emulator:
        emulator.approvals.ends_within_s = ends_within_s
        event = emulator.schedule("Reboot", "vm-0")
        emulator.on_approval(callback)
        threading.Thread(target=hang_up_is_fine, args=(emulator, event), daemon=True).start()
        assert called.wait(PATIENCE_S)
        if error is not None:
            raise error


def test_a_failed_assertion_is_raised_at_the_end() -> None:
    """It is raised although the test waits for nothing, also if the callback still runs, but not over another error."""
    called = threading.Event()

    def check(_: LoggedRequest) -> None:
        called.set()
        pytest.fail("not drained")

    with pytest.raises(pytest.fail.Exception, match="not drained"):
        run_and_approve(check, called)
    with pytest.raises(ZeroDivisionError):
        run_and_approve(check, called, ZeroDivisionError())


def test_a_callback_that_does_not_return_fails_the_test() -> None:
    """The end of the emulator waits for callbacks only for a while."""
    may_return, called = threading.Event(), threading.Event()

    def wait(_: LoggedRequest) -> None:
        called.set()
        may_return.wait(PATIENCE_S)

    with pytest.raises(AssertionError, match=r"`on_approval` has not returned 0\.05 s after the test"):
        run_and_approve(wait, called, ends_within_s=0.05)
    may_return.set()


def hang_up_is_fine(emulator: Emulator, event: Scheduled) -> None:
    """Approve on a connection that the emulator may close without an answer."""
    try:
        approve(emulator.endpoint, event.id)
    except (OSError, http.client.HTTPException):
        return


def test_other_results_of_a_callback_fail_the_test(emulator: Emulator) -> None:
    """The message says what a callback may return."""
    event = emulator.schedule("Reboot", "vm-0")
    results: list[Any] = [200, 600, True, "503"]
    for wrong in results:
        emulator.on_approval(lambda _, wrong=wrong: wrong)  # type: ignore[misc]
        assert approve(emulator.endpoint, event.id).status == 500
        with pytest.raises(
            AssertionError, match=r"returned .*: return None .*, or the status of an error, from 400 to 599"
        ):
            emulator.expect_no_more()
    assert emulator.status(event) == "Scheduled"


def request_to_approve(number: int) -> LoggedRequest:
    return LoggedRequest(number=number, at=START, at_s=0.0, scope="", machine="", method="POST", target=DOCUMENT)


def test_an_async_callback_is_refused(emulator: Emulator) -> None:
    """Nobody would await it, so none of its checks would run."""

    async def check(_: LoggedRequest) -> None:
        """Check nothing: it is never called."""

    with pytest.raises(Refused, match="on_approval: the callback must not be async"):
        emulator.on_approval(check)  # type: ignore[arg-type]


def test_the_number_of_callbacks_is_limited() -> None:
    """An approval over the limit is answered with an error, and the test fails."""
    may_return = threading.Event()
    statuses: list[int | None] = []
    decisions = Approvals()
    decisions.callback = lambda _: None if may_return.wait(PATIENCE_S) else 500
    for number in range(MAX_CALLBACKS + 1):
        assert decisions.decide(request_to_approve(number), statuses.append)
    until(lambda: statuses == [500])
    may_return.set()
    decisions.wait_returned()
    assert statuses.count(None) == MAX_CALLBACKS
    with pytest.raises(AssertionError, match="64 callbacks of `on_approval` are running already"):
        decisions.raise_failure()


def test_held_approvals_wait_for_their_answers() -> None:
    """An unanswered one is answered with 503 at the end, and an unknown or answered one cannot be answered."""
    with Emulator(2) as emulator:
        first, other = emulator.schedule("Reboot", "vm-0"), emulator.schedule("Reboot", "vm-1")
        held = emulator.approvals
        with pytest.raises(Refused, match="approvals are not held: first send PUT"):
            held.wait_held(0)
        held.set_hold(hold=True)
        assert held.wait_held(0) == []
        guest = Guest(emulator, first)
        (request,) = held.wait_held(PATIENCE_S)
        held.answer(request.number, 429)
        assert guest.status() == 429
        with pytest.raises(NotFound, match=f"approval {request.number} is not held: held are none"):
            held.answer(request.number, None)
        guests = [Guest(emulator, first), Guest(emulator, other, "127.0.0.2")]
        until(lambda: len(held.wait_held(PATIENCE_S)) == 2)
        held.set_hold(hold=False)
        assert [guest.status() for guest in guests] == [200, 200]
        held.set_hold(hold=True)
        threading.Thread(target=hang_up_is_fine, args=(emulator, first), daemon=True).start()
        held.wait_held(PATIENCE_S)


def test_an_approval_is_not_held_if_its_guest_hung_up_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the thread that holds an approval may begin only after the guest has hung up."""
    begins = threading.Event()
    run = Approvals._run

    def run_late(decisions: Approvals, *arguments: Any) -> None:
        assert begins.wait(PATIENCE_S)
        run(decisions, *arguments)

    monkeypatch.setattr(Approvals, "_run", run_late)
    decisions, statuses = Approvals(), SimpleQueue[int | None]()
    decisions.set_hold(hold=True)
    assert decisions.decide(request_to_approve(1), statuses.put)
    decisions.guest_left(1)
    begins.set()
    assert statuses.get(timeout=PATIENCE_S) == 503
    assert decisions.wait_held(0) == []


def test_held_approvals_pass_also_if_the_next_ones_are_held(emulator: Emulator) -> None:
    """The thread of a held approval may wake up only after the test holds approvals again."""
    held, event = emulator.approvals, emulator.schedule("Reboot", "vm-0")
    held.set_hold(hold=True)
    guest = Guest(emulator, event)
    assert held.wait_held(PATIENCE_S)
    held.set_hold(hold=False)
    held.set_hold(hold=True)
    assert guest.status() == 200
    assert emulator.status(event) == "Started"
