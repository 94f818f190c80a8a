"""What is shown: the house's own things as the API tells them. Reads what it is given, decides nothing."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from forewarn.core import fleet
from forewarn.core.change import Snapshot
from forewarn.core.fleet_difference import Difference
from forewarn.core.model import (
    ENDED,
    AuditEntry,
    Event,
    Machine,
    Maintenance,
    MaintenanceStatus,
    Order,
    OrderState,
    Scope,
    Status,
    Token,
)
from forewarn.core.waiting import Waiting
from forewarn.operator.api import bodies
from forewarn.store import Counts

ORDER_ENTRIES = {OrderState.DONE: "order finished", OrderState.FAILED: "order failed"}
# Reasons to wait that lie with another maintenance.
OTHERS = frozenset({"machine", "update-domain", "queue"})
ELSEWHERE = "it waits for something outside your scopes"

S = TypeVar("S")


def _as(shape: type[S], thing: object) -> S:
    """The shape's fields, read from a thing that has them under the same names."""
    return msgspec.convert(thing, shape, from_attributes=True)


def scope_out(scope: Scope) -> bodies.ScopeOut:
    return _as(bodies.ScopeOut, scope)


def machine_out(machine: Machine, last_seen: datetime | None) -> bodies.MachineOut:
    told = _as(bodies.MachineOut, machine)
    told.last_seen = last_seen
    return told


def fleet_out(stated: fleet.Fleet) -> bodies.Fleet:
    return bodies.Fleet(
        scopes=[_as(bodies.FleetScope, scope) for scope in stated.scopes.values()],
        machines=[_as(bodies.FleetMachine, machine) for machine in stated.machines.values()],
    )


def scope_in(name: str, said: bodies.ScopeIn) -> Scope:
    return Scope(**{**msgspec.structs.asdict(said), "name": name})


def machine_in(scope: str, name: str, said: bodies.MachineIn) -> Machine:
    stated = msgspec.structs.asdict(said)
    return Machine(**{**stated, "addresses": tuple(said.addresses), "scope": scope, "name": name})


def change_out(diff: Difference, *, dry_run: bool) -> bodies.FleetChange:
    return bodies.FleetChange(lines=list(diff.lines), warnings=list(diff.warnings), dry_run=dry_run)


class Telling:
    """Events and maintenances as one caller may see them; `within` are the scopes of an owner, None for everybody else."""

    def __init__(self, snapshot: Snapshot, waiting: Mapping[str, tuple[Waiting, ...]], within: Collection[str] | None):
        self._snapshot = snapshot
        self._waiting = waiting
        self._within = within
        self._waves: dict[tuple[str, int], list[Event]] = {}
        for event in snapshot.events.values():
            if event.status not in ENDED:
                self._waves.setdefault((event.maintenance_id, event.wave), []).append(event)
        self._notice_s: dict[tuple[str, int], int | None] = {}

    def event(self, event: Event, timeline: list[bodies.TimelineEntry] | None = None) -> bodies.EventOut:
        order = self._snapshot.orders.get(event.id)
        return bodies.EventOut(
            id=event.id,
            maintenance_id=event.maintenance_id,
            wave=event.wave,
            scope=event.scope,
            update_domain=event.update_domain,
            type=event.type,
            status=event.status,
            source=event.source,
            resources=list(event.resources),
            description=event.description,
            duration_s=event.duration_s,
            published=event.published,
            not_before=event.not_before,
            notice_s=self._notice(event),
            approved_by=[bodies.ApprovedBy(who=a.who, when=a.at) for a in event.approvals],
            started=event.started,
            ended=event.ended,
            reason=event.reason,
            waiting_for=[self._reason(reason) for reason in self._waiting.get(event.id, ())],
            timeline=short_timeline(event, order) if timeline is None else timeline,
        )

    def maintenance(self, maintenance: Maintenance, events: Sequence[Event], part: slice) -> bodies.MaintenanceOut:
        """`events` are those the caller may see; `part` of them is told, all of them are counted."""
        waves: dict[int, list[bodies.EventOut]] = {}
        for event in events[part]:
            waves.setdefault(event.wave, []).append(self.event(event))
        row = maintenance_row(maintenance)
        return bodies.MaintenanceOut(
            **{key: getattr(row, key) for key in row.__struct_fields__},
            event_counts=dict(Counter(event.status for event in events)),
            waves=[bodies.WaveOut(number=number, events=found) for number, found in sorted(waves.items())],
        )

    def _notice(self, event: Event) -> int | None:
        """What was given; for what is not published yet, what its wave is due as the scopes stand now."""
        if event.published is not None and event.not_before is not None:
            return int((event.not_before - event.published) / timedelta(seconds=1))
        if event.status in ENDED:
            return None
        wave = (event.maintenance_id, event.wave)
        if wave not in self._notice_s:
            self._notice_s[wave] = self._due_notice(self._waves.get(wave, ()))
        return self._notice_s[wave]

    def _due_notice(self, wave: Iterable[Event]) -> int | None:
        due = []
        for event in wave:
            scope = self._snapshot.scopes.get(event.scope)
            if scope is None:
                return None
            due.append(0 if event.born_approved or not scope.enabled else scope.notice_s(event.type))
        return max(due, default=None)

    def _reason(self, reason: Waiting) -> bodies.WaitingOut:
        if self._within is not None and not self._all_within(reason):
            return bodies.WaitingOut(code=reason.code, message=ELSEWHERE, until=reason.until)
        return bodies.WaitingOut(
            code=reason.code,
            message=reason.message,
            until=reason.until,
            machines=list(reason.machines),
            events=list(reason.events),
        )

    def _all_within(self, reason: Waiting) -> bool:
        events = (self._snapshot.events.get(event_id) for event_id in reason.events)
        return all(e is not None and self._within is not None and e.scope in self._within for e in events)


