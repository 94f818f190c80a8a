"""How a maintenance becomes waves, and what notice a wave gives.

Owns: which machines a request means, the split into (scope, update domain), the order of waves, NotBefore. It creates
events as Planned and says what publication would fix on them; only lifecycle moves an event.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.change import Snapshot
from forewarn.core.errors import Invalid, NotFound, Refused
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import (
    MAX_MACHINES_PER_MAINTENANCE,
    Event,
    Machine,
    Maintenance,
    MaintenanceRequest,
    Scope,
    Source,
    Targets,
)


def resolve(targets: Targets, machines: Mapping[tuple[str, str], Machine]) -> list[Machine]:
    """The machines a request means, or NotFound naming the first target that is none."""
    if targets.machines:
        for scope, name in targets.machines:
            if (scope, name) not in machines:
                raise NotFound(f"there is no machine {scope}/{name}: look at the fleet for its name and scope")
        found = [machines[key] for key in dict.fromkeys(targets.machines)]
    elif targets.hosts:
        for host in targets.hosts:
            if not any(m.host == host for m in machines.values()):
                raise NotFound(f"no machine is on host {host!r}: look at the fleet for the hosts in use")
        found = [m for m in machines.values() if m.host in targets.hosts]
    else:
        found = [m for m in machines.values() if m.scope == targets.scope]
        if targets.update_domain is not None:
            found = [m for m in found if m.update_domain == targets.update_domain]
        if not found:
            where = "" if targets.update_domain is None else f" in update domain {targets.update_domain}"
            raise NotFound(f"scope {targets.scope!r} has no machine{where}")
    if len(found) > MAX_MACHINES_PER_MAINTENANCE:
        raise Invalid(
            f"the targets are {len(found)} machines: split them, {MAX_MACHINES_PER_MAINTENANCE} fit one maintenance"
        )
    return found


def plan(
    snapshot: Snapshot, request: MaintenanceRequest, *, now: datetime, created_by: str, new_id: Callable[[], str]
) -> tuple[Maintenance, list[Event]]:
    """The maintenance and all its events, every id fixed, all of them Planned."""
    machines = resolve(request.targets, snapshot.machines)
    _refuse_other_scope_kinds(request, machines, snapshot.scopes)
    maintenance = Maintenance(
        id=new_id(),
        type=request.type,
        source=request.source,
        created=now,
        created_by=created_by,
        not_before=request.not_before,
        earliest=request.earliest,
        duration_s=request.duration_s,
        description=request.description,
        emergency=request.emergency,
        on_failure=request.on_failure,
        wake_at=now,
    )
    events: list[Event] = []
    for wave, group in _waves(request, machines):
        scope = snapshot.scopes[group[0].scope]
        event = Event(
            id=new_id(),
            maintenance_id=maintenance.id,
            wave=wave,
            position=len(events),
            scope=scope.name,
            update_domain=group[0].update_domain,
            type=request.type,
            source=request.source,
            resources=tuple(sorted(m.name for m in group)),
            description=request.description,
            duration_s=request.duration_s,
            emergency=request.emergency,
            born_approved=request.emergency or (request.source is Source.USER and scope.approve_user_events),
            approval=scope.approval,
        )
        events.append(event)
    return maintenance, events


def _waves(request: MaintenanceRequest, machines: Iterable[Machine]) -> list[tuple[int, list[Machine]]]:
    """(wave number, the machines of one event), in order.

    "One platform event per (scope, update domain) of the targets. Wave k holds the k-th targeted update domain
    (ascending) of every targeted scope." User events, Preempt and Terminate: one event per machine, one wave.
    """
    if request.source is Source.USER or EVENT_TYPES[request.type].one_event_per_machine:
        return [(1, [m]) for m in sorted(machines, key=lambda m: m.key)]
    domains: dict[str, dict[int, list[Machine]]] = defaultdict(lambda: defaultdict(list))
    for machine in machines:
        domains[machine.scope][machine.update_domain].append(machine)
    return sorted(
        (
            (1 if request.emergency else wave, group)
            for by_domain in domains.values()
            for wave, (_, group) in enumerate(sorted(by_domain.items()), start=1)
        ),
        key=lambda row: (row[0], row[1][0].scope, row[1][0].update_domain),
    )


def _refuse_other_scope_kinds(
    request: MaintenanceRequest, machines: Iterable[Machine], scopes: Mapping[str, Scope]
) -> None:
    allowed = EVENT_TYPES[request.type].scope_kinds
    for machine in machines:
        kind = scopes[machine.scope].kind
        if kind not in allowed:
            raise Refused(
                f"{request.type} needs a scope of kind {' or '.join(sorted(allowed))}:"
                f" machine {machine} is in a scope of kind {kind}"
            )


@dataclass(frozen=True, slots=True)
class Publication:
    """What publication fixes on an event."""

    published: datetime
    not_before: datetime
    minimum_notice_s: int
    needs_approval: bool


def publication(
    maintenance: Maintenance,
    events: Iterable[Event],
    scopes: Mapping[str, Scope],
    now_in: Callable[[str], datetime],
) -> dict[str, Publication]:
    """What the events of a wave are told if it is published now: one NotBefore, the latest any of them needs."""
    asked = maintenance.not_before
    notices = {}
    for event in events:
        scope, now = scopes[event.scope], now_in(event.scope)
        # "A disabled scope gets no minimum notice: NotBefore is the asked-for one, or now."
        notice_s = scope.notice_s(event.type) if scope.enabled else 0
        needed = now + timedelta(seconds=notice_s)
        notices[event.id] = (
            now,
            max(needed, asked) if asked else needed,
            notice_s,
            scope.enabled or asked is not None,
        )
    not_before = _whole_second(max(needed for _, needed, _, _ in notices.values()))
    return {
        event_id: Publication(now, not_before, notice_s, needs_approval)
        for event_id, (now, _, notice_s, needs_approval) in notices.items()
    }


def _whole_second(moment: datetime) -> datetime:
    """Rounded up: guests are shown whole seconds, and a shown NotBefore must not promise less than the notice."""
    return moment if moment.microsecond == 0 else moment.replace(microsecond=0) + timedelta(seconds=1)
