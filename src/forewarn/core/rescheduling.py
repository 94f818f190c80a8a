"""The verbs that move an event, or a host of a maintenance, to another time.

A rescheduled event is cancelled and planned again under a new id, as the last wave: NotBefore never changes after publication.
A maintenance of hosts moves the whole host instead, as the last one. Neither may move past the deadline of the maintenance.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from forewarn.core.advance import refresh
from forewarn.core.cancelling import cancel
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import NotFound, Refused
from forewarn.core.formatting import full_time
from forewarn.core.host_orders import departures
from forewarn.core.host_work import lift_cordon
from forewarn.core.model import UNSTARTED, Actor, Event, Maintenance, OrderState, check_moment
from forewarn.core.transitions import Verb, require_legal
from forewarn.core.verb_steps import find, open_maintenance, wake


def reschedule_event(
    snapshot: Snapshot,
    event_id: str,
    not_before: datetime,
    *,
    now: datetime,
    actor: Actor,
    new_id: Callable[[], str],
    max_reschedules: int,
) -> tuple[Change, str]:
    """Move an event that has not started; return the change and the id of the event that replaces it."""
    draft = Draft(snapshot, now, actor)
    event = find(draft.events, event_id, "event")
    require_legal(event, Verb.RESCHEDULE)
    maintenance = draft.maintenances[event.maintenance_id]
    if event.host:
        raise Refused(f"event {event_id} is part of the work on host {event.host}: an operator reschedules the host")
    if event.emergency:
        raise Refused(f"event {event_id} is an emergency, which starts as soon as it can: cancel it instead")
    _check_count(f"event {event_id}", event.reschedules, max_reschedules)
    scope = draft.scopes[event.scope]
    notice_s = 0 if event.born_approved or not scope.enabled else scope.notice_s(event.type)
    now_there = draft.now_in(event.scope)
    _check_time(maintenance, not_before, now_there, now_there + timedelta(seconds=notice_s))
    moved = _planned_again(draft, event, new_id(), not_before)
    when = f"{not_before:%Y-%m-%dT%H:%M:%SZ}"
    cancel(draft, event, f"rescheduled to {when} by {actor.name}: event {moved.id} replaces it", replaced_by=moved.id)
    draft.put(moved)
    draft.note("event rescheduled", event=moved, detail=f"to {when}; it replaces event {event_id}")
    return draft.change(), moved.id


def _planned_again(draft: Draft, event: Event, event_id: str, not_before: datetime) -> Event:
    """Return the event as it is planned again. Its approvals belong to the event that it replaces."""
    others = draft.events_of(event.maintenance_id)
    return Event(
        id=event_id,
        maintenance_id=event.maintenance_id,
        wave=1 + max(other.wave for other in others),
        position=draft.next_position(event.maintenance_id),
        scope=event.scope,
        update_domain=event.update_domain,
        type=event.type,
        source=event.source,
        resources=event.resources,
        description=event.description,
        duration_s=event.duration_s,
        born_approved=event.born_approved,
        approval_mode=draft.scopes[event.scope].approval,
        group=event.group,
        replaces=event.id,
        reschedules=event.reschedules + 1,
        requested_not_before=not_before,
    )


def reschedule_host(
    snapshot: Snapshot,
    maintenance_id: str,
    host: str,
    not_before: datetime,
    *,
    now: datetime,
    actor: Actor,
    max_reschedules: int,
) -> Change:
    """Move a host whose machines have not begun to leave: it is the last one, and has its turn at this time or later."""
    draft = Draft(snapshot, now, actor)
    maintenance = open_maintenance(draft, maintenance_id)
    orders = draft.host_orders_of(maintenance_id)
    order = next((each for each in orders if each.host == host), None)
    if order is None:
        raise NotFound(f"maintenance {maintenance_id} does not work on host {host!r}")
    events = departures(draft, order)
    if order.state is not OrderState.PLANNED or any(event.status not in UNSTARTED for event in events):
        raise Refused(f"the turn of host {host} has begun: it can be rescheduled only before its machines leave")
    if maintenance.emergency:
        raise Refused(f"the work on host {host} is an emergency, which starts as soon as it can: skip the host instead")
    _check_count(f"host {host}", order.reschedules, max_reschedules)
    _check_time(maintenance, not_before, now, now)
    when = f"{not_before:%Y-%m-%dT%H:%M:%SZ}"
    for event in events:
        cancel(draft, event, f"host {host} was rescheduled to {when} by {actor.name}", replaced_by=order.id)
    lift_cordon(draft, order)
    draft.put_order(
        replace(
            order,
            position=1 + orders[-1].position,
            reschedules=order.reschedules + 1,
            requested_not_before=not_before,
        )
    )
    draft.note("host rescheduled", maintenance_id=maintenance_id, detail=f"host {host}: to {when}")
    refresh(draft, maintenance_id)
    wake(draft, maintenance_id)
    return draft.change()


def _check_count(what: str, reschedules: int, most: int) -> None:
    if reschedules >= most:
        raise Refused(f"{what} was rescheduled {reschedules} times, and max_reschedules is {most}")


def _check_time(maintenance: Maintenance, not_before: datetime, now: datetime, possible: datetime) -> None:
    """Refuse a time that has passed, and a start at the deadline or later; `possible` is the first start with notice."""
    check_moment("not_before", not_before)
    if not_before <= now:
        raise Refused(f"not_before has passed ({full_time(not_before)}): choose a later time")
    deadline = maintenance.not_after
    if deadline is not None and max(not_before, possible) >= deadline:
        raise Refused(f"the deadline of its maintenance is {full_time(deadline)}: choose an earlier start")
