"""What a test decides about an approval before the service gets it: a callback, or an answer over the API.

The callback runs in a thread of its own, because it may wait: the listener's thread answers other guests meanwhile.
"""

import threading
from collections.abc import Callable

from forewarn.core.errors import NotFound, Refused
from forewarn.testing.request_log import LoggedRequest

MAX_CALLBACKS = 64
MAX_HELD_S = 300.0
ENDS_WITHIN_S = 10.0
ERRORS = range(400, 600)
FAILED, UNAVAILABLE = 500, 503

__tracebackhide__ = True  # pytest then shows the line of the test

# Returns None to let the approval pass, or the status of an error.
OnApproval = Callable[[LoggedRequest], int | None]


class Approvals:
    """Calls `callback` for each approval, and keeps its first error to fail the test with it."""

    def __init__(self) -> None:
        self.ends_within_s = ENDS_WITHIN_S
        self.callback: OnApproval | None = None
        self._changed = threading.Condition()
        self._running: set[int] = set()  # the numbers of the requests whose callback runs
        self._failure: BaseException | None = None
        self._held: dict[int, LoggedRequest] = {}  # by the number of the request
        self._answers: dict[int, int | None] = {}
        self._status_of_released: int | None = None

    # -- called by the listener

    def decide(self, request: LoggedRequest, decided: Callable[[int | None], None]) -> bool:
        """Call the callback in a thread, then `decided` with what it returned. Return False if there is no callback."""
        callback = self.callback
        if callback is None:
            return False
        with self._changed:
            if len(self._running) >= MAX_CALLBACKS:
                callback = _too_many
            self._running.add(request.number)
        threading.Thread(target=self._run, args=(callback, request, decided), name="approval", daemon=True).start()
        return True

    def _run(self, callback: OnApproval, request: LoggedRequest, decided: Callable[[int | None], None]) -> None:
        status: int | None = FAILED
        try:
            status = _checked(callback(request))
        except BaseException as error:
            failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)  # without this frame
            with self._changed:
                self._failure = self._failure or failure
        decided(status)
        with self._changed:
            self._running.discard(request.number)
            self._answers.pop(request.number, None)
            self._changed.notify_all()

    def guest_left(self, number: int) -> None:
        """End the hold of an approval whose guest has hung up, also if the thread that will hold it has not begun."""
        with self._changed:
            if number in self._running:
                self._answers[number] = UNAVAILABLE
                self._changed.notify_all()

    # -- called by the test

    def set_callback(self, callback: OnApproval | None, status_of_released: int | None = None) -> None:
        """Replace the callback; approvals that are held get this status, or pass if it is None."""
        with self._changed:
            self.callback, self._status_of_released = callback, status_of_released
            if callback != self.hold:
                for number in self._held:
                    self._answers.setdefault(number, status_of_released)
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise the first error of the callback, once."""
        if (failure := self.take_failure()) is not None:
            raise failure

    def take_failure(self) -> BaseException | None:
        with self._changed:
            failure, self._failure = self._failure, None
        return failure

    def end(self) -> None:
        """Remove the callback, release the approvals that are held, and wait until every callback has returned."""
        self.set_callback(None, UNAVAILABLE)
        self.wait_returned()

    def wait_returned(self) -> None:
        """Wait until every callback that runs has returned."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._running, self.ends_within_s):
                self._failure = self._failure or AssertionError(
                    f"the callback of `on_approval` has not returned {self.ends_within_s:g} s after the test"
                )

    # -- approvals that are held until the API answers them

    def hold(self, request: LoggedRequest) -> int | None:
        """Wait for the answer to this approval. This is a callback."""
        with self._changed:
            if self.callback != self.hold:  # replaced before this thread began
                return self._status_of_released
            self._held[request.number] = request
            self._changed.notify_all()
            self._changed.wait_for(lambda: request.number in self._answers, MAX_HELD_S)
            del self._held[request.number]
            return self._answers.pop(request.number, UNAVAILABLE)

    def set_hold(self, *, hold: bool) -> None:
        """Hold each approval from now on, or let those that are held pass and hold no more."""
        self.set_callback(self.hold if hold else None)

    def wait_held(self, within_s: float) -> list[LoggedRequest]:
        """Return the held approvals as soon as there are any, or none when the time is up."""
        if self.callback != self.hold:
            raise Refused('approvals are not held: first send PUT /v1/emulator/approvals {"hold": true}')
        with self._changed:
            self._changed.wait_for(self._unanswered, within_s)
            return self._unanswered()

    def answer(self, number: int, status: int | None) -> LoggedRequest:
        """Let a held approval pass, or answer it with the status of an error."""
        with self._changed:
            held = {request.number: request for request in self._unanswered()}
            if number not in held:
                raise NotFound(f"approval {number} is not held: held are {', '.join(map(str, held)) or 'none'}")
            self._answers[number] = status
            self._changed.notify_all()
            return held[number]

    def _unanswered(self) -> list[LoggedRequest]:
        return [request for number, request in self._held.items() if number not in self._answers]


def _too_many(_: LoggedRequest) -> int:
    raise AssertionError(
        f"{MAX_CALLBACKS} callbacks of `on_approval` are running already: this approval is answered {FAILED}"
    )


def _checked(status: object) -> int | None:
    if status is None or (isinstance(status, int) and status in ERRORS):
        return status
    raise AssertionError(
        f"the callback of `on_approval` returned {status!r}: return None to let the approval pass, or the status of an error,"
        f" from {ERRORS[0]} to {ERRORS[-1]}"
    )
