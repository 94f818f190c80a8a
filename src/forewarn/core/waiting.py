"""What an event waits for. One set of predicates decides a start and explains its absence: the two cannot disagree.

Owns: when an event is ready, when a wave is due, and what may stand in a due wave's way. It changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from forewarn.core.draft import Draft
from forewarn.core.errors import NotFound
from forewarn.core.model import (
    ENDED,
    OPEN,
    UNSTARTED,
    Actor,
    ApprovalMode,
    Event,
    Maintenance,
    OnFailure,
    OrderState,
    Snapshot,
    Status,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One reason: a stable code, a sentence, and what it is about."""

    code: str
    message: str
    until: datetime | None = None
    machines: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


def waiting_for(snapshot: Snapshot, event_id: str, now: datetime) -> tuple[Waiting, ...]:
    """Everything an open event waits for; an ended one waits for nothing."""
    return waiting_for_each(snapshot, [event_id], now)[event_id]


def waiting_for_each(snapshot: Snapshot, event_ids: Iterable[str], now: datetime) -> dict[str, tuple[Waiting, ...]]:
    draft = Draft(snapshot, now, Actor("nobody"))
    return {event_id: _reasons(draft, event_id) for event_id in event_ids}


def _reasons(draft: Draft, event_id: str) -> tuple[Waiting, ...]:
    event = draft.events.get(event_id)
    if event is None:
        raise NotFound(f"there is no event {event_id}")
    if event.status in ENDED:
        return ()
    if event.status is Status.STARTED:
        return (_work(draft, event),)
    maintenance = draft.maintenances[event.maintenance_id]
    wave = current_wave(draft, maintenance)
    reasons = _why_stopped(draft, maintenance)
    if event not in wave:
        ahead = tuple(e.id for e in wave)
        reasons.append(Waiting(code="earlier-wave", message=f"wave {wave[0].wave} has not ended", events=ahead))
    elif event.status is Status.SCHEDULED or event.born_approved:
        reasons += _not_ready(event, draft.now_in(event.scope))
        reasons += _rest_of_wave(draft, event, wave)
        reasons += in_the_way(draft, maintenance, wave)
    nobody = Waiting(code="ticker", message="nothing stands in its way: it moves at the ticker's next cycle")
    return tuple(reasons) or (nobody,)


def current_wave(draft: Draft, maintenance: Maintenance) -> list[Event]:
    """The open events of the lowest wave that has not ended; empty when every wave has.

    With on_failure = continue an event whose order failed no longer holds up the waves behind it.
    """
    skip = maintenance.on_failure is OnFailure.CONTINUE
    live = [e for e in draft.events_of(maintenance.id) if e.status in OPEN and not (skip and order_failed(draft, e))]
    lowest = min((e.wave for e in live), default=0)
    return [e for e in live if e.wave == lowest]


def order_failed(draft: Draft, event: Event) -> bool:
    order = draft.orders.get(event.id)
    return event.status is Status.STARTED and order is not None and order.state is OrderState.FAILED


def held_by(draft: Draft, maintenance: Maintenance) -> Event | None:
    """The failed event that holds the rest of its maintenance, if there is one."""
    if maintenance.on_failure is not OnFailure.HOLD:
        return None
    return next((e for e in draft.events_of(maintenance.id) if order_failed(draft, e)), None)


def approved(event: Event) -> bool:
    """Whether the approvals recorded are the ones this event needs."""
    machines = {a.machine for a in event.approvals}
    if "" in machines:  # an operator's counts for all
        return True
    if event.approval is ApprovalMode.ALL:
        return machines.issuperset(event.resources)
    return event.approval is ApprovalMode.ANY and bool(machines)


def ready(event: Event, now: datetime) -> bool:
    """Whether the event itself may start: approved, needing no approval, or past its NotBefore."""
    if event.born_approved or not event.needs_approval or approved(event):
        return True
    return event.not_before is not None and now >= event.not_before


def stopped(draft: Draft, maintenance: Maintenance) -> bool:
    return maintenance.paused or held_by(draft, maintenance) is not None


