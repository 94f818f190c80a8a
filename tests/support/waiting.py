"""Waiting in tests for what other threads and processes do, without a guess of how long that takes."""

import time
from collections.abc import Callable
from typing import TypeVar

CHECK_EVERY_S = 0.02
# Far more than anything needs on a busy machine: it only ends a test that has failed.
PATIENCE_S = 60.0
T = TypeVar("T")


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_S,
    detail: Callable[[], object] = lambda: "",
    *,
    every_s: float = CHECK_EVERY_S,
) -> None:
    """Wait until a condition is true; the failure shows `detail`."""
    first_accepted(condition, bool, seconds, detail, every_s=every_s)


def first_accepted(
    ask: Callable[[], T],
    accepts: Callable[[T], object],
    seconds: float = PATIENCE_S,
    detail: Callable[[], object] | None = None,
    *,
    every_s: float = CHECK_EVERY_S,
) -> T:
    """Ask until an answer is accepted, and return that answer; the failure shows `detail`, or else the last answer."""
    deadline_s = time.monotonic() + seconds
    while not accepts(answer := ask()):
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"it did not happen within {seconds:g} s {detail() if detail else answer}".rstrip())
        time.sleep(every_s)
    return answer
