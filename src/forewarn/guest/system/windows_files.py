"""Files on Windows: locking, replacing, owners, and which other users may read or change them."""

from __future__ import annotations

import ctypes
import errno
import msvcrt
import os
import stat
import sys
import time
from ctypes import wintypes
from pathlib import Path
from typing import IO, Iterator, Optional, Tuple

assert sys.platform == "win32"

from forewarn.guest.system import windows_api as api
from forewarn.guest.system.access_lists import ADMINISTRATORS, READ, REPLACE, WRITE, AccessList

MAX_LINKS = 40
# Windows syncs only files that are open for writing.
SYNC_FLAGS = os.O_RDWR
# A file that another program has open, a reader or a virus scanner, cannot be replaced until it is closed.
REPLACE_ATTEMPTS, REPLACE_PAUSE_S = 20, 0.05
# The system, the administrators and this user may do everything here and below; nobody else anything.
_PRIVATE = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{user})"
_FILE, _OWNER_AND_LIST = 1, 0x1 | 0x4
_TOKEN_USER = 1
_SHARE_ALL, _OPEN_EXISTING = 0x7, 3
_FOLDERS_AND_LINKS = 0x0200_0000 | 0x0020_0000
_LINKS = (stat.IO_REPARSE_TAG_SYMLINK, stat.IO_REPARSE_TAG_MOUNT_POINT)


class _SecurityAttributes(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("descriptor", ctypes.c_void_p), ("inherit", ctypes.c_int32))


def lock(file: int) -> bool:
    """Lock the file until it is closed or the process ends; return False if another process has locked it."""
    try:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def make_private_folder(folder: Path) -> None:
    """Create the folder, if it is missing, so that only this user, the system and administrators can use it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = ctypes.c_void_p()
    text = _PRIVATE.format(user=user_of_this_process())
    api.require(api.string_to_security_descriptor(text, 1, ctypes.byref(descriptor), None))
    attributes = _SecurityAttributes(ctypes.sizeof(_SecurityAttributes), descriptor, False)
    try:
        if not api.create_directory(str(folder), ctypes.byref(attributes)) and not folder.is_dir():
            raise api.last_error()
    finally:
        api.local_free(descriptor)


def replace(source: str, target: str, folder: Optional[int]) -> None:
    """Give the file `source` the name `target`; wait a moment for other programs to close it."""
    del folder
    for attempts_left in reversed(range(REPLACE_ATTEMPTS)):
        try:
            os.replace(source, target)  # noqa: PTH105
            return
        except PermissionError:
            if not attempts_left:
                raise
            time.sleep(REPLACE_PAUSE_S)


def give_away(file: int, owner: os.stat_result) -> None:
    """Do nothing: a new file has the access list that its folder gives."""


def own_user_number() -> int:
    """Return 0, which `os.stat` shows as the user of every file."""
    return 0


def output_file() -> IO[bytes]:
    """Return a temporary file. Agent and program share the position in it."""
    import tempfile  # the SDK needs none

    return tempfile.TemporaryFile(buffering=0)


def read_at(file: int, max_bytes: int, start: int) -> bytes:
    """Read from this place of the open file."""
    os.lseek(file, start, os.SEEK_SET)
    return os.read(file, max_bytes)


def limit_output(file: IO[bytes], max_bytes: int) -> None:
    """Do nothing: a temporary file has no limit."""


def owner_of(file: int) -> str:
    """Return the SID of the user or group that owns the open file."""
    return _access_list(msvcrt.get_osfhandle(file)).owner


def trusted_users() -> Tuple[str, ...]:
    """Return who may change files that the agent trusts: the system, administrators and the agent's own user."""
    return (*ADMINISTRATORS, user_of_this_process())


def others_may_write(path: Path) -> str:
    """Return how another user than this one and administrators could change or replace the file or folder, or ""."""
    parts = list(_path_components(path))
    for number, part in enumerate(parts, 1):
        problem = _problem(_access_list_of(part), part, WRITE if number == len(parts) else REPLACE, "write")
        if problem:
            return problem
    return ""


def others_may_change(file: int, path: Path) -> str:
    """Return how another user could change the open file itself, or ""."""
    return _problem(_access_list(msvcrt.get_osfhandle(file)), path, WRITE, "write")


def others_may_read(file: int, name: str) -> str:
    """Return what is wrong with the open file, which holds a secret, or ""."""
    return _problem(_access_list(msvcrt.get_osfhandle(file)), name, READ, "read")


def _problem(access: AccessList, path: object, rights: int, verb: str) -> str:
    trusted = trusted_users()
    if access.owner not in trusted:
        return f"{path} belongs to another user ({access.owner}): change its owner with icacls /setowner"
    others = access.others_with(rights, trusted)
    return f"other users ({', '.join(others)}) may {verb} {path}: take that right away with icacls" if others else ""


def _path_components(path: Path) -> Iterator[Path]:
    """Yield every folder, link and file that determines what `path` is, from the drive on."""
    whole, links = Path(os.path.abspath(path)), 0  # noqa: PTH100 (Path keeps "..")
    here, rest = Path(whole.anchor), list(whole.parts[1:])
    yield here
    while rest:
        here = here / rest.pop(0)
        yield here
        if here.lstat().st_reparse_tag in _LINKS:
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = Path(os.path.abspath(here.parent / str(here.readlink()).removeprefix("\\\\?\\")))  # noqa: PTH100
            here, rest = Path(target.anchor), [*target.parts[1:], *rest]


def _access_list_of(path: Path) -> AccessList:
    """Return the access list of a file or folder, or of a link itself."""
    handle = api.create_file(str(path), api.READ_CONTROL, _SHARE_ALL, None, _OPEN_EXISTING, _FOLDERS_AND_LINKS, None)
    with api.closing(api.require(handle)):
        return _access_list(handle)


def _access_list(handle: int) -> AccessList:
    descriptor, text = ctypes.c_void_p(), ctypes.c_wchar_p()
    code = api.get_security_info(handle, _FILE, _OWNER_AND_LIST, None, None, None, None, ctypes.byref(descriptor))
    if code:
        raise ctypes.WinError(code)
    try:
        api.require(api.security_descriptor_to_string(descriptor, 1, _OWNER_AND_LIST, ctypes.byref(text), None))
        return AccessList.parse(text.value or "")
    finally:
        api.local_free(text)
        api.local_free(descriptor)


def user_of_this_process() -> str:
    return token_user(api.get_current_process())


def token_user(process: int) -> str:
    """Return the SID of the user that the process runs as."""
    token, data, text = wintypes.HANDLE(), ctypes.create_string_buffer(256), ctypes.c_wchar_p()
    api.require(api.open_process_token(process, api.TOKEN_QUERY, ctypes.byref(token)))
    with api.closing(token.value or 0):
        size = wintypes.DWORD()
        api.require(api.get_token_information(token, _TOKEN_USER, data, len(data), ctypes.byref(size)))
    # The structure begins with a pointer to the SID, which lies behind it in the same memory.
    api.require(api.convert_sid_to_string_sid(ctypes.c_void_p.from_buffer(data), ctypes.byref(text)))
    try:
        return text.value or ""
    finally:
        api.local_free(text)
