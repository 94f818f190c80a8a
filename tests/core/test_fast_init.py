"""The faster constructor and `replace` do what those of `dataclasses` do."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from forewarn.core.errors import Invalid
from forewarn.core.fast_init import fast_init, maker_of_checked, replace
from forewarn.core.model import Scope, ScopeKind


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    name: str
    size: int = 3
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subclass(Fast):
    colour: str


@fast_init
@dataclass(frozen=True, slots=True)
class Positional:
    name: str
    size: int = field(default=3, kw_only=True)
    colour: str = "red"


@dataclass(frozen=True, slots=True)
class Plain:
    name: str


def test_fields_may_be_positional() -> None:
    """Fields that are not keyword-only keep their order; the others follow."""
    assert Positional("a", "blue", size=4) == Positional(name="a", colour="blue", size=4)
    with pytest.raises(TypeError, match="positional"):
        Positional("a", "blue", 4)  # type: ignore[call-arg]


def test_replace_copies_any_dataclass() -> None:
    """A class without `fast_init` is copied as `dataclasses` does."""
    assert replace(Plain("a"), name="b") == Plain("b")


def test_it_makes_the_same_as_dataclasses() -> None:
    """Fields, defaults, equality, the printed form and the hash of a field are those of a dataclass."""
    made = Fast(name="a")
    assert (made.name, made.size, made.parts) == ("a", 3, {})
    assert made.parts is not Fast(name="a").parts
    assert made == Fast(name="a", size=3, parts={}) != Fast(name="b")
    assert repr(made) == "Fast(name='a', size=3, parts={})"
    assert type(made) is Fast


def test_what_is_made_is_frozen() -> None:
    """No field can be set after the constructor, nor after `replace`."""
    for made in (Fast(name="a"), replace(Fast(name="a"), size=4)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.size = 5  # type: ignore[misc]


def test_wrong_arguments_are_refused() -> None:
    """A missing or unknown field is a TypeError; `replace` refuses an unknown one."""
    with pytest.raises(TypeError, match=r"Fast\.__init__\(\) missing"):
        Fast()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected"):
        Fast(name="a", colour="red")  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="colour"):
        replace(Fast(name="a"), colour="red")


def test_replace_changes_a_copy_and_checks_it() -> None:
    """The original stays as it is, and a class that checks its fields checks the copy too."""
    scope = Scope(name="shop", kind=ScopeKind.STANDALONE, epoch=2)
    assert replace(scope, epoch=3) == dataclasses.replace(scope, epoch=3)
    assert scope.epoch == 2
    with pytest.raises(Invalid):
        replace(scope, terminate_notice_s=1)
    with pytest.raises(Invalid):
        Scope(name="shop", kind=ScopeKind.STANDALONE, terminate_notice_s=1)


def test_a_copy_of_a_subclass_keeps_its_class_and_its_own_fields() -> None:
    """A dataclass may extend a class with `fast_init`; the copy is not cut down to its base class."""
    assert replace(Subclass(name="a", colour="red"), size=4) == Subclass(name="a", colour="red", size=4)
    assert replace(Subclass(name="a", colour="red"), colour="blue") == Subclass(name="a", colour="blue")


def test_a_maker_of_checked_values_makes_what_the_constructor_makes() -> None:
    """The values are given in the order of the fields; what is made is frozen."""
    made = maker_of_checked(Fast)("a", 4, {})
    assert made == Fast(name="a", size=4)
    assert type(made) is Fast
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.size = 5  # type: ignore[misc]


def test_a_copy_is_checked_again_if_a_checked_field_changes() -> None:
    """Fields that a class names as unchecked are copied without a check, and no check of a scope reads one."""
    scope = Scope(name="web", kind=ScopeKind.STANDALONE)
    assert replace(scope, version=2).version == 2
    with pytest.raises(Invalid, match="max_user_operations"):
        replace(scope, version=2, max_user_operations=-1)
    assert not Scope.unchecked_fields & {*Scope.__post_init__.__code__.co_names}
    assert Scope.unchecked_fields <= {each.name for each in dataclasses.fields(Scope)}
