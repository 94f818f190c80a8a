"""How values of a configuration file are read: each reader takes the value and where it stands, or raises ConfigError."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Tuple

from forewarn.guest.errors import ConfigError, StepFailed

MAX_DURATION_S = 7 * 86_400
MAX_LINKS = 40
MAX_COUNT = 10_000
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_DURATION = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def keys_of(table: Any, known: Iterable[str], where: str) -> None:
    """An unknown key is an error: it is a known one misspelt."""
    names = list(known)
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: write a table with {', '.join(names)}")
    for key in table:
        if key not in names:
            raise ConfigError(f"{where}.{key}: unknown key; the keys here are {', '.join(names)}")


def values(table: Mapping[str, Any], where: str, **readers: Callable[[Any, str], Any]) -> Dict[str, Any]:
    """Every value by the reader named for it; a text where none is."""
    known: Dict[str, Callable[[Any, str], Any]] = {**dict.fromkeys(table, text), **readers}
    return {key: known[key](value, f"{where}.{key}") for key, value in table.items()}


def text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: write a text")
    return value


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {value!r} is neither true nor false")
    return value


def count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ConfigError(f"{where}: {value!r} is no number from 0 to {MAX_COUNT}")
    return value


def words(value: Any, where: str) -> Tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f'{where}: write a list of words, like ["systemctl", "stop", "worker"]')
    return tuple(value)


def address(value: Any, where: str) -> str:
    """`host:port`, as it was written."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value) or not 0 < int(value.rpartition(":")[2]) < 65_536:
        raise ConfigError(f"{where}: {value!r} is no address: write it like 10.0.0.4:6379 or [fd00::4]:6379")
    return value


def one_of(value: Any, choices: Tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise ConfigError(f"{where}: {value!r} is unknown: use one of {', '.join(choices)}")
    return str(value)


def seconds(value: Any, where: str) -> float:
    """A number and a unit; `0` alone needs none."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if value in (0, "0") and not isinstance(value, bool):
        return 0.0
    if found is None:
        raise ConfigError(f'{where}: {value!r} is not a duration: write a number and a unit, like "90s" or "15m"')
    duration_s = int(found[1]) * _SECONDS[found[2]]
    if duration_s > MAX_DURATION_S:
        raise ConfigError(f"{where}: {value!r} is longer than a week")
    return float(duration_s)


def others_may_write(path: Path) -> str:
    """ "" or who else than we and root may change this file or folder, or put another in its place."""
    if os.name != "posix":
        return ""
    return next(filter(None, (others_may_change(each.lstat(), each) for each in _way_to(path))), "")


def others_may_change(found: os.stat_result, path: Path) -> str:
    if os.name != "posix" or (stat.S_ISLNK(found.st_mode) and _ours(found)):
        return ""
    if not _ours(found):
        return f"{path} belongs to somebody else: chown it"
    # A sticky folder like /tmp lets nobody replace another's file, and whose the next part is, is looked at in its turn.
    if found.st_mode & 0o022 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return f"others may write {path}: chmod go-w it"
    return ""


def _ours(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())


def _way_to(path: Path) -> Iterator[Path]:
    """Every folder, link and file that has a say in what `path` is, from the root on."""
    here, ahead, links = Path("/"), list(path.absolute().parts[1:]), 0
    yield here
    while ahead:
        here = here.parent if ahead[0] == ".." else here / ahead[0]
        del ahead[0]
        yield here
        if here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = here.parent / here.readlink()
            here, ahead = Path("/"), [*target.parts[1:], *ahead]


def readable_secret(name: str) -> str:
    """ "" or what is wrong with a file that holds a secret."""
    try:
        found = Path(name).stat()
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if os.name == "posix" and not _ours(found):
        return f"{name}, which holds a secret, belongs to somebody else: chown it"
    if os.name == "posix" and found.st_mode & 0o077:
        return f"others may read {name}, which holds a secret: chmod 600 it"
    return "" if os.access(name, os.R_OK) else f"{name} cannot be read"


def secret_in(name: str) -> str:
    """What a file that holds a secret says, on its first line."""
    complaint = readable_secret(name)
    if complaint:
        raise StepFailed(complaint)
    lines = Path(name).read_text("utf-8", "replace").splitlines()
    if not lines or not lines[0].strip():
        raise StepFailed(f"{name} is empty: it should hold a secret")
    return lines[0].strip()
