"""Waiting in tests: for what comes about in other threads and processes, without guessing how long that takes."""

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02
# Far more than anything needs on a machine that has other things to do as well: it only ends a test that has failed.
PATIENCE_S = 60.0


def until(true: Callable[[], object], seconds: float = PATIENCE_S, told: Callable[[], object] = lambda: "") -> None:
    """`told` is shown when it does not come about."""
    deadline_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline_s, f"it did not happen within {seconds:g} s {told()}".rstrip()
        time.sleep(LOOK_EVERY_S)
