"""The loop: tick what is due, hand out orders, save what executors report; one sentence per cycle.

Decide, save, then act: an order is saved as open by the tick that starts its event and as running before its executor
begins. Nothing here sleeps on behalf of an event: a wait is a moment in the store, and the loop waits for the earliest.

Where several nodes share a store, one holds the ticker's lease and does all this. The lease is for economy: two tickers are
harmless, for a change that relies on what another has changed is refused. Each node has a lease of its own too; the orders of
one whose lease ended are taken over.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

from forewarn.core.change import Change
from forewarn.core.errors import Conflict, ForewarnError, NotFound, Refused, StoreUnavailable
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import Actor, Order, OrderState, Status
from forewarn.executors import Executor, OrderReport, Progress, Work
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.store import Focus, SharedStore, Store

BATCH = 100
IDLE_WAIT_S = 1.0
MAX_CYCLES_AT_ONE_MOMENT = 1_000_000
MAX_RUNNING_ORDERS = 1_000_000
PRUNE_EVERY = timedelta(hours=1)
PRUNE_AGAIN = timedelta(minutes=1)
RECEIPTS_KEPT = timedelta(hours=24)
PRUNE_BATCH = 500
SICK_WAIT_S = 10.0
BACKOFF_S = (0.2, 5.0)
# A conflict is no failure: somebody else got on. Five hundred guests may approve one after the other while a tick is decided,
# and the last of them must not wait for what the others made of it.
CONFLICT_WAIT_S = 0.05
# And yet whoever meets nothing else gets nothing done.
MAX_CONFLICTS = 20
MAX_ADVANCE_S = 3_650 * 86_400
LEASE_S = 10.0
RENEW_EVERY_S = 3.0
TICKER_LEASE = "ticker"
# A node that could not renew its lease for so long cannot save anything.
UNREADY_AFTER_S = RENEW_EVERY_S + 3.0
# A node at the same place finds what a dead one's executor left there. Others give it so much longer to come back.
ELSEWHERE_AFTER_S = 20.0

log = logging.getLogger("forewarn.service.ticker")


class Chore(Protocol):
    """Something else to be done at its time, on the service clock."""

    def next_due(self) -> datetime | None: ...

    def do(self, now: datetime) -> int:
        """Do what is due; how many things were done."""


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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shared` is the store again, where other nodes use it too; one that may not tick does its chores alone.

        A node is called `PLACE:PROCESS`; `alone` tells whether no other process serves our place.
        """
        self._control = control
        self._store = store
        self._clock = clock
        self._executor = executor
        self._actor = Actor("ticker", node)
        self._node = node
        self._shared = shared
        self._monotonic = monotonic
        self._may_tick = may_tick
        self._alone = alone
        self._dead: set[str] = set()  # nodes of our place that ended before we began, whatever their leases say
        self._leads = shared is None and may_tick
        self._renew_at_s = 0.0
        self._renewed_s = monotonic()
        self._lives_until_s = 0.0  # others may take our orders over from then on
        # Who took an order, and by which executor: another one must not take it for its own after a restart.
        self._prefix = f"{executor.name} on "
        self._taker = self._prefix + node
        # Under whose name an end is reported: where nobody could take an order over, nobody asks.
        self._teller = self._taker if shared is not None else ""
        self._retain = timedelta(seconds=retain_history_s) if retain_history_s else None
        self._prune_at: datetime | None = None
        self._prune_batch = PRUNE_BATCH
        self._cycling = threading.RLock()
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        # In the loop, a maintenance whose tick fails in a way no rule foresees must not hold up the rest: it is tried
        # again later. Whoever calls `cycle` or `advance` gets the error.
        self._sick: dict[str, float] = {}
        # How many maintenances are ticked at once: fewer after a conflict, for less is decided sooner and meets fewer others.
        self._batch = BATCH
        self._isolating = False
        self._chores: list[Chore] = []
        # Ends of orders that are not saved yet: a store that is away must not lose them.
        self._unsaved: deque[OrderReport] = deque()
        # Orders that may be ours: the store failed while it saved that, or our lease ended. If so, nobody else begins them.
        self._doubtful: set[str] = set()
        self._trouble = ""
        self._conflicts = 0  # in a row
        self._backoff_s = 0.0
        self.cycled_at_s: float | None = None
        self.taken_over = 0
        control.listen(lambda _: self.nudge())

    # -- the loop

    def run(self) -> None:
        """Until `stop`; survives a store that is away, and errors nobody foresaw."""
        recovered = False
        self._isolating = True
        while not self._stopping.is_set():
            try:
                if not recovered:
                    self.recover()
                    recovered = True
                busy = self.cycle()
                self._all_well()
                self.cycled_at_s = self._monotonic()
            except Exception as error:
                self._say_trouble(error)
                busy = False
                if 0 < self._conflicts < MAX_CONFLICTS:  # the store works, and somebody was first
                    self.cycled_at_s = self._monotonic()
            if not busy:
                self._wait()

    def stop(self) -> None:
        self._stopping.set()
        self.nudge()

    @property
    def leads(self) -> bool:
        """Whether this node moves events and hands out orders, as far as it knows."""
        return self._leads

    def nudge(self) -> None:
        """Something changed: look again now."""
        self._nudged.set()

    def add_chore(self, chore: Chore) -> None:
        self._chores.append(chore)

    def recover(self) -> None:
        """After a start: ask the executor what became of the orders that were running, before any is run again."""
        with self._cycling:
            if not self._executor.takes_orders:
                return
            with self._alone() as alone:
                orders = self._store.orders({OrderState.RUNNING}, MAX_RUNNING_ORDERS)
            ours = [order for order in orders if order.node.startswith(self._prefix)]
            if alone:
                nodes = {order.node.removeprefix(self._prefix) for order in ours}
                self._dead = {node for node in nodes if _place(node) == _place(self._node)} - {self._node}
            if len(ours) < len(orders):
                log.warning("%d order(s) were taken by others; they are theirs to finish", len(orders) - len(ours))
            running = [self._work(order) for order in ours]
            self._executor.tidy(running)
            for work in running:
                if self._shared is None or work.order.node == self._taker:
                    self._take_up(work)

    # -- several nodes

    def leave(self) -> None:
        """Let another node tick at once. Our own lease runs out by itself: what we began may still be at work here."""
        if self._shared is not None and self._leads:
            self._leads = False
            with suppress(ForewarnError):
                self._shared.drop_lease(TICKER_LEASE, self._node)

    def _renew(self) -> Counter[str]:
        """Say that we live, take the ticker's lease if it is free, and see to the orders of nodes that do not live."""
        done: Counter[str] = Counter()
        if self._shared is None or self._monotonic() < self._renew_at_s:
            return done
        asked_s = self._monotonic()
        self._shared.take_lease(f"node {self._node}", self._node, LEASE_S)
        self._renewed_s, self._lives_until_s = asked_s, asked_s + LEASE_S
        leads = self._may_tick and self._shared.take_lease(TICKER_LEASE, self._node, LEASE_S)
        if leads != self._leads:
            log.info("this node ticks from now on" if leads else "another node ticks")
        self._leads = leads
        self._renew_at_s = self._monotonic() + RENEW_EVERY_S
        if self._executor.takes_orders:
            done += self._take_over(self._shared)
        return done

    def _take_over(self, shared: SharedStore) -> Counter[str]:
        done: Counter[str] = Counter()
        running = self._store.orders({OrderState.RUNNING}, MAX_RUNNING_ORDERS)
        others = [o for o in running if o.node.startswith(self._prefix) and o.node != self._taker]
        if not others:
            return done
        living, lately = shared.living() - self._dead, shared.living(ELSEWHERE_AFTER_S)
        for order in others:
            node = order.node.removeprefix(self._prefix)
            elsewhere = _place(node) != _place(self._node)
            if node in living or (elsewhere and (node in lately or not self._leads)):
                continue
            # Should the store fail us from here on, it may be ours and nobody else's to begin.
            self._doubtful.add(order.id)
            try:
                taken = self._control.take_over_order(order.id, self._actor, node=self._taker, of=order.node)
                self._take_up(self._work(taken))
                done["took over {} order(s)"] += 1
                self.taken_over += 1
            except (Refused, Conflict):
                pass  # it ended, or somebody else was first
            self._doubtful.discard(order.id)
        return done

    def complaint(self) -> str:
        """ "" or since when nothing could be saved, where other nodes think us dead by and by."""
        silent_s = self._monotonic() - self._renewed_s
        if self._shared is None or silent_s <= UNREADY_AFTER_S:
            return ""
        return f"nothing could be saved for {silent_s:.0f} s: {self._trouble or 'it does not answer'}"

    # -- one cycle

    def cycle(self) -> bool:
        """Do what is due now, in bounded batches; whether anything was done."""
        with self._cycling:
            self._clock.now()
            self._control.watch_clock()
            done = self._renew()
            due = self._due() if self._leads else []
            done += self._tick(due) if due else Counter[str]()
            done += self._save_reports()
            self._end_doubts()
            if self._leads:
                done += self._hand_out()
            for chore in self._chores:
                if count := chore.do(self._clock.now()):
                    done["did {} chore(s)"] += count
            if self._leads:
                self._prune()
            if done:
                log.info(_sentence(done))
            return bool(done or due)

    def settle(self) -> bool:
        """Cycle until nothing more happens at this moment; whether anything did."""
        for count in range(MAX_CYCLES_AT_ONE_MOMENT):
            if not self.cycle():
                return count > 0
        raise Refused(f"something keeps happening at {self._clock.now().isoformat()}: giving up")

    def advance(self, seconds: float) -> datetime:
        """Move a manual or scaled clock from due time to due time, doing everything at its own time and in order.

        Returns when all of it is saved and shows in the documents.
        """
        if not 0 <= seconds <= MAX_ADVANCE_S:
            raise Refused(f"a clock never goes backwards: advance by 0 to {MAX_ADVANCE_S} seconds")
        with self._cycling:
            target = self._clock.now() + timedelta(seconds=seconds)
            self._clock.move_to(self._clock.now())  # refuses at once where time is not ours to move
            self.settle()
            while (moment := self.next_wakeup()) is not None and moment <= target:
                ahead = moment > self._clock.now()
                if ahead:
                    self._clock.move_to(moment)
                if not self.settle() and not ahead:
                    break  # due, and yet nothing can be done about it
            self._clock.move_to(max(target, self._clock.now()))
            self.settle()
            return self._clock.now()

    def next_wakeup(self) -> datetime | None:
        """The next moment at which there is something to do."""
        stored = self._store.next_wakeup() if self._leads else None
        moments = [stored, self._executor.next_report(), *(c.next_due() for c in self._chores)]
        return min((m for m in moments if m is not None), default=None)

    # -- behind the cycle

    def _due(self) -> list[str]:
        now_s = self._monotonic()
        self._sick = {i: at_s for i, at_s in self._sick.items() if at_s > now_s}
        due = self._store.due(self._clock.now(), self._batch + len(self._sick))
        return [i for i in due if i not in self._sick][: self._batch]

    def _tick(self, due: list[str]) -> Counter[str]:
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
        self._batch = min(BATCH, 2 * self._batch)
        return done

    def _tick_one_by_one(self, due: list[str]) -> Counter[str]:
        done: Counter[str] = Counter()
        for maintenance_id in due:
            try:
                done += _counted(self._control.tick([maintenance_id], self._actor))
            except (Conflict, StoreUnavailable):
                raise
            except Exception:
                log.exception("maintenance %s cannot be ticked; trying again in %g s", maintenance_id, SICK_WAIT_S)
                self._sick[maintenance_id] = self._monotonic() + SICK_WAIT_S
        return done

    def _save_reports(self) -> Counter[str]:
        """Save ended orders, many at once; only one that came too late is looked at by itself."""
        done: Counter[str] = Counter()
        self._unsaved.extend(replace(report, node=self._teller) for report in self._executor.reports(self._clock.now()))
        while self._unsaved and not self._stopping.is_set():
            batch = list(islice(self._unsaved, BATCH))
            try:
                self._control.report_orders(batch, self._actor)
            except (Refused, NotFound):
                done += self._settle(batch[0])
                self._unsaved.popleft()
                continue
            for report in batch:
                done[_ended(report)] += 1
                self._executor.settled(report)
                self._unsaved.popleft()
        return done

    def _hand_out(self) -> Counter[str]:
        """Take open orders, each saved as running before its executor begins."""
        done: Counter[str] = Counter()
        free = min(self._executor.free_slots(), BATCH)
        for order in self._store.orders({OrderState.OPEN}, free) if free > 0 else ():
            if self._stopping.is_set():
                break
            work = self._work(order)
            try:
                taken = self._control.take_order(order.id, self._actor, node=self._taker)
            except Refused:
                continue  # somebody else was first
            except Conflict:
                break  # another node ticks as well: look again
            except StoreUnavailable:
                self._doubtful.add(order.id)
                raise
            if self._shared is not None and self._monotonic() > self._lives_until_s:
                self._doubtful.add(order.id)  # we were stopped meanwhile, and it may be another's by now
                break
            self._begin(replace(work, order=taken))
            done["took {} order(s)"] += 1
        return done

    def _end_doubts(self) -> None:
        """What is saved as ours, though we were not told so, is taken up; the rest is open for whoever takes it."""
        if not self._doubtful:
            return
        for order in self._store.orders({OrderState.RUNNING}, MAX_RUNNING_ORDERS):
            if order.id in self._doubtful and order.node == self._taker:
                self._take_up(self._work(order))
                self._doubtful.discard(order.id)
        self._doubtful.clear()

    def _take_up(self, work: Work) -> None:
        """An order that is ours and may have been begun: its executor knows."""
        status = self._executor.status(work)
        if isinstance(status, Outcome):
            self._unsaved.append(OrderReport(work.order.id, work.order.attempt, status, self._teller))
        elif status is Progress.RUNNING:
            self._executor.watch(work)
        else:
            self._begin(work)

    def _begin(self, work: Work) -> None:
        try:
            self._executor.begin(work)
        except OSError as error:
            outcome = Outcome(False, f"could not begin: {error}")
            self._unsaved.append(OrderReport(work.order.id, work.order.attempt, outcome, self._teller))

    def _settle(self, report: OrderReport) -> Counter[str]:
        """Save the end of an order, unless another attempt has begun or somebody settled the event meanwhile."""
        done: Counter[str] = Counter()
        try:
            self._control.report_orders([report], self._actor)
            done[_ended(report)] += 1
        except (Refused, NotFound) as error:
            log.info("the end of order %s came too late to matter: %s", report.order_id, error)
            if self._goes_on_elsewhere(report):
                return done  # and what is kept of it here may be what another node of this place waits for
        self._executor.settled(report)
        return done

    def _goes_on_elsewhere(self, report: OrderReport) -> bool:
        if self._shared is None:
            return False
        with suppress(NotFound):
            _, order = self._control.event(report.order_id)
            running = order is not None and order.state is OrderState.RUNNING and order.attempt == report.attempt
            return running and order is not None and order.node != report.node
        return False

    def _work(self, order: Order) -> Work:
        event, _ = self._control.event(order.id)
        keys = tuple((event.scope, name) for name in event.resources)
        machines = self._store.snapshot(Focus(machines=keys, whole=False)).machines
        return Work(order, event, {name: m.host for (_, name), m in machines.items()})

    def _prune(self) -> None:
        now = self._clock.now()
        if self._prune_at is not None and now < self._prune_at:
            return
        limit, most, failed = self._prune_batch, 0, False
        for forget in self._forgetting(now, limit):
            try:
                most = max(most, forget())
            except StoreUnavailable as error:
                log.warning("what is old could not be forgotten, %d at once; later with fewer: %s", limit, error)
                failed = True
        if failed:
            self._prune_batch, self._prune_at = max(1, limit // 2), now + PRUNE_AGAIN
        elif most < limit:
            self._prune_batch, self._prune_at = PRUNE_BATCH, now + PRUNE_EVERY

    def _forgetting(self, now: datetime, limit: int) -> list[Callable[[], int]]:
        """Each by itself: nothing here is urgent, and what one meets must stop neither the others nor the cycle."""
        found = [lambda: self._store.forget_receipts(now - RECEIPTS_KEPT, limit)]
        if (retain := self._retain) is not None:
            found.append(lambda: self._store.prune(now - retain, limit))
        if (shared := self._shared) is not None:
            found.append(lambda: shared.forget_changes(limit))
        return found

    def _wait(self) -> None:
        moment = None if self._backoff_s else self._next_or_none()
        seconds = self._clock.seconds_until(moment) if moment is not None else None
        # Never longer than a second: losing a nudge must not cost more. Never at once after trouble: it would spin.
        seconds = IDLE_WAIT_S if seconds is None else min(seconds, IDLE_WAIT_S)
        if self._sick:
            seconds = max(seconds, BACKOFF_S[0])
        if self._backoff_s:
            self._stopping.wait(self._backoff_s)
            return
        self._nudged.wait(seconds)
        self._nudged.clear()

    def _next_or_none(self) -> datetime | None:
        """A wait must not end the loop: whatever is wrong, the next cycle meets it too and says so."""
        try:
            return self.next_wakeup()
        except Exception:
            return None

    def _say_trouble(self, error: Exception) -> None:
        """The first failure and each change of failure, not every second the same line."""
        if isinstance(error, Conflict):
            self._backoff_s = CONFLICT_WAIT_S
            self._conflicts += 1
            if self._conflicts == MAX_CONFLICTS:
                self._trouble = str(error)
                log.error("the ticker gets nothing done: others were first %d times in a row: %s", MAX_CONFLICTS, error)
            return
        self._conflicts = 0
        first, longest = BACKOFF_S
        self._backoff_s = min(max(self._backoff_s * 2, first), longest)
        told = str(error) or repr(error)
        if told == self._trouble:
            return
        self._trouble = told
        if isinstance(error, ForewarnError):
            log.error("the ticker cannot work: %s", error)
        else:
            log.exception("the ticker cannot work")

    def _all_well(self) -> None:
        self._backoff_s = 0.0
        self._conflicts = 0
        if self._trouble:
            log.info("the ticker works again")
            self._trouble = ""


def _place(node: str) -> str:
    return node.rpartition(":")[0]


def _ended(report: OrderReport) -> str:
    return "finished {} order(s)" if report.outcome.ok else "saw {} order(s) fail"


def _counted(change: Change) -> Counter[str]:
    """What a tick did."""
    done: Counter[str] = Counter()
    told = {Status.SCHEDULED: "published {} event(s)", Status.STARTED: "started {} event(s)"}
    for event in change.events:
        done[told.get(event.status, "ended {} event(s)")] += 1
    ended = sum(m.ended is not None for m in change.maintenances)
    if ended:
        done["closed {} maintenance(s)"] += ended
    return done


def _sentence(done: Counter[str]) -> str:
    return ", ".join(template.format(count) for template, count in sorted(done.items()))