def due(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> bool:
    """Whether the wave wants to start now: published, every event ready, past `earliest`, not paused."""
    return (
        not stopped(draft, maintenance)
        and not _before_earliest(draft, maintenance, wave)
        and all(_waits_to_start(e) and ready(e, draft.now_in(e.scope)) for e in wave)
    )


def _waits_to_start(event: Event) -> bool:
    return event.status is Status.SCHEDULED or (event.status is Status.PLANNED and event.born_approved)


def queue_key(maintenance: Maintenance, wave: Iterable[Event]) -> tuple[datetime, str]:
    """Due waves are tried in order (NotBefore, id)."""
    return min(e.not_before or maintenance.created for e in wave), maintenance.id


def in_the_way(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """What keeps a due wave from starting: its own machines, another update domain, or a due wave ahead of it."""
    reasons = []
    for event in wave:
        for other in draft.events_in(event.scope):
            if other.status is Status.STARTED:
                reasons += _machine_taken(event, other)
                reasons += _domain_taken(event, other)
    ahead = _due_wave_ahead(draft, maintenance, wave)
    if ahead:
        message = f"maintenance {ahead[0].maintenance_id} is due in this scope and came first"
        reasons.append(Waiting(code="queue", message=message, events=tuple(e.id for e in ahead)))
    return reasons


def _machine_taken(event: Event, other: Event) -> list[Waiting]:
    shared = tuple(name for name in event.resources if name in other.resources)
    if not shared:
        return []
    message = f"{', '.join(shared)} in {event.scope} is in event {other.id}, which has started"
    return [Waiting(code="machine", message=message, machines=shared, events=(other.id,))]


def _domain_taken(event: Event, other: Event) -> list[Waiting]:
    """Platform maintenance touches at most one update domain of a scope at a time."""
    if not event.one_domain_at_a_time or other.update_domain == event.update_domain:
        return []
    message = f"update domain {other.update_domain} of {event.scope} is under way in event {other.id}"
    return [Waiting(code="update-domain", message=message, events=(other.id,))]


def _due_wave_ahead(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Event]:
    """The first due wave of another maintenance that shares a scope and comes before: waves do not overtake.

    An emergency is "at once": it queues behind nobody.
    """
    if maintenance.emergency:
        return []
    key = queue_key(maintenance, wave)
    rivals = {
        other.maintenance_id
        for event in wave
        for other in draft.events_in(event.scope)
        if other.status in UNSTARTED and other.maintenance_id != maintenance.id
    }
    ahead = []
    for rival in (draft.maintenances[i] for i in rivals):
        rival_wave = current_wave(draft, rival)
        if due(draft, rival, rival_wave) and queue_key(rival, rival_wave) < key and _share_scope(wave, rival_wave):
            ahead.append((queue_key(rival, rival_wave), rival_wave))
    return min(ahead, key=lambda row: row[0])[1] if ahead else []


def _share_scope(wave: Iterable[Event], other: Iterable[Event]) -> bool:
    return not {e.scope for e in wave}.isdisjoint(e.scope for e in other)


def _before_earliest(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> bool:
    if maintenance.earliest is None:
        return False
    return min(draft.now_in(e.scope) for e in wave) < maintenance.earliest


def _why_stopped(draft: Draft, maintenance: Maintenance) -> list[Waiting]:
    reasons = []
    failed = held_by(draft, maintenance)
    if failed is not None:
        message = f"the maintenance is held: the order of event {failed.id} failed; retry, finish or abandon it"
        reasons.append(Waiting(code="paused", message=message, events=(failed.id,)))
    if maintenance.paused:
        reasons.append(Waiting(code="paused", message="the maintenance is paused; resume it"))
    return reasons


def _rest_of_wave(draft: Draft, event: Event, wave: list[Event]) -> list[Waiting]:
    reasons = []
    maintenance = draft.maintenances[event.maintenance_id]
    if _before_earliest(draft, maintenance, wave):
        message = "it has a hard earliest start, which no approval brings forward"
        reasons.append(Waiting(code="earliest", message=message, until=maintenance.earliest))
    others = tuple(e.id for e in wave if e.id != event.id and not ready(e, draft.now_in(e.scope)))
    if others:
        message = f"the wave starts together, and {len(others)} other event(s) of it are not ready"
        reasons.append(Waiting(code="wave", message=message, events=others))
    return reasons


def _not_ready(event: Event, now: datetime) -> list[Waiting]:
    if ready(event, now):
        return []
    notice = Waiting(code="notice", message="its notice runs", until=event.not_before)
    return [_missing_approval(event), notice]


def _missing_approval(event: Event) -> Waiting:
    given = {a.machine for a in event.approvals}
    if event.approval is ApprovalMode.OPERATOR:
        return Waiting(code="approval", message="an operator has not approved")
    missing = tuple(name for name in event.resources if name not in given)
    if event.approval is ApprovalMode.ALL:
        return Waiting(code="approval", message=f"not approved by {', '.join(missing)}", machines=missing)
    return Waiting(code="approval", message=f"no machine of {event.scope} has approved", machines=missing)


def _work(draft: Draft, event: Event) -> Waiting:
    order = draft.orders[event.id]
    if order.state is OrderState.FAILED:
        message = f"its order failed ({order.reason}); retry, finish or abandon the event"
        return Waiting(code="order-failed", message=message)
    doing = "is being carried out" if order.state is OrderState.RUNNING else "waits for an executor to take it"
    return Waiting(code="executor", message=f"its order {doing}", until=order.deadline)
