"""The event loop: the order of timers and calls, calls from other threads, and errors in calls."""

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from forewarn.endpoint.loop import MANY_CANCELLED, Loop
from tests.endpoint.in_memory import ManualMonotonic, manual_monotonic
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def clock() -> Iterator[ManualMonotonic]:
    with manual_monotonic() as clock:
        yield clock


def test_timers_are_called_when_they_are_due_and_in_order(clock: ManualMonotonic) -> None:
    """The earliest timer is called first, none before its time, each once."""
    seen: list[str] = []
    clock.loop.call_later(2.0, lambda: seen.append("two"))
    clock.loop.call_later(1.0, lambda: seen.append("one"))
    clock.loop.turn()
    assert seen == []
    clock.now_s += 1.0
    clock.loop.turn()
    assert seen == ["one"]
    clock.now_s += 5.0
    clock.loop.turn()
    clock.loop.turn()
    assert seen == ["one", "two"]


def test_a_cancelled_timer_is_not_called(clock: ManualMonotonic) -> None:
    """A timer may be cancelled twice; the other timers are called."""
    seen: list[str] = []
    timer = clock.loop.call_later(1.0, lambda: seen.append("cancelled"))
    clock.loop.call_later(1.0, lambda: seen.append("kept"))
    timer.cancel()
    timer.cancel()
    clock.now_s += 1.0
    clock.loop.turn()
    assert seen == ["kept"]


def test_cancelled_timers_do_not_pile_up(clock: ManualMonotonic) -> None:
    """Cancelled timers are cleared away long before they are due."""
    seen: list[int] = []
    clock.loop.call_later(30.0, lambda: seen.append(1))
    for _ in range(10 * MANY_CANCELLED):
        clock.loop.call_later(30.0, lambda: seen.append(0)).cancel()
    assert len(clock.loop._timers) < MANY_CANCELLED + 10
    clock.now_s += 30.0
    clock.loop.turn()
    assert seen == [1]


def test_a_timer_cancelled_after_its_time_is_not_counted(clock: ManualMonotonic) -> None:
    """Cancelling a timer that was already called does not change the count of cancelled timers."""
    fired = [clock.loop.call_later(1.0, lambda: None) for _ in range(3)]
    itself = clock.loop.call_later(1.0, lambda: itself.cancel())
    clock.loop.call_later(1.0, lambda: None).cancel()
    clock.loop.call_later(2.0, lambda: None).cancel()
    assert clock.loop._cancelled == 2
    clock.now_s += 1.0
    clock.loop.turn()
    for timer in fired:
        timer.cancel()
    assert clock.loop._cancelled == len(clock.loop._timers) == 1


class CountingWatcher:
    """A watcher that counts events, and may close its descriptor or fail."""

    def __init__(self, *, fails: bool = False, closes: int = -1) -> None:
        self.fails, self.closes = fails, closes
        self.events = 0

    def ready(self, event: int) -> None:
        self.events += event
        if self.closes >= 0:
            os.close(self.closes)
        if self.fails:
            raise ValueError("on purpose")


@pytest.mark.parametrize("closes", [False, True])
def test_a_watcher_that_fails_is_dropped(
    clock: ManualMonotonic, caplog: pytest.LogCaptureFixture, closes: bool
) -> None:
    """The error is logged once, even if the watcher closed its descriptor; the other watchers are called."""
    first, second, third = (os.eventfd(1, os.EFD_CLOEXEC) for _ in range(3))
    good, bad = CountingWatcher(), CountingWatcher(fails=True, closes=second if closes else -1)
    for fd, watcher in ((first, good), (second, bad), (third, good)):
        clock.loop.watch(fd, watcher)
    with caplog.at_level(logging.ERROR):
        assert [clock.loop.turn() for _ in range(3)] == [3, 2, 2]
    assert (good.events, bad.events) == (6, 1)
    assert len(caplog.records) == 1
    for fd in (first, third) if closes else (first, second, third):
        os.close(fd)


def test_a_repeated_call_is_repeated_after_an_error(clock: ManualMonotonic, caplog: pytest.LogCaptureFixture) -> None:
    """A failing call is logged; it and the other calls are made again."""
    seen: list[float] = []

    def fail() -> None:
        seen.append(clock.now_s)
        raise ValueError("on purpose")

    clock.loop.repeat(1.0, fail)
    clock.loop.call_soon(fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.loop.turn()
            clock.now_s += 1.0
        clock.loop.turn()
    assert seen == [1_000.0, 1_001.0, 1_002.0, 1_003.0]
    assert len(caplog.records) == 4


def test_a_call_made_by_a_call_runs_in_the_next_turn(clock: ManualMonotonic) -> None:
    """A chain of calls runs one call per turn, so that sockets are served in between."""
    seen: list[int] = []

    def link() -> None:
        seen.append(len(seen))
        clock.loop.call_soon(link)

    clock.loop.call_soon(link)
    for turns in (1, 2, 3):
        clock.loop.turn()
        assert len(seen) == turns


def test_a_sleeping_loop_is_woken_from_another_thread() -> None:
    """A loop without timers makes a call from another thread at once, and stops at once."""
    loop, called = Loop(), threading.Event()
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call_from_thread(called.set)
    assert called.wait(PATIENCE_S)
    loop.call_from_thread(loop.stop)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.close()


def test_a_call_after_close_is_ignored() -> None:
    """A call from another thread after `close` raises nothing and is not made."""
    loop = Loop()
    loop.close()
    loop.call_from_thread(lambda: pytest.fail("called"))
