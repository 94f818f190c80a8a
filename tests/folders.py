"""Temporary folders for programs that do not run as root: PostgreSQL and Patroni run as the user postgres."""

import stat
import tempfile
from pathlib import Path

# A Unix socket's path has at most 107 bytes, and the tests append up to half of them.
MAX_PARENT_BYTES = 50


def folder_for_every_user(prefix: str) -> Path:
    """Make a temporary folder that every user can reach, whatever TMPDIR says. The caller removes it."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    parent = next((each for each in parents if _is_short(each) and _every_user_can_reach(each)), None)
    assert parent is not None, f"no user but root can reach any of {', '.join(map(str, parents))}"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(0o755)
    return folder


def _is_short(folder: Path) -> bool:
    return len(bytes(folder)) <= MAX_PARENT_BYTES


def _every_user_can_reach(folder: Path) -> bool:
    whole = folder.resolve()
    return all(each.stat().st_mode & stat.S_IXOTH for each in (whole, *whole.parents))
