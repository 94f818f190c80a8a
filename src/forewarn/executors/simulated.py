"""Pretends: an event stays Started for a while on the service clock, then ends as scripted. For emulators, demos, tests.

It remembers nothing: when an order ends follows from when it was taken, which the store knows.
"""

import heapq
import sys
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from forewarn.core.change import Change
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import EventType, OrderState
from forewarn.executors import OrderReport, Progress, Work


class SimulatedExecutor:
    name = "simulated"
    takes_orders = True

    def __init__(self, *, work_s: int, freeze_work_s: int, failures: Mapping[str, int]) -> None:
        """`failures` maps `scope/machine` to how many attempts at an order with that machine fail."""
        self._work_s = work_s
        self._freeze_work_s = freeze_work_s
        self._failures = failures
        self._ends: list[tuple[datetime, str, int, bool]] = []
        self._ended: set[tuple[str, int]] = set()  # by somebody else's word

    def status(self, work: Work) -> Progress | Outcome:
        del work
        return Progress.RUNNING

    def free_slots(self) -> int:
        return sys.maxsize

    def begin(self, work: Work) -> None:
        self.watch(work)

    def watch(self, work: Work) -> None:
        order, event = work.order, work.event
        seconds = self._freeze_work_s if event.type is EventType.FREEZE else self._work_s
        begun = order.taken or order.issued
        failing = max((self._failures.get(f"{event.scope}/{name}", 0) for name in event.resources), default=0)
        end = (begun + timedelta(seconds=seconds), order.id, order.attempt, order.attempt > failing)
        heapq.heappush(self._ends, end)

    def reports(self, now: datetime) -> list[OrderReport]:
        ended = []
        while self._ends and self._ends[0][0] <= now:
            _, order_id, attempt, ok = heapq.heappop(self._ends)
            if (order_id, attempt) in self._ended:
                self._ended.remove((order_id, attempt))
                continue
            outcome = Outcome(ok=ok, reason="simulated" if ok else f"simulated failure of attempt {attempt}")
            ended.append(OrderReport(order_id, attempt, outcome))
        return ended

    def heard(self, change: Change) -> None:
        """An order that somebody reports as ended is not ended again by pretended work."""
        ended = {(o.id, o.attempt) for o in change.orders if o.state in (OrderState.DONE, OrderState.FAILED)}
        if ended:
            self._ended |= ended & {(order_id, attempt) for _, order_id, attempt, _ in list(self._ends)}

    def next_report(self) -> datetime | None:
        return self._ends[0][0] if self._ends else None

    def settled(self, report: OrderReport) -> None:
        """Nothing was kept."""

    def tidy(self, running: Collection[Work]) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing is held."""
