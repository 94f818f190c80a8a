"""Saves the approvals that wait for the writer's thread together, in one commit.

Machines of a large scope approve in the same moment. A commit for each would let the last one wait for all commits before.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Writer
from concurrent.futures import Future

from forewarn.core.errors import RequestError
from forewarn.core.lifecycle import GuestApproval

# A commit holds up the decisions of other scopes, so it must not take long.
MAX_TOGETHER = 500

Save = Callable[[Sequence[GuestApproval]], "list[RequestError | None]"]


class ApprovalQueue:
    """Approvals in the order in which they came. Each `Future` is done when its approval is saved or refused."""

    def __init__(self, writer: Writer, save: Save) -> None:
        self._writer = writer
        self._save = save
        self._waiting: deque[tuple[GuestApproval, Future[None]]] = deque()
        # Whether the writer's thread is going to take what waits.
        self._requested = False

    def submit(self, approval: GuestApproval) -> "Future[None]":
        """Queue an approval. A cancelled `Future` takes it out of the queue, unless it is being saved."""
        saved: Future[None] = Future()
        self._waiting.append((approval, saved))
        self._request_save()
        return saved

    def _request_save(self) -> None:
        if not self._requested:
            self._requested = True
            self._writer.submit(self._save_waiting)

    def _save_waiting(self) -> None:
        """Save what waits now; runs in the writer's thread. What comes meanwhile is saved by the next call."""
        self._requested = False
        self._save_batch()
        if self._waiting:
            self._request_save()

    def _save_batch(self) -> None:
        found = [self._waiting.popleft() for _ in range(min(MAX_TOGETHER, len(self._waiting)))]
        batch = [(approval, saved) for approval, saved in found if saved.set_running_or_notify_cancel()]
        if not batch:
            return
        errors: Sequence[BaseException | None]
        try:
            errors = self._save([approval for approval, _ in batch])
        except BaseException as failure:
            errors = [failure] * len(batch)
        for (_, saved), error in zip(batch, errors, strict=True):
            if error is None:
                saved.set_result(None)
            else:
                saved.set_exception(error)
