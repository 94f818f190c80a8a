"""The follower reads changes of others: nothing is skipped after a failure, bursts are read together, silence is reported."""

import threading
from datetime import timedelta

import pytest

from forewarn.core.errors import StoreUnavailable
from forewarn.service.clock import MAX_READING_S, KeptClock
from forewarn.service.follower import GATHER_S, RETRY_S, UNREADY_AFTER_S, Follower
from forewarn.store import Feed, FeedUpdate
from tests.support.guest_service import START
from tests.support.several_nodes import (
    ScriptedFeed,
)
from tests.support.waiting import PATIENCE_S, until


def test_an_update_that_a_listener_could_not_use_is_read_again() -> None:
    """When a listener fails, the position stays: the next poll begins from the same one."""
    feed = ScriptedFeed()
    follower = Follower(feed, KeptClock(lambda: START))
    follower.start()
    failing = [True]

    def listen(_: FeedUpdate) -> None:
        if failing.pop():
            raise StoreUnavailable("gone in between")

    follower.listen(listen)
    with pytest.raises(StoreUnavailable):
        follower.poll(0.0)
    failing.append(False)
    follower.poll(0.0)
    failing.append(False)
    follower.poll(0.0)
    assert [position and position.horizon for position in feed.positions] == [None, 1, 1, 3]


def test_the_time_of_a_slow_poll_is_not_used() -> None:
    """Its changes count, its time does not: the database read its clock an unknown while ago."""
    feed = ScriptedFeed()
    clock = KeptClock(lambda: START)
    follower = Follower(feed, clock)
    feed.took_s = MAX_READING_S + 1
    follower.poll(0.0)
    assert abs(clock.now() - START) < timedelta(minutes=1)
    feed.took_s = 0.0
    follower.poll(0.0)
    assert abs(clock.now() - START) > timedelta(minutes=1)


def test_a_silent_database_is_reported_after_three_seconds() -> None:
    """Not at once; with the cause; and no longer once the database answers again."""
    now_s = 1_000.0
    feed: Feed = ScriptedFeed(monotonic=lambda: now_s)
    follower = Follower(feed, KeptClock(lambda: START, monotonic=lambda: now_s), monotonic=lambda: now_s)
    follower.start()
    now_s += UNREADY_AFTER_S
    assert follower.complaint() == ""
    now_s += 0.1
    assert "this node has read nothing for 3 s" in follower.complaint()
    follower.poll(0.0)
    assert follower.complaint() == ""


def test_catching_up_waits_for_a_poll_that_began_later() -> None:
    """A poll that began before does not count; when none comes in time the caller gets an error."""
    feed = ScriptedFeed()
    follower = Follower(feed, KeptClock(lambda: START))
    follower.start()
    waiting = threading.Thread(target=follower.catch_up, args=(PATIENCE_S,), daemon=True)
    waiting.start()
    until(lambda: follower._polled._waiters)  # type: ignore[attr-defined]
    assert waiting.is_alive()
    follower.poll(0.0)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    with pytest.raises(StoreUnavailable, match="try again"):
        follower.catch_up(within_s=0.01)


def test_the_follower_pauses_after_changes_and_after_failures_only() -> None:
    """A change after a quiet time is read at once; closely after others, it is read with those of the next moments."""
    feed = ScriptedFeed()
    outcomes = iter([True, False, None, True])
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        outcome = next(outcomes, "stop")
        feed.away, feed.changed = outcome is None, outcome is True
        return outcome == "stop"

    follower = Follower(feed, KeptClock(lambda: START), pause=pause)
    follower.start()
    follower.run()
    assert pauses == [0.0, GATHER_S, 0.0, RETRY_S, GATHER_S]


def test_stopping_ends_a_pause() -> None:
    """A node that stops does not wait until its follower polls again."""
    follower = Follower(ScriptedFeed(), KeptClock(lambda: START))
    follower.start()
    follower.stop()
    assert follower._pause(PATIENCE_S)
