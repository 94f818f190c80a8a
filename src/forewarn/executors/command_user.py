"""The user that commands run as, and whether a program can be run by that user."""

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from forewarn.core.errors import InvalidSettings
from forewarn.core.lazy_dataclass import dataclass

_CAPABILITIES = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}


@dataclass(frozen=True, slots=True)
class CommandUser:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def find_user(name: str, process_status: Path = Path("/proc/self/status")) -> CommandUser | None:
    """Return the user of the setting `command_user`; None if commands run as the user of the service.

    Raise InvalidSettings if the user does not exist, or if this process may not run programs as that user.
    """
    if not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise InvalidSettings(f"command_user: this machine has no user {name!r}: create it, or name another") from None
    if entry.pw_uid == os.geteuid():
        return None
    if missing := _missing_capabilities(process_status.read_text("ascii", errors="replace")):
        raise InvalidSettings(
            f"command_user: this process may not run commands as {name}, because it lacks {', '.join(missing)}: run it as root,"
            " or install packaging/forewarn-command-user.conf"
        )
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return CommandUser(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


def _missing_capabilities(process_status: str) -> list[str]:
    """Return which capabilities that are needed to run and stop commands of another user this process lacks."""
    values = dict(line.split(":", 1) for line in process_status.splitlines() if ":" in line)
    effective = int(values["CapEff"], 16)
    return [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]


def program_problem(program: str, environment: Mapping[str, str], user: CommandUser | None) -> str:
    """Return why a program cannot be run, or ""."""
    if "/" in program:
        return _problem(Path(program), user)
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    candidates = [Path(folder or ".") / program for folder in folders]
    if any(not _problem(path, user) for path in candidates):
        return ""
    existing = next((path for path in candidates if path.is_file()), None)
    return _problem(existing, user) if existing else f"{program} is in no folder of PATH: write its full path"


def _problem(path: Path, user: CommandUser | None) -> str:
    who = f"the user {user.name}" if user is not None else "this user"
    try:
        status = path.stat()
    except OSError as error:
        return f"{path} cannot be run: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return f"{path} is a folder: name a program"
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is no file: name a program"
    if not _may_execute(path.resolve(), user):
        return f"{path} cannot be run by {who}: see the modes of the file and of the folders above it"
    return ""


def _may_execute(path: Path, user: CommandUser | None) -> bool:
    if user is None:
        return os.access(path, os.X_OK, effective_ids=True)
    return all(_has_execute_bit(each.stat(), user) for each in (path, *path.parents))


def _has_execute_bit(status: os.stat_result, user: CommandUser) -> bool:
    """Return whether the mode lets the user execute a file or enter a folder."""
    if user.uid == 0:
        return stat.S_ISDIR(status.st_mode) or bool(status.st_mode & 0o111)
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user.gid or status.st_gid in user.groups:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)
