"""The machine's own time. The guest side reads a clock or sleeps only through this module.

The wall clock only dates journal lines and texts for people. The time left to an event comes from the response's Date and the
monotonic clock (`document`).
"""

from __future__ import annotations

import time

from forewarn.guest.safe_files import read_regular
from forewarn.guest.system import system

MAX_BOOT_ID_BYTES = 1024


class Time:
    """Real time; a test supplies its own."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


def boot_id(path: str = system.BOOT_ID_FILE) -> str:
    """Return the id of this boot from the file, or from the system; "" where there is none: the agent notices no reboot."""
    if not path:
        return system.boot_id()
    try:
        return read_regular(path, MAX_BOOT_ID_BYTES, follow=True).decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def format_time(wall_s: float) -> str:
    """Return the moment as text in UTC, to the millisecond."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s))
    return f"{whole}.{int(wall_s * 1000) % 1000:03d}Z"
