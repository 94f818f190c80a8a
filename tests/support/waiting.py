"""Waiting in tests for what other threads and processes do, without a guess of how long that takes."""

import time
from collections.abc import Callable

CHECK_EVERY_S = 0.02
# Far more than anything needs on a busy machine: it only ends a test that has failed.
PATIENCE_S = 60.0


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_S,
    detail: Callable[[], object] = lambda: "",
    *,
    every_s: float = CHECK_EVERY_S,
) -> None:
    """Wait until a condition is true; the failure shows `detail`."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, f"it did not happen within {seconds:g} s {detail()}".rstrip()
        time.sleep(every_s)
