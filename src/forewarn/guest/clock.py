"""The machine's own time: the one seam through which the guest side reads a clock or sleeps.

Time left to an event is never computed from the wall clock here: it comes from the answer's Date and the monotonic clock
(`document`). The wall clock only dates journal lines and what people read.
"""

from __future__ import annotations

import time
from pathlib import Path

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class Time:
    """Real time. A test holds one that it moves."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


def boot_id(path: str = BOOT_ID_FILE) -> str:
    """What changes with every boot of this machine; "" where the system has no such thing (then no reboot is noticed)."""
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def shown(wall_s: float) -> str:
    """A moment for people and journals: UTC, to the millisecond."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s))
    return f"{whole}.{int(wall_s * 1000) % 1000:03d}Z"
