"""Processes on Windows: a program of a step is a job object, so that all that it started ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from ctypes import wintypes
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

assert sys.platform == "win32"

from forewarn.guest.system import windows_api as api
from forewarn.guest.system.windows_files import token_user

# The exit code of programs that the agent ends.
ENDED = 1
# Rounds in which the processes of a program of an earlier agent are searched for: a process may start another meanwhile.
SEARCHES = 5
CONFIRM_MS = 2_000
MAX_COMMAND_LINE_BYTES = 128 * 1024
MAX_PATH_CHARS = 32 * 1024
_CREATE_SUSPENDED = 0x4
_LIMITS, _ACCOUNTING, _KILL_ON_CLOSE = 9, 1, 0x2000
_WAIT_TIMEOUT = 258
_COMMAND_LINE_INFORMATION = 60


class _JobLimits(ctypes.Structure):
    _fields_ = (
        ("user_times", ctypes.c_int64 * 2),
        ("flags", wintypes.DWORD),
        ("working_set", ctypes.c_size_t * 2),
        ("active_processes", wintypes.DWORD),
        ("affinity", ctypes.c_size_t),
        ("priority", wintypes.DWORD * 2),
        ("io", ctypes.c_uint64 * 6),
        ("memory", ctypes.c_size_t * 4),
    )


class _JobAccounting(ctypes.Structure):
    _fields_ = (
        ("times", ctypes.c_int64 * 4),
        ("page_faults", wintypes.DWORD),
        ("processes", wintypes.DWORD),
        ("active_processes", wintypes.DWORD),
        ("ended_processes", wintypes.DWORD),
    )


class _ProcessEntry(ctypes.Structure):
    _fields_ = (
        ("size", wintypes.DWORD),
        ("usage", wintypes.DWORD),
        ("pid", wintypes.DWORD),
        ("heap", ctypes.c_size_t),
        ("module", wintypes.DWORD),
        ("threads", wintypes.DWORD),
        ("parent", wintypes.DWORD),
        ("priority", ctypes.c_long),
        ("flags", wintypes.DWORD),
        ("name", wintypes.WCHAR * 260),
    )


# -- programs that the agent starts


class HeldProgram(subprocess.Popen):  # type: ignore[type-arg]
    """A program that does not run before `release`. All that it starts belongs to its job."""

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        super().__init__(list(argv), creationflags=_CREATE_SUSPENDED, **options)
        self.job = api.require(api.create_job_object(None, None))
        try:
            # If this process ends before `release`, Windows closes the job and ends the program.
            self._limit(_KILL_ON_CLOSE)
            api.require(api.assign_process_to_job_object(self.job, int(self._handle)))  # type: ignore[attr-defined]
        except OSError:
            self.kill()
            raise

    def release(self) -> None:
        self._limit(0)
        api.nt_resume_process(int(self._handle))  # type: ignore[attr-defined]

    def _limit(self, flags: int) -> None:
        limits = _JobLimits(flags=flags)
        api.require(api.set_information_job_object(self.job, _LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)))

    def __del__(self) -> None:
        if getattr(self, "job", None):
            api.close_handle(self.job)
        super().__del__()


def start_held(argv: Sequence[str], event: IO[bytes], **options: Any) -> HeldProgram:
    """Start a program, with the event as its stdin, that waits for `release`; without it the program ends with this process."""
    return HeldProgram(argv, stdin=event, **options)


def release(child: HeldProgram) -> None:
    """Let the program run."""
    child.release()


def discard(child: HeldProgram) -> None:
    """End a program that was not released."""
    child.kill()
    child.wait()


def start_detached(argv: Sequence[str], pid_file: int) -> subprocess.Popen[bytes]:
    """Start a program that outlives the agent, and write its pid into the open file before it runs."""
    program = HeldProgram(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.write(pid_file, f"{program.pid}\n".encode())
    except OSError:
        discard(program)
        raise
    program.release()
    return program


def signal_tree(pid: int, child: Optional[subprocess.Popen[bytes]], *, force: bool) -> None:
    """End the program and all that it started: Windows has no way to ask a program to end."""
    del force
    if isinstance(child, HeldProgram):
        api.terminate_job_object(child.job, ENDED)
        return
    for _ in range(SEARCHES):
        handles = [handle for handle in map(ProcessHandle.open, _tree(pid)) if handle is not None]
        for handle in handles:
            with handle:
                handle.send_signal(0)
                handle.wait(CONFIRM_MS)
        if not handles:
            return


def tree_lives(pid: int, child: Optional[subprocess.Popen[bytes]]) -> bool:
    """Return whether the program, or a process that it started, lives."""
    if not isinstance(child, HeldProgram):
        return bool(_tree(pid))
    counts = _JobAccounting()
    api.require(
        api.query_information_job_object(child.job, _ACCOUNTING, ctypes.byref(counts), ctypes.sizeof(counts), None)
    )
    return bool(counts.active_processes)


def _tree(root: int) -> List[int]:
    """Return the live processes that the process started, itself and theirs included, parents first."""
    parents = _parents()
    found = [root]
    for pid in found:  # grows meanwhile
        began = start_ticks(pid)
        # A process that is older than its parent's process has another parent, whose pid was used again.
        found += [
            each
            for each, parent in parents.items()
            if parent == pid and each not in found and start_ticks(each) >= began
        ]
    return [pid for pid in found if alive(pid)]


def _parents() -> Dict[int, int]:
    """Return the parent's pid of each process."""
    parents: Dict[int, int] = {}
    with api.closing(api.require(api.create_toolhelp32_snapshot(0x2, 0))) as snapshot:
        entry = _ProcessEntry(size=ctypes.sizeof(_ProcessEntry))
        more = api.process32_first(snapshot, ctypes.byref(entry))
        while more:
            parents[entry.pid] = entry.parent
            more = api.process32_next(snapshot, ctypes.byref(entry))
    return parents


