"""Pretends to work: an event stays Started for a while on the service clock, then ends as configured. For emulators and demos.

It stores nothing: when an order ends follows from when it was taken, which the store knows.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from forewarn.core.change import Change
from forewarn.core.model import EventType, OrderState
from forewarn.core.order_verbs import OrderReport, Outcome
from forewarn.executors.base import Executor, Progress, Work
from forewarn.executors.settings import parse_duration, read_counts, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    work_s: int = setting(600, parse_duration, "how long simulated work takes, on the service clock")
    freeze_work_s: int = setting(300, parse_duration, "how long a simulated Freeze takes, on the service clock")
    failures: Mapping[str, int] = setting(
        {}, read_counts, "how many attempts fail at first for a machine: a table of `scope/machine` and a number"
    )


class SimulatedExecutor(Executor):
    name = "simulated"
    settings_class = SimulatedSettings
    touches_no_machine = True
    repeatable = True
    needs_token = False
    reports_moves = False

    def __init__(self, *, work_s: int, freeze_work_s: int, failures: Mapping[str, int]) -> None:
        """`failures` maps `scope/machine` to how many attempts at an order with that machine fail."""
        self._work_s = work_s
        self._freeze_work_s = freeze_work_s
        self._failures = failures
        self._ends: list[tuple[datetime, str, int, bool]] = []
        self._reported_by_others: set[tuple[str, int]] = set()

    @classmethod
    def from_settings(cls, settings: SimulatedSettings, _: Path) -> "SimulatedExecutor":
        return cls(work_s=settings.work_s, freeze_work_s=settings.freeze_work_s, failures=settings.failures)

    def connect(self, _: Callable[[], None], listen: Callable[[Callable[[Change], None]], None]) -> None:
        listen(self._drop_ended)

    def status(self, _: Work) -> Progress | Outcome:
        return Progress.RUNNING

    def take(self, work: Work) -> None:
        self.watch(work)

    def watch(self, work: Work) -> None:
        order, event = work.order, work.event
        seconds = self._freeze_work_s if event.type is EventType.FREEZE else self._work_s
        taken = order.taken or order.issued
        failing = max((self._failures.get(f"{event.scope}/{name}", 0) for name in event.resources), default=0)
        end = (taken + timedelta(seconds=seconds), order.id, order.attempt, order.attempt > failing)
        heapq.heappush(self._ends, end)

    def reports(self, now: datetime) -> list[OrderReport]:
        reports = []
        while self._ends and self._ends[0][0] <= now:
            _, order_id, attempt, ok = heapq.heappop(self._ends)
            if (order_id, attempt) in self._reported_by_others:
                self._reported_by_others.remove((order_id, attempt))
                continue
            outcome = Outcome(ok=ok, reason="simulated" if ok else f"simulated failure of attempt {attempt}")
            reports.append(OrderReport(order_id, attempt, outcome))
        return reports

    def next_report(self) -> datetime | None:
        return self._ends[0][0] if self._ends else None

    def _drop_ended(self, change: Change) -> None:
        """Do not report an order whose end an operator or a tool has reported."""
        ended = {(o.id, o.attempt) for o in change.orders if o.state in (OrderState.DONE, OrderState.FAILED)}
        if ended:
            self._reported_by_others |= ended & {(order_id, attempt) for _, order_id, attempt, _ in list(self._ends)}
