"""The dataclass that compiles methods at their first use is the one of `dataclasses` otherwise."""

import dataclasses
import pickle
from dataclasses import field

import pytest

from forewarn.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lazy:
    """A class with all kinds of fields."""

    name: str
    size: int = 3
    parts: tuple[str, ...] = field(default_factory=tuple)
    secret: str = field(default="", repr=False)
    remark: str = field(default="", compare=False)


@dataclass(frozen=True)
class WithOwnMethods:
    """A class that says itself when two instances are equal, and how they look."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithOwnMethods)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


def test_equality_hash_and_text_are_those_of_dataclasses() -> None:
    """Fields without `compare` or `repr` do not count, and every use gives the same as the first."""
    for _ in range(2):
        assert Lazy(name="a", remark="x") == Lazy(name="a", remark="y") != Lazy(name="b")
        assert hash(Lazy(name="a", remark="x")) == hash(Lazy(name="a", remark="y")) != hash(Lazy(name="b"))
        assert repr(Lazy(name="a", secret="s")) == "Lazy(name='a', size=3, parts=(), remark='')"


def test_instances_are_frozen_and_can_be_copied() -> None:
    """No field can be set; `replace`, `asdict` and pickle work."""
    made = Lazy(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.size = 4  # type: ignore[misc]
    assert dataclasses.replace(made, size=4) == Lazy(name="a", size=4)
    assert dataclasses.asdict(made)["size"] == 3
    assert pickle.loads(pickle.dumps(made)) == made


def test_methods_of_the_class_are_kept() -> None:
    """A class that has the methods itself keeps them."""
    assert WithOwnMethods("a") == WithOwnMethods("b")
    assert (hash(WithOwnMethods("a")), repr(WithOwnMethods("a"))) == (7, "own")
