"""The ids of maintenances, events and tokens."""

import re

import pytest

from forewarn.app import service


def test_ids_follow_the_time_and_differ_in_their_first_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id is an upper-case GUID. Ids made a microsecond apart sort by time and differ in the digits that people type."""
    moments_ns = [(1 << 60) + step * 1_024 for step in range(5)]
    monkeypatch.setattr("forewarn.app.service.time.time_ns", lambda: moments_ns.pop(0))
    ids = [service.new_id() for _ in range(5)]
    assert all(
        re.fullmatch("[0-9A-F]{8}-[0-9A-F]{4}-4[0-9A-F]{3}-[89AB][0-9A-F]{3}-[0-9A-F]{12}", each) for each in ids
    )
    assert ids == sorted(ids)
    assert len({each[:8] for each in ids}) == 5


def test_ids_of_one_moment_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of an id is random, so nodes whose clocks agree make different ones."""
    monkeypatch.setattr("forewarn.app.service.time.time_ns", lambda: 1 << 60)
    assert len({service.new_id() for _ in range(100)}) == 100
