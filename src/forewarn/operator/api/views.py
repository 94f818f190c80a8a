"""Bodies of responses, built from the core's data as one caller may see it. Pure; decides nothing."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import msgspec

from forewarn.core import fleet
from forewarn.core.amounts import parse_amount
from forewarn.core.change import Snapshot
from forewarn.core.errors import NotFound
from forewarn.core.estimate import expected_end
from forewarn.core.fleet_difference import Difference
from forewarn.core.hooks import hook_state
from forewarn.core.host_orders import OVER
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.hosts import host_state
from forewarn.core.model import (
    ENDED,
    UNSTARTED,
    AuditEntry,
    Event,
    Host,
    Machine,
    Maintenance,
    MaintenanceStatus,
    OnFailure,
    Order,
    OrderState,
    Scope,
    Status,
    StoreHold,
    Targets,
)
from forewarn.core.needs_operator import needs_operator
from forewarn.core.operator_model import Hook, HookDelivery, Token
from forewarn.core.planning import due_notice_s
from forewarn.core.preview import forecast
from forewarn.core.progress import Counted, WaveProgress, host_progress, total, wave_progress
from forewarn.core.reason import MAX_NAMED, Waiting
from forewarn.core.waiting import waiting_for_each
from forewarn.core.window_rules import starts_of_waves
from forewarn.operator.api import bodies
from forewarn.service.control import ResumeEffects, Submission

ORDER_ENTRIES = {OrderState.DONE: "order finished", OrderState.FAILED: "order failed"}
# Reasons to wait whose cause is another maintenance, or the store as a whole.
CAUSED_BY_OTHERS = frozenset({"machine", "update-domain", "queue", "budget", "host-busy", "store-held", "unresolved"})
OUTSIDE_SCOPES = "it waits for something outside your scopes"

S = TypeVar("S")


def body_of(shape: type[S], thing: object) -> S:
    """Return a body of the type `shape` with the attributes of the same names."""
    return msgspec.convert(thing, shape, from_attributes=True)


def machine_out(machine: Machine, last_seen: datetime | None) -> bodies.MachineOut:
    body = body_of(bodies.MachineOut, machine)
    body.last_seen = last_seen
    return body


def fleet_out(stated: fleet.Fleet) -> bodies.Fleet:
    return bodies.Fleet(
        scopes=[body_of(bodies.FleetScope, scope) for scope in stated.scopes.values()],
        machines=[body_of(bodies.FleetMachine, machine) for machine in stated.machines.values()],
        hosts=[body_of(bodies.FleetHost, host) for host in stated.hosts.values()],
    )


def scope_in(name: str, body: bodies.ScopeIn) -> Scope:
    return Scope(**{**msgspec.structs.asdict(body), "windows": tuple(body.windows), "name": name})


def machine_in(scope: str, name: str, body: bodies.MachineIn) -> Machine:
    fields = msgspec.structs.asdict(body)
    return Machine(**{**fields, "addresses": tuple(body.addresses), "scope": scope, "name": name})


def host_out(host: Host, machines: int, *, whole: bool, in_maintenance: bool, cordon_left: bool) -> bodies.HostOut:
    """Show a host, to an owner only its name and the number of the owner's machines on it."""
    if not whole:
        return bodies.HostOut(name=host.name, machines=machines)
    return bodies.HostOut(
        name=host.name,
        machines=machines,
        state=host_state(host, in_maintenance=in_maintenance),
        fault_domain=host.fault_domain,
        labels=dict(host.labels),
        connection=host.connection,
        listed=host.listed,
        cordoned=host.cordoned,
        cordoned_by=host.cordoned_by,
        cordon_left=cordon_left,
    )


def host_in(body: bodies.FleetHost) -> Host:
    return Host(**msgspec.structs.asdict(body), listed=True)


def change_out(diff: Difference, *, dry_run: bool) -> bodies.FleetChange:
    return bodies.FleetChange(
        lines=list(diff.lines),
        warnings=list(diff.warnings),
        dry_run=dry_run,
        removed_scopes=len(diff.removed_scopes),
        removed_machines=len(diff.removed_machines),
        removed_hosts=len(diff.removed_hosts),
        large_removal=diff.large_removal,
    )


