"""Convert model objects to SQL rows and back: one column per field, the same for every SQL store.

`TEXT_ROWS` is for a database without the needed types: times are UTC text of fixed width, which sorts by time; lists and maps
are JSON; booleans are 0 or 1. `NATIVE_ROWS` leaves the conversion to the driver.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Generic, Protocol, TypeVar, get_args, get_type_hints

from forewarn.core.fast_init import maker_from
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.model import (
    Approval,
    AuditEntry,
    ClockHold,
    Event,
    EventType,
    Host,
    Machine,
    Maintenance,
    Order,
    Scope,
    StoreHold,
    Strategy,
    Targets,
)
from forewarn.core.operator_model import Hook, HookDelivery, LoginSession, Receipt, Token
from forewarn.core.progress import WaveProgress
from forewarn.store.texts import array_text, time_text, with_nul, without_nul

T = TypeVar("T")
Values = dict[str, object]
Coder = Callable[[Any], Any]
# Targets may name 10,000 machines: a cache of such texts would hold gigabytes.
MAX_CACHED_CHARS = 4_096


class Row(Protocol):
    """A row of any driver: column names, and values by name or by position."""

    def keys(self) -> list[str]: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, which: Any, /) -> Any: ...


@lru_cache(maxsize=4_096)
def _texts(text: str) -> tuple[str, ...]:
    """Parse a JSON list. Cached: an event's resources never change and are read at every tick."""
    return tuple(json.loads(text))


@lru_cache(maxsize=4_096)
def _texts_text(texts: tuple[str, ...]) -> str:
    """Return a JSON list. Cached: an event's resources never change and are written at every transition."""
    return json.dumps(texts)


@lru_cache(maxsize=4_096)
def _time(text: str) -> datetime:
    """Parse a time. Cached: everything written in one transaction has the same time."""
    return datetime.fromisoformat(text)


@lru_cache(maxsize=4_096)
def _notices(text: str) -> Mapping[EventType, int]:
    """Parse minimum notices. Cached: many scopes have the same ones."""
    return {EventType(key): seconds for key, seconds in json.loads(text).items()}


def _notices_text(notices: Mapping[EventType, int]) -> str:
    return json.dumps(dict(sorted(notices.items()))) if notices else "{}"


def _labels_text(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(labels.items()))) if labels else "{}"


@lru_cache(maxsize=4_096)
def read_labels(text: str) -> Mapping[str, str]:
    """Parse labels. Cached: many machines have the same ones."""
    labels: dict[str, str] = json.loads(text)
    return labels


def targets_text(targets: Targets) -> str:
    """Return the targets as JSON, without the fields that name nothing."""
    stated = {name: value for name, value in asdict(targets).items() if value is not False}
    # A search finds letters that are not ASCII only if they are kept as they are.
    named = {name: value for name, value in stated.items() if value not in ((), "", None)}
    return json.dumps(named, ensure_ascii=False)


def read_targets(text: str | None) -> Targets | None:
    """Parse targets. Short ones are cached: they never change and are read at every tick."""
    if text is None:
        return None
    return _parsed_targets(text) if len(text) <= MAX_CACHED_CHARS else _parsed_targets.__wrapped__(text)


@lru_cache(maxsize=4_096)
def _parsed_targets(text: str) -> Targets:
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}
    return Targets(**found | {"machines": tuple((scope, name) for scope, name in found.get("machines", ()))})


def strategy_text(strategy: Strategy) -> str:
    """Return the strategy as JSON, without the fields that have their default."""
    return json.dumps(_without_defaults(strategy, Strategy()))


@lru_cache(maxsize=64)
def read_strategy(text: str | None) -> Strategy:
    """Parse a strategy. Cached like targets."""
    found = json.loads(text or "{}")
    return Strategy(**found | {"windows": tuple(found.get("windows", ()))})


def _without_defaults(thing: Any, default: Any) -> dict[str, Any]:
    return {f.name: value for f in fields(thing) if (value := getattr(thing, f.name)) != getattr(default, f.name)}


def _windows_text(windows: Mapping[str, Window]) -> str:
    return json.dumps([_with_times_as_text(asdict(window)) for window in windows.values()])


