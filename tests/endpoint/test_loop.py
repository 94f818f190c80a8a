"""The guests' loop: what is due, in which order, what other threads call, and what survives an error."""

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from forewarn.endpoint import loop as loops
from forewarn.endpoint.loop import Loop
from tests.endpoint.in_memory import ManualMonotonic, manual_monotonic
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def hand() -> Iterator[ManualMonotonic]:
    with manual_monotonic() as clock:
        yield clock


def test_timers_come_when_they_are_due_and_in_order(hand: ManualMonotonic) -> None:
    """The earliest first, none before its time, each once."""
    seen: list[str] = []
    hand.loop.call_later(2.0, lambda: seen.append("two"))
    hand.loop.call_later(1.0, lambda: seen.append("one"))
    hand.loop.turn()
    assert seen == []
    hand.now_s += 1.0
    hand.loop.turn()
    assert seen == ["one"]
    hand.now_s += 5.0
    hand.loop.turn()
    hand.loop.turn()
    assert seen == ["one", "two"]


def test_a_cancelled_timer_is_not_called(hand: ManualMonotonic) -> None:
    """Cancelled, and cancelled twice: nothing happens, and the others still do."""
    seen: list[str] = []
    timer = hand.loop.call_later(1.0, lambda: seen.append("cancelled"))
    hand.loop.call_later(1.0, lambda: seen.append("kept"))
    timer.cancel()
    timer.cancel()
    hand.now_s += 1.0
    hand.loop.turn()
    assert seen == ["kept"]


def test_cancelled_timers_do_not_pile_up(hand: ManualMonotonic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long polls that end early leave their timers behind: these are cleared away long before they are due."""
    monkeypatch.setattr(loops, "MANY_CANCELLED", 10)
    seen: list[int] = []
    hand.loop.call_later(30.0, lambda: seen.append(1))
    for _ in range(1_000):
        hand.loop.call_later(30.0, lambda: seen.append(0)).cancel()
    assert len(hand.loop._timers) < 25
    hand.now_s += 30.0
    hand.loop.turn()
    assert seen == [1]


def test_a_timer_cancelled_after_its_time_is_not_counted(hand: ManualMonotonic) -> None:
    """Every long poll that times out cancels the timer that ended it: the count of those in the heap stays exact."""
    fired = [hand.loop.call_later(1.0, lambda: None) for _ in range(3)]
    itself = hand.loop.call_later(1.0, lambda: itself.cancel())
    hand.loop.call_later(1.0, lambda: None).cancel()
    hand.loop.call_later(2.0, lambda: None).cancel()
    assert hand.loop._cancelled == 2
    hand.now_s += 1.0
    hand.loop.turn()
    for timer in fired:
        timer.cancel()
    assert hand.loop._cancelled == len(hand.loop._timers) == 1


class Teller:
    """A watcher that writes down what it is told, or fails, having closed what it watches."""

    def __init__(self, *, fails: bool = False, closes: int = -1) -> None:
        self.fails, self.closes = fails, closes
        self.told = 0

    def ready(self, event: int) -> None:
        self.told += event
        if self.closes >= 0:
            os.close(self.closes)
        if self.fails:
            raise ValueError("on purpose")


@pytest.mark.parametrize("closes", [False, True])
def test_a_watcher_that_fails_is_let_go(hand: ManualMonotonic, caplog: pytest.LogCaptureFixture, closes: bool) -> None:
    """Logged once and not told again, even if it closed what it watches; the others are told."""
    first, second, third = (os.eventfd(1, os.EFD_CLOEXEC) for _ in range(3))
    good, bad = Teller(), Teller(fails=True, closes=second if closes else -1)
    for fd, watcher in ((first, good), (second, bad), (third, good)):
        hand.loop.watch(fd, watcher)
    with caplog.at_level(logging.ERROR):
        assert [hand.loop.turn() for _ in range(3)] == [3, 2, 2]
    assert (good.told, bad.told) == (6, 1)
    assert len(caplog.records) == 1
    for fd in (first, third) if closes else (first, second, third):
        os.close(fd)


def test_what_repeats_goes_on_after_an_error(hand: ManualMonotonic, caplog: pytest.LogCaptureFixture) -> None:
    """A failing call is logged and takes nothing else with it."""
    seen: list[float] = []

    def fail() -> None:
        seen.append(hand.now_s)
        raise ValueError("on purpose")

    hand.loop.repeat(1.0, fail)
    hand.loop.call_soon(fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            hand.loop.turn()
            hand.now_s += 1.0
        hand.loop.turn()
    assert seen == [1_000.0, 1_001.0, 1_002.0, 1_003.0]
    assert len(caplog.records) == 4


def test_a_call_made_by_a_call_has_its_turn_later(hand: ManualMonotonic) -> None:
    """A chain of calls lets sockets in between: one link a turn."""
    seen: list[int] = []

    def link() -> None:
        seen.append(len(seen))
        hand.loop.call_soon(link)

    hand.loop.call_soon(link)
    for turns in (1, 2, 3):
        hand.loop.turn()
        assert len(seen) == turns


def test_a_sleeping_loop_is_woken_from_another_thread() -> None:
    """Nothing is due for ever: a call from elsewhere is made at once, and so is the end."""
    loop, called = Loop(), threading.Event()
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call_from_thread(called.set)
    assert called.wait(PATIENCE_S)
    loop.call_from_thread(loop.stop)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.close()


def test_after_the_end_nobody_is_heard() -> None:
    """Whoever still calls then gets no error, and no descriptor that is now another's is written to."""
    loop = Loop()
    loop.close()
    loop.call_from_thread(lambda: pytest.fail("called"))
