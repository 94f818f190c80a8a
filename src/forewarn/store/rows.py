"""How things of the model become SQL rows and come back: a column per field, the same for every SQL store.

Times are UTC text of fixed width, so that they sort as they pass; lists and maps are JSON; truth is 0 or 1.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Generic, Protocol, TypeVar, get_type_hints

from forewarn.core.model import (
    Approval,
    AuditEntry,
    Event,
    EventType,
    Machine,
    Maintenance,
    Order,
    Receipt,
    Scope,
    Token,
)

T = TypeVar("T")
Values = dict[str, object]
Coder = Callable[[Any], Any]


class Row(Protocol):
    """A row of any driver: its columns' names, and in the same order their values."""

    def keys(self) -> list[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@lru_cache(maxsize=4_096)
def time_text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def optional_text(moment: datetime | None) -> str | None:
    return None if moment is None else time_text(moment)


def optional_time(text: str | None) -> datetime | None:
    return None if text is None else _time(text)


@lru_cache(maxsize=4_096)
def _texts(text: str) -> tuple[str, ...]:
    """An event's resources are read at every tick of its life and never change."""
    return tuple(json.loads(text))


@lru_cache(maxsize=4_096)
def _time(text: str) -> datetime:
    """What happened in one transaction bears one time."""
    return datetime.fromisoformat(text)


def _notices(text: str) -> dict[EventType, int]:
    return {EventType(key): seconds for key, seconds in json.loads(text).items()}


_CODERS: dict[object, tuple[Coder | None, Coder | None]] = {
    str: (None, None),
    int: (None, None),
    bool: (int, bool),
    datetime: (time_text, _time),
    datetime | None: (optional_text, optional_time),
    tuple[str, ...]: (json.dumps, _texts),
    Mapping[EventType, int]: (lambda notices: json.dumps(dict(sorted(notices.items()))), _notices),
}


class Codec(Generic[T]):
    """Values for a statement, and the thing back from a row; `apart` are fields kept in tables of their own."""

    def __init__(self, cls: type[T], *apart: str) -> None:
        hints = get_type_hints(cls)
        self._cls = cls
        self._names = tuple(f.name for f in fields(cls) if f.name not in apart)  # type: ignore[arg-type]
        self._get = attrgetter(*self._names)
        coders = {name: _coders(hints[name]) for name in self._names}
        self._encode = [(name, to_sql) for name, (to_sql, _) in coders.items() if to_sql is not None]
        self._decode = [(name, from_sql) for name, (_, from_sql) in coders.items() if from_sql is not None]
        self._width = 0
        self._pick: Callable[[Row], tuple[Any, ...]] = itemgetter(0)

    def values(self, thing: T) -> Values:
        values = dict(zip(self._names, self._get(thing), strict=True))
        for name, to_sql in self._encode:
            values[name] = to_sql(values[name])
        return values

    def thing(self, row: Row, **apart: object) -> T:
        if len(row) != self._width:
            # Every query that makes this thing selects its whole table: where a column stands is found out once.
            columns = row.keys()
            # The width last: another thread that sees it must find the way to pick.
            self._pick = itemgetter(*(columns.index(name) for name in self._names))
            self._width = len(row)
        values = dict(zip(self._names, self._pick(row), strict=True))
        for name, from_sql in self._decode:
            values[name] = from_sql(values[name])
        return self._cls(**values, **apart)


def _coders(hint: object) -> tuple[Coder | None, Coder | None]:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return str, {str(member): member for member in hint}.__getitem__
    return _CODERS[hint]


SCOPE = Codec(Scope)
MACHINE = Codec(Machine, "addresses")
MAINTENANCE = Codec(Maintenance)
EVENT = Codec(Event, "approvals")
APPROVAL = Codec(Approval)
ORDER = Codec(Order)
AUDIT = Codec(AuditEntry)
TOKEN = Codec(Token)
RECEIPT = Codec(Receipt)
