"""The endpoint's event loop: ready sockets, timers, and calls from other threads, all in one thread, turn by turn.

Smaller than asyncio on purpose: no transports, tasks or futures lie between a guest's bytes and its response, and bytes are
sent at once (docs/decisions/0007).
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
# Limits one turn, so that timers and calls run in between. Far more than one batch of woken guests: they all poll again at
# once, and must not keep a guest waiting that has not been answered yet.
MAX_EVENTS = 1_024
MANY_CANCELLED = 1_000
# With thousands of guests that poll one at a time, half the cost of a poll is to fall asleep and wake up for it. After a turn
# with a few events the loop sleeps for this long: no guest notices, and the next turn serves ten of them.
PAUSE_S = 0.001
PAUSE_AFTER_EVENTS = range(2, 32)

log = logging.getLogger("forewarn.guest")


class Watcher(Protocol):
    """Handles a ready descriptor. It should handle its own errors: the loop drops a watcher that raises."""

    def ready(self, event: int, /) -> None: ...


class Timer:
    """A call that is due at some time."""

    __slots__ = ("_loop", "at_s", "call")

    def __init__(self, loop: "Loop", at_s: float, call: Callable[[], object]) -> None:
        self._loop = loop
        self.at_s = at_s
        self.call: Callable[[], object] | None = call

    def __lt__(self, other: "Timer") -> bool:
        return self.at_s < other.at_s

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._loop.timer_cancelled()


class Loop:
    """Runs in one thread. Other threads may use `call_from_thread` only."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._watchers: dict[int, Watcher] = {}
        self._soon: deque[Callable[[], object]] = deque()
        self._timers: list[Timer] = []
        self._cancelled = 0
        self._stopped = self._closed = False
        self._wakeup_lock = threading.Lock()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wakeup, self)

    # -- descriptors

    def watch(self, fd: int, watcher: Watcher, interest: int = IN) -> None:
        self._epoll.register(fd, interest)
        self._watchers[fd] = watcher

    def change(self, fd: int, interest: int) -> None:
        self._epoll.modify(fd, interest)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor, before it is closed: a forked process may keep it open, and epoll would still report it."""
        if self._watchers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # -- calls

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call` in this turn, after the sockets that are ready; a call made by such a call runs in the next turn."""
        self._soon.append(call)

    def call_from_thread(self, call: Callable[[], object]) -> None:
        self._soon.append(call)
        with self._wakeup_lock:
            if not self._closed:
                os.eventfd_write(self._wakeup, 1)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        timer = Timer(self, self._clock() + delay_s, call)
        heapq.heappush(self._timers, timer)
        return timer

    def repeat(self, every_s: float, call: Callable[[], object]) -> None:
        def again() -> None:
            self.call_later(every_s, again)
            call()

        self.call_later(every_s, again)

    def timer_cancelled(self) -> None:
        """Count a cancelled timer, and clear cancelled timers away: most long polls end before their time."""
        self._cancelled += 1
        if self._cancelled > MANY_CANCELLED and self._cancelled > len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if timer.call is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- turns

    def run(self) -> None:
        """Run until `stop`."""
        while not self._stopped:
            events = self.turn(self._timeout_s())
            if events in PAUSE_AFTER_EVENTS and not self._soon:
                time.sleep(PAUSE_S)

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        """Free the descriptors. A later call from another thread is ignored."""
        with self._wakeup_lock:
            self._closed = True
            self._watchers.clear()
            self._epoll.close()
            os.close(self._wakeup)

    def turn(self, wait_s: float = 0.0) -> int:
        """Handle ready sockets, then timers and calls; return how many sockets there were.

        Sockets come first: a poll that arrived during a long call is answered before the next call.
        """
        watchers = self._watchers
        events = self._epoll.poll(wait_s, MAX_EVENTS)
        for fd, event in events:
            watcher = watchers.get(fd)
            if watcher is not None:
                try:
                    watcher.ready(event)
                except Exception:
                    log.exception("the guest event loop stops watching a descriptor: its watcher failed")
                    self._drop(fd, watcher)
        if self._timers:
            self._call_due()
        for _ in range(len(self._soon)):
            self._call(self._soon.popleft())
        return len(events)

    def ready(self, _: int) -> None:
        """Reset the wake-up descriptor, to which `call_from_thread` wrote."""
        os.eventfd_read(self._wakeup)

    def _drop(self, fd: int, watcher: Watcher) -> None:
        if self._watchers.get(fd) is watcher:
            with suppress(OSError):  # closed already
                self.forget(fd)

    def _timeout_s(self) -> float:
        if self._soon:
            return 0.0
        return max(0.0, self._timers[0].at_s - self._clock()) if self._timers else -1.0

    def _call_due(self) -> None:
        now_s = self._clock()
        while self._timers and self._timers[0].at_s <= now_s:
            timer = heapq.heappop(self._timers)
            call, timer.call = timer.call, None  # cancelling it from now on does nothing
            if call is None:
                self._cancelled -= 1
            else:
                self._call(call)

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            log.exception("a call in the guest event loop failed")
