"""Processes of tests that are killed together with their children."""

import os
import select
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.support.waiting import PATIENCE_S, until


def is_gone(pid: int) -> bool:
    """Whether the process has ended, also if it is still a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill_with_children(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its children, and wait until all of them are gone.

    A signal to the process group misses children with a session of their own, like those of PostgreSQL. The children of a
    child are killed only if that child is the first process of a process namespace.
    """
    with ExitStack() as stack:
        children: list[int] = []  # their pidfds
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # so that it starts no more children
            state = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
            until(
                lambda: os.waitid(os.P_PID, process.pid, state),
                detail=lambda: f"{process.args!r} does not stop",
                every_s=0.001,
            )
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                with suppress(ProcessLookupError):
                    children.append(os.pidfd_open(int(pid)))
                    stack.callback(os.close, children[-1])
            process.kill()
            for child in children:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child, signal.SIGKILL)
        process.wait(PATIENCE_S)
        for child in children:
            ended, _, _ = select.select([child], [], [], PATIENCE_S)  # readable once the child has ended
            assert ended, f"a child of {process.args!r} has not ended"
