"""Reasons that would name very many name a few and how many more; an error that knows which methods are meant."""

from forewarn.core.errors import MethodNotAllowed
from forewarn.core.waiting import MAX_NAMED, _some


def test_few_are_named_whole_and_many_in_part() -> None:
    """At the limit all of them, beyond it the first and a count."""
    names = [f"vm-{n}" for n in range(MAX_NAMED + 2)]
    assert _some(names[:2]) == "vm-0, vm-1"
    assert _some(names[:MAX_NAMED]).endswith("vm-9")
    assert _some(names).endswith("vm-9 and 2 more")


def test_what_is_allowed_goes_with_the_error() -> None:
    """For the Allow header."""
    assert MethodNotAllowed("this takes GET", allow="GET").allow == "GET"
