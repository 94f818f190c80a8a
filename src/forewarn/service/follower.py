"""Keeps a node up to date with the other nodes that share its store: reads their changes, and keeps the database's time.

Once a second, and when the database notifies, the follower reads what changed since its last poll; changes that follow each other
closely are read together. The changes count as read only after every listener has processed them: after a failure the next poll
delivers them again.
"""

import logging
import threading
import time
from collections.abc import Callable

from forewarn.core.errors import StoreUnavailable
from forewarn.service.clock import MAX_READING_S, KeptClock
from forewarn.service.logs import TroubleLog
from forewarn.store import Feed, FeedPosition, FeedUpdate

POLL_EVERY_S = 1.0
RETRY_S = 0.5
# How long the follower pauses after a poll that found changes: under load, the next poll covers the changes of that time. A
# change after a quiet time is read at once. Row of the bench: one event per commit on PostgreSQL, 3 writers.
GATHER_S = 0.01
CATCH_UP_WITHIN_S = 3.0
# "`/readyz` fails after 3 s."
UNREADY_AFTER_S = 3.0

log = logging.getLogger("forewarn.service.follower")

Listener = Callable[[FeedUpdate], None]


class Follower:
    """Polls a feed. `pause` waits so many seconds, or until `stop` is called, and returns whether it was called."""

    def __init__(
        self,
        feed: Feed,
        clock: KeptClock,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._feed = feed
        self._monotonic = monotonic
        self._clock = clock
        self._listeners: list[Listener] = []
        self._position: FeedPosition | None = None
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._trouble = TroubleLog(log, "other nodes cannot be followed")
        self._known_s = 0.0
        self._polled = threading.Condition()
        self.warning = ""

    def listen(self, listener: Listener) -> None:
        """Subscribe a listener: it is called after every poll, also if nothing changed."""
        self._listeners.append(listener)

    def start(self) -> FeedUpdate:
        """Set the first position: changes to what is read from the store after this are not missed."""
        update = self._feed.poll(None, 0.0)
        self._keep_time(update)
        self._clock.now()  # reads the time again if that reading took too long: it must be known before it is shown
        self._position, self._known_s, self.warning = update.position, update.sent_s, update.warning
        return update

    def run(self) -> None:
        """Poll until `stop`; survive a database that is away and unexpected errors."""
        pause_s = 0.0
        while not self._pause(pause_s):
            try:
                pause_s = GATHER_S if self.poll(POLL_EVERY_S).changed else 0.0
            except Exception as error:
                self._trouble.note(error)
                pause_s = RETRY_S
        self.close()

    def close(self) -> None:
        """Close the feed. `run()` closes it itself."""
        self._feed.close()

    def stop(self) -> None:
        self._stopping.set()

    def poll(self, wait_s: float) -> FeedUpdate:
        """Wait up to `wait_s` for changes, pass them to the listeners, and return them."""
        update = self._feed.poll(self._position, wait_s)
        self._keep_time(update)
        for listener in self._listeners:
            listener(update)
        with self._polled:
            self._position, self._known_s, self.warning = update.position, update.sent_s, update.warning
            self._polled.notify_all()
        self._trouble.clear("the database is back, and all changes are read")
        return update

    def _keep_time(self, update: FeedUpdate) -> None:
        if update.received_s - update.sent_s <= MAX_READING_S:
            self._clock.keep(update.now, update.received_s)

    @property
    def timeline(self) -> int:
        """The timeline of the database; 0 before the first poll."""
        return self._position.cluster[1] if self._position is not None else 0

    def catch_up(self, within_s: float = CATCH_UP_WITHIN_S) -> None:
        """Wait until this node knows everything that the database holds now."""
        called_s = self._monotonic()
        with self._polled:
            if not self._polled.wait_for(lambda: self._known_s >= called_s, within_s):
                raise StoreUnavailable("this node does not know yet what other nodes saved: try again")

    def silent_s(self) -> float:
        """Return how many seconds ago this node knew everything that the database held."""
        return self._monotonic() - self._known_s

    def complaint(self) -> str:
        """Return "", or why this node may not know what the database holds."""
        silent_s = self.silent_s()
        if silent_s <= UNREADY_AFTER_S:
            return ""
        return (
            f"this node has read nothing for {silent_s:.0f} s: {self._trouble.last or 'the database does not answer'}"
        )
