"""What the order of a host depends on: whose turn it is, and which machines are in the way of the work.

Predicates on a Draft, for `host_work` (which acts on them) and `waiting` (which explains them). They change nothing.
"""

from collections.abc import Iterable

from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.hosts import IN_MAINTENANCE
from forewarn.core.model import (
    OPEN,
    UNSTARTED,
    Actor,
    Event,
    HostMode,
    Machine,
    Maintenance,
    OnFailure,
    Order,
    OrderState,
    Phase,
    Status,
)
from forewarn.core.model import OVER as OVER

# The work on the host may be under way, or may begin any moment.
UNDER_WAY = frozenset({OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT})


def current_host(draft: Draft, maintenance: Maintenance) -> Order | None:
    """Return the order of the host whose turn it is, or None if every host is over."""
    return next((o for o in draft.host_orders_of(maintenance.id) if not _has_passed(draft, maintenance, o)), None)


def _has_passed(draft: Draft, maintenance: Maintenance, order: Order) -> bool:
    """Whether the next host may begin: the order is over, its events have ended, and machines that return are back."""
    goes_on = maintenance.on_failure is OnFailure.CONTINUE
    if order.state not in OVER and not (goes_on and order.state is OrderState.FAILED):
        return False
    open_events = (e for e in events_of_host(draft, order) if e.status in OPEN)
    return all(goes_on and _failed(draft, e) for e in open_events) and not machines_to_return(draft, maintenance, order)


def _failed(draft: Draft, event: Event) -> bool:
    return event.id in draft.orders and draft.orders[event.id].state is OrderState.FAILED


def events_of_host(draft: Draft, order: Order) -> list[Event]:
    """Return the events of the host, without those that were cancelled because the host was rescheduled."""
    return [e for e in draft.events_of(order.maintenance_id) if e.host == order.host and not e.replaced_by]


def departures(draft: Draft, order: Order) -> list[Event]:
    """Return the events before the work on the host: their machines leave it, or are shut down on it."""
    return [e for e in events_of_host(draft, order) if not e.returns]


def machines_to_return(draft: Draft, maintenance: Maintenance, order: Order) -> list[tuple[str, str]]:
    """Return the machines that left the host, if they are to come back and no event brings them back yet.

    If the host was not read, these may include machines that are back already or were removed.
    """
    if not maintenance.return_machines or maintenance.cancelled or order.state is not OrderState.DONE:
        return []
    if any(e.returns for e in events_of_host(draft, order)):
        return []
    left = [(e.scope, name) for e in departures(draft, order) if e.status is Status.COMPLETED for name in e.resources]
    if not is_read(draft, order):
        return left
    return [key for key in left if key in draft.machines and draft.machines[key].host != order.host]


def is_read(draft: Draft, order: Order) -> bool:
    """Whether the snapshot has all machines on the host."""
    return order.host in draft.before.read_hosts


def machines_on(draft: Draft, host: str) -> list[Machine]:
    """Return the machines that the fleet shows on a host that was read."""
    return [machine for machine in draft.machines.values() if machine.host == host]


def is_stopped(draft: Draft, event: Event) -> bool:
    """Whether the machines of the event are shut down for the work on their host."""
    order = draft.orders.get(event.id)
    return (
        event.status is Status.STARTED
        and order is not None
        and order.phase is Phase.START
        and order.state is OrderState.PLANNED
    )


def other_work(draft: Draft, order: Order) -> Order | None:
    """Return the order by which another maintenance works on the same host, or will until an operator resolves it."""
    others = (o for o in draft.orders.values() if o.host == order.host and o.state in IN_MAINTENANCE)
    return next((o for o in others if o.maintenance_id != order.maintenance_id), None)


def machines_to_start(draft: Draft, order: Order) -> list[Event]:
    """Return the events whose machines are shut down although the work on their host has ended or will not be done."""
    if order.state is OrderState.PLANNED or order.state in UNDER_WAY:
        return []
    return [event for event in events_of_host(draft, order) if is_stopped(draft, event)]


def machines_in_the_way(draft: Draft, maintenance: Maintenance, order: Order) -> list[Machine]:
    """Return the machines on the host that the work would hit: all of them, or in place those that are not shut down."""
    found = machines_on(draft, order.host)
    if maintenance.host_mode is HostMode.IN_PLACE:
        stopped = {(e.scope, name) for e in departures(draft, order) if is_stopped(draft, e) for name in e.resources}
        found = [machine for machine in found if machine.key not in stopped]
    return found


def hosts_to_read(
    snapshot: Snapshot, maintenance_ids: Iterable[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the hosts, and the machines that left them, that a decision about these maintenances must read."""
    hosts: dict[str, None] = {}
    machines: dict[tuple[str, str], None] = {}
    named = [snapshot.maintenances[i] for i in maintenance_ids if i in snapshot.maintenances]
    for maintenance in [m for m in named if m.host_mode is not None and m.ended is None]:
        draft = Draft(snapshot, maintenance.created, Actor("reader"))
        for order in draft.host_orders_of(maintenance.id):
            returning = machines_to_return(draft, maintenance, order)
            if not returning and _has_passed(draft, maintenance, order):
                continue
            hosts[order.host] = None
            machines |= dict.fromkeys(returning)
            if not returning:
                break
        # Publishing or starting an event cordons its host. With `continue`, that may be a later host than the current one.
        hosts |= dict.fromkeys(e.host for e in draft.events_of(maintenance.id) if e.status in UNSTARTED)
    return tuple(hosts), tuple(machines)
