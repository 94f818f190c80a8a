"""Check windows, no-go times and rescheduled hosts: nothing starts outside its hours, or before the time it was moved to.

Some seeds have windows that open and close all the time until 06:00, and are open after that, so that everything can end.
The checks compute the hours by themselves.
"""

from datetime import datetime, timedelta

from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.model import Event, Order, OrderState, Scope, Source, Status
from tests.sim.account import ROLLING, VISIBLE, Account
from tests.sim.history import Committed
from tests.sim.universe import START

PERIOD_MINUTES, LAST_HOUR = 12, 6
# The minutes of every period in which each window is open.
OPEN_MINUTES = {"first": range(8), "second": range(5, 12)}
WINDOWS_OF_SCOPE = {"any": ("first",), "each": ("second",), "pool": ("first", "second")}
SALE_SCOPE = "any"
SALE_BEGIN, SALE_END = (START + timedelta(minutes=minutes) for minutes in (20, 40))
SALE = NoGoTime(name="sale", reason="customers", start=SALE_BEGIN, end=SALE_END, scopes=(SALE_SCOPE,))


def has_windows(seed: int) -> bool:
    return seed % 8 == 3


def windows() -> list[Window]:
    return [Window(name=name, spans=(*_spans(minutes), "daily 06:00-24:00")) for name, minutes in OPEN_MINUTES.items()]


def _spans(minutes: range) -> list[str]:
    begins = [begin + minutes.start for begin in range(0, LAST_HOUR * 60, PERIOD_MINUTES)]
    return [f"daily {_clock(begin)}-{_clock(begin + len(minutes))}" for begin in begins]


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def allowed(scope: Scope, moment: datetime) -> bool:
    """Whether the windows of the scope and the no-go time allow a start at this moment."""
    if scope.name == SALE_SCOPE and SALE_BEGIN <= moment < SALE_END:
        return False
    minute = (moment.hour * 60 + moment.minute) % PERIOD_MINUTES
    return moment.hour >= LAST_HOUR or any(minute in OPEN_MINUTES[name] for name in scope.windows)


class WindowChecks:
    """Call `committed` after the account has the commit, with the events and orders as they were before it."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def committed(self, entry: Committed, events: dict[str, Event], orders: dict[str, Order]) -> None:
        for event in entry.change.events:
            was = events.get(event.id)
            if event.status in VISIBLE and (was is None or was.status is not event.status):
                self._check_hours(event)
                self._check_turn(event)
        for order in entry.change.orders:
            known = orders.get(order.id)
            begins = order.host and order.state is OrderState.OPEN and known is not None
            if begins and known is not None and known.state is OrderState.PLANNED:
                self._check_moved(order, entry.change.at)

    def _check_hours(self, event: Event) -> None:
        """Check that the event starts, or is announced for a start, inside its hours."""
        scope = self._account.scopes[event.scope]
        moment = event.started if event.status is Status.STARTED else event.not_before
        bound = event.source is Source.PLATFORM and event.type in ROLLING and not event.emergency
        if bound and scope.windows and moment is not None and not allowed(scope, moment):
            verb = "started" if event.status is Status.STARTED else "was announced for a start"
            self._account.complain(f"event {event.id} {verb} outside its window or in a no-go time")

    def _check_turn(self, event: Event) -> None:
        """Check that the machines of a rescheduled host leave it at the time it was moved to, or later."""
        for order in self._account.orders.values():
            same = order.host and (order.maintenance_id, order.host) == (event.maintenance_id, event.host)
            if same and not event.returns and event.started is not None:
                self._check_moved(order, event.started)

    def _check_moved(self, order: Order, begun: datetime) -> None:
        if order.requested_not_before is not None and begun < order.requested_not_before:
            self._account.complain(f"the turn of host {order.host} began before the time it was moved to")
