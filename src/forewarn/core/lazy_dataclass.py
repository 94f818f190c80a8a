"""A `dataclass` that starts fast: it compiles `__eq__`, `__hash__` and `__repr__` of a class at their first use.

`dataclasses` compiles them when a class is defined, which took a sixth of the start of an emulator, and few classes need
them. Row of the bench: `forewarn emulate` to its first answer.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

METHODS = ("__eq__", "__hash__", "__repr__")

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Do as `dataclasses.dataclass` does; only frozen classes start faster."""
        if cls is None:
            return partial(dataclass, **options)
        if not options.get("frozen"):
            return dataclasses.dataclass(cls, **options)
        own = cls.__dict__
        made = dataclasses.dataclass(cls, eq=False, repr=False, **options)
        for name in METHODS:
            if name not in own:
                setattr(made, name, _compiled_at_first_use(made, name))
        return made


def _compiled_at_first_use(cls: type, name: str) -> Callable[..., Any]:
    def method(*arguments: Any) -> Any:
        # A class with the same fields has the methods that `dataclasses` makes.
        fields = [
            (each.name, each.type, dataclasses.field(compare=each.compare, hash=each.hash, repr=each.repr))
            for each in dataclasses.fields(cls)
        ]
        compiled = getattr(dataclasses.make_dataclass(cls.__name__, fields, init=False, frozen=True), name)
        compiled.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, compiled)
        return compiled(*arguments)

    return method
