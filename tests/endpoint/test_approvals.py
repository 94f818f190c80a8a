"""Approvals that wait for the writer are saved together, and each is answered for itself."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from forewarn.core.errors import Conflict, Invalid, RequestError
from forewarn.core.lifecycle import GuestApproval
from forewarn.core.model import Actor
from forewarn.endpoint.approvals import MAX_TOGETHER, ApprovalQueue
from tests.support.waiting import PATIENCE_S

Save = Sequence[GuestApproval]


def approval(name: str) -> GuestApproval:
    return GuestApproval("shop", name, ("an event",), Actor(name, "guest"))


class Busy:
    """A writer that is busy until it is released, and what it then saves, batch by batch."""

    def __init__(self, writer: ThreadPoolExecutor) -> None:
        self.saved: list[list[str]] = []
        self.error: Exception | None = None
        self._free = threading.Event()
        writer.submit(self._free.wait, PATIENCE_S)
        self.queue = ApprovalQueue(writer, self._save)

    def release(self) -> None:
        self._free.set()

    def _save(self, approvals: Save) -> list[RequestError | None]:
        if self.error is not None:
            raise self.error
        self.saved.append([each.machine for each in approvals])
        return [Invalid("no") if each.machine == "stranger" else None for each in approvals]


@pytest.fixture
def busy() -> Iterator[Busy]:
    with ThreadPoolExecutor(1) as writer:
        made = Busy(writer)
        yield made
        made.release()


def test_what_waits_is_saved_together_in_order(busy: Busy) -> None:
    """While a write is under way approvals gather; one commit saves them, and a refused one stops no other."""
    futures = [busy.queue.submit(approval(name)) for name in ("web-0", "stranger", "web-1")]
    busy.release()
    assert [type(each.exception(PATIENCE_S)) for each in futures] == [type(None), Invalid, type(None)]
    assert busy.saved == [["web-0", "stranger", "web-1"]]


def test_a_cancelled_approval_is_not_saved(busy: Busy) -> None:
    """An approval that waited too long was answered 503 and leaves the queue."""
    late, other = busy.queue.submit(approval("late")), busy.queue.submit(approval("other"))
    assert late.cancel()
    busy.release()
    assert other.exception(PATIENCE_S) is None
    assert busy.saved == [["other"]]


def test_a_commit_that_fails_fails_for_all_in_it(busy: Busy) -> None:
    """Nothing was saved, so each gets the error."""
    busy.error = Conflict("other requests kept changing the same scopes: try again")
    futures = [busy.queue.submit(approval(name)) for name in ("web-0", "web-1")]
    busy.release()
    assert [each.exception(PATIENCE_S) for each in futures] == [busy.error, busy.error]


def test_one_commit_has_at_most_so_many(busy: Busy) -> None:
    """A very long queue is saved in several commits, so that other decisions come in between."""
    futures = [busy.queue.submit(approval(f"web-{i}")) for i in range(MAX_TOGETHER + 1)]
    busy.release()
    assert [each.exception(PATIENCE_S) for each in futures] == [None] * (MAX_TOGETHER + 1)
    assert [len(batch) for batch in busy.saved] == [MAX_TOGETHER, 1]