def _no_go_times_text(no_go_times: Mapping[str, NoGoTime]) -> str:
    return json.dumps([_with_times_as_text(asdict(no_go)) for no_go in no_go_times.values()])


def _with_times_as_text(values: dict[str, Any]) -> dict[str, Any]:
    return {key: time_text(value) if isinstance(value, datetime) else value for key, value in values.items()}


@lru_cache(maxsize=16)
def _windows(text: str) -> Mapping[str, Window]:
    return {each["name"]: Window(**_with_times(each)) for each in json.loads(text)}


@lru_cache(maxsize=16)
def _no_go_times(text: str) -> Mapping[str, NoGoTime]:
    return {each["name"]: NoGoTime(**_with_times(each)) for each in json.loads(text)}


def _with_times(values: dict[str, Any]) -> dict[str, Any]:
    times = {key: _time(values[key]) for key in ("start", "end", "extended_until") if values.get(key)}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()} | times


def _in_utc(moment: datetime | str) -> datetime:
    """Return a time from the driver, or from a row that the database returned as JSON."""
    return _time(moment) if isinstance(moment, str) else moment.astimezone(UTC)


Coders = Mapping[object, tuple[Coder | None, Coder | None]]

_TEXT: Coders = {
    str: (None, None),
    int: (None, None),
    bool: (int, bool),
    datetime: (time_text, _time),
    tuple[str, ...]: (_texts_text, _texts),
    Mapping[EventType, int]: (_notices_text, _notices),
    Mapping[str, str]: (_labels_text, read_labels),
    Mapping[str, Window]: (_windows_text, _windows),
    Mapping[str, NoGoTime]: (_no_go_times_text, _no_go_times),
}
_NATIVE: Coders = {
    str: (without_nul, with_nul),
    int: (None, None),
    bool: (None, None),
    datetime: (None, _in_utc),
    tuple[str, ...]: (array_text, tuple),
    Mapping[EventType, int]: (_notices_text, _notices),
    Mapping[str, str]: (_labels_text, read_labels),
    Mapping[str, Window]: (_windows_text, _windows),
    Mapping[str, NoGoTime]: (_no_go_times_text, _no_go_times),
}


# Columns with another name than their field: the database keeps the older name.
_COLUMN_OF_FIELD = {"observed_published_at": "told", "approval_mode": "approval", "group": "group_name"}


class Codec(Generic[T]):
    """Convert objects of one class to query values and rows to objects; `apart` are fields kept in other tables.

    The functions are compiled for the class: this work is a third of a tick of many maintenances. Rows of the bench: events
    in batches, and one event per commit.
    """

    def __init__(self, coders: Coders, cls: type[T], *apart: str, by_name: bool = False) -> None:
        hints = get_type_hints(cls)
        self._cls, self._apart = cls, apart
        self._names = tuple(f.name for f in fields(cls) if f.name not in apart)  # type: ignore[arg-type]
        self.columns = tuple(_COLUMN_OF_FIELD.get(name, name) for name in self._names)
        self._coders = [_coders(coders, hints[name]) for name in self._names]
        self._by_name = by_name
        self._width = 0
        self._decode: Callable[..., T] = cls
        self._last: tuple[Row | tuple[object, ...] | None, T | None] = (None, None)
        known, values = self._values()
        named = [f"{column!r}: {value}" for column, value in values.items()]
        self.encode: Callable[[T], Values] = eval(f"lambda instance: {{{', '.join(named)}}}", known)  # noqa: S307

    def row_encoder(self, columns: Iterable[str]) -> Callable[[T], tuple[object, ...]]:
        """Return a function that returns the values of these columns, in less time than `encode` takes."""
        known, values = self._values()
        listed = ", ".join(values[column] for column in columns)
        compiled: Callable[[T], tuple[object, ...]] = eval(f"lambda instance: ({listed},)", known)  # noqa: S307
        return compiled

    def _values(self) -> tuple[dict[str, Coder], dict[str, str]]:
        """Return the source of each column's value, and the functions that it calls."""
        known: dict[str, Coder] = {}
        return known, {
            column: _call(known, to_sql, f"instance.{name}", optional=optional)
            for column, name, (to_sql, _, optional) in zip(self.columns, self._names, self._coders, strict=True)
        }

    def decode(self, row: Row, *apart: object) -> T:
        """Return the object of a row, which was checked before it was written."""
        if len(row) != self._width:
            # Every query for this class selects the whole table, so the positions of its columns are computed once.
            # Set the width last: a thread that sees it uses `_decode`.
            self._decode = self._compiled_decode(list(row.keys()))
            self._width = len(row)
        return self._decode(row, *apart)

    def decode_again(self, row: Row) -> T:
        """Decode a row that seldom differs from the last one, such as the rules of the fleet."""
        known, instance = self._last
        values = row if self._by_name else tuple(row)  # rows compare the names of their columns too
        if instance is None or known != values:
            instance = self.decode(row)
            self._last = (values, instance)
        return instance

    def _compiled_decode(self, columns: list[str]) -> Callable[..., T]:
        known: dict[str, Any] = {"make": self._cls}
        parameters = ("row", *self._apart)
        values = {name: name for name in self._apart}
        for name, column, (_, from_sql, optional) in zip(self._names, self.columns, self._coders, strict=True):
            position = repr(column) if self._by_name else columns.index(column)
            values[name] = _call(known, from_sql, f"row[{position}]", optional=optional)
        if self._cls.__base__ is object:  # else it inherits fields, for which there is no maker
            return maker_from(self._cls, parameters, values, known)
        given = [f"{name}={value}" for name, value in values.items()]
        source = f"lambda {', '.join(parameters)}: make({', '.join(given)})"
        compiled: Callable[..., T] = eval(source, known)  # noqa: S307
        return compiled


