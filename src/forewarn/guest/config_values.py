"""Readers for the values of a configuration file. Each takes the value and its key, and raises ConfigError when it is wrong."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, Iterable, Mapping, Tuple

from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.safe_files import open_regular
from forewarn.guest.system import system

MAX_DURATION_S = 7 * 86_400
MAX_COUNT = 10_000
MAX_SECRET_BYTES = 64 * 1024
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("(?=.)" + "".join(f"(?:([0-9]{{1,6}}){unit})?" for unit in _SECONDS))


def check_keys(table: Any, known: Iterable[str], where: str, **required: str) -> None:
    """Raise ConfigError for an unknown key, which is a misspelt one, and for a missing key; `required` says what to write."""
    names = list(known)
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: write a table with {', '.join(names)}")
    for key in table:
        if key not in names:
            article = f"{suggestion} The" if (suggestion := did_you_mean(str(key), names)) else "the"
            raise ConfigError(f"{where}.{key}: unknown key; {article} keys here are {', '.join(names)}")
    for key, what in required.items():
        if key not in table:
            raise ConfigError(f"{where}: {key} is missing: {what}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean host?` with the nearest known name, or "" if none is near."""
    import difflib  # only a wrong name needs it

    return "".join(f"did you mean {nearest}?" for nearest in difflib.get_close_matches(name, list(known), n=1))


def read_values(table: Mapping[str, Any], where: str, **readers: Callable[[Any, str], Any]) -> Dict[str, Any]:
    """Return every value, read by the reader named for its key, or as a text where none is named."""
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
        raise ConfigError(f"{where}: {value!r} is not a number from 0 to {MAX_COUNT}")
    return value


def strings(value: Any, where: str) -> Tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f'{where}: write a list of texts, like ["systemctl", "stop", "worker"]')
    return tuple(value)


def address(value: Any, where: str) -> str:
    """Return `host:port` as it was written."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value) or not 0 < int(value.rpartition(":")[2]) < 65_536:
        raise ConfigError(f"{where}: {value!r} is not an address: write it like 10.0.0.4:6379 or [fd00::4]:6379")
    return value


def one_of(value: Any, choices: Tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise ConfigError(f"{where}: {value!r} is unknown: use one of {', '.join(choices)}")
    return str(value)


def seconds(value: Any, where: str) -> float:
    """Return the seconds of a text like `1h30m`: numbers with units, the largest unit first. `0` needs no unit."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if value in (0, "0") and not isinstance(value, bool):
        return 0.0
    if match is None:
        raise ConfigError(
            f'{where}: {value!r} is not a duration: write numbers with units, largest first, like "90s" or "1h30m"'
        )
    duration_s = sum(int(number or 0) * size for number, size in zip(match.groups(), _SECONDS.values()))
    if duration_s > MAX_DURATION_S:
        raise ConfigError(f"{where}: {value!r} is longer than a week")
    return float(duration_s)


def secret_file_problem(name: str) -> str:
    """Return what is wrong with a file that holds a secret, or ""."""
    try:
        read_secret_file(name)
    except StepFailed as error:
        return str(error)
    return ""


def read_secret(name: str) -> str:
    """Return the secret on the first line of the file."""
    lines = read_secret_file(name).splitlines()
    if not lines or not lines[0].strip():
        raise StepFailed(f"{name} is empty: it must hold a secret")
    return lines[0].strip()


def read_secret_file(name: str) -> str:
    """Return the text of a file that holds a secret; raise StepFailed if another user owns or may read it.

    The file checked is the file read: its folder may belong to another user.
    """
    try:
        with os.fdopen(open_regular(name, follow=True), "rb") as file:
            problem = system.others_may_read(file.fileno(), name)
            if problem:
                raise StepFailed(problem)
            return file.read(MAX_SECRET_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise StepFailed(f"{name} cannot be read: {error.strerror}") from None