class EventBodies:
    """Builds the bodies of some events of one snapshot; `within` are the scopes of an owner, None for everyone else."""

    def __init__(
        self, snapshot: Snapshot, event_ids: Iterable[str], *, within: Collection[str] | None, now: datetime
    ) -> None:
        self._snapshot = snapshot
        self._waiting = waiting_for_each(snapshot, event_ids, now)
        self._within = within
        self._notice_s: dict[tuple[str, int], int | None] = {}

    @cached_property
    def _waves(self) -> dict[tuple[str, int], list[Event]]:
        """The events that have not ended, by maintenance and wave."""
        waves: dict[tuple[str, int], list[Event]] = {}
        for event in self._snapshot.events.values():
            if event.status not in ENDED:
                waves.setdefault((event.maintenance_id, event.wave), []).append(event)
        return waves

    def event(self, event: Event, timeline: list[bodies.TimelineEntry] | None = None) -> bodies.EventOut:
        order = self._snapshot.orders.get(event.id)
        return bodies.EventOut(
            id=event.id,
            maintenance_id=event.maintenance_id,
            wave=event.wave,
            group=event.group if self._within is None else "",
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
            waiting_for=[self.reason(reason) for reason in self._waiting.get(event.id, ())],
            timeline=short_timeline(event, order) if timeline is None else timeline,
            replaces=event.replaces,
            # The events of a host that was rescheduled are planned later.
            replaced_by=event.replaced_by if event.replaced_by != event.maintenance_id else "",
            reschedules=event.reschedules,
            requested_not_before=event.requested_not_before,
        )

    def _notice(self, event: Event) -> int | None:
        """Return the notice given; before publication, the notice its wave would get as the scopes are now."""
        if event.published is not None and event.not_before is not None:
            return int((event.not_before - event.published) / timedelta(seconds=1))
        if event.status in ENDED:
            return None
        wave = (event.maintenance_id, event.wave)
        if wave not in self._notice_s:
            self._notice_s[wave] = due_notice_s(self._waves.get(wave, ()), self._snapshot.scopes)
        return self._notice_s[wave]

    def coming_notice(self, event: Event) -> int | None:
        """Return the notice that a planned event will get, if time alone holds back its publication; otherwise None."""
        waits = [reason for reason in self._waiting[event.id] if reason.code != "ticker"]
        by_time = event.status is Status.PLANNED and all(reason.until is not None for reason in waits)
        return self._notice(event) if by_time else None

    def waits_for_operator(self, event: Event) -> bool:
        """Whether the event waits until an operator resolves a failure, maybe of another maintenance, or lets it continue."""
        return any(reason.code in ("unresolved", "failures", "continue") for reason in self._waiting[event.id])

    def reasons(self, reasons: Iterable[Waiting], most: int) -> list[bodies.WaitingOut]:
        """Show the first reasons; an owner sees those of the owner's scopes first."""
        if self._within is not None:
            reasons = sorted(reasons, key=lambda reason: not self._all_within(reason))
        return [self.reason(reason) for reason in islice(reasons, most)]

    def reason(self, reason: Waiting) -> bodies.WaitingOut:
        """Show a reason; an owner does not learn what happens outside the owner's scopes."""
        if self._within is not None and not self._all_within(reason):
            return bodies.WaitingOut(code=reason.code, message=OUTSIDE_SCOPES, until=reason.until)
        return bodies.WaitingOut(
            code=reason.code,
            message=reason.message,
            until=reason.until,
            machines=list(reason.machines),
            events=list(reason.events),
            orders=list(reason.orders),
        )

    def _all_within(self, reason: Waiting) -> bool:
        """Whether the reason concerns the owner's scopes alone. A host may carry machines of every scope."""
        if reason.code.startswith("host-") or reason.code == "no-target":
            return False
        own = self._within or ()
        events = (self._snapshot.events.get(event_id) for event_id in reason.events)
        return (
            not reason.orders
            and all(e is not None and e.scope in own for e in events)
            and all(any(scope in own for scope in scopes) for scopes in reason.rules_of)
        )


