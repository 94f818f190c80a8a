"""The guests' event loop: sockets that are ready, calls that are due, calls from other threads; one thread, in turns.

Smaller than asyncio on purpose: no transports, tasks or futures lie between a guest's bytes and its answer, and what is
written leaves at once (docs/decisions/0007).
"""

import heapq
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Protocol

IN, OUT, ENDED, EDGE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLRDHUP, select.EPOLLET
# In one turn, so that what else there is to do has its turn as well; far more than one batch of woken guests, who all
# come back at once and must not stand before somebody who has not been served yet.
MAX_EVENTS = 1_024
MANY_CANCELLED = 1_000
# Where guests come by the thousand, one at a time, half the cost of a poll is falling asleep and waking up for it. Whoever
# had company in a turn waits this long for more of it: nobody notices, and the next turn has ten to serve.
REST_S = 0.001
COMPANY = range(2, 32)

log = logging.getLogger("forewarn.guest")


class Watcher(Protocol):
    """Whom the loop tells that a descriptor is ready; it should see to its own errors, for one that does not is cut."""

    def ready(self, event: int, /) -> None: ...


class Timer:
    """A call that is due at a moment."""

    __slots__ = ("_loop", "at_s", "what")

    def __init__(self, loop: "Loop", at_s: float, what: Callable[[], object]) -> None:
        self._loop = loop
        self.at_s = at_s
        self.what: Callable[[], object] | None = what

    def __lt__(self, other: "Timer") -> bool:
        return self.at_s < other.at_s

    def cancel(self) -> None:
        if self.what is not None:
            self.what = None
            self._loop.timer_cancelled()


class Loop:
    """`call_from_thread` is the only thing another thread may use."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._watchers: dict[int, Watcher] = {}
        self._soon: deque[Callable[[], object]] = deque()
        self._timers: list[Timer] = []
        self._cancelled = 0
        self._stopped = self._closed = False
        self._bell_lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._bell, self)

    # -- descriptors

    def watch(self, fd: int, watcher: Watcher, interest: int = IN) -> None:
        self._epoll.register(fd, interest)
        self._watchers[fd] = watcher

    def change(self, fd: int, interest: int) -> None:
        self._epoll.modify(fd, interest)

    def forget(self, fd: int) -> None:
        """Before it is closed: a process forked meanwhile may keep it open, and the kernel would go on telling of it."""
        if self._watchers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # -- calls

    def call_soon(self, what: Callable[[], object]) -> None:
        """In the next turn but for sockets that are ready."""
        self._soon.append(what)

    def call_from_thread(self, what: Callable[[], object]) -> None:
        self._soon.append(what)
        with self._bell_lock:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    def call_later(self, delay_s: float, what: Callable[[], object]) -> Timer:
        timer = Timer(self, self._clock() + delay_s, what)
        heapq.heappush(self._timers, timer)
        return timer

    def repeat(self, every_s: float, what: Callable[[], object]) -> None:
        def again() -> None:
            self.call_later(every_s, again)
            what()

        self.call_later(every_s, again)

    def timer_cancelled(self) -> None:
        """Most long polls end before their time: their timers must not pile up."""
        self._cancelled += 1
        if self._cancelled > MANY_CANCELLED and self._cancelled > len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if timer.what is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- turns

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopped:
            served = self.turn(self._patience_s())
            if served in COMPANY and not self._soon:
                time.sleep(REST_S)

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        """Whoever calls from another thread after this is not heard."""
        with self._bell_lock:
            self._closed = True
            self._watchers.clear()
            self._epoll.close()
            os.close(self._bell)

    def turn(self, wait_s: float = 0.0) -> int:
        """Sockets first: whoever asked during a call that took long is answered before the next one. How many there were."""
        watchers = self._watchers
        events = self._epoll.poll(wait_s, MAX_EVENTS)
        for fd, event in events:
            watcher = watchers.get(fd)
            if watcher is not None:
                try:
                    watcher.ready(event)
                except Exception:
                    log.exception("a descriptor in the guests' loop had to be let go: its watcher failed")
                    self._let_go(fd, watcher)
        if self._timers:
            self._call_due()
        for _ in range(len(self._soon)):
            self._call(self._soon.popleft())
        return len(events)

    def ready(self, event: int) -> None:
        """The bell: somebody called from another thread."""
        del event
        os.eventfd_read(self._bell)

    def _let_go(self, fd: int, watcher: Watcher) -> None:
        if self._watchers.get(fd) is watcher:
            with suppress(OSError):  # closed already
                self.forget(fd)

    def _patience_s(self) -> float:
        if self._soon:
            return 0.0
        return max(0.0, self._timers[0].at_s - self._clock()) if self._timers else -1.0

    def _call_due(self) -> None:
        now_s = self._clock()
        while self._timers and self._timers[0].at_s <= now_s:
            timer = heapq.heappop(self._timers)
            what, timer.what = timer.what, None  # whoever cancels it now cancels nothing
            if what is None:
                self._cancelled -= 1
            else:
                self._call(what)

    def _call(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception:
            log.exception("a call in the guests' loop failed")
