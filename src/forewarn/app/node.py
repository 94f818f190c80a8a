"""Wires one node: control, ticker and follower, and the endpoint without its listener. No threads, no sockets, no settings.

`server` adds those; the simulation runs the same parts in one thread. The machine's own clocks enter here, for all parts.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor as Writer
from contextlib import AbstractContextManager, nullcontext

from forewarn.core.errors import ServiceError
from forewarn.core.lazy_dataclass import dataclass
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.last_seen import LastSeen
from forewarn.endpoint.limits import Limits
from forewarn.endpoint.loop import Loop
from forewarn.executors import Executor
from forewarn.executors.external import ExternalExecutor
from forewarn.service.clock import Clock, KeptClock, SavedReading, boot_clock_s
from forewarn.service.control import Control
from forewarn.service.decisions import DEFAULT_MAX_RESCHEDULES, RenderReceipt, render_nothing
from forewarn.service.follower import Follower
from forewarn.service.ticker import Ticker
from forewarn.store import SharedStore, Store

log = logging.getLogger("forewarn.app.node")


@dataclass(frozen=True, slots=True)
class Times:
    """The clocks of this machine that cannot be set: for waiting, and to check a wall clock with."""

    monotonic: Callable[[], float] = time.monotonic
    boot_s: Callable[[], float] = boot_clock_s


REAL = Times()


def follow(shared: SharedStore, times: Times = REAL, saved: SavedReading | None = None) -> tuple[Follower, KeptClock]:
    """Start following a store that other nodes write to. From then on the follower misses no change, and its clock is ours.

    `saved` keeps a reading of the store's clock for the next start of this node.
    """
    clock = KeptClock(shared.now, times.boot_s, times.monotonic, saved)
    follower = Follower(shared.feed(), clock, monotonic=times.monotonic)
    try:
        follower.start()
    except BaseException:
        follower.close()
        raise
    return follower, clock


class Node:
    """Control and ticker on a store. If other nodes use the store too, `shared` is the same store and there is a follower."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        executor: Executor,
        *,
        name: str,
        new_id: Callable[[], str],
        order_timeout_s: int,
        max_reschedules: int = DEFAULT_MAX_RESCHEDULES,
        retain_history_s: int,
        shared: SharedStore | None = None,
        follower: Follower | None = None,
        may_tick: bool = True,
        alone: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(False),
        pause: Callable[[int], None] = lambda _: None,
        times: Times = REAL,
        render_receipt: RenderReceipt = render_nothing,
        host_executor: Executor | None = None,
        node_host: str = "",
    ) -> None:
        self.store = store
        self.clock = clock
        self.executor = executor
        self.host_executor = host_executor or ExternalExecutor()
        self.follower = follower
        self.times = times
        # The next process must notice a jump even if this one dies before its first decision.
        clock.save_reading()
        self.control = Control(
            store,
            clock,
            new_id=new_id,
            order_timeout_s=order_timeout_s,
            max_reschedules=max_reschedules,
            node=name,
            monotonic=times.monotonic,
            pause=pause,
            render_receipt=render_receipt,
        )
        self.ticker = Ticker(
            self.control,
            store,
            clock,
            executor,
            node=name,
            retain_history_s=retain_history_s,
            shared=shared,
            may_tick=may_tick,
            alone=alone,
            timeline=lambda: follower.timeline if follower is not None else 0,
            monotonic=times.monotonic,
            host_executor=self.host_executor,
            node_host=node_host,
        )
        executor.connect(self.ticker.nudge, self.control.listen)
        self.host_executor.connect(self.ticker.nudge, self.control.listen)
        self._listen_to_others(self.ticker.nudge)

    def listen(self, call: Callable[[], None]) -> None:
        """Call `call` after every saved change, of this node or of another one."""
        self.control.listen(lambda _: call())
        self._listen_to_others(call)

    def _listen_to_others(self, call: Callable[[], None]) -> None:
        if self.follower is not None:
            self.follower.listen(lambda update: call() if update.changed else None)


class EndpointParts:
    """Documents in memory, last-seen times, and the writer that saves what guests send, one request after another."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        loop: Loop,
        *,
        limits: Limits,
        trust: Trust,
        max_stale_s: float,
        disable_after_s: int,
        first_call_delay_s: float = 0.0,
        listens: bool = True,
    ) -> None:
        """Wire the parts; the caller loads the documents.

        `listens` is False for a node without guests. Such a node gets no requests, so it must not disable silent scopes.
        """
        self._writer = writer
        follower, monotonic = node.follower, node.times.monotonic
        self.documents = Documents(
            node.store, node.clock, max_stale_s=max_stale_s if follower is not None else None, monotonic=monotonic
        )
        node.control.listen(self.documents.on_change)
        node.control.listen_to_unchanged(self.documents.catch_up)
        node.ticker.call_periodically(self.documents)
        if follower is not None:
            follower.listen(self.documents.follow)
        self.endpoint = EndpointState(
            self.documents,
            node.control,
            writer,
            loop,
            limits=limits,
            trust=trust,
            first_call_delay_s=first_call_delay_s,
            monotonic=monotonic,
        )
        self.last_seen = LastSeen(self.documents, node.control, node.store, disable_after_s=disable_after_s)
        if listens:
            node.ticker.call_periodically(self.last_seen)

    def write_seen(self) -> None:
        """Let the writer save when machines were last seen."""
        if seen := self.endpoint.take_seen():
            self._writer.submit(self._try_seen, seen)

    def _try_seen(self, seen: list[Caller]) -> None:
        if not try_to_write(lambda: self.last_seen.write(seen)):
            self.endpoint.loop.call_from_thread(lambda: self.endpoint.requeue_seen(seen))

    def write_first_seen(self) -> None:
        """Let the writer save one batch, then the next. Approvals that arrive meanwhile come before the next batch."""
        if batch := self.endpoint.take_first_seen():
            written = self._writer.submit(try_to_write, lambda: self.last_seen.write_first_seen(batch))
            written.add_done_callback(lambda _: self.endpoint.loop.call_from_thread(self.write_first_seen))


def try_to_write(write: Callable[[], None]) -> bool:
    """Call `write`; log an error and return False if it fails."""
    try:
        write()
        return True
    except ServiceError as error:
        log.warning("could not save when guests were last seen or first saw an event: %s", error)
    except Exception:
        log.exception("could not save when guests were last seen or first saw an event")
    return False
