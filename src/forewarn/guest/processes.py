"""Processes as the kernel shows them: which ones live, when they began, and how to end a program with all it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import List, Optional, Tuple

from forewarn.guest.clock import Time

# The time between SIGTERM and SIGKILL.
GRACE_S = 2.0
POLL_S = 0.05
# States in /proc/PID/stat of a process that has ended.
_ENDED = ("Z", "X")


class ProcessHandle:
    """One live process: another process that gets the same pid later is never signalled. Close it after use."""

    def __init__(self, pid: int, pidfd: Optional[int], ticks: int) -> None:
        self.pid, self.ticks, self._pidfd = pid, ticks, pidfd

    @classmethod
    def open(cls, pid: int) -> Optional[ProcessHandle]:
        """Return the handle of the process, or None when there is no such process."""
        pidfd: Optional[int] = None
        with contextlib.suppress(AttributeError, OSError):  # an old kernel, or no such process
            pidfd = os.pidfd_open(pid)
        handle = cls(pid, pidfd, start_ticks(pid))
        if handle.alive():
            return handle
        handle.close()
        return None

    def alive(self) -> bool:
        """Return whether the process lives; then everything read about its pid since `open` was about this process."""
        if self._pidfd is None:
            return alive(self.pid) and start_ticks(self.pid) == self.ticks
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)  # readable when the process has ended
        return not poll.poll(0)

    def send_signal(self, number: int) -> None:
        """Send a signal if the process lives; raise PermissionError when this user may not."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.alive():
                os.kill(self.pid, number)

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def users_of(pid: int) -> Tuple[int, ...]:
    """Return the users who may signal the process: its real and its saved user; () when they are not known."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
        _, real, _, saved, *_ = next(line for line in lines if line.startswith("Uid:")).split()
    except (OSError, StopIteration, ValueError):
        return ()
    return int(real), int(saved)


def end_group(pid: int, time: Time, *, child: Optional[subprocess.Popen[bytes]] = None) -> None:
    """Send SIGTERM to the process group, and SIGKILL when it is still there after GRACE_S."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        _signal_group(pid, number)
        give_up_s = time.monotonic() + GRACE_S
        while time.monotonic() < give_up_s:
            ended = not _group_lives(pid)
            if child is not None:
                child.poll()
            if ended:
                return
            time.sleep(POLL_S)


def _group_lives(group: int) -> bool:
    """Return whether the group has a process that is no zombie."""
    if os.name != "posix":
        return alive(group)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    stats = [_stat_fields(path.name) for path in Path("/proc").glob("[0-9]*")]
    return not stats or any(fields[0] not in _ENDED and int(fields[2]) == group for fields in stats if fields)


def _signal_group(pid: int, number: int) -> None:
    try:
        if os.name == "posix":
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except OSError:
        pass


def start_ticks(pid: int) -> int:
    """Return when the process began, in kernel ticks, or 0 when it is not known. Pid and ticks name one process for ever."""
    fields = _stat_fields(str(pid))
    return 0 if not fields or fields[0] in _ENDED else int(fields[19])


def _stat_fields(pid: str) -> List[str]:
    """Return the fields of /proc/PID/stat from the state on (state, parent, group, …), or [] if the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []
    return fields if len(fields) > 19 else []


def children(pid: int) -> List[Tuple[int, int]]:
    """Return the pid and start ticks of each child process that lives."""
    stats = [(path.name, _stat_fields(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [
        (int(name), int(fields[19]))
        for name, fields in stats
        if fields and fields[0] not in _ENDED and int(fields[1]) == pid
    ]


def alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    if Path("/proc/self").exists():
        return start_ticks(pid) != 0
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
