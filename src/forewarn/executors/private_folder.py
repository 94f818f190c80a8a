"""Creates folders that only this user may use, and refuses existing ones that other users can change."""

import errno
import os
import pwd
import shlex
import stat
from pathlib import Path

from forewarn.core.errors import InvalidSettings

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(path: Path) -> None:
    """Create a folder, and missing ones above it, with mode 0700. Raise InvalidSettings for an unsafe one; never change it.

    A folder is unsafe if it belongs to another user, or if its group or everyone may write to it: then others could replace
    its files, whatever the modes of the files are.
    """
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)  # another node may create it at the same time
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    quoted = shlex.quote(str(path))
    if status.st_uid != os.geteuid():
        raise InvalidSettings(
            f"state_dir: {path} belongs to the user {_user_name(status.st_uid)}, but this process runs as"
            f" {_user_name(os.geteuid())}: run it as that user, or run `chown -R {_user_name(os.geteuid())} {quoted}`"
        )
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise InvalidSettings(
            f"state_dir: other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o}): make sure that they have"
            f" changed nothing there, then run `chmod 700 {quoted}`"
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