def maintenance_row(maintenance: Maintenance) -> bodies.MaintenanceRow:
    return _as(bodies.MaintenanceRow, maintenance)


def as_plan(told: bodies.MaintenanceOut) -> bodies.MaintenanceOut:
    """A dry run's: no ids, no absolute times; what would start at once says so by its notice of 0.

    Of what it would wait for, what others have in its way is told: the rest follows from the plan itself.
    """
    told.id = told.created = told.not_before = told.earliest = None
    told.status = MaintenanceStatus.PLANNED
    told.event_counts = {Status.PLANNED: sum(told.event_counts.values())}
    for wave in told.waves:
        for event in wave.events:
            event.id = event.maintenance_id = event.published = event.not_before = event.started = None
            event.status = Status.PLANNED
            event.waiting_for = [reason for reason in event.waiting_for if reason.code in OTHERS]
            event.timeline = []
    return told


def short_timeline(event: Event, order: Order | None) -> list[bodies.TimelineEntry]:
    """From the event itself: enough for a list."""
    entry = bodies.TimelineEntry
    entries = [entry(at=event.published, what="published")] if event.published else []
    entries += [entry(at=a.at, what="approved", who=a.who) for a in event.approvals]
    entries += [entry(at=event.started, what="started")] if event.started else []
    if order is not None and order.taken:
        entries.append(entry(at=order.taken, what="order taken", who=order.node, detail=f"attempt {order.attempt}"))
    if order is not None and order.ended:
        entries.append(entry(at=order.ended, what=ORDER_ENTRIES[order.state], detail=_result(order)))
    if event.ended:
        entries.append(entry(at=event.ended, what=str(event.status).lower(), detail=event.reason))
    return entries


def long_timeline(
    newest_first: Sequence[AuditEntry], order: Order | None, seen: Mapping[str, datetime]
) -> list[bodies.TimelineEntry]:
    """From the audit, oldest first: every attempt, and when each machine first saw it."""
    found = [
        bodies.TimelineEntry(at=e.at, what=e.action.removeprefix("event "), who=e.who, detail=e.detail)
        for e in reversed(newest_first)
    ]
    if order is not None and order.output:
        for entry in reversed(found):
            if entry.what in ORDER_ENTRIES.values():
                entry.detail = _result(order)
                break
    found += [bodies.TimelineEntry(at=at, what="seen", who=machine) for machine, at in seen.items()]
    return sorted(found, key=lambda entry: entry.at)


def _result(order: Order) -> str:
    return "\n".join(text for text in (order.reason, order.output) if text)


def order_out(order: Order, event: Event) -> bodies.OrderOut:
    return bodies.OrderOut(
        id=order.id,
        maintenance_id=event.maintenance_id,
        state=order.state,
        scope=event.scope,
        type=event.type,
        machines=[f"{event.scope}/{name}" for name in event.resources],
        issued=order.issued,
        deadline=order.deadline,
        attempt=order.attempt,
        node=order.node,
        taken=order.taken,
        ended=order.ended,
        reason=order.reason,
        output=order.output,
    )


def audit_out(entry: AuditEntry, within: Collection[str] | None = None) -> bodies.AuditOut:
    """From where others came is not an owner's business."""
    told = _as(bodies.AuditOut, entry)
    if within is not None:
        told.origin = ""
    return told


def counts_out(counts: Counts) -> bodies.CountsOut:
    return _as(bodies.CountsOut, counts)


def token_out(token: Token) -> bodies.TokenOut:
    return _as(bodies.TokenOut, token)
