"""Drills: guests see ordinary events, drain and approve, and nothing touches their machines.

The order of a drill's event is done from the beginning, so no executor ever gets it. The event ends some time after its start.
A drill yields to real events: when one is published in a scope, all drill events of the scope end in the same transaction.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from forewarn.core.cancelling import cancel
from forewarn.core.draft import Draft
from forewarn.core.errors import Refused
from forewarn.core.fast_init import replace
from forewarn.core.model import VISIBLE, Event, Maintenance, Order, OrderState, Status
from forewarn.core.transitions import Verb, status_after

NO_WORK = "a drill: nothing touched the machines"


def is_drill(draft: Draft, event: Event) -> bool:
    return draft.maintenances[event.maintenance_id].drill_hold_s > 0


def drill_end(maintenance: Maintenance, event: Event) -> datetime | None:
    """Return when a started event of a drill ends."""
    if event.started is None:
        return None
    return event.started + timedelta(seconds=maintenance.drill_hold_s)


def drill_order(event: Event, now: datetime) -> Order:
    """Return the order of a drill's event: there is no work, so it is done at once."""
    return Order(id=event.id, issued=now, state=OrderState.DONE, ended=now, reason=NO_WORK)


def end_drill_events(draft: Draft, maintenance: Maintenance) -> None:
    """End the events of a drill whose machines have been down, as their guests see it, for long enough."""
    for event in draft.events_of(maintenance.id) if maintenance.drill_hold_s else ():
        end = drill_end(maintenance, event)
        if event.status is Status.STARTED and end is not None and draft.trusted_in(event.scope) >= end:
            _end(draft, event, NO_WORK)


def yield_to(draft: Draft, wave: Iterable[Event]) -> None:
    """End all drill events in the scopes of a wave of real events that is published now."""
    for event in wave:
        for other in draft.events_in(event.scope):
            if not is_drill(draft, other):
                continue
            reason = f"the drill ended for event {event.id}"
            if other.status is Status.STARTED:
                _end(draft, other, reason)
            else:
                cancel(draft, other, reason)


def _end(draft: Draft, event: Event, reason: str) -> None:
    now = draft.now_in(event.scope)
    draft.put(replace(event, status=status_after(event, Verb.FINISH), ended=now, reason=reason))
    draft.note("event completed", event=event, detail=reason)


def refuse_beside_others(draft: Draft, events: Iterable[Event]) -> None:
    """Refuse a drill in a scope in which guests see an event, or in which another drill is open."""
    for scope in sorted({event.scope for event in events}):
        for other in draft.events_in(scope):
            if is_drill(draft, other):
                raise Refused(f"event {other.id} of another drill is open in scope {scope}: wait until it ends")
            if other.status in VISIBLE:
                raise Refused(f"event {other.id} is {other.status} in scope {scope}: a drill would end for it at once")
