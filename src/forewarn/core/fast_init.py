"""A faster constructor and `replace` for the frozen dataclasses of which a tick makes thousands.

`dataclasses` sets each field of a frozen class with `object.__setattr__`, which takes most of the time of reading or changing an
event. Here the instance has a class without the frozen `__setattr__` until its fields are set. Rows of the bench: events in
batches, and lateness of events due at once.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def replace(instance: T, /, **changes: Any) -> T:
    """Return a copy with these fields changed, as `dataclasses.replace` does; faster for a class with `fast_init`."""
    try:
        with_changes: Callable[[dict[str, Any]], T] = instance.with_changes  # type: ignore[attr-defined]
    except AttributeError:
        return dataclasses.replace(instance, **changes)  # type: ignore[type-var]
    return with_changes(changes)


def maker_of_checked(cls: type[T]) -> Callable[..., T]:
    """Return a function that makes an instance of values that were checked before, in the order of the fields."""
    slots = cls.__slots__  # type: ignore[attr-defined]
    return maker_from(cls, slots, {name: name for name in slots}, {})


def maker_from(
    cls: type[T], parameters: Iterable[str], values: Mapping[str, str], known: Mapping[str, Any]
) -> Callable[..., T]:
    """Return a function of these parameters that makes an instance. `values` are the sources of its fields."""
    slots = cls.__slots__  # type: ignore[attr-defined]
    names: dict[str, Any] = {
        **known,
        "cls": cls,
        "settable": type(cls.__name__, (), {"__slots__": slots}),
        "new": object.__new__,
    }
    lines = [
        "made = new(settable)",
        *(f"made.{name} = {values[name]}" for name in slots),
        "made.__class__ = cls",
        "return made",
    ]
    exec(f"def make({', '.join(parameters)}):\n " + "\n ".join(lines), names)  # noqa: S102 - as dataclasses does it
    make: Callable[..., T] = names["make"]
    return make


def fast_init(cls: type[T]) -> type[T]:
    """Replace the constructor of a frozen dataclass with slots by one that does the same.

    A copy that differs only in the fields of `unchecked_fields`, if the class has them, is not checked again.
    """
    settable = type(cls.__name__, (), {"__slots__": cls.__slots__})  # type: ignore[attr-defined]
    names: dict[str, Any] = {"cls": cls, "settable": settable, "set_class": object.__setattr__, "missing": MISSING}
    names |= {"new": object.__new__, "replace_subclass": dataclasses.replace}
    parameters, body = ["self"], ["set_class(self, '__class__', settable)"]
    for field in sorted(fields(cls), key=lambda field: field.kw_only is True):  # type: ignore[arg-type]
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"make_{name}"] = field.default_factory
            parameters.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        elif field.default is not MISSING:
            names[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        body.append(f"self.{name} = {value}")
    # A subclass has a constructor of its own, and more fields.
    copied = ["if type(self) is not cls: return replace_subclass(self, **changes)", "copy = new(settable)"]
    copied += [f"copy.{field.name} = self.{field.name}" for field in fields(cls)]  # type: ignore[arg-type]
    copied += ["for name, value in changes.items():", " setattr(copy, name, value)", "copy.__class__ = cls"]
    body.append("self.__class__ = cls")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
        names["unchecked"] = getattr(cls, "unchecked_fields", frozenset())
        copied.append("if not changes.keys() <= unchecked: copy.__post_init__()")
    copied.append("return copy")
    for function, lines in ((f"__init__({', '.join(parameters)})", body), ("with_changes(self, changes)", copied)):
        exec(f"def {function}:\n " + "\n ".join(lines), names)  # noqa: S102 - as dataclasses does it
        name = function.partition("(")[0]
        names[name].__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, names[name])
    return cls
