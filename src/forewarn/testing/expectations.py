"""What a test may expect of the guests: that they see, approve, do not approve, poll. A failure shows the timeline.

Times here are real seconds: a guest is a real program.
"""

from forewarn.testing.request_log import Asked, RequestLog

WITHIN_S = 10.0
__tracebackhide__ = True  # pytest shows the test's own line


class ExpectationFailed(AssertionError):
    """What was expected, what came instead, and the timeline."""

    def __init__(self, message: str, timeline: list[str]) -> None:
        super().__init__("\n".join([message, "timeline (real time, service time, what happened):", *timeline]))
        self.message = message
        self.timeline = timeline


class Expectations:
    """On a log. How often an event was approved, once expected, holds until the end: `no_more` looks again."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._counted: dict[tuple[str, str | None], int] = {}

    def seen(self, event_id: str, *, by: str | None = None, status: str = "", within_s: float = WITHIN_S) -> Asked:
        """A document with the event in it has reached the machine, or anybody; with `status`, in that status."""

        def found(requests: list[Asked]) -> Asked | None:
            return next((r for r in requests if r.is_of(by) and _shows(r, event_id, status)), None)

        result = self._log.wait(found, within_s)
        if result is None:
            as_what = f" as {status}" if status else ""
            raise self._failed(f"{by or 'nobody'} has not seen event {event_id}{as_what} within {within_s:g} s")
        return result

    def approval(
        self, event_id: str, *, by: str | None = None, times: int = 1, within_s: float = WITHIN_S
    ) -> list[Asked]:
        """Approved so many times, no more so far; an answer that was lost may be asked for again."""

        def enough(requests: list[Asked]) -> list[Asked] | None:
            found = _approvals(requests, event_id, by)
            return found if len(found) >= times else None

        found = self._log.wait(enough, within_s)
        if found is None:
            found = _approvals(self._log.requests(), event_id, by)
        if len(found) != times:
            raise self._failed(
                f"{by or 'anybody'} was expected to approve event {event_id} {_times(times)} within {within_s:g} s: it was"
                f" approved {_times(len(found))}"
            )
        self._whole(event_id)
        self._counted[event_id, by] = times
        return found

    def no_more(self) -> None:
        """Every event is still approved as many times as was last expected."""
        requests = self._log.requests()
        for (event_id, by), times in self._counted.items():
            self._whole(event_id)
            found = len(_approvals(requests, event_id, by))
            if found != times:
                raise self._failed(
                    f"{by or 'anybody'} was expected to approve event {event_id} {_times(times)}, and did so; by the end it"
                    f" was approved {_times(found)}"
                )

    def forget(self) -> None:
        """What was counted so far need not hold."""
        self._counted.clear()

    def no_approval(self, event_id: str, *, by: str | None = None, within_s: float = 0.0) -> None:
        """Nobody asked to start it, not even in vain, until the time is up."""

        def found(requests: list[Asked]) -> Asked | None:
            return next((r for r in requests if r.is_of(by) and event_id in r.approves), None)

        if (asked := self._log.wait(found, within_s)) is not None:
            raise self._failed(f"event {event_id} was not to be approved, and request {asked.number} did")
        self._whole(event_id)

    def poll(
        self, *, by: str | None = None, times: int = 1, within_s: float = WITHIN_S, since: int | None = None
    ) -> list[Asked]:
        """So many more polls are answered, counted from now or from after request number `since`."""
        after = self._log.last_number if since is None else since

        def enough(requests: list[Asked]) -> list[Asked] | None:
            polls = [r for r in requests if r.number > after and r.polls and r.is_of(by) and r.status is not None]
            return polls if len(polls) >= times else None

        found = self._log.wait(enough, within_s)
        if found is None:
            raise self._failed(f"{by or 'anybody'} was expected to poll {_times(times)} within {within_s:g} s")
        return found

    def _whole(self, event_id: str) -> None:
        """Where approvals are no longer kept, nothing is said of how many there were."""
        if self._log.approvals_gone:
            raise self._failed(
                f"how often event {event_id} was approved cannot be told: the log is full of approvals, and the first"
                f" {self._log.approvals_gone} are no longer kept"
            )

    def _failed(self, message: str) -> ExpectationFailed:
        return ExpectationFailed(message, self._log.timeline())


def _shows(asked: Asked, event_id: str, status: str) -> bool:
    return any(shown == event_id and status in ("", told) for shown, told in asked.events)


def _approvals(requests: list[Asked], event_id: str, by: str | None) -> list[Asked]:
    """Those that were done; one whose answer got lost counts only where no other was answered."""
    done = [
        r
        for r in requests
        if r.is_of(by) and event_id in r.approves and (r.status == 200 or (r.status is None and r.lost))
    ]
    return [r for r in done if not r.lost] or done[:1]


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
