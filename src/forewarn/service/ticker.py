"""The ticker's loop. One cycle: renew leases, save reports, tick what is due, hand out orders, make the periodic calls, prune.

Decide, save, then act: the tick that starts an event saves its order as open, and `orders` saves it as running before the
executor gets it. No thread sleeps on behalf of an event: a wait is a moment in the store, and the loop waits for the earliest.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Protocol

from forewarn.core.change import Change
from forewarn.core.errors import Conflict, Refused, StoreUnavailable
from forewarn.core.model import Actor, Status
from forewarn.executors import Executor
from forewarn.executors.external import ExternalExecutor
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.cycle_counts import CycleCounts
from forewarn.service.host_orders import HostCheck, HostOrders
from forewarn.service.leases import UNREADY_AFTER_S, NodeLeases
from forewarn.service.logs import TroubleLog
from forewarn.service.orders import Orders
from forewarn.service.pruning import Pruner
from forewarn.store import SharedStore, Store

BATCH = 100
IDLE_WAIT_S = 1.0
MAX_CYCLES_AT_ONE_MOMENT = 1_000_000
RETRY_TICK_S = 10.0
BACKOFF_S = (0.2, 5.0)
# A conflict is no failure: another writer was first. Five hundred guests may approve one after the other while a tick is
# decided, and the last of them must not wait for what the others caused.
CONFLICT_WAIT_S = 0.05
# After this many conflicts in a row the ticker logs an error.
MAX_CONFLICTS = 20
MAX_ADVANCE_S = 3_650 * 86_400

log = logging.getLogger("forewarn.service.ticker")


class PeriodicCall(Protocol):
    """Work that the ticker does for another part, when the service clock reaches `next_due`."""

    def next_due(self) -> datetime | None: ...

    def do(self, now: datetime) -> int:
        """Do what is due; return how many things were done."""


class Ticker:
    def __init__(
        self,
        control: Control,
        store: Store,
        clock: Clock,
        executor: Executor,
        *,
        node: str,
        retain_history_s: int,
        shared: SharedStore | None = None,
        may_tick: bool = True,
        alone: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(False),
        timeline: Callable[[], int] = lambda: 0,
        monotonic: Callable[[], float] = time.monotonic,
        host_executor: Executor | None = None,
        node_host: str = "",
        batch: int = BATCH,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`shared` is the same store, where other nodes use it too. A node that may not tick only makes the periodic calls.

        `host_executor` does the work on hosts, `node_host` is the host that this node runs on.

        A node is called `STATE_DIR_NAME:PROCESS`; `alone` gives True if this is the only process that uses the state directory.
        `timeline` returns the database's timeline. A cycle ticks at most `batch` maintenances. Between
        cycles the loop calls `wait` with what ends the wait and the longest time.
        """
        self._control = control
        self._store = store
        self._clock = clock
        self._actor = Actor("ticker", node)
        self._monotonic = monotonic
        self._cycling = threading.RLock()
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self.leases = NodeLeases(shared, node, host=node_host, may_tick=may_tick, monotonic=monotonic)
        self.orders = Orders(
            control,
            store,
            clock,
            executor,
            self.leases,
            node=node,
            stopping=self._stopping,
            alone=alone,
            timeline=timeline,
        )
        # The executors of events and of hosts, each with the orders that it gets.
        self._executors = (executor, host_executor or ExternalExecutor())
        check = HostCheck(store, executor, self.leases, node_host)
        self._all_orders = (
            self.orders,
            HostOrders(
                control,
                store,
                clock,
                self._executors[1],
                self.leases,
                check,
                node=node,
                stopping=self._stopping,
                alone=alone,
                timeline=timeline,
                monotonic=monotonic,
            ),
        )
        control.host_check = check
        self._pruner = Pruner(store, shared, retain_history_s=retain_history_s)
        self._periodic_calls: list[PeriodicCall] = []
        # In the loop, a maintenance whose tick fails unexpectedly must not hold up the others: it is tried again later.
        # A caller of `cycle` or `advance` gets the error.
        self._isolating = False
        self._retry_at_s: dict[str, float] = {}
        # How many maintenances are ticked at once. After a conflict fewer: a smaller decision meets fewer other writers.
        self._max_batch = self._batch = batch
        self._wait_for = wait
        self._trouble = TroubleLog(log, "the ticker cannot work")
        self._conflicts = 0  # in a row
        self._backoff_s = 0.0
        self.cycled_at_s: float | None = None
        control.listen(lambda _: self.nudge())

    # -- the loop

    def run(self) -> None:
        """Cycle until `stop`; survive a store that is away and unexpected errors."""
        recovered = False
        self._isolating = True
        while not self._stopping.is_set():
            try:
                if not recovered:
                    self.recover()
                    recovered = True
                busy = self.cycle()
                self._clear_trouble()
            except Exception as error:
                self.note_trouble(error)
                busy = False
                if 0 < self._conflicts < MAX_CONFLICTS:  # the store works, and another writer was first
                    self.cycled_at_s = self._monotonic()
            if not busy:
                self._wait()

    def stop(self) -> None:
        self._stopping.set()
        self.nudge()

    def drain(self) -> None:
        """Move no more events and hand out no more orders. Continue to save reports and to renew this node's lease."""
        with self._cycling:
            self.leases.resign()

    def at_work(self) -> int:
        """Return how many orders are under way on this node."""
        return sum(orders.at_work() for orders in self._all_orders)

    @property
    def taken_over(self) -> int:
        """How many orders of dead nodes this node took over."""
        return sum(orders.taken_over for orders in self._all_orders)

    @property
    def leads(self) -> bool:
        """Whether this node moves events and hands out orders, as far as it knows."""
        return self.leases.leads

    def nudge(self) -> None:
        """Start the next cycle now: something changed."""
        if not self._nudged.is_set():
            self._nudged.set()

    def call_periodically(self, call: PeriodicCall) -> None:
        self._periodic_calls.append(call)

    def recover(self) -> None:
        """After a start, ask the executor about the orders that were running."""
        with self._cycling:
            for orders in self._all_orders:
                orders.recover()

    def complaint(self) -> str:
        """Return "", or why other nodes will treat this node as dead: it has saved nothing for too long."""
        silent_s = self.leases.silent_s()
        if silent_s <= UNREADY_AFTER_S:
            return ""
        return (
            f"this node has saved nothing for {silent_s:.0f} s: {self._trouble.last or 'the database does not answer'}"
        )

    # -- one cycle

    def cycle(self) -> bool:
        """Do what is due now, in bounded batches; return whether anything was done."""
        with self._cycling:
            self._clock.now()
            self._control.watch_clock()
            renewed = self.leases.renew()
            done = CycleCounts()
            for orders in self._all_orders:
                orders.recover_if_resumed()
                if renewed:
                    done.add(orders.take_over())
                # A report counts before a time limit: work that has ended has not timed out.
                done.add(orders.save_reports())
            due = self._due() if self.leads else []
            if due:
                done.add(self._tick(due))
            for orders in self._all_orders:
                orders.resume_unconfirmed()
                if self.leads:
                    done.add(orders.hand_out())
            for call in self._periodic_calls:
                if count := call.do(self._clock.now()):
                    done["did {} other thing(s)"] += count
            if self.leads:
                self._pruner.prune(self._clock.now())
            if done:
                log.info(", ".join(template.format(count) for template, count in sorted(done.items())))
            self.cycled_at_s = self._monotonic()
            return bool(done or due)

    def cycle_until_idle(self) -> bool:
        """Cycle until nothing more happens at this moment; return whether anything happened."""
        for count in range(MAX_CYCLES_AT_ONE_MOMENT):
            if not self.cycle():
                return count > 0
        raise Refused(f"something keeps happening at {self._clock.now().isoformat()}: giving up")

    def advance(self, seconds: float) -> datetime:
        """Move a manual or scaled clock from due time to due time, and do everything at its own time and in order.

        Return when all of it is saved and shows in the documents.
        """
        if not 0 <= seconds <= MAX_ADVANCE_S:
            raise Refused(f"a clock never goes backwards: advance by 0 to {MAX_ADVANCE_S} seconds")
        with self._cycling:
            target = self._clock.now() + timedelta(seconds=seconds)
            self._clock.move_to(self._clock.now())  # refuses at once where the clock cannot be moved
            self.cycle_until_idle()
            while (moment := self.next_wakeup()) is not None and moment <= target:
                ahead = moment > self._clock.now()
                if ahead:
                    self._clock.move_to(moment)
                if not self.cycle_until_idle() and not ahead:
                    break  # due, but nothing can be done about it
            self._clock.move_to(max(target, self._clock.now()))
            self.cycle_until_idle()
            return self._clock.now()

    def next_wakeup(self) -> datetime | None:
        """Return the next moment at which there is something to do."""
        stored = self._store.next_wakeup() if self.leads else None
        moments = [
            stored,
            *(executor.next_report() for executor in self._executors),
            *(c.next_due() for c in self._periodic_calls),
        ]
        return min((m for m in moments if m is not None), default=None)

    # -- behind the cycle

    def _due(self) -> list[str]:
        """Return the maintenances of the next batch.

        If more are due, half of the batch are the latest: what becomes due now does not wait for a long backlog.
        """
        now_s, now = self._monotonic(), self._clock.now()
        self._retry_at_s = {i: at_s for i, at_s in self._retry_at_s.items() if at_s > now_s}
        limit = self._batch + len(self._retry_at_s)
        due = [i for i in self._store.due(now, limit) if i not in self._retry_at_s]
        if len(due) >= self._batch:
            latest = self._store.due(now, limit, latest_first=True)
            due[self._batch - self._batch // 2 :] = [i for i in latest if i not in self._retry_at_s]
        return list(dict.fromkeys(due))[: self._batch]

    def _tick(self, due: list[str]) -> CycleCounts:
        try:
            done = _counted(self._control.tick(due, self._actor))
        except Conflict:
            self._batch = max(1, self._batch // 2)
            raise
        except StoreUnavailable:
            raise
        except Exception:
            if not self._isolating:
                raise
            return self._tick_one_by_one(due)
        self._batch = min(self._max_batch, 2 * self._batch)
        return done

    def _tick_one_by_one(self, due: list[str]) -> CycleCounts:
        done = CycleCounts()
        for maintenance_id in due:
            try:
                done.add(_counted(self._control.tick([maintenance_id], self._actor)))
            except (Conflict, StoreUnavailable):
                raise
            except Exception:
                log.exception("maintenance %s cannot be ticked; trying again in %g s", maintenance_id, RETRY_TICK_S)
                self._retry_at_s[maintenance_id] = self._monotonic() + RETRY_TICK_S
        return done

    def _wait(self) -> None:
        moment = None if self._backoff_s else self._next_or_none()
        seconds = self._clock.seconds_until(moment) if moment is not None else None
        # Never longer than a second, so that a lost nudge costs no more. Never at once after trouble, or the loop would spin.
        seconds = IDLE_WAIT_S if seconds is None else min(seconds, IDLE_WAIT_S)
        if self._retry_at_s:
            seconds = max(seconds, BACKOFF_S[0])
        if self._backoff_s:
            self._wait_for(self._stopping, self._backoff_s)
            return
        self._wait_for(self._nudged, seconds)
        self._nudged.clear()

    def _next_or_none(self) -> datetime | None:
        """Return `next_wakeup`, or None if it fails: the next cycle meets the same failure and logs it."""
        try:
            return self.next_wakeup()
        except Exception:
            return None

    def note_trouble(self, error: Exception) -> None:
        """Wait longer after each failure; log the first failure and each failure that differs from the last."""
        if isinstance(error, Conflict):
            self._backoff_s = CONFLICT_WAIT_S
            self._conflicts += 1
            if self._conflicts == MAX_CONFLICTS:
                self._trouble.last = str(error)
                log.error("the ticker gets nothing done: others were first %d times in a row: %s", MAX_CONFLICTS, error)
            return
        self._conflicts = 0
        first, longest = BACKOFF_S
        self._backoff_s = min(max(self._backoff_s * 2, first), longest)
        self._trouble.note(error)

    def _clear_trouble(self) -> None:
        self._backoff_s = 0.0
        self._conflicts = 0
        self._trouble.clear("the ticker works again")


def _counted(change: Change) -> CycleCounts:
    """Count what a tick did."""
    done = CycleCounts()
    published_or_started = {Status.SCHEDULED: "published {} event(s)", Status.STARTED: "started {} event(s)"}
    for event in change.events:
        done[published_or_started.get(event.status, "ended {} event(s)")] += 1
    ended = sum(m.ended is not None for m in change.maintenances)
    if ended:
        done["closed {} maintenance(s)"] += ended
    return done
