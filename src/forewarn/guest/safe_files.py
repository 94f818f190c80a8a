"""Files in folders that other users may own: open them without following links or waiting, and replace them whole.

The agent often runs as root, and the owner of a folder can put a link, a pipe or another file into it at any moment. So every
check here is made on an open descriptor. A link on the way to a file must belong to root, to this user, or to the owner of
what it leads to: nobody can direct the agent to a file of another user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from itertools import islice
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Set, Union

from forewarn.guest.system import system

# How many names of a folder are searched for files that a killed agent left behind.
MAX_NAMES_SEARCHED = 10_000
# 0 where the system does not have the flag.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NEVER_WAIT: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
BINARY: int = getattr(os, "O_BINARY", 0)
_PATH_ONLY: int = getattr(os, "O_PATH", 0)
_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)


class _Location(NamedTuple):
    """An open folder and a name in it; without `O_PATH` no folder, and the name is the whole path."""

    folder: Optional[int]
    name: str
    link_owners: Set[int]

    def sibling(self, name: str) -> str:
        return str(Path(self.name).with_name(name))


def open_regular(path: Union[str, Path], flags: int = os.O_RDONLY, mode: int = 0o600, *, follow: bool = False) -> int:
    """Open a regular file and return its descriptor; raise OSError for a pipe, a device or a folder.

    With `follow`, the file itself may be a link that obeys the rule of this module.
    """
    with _locate(path, follow=follow) as location:
        try:
            file = os.open(location.name, flags | _NOFOLLOW | _NEVER_WAIT | BINARY, mode, dir_fd=location.folder)
        except OSError as error:
            raise _explained(error) from None
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            _check_links(location, status)
        except BaseException:
            os.close(file)
            raise
        return file


def read_regular(path: Union[str, Path], max_bytes: int, *, follow: bool = False) -> bytes:
    """Return the first `max_bytes` of a regular file."""
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        return file.read(max_bytes)


def replace_file(
    path: Union[str, Path],
    data: bytes,
    mode: int,
    *,
    owner: Optional[os.stat_result] = None,
    follow: bool = False,
    sync: bool = False,
) -> None:
    """Replace the file atomically: a reader sees the old content or the new. A link there is replaced, not followed.

    The new file gets the owner of `owner` where this user may give it away. With `sync` it is on the disk afterwards.
    """
    with _new_file(path, mode, follow=follow, sync=sync) as file:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(data)
        if owner is not None:
            system.give_away(file, owner)


def create_file(path: Union[str, Path], mode: int) -> int:
    """Put a new empty file in the place of the file and return its descriptor for writing."""
    if not _PATH_ONLY:  # Windows gives an open file no other name
        replace_file(path, b"", mode)
        return open_regular(path, os.O_WRONLY)
    with contextlib.ExitStack() as after_error:
        with _new_file(path, mode, follow=False, sync=False) as file:
            copy = os.dup(file)
            after_error.callback(os.close, copy)
        after_error.pop_all()
    return copy


@contextlib.contextmanager
def _new_file(path: Union[str, Path], mode: int, *, follow: bool, sync: bool) -> Iterator[int]:
    """Yield a new file under a name that nobody can foresee; give it its own name at the end, or remove it after an error."""
    with _locate(path, follow=follow) as location:
        if location.folder is not None:
            _check_links(location, os.fstat(location.folder))
        _remove_leftovers(location)
        base = Path(location.name).name
        temporary = location.sibling(f".{base}.{os.urandom(8).hex()}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | BINARY
        file = os.open(temporary, flags, 0o600, dir_fd=location.folder)
        try:
            try:
                if hasattr(os, "fchmod"):
                    os.fchmod(file, mode)
                yield file
                if sync:
                    os.fsync(file)
            finally:
                os.close(file)
            system.replace(temporary, location.name, location.folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=location.folder)
            raise
        if sync and location.folder is not None:
            _sync_folder(location.folder)


def sync_folder_of(path: Union[str, Path]) -> None:
    """Sync the folder that holds the file's name."""
    with _locate(path, follow=False) as location:
        if location.folder is not None:
            _check_links(location, os.fstat(location.folder))
            _sync_folder(location.folder)


def _sync_folder(folder: int) -> None:
    readable = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=folder)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def _remove_leftovers(location: _Location) -> None:
    """Remove what an agent of this user left when it was killed while it wrote this file."""
    base = Path(location.name).name
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        folder: Union[int, Path] = Path(location.name).parent
        if location.folder is not None:
            folder = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=location.folder)
            opened.callback(os.close, folder)
        for entry in islice(opened.enter_context(os.scandir(folder)), MAX_NAMES_SEARCHED):
            if entry.name.startswith(f".{base}.") and entry.name.endswith(".new"):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_uid == system.own_user_number():
                    os.unlink(location.sibling(entry.name), dir_fd=location.folder)


@contextlib.contextmanager
def _locate(path: Union[str, Path], *, follow: bool) -> Iterator[_Location]:
    """Open each folder on the way in turn, so that nobody can exchange one between a check and its use."""
    if not _PATH_ONLY:
        yield _Location(None, str(path), set())
        return
    parts: List[str] = list(Path(path).absolute().parts[1:])
    link_owners: Set[int] = set()
    with contextlib.ExitStack() as opened:
        folder = _open_path("/", None, opened)
        links = 0
        while len(parts) > 1 or (follow and parts):
            try:
                here = _open_path(parts[0], folder, opened)
            except FileNotFoundError:
                if len(parts) > 1:
                    raise
                break
            status = os.fstat(here)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > system.MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                link_owners.add(status.st_uid)
                target = Path(os.readlink("", dir_fd=here))
                parts = [*(target.parts[1:] if target.is_absolute() else target.parts), *parts[1:]]
                folder = _open_path("/", None, opened) if target.is_absolute() else folder
            elif len(parts) == 1:
                break
            else:
                folder, parts = here, parts[1:]
        yield _Location(folder, parts[0] if parts else ".", link_owners)


def _open_path(name: str, folder: Optional[int], opened: contextlib.ExitStack) -> int:
    """Open a folder, or a link or file without following it. Only `O_DIRECTORY` makes the system mount an automount point."""
    try:
        descriptor = os.open(name, _PATH_ONLY | _NOFOLLOW | _DIRECTORY, dir_fd=folder)
    except NotADirectoryError:
        descriptor = os.open(name, _PATH_ONLY | _NOFOLLOW, dir_fd=folder)
    opened.callback(os.close, descriptor)
    return descriptor


def _check_links(location: _Location, status: os.stat_result) -> None:
    if location.link_owners and location.link_owners - {0, system.own_user_number(), status.st_uid}:
        raise OSError(errno.EPERM, "a link of another user leads to it")


def _explained(error: OSError) -> OSError:
    """Return the error with a text that says what the file is."""
    if error.errno == errno.ELOOP:
        return OSError(errno.ELOOP, "it is a symbolic link")
    if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
        return OSError(errno.EINVAL, "it is not a regular file")
    return error
