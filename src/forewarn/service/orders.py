"""The orders of one node: take them, hand them to the executor, take over those of dead nodes, save their reports.

Save, then act: an order is saved as running under this node's name before the executor gets it. So its work may have begun
from then on. Only the state folder of that node can tell what became of it. Unless the executor is repeatable, another node
leaves such an order in doubt, and the node that returns with the state folder ends the doubt.

Where it is not certain that an order was saved as ours, it is unconfirmed until the store shows whose it is.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import islice

from forewarn.core.errors import Conflict, NotFound, Refused, StoreHeld, StoreUnavailable
from forewarn.core.fast_init import replace
from forewarn.core.formatting import names
from forewarn.core.model import Actor, Order, OrderState, Phase
from forewarn.core.order_verbs import Outcome
from forewarn.executors import Executor, HostWork, OrderReport, Progress, Unknown, Work
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.cycle_counts import CycleCounts
from forewarn.service.leases import NodeLeases
from forewarn.service.placement import MAX_RUNNING_ORDERS, FleetHosts, closed, is_live, no_target
from forewarn.store import Focus, Store

BATCH = 100
# Orders whose work may have begun, and whose end is not known.
BEGUN = frozenset({OrderState.RUNNING, OrderState.IN_DOUBT})
# How many saved reports a node can repeat after a failover that lost them. Each has up to 64 KiB of output.
MAX_KEPT_REPORTS = 200

AnyWork = Work | HostWork

log = logging.getLogger("forewarn.service.orders")


class Orders:
    """The orders of events.

    `alone` gives True if this is the only process that uses the state directory. `stopping` ends a batch early. `timeline`
    returns the database's timeline, which changes with every failover.
    """

    # Whether these are the orders of hosts.
    of_hosts = False

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
        timeline: Callable[[], int] = lambda: 0,
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
        # The last saved reports, by order and attempt, oldest first: a failover may lose them.
        self._kept: dict[tuple[str, int | None], OrderReport] = {}
        self._timeline = timeline
        self._known_timeline = timeline()
        # Another thread counts the orders at work: none may be between the executor and `_unsaved` then.
        self._counting = threading.Lock()
        # Orders that may be ours: the store failed while it saved them, or our lease ended. If they are ours, no other
        # node will hand them to its executor. True if this node was the first to take it: then its work has not begun.
        self._unconfirmed: dict[str, bool] = {}
        self.taken_over = 0  # how many orders of dead nodes
        # False while `recover` waits until the store is resumed, or works again.
        self._recovered = True
        self._hosts = FleetHosts(store)

    def recover(self) -> None:
        """After a start, ask the executor about the orders that were running, before it gets any new ones.

        If the store is held, do this when it is resumed: the executor might begin the work of a restored order again, and
        would forget what it knows about orders that the restored store shows as open.
        """
        self._recovered = self._control.store_hold() is None
        if not self._recovered or not self._executor.takes_orders:
            return
        try:
            self._recover()
        except BaseException:
            self._recovered = False  # the store failed: the next cycle asks again about all of them
            raise

    def _recover(self) -> None:
        self._hosts = FleetHosts(self._store)
        with self._alone() as alone:
            orders = self._begun()
        ours = [order for order in orders if order.node.startswith(self._prefix)]
        if alone:
            self._leases.declare_ended({order.node.removeprefix(self._prefix) for order in ours})
        if len(ours) < len(orders):
            log.warning("%d order(s) were taken by others; they are theirs to finish", len(orders) - len(ours))
        begun = [work for order in ours if (work := self._work_of(order)) is not None]
        self._executor.tidy(begun)
        for work in begun:
            if self._leases.shared and work.order.node != self._taker:
                continue  # `take_over` finds it when the lease of its node has ended
            if work.order.state is OrderState.RUNNING:
                self._resume(work)
            else:
                self._end_doubt(work)

    def _begun(self) -> list[Order]:
        return self._store.orders(BEGUN, MAX_RUNNING_ORDERS, of_hosts=self.of_hosts)

    def recover_if_resumed(self) -> None:
        """Do what `recover` left undone because the store was held or failed."""
        if not self._recovered:
            self.recover()

    def take_over(self) -> CycleCounts:
        """Take over the orders of dead nodes; leave in doubt those whose work may have begun elsewhere."""
        done = CycleCounts()
        if not self._executor.takes_orders:
            return done
        begun = [o for o in self._begun() if o.node.startswith(self._prefix)]
        running = [o for o in begun if o.state is OrderState.RUNNING and o.node != self._taker]
        doubtful = [o for o in begun if o.state is OrderState.IN_DOUBT and self._leases.is_here(self._node_of(o))]
        if not running and not doubtful:
            return done
        if self._control.store_hold() is not None:
            return done
        self._hosts = FleetHosts(self._store)
        dead = self._leases.dead({self._node_of(order) for order in (*running, *doubtful)})
        for order in running:
            if self._node_of(order) in dead:
                done.add(self._take_over_running(order))
        for order in doubtful:
            back = order.node == self._taker or self._node_of(order) in dead
            if back and (work := self._work_of(order)) is not None:
                done.add(self._end_doubt(work))
        return done

    def _take_over_running(self, order: Order) -> CycleCounts:
        if self._executor.repeatable or self._leases.is_here(self._node_of(order)):
            return self._take_over(order)
        work = self._work_of(order)
        if work is None:
            return CycleCounts()
        status = self._executor.status(work)
        if isinstance(status, Outcome) or status is Progress.RUNNING:
            return self._take_over(order)  # the executor can tell, although another node took the order
        reason = (
            f"{self._node_of(order)} took it and is away: only a node with its state folder knows what became of it"
        )
        self._unsaved.append(OrderReport(order.id, order.attempt, Unknown(reason), order.node))
        return CycleCounts()

    def _take_over(self, order: Order, *, not_begun: bool = False) -> CycleCounts:
        # If the store fails from here on, the order may be ours.
        self._unconfirmed[order.id] = not_begun
        done = CycleCounts()
        try:
            taken = self._control.take_over_order(order.id, self._actor, node=self._taker, of=order.node)
            if (work := self._work_of(taken)) is not None:
                self._resume(work, not_begun=not_begun)
                done["took over {} order(s)"] += 1
                self.taken_over += 1
        except (Refused, Conflict, NotFound):
            pass  # it ended, or another node was first, or a failover lost it
        self._unconfirmed.pop(order.id, None)
        return done

    def _end_doubt(self, work: AnyWork) -> CycleCounts:
        """Take over an order in doubt if this state folder shows what became of it; otherwise leave it to an operator."""
        if isinstance(self._executor.status(work), Unknown):
            return CycleCounts()
        return self._take_over(work.order)

    def _node_of(self, order: Order) -> str:
        return order.node.removeprefix(self._prefix)

    def hand_out(self) -> CycleCounts:
        """Take open orders; save each as running before the executor gets it."""
        done = CycleCounts()
        self._hosts = FleetHosts(self._store)
        free = min(self._executor.free_slots(), BATCH)
        for order in self._store.orders({OrderState.OPEN}, free, of_hosts=self.of_hosts) if free > 0 else ():
            if self._stopping.is_set():
                break
            if not self._may_hand_out(order):
                continue
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
                self._unconfirmed[order.id] = True
                raise
            if self._leases.expired():
                # This process was stopped, and another node may have taken over the order.
                self._unconfirmed[order.id] = True
                break
            try:
                self._hand_to_executor(replace(work, order=taken))
            except StoreUnavailable:  # its targets could not be read, so the executor does not have it
                self._unconfirmed[order.id] = True
                raise
            done["took {} order(s)"] += 1
        return done

    def _may_hand_out(self, _: Order) -> bool:
        """Whether to try to take an open order now."""
        return True

    def resume_unconfirmed(self) -> None:
        """Resume unconfirmed orders that are saved as ours; leave the others to the node that takes them."""
        if not self._unconfirmed or self._control.store_hold() is not None:
            return
        self._hosts = FleetHosts(self._store)
        for order in self._begun():
            if order.id not in self._unconfirmed or order.node != self._taker:
                continue
            not_begun = self._unconfirmed[order.id]
            if order.state is OrderState.RUNNING:
                if (work := self._work_of(order)) is not None:
                    self._resume(work, not_begun=not_begun)
            elif not_begun:  # our lease had ended, and another node put the order in doubt
                self._take_over(order, not_begun=True)
            self._unconfirmed.pop(order.id, None)
        self._unconfirmed.clear()

    def at_work(self) -> int:
        """Return how many orders are under way on this node, or have ended and are not saved."""
        with self._counting:
            return self._executor.at_work() + len(self._unsaved)

    def save_reports(self) -> CycleCounts:
        """Save the executor's reports, many at once; save a report by itself only if the batch cannot be saved."""
        done = CycleCounts()
        self._repeat_lost_reports()
        with self._counting:
            reports = self._executor.reports(self._clock.now())
            self._unsaved.extend(replace(report, node=self._reporter) for report in reports)
        while self._unsaved and not self._stopping.is_set():
            batch = list(islice(self._unsaved, BATCH))
            try:
                self._control.report_orders(batch, self._actor)
            except (Conflict, StoreUnavailable):
                raise
            except Exception:
                done.add(self._save_report(batch[0]))
                self._unsaved.popleft()
                continue
            for report in batch:
                done[_ended(report)] += 1
                self._keep(report)
                self._unsaved.popleft()
        return done

    def _repeat_lost_reports(self) -> None:
        """After a failover, save reports again whose orders the new server still shows as begun by the same node."""
        timeline = self._timeline()
        if timeline == self._known_timeline:
            return
        orders = self._begun() if self._kept else ()
        begun: dict[tuple[str, int | None], str] = {(order.id, order.attempt): order.node for order in orders}
        with self._counting:
            self._unsaved.extend(report for key, report in self._kept.items() if begun.get(key) == report.node)
        self._known_timeline = timeline

    def _save_report(self, report: OrderReport) -> CycleCounts:
        """Save a report unless it came too late: after another attempt, or after an operator resolved the event.

        Drop a report that cannot be saved for another reason: it must not hold up the other reports for ever.
        """
        done = CycleCounts()
        try:
            self._control.report_orders([report], self._actor)
            done[_ended(report)] += 1
        except (Refused, NotFound) as error:
            log.info("the report of order %s came too late: %s", report.order_id, error)
            if self._runs_elsewhere(report):
                return done  # another node with this state directory may need the executor's files of this order
        except (Conflict, StoreUnavailable):
            raise
        except Exception:
            log.exception("the report of order %s cannot be saved and is dropped", report.order_id)
            return done  # the executor keeps what it knows about the order
        self._keep(report)
        return done

    def _keep(self, report: OrderReport) -> None:
        """Keep a saved report, and let the executor forget the order if it has ended."""
        self._kept[report.order_id, report.attempt] = report
        if len(self._kept) > MAX_KEPT_REPORTS:
            del self._kept[next(iter(self._kept))]
        if not isinstance(report.outcome, Unknown):
            self._executor.report_saved(report)

    def _runs_elsewhere(self, report: OrderReport) -> bool:
        if not self._leases.shared:
            return False
        with suppress(NotFound):
            order, _, _ = self._control.order(report.order_id)
            return order.state in BEGUN and order.attempt == report.attempt and order.node != report.node
        return False

    def _resume(self, work: AnyWork, *, not_begun: bool = False) -> None:
        """Continue an order that is ours and that the executor may already have: ask the executor first.

        `not_begun` says that no executor can have it: this node took it first, and has not handed it to its executor.
        """
        status = self._executor.status(work)
        if status is Progress.RUNNING:
            self._executor.watch(self._with_targets(work))
        elif isinstance(status, Outcome):
            self._unsaved.append(OrderReport(work.order.id, work.order.attempt, status, self._reporter))
        elif status is Progress.NOT_BEGUN or not_begun or self._executor.repeatable:
            self._begin_again(work)
        else:
            assert isinstance(status, Unknown)  # noqa: S101 - the type checker cannot see it
            self._unsaved.append(OrderReport(work.order.id, work.order.attempt, status, self._reporter))

    def _begin_again(self, work: AnyWork) -> None:
        """Hand over an order that is still ours, unless the store is held: requesting its status may have taken long.

        One read shows both: between two reads the store could be held.
        """
        order = work.order
        found = self._store.snapshot(Focus(events=(order.id,), whole_maintenances=False, open_events=False))
        saved = found.orders.get(order.id)
        if found.store_hold is not None:
            self._recovered = False  # `recover_if_resumed` asks again
        elif saved is not None and (saved.state, saved.attempt, saved.node) == (order.state, order.attempt, order.node):
            self._hand_to_executor(work)

    def _hand_to_executor(self, work: AnyWork) -> None:
        if isinstance(work, Work) and (done := _where_they_should_be(work)):
            left = tuple(name for name in work.event.resources if name not in done)
            if not left:
                reason = f"nothing was left to do: {names(sorted(done))} had been moved by others"
                self._report(work, Outcome(ok=True, reason=reason))
                return
            work = replace(work, event=replace(work.event, resources=left))
        if isinstance(work, Work) and (refusal := no_target(self._store, work.event)):
            self._fail(work, refusal)
            return
        self._kept.pop((work.order.id, work.order.attempt), None)  # a failover lost that the order was taken before
        try:
            self._executor.take(self._with_targets(work))
        except OSError as error:
            self._fail(work, f"the executor could not take it: {error}")

    def _fail(self, work: AnyWork, reason: str) -> None:
        self._report(work, Outcome(False, reason))

    def _report(self, work: AnyWork, outcome: Outcome) -> None:
        self._unsaved.append(OrderReport(work.order.id, work.order.attempt, outcome, self._reporter))

    def _work_of(self, order: Order) -> AnyWork | None:
        """Return what the executor needs; None if a failover has lost the order since it was listed."""
        try:
            event, saved = self._control.event(order.id)
        except NotFound:
            return None
        if saved is None:
            return None
        keys = tuple((event.scope, name) for name in event.resources)
        machines = self._store.snapshot(Focus(machines=keys, whole_maintenances=False, open_events=False)).machines
        hosts = {name: m.host for (_, name), m in machines.items()}
        return Work(
            order,
            event,
            hosts,
            connections=self._hosts.connections(event, hosts.values()),
            live=is_live(event),
            instance_ids={name: m.instance_id for (_, name), m in machines.items() if m.instance_id},
            closed=partial(closed, self._store),
        )

    def _with_targets(self, work: AnyWork) -> AnyWork:
        """Choose the targets of an order after it was taken: work on a host waits for orders taken before its cordon."""
        return replace(work, targets=self._hosts.targets(work.event)) if isinstance(work, Work) else work


def _where_they_should_be(work: Work) -> set[str]:
    """Return the machines that others moved off the host of the event, or back to it, before the order was handed out."""
    event = work.event
    if not event.host or work.order.phase is Phase.START:
        return set()
    return {name for name, host in work.hosts.items() if host and (host == event.host) == event.returns}


def _ended(report: OrderReport) -> str:
    if isinstance(report.outcome, Unknown):
        return "left {} order(s) in doubt"
    return "finished {} order(s)" if report.outcome.ok else "saw {} order(s) fail"
