"""Processes on Linux: those in /proc, and the process group of a step's program, so that all that it started ends with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Callable, Iterator, List, Optional, Sequence, Tuple

assert sys.platform != "win32"

# States in /proc/PID/stat of a process that has ended.
_ENDED = ("Z", "X")
# The event is passed in a file: a full pipe that the program does not read would block the agent.
_START_WHEN_RELEASED = 'read -r go || exit 125; exec <"/dev/fd/$1"; shift; exec "$@"'
# Writes the program's own pid to stdout. The shell's `&` would make the program ignore SIGINT and SIGQUIT.
_WRITE_PID = 'echo $$ || exit 1; exec "$@" >/dev/null'


# -- programs that the agent starts


def start_held(argv: Sequence[str], event: IO[bytes], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program, with the event as its stdin, that waits for `release`; without it the program ends by itself."""
    number = event.fileno()
    return subprocess.Popen(
        ["/bin/sh", "-c", _START_WHEN_RELEASED, "sh", str(number), *argv],
        stdin=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(number,),
        **options,
    )


def release(child: subprocess.Popen[bytes]) -> None:
    """Let the program run."""
    # The pipe is broken when the program has already ended; its exit code says how.
    with contextlib.suppress(OSError), child.stdin or contextlib.nullcontext() as stdin:
        if stdin is not None:
            stdin.write(b"go\n")


def discard(child: subprocess.Popen[bytes]) -> None:
    """End a program that was not released."""
    child.communicate()


def start_detached(argv: Sequence[str], pid_file: int) -> subprocess.Popen[bytes]:
    """Start a program that outlives the agent. It writes its own pid into the open file, so that the agent may die meanwhile."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _WRITE_PID, "sh", *argv],
        stdin=subprocess.DEVNULL,
        stdout=pid_file,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def signal_tree(pid: int, child: Optional[subprocess.Popen[bytes]], *, force: bool) -> None:
    """Ask the program and all that it started to end; with `force`, end them."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL if force else signal.SIGTERM)


def tree_lives(pid: int, child: Optional[subprocess.Popen[bytes]]) -> bool:
    """Return whether the process group of the program has a process that is no zombie."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    stats = [_stat_fields(path.name) for path in Path("/proc").glob("[0-9]*")]
    return not stats or any(fields[0] not in _ENDED and int(fields[2]) == pid for fields in stats if fields)


@contextlib.contextmanager
def exit_waiter(child: subprocess.Popen[bytes]) -> Iterator[Callable[[float], Optional[int]]]:
    """Yield a function that waits for the exit; it sleeps without polling where the system allows."""
    try:
        pidfd = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        yield lambda seconds: _wait_by_polling(child, seconds)
        return
    try:
        yield lambda seconds: child.poll() if select.select([pidfd], [], [], seconds)[0] else None
    finally:
        os.close(pidfd)


def _wait_by_polling(child: subprocess.Popen[bytes], seconds: float) -> Optional[int]:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


# -- processes


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


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


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
