"""The deadline of a maintenance, `not_after`: no event and no work on a host starts then or later.

What has not started by the deadline is cancelled, and the maintenance ends as Failed. The work on a host goes on if all its
machines were leaving, or were being shut down, by then. Machines that left are brought back at any time. Only trusted time
reaches the deadline. While the clock or the store is held, nothing is cancelled; by the untrusted time nothing starts either.
"""

from datetime import datetime

from forewarn.core.draft import Draft
from forewarn.core.host_orders import departures
from forewarn.core.model import UNSTARTED, Event, Maintenance, Order, OrderState, Status
from forewarn.core.reason import Waiting, clock_held

_NOT_TAKEN = (OrderState.PLANNED, OrderState.OPEN)


def is_past_deadline(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether the deadline has passed for something that has not started."""
    deadline = maintenance.not_after
    if deadline is None or draft.before.store_hold is not None:
        return False
    return any(draft.trusted_in(scope) >= deadline for scope in _unstarted_in(draft, maintenance))


def deadline_ahead(draft: Draft, maintenance: Maintenance) -> datetime | None:
    """Return the deadline if a tick must examine the maintenance then, now if a tick must examine it at once, or None."""
    deadline = maintenance.not_after
    if deadline is None:
        return None
    if is_past_deadline(draft, maintenance):
        return draft.now
    ahead = deadline > draft.now and draft.before.store_hold is None
    return deadline if ahead and _unstarted_in(draft, maintenance) else None


def _unstarted_in(draft: Draft, maintenance: Maintenance) -> set[str]:
    """Return the scopes of events that have not started, and "" if work on a host has not begun."""
    scopes = {event.scope for event in unstarted_events(draft, maintenance)}
    return scopes | {""} if unstarted_hosts(draft, maintenance) else scopes


def unstarted_events(draft: Draft, maintenance: Maintenance) -> list[Event]:
    return [event for event in draft.events_of(maintenance.id) if event.status in UNSTARTED and not event.returns]


def unstarted_hosts(draft: Draft, maintenance: Maintenance) -> list[Order]:
    """Return the orders of hosts that no executor has taken, without hosts whose events have all started."""
    return [
        order
        for order in draft.host_orders_of(maintenance.id)
        if order.state in _NOT_TAKEN
        and (not (events := departures(draft, order)) or any(event.status in UNSTARTED for event in events))
    ]


def missed_deadline(draft: Draft, maintenance: Maintenance) -> bool:
    """Whether something was cancelled because it had not started by the deadline."""
    deadline = maintenance.not_after
    if deadline is None:
        return False
    events = (e.ended for e in draft.events_of(maintenance.id) if e.status is Status.CANCELLED)
    hosts = (o.ended for o in draft.host_orders_of(maintenance.id) if o.state is OrderState.CANCELLED)
    return any(ended is not None and ended >= deadline for ended in (*events, *hosts))


def deadline_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return why a wave cannot start at its deadline: the tick that cancels it comes next, or the clock is held."""
    deadline, hold = maintenance.not_after, draft.before.hold
    if deadline is None or all(event.returns or draft.now_in(event.scope) < deadline for event in wave):
        return []
    if hold is not None:
        return [clock_held(hold)]
    return [Waiting(code="ticker", message="its deadline has passed: the ticker cancels it in its next cycle")]
