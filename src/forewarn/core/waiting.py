"""What an event waits for. One set of predicates decides a start and explains its absence: the two cannot disagree.

Owns: when an event is ready, when a wave is due, and what may stand in a due wave's way. It changes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import NotFound
from forewarn.core.model import (
    ENDED,
    OPEN,
    UNSTARTED,
    Actor,
    ApprovalMode,
    Event,
    Hold,
    Maintenance,
    OnFailure,
    OrderState,
    Status,
)

# A reason names so many things, and then only how many more there are.
MAX_NAMED = 10


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
    """The same for many: what their maintenances have in common is looked at once."""
    draft = Draft(snapshot, now, Actor("nobody"))
    common: dict[str, _Common] = {}
    found = {}
    for event_id in event_ids:
        event = draft.events.get(event_id)
        if event is None:
            raise NotFound(f"there is no event {event_id}")
        if event.status in UNSTARTED and event.maintenance_id not in common:
            common[event.maintenance_id] = _Common(draft, draft.maintenances[event.maintenance_id])
        found[event_id] = _reasons(draft, event, common.get(event.maintenance_id))
    return found


class _Common:
    """What every event of a maintenance that has not started waits for alike."""

    def __init__(self, draft: Draft, maintenance: Maintenance) -> None:
        self.wave = current_wave(draft, maintenance)
        self.ids = {e.id for e in self.wave}
        self.stopped = _why_stopped(draft, maintenance)
        self.unready = dict.fromkeys(e.id for e in self.wave if not ready(maintenance, e, draft.trusted_in(e.scope)))
        self.obstacles = in_the_way(draft, maintenance, self.wave)
        if _before_earliest(draft, maintenance, self.wave):
            message = "it has a hard earliest start, which no approval brings forward"
            self.obstacles.insert(0, Waiting(code="earliest", message=message, until=maintenance.earliest))
            hold = draft.before.hold
            if hold is not None and maintenance.earliest is not None and draft.now >= maintenance.earliest:
                self.obstacles.append(_held_clock(hold))


def _reasons(draft: Draft, event: Event, common: _Common | None) -> tuple[Waiting, ...]:
    if event.status is Status.STARTED:
        return (_work(draft, event),)
    if common is None or event.status in ENDED:
        return ()
    reasons = list(common.stopped)
    if event.id not in common.ids:
        ahead = tuple(e.id for e in common.wave[:MAX_NAMED])
        reasons.append(Waiting(code="earlier-wave", message=f"wave {common.wave[0].wave} has not ended", events=ahead))
    elif event.status is Status.SCHEDULED or event.born_approved:
        reasons += _not_ready(draft, event)
        reasons += _rest_of_wave(event, common.unready)
        reasons += common.obstacles
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


def ready(maintenance: Maintenance, event: Event, now: datetime) -> bool:
    """Whether the event itself may start: approved, needing no approval, or its notice has passed."""
    if event.born_approved or not event.needs_approval or approved(event):
        return True
    over = notice_over(maintenance, event)
    return over is not None and now >= over


def notice_over(maintenance: Maintenance, event: Event) -> datetime | None:
    """When an event that nobody approves may start: at its NotBefore, and when guests could see it for as long as is due.

    A store may save long after it was asked to. Until somebody found it saved nobody knows when that will be.
    """
    if event.not_before is None or not event.minimum_notice_s:
        return event.not_before
    if maintenance.observed_published_at is None:
        return None
    return max(event.not_before, maintenance.observed_published_at + timedelta(seconds=event.minimum_notice_s))


def stopped(draft: Draft, maintenance: Maintenance) -> bool:
    return maintenance.paused or held_by(draft, maintenance) is not None


def due(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> bool:
    """Whether the wave wants to start now: published, every event ready, past `earliest`, not paused."""
    return (
        not stopped(draft, maintenance)
        and not _before_earliest(draft, maintenance, wave)
        and all(_waits_to_start(e) and ready(maintenance, e, draft.trusted_in(e.scope)) for e in wave)
    )


def _waits_to_start(event: Event) -> bool:
    return event.status is Status.SCHEDULED or (event.status is Status.PLANNED and event.born_approved)


def queue_key(maintenance: Maintenance, wave: Iterable[Event]) -> tuple[datetime, str]:
    """Due waves are tried in order (NotBefore, id)."""
    return min(e.not_before or maintenance.created for e in wave), maintenance.id


def in_the_way(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """What keeps a due wave from starting: its own machines, another update domain, or a due wave ahead of it."""
    reasons = list(islice(_taken(draft, wave), MAX_NAMED))
    ahead = _due_wave_ahead(draft, maintenance, wave)
    if ahead:
        message = f"maintenance {ahead[0].maintenance_id} is due in this scope and came first"
        reasons.append(Waiting(code="queue", message=message, events=tuple(e.id for e in ahead[:MAX_NAMED])))
    return reasons


def _taken(draft: Draft, wave: list[Event]) -> Iterator[Waiting]:
    """Machines and update domains that started events hold; each scope is looked through once, whatever the wave's size."""
    started = {
        scope: [e for e in draft.events_in(scope) if e.status is Status.STARTED] for scope in {e.scope for e in wave}
    }
    holders = {(e.scope, name): e for events in started.values() for e in events for name in e.resources}
    for event in wave:
        held = {other.id: other for name in event.resources if (other := holders.get((event.scope, name))) is not None}
        others = started[event.scope] if event.one_domain_at_a_time else held.values()
        for other in others:
            if other.id in held:
                yield _machine_taken(event, other)
            if event.one_domain_at_a_time and other.update_domain != event.update_domain:
                yield _domain_taken(event, other)


