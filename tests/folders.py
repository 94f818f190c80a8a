"""Temporary folders for programs that do not run as root: PostgreSQL and Patroni run as the user postgres."""

import os
import stat
import tempfile
from pathlib import Path

# A Unix socket's path has at most 107 bytes, and the tests append up to half of them.
MAX_PARENT_BYTES = 50
MEMORY = Path("/dev/shm")
GIB = 1 << 30
# Several times what a run of all parts writes into its folders.
FREE_IN_MEMORY_BYTES = 8 * GIB


def folder_for_every_user(prefix: str) -> Path:
    """Make a temporary folder that every user can reach, whatever TMPDIR says. The caller removes it."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    parent = next((each for each in parents if _is_short(each) and _every_user_can_reach(each)), None)
    assert parent is not None, f"no user but root can reach any of {', '.join(map(str, parents))}"
    return _made(prefix, parent, 0o755)


def folder_for_a_run(prefix: str) -> Path:
    """Make a folder for all files of a run, which every user can reach and write to. The caller removes it.

    It is in memory if the machine has enough: there, writes that must survive a power loss cost nothing. No test cuts the power.
    """
    parent = MEMORY if _has_room(MEMORY) and _every_user_can_reach(MEMORY) else Path(tempfile.gettempdir())
    return _made(prefix, parent, 0o1777)


def _made(prefix: str, parent: Path, mode: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(mode)
    return folder


def _has_room(folder: Path) -> bool:
    """Whether programs in the folder may be executed, and the machine has the memory that files in it may take."""
    if not folder.is_dir():
        return False
    found, memory_bytes = os.statvfs(folder), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free_bytes = min(found.f_bavail * found.f_frsize, memory_bytes // 2)
    return not found.f_flag & os.ST_NOEXEC and free_bytes >= FREE_IN_MEMORY_BYTES


def _is_short(folder: Path) -> bool:
    return len(bytes(folder)) <= MAX_PARENT_BYTES


def _every_user_can_reach(folder: Path) -> bool:
    whole = folder.resolve()
    return all(each.stat().st_mode & stat.S_IXOTH for each in (whole, *whole.parents))