def _call(known: dict[str, Any], coder: Coder | None, value: str, *, optional: bool) -> str:
    """Return the source of a value, or of the call that converts it; `known` gets the converting function."""
    if coder is None:
        return value
    if optional:
        return f"(None if (value := {value}) is None else {_call(known, coder, 'value', optional=False)})"
    name = f"coder_{len(known)}"
    known[name] = coder
    return f"{name}({value})"


def _coders(coders: Coders, hint: object) -> tuple[Coder | None, Coder | None, bool]:
    """Return how values of this type are written and read, and whether they may be None."""
    optional = isinstance(hint, UnionType)
    if optional:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return str, {str(member): member for member in hint}.__getitem__, optional
    return (*coders[hint], optional)


class Rows:
    """The codecs of one kind of database.

    `never` sorts before all times, `ever` after all times; `by_name` says that the driver's rows are mappings.
    """

    def __init__(self, coders: Coders, *, never: str, ever: str, by_name: bool) -> None:
        write, read = coders[datetime]
        self.time: Coder = write or (lambda moment: moment)
        self.read_time: Coder = read or (lambda moment: moment)
        self.never, self.ever = never, ever
        self.scope = Codec(coders, Scope, by_name=by_name)
        self.machine = Codec(coders, Machine, "addresses", by_name=by_name)
        self.host = Codec(coders, Host, by_name=by_name)
        self.maintenance = Codec(coders, Maintenance, "targets", "strategy", by_name=by_name)
        self.wave_progress = Codec(coders, WaveProgress, by_name=by_name)
        self.event = Codec(coders, Event, "approvals", by_name=by_name)
        self.approval = Codec(coders, Approval, by_name=by_name)
        self.order = Codec(coders, Order, by_name=by_name)
        self.audit = Codec(coders, AuditEntry, by_name=by_name)
        self.token = Codec(coders, Token, by_name=by_name)
        self.hook = Codec(coders, Hook, by_name=by_name)
        self.delivery = Codec(coders, HookDelivery, by_name=by_name)
        self.session = Codec(coders, LoginSession, by_name=by_name)
        self.receipt = Codec(coders, Receipt, by_name=by_name)
        self.hold = Codec(coders, ClockHold, by_name=by_name)
        self.store_hold = Codec(coders, StoreHold, by_name=by_name)
        self.fleet_rules = Codec(coders, FleetRules, by_name=by_name)


TEXT_ROWS = Rows(_TEXT, never="", ever="~", by_name=False)
NATIVE_ROWS = Rows(_NATIVE, never="-infinity", ever="infinity", by_name=True)