def _machine_taken(event: Event, other: Event) -> Waiting:
    names = set(other.resources)
    shared = tuple(name for name in event.resources if name in names)
    message = f"{_some(shared)} in {event.scope} is in event {other.id}, which has started"
    return Waiting(code="machine", message=message, machines=shared, events=(other.id,))


def _domain_taken(event: Event, other: Event) -> Waiting:
    """Platform maintenance touches at most one update domain of a scope at a time."""
    message = f"update domain {other.update_domain} of {event.scope} is under way in event {other.id}"
    return Waiting(code="update-domain", message=message, events=(other.id,))


def _some(names: Sequence[str]) -> str:
    """All of them, or the first few and how many more."""
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"


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
    return min(draft.trusted_in(e.scope) for e in wave) < maintenance.earliest


def _why_stopped(draft: Draft, maintenance: Maintenance) -> list[Waiting]:
    reasons = []
    failed = held_by(draft, maintenance)
    if failed is not None:
        message = f"the maintenance is held: the order of event {failed.id} failed; retry, finish or abandon it"
        reasons.append(Waiting(code="paused", message=message, events=(failed.id,)))
    if maintenance.paused:
        reasons.append(Waiting(code="paused", message="the maintenance is paused; resume it"))
    return reasons


def _rest_of_wave(event: Event, unready: Collection[str]) -> list[Waiting]:
    named = tuple(islice((event_id for event_id in unready if event_id != event.id), MAX_NAMED))
    if not named:
        return []
    count = len(unready) - (event.id in unready)
    message = f"the wave starts together, and {count} other event(s) of it are not ready"
    return [Waiting(code="wave", message=message, events=named)]


def _held_clock(hold: Hold) -> Waiting:
    message = (
        f"the clock jumped forward by {hold.jumped_s} s after {hold.trusted:%Y-%m-%dT%H:%M:%SZ}: check it, then say"
        " `forewarn clock confirm`"
    )
    return Waiting(code="clock", message=message)


def _not_ready(draft: Draft, event: Event) -> list[Waiting]:
    maintenance = draft.maintenances[event.maintenance_id]
    if ready(maintenance, event, draft.trusted_in(event.scope)):
        return []
    hold = draft.before.hold
    if hold is not None and ready(maintenance, event, draft.now_in(event.scope)):
        return [_missing_approval(event), _held_clock(hold)]
    until = notice_over(maintenance, event) or event.not_before
    notice = Waiting(code="notice", message="its notice runs", until=until)
    return [_missing_approval(event), notice]


def _missing_approval(event: Event) -> Waiting:
    given = {a.machine for a in event.approvals}
    if event.approval is ApprovalMode.OPERATOR:
        return Waiting(code="approval", message="an operator has not approved")
    missing = tuple(name for name in event.resources if name not in given)
    if event.approval is ApprovalMode.ALL:
        return Waiting(code="approval", message=f"not approved by {_some(missing)}", machines=missing)
    return Waiting(code="approval", message=f"no machine of {event.scope} has approved", machines=missing)


def _work(draft: Draft, event: Event) -> Waiting:
    order = draft.orders[event.id]
    if order.state is OrderState.FAILED:
        message = f"its order failed ({order.reason}); retry, finish or abandon the event"
        return Waiting(code="order-failed", message=message)
    doing = "is being carried out" if order.state is OrderState.RUNNING else "waits for an executor to take it"
    return Waiting(code="executor", message=f"its order {doing}", until=order.deadline)