def maintenance_row(
    maintenance: Maintenance,
    waves: Iterable[WaveProgress],
    all_waves: Iterable[WaveProgress],
    *,
    within: Collection[str] | None,
    estimated_end: datetime | None,
    host_orders: Collection[Order],
    max_targets: int | None = None,
) -> bodies.MaintenanceRow:
    """Show a maintenance without its events; `waves` are the progress that the caller may see.

    A failure in any scope or on any host holds the whole maintenance, so `held` follows from `all_waves` and `host_orders`. What
    the later hosts of a maintenance need is not known before their turn, so such a maintenance has no estimated end.
    """
    on_hosts = host_progress(host_orders)
    held = _is_held(maintenance, total(all_waves), on_hosts)
    shows_hosts = within is None and maintenance.host_mode is not None
    derived: dict[str, Any] = {
        "targets": targets_out(maintenance.targets, within, max_targets) if maintenance.targets is not None else None,
        "progress": body_of(bodies.ProgressOut, total(waves)),
        "held": held,
        "awaits_continue": maintenance.status is MaintenanceStatus.PAUSED
        and not (held or maintenance.paused)
        and maintenance.continued_after < maintenance.strategy.pause_after,
        "strategy": body_of(bodies.StrategyOut, maintenance.strategy),
        "estimated_end": estimated_end if maintenance.host_mode is None else None,
        "to_host": maintenance.to_host if within is None else "",
        "failed_hosts": on_hosts.failed if within is None else 0,
        "host_progress": body_of(bodies.ProgressOut, on_hosts) if shows_hosts else None,
    }
    stored = {
        name: getattr(maintenance, name) for name in bodies.MaintenanceRow.__struct_fields__ if name not in derived
    }
    return bodies.MaintenanceRow(**stored, **derived)


def _is_held(maintenance: Maintenance, events: Counted, hosts: Counted) -> bool:
    """Whether failures stop what has not started: any failure, or with on_failure = continue as many as max_failures."""
    failed, limit = events.failed + hosts.failed, maintenance.strategy.max_failures
    if maintenance.on_failure is OnFailure.CONTINUE and limit:
        return failed >= parse_amount(limit).of(sum(asdict(events).values()) + sum(asdict(hosts).values()))
    return failed > 0 and maintenance.on_failure is OnFailure.HOLD


def targets_out(targets: Targets, within: Collection[str] | None, most: int | None = None) -> bodies.TargetsOut:
    """Show the first `most` names. An owner sees the machines and scopes of their own, and no hosts.

    An owner does not see patterns that name scopes of others.
    """
    machines = targets.machines if within is None else [key for key in targets.machines if key[0] in within]
    named = targets.scopes or ((targets.scope,) if targets.scope else ())
    scopes = [scope for scope in named if within is None or scope in within]
    hosts = list(targets.hosts) if within is None else []
    return bodies.TargetsOut(
        count=len(machines) + len(scopes) + len(hosts),
        machines=[f"{scope}/{name}" for scope, name in machines[:most]],
        scopes=scopes[:most],
        update_domain=targets.update_domain,
        hosts=hosts[:most],
        labels=targets.labels,
        names=[each for each in targets.names if within is None or _names_own(each, within)][:most],
        everything=targets.everything,
        host_labels=targets.host_labels if within is None else "",
    )


def _names_own(pattern: str, within: Iterable[str]) -> bool:
    scope, slash, _ = pattern.rpartition("/")
    return not slash or any(fnmatchcase(own, scope) for own in within)


