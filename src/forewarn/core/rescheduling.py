"""The verbs that move an event, or a host of a maintenance, to another time.

A rescheduled event is cancelled and planned again under a new id: NotBefore never changes after publication. It is a wave of
its own. A maintenance of hosts moves the whole host instead. What was rescheduled comes last, in the order of the requested
times. Nothing may move past the deadline of the maintenance.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import groupby

from forewarn.core.advance import refresh
from forewarn.core.cancelling import cancel
from forewarn.core.change import Change, Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import NotFound, Refused
from forewarn.core.fast_init import replace
from forewarn.core.formatting import full_time, iso_seconds
from forewarn.core.host_orders import departures, machines_on
from forewarn.core.host_work import lift_cordon
from forewarn.core.model import UNSTARTED, Actor, Event, Maintenance, Order, OrderState, Status, check_moment
from forewarn.core.planning import due_notice_s, plan_events
from forewarn.core.replanning import planned_again
from forewarn.core.transitions import Verb, require_legal
from forewarn.core.verb_steps import find, open_maintenance, wake
from forewarn.core.window_rules import limits_of


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
    planned = planned_again(draft, event, new_id())
    _check_time(draft, maintenance, [planned], not_before)
    moved = replace(
        planned,
        wave=_wave_at(draft, maintenance.id, not_before),
        reschedules=event.reschedules + 1,
        requested_not_before=not_before,
    )
    when = iso_seconds(not_before)
    cancel(draft, event, f"rescheduled to {when} by {actor.name}: event {moved.id} replaces it", replaced_by=moved.id)
    draft.put(moved)
    draft.note("event rescheduled", event=moved, detail=f"to {when}; it replaces event {event_id}")
    return draft.change(), moved.id


def _wave_at(draft: Draft, maintenance_id: str, not_before: datetime) -> int:
    """Return the wave of an event that is moved to this time, after moving the waves with a later time behind it.

    A wave that was announced keeps its number. The number of an event that ended is not used again.
    """
    events = draft.events_of(maintenance_id)
    later = [event for event in events if event.status is Status.PLANNED and _is_later(event, not_before)]
    ids = {event.id for event in later}
    wave = 1 + max(event.wave for event in events if event.id not in ids)
    back = max(1, wave + 1 - min((event.wave for event in later), default=wave))
    for event in later:
        draft.put(replace(event, wave=event.wave + back))
    return wave


def _is_later(moved: Event | Order, not_before: datetime) -> bool:
    return moved.requested_not_before is not None and moved.requested_not_before > not_before


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
    """Move a host whose machines have not begun to leave: it has its turn at this time or later, after hosts not moved."""
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
    # Its events are planned later, from the machines that are on it then.
    planned = plan_events(draft.before, maintenance, machines_on(draft, host), new_id=lambda: "", host=host)
    _check_time(draft, maintenance, planned, not_before)
    when = iso_seconds(not_before)
    for event in events:
        cancel(draft, event, f"host {host} was rescheduled to {when} by {actor.name}", replaced_by=maintenance_id)
    lift_cordon(draft, order)
    moved = replace(order, reschedules=order.reschedules + 1, requested_not_before=not_before)
    # Hosts with a later time stay behind it. All positions are new, because two orders must not have the same one.
    later = [each for each in orders if each.id != order.id and _waits_until_later(draft, each, not_before)]
    for position, each in enumerate((moved, *later), start=1 + orders[-1].position):
        draft.put_order(replace(each, position=position))
    draft.note("host rescheduled", maintenance_id=maintenance_id, detail=f"host {host}: to {when}")
    refresh(draft, maintenance_id)
    wake(draft, maintenance_id)
    return draft.change()


def _waits_until_later(draft: Draft, order: Order, not_before: datetime) -> bool:
    """Whether the host was rescheduled to a time after this one, and its turn has not begun."""
    return order.state is OrderState.PLANNED and _is_later(order, not_before) and not departures(draft, order)


def _check_count(what: str, reschedules: int, most: int) -> None:
    if reschedules >= most:
        raise Refused(f"{what} was rescheduled {reschedules} times, and max_reschedules is {most}")


def _check_time(draft: Draft, maintenance: Maintenance, planned: list[Event], not_before: datetime) -> None:
    """Refuse a time that has passed, and one from which a planned wave cannot start before the deadline without approvals."""
    check_moment("not_before", not_before)
    now = max((draft.now_in(event.scope) for event in planned), default=draft.now)
    if not_before <= now:
        raise Refused(f"not_before has passed ({full_time(not_before)}): choose a later time")
    deadline = maintenance.not_after
    if deadline is None:
        return
    notice = timedelta(seconds=due_notice_s(planned, draft.scopes) or 0)
    wanted = max(not_before, now + notice)
    if wanted >= deadline:
        raise Refused(f"the deadline of its maintenance is {full_time(deadline)}: choose an earlier start")
    for _, wave in groupby(planned, key=lambda event: event.wave):
        limits = limits_of(draft, maintenance, list(wave))
        found = limits.first_after(now, wanted) if limits is not None else (wanted, deadline)
        if found is None or found[0] >= deadline:
            raise Refused(
                f"its windows and no-go times leave no start between {full_time(wanted)} and the deadline of its"
                f" maintenance, {full_time(deadline)}: choose another time"
            )
