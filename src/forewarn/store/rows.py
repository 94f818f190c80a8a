"""How things of the model become SQL rows and come back: a column per field, the same for every SQL store.

Times are UTC text of fixed width, so that they sort as they pass; lists and maps are JSON; truth is 0 or 1.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, get_type_hints

from forewarn.core.model import Approval, AuditEntry, Event, EventType, Machine, Maintenance, Order, Scope

T = TypeVar("T")
Values = dict[str, object]
Coder = Callable[[Any], Any]


class Row(Protocol):
    """A row of any driver: its columns' names, and in the same order their values."""

    def keys(self) -> Iterable[str]: ...

    def __iter__(self) -> Iterator[Any]: ...


def time_text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def optional_text(moment: datetime | None) -> str | None:
    return None if moment is None else time_text(moment)


def optional_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _notices(text: str) -> dict[EventType, int]:
    return {EventType(key): seconds for key, seconds in json.loads(text).items()}


_CODERS: dict[object, tuple[Coder | None, Coder | None]] = {
    str: (None, None),
    int: (None, None),
    bool: (int, bool),
    datetime: (time_text, datetime.fromisoformat),
    datetime | None: (optional_text, optional_time),
    tuple[str, ...]: (json.dumps, lambda text: tuple(json.loads(text))),
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

    def values(self, thing: T) -> Values:
        values = dict(zip(self._names, self._get(thing), strict=True))
        for name, to_sql in self._encode:
            values[name] = to_sql(values[name])
        return values

    def thing(self, row: Row, **apart: object) -> T:
        columns = dict(zip(row.keys(), row, strict=True))
        values = {name: columns[name] for name in self._names}
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
