"""What the work on a host waits for, as reasons like those of `waiting`. This module explains and decides nothing."""

from datetime import datetime

from forewarn.core.budgets import host_budget_waits
from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.host_orders import (
    OVER,
    current_host,
    departures,
    is_read,
    is_stopped,
    machines_in_the_way,
    machines_on,
    machines_to_return,
    other_work,
)
from forewarn.core.model import OPEN, Actor, Maintenance, Order, OrderState
from forewarn.core.reason import MAX_NAMED, Waiting
from forewarn.core.target_waits import no_target
from forewarn.core.waiting import host_not_before, listed, progress_of, store_held, why_stopped


def waiting_for_hosts(snapshot: Snapshot, maintenance_id: str, now: datetime) -> dict[str, tuple[Waiting, ...]]:
    """Return what the work on each host of a maintenance waits for; nothing for a host that is over.

    Machines in the way are named if the snapshot has the machines of the host.
    """
    draft = Draft(snapshot, now, Actor("reader"))
    maintenance = draft.maintenances[maintenance_id]
    current = current_host(draft, maintenance)
    return {
        order.host: host_reasons(draft, maintenance, order, current) for order in draft.host_orders_of(maintenance_id)
    }


def host_reasons(draft: Draft, maintenance: Maintenance, order: Order, current: Order | None) -> tuple[Waiting, ...]:
    """Return what the work on a host waits for; `current` is the order of the host whose turn it is."""
    if order.state in OVER:
        returning = is_read(draft, order) and machines_to_return(draft, maintenance, order)
        return tuple(no_target(draft, maintenance, order.host, order.host)) if returning else ()
    if order.state is not OrderState.PLANNED:
        return (_host_progress(draft, maintenance, order),)
    reasons = why_stopped(draft, maintenance)
    if current is not None and current.id != order.id:
        earlier = Waiting(code="earlier-host", message=f"host {current.host} comes first, and its turn has not ended")
        return (*reasons, earlier)
    reasons += _host_busy(draft, order)
    unplanned = not departures(draft, order) and is_read(draft, order) and machines_on(draft, order.host)
    nowhere = no_target(draft, maintenance, order.host, maintenance.to_host) if unplanned else []
    reasons += nowhere or _not_empty(draft, maintenance, order)
    floor, requested = host_not_before(draft, maintenance, order), order.requested_not_before
    if requested is not None and draft.trusted_in("") < requested:
        message = "the host was rescheduled: its work does not begin before the requested time"
        reasons.append(Waiting(code="requested-start", message=message, until=requested))
    elif floor is not None and draft.trusted_in("") < floor:
        reasons.append(Waiting(code="earliest", message="the work on the host has an earliest start", until=floor))
    if not departures(draft, order):
        reasons += host_budget_waits(draft, maintenance, order)
    ticker = Waiting(code="ticker", message="nothing holds it back: the ticker moves it in its next cycle")
    return tuple(reasons) or (ticker,)


def _host_busy(draft: Draft, order: Order) -> list[Waiting]:
    other = other_work(draft, order)
    if other is None:
        return []
    unresolved = other.state in (OrderState.FAILED, OrderState.IN_DOUBT)
    message = f"maintenance {other.maintenance_id} works on host {order.host}, and its order is {other.state}"
    return [Waiting(code="host-busy", message=message, orders=(other.id,) if unresolved else ())]


def _not_empty(draft: Draft, maintenance: Maintenance, order: Order) -> list[Waiting]:
    """Return the wait for machines on the host, and for the events that empty it or shut them down."""
    events = departures(draft, order)
    unended = [e for e in events if e.status in OPEN and not is_stopped(draft, e)]
    machines = tuple(str(m) for m in machines_in_the_way(draft, maintenance, order)) if is_read(draft, order) else ()
    if unended:
        message = f"{len(unended)} event(s) of host {order.host} have not ended"
        return [
            Waiting(
                code="host-not-empty",
                message=message,
                machines=machines[:MAX_NAMED],
                events=tuple(e.id for e in unended[:MAX_NAMED]),
            )
        ]
    if machines and not events:
        message = f"host {order.host} carries {listed(machines)}, and their events are planned next"
        return [Waiting(code="host-not-empty", message=message, machines=machines[:MAX_NAMED])]
    return [_in_the_way(order, machines)] if machines else []


def _in_the_way(order: Order, machines: tuple[str, ...]) -> Waiting:
    message = f"host {order.host} still carries {listed(machines)}, and no event of this maintenance moves them"
    return Waiting(code="host-not-empty", message=message, machines=machines[:MAX_NAMED])


def _host_progress(draft: Draft, maintenance: Maintenance, order: Order) -> Waiting:
    """Return what an order of a host waits for, if the order is open or was taken."""
    if order.state is OrderState.FAILED:
        message = f"the work on host {order.host} failed ({order.reason})"
        return Waiting(code="order-failed", message=message, orders=(order.id,))
    if order.state is OrderState.IN_DOUBT:
        return replace(progress_of(draft, order), orders=(order.id,))
    if order.state is not OrderState.OPEN or store_held(draft):
        return progress_of(draft, order)
    machines = tuple(str(m) for m in machines_in_the_way(draft, maintenance, order)) if is_read(draft, order) else ()
    if machines:
        return _in_the_way(order, machines)
    if order.reason:
        return Waiting(code="host-not-empty", message=order.reason, until=order.deadline)
    return progress_of(draft, order)