@contextlib.contextmanager
def exit_waiter(child: subprocess.Popen[bytes]) -> Iterator[Callable[[float], Optional[int]]]:
    """Yield a function that waits for the exit."""

    def wait(seconds: float) -> Optional[int]:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    yield wait


# -- processes


class ProcessHandle:
    """One live process: while the handle is open, no other process gets its pid. Close it after use."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid, self._handle = pid, handle
        times = [ctypes.c_uint64() for _ in range(4)]
        api.require(api.get_process_times(handle, *(ctypes.byref(each) for each in times)))
        # When the process began, in units of 100 ns.
        self.ticks = times[0].value

    @classmethod
    def open(cls, pid: int) -> Optional[ProcessHandle]:
        """Return the handle of the process, or None when there is no such process or this user may not see it."""
        seen = api.SYNCHRONIZE | api.PROCESS_QUERY_LIMITED_INFORMATION
        opened = api.open_process(seen | api.PROCESS_TERMINATE, False, pid) or api.open_process(seen, False, pid)
        if not opened:
            return None
        handle = cls(pid, opened)
        if handle.alive():
            return handle
        handle.close()
        return None

    def alive(self) -> bool:
        return not self.wait(0)

    def wait(self, milliseconds: int) -> bool:
        """Return whether the process has ended, after so long at most."""
        return bool(api.wait_for_single_object(self._handle, milliseconds) != _WAIT_TIMEOUT)

    def send_signal(self, number: int) -> None:
        """End the process, whatever the signal; raise PermissionError when this user may not."""
        del number
        if not api.terminate_process(self._handle, ENDED) and self.alive():
            raise api.last_error()

    def command_line(self) -> str:
        """Return the command line, or only the program where the system does not tell more."""
        data = ctypes.create_string_buffer(MAX_COMMAND_LINE_BYTES)
        if api.nt_query_information_process(self._handle, _COMMAND_LINE_INFORMATION, data, len(data), None):
            return self._program()
        length = int.from_bytes(data.raw[:2], "little")
        offset = 2 * ctypes.sizeof(ctypes.c_void_p)  # after the lengths and the pointer
        return data.raw[offset : offset + length].decode("utf-16-le", "replace")

    def _program(self) -> str:
        path, size = ctypes.create_unicode_buffer(MAX_PATH_CHARS), wintypes.DWORD(MAX_PATH_CHARS)
        known = api.query_full_process_image_name(self._handle, 0, path, ctypes.byref(size))
        return path.value if known else ""

    def user(self) -> str:
        return token_user(self._handle)

    def close(self) -> None:
        if self._handle:
            api.close_handle(self._handle)
            self._handle = 0

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_ticks(pid: int) -> int:
    """Return when the process began, in units of 100 ns, or 0 when it is not known. Pid and ticks name one process for ever."""
    handle = ProcessHandle.open(pid)
    if handle is None:
        return 0
    with handle:
        return handle.ticks


def alive(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    return start_ticks(pid) != 0


def children(pid: int) -> List[Tuple[int, int]]:
    """Return the pid and start ticks of each child process that lives."""
    found = [(each, start_ticks(each)) for each, parent in _parents().items() if parent == pid]
    return [(each, ticks) for each, ticks in found if ticks]


def command_line(pid: int) -> str:
    handle = ProcessHandle.open(pid)
    if handle is None:
        return ""
    with handle:
        return handle.command_line()


def users_of(pid: int) -> Tuple[str, ...]:
    """Return the SID of the user that the process runs as; () when it is not known."""
    handle = ProcessHandle.open(pid)
    if handle is None:
        return ()
    with handle:
        try:
            return (handle.user(),)
        except OSError:
            return ()
