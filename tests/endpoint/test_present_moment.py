"""The present moment of the guest listener: read once for each second of the service clock, and again when the clock is moved."""

from datetime import timedelta

import pytest

from forewarn.endpoint.document_state import Now
from forewarn.service.clock import Clock, ManualClock, ScaledClock, SystemClock
from tests.support.guest_service import START


@pytest.mark.parametrize(
    ("clock", "lasts_s"),
    [
        (ManualClock(START), float("inf")),
        (ScaledClock(START, 60.0, monotonic=lambda: 0.0), 1 / 60),
        (SystemClock(wall=lambda: START), 1.0),
    ],
    ids=["manual", "scaled", "system"],
)
def test_a_moment_lasts_as_long_as_a_second_of_the_clock(clock: Clock, lasts_s: float) -> None:
    """Until then a poll does not read the clock."""
    now = Now(clock, lambda: 100.0)
    moment = now()
    assert moment.at == START
    assert now.until_s == pytest.approx(100.0 + lasts_s)


@pytest.mark.parametrize(
    "clock", [ManualClock(START), ScaledClock(START, 60.0, monotonic=lambda: 0.0)], ids=["manual", "scaled"]
)
def test_a_moved_clock_ends_the_moment(clock: Clock) -> None:
    """The next reader gets the new time; a move within the same second leaves the moment as it is."""
    now = Now(clock, lambda: 100.0)
    before = now()
    clock.move_to(START + timedelta(milliseconds=1))
    assert now() is before
    clock.move_to(START + timedelta(minutes=1))
    assert now().at == START + timedelta(minutes=1)
