"""The error tree: what its docstring promises is what the classes are."""

import re
from collections.abc import Iterator

import pytest

from forewarn.core import errors
from forewarn.core.errors import ForewarnError, MethodNotAllowed, RequestError, ServiceError

CODES = {
    "ForewarnError": "error",
    "RequestError": "bad_request",
    "Invalid": "invalid",
    "InvalidFleet": "invalid_fleet",
    "InvalidSettings": "invalid_settings",
    "NotFound": "not_found",
    "Refused": "refused",
    "IllegalTransition": "illegal_transition",
    "MachineBusy": "machine_busy",
    "KeyReused": "idempotency_key_reused",
    "LargeRemoval": "large_removal",
    "Unauthorized": "unauthorized",
    "Forbidden": "forbidden",
    "TooLarge": "too_large",
    "Unprocessable": "unprocessable",
    "TooManyAttempts": "too_many_attempts",
    "MethodNotAllowed": "method_not_allowed",
    "TooSlow": "request_timeout",
    "TooManyRequests": "overloaded",
    "TooManyStreams": "too_many_streams",
    "StoreHeld": "store_held",
    "StoreInUse": "store_in_use",
    "TooManyUserOperations": "too_many_user_operations",
    "ServiceError": "service_error",
    "Conflict": "conflict",
    "StoreUnavailable": "store_unavailable",
    "InvariantBroken": "invariant_broken",
}


def tree(error: type[ForewarnError], depth: int = 0) -> Iterator[tuple[int, type[ForewarnError]]]:
    """(depth, class) of the class and everything below it, as far as the errors' own file defines it."""
    yield depth, error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, depth + 1)


ALL = [error for _, error in tree(ForewarnError)]


def drawn() -> list[tuple[int, str, int | None]]:
    """(depth, name, status) of each line of the tree in the docstring."""
    assert errors.__doc__ is not None
    found = re.findall(r"^((?:[│├└─ ]{4})*)([A-Z]\w+)(?: +([0-9]{3}) )?.*$", errors.__doc__, re.MULTILINE)
    rows = [(len(lead) // 4, name, int(status) if status else None) for lead, name, status in found]
    return rows[next(i for i, row in enumerate(rows) if row[1] == "ForewarnError") :][: len(CODES)]


def test_the_docstring_draws_the_real_tree() -> None:
    """Every class is in the docstring under its parent, and the docstring has no other names."""
    assert {(depth, name) for depth, name, _ in drawn()} == {(depth, e.__name__) for depth, e in tree(ForewarnError)}
    parents: dict[int, str] = {}
    for depth, name, _ in drawn():
        parents[depth] = name
        if depth:
            assert getattr(errors, name).__base__.__name__ == parents[depth - 1]


def test_the_docstring_states_the_real_statuses() -> None:
    """Each status in the tree is that of the class; only the three base classes have none."""
    for _, name, status in drawn():
        assert status in (None, getattr(errors, name).status)
    assert [name for _, name, status in drawn() if status is None] == ["ForewarnError", "RequestError", "ServiceError"]


def test_codes_are_stable() -> None:
    """The codes are these, and no two errors share one."""
    assert {error.__name__: error.code for error in ALL} == CODES
    assert len({error.code for error in ALL}) == len(ALL)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_the_status_says_whose_fault_it_is(error: type[ForewarnError]) -> None:
    """Errors of the caller are 4xx, errors of the service 5xx."""
    if issubclass(error, RequestError):
        assert 400 <= error.status < 500
    else:
        assert 500 <= error.status < 600
    assert issubclass(error, (RequestError, ServiceError)) or error is ForewarnError


def test_the_message_is_for_people() -> None:
    """The text of an error is its message."""
    assert str(errors.NotFound("there is no scope 'shed'")) == "there is no scope 'shed'"
    assert errors.NotFound("there is no scope 'shed'", scope="shed").scope == "shed"
    assert str(errors.InvalidSettings("a: wrong", "b: wrong")) == "a: wrong\nb: wrong"


def test_method_not_allowed_carries_the_allowed_methods() -> None:
    """The listener sends them in the Allow header."""
    assert MethodNotAllowed("this path takes GET", allow="GET").allow == "GET"
