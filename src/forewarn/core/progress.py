"""How far a maintenance is: its events, counted by wave.

Owns the sums that stores count in their own way, so that a list of maintenances does not read their events. It decides
nothing: `estimate` derives the expected end from these sums.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime

from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import Event, Order, OrderState, Status

COUNTED_AS = {
    Status.PLANNED: "left",
    Status.SCHEDULED: "left",
    Status.STARTED: "running",
    Status.COMPLETED: "done",
    Status.CANCELLED: "undone",
    Status.ABANDONED: "undone",
}
STARTED_AS = {OrderState.FAILED: "failed", OrderState.IN_DOUBT: "in_doubt"}
HOST_COUNTED_AS = {
    OrderState.PLANNED: "left",
    OrderState.OPEN: "running",
    OrderState.RUNNING: "running",
    OrderState.DONE: "done",
    OrderState.CANCELLED: "undone",
    OrderState.ABANDONED: "undone",
    **STARTED_AS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Events, each counted once.

    `done` are Completed, `left` have not started, `undone` are Cancelled or Abandoned. `failed` and `in_doubt` are Started events
    whose order failed or is in doubt, `running` are the other Started events.
    """

    done: int = 0
    running: int = 0
    failed: int = 0
    in_doubt: int = 0
    left: int = 0
    undone: int = 0


def host_progress(orders: Iterable[Order]) -> Counted:
    """Count the orders of hosts in the same way: `left` are planned, `running` can be taken or were taken."""
    return Counted(**Counter(HOST_COUNTED_AS[order.state] for order in orders))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveProgress(Counted):
    """The events of one wave: how many, the longest minimum notice, the first publication, the last of the other times.

    `resolved` are the events whose order failed or was in doubt until an operator retried, finished or abandoned them.
    """

    wave: int
    notice_s: int = 0
    published: datetime | None = None
    not_before: datetime | None = None
    started: datetime | None = None
    completed: datetime | None = None
    resolved: int = 0
    requested_not_before: datetime | None = None

    @property
    def unended(self) -> int:
        return self.running + self.failed + self.in_doubt + self.left


def wave_progress(events: Iterable[Event], orders: Mapping[str, Order]) -> tuple[WaveProgress, ...]:
    """Return the progress of each wave of a maintenance, from its events. What was rescheduled counts once."""
    waves: dict[int, list[Event]] = {}
    for event in (each for each in events if not each.replaced_by):
        waves.setdefault(event.wave, []).append(event)
    return tuple(_wave(number, waves[number], orders) for number in sorted(waves))


def _wave(number: int, events: list[Event], orders: Mapping[str, Order]) -> WaveProgress:
    counts: dict[str, int] = {}
    for event in events:
        name = COUNTED_AS[event.status]
        if event.status is Status.STARTED and event.id in orders:
            name = STARTED_AS.get(orders[event.id].state, name)
        counts[name] = counts.get(name, 0) + 1
    done = [e.ended for e in events if e.status is Status.COMPLETED]
    return WaveProgress(
        wave=number,
        **counts,
        notice_s=max(e.minimum_notice_s for e in events),
        published=min((e.published for e in events if e.published is not None), default=None),
        not_before=max((e.not_before for e in events if e.not_before is not None), default=None),
        started=max((e.started for e in events if e.started is not None), default=None),
        completed=max((ended for ended in done if ended is not None), default=None),
        resolved=sum(_resolved(e, orders.get(e.id)) for e in events),
        requested_not_before=max((e.requested_not_before for e in events if e.requested_not_before), default=None),
    )


def _resolved(event: Event, order: Order | None) -> bool:
    # The event of an order that ends by itself has the order's reason. An operator's finish gives the event another one.
    finished = event.status is Status.COMPLETED and order is not None and event.reason != order.reason
    return finished or event.status is Status.ABANDONED or (order is not None and order.attempt > 1)


def total(waves: Iterable[WaveProgress]) -> Counted:
    """Return the sums over all waves."""
    found = list(waves)
    return Counted(**{each.name: sum(getattr(wave, each.name) for wave in found) for each in fields(Counted)})