def maintenance_out(
    snapshot: Snapshot,
    maintenance_id: str,
    *,
    within: Collection[str] | None,
    now: datetime,
    part: slice = slice(None),
) -> bodies.MaintenanceOut:
    """Show `part` of the events that the caller may see, in their order, and count all of them."""
    maintenance = snapshot.maintenances.get(maintenance_id)
    events = [
        event
        for event in snapshot.events.values()
        if event.maintenance_id == maintenance_id and (within is None or event.scope in within)
    ]
    host_orders = sorted(
        (order for order in snapshot.orders.values() if order.host and order.maintenance_id == maintenance_id),
        key=lambda order: order.position,
    )
    of_hosts = host_orders if within is None else []
    if maintenance is None or not (events or of_hosts):
        raise NotFound(f"there is no maintenance {maintenance_id}")
    events.sort(key=lambda event: event.position)
    all_events = [event for event in snapshot.events.values() if event.maintenance_id == maintenance_id]
    unstarted = min(
        (event for event in all_events if event.status in UNSTARTED), key=lambda e: e.position, default=None
    )
    explained = [*events[part], unstarted] if unstarted is not None else events[part]
    builder = EventBodies(snapshot, [event.id for event in explained], within=within, now=now)
    waves: dict[int, list[bodies.EventOut]] = {}
    for event in events[part]:
        waves.setdefault(event.wave, []).append(builder.event(event))
    all_waves = wave_progress(all_events, snapshot.orders)
    held = snapshot.hold is not None or snapshot.store_hold is not None
    held = held or (unstarted is not None and builder.waits_for_operator(unstarted))
    row = maintenance_row(
        maintenance,
        all_waves if within is None else wave_progress(events, snapshot.orders),
        all_waves,
        within=within,
        estimated_end=expected_end(
            maintenance,
            all_waves,
            held=held,
            start_of=starts_of_waves(snapshot, maintenance, all_events, now),
            now=now,
            notice_s=builder.coming_notice(unstarted) if unstarted is not None else None,
        ),
        host_orders=host_orders,
    )
    waiting = waiting_for_hosts(snapshot, maintenance_id, now) if of_hosts else {}
    return bodies.MaintenanceOut(
        **{key: getattr(row, key) for key in row.__struct_fields__},
        needs_operator=builder.reasons(needs_operator(snapshot, maintenance_id, now), MAX_NAMED),
        event_counts=dict(Counter(event.status for event in events)),
        waves=[bodies.WaveOut(number=number, events=shown) for number, shown in sorted(waves.items())],
        hosts=[
            _host_work(snapshot, order, [builder.reason(each) for each in waiting[order.host]]) for order in of_hosts
        ],
    )


def _host_work(snapshot: Snapshot, order: Order, waiting: list[bodies.WaitingOut]) -> bodies.HostWorkOut:
    return bodies.HostWorkOut(
        host=order.host,
        order_id=order.id,
        state=order.state,
        attempt=order.attempt,
        node=order.node,
        deadline=order.deadline,
        ended=order.ended,
        reason=order.reason,
        machines=[] if order.state in OVER else sorted(str(m) for m in machines_of_host(snapshot, order.host)),
        waiting_for=waiting,
        reschedules=order.reschedules,
        requested_not_before=order.requested_not_before,
    )


def machines_of_host(snapshot: Snapshot, host: str) -> list[Machine]:
    return [machine for machine in snapshot.machines.values() if machine.host == host]


def submission_out(submission: Submission, within: Collection[str] | None) -> bodies.SubmittedMaintenance:
    body = maintenance_out(submission.snapshot, submission.maintenance_id, within=within, now=submission.at)
    for event in (event for wave in body.waves for event in wave.events):
        event.hosts = _hosts(submission.snapshot, event)
    return bodies.SubmittedMaintenance(
        **msgspec.structs.asdict(body), warnings=[body_of(bodies.Problem, each) for each in submission.warnings]
    )


def only_event(body: bodies.SubmittedMaintenance) -> bodies.SubmittedEvent:
    """Return the event of a maintenance of one machine."""
    return bodies.SubmittedEvent(**msgspec.structs.asdict(body.waves[0].events[0]), warnings=body.warnings)


def plan_out(plan: Submission, within: Collection[str] | None) -> bodies.SubmittedMaintenance:
    """Show a dry run: no ids and no absolute times; an event that would start at once has a notice of 0.

    The exceptions are `estimated_end` and `calendar`, which say when things would happen if it were scheduled now.

    Of the reasons to wait only those that other maintenances cause are shown: the others follow from the plan itself.
    """
    body = submission_out(plan, within)
    # An owner plans nothing but drills of the owner's scopes.
    if within is None or body.drill_hold_s:
        body.calendar = body_of(bodies.CalendarOut, forecast(plan.snapshot, plan.maintenance_id, plan.at))
        # The work on hosts takes a time of its own.
        if body.duration_s > 0 and body.host_mode is None:
            body.estimated_end = body.calendar.latest_end
    body.id = body.created = body.not_before = body.earliest = body.not_after = None
    body.status = MaintenanceStatus.PLANNED
    event_count = sum(body.event_counts.values())
    body.event_counts = {Status.PLANNED: event_count}
    body.progress = body_of(bodies.ProgressOut, Counted(left=event_count))
    body.needs_operator = []
    for host in body.hosts:
        host.order_id, host.state, host.deadline = None, OrderState.PLANNED, None
        host.waiting_for = [reason for reason in host.waiting_for if reason.code in CAUSED_BY_OTHERS]
    for event in (event for wave in body.waves for event in wave.events):
        event.id = event.maintenance_id = event.published = event.not_before = event.started = None
        event.status = Status.PLANNED
        event.waiting_for = [reason for reason in event.waiting_for if reason.code in CAUSED_BY_OTHERS]
        event.timeline = []
    return body


