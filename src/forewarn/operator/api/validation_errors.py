"""The sentence about a body or a parameter of the wrong shape: where it is, and what to write there.

msgspec finds the error and names its place. The types of `bodies` say what to write, so that a sentence has neither the words of
Python nor a regular expression.
"""

import re
from typing import Any

import msgspec
from msgspec import inspect

from forewarn.core.durations import duration_text
from forewarn.core.unknown_names import unknown_name

_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_NO_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
A_TIME = "a time with its zone, like 2030-01-31T22:00:00Z"


def sentence(error: msgspec.ValidationError, shape: Any, *, whole: str) -> str:
    """Return the sentence; `shape` is the type that was expected, and `whole` is what to call it: body or parameter."""
    try:
        return _sentence(str(error), shape, whole)
    except (AttributeError, StopIteration):  # the request has a field whose name looks like a place
        return f"{whole}: write {_description(inspect.type_info(shape), '')}"


def _sentence(error: str, shape: Any, whole: str) -> str:
    message, _, place = error.partition(" - at ")
    place = place.replace("`", "")
    path = place.removeprefix("key in ").removeprefix("$")
    found, name = _type_at(inspect.type_info(shape), path)
    where = path.removeprefix(".").removesuffix("[...]")
    if place.startswith("key in "):
        found, name, where = _bare(found.key_type), "", f"a key of {where}"
    elif path.endswith("[...]"):
        where = f"a value of {where}"
    if match := _MISSING.fullmatch(message):
        return f"{_join(where, match[1])}: missing; add it"
    if match := _UNKNOWN.fullmatch(message):
        kind = "parameter" if whole == "parameter" else "field"
        return f"{_join(where, match[1])}: {unknown_name(kind, match[1], _field_names(found))}"
    if match := _NO_CHOICE.fullmatch(message):
        return f"{where}: {match[1]} is unknown; use {_description(found, name)}"
    return f"{where or whole}: write {_description(found, name)}"


def _join(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _type_at(type_: Any, path: str) -> tuple[Any, str]:
    """Return the type at a path like `.targets.scopes[0]`, and the name of its field."""
    name = ""
    for step in _STEP.finditer(path):
        type_ = _bare(type_)
        if step[1]:
            name = step[1]
            type_ = next(field.type for field in type_.fields if field.encode_name == name)
        else:
            type_ = type_.value_type if isinstance(type_, inspect.DictType) else type_.item_type
    return _bare(type_), name


def _bare(type_: Any) -> Any:
    """Return the type without null, which only means that a field may be left out, and without its documentation."""
    while True:
        if isinstance(type_, inspect.UnionType):
            type_ = next(each for each in type_.types if not isinstance(each, inspect.NoneType))
        elif isinstance(type_, inspect.Metadata) and not _is_described_text(type_):
            type_ = type_.type
        else:
            return type_


def _is_described_text(type_: inspect.Metadata) -> bool:
    return isinstance(type_.type, inspect.StrType) and "description" in (type_.extra_json_schema or {})


def _field_names(struct: Any) -> list[str]:
    return [field.encode_name for field in struct.fields]


def _description(type_: Any, name: str) -> str:
    """Return what to write where the type is expected, in the field with this name."""
    match type_:
        case inspect.Metadata():
            return str((type_.extra_json_schema or {})["description"])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            kind = "whole seconds" if name.endswith("_s") else "a whole number"
            if isinstance(type_, inspect.FloatType):
                kind = "a number"
            return kind + _limits(" from", ",", _number_text(type_.ge, name), _number_text(type_.le, name))
        case inspect.StrType():
            return "a text" + _limits(" of", " of", type_.min_length, type_.max_length, " characters")
        case inspect.EnumType():
            return f"one of {', '.join(each.value for each in type_.cls)}"
        case inspect.DateTimeType():
            return A_TIME
        case inspect.StructType():
            return f"an object with {', '.join(_field_names(type_))}"
        case inspect.DictType():
            return "an object"
        case _:
            return "a list" + _limits(" of", " of", type_.min_length or None, type_.max_length, " entries")


def _number_text(limit: float | None, name: str) -> object:
    if limit is None or limit < 60 or not name.endswith("_s"):
        return limit
    return f"{limit} ({duration_text(int(limit))})"


def _limits(before_two: str, before_one: str, least: object, most: object, unit: str = "") -> str:
    if least is not None and most is not None:
        return f"{before_two} {least} to {most}{unit}"
    if most is not None:
        return f"{before_one} at most {most}{unit}"
    return f"{before_one} at least {least}{unit}" if least is not None else ""
