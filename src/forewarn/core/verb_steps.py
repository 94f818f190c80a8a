"""Steps that verbs of several modules share: they find and wake, refuse occupied hosts, and end the work of events."""

from collections.abc import Mapping
from typing import TypeVar

from forewarn.core.cancelling import cancel
from forewarn.core.draft import Draft
from forewarn.core.errors import NotFound, Refused
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.fast_init import replace
from forewarn.core.formatting import names
from forewarn.core.host_orders import is_read, machines_in_the_way
from forewarn.core.model import UNSTARTED, Event, Maintenance, Order, Phase
from forewarn.core.transitions import OrderVerb, Verb, order_after, status_after

T = TypeVar("T")


def find(things: Mapping[str, T], key: str, what: str) -> T:
    """Return the thing with this key, or refuse with its kind and key."""
    if key not in things:
        raise NotFound(f"there is no {what} {key}")
    return things[key]


def open_maintenance(draft: Draft, maintenance_id: str) -> Maintenance:
    """Return a maintenance that has not ended, or refuse."""
    maintenance = find(draft.maintenances, maintenance_id, "maintenance")
    if maintenance.ended is not None:
        raise Refused(f"maintenance {maintenance_id} has ended: it is {maintenance.status}")
    return maintenance


def wake(draft: Draft, maintenance_id: str) -> None:
    """Let the next tick examine a maintenance that was refreshed, unless it has ended."""
    refreshed = draft.maintenances[maintenance_id]
    if refreshed.ended is None:
        draft.put_maintenance(replace(refreshed, wake_at=draft.now))


def note_order(draft: Draft, action: str, order: Order, detail: str) -> None:
    """Record in the audit what happened to an order, at its event or its host."""
    if order.host:
        about = f"host {order.host}: {detail}" if detail else f"host {order.host}"
        draft.note(action, maintenance_id=order.maintenance_id, detail=about)
    else:
        draft.note(action, event=draft.events[order.id], detail=detail)


def refuse_not_empty(draft: Draft, order: Order) -> None:
    """Refuse work that would hit machines on its host."""
    maintenance = draft.maintenances[order.maintenance_id]
    machines = machines_in_the_way(draft, maintenance, order)
    if machines or not is_read(draft, order):
        raise Refused(f"host {order.host} is not empty: {names([str(m) for m in machines])}: move them first")


def machines_stopped(draft: Draft, event: Event, order: Order) -> None:
    """Record that the machines are shut down. The order waits, without a time limit, until it may start them again."""
    state = order_after(order, OrderVerb.STOP)
    draft.put_order(replace(order, state=state, phase=Phase.START, node="", deadline=None, ended=None))
    draft.note("machines stopped", event=event, detail=order.reason)


def complete(draft: Draft, event: Event, reason: str) -> None:
    """End an event whose work is done. A Terminate also removes its machines."""
    draft.put(replace(event, status=status_after(event, Verb.FINISH), ended=draft.now_in(event.scope), reason=reason))
    draft.note("event completed", event=draft.events[event.id])
    if EVENT_TYPES[event.type].removes_machines:
        for name in event.resources:
            draft.remove_machine((event.scope, name))
        remaining = {name for scope, name in draft.machines if scope == event.scope}
        for other in draft.events_in(event.scope):
            if other.status in UNSTARTED and remaining.isdisjoint(other.resources):
                cancel(draft, other, f"its machines were removed: {', '.join(other.resources)}")
