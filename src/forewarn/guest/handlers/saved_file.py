"""A file that must not be lost: identify it, sync it to the disk, and compute its checksum.

Its folder may belong to another user: only a regular file counts, no link is followed, and a pipe does not block.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, List

from forewarn.guest.errors import StepFailed
from forewarn.guest.safe_files import open_regular, sync_folder_of
from forewarn.guest.steps import Run
from forewarn.guest.system import system

_CHUNK_BYTES = 1024 * 1024


def file_mark(path: str) -> List[int]:
    """Return inode, modification time and size, or [] when there is no such regular file or it is empty."""
    try:
        file = open_regular(path)
    except OSError:
        return []
    try:
        status = os.fstat(file)
    finally:
        os.close(file)
    return [status.st_ino, status.st_mtime_ns, status.st_size] if status.st_size else []


def sync_to_disk(path: str) -> None:
    """Sync the file, and the folder that holds its name."""
    with _opened(path, system.SYNC_FLAGS) as file:
        os.fsync(file)
        sync_folder_of(path)


def checksum(path: str, run: Run) -> str:
    """Return the SHA-256; raise OutOfTime when the file is too large for the time left."""
    import hashlib  # only checkpoints need it

    digest = hashlib.sha256()
    with _opened(path) as file:
        for chunk in iter(lambda: os.read(file, _CHUNK_BYTES), b""):
            digest.update(chunk)
            run.pause(0)
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    try:
        file = open_regular(path, flags)
    except OSError as error:
        raise StepFailed(f"{path} cannot be used: {error.strerror}") from None
    try:
        yield file
    finally:
        os.close(file)