def _hosts(snapshot: Snapshot, event: bodies.EventOut) -> list[str]:
    machines = (snapshot.machines.get((event.scope, name)) for name in event.resources)
    return sorted({machine.host for machine in machines if machine is not None and machine.host})


def short_timeline(event: Event, order: Order | None) -> list[bodies.TimelineEntry]:
    """Build the timeline of an event in a list, from the event itself."""
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
    """Build the timeline of one event from the audit, oldest first: every attempt, and when each machine first saw it."""
    timeline = [
        bodies.TimelineEntry(at=e.at, what=e.action.removeprefix("event "), who=e.who, detail=e.detail)
        for e in reversed(newest_first)
    ]
    if order is not None and order.output:
        for entry in reversed(timeline):
            if entry.what in ORDER_ENTRIES.values():
                entry.detail = _result(order)
                break
    timeline += [bodies.TimelineEntry(at=at, what="seen", who=machine) for machine, at in seen.items()]
    return sorted(timeline, key=lambda entry: entry.at)


def _result(order: Order) -> str:
    return "\n".join(text for text in (order.reason, order.output) if text)


def order_out(order: Order, of: Event | Maintenance) -> bodies.OrderOut:
    """Show the order of an event, or the order of a host in its maintenance."""
    return bodies.OrderOut(
        id=order.id,
        maintenance_id=of.maintenance_id if isinstance(of, Event) else of.id,
        state=order.state,
        scope=of.scope if isinstance(of, Event) else "",
        type=of.type,
        machines=[f"{of.scope}/{name}" for name in of.resources] if isinstance(of, Event) else [],
        issued=order.issued,
        deadline=order.deadline,
        attempt=order.attempt,
        node=order.node,
        taken=order.taken,
        ended=order.ended,
        reason=order.reason,
        output=order.output,
        host=order.host,
        phase=order.phase,
    )


def audit_out(entry: AuditEntry, within: Collection[str] | None = None) -> bodies.AuditOut:
    """Show an audit entry; an owner is not shown where requests came from."""
    body = body_of(bodies.AuditOut, entry)
    if within is not None:
        body.origin = ""
    return body


def token_out(token: Token, last_used: datetime | None = None) -> bodies.TokenOut:
    body = body_of(bodies.TokenOut, token)
    body.last_used = last_used
    return body


def hook_out(hook: Hook) -> bodies.HookOut:
    fields = {name: getattr(hook, name) for name in bodies.HookOut.__struct_fields__ if hasattr(hook, name)}
    return bodies.HookOut(
        **fields,
        on=list(hook.kinds),
        state=hook_state(hook),
        gap=bodies.HookGap(after=hook.gap_after, until=hook.gap_until) if hook.gap_until else None,
    )


def delivery_out(delivery: HookDelivery) -> bodies.HookDeliveryOut:
    return bodies.HookDeliveryOut(
        entry=delivery.audit_id,
        type=delivery.kind,
        at=delivery.at,
        attempts=delivery.attempts,
        delivered=delivery.delivered,
        status=delivery.status,
        error=delivery.error,
        took_ms=delivery.took_ms,
    )


def store_hold_out(hold: StoreHold | None) -> bodies.StoreHoldOut | None:
    return None if hold is None else body_of(bodies.StoreHoldOut, hold)


def resume_effects_out(effects: ResumeEffects) -> bodies.ResumeEffectsOut:
    return bodies.ResumeEffectsOut(
        held=store_hold_out(effects.hold),
        starts=[body_of(bodies.StartOut, event) for event in effects.starts],
        orders=[
            *(order_out(order, event) for order, event in effects.orders),
            *(order_out(order, maintenance) for order, maintenance in effects.host_orders),
        ],
        more=effects.more,
    )
