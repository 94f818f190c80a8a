"""Pid files: which process a file names, if the file can be trusted, and how to signal that process.

A pid file counts if it is a regular file with one name. It must belong to root, to the agent's own user, or to a user who may
signal the process that it names: so no user can have the agent signal a process of another user.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Iterator, List, Optional, Tuple

from forewarn.guest.errors import StepFailed
from forewarn.guest.processes import ProcessHandle, command_line, users_of
from forewarn.guest.safe_files import create_file, open_regular
from forewarn.guest.system import system

MAX_BYTES = 1024


def named_process(pid_file: str, match: str) -> Optional[ProcessHandle]:
    """Return the live process that the file names if its command line contains `match`, or None; close the handle after use.

    Raise StepFailed when the file cannot be trusted.
    """
    pid, owner = _read(pid_file)
    handle = ProcessHandle.open(pid) if pid > 0 else None
    if handle is None:
        return None
    matches, users = match in command_line(pid), users_of(pid)
    if matches and handle.alive():
        if owner in (*system.trusted_users(), *users):
            return handle
        handle.close()
        raise StepFailed(
            f"{pid_file} belongs to user {owner} and names process {pid} of another user, which is left alone: "
            "remove the file if it is old, or chown it to root"
        )
    handle.close()
    return None


def pid_file_problems(pid_file: str, match: str) -> List[str]:
    """Return why the pid file would be refused now."""
    try:
        running_pid(pid_file, match)
    except StepFailed as error:
        return [str(error)]
    return []


def running_pid(pid_file: str, match: str) -> int:
    """Return the pid of the process if it lives, or 0."""
    handle = named_process(pid_file, match)
    if handle is None:
        return 0
    handle.close()
    return handle.pid


@contextlib.contextmanager
def new_pid_file(pid_file: str) -> Iterator[int]:
    """Put a new empty file in the place of the pid file and yield its descriptor."""
    try:
        file = create_file(pid_file, 0o644)
    except OSError as error:
        raise StepFailed(f"{pid_file} cannot be written: {error.strerror}") from None
    try:
        yield file
    finally:
        os.close(file)


def send_signal(process: ProcessHandle, number: int) -> None:
    try:
        process.send_signal(number)
    except OSError as error:
        raise StepFailed(f"process {process.pid} cannot be signalled: {error.strerror}") from None


def _read(pid_file: str) -> Tuple[int, Any]:
    """Return the pid in the file, or 0, and the owner of the file."""
    try:
        with os.fdopen(open_regular(pid_file), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_nlink > 1:
                raise OSError(errno.EMLINK, "it has another name: remove that hard link")
            text = file.read(MAX_BYTES)
            owner = system.owner_of(file.fileno())
        return int(text.decode("ascii").split()[0]), owner
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    except OSError as error:
        raise StepFailed(f"{pid_file} cannot be used: {error.strerror}") from None
    except (ValueError, IndexError):
        return 0, 0
