"""Real disks for tests of the SQLite store: small ones that fill up, and read-only ones. Needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHUNK = b"\0" * 4_096
MAX_BALLAST_CHUNKS = 100_000


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, so large and no larger."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _unmount(folder)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Inside, `path` (a file or a folder) cannot be written through its name, not even by root."""
    _mount("--bind", str(path), str(path))
    try:
        _mount("-o", "remount,bind,ro", str(path))
        yield
    finally:
        _unmount(path)


def fill(ballast: Path) -> None:
    """Write until nothing more fits."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        for _ in range(MAX_BALLAST_CHUNKS):
            if file.write(CHUNK) < len(CHUNK):
                break
    free = os.statvfs(ballast).f_bavail
    assert free == 0, f"{free} blocks are still free"


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)
