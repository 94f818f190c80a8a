"""Keeps a node up with the others that share its store: hears of what they change, reads it, and keeps the database's time.

Once a second and whenever the bell rings it asks what changed since it last looked. Only when everybody here has taken that
in does it count as read: whatever fails in between is told again.
"""

import logging
import threading
import time
from collections.abc import Callable

from forewarn.core.errors import ForewarnError, StoreUnavailable
from forewarn.service.clock import MAX_READING_S, KeptClock
from forewarn.store import Feed, Mark, News

LOOK_EVERY_S = 1.0
RETRY_S = 0.5
CATCH_UP_WITHIN_S = 3.0
# "`/readyz` fails after 3 s."
UNREADY_AFTER_S = 3.0

log = logging.getLogger("forewarn.service.follower")

Hearer = Callable[[News], None]


class Follower:
    def __init__(self, feed: Feed, clock: KeptClock, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._monotonic = monotonic
        self._clock = clock
        self._hearers: list[Hearer] = []
        self._mark: Mark | None = None
        self._stopping = threading.Event()
        self._trouble = ""
        self._asked_s = 0.0
        self._looked = threading.Condition()
        self.warning = ""

    def listen(self, hearer: Hearer) -> None:
        """Be told what changed, every time this looks, also when it is nothing."""
        self._hearers.append(hearer)

    def begin(self) -> News:
        """From here on nothing is missed: whatever is read of the store after this is followed."""
        news = self._feed.look(None, 0.0)
        self._keep_time(news)
        self._clock.now()  # one that took long is asked for again: the time is known before anybody shows it
        self._mark, self._asked_s, self.warning = news.mark, news.asked_s, news.warning
        return news

    def run(self) -> None:
        """Until `stop`; survives a database that is away, and errors nobody foresaw."""
        while not self._stopping.is_set():
            try:
                self.look(LOOK_EVERY_S)
            except Exception as error:
                self._say_trouble(error)
                self._stopping.wait(RETRY_S)
        self.close()

    def close(self) -> None:
        """Unless it runs, which does so at its end."""
        self._feed.close()

    def stop(self) -> None:
        self._stopping.set()

    def look(self, wait_s: float) -> None:
        news = self._feed.look(self._mark, wait_s)
        self._keep_time(news)
        for hearer in self._hearers:
            hearer(news)
        with self._looked:
            self._mark, self._asked_s, self.warning = news.mark, news.asked_s, news.warning
            self._looked.notify_all()
        if self._trouble:
            log.info("the database is back, and everything is read")
            self._trouble = ""

    def _keep_time(self, news: News) -> None:
        if news.told_s - news.asked_s <= MAX_READING_S:
            self._clock.keep(news.now, news.told_s)

    @property
    def timeline(self) -> int:
        """Which of the database's lives this is; 0 before it was first heard of."""
        return self._mark.cluster[1] if self._mark is not None else 0

    def catch_up(self, within_s: float = CATCH_UP_WITHIN_S) -> None:
        """Returns when all that the database has by now is known here."""
        begun_s = self._monotonic()
        with self._looked:
            if not self._looked.wait_for(lambda: self._asked_s >= begun_s, within_s):
                raise StoreUnavailable("what other nodes saved is not known here yet: ask again")

    def silent_s(self) -> float:
        """How long ago all that the database had was known here."""
        return self._monotonic() - self._asked_s

    def complaint(self) -> str:
        """ "" or why what this node knows is not what the database has."""
        silent_s = self.silent_s()
        if silent_s <= UNREADY_AFTER_S:
            return ""
        return f"not heard from for {silent_s:.0f} s: {self._trouble or 'it does not answer'}"

    def _say_trouble(self, error: Exception) -> None:
        """The first failure and each change of failure."""
        if str(error) == self._trouble:
            return
        self._trouble = str(error)
        if isinstance(error, ForewarnError):
            log.error("other nodes cannot be followed: %s", error)
        else:
            log.exception("other nodes cannot be followed")
