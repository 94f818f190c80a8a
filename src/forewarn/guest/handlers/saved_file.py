"""A file that must not be lost: which one it is, that it is on the disk, and what is in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import List

from forewarn.guest.steps import Run

_CHUNK_BYTES = 1024 * 1024


def mark_of(path: str) -> List[int]:
    """Which file, when written, how large; [] when there is none, or nothing in it."""
    try:
        found = Path(path).stat()
    except OSError:
        return []
    return [found.st_ino, found.st_mtime_ns, found.st_size] if stat.S_ISREG(found.st_mode) and found.st_size else []


def to_disk(path: str) -> None:
    """The file, and the folder that has its name."""
    for name in (path, Path(path).parent):
        file = os.open(name, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def checksum_of(path: str, run: Run) -> str:
    """Its SHA-256; OutOfTime when it is too large for the time there is."""
    import hashlib  # only who has a checkpoint needs it

    found = hashlib.sha256()
    with Path(path).open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            found.update(chunk)
            run.pause(0)
    return found.hexdigest()
