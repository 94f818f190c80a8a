"""Expectations of a test on its guests: that they see, approve, do not approve, or poll. A failure shows the timeline.

Times here are real seconds, because a guest is a real program.
"""

from collections.abc import Callable
from typing import TypeVar

from forewarn.testing.request_log import LoggedRequest, RequestLog

WITHIN_S = 10.0
T = TypeVar("T")
__tracebackhide__ = True  # pytest then shows the line of the test


class ExpectationFailed(AssertionError):
    """Carries a message, what was expected and what happened instead, and the timeline."""

    def __init__(self, message: str, timeline: list[str]) -> None:
        super().__init__("\n".join([message, "timeline (real time, service time, what happened):", *timeline]))
        self.message = message
        self.timeline = timeline


class Expectations:
    """Checks a request log. It remembers expected numbers of approvals, and `no_more` checks them again at the end.

    `raise_failure` raises the error of the test's callback for approvals, if there is one. Then an expectation does not wait.
    """

    def __init__(self, log: RequestLog, raise_failure: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._raise_failure = raise_failure
        self._expected_approvals: dict[tuple[str, str | None], int] = {}

    def seen(
        self, event_id: str, *, by: str | None = None, status: str = "", within_s: float = WITHIN_S
    ) -> LoggedRequest:
        """Wait for a document with the event, in `status` if given, to reach the machine `by`, or any machine."""

        def find(requests: list[LoggedRequest]) -> LoggedRequest | None:
            return next((r for r in requests if r.is_from(by) and r.shows(event_id, status)), None)

        request = self._wait(find, within_s)
        if request is None:
            in_status = f" as {status}" if status else ""
            missing = f"{by} has not seen" if by else "no machine has seen"
            raise self._failed(f"{missing} event {event_id}{in_status} within {within_s:g} s")
        return request

    def approval(
        self, event_id: str, *, by: str | None = None, times: int = 1, within_s: float = WITHIN_S
    ) -> list[LoggedRequest]:
        """Wait for exactly this many approvals. A guest may repeat an approval whose answer was lost."""

        def find(requests: list[LoggedRequest]) -> list[LoggedRequest] | None:
            approvals = _approvals(requests, event_id, by)
            return approvals if len(approvals) >= times else None

        approvals = self._wait(find, within_s)
        if approvals is None:
            approvals = _approvals(self._log.requests(), event_id, by)
        if len(approvals) != times:
            raise self._failed(
                f"{by or 'any machine'} should approve event {event_id} {_times(times)} within {within_s:g} s, but it was"
                f" approved {_times(len(approvals))}"
            )
        self._check_log_complete(event_id)
        self._expected_approvals[event_id, by] = times
        return approvals

    def no_more(self) -> None:
        """Check that every event is still approved as many times as last expected."""
        self._raise_failure()
        requests = self._log.requests()
        for (event_id, by), times in self._expected_approvals.items():
            self._check_log_complete(event_id)
            count = len(_approvals(requests, event_id, by))
            if count != times:
                raise self._failed(
                    f"{by or 'any machine'} should approve event {event_id} {_times(times)}, and did; but by the end it was"
                    f" approved {_times(count)}"
                )

    def forget(self) -> None:
        """Forget the expected numbers of approvals."""
        self._expected_approvals.clear()

    def no_approval(self, event_id: str, *, by: str | None = None, within_s: float = 0.0) -> None:
        """Check until the time is up that no request tried to approve the event, successfully or not."""

        def find(requests: list[LoggedRequest]) -> LoggedRequest | None:
            return next((r for r in requests if r.is_from(by) and event_id in r.approves), None)

        if (request := self._wait(find, within_s)) is not None:
            raise self._failed(f"event {event_id} should not be approved, but request {request.number} approves it")
        self._check_log_complete(event_id)

    def poll(
        self, *, by: str | None = None, times: int = 1, within_s: float = WITHIN_S, since: int | None = None
    ) -> list[LoggedRequest]:
        """Wait for this many answered polls, counted from now or from after request number `since`."""
        after = self._log.last_number if since is None else since

        def find(requests: list[LoggedRequest]) -> list[LoggedRequest] | None:
            polls = [r for r in requests if r.number > after and r.polls and r.is_from(by) and r.status is not None]
            return polls if len(polls) >= times else None

        polls = self._wait(find, within_s)
        if polls is None:
            raise self._failed(f"{by or 'any machine'} should poll {_times(times)} within {within_s:g} s, but did not")
        return polls

    def _wait(self, find: Callable[[list[LoggedRequest]], T | None], within_s: float) -> T | None:
        def find_or_raise(requests: list[LoggedRequest]) -> T | None:
            self._raise_failure()
            return find(requests)

        return self._log.wait(find_or_raise, within_s)

    def _check_log_complete(self, event_id: str) -> None:
        """Fail if the log has dropped approvals, because then approvals cannot be counted."""
        if self._log.approvals_gone:
            raise self._failed(
                f"the approvals of event {event_id} cannot be counted: the log is full of approvals, and the first"
                f" {self._log.approvals_gone} are no longer kept"
            )

    def _failed(self, message: str) -> ExpectationFailed:
        return ExpectationFailed(message, self._log.timeline())


def _approvals(requests: list[LoggedRequest], event_id: str, by: str | None) -> list[LoggedRequest]:
    """Return the requests that approved the event. An approval without an answer counts only if no other was answered."""
    approvals = [
        r
        for r in requests
        if r.is_from(by) and event_id in r.approves and (r.status == 200 or (r.status is None and r.lost))
    ]
    return [r for r in approvals if not r.lost] or approvals[:1]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
