"""A file that must not be lost: identify it, sync it to the disk, and compute its checksum."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import List

from forewarn.guest.steps import Run

_CHUNK_BYTES = 1024 * 1024


def file_mark(path: str) -> List[int]:
    """Return inode, modification time and size, or [] when there is no such file or it is empty."""
    try:
        status = Path(path).stat()
    except OSError:
        return []
    return (
        [status.st_ino, status.st_mtime_ns, status.st_size] if stat.S_ISREG(status.st_mode) and status.st_size else []
    )


def sync_to_disk(path: str) -> None:
    """Sync the file, and the folder that holds its name."""
    for name in (path, Path(path).parent):
        file = os.open(name, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def checksum(path: str, run: Run) -> str:
    """Return the SHA-256; raise OutOfTime when the file is too large for the time left."""
    import hashlib  # only checkpoints need it

    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
            run.pause(0)
    return digest.hexdigest()
