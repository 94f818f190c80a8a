"""Who does the work of a started event: one protocol, three ways (external, command, simulated).

An executor is handed an order that is already saved. It may be handed the same order twice, under the same id and attempt,
after a crash: `status` is asked first, and `begin` is called only when the answer is UNKNOWN.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from forewarn.core.lifecycle import OrderReport, Outcome
from forewarn.core.model import Event, Order

__all__ = ["Executor", "OrderReport", "Outcome", "Progress", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """An order with what there is to know about it; `hosts` maps each machine of the event to its host."""

    order: Order
    event: Event
    hosts: Mapping[str, str]


class Progress(StrEnum):
    UNKNOWN = "unknown"
    RUNNING = "running"


class Executor(Protocol):
    name: str
    takes_orders: bool

    def status(self, work: Work) -> Progress | Outcome:
        """What became of an order that was taken before a restart."""

    def free_slots(self) -> int:
        """How many more orders it can begin now; 0 where others take them."""

    def begin(self, work: Work) -> None:
        """Start the work and return; its end comes out of `reports`."""

    def watch(self, work: Work) -> None:
        """Wait for work that is RUNNING already, begun before a restart."""

    def reports(self, now: datetime) -> list[OrderReport]:
        """Orders that have ended since the last call."""

    def next_report(self) -> datetime | None:
        """When, on the service clock, there will be a report; None where only the world knows."""

    def settled(self, report: OrderReport) -> None:
        """The report was saved: whatever was kept to answer `status` may go."""

    def tidy(self, running: Collection[Work]) -> None:
        """Called once at start: everything found here that is of orders not in `running` may go."""

    def close(self) -> None:
        """Leave running work to itself; the next start finds it by `status`."""
