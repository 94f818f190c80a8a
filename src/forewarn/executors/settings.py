"""Declare a setting and read its value: what the settings of the service and of every executor are made of.

A class of settings is a frozen dataclass whose fields are made by `setting`. A field of seconds is called `…_s`; users write it
without the suffix, as a duration. A reader turns what a user wrote, as TOML or as text, into the value, or raises Invalid.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import NAME

__all__ = [
    "NoSettings",
    "Reader",
    "one_of",
    "parse_duration",
    "read_arguments",
    "read_counts",
    "read_flag",
    "read_machine",
    "read_path",
    "read_text",
    "read_time_limit",
    "setting",
    "whole_number",
]

Reader = Callable[[object], Any]


def setting(default: Any, read: Reader, help_text: str) -> Any:
    """Return a dataclass field with its default, its reader and its help for the settings reference."""
    metadata = {"read": read, "help": help_text}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class NoSettings:
    """The settings of an executor that has none."""


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid("write a text")
    return value


def read_path(value: object) -> Path:
    return Path(read_text(value)).expanduser()


def read_flag(value: object) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
    if isinstance(value, str):
        value = known.get(value.lower(), value)
    if not isinstance(value, bool):
        raise Invalid(f"{value!r} is neither true nor false")
    return value


def one_of(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in choices:
            nearest = difflib.get_close_matches(str(value).lower(), choices, n=1)
            use = f"did you mean {nearest[0]}? Use" if nearest else "use"
            raise Invalid(f"{value!r} is unknown: {use} one of {', '.join(choices)}")
        return str(value)

    return read


def whole_number(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isdecimal() and value.isascii():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Invalid(f"{value!r} is not a whole number from {low} to {high}")
        return value

    return read


def read_arguments(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
        raise Invalid('write a list of texts, like ["/usr/local/bin/maintain", "--host"]')
    return tuple(value)


def read_time_limit(value: object) -> int:
    if (seconds := parse_duration(value)) == 0:
        raise Invalid("a command needs some time: write a duration above 0")
    return seconds


def read_machine(value: object) -> str:
    scope, slash, name = read_text(value).partition("/")
    if not (slash and NAME.fullmatch(scope) and NAME.fullmatch(name)):
        raise Invalid(f"{value!r} names no machine: write it like shop/web-0")
    return f"{scope}/{name}"


def read_counts(value: object) -> Mapping[str, int]:
    """Read a table of machines and numbers."""
    if isinstance(value, str):
        value = dict(pair.partition("=")[::2] for pair in value.split())
    if not isinstance(value, dict):
        raise Invalid('write a table like { "shop/web-0" = 1 }')
    return {read_machine(key): whole_number(0, 1_000_000)(count) for key, count in value.items()}
