"""Processes as the system shows them: which ones live, when they began, and how to end a program with all it started."""

from __future__ import annotations

import subprocess
import sys
from typing import Optional

from forewarn.guest.clock import Time

if sys.platform == "win32":
    from forewarn.guest.system.windows_processes import (
        ProcessHandle,
        alive,
        children,
        command_line,
        discard,
        exit_waiter,
        release,
        signal_tree,
        start_detached,
        start_held,
        start_ticks,
        tree_lives,
        users_of,
    )
else:
    from forewarn.guest.system.posix_processes import (
        ProcessHandle,
        alive,
        children,
        command_line,
        discard,
        exit_waiter,
        release,
        signal_tree,
        start_detached,
        start_held,
        start_ticks,
        tree_lives,
        users_of,
    )

__all__ = [
    "GRACE_S",
    "POLL_S",
    "ProcessHandle",
    "alive",
    "children",
    "command_line",
    "discard",
    "end_group",
    "exit_waiter",
    "release",
    "signal_tree",
    "start_detached",
    "start_held",
    "start_ticks",
    "tree_lives",
    "users_of",
]

# The time between asking a program to end and ending it.
GRACE_S = 2.0
POLL_S = 0.05


def end_group(pid: int, time: Time, *, child: Optional[subprocess.Popen[bytes]] = None) -> None:
    """Ask the program and all that it started to end, and end them when one of them is still there after GRACE_S."""
    for force in (False, True):
        signal_tree(pid, child, force=force)
        give_up_s = time.monotonic() + GRACE_S
        while time.monotonic() < give_up_s:
            ended = not tree_lives(pid, child)
            if child is not None:
                child.poll()
            if ended:
                return
            time.sleep(POLL_S)
