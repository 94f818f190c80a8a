"""The orders of one node: take them, hand them to the executor, take over those of dead nodes, save their reports.

Save, then act: an order is saved as running under this node's name before the executor gets it. Where it is not certain
that the order was saved, the order is in doubt until the store shows whose it is.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import islice

from forewarn.core.errors import Conflict, NotFound, Refused, StoreHeld, StoreUnavailable
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import Actor, Order, OrderState
from forewarn.executors import Executor, OrderReport, Progress, Work
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.leases import NodeLeases
from forewarn.store import Focus, Store

BATCH = 100
MAX_RUNNING_ORDERS = 1_000_000

log = logging.getLogger("forewarn.service.orders")


class Orders:
    """`alone` gives True if this is the only process that uses the state directory. `stopping` ends a batch early."""

    def __init__(
        self,
        control: Control,
        store: Store,
        clock: Clock,
        executor: Executor,
        leases: NodeLeases,
        *,
        node: str,
        stopping: threading.Event,
        alone: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(False),
    ) -> None:
        self._control = control
        self._store = store
        self._clock = clock
        self._executor = executor
        self._leases = leases
        self._actor = Actor("ticker", node)
        self._stopping = stopping
        self._alone = alone
        # The executor is part of the name: after a restart with another executor, its orders are not ours.
        self._prefix = f"{executor.name} on "
        self._taker = self._prefix + node
        # The name under which reports are saved; empty where no other node could have taken over the order.
        self._reporter = self._taker if leases.shared else ""
        # Reports that are not saved yet: they must survive a store that is away.
        self._unsaved: deque[OrderReport] = deque()
        # Orders that may be ours: the store failed while it saved them, or our lease ended. If they are ours, no other
        # node will hand them to its executor.
        self._doubtful: set[str] = set()
        self.taken_over = 0  # how many orders of dead nodes
        # False while `recover` waits until the store is resumed.
        self._recovered = True

    def recover(self) -> None:
        """After a start, ask the executor about the orders that were running, before it gets any new ones.

        If the store is held, do this when it is resumed: the executor might begin the work of a restored order again, and
        would forget what it knows about orders that the restored store shows as open.
        """
        self._recovered = self._control.store_hold() is None
        if not self._recovered or not self._executor.takes_orders:
            return
        with self._alone() as alone:
            orders = self._store.orders({OrderState.RUNNING}, MAX_RUNNING_ORDERS)
        ours = [order for order in orders if order.node.startswith(self._prefix)]
        if alone:
            self._leases.declare_ended({order.node.removeprefix(self._prefix) for order in ours})
        if len(ours) < len(orders):
            log.warning("%d order(s) were taken by others; they are theirs to finish", len(orders) - len(ours))
        running = [work for order in ours if (work := self._work_of(order)) is not None]
        self._executor.tidy(running)
        for work in running:
            if not self._leases.shared or work.order.node == self._taker:
                self._resume(work)

    def recover_if_resumed(self) -> None:
        """Do what `recover` left undone because the store was held."""
        if not self._recovered:
            self.recover()

    def take_over(self) -> Counter[str]:
        """Take over the orders of dead nodes."""
        done: Counter[str] = Counter()
        if not self._executor.takes_orders:
            return done
        running = self._store.orders({OrderState.RUNNING}, MAX_RUNNING_ORDERS)
        others = [o for o in running if o.node.startswith(self._prefix) and o.node != self._taker]
        if not others:
            return done
        dead = self._leases.dead({order.node.removeprefix(self._prefix) for order in others})
        for order in others:
            if order.node.removeprefix(self._prefix) not in dead:
                continue
            # If the store fails from here on, the order may be ours.
            self._doubtful.add(order.id)
            try:
                taken = self._control.take_over_order(order.id, self._actor, node=self._taker, of=order.node)
                if (work := self._work_of(taken)) is not None:
                    self._resume(work)
                    done["took over {} order(s)"] += 1
                    self.taken_over += 1
            except StoreHeld:
                self._doubtful.discard(order.id)
                break
            except (Refused, Conflict, NotFound):
                pass  # it ended, or another node was first, or a failover lost it
            self._doubtful.discard(order.id)
        return done

    def hand_out(self) -> Counter[str]:
        """Take open orders; save each as running before the executor gets it."""
        done: Counter[str] = Counter()
        free = min(self._executor.free_slots(), BATCH)
        for order in self._store.orders({OrderState.OPEN}, free) if free > 0 else ():
            if self._stopping.is_set():
                break
            work = self._work_of(order)
            if work is None:
                continue
            try:
                taken = self._control.take_order(order.id, self._actor, node=self._taker)
            except StoreHeld:
                break
            except (Refused, NotFound):
                continue  # another node or tool was first, or a failover lost the order
            except Conflict:
                break  # another node ticks too: read again
            except StoreUnavailable:
                self._doubtful.add(order.id)
                raise
            if self._leases.expired():
                self._doubtful.add(order.id)  # this process was stopped, and another node may have taken over the order
                break
            self._hand_to_executor(replace(work, order=taken))
            done["took {} order(s)"] += 1
        return done

    def resolve_doubts(self) -> None:
        """Resume doubtful orders that are saved as ours; leave the others to the node that takes them."""
        if not self._doubtful or self._control.store_hold() is not None:
            return
        for order in self._store.orders({OrderState.RUNNING}, MAX_RUNNING_ORDERS):
            if order.id in self._doubtful and order.node == self._taker:
                if (work := self._work_of(order)) is not None:
                    self._resume(work)
                self._doubtful.discard(order.id)
        self._doubtful.clear()

    def save_reports(self) -> Counter[str]:
        """Save the executor's reports, many at once; save a report by itself only if the batch is refused."""
        done: Counter[str] = Counter()
        reports = self._executor.reports(self._clock.now())
        self._unsaved.extend(replace(report, node=self._reporter) for report in reports)
        while self._unsaved and not self._stopping.is_set():
            batch = list(islice(self._unsaved, BATCH))
            try:
                self._control.report_orders(batch, self._actor)
            except (Refused, NotFound):
                done += self._save_report(batch[0])
                self._unsaved.popleft()
                continue
            for report in batch:
                done[_ended(report)] += 1
                self._executor.report_saved(report)
                self._unsaved.popleft()
        return done

    def _save_report(self, report: OrderReport) -> Counter[str]:
        """Save a report unless it came too late: after another attempt, or after an operator resolved the event."""
        done: Counter[str] = Counter()
        try:
            self._control.report_orders([report], self._actor)
            done[_ended(report)] += 1
        except (Refused, NotFound) as error:
            log.info("the report of order %s came too late: %s", report.order_id, error)
            if self._runs_elsewhere(report):
                return done  # another node with this state directory may need the executor's files of this order
        self._executor.report_saved(report)
        return done

    def _runs_elsewhere(self, report: OrderReport) -> bool:
        if not self._leases.shared:
            return False
        with suppress(NotFound):
            _, order = self._control.event(report.order_id)
            running = order is not None and order.state is OrderState.RUNNING and order.attempt == report.attempt
            return running and order is not None and order.node != report.node
        return False

    def _resume(self, work: Work) -> None:
        """Continue an order that is ours and that the executor may already have: ask the executor first."""
        status = self._executor.status(work)
        if isinstance(status, Outcome):
            self._unsaved.append(OrderReport(work.order.id, work.order.attempt, status, self._reporter))
        elif status is Progress.RUNNING:
            self._executor.watch(work)
        elif self._is_unchanged(work.order):
            self._hand_to_executor(work)

    def _is_unchanged(self, order: Order) -> bool:
        """Whether the order still runs under the same name: requesting its status may have taken long."""
        with suppress(NotFound):
            _, saved = self._control.event(order.id)
            return saved is not None and (saved.state, saved.attempt, saved.node) == (
                order.state,
                order.attempt,
                order.node,
            )
        return False

    def _hand_to_executor(self, work: Work) -> None:
        try:
            self._executor.take(work)
        except OSError as error:
            outcome = Outcome(False, f"the executor could not take it: {error}")
            self._unsaved.append(OrderReport(work.order.id, work.order.attempt, outcome, self._reporter))

    def _work_of(self, order: Order) -> Work | None:
        """Return what the executor needs; None if a failover has lost the order since it was listed."""
        try:
            event, saved = self._control.event(order.id)
        except NotFound:
            return None
        if saved is None:
            return None
        keys = tuple((event.scope, name) for name in event.resources)
        machines = self._store.snapshot(Focus(machines=keys, whole_maintenances=False, open_events=False)).machines
        return Work(order, event, {name: m.host for (_, name), m in machines.items()})


def _ended(report: OrderReport) -> str:
    return "finished {} order(s)" if report.outcome.ok else "saw {} order(s) fail"
