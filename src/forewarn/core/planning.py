"""Planning: how a maintenance is split into waves of events, and the notice that a wave gives.

Owns which machines a request targets, the events of its planned waves, and NotBefore; `strategy` plans the waves. It creates
events as Planned and computes the values that publication fixes; `advance` publishes them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import chain

from forewarn.core.budgets import split_by_budget
from forewarn.core.change import Snapshot
from forewarn.core.errors import Invalid, NotFound, Refused
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.fast_init import fast_init
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    MAX_MACHINES_PER_MAINTENANCE,
    Event,
    Machine,
    Maintenance,
    MaintenanceRequest,
    Order,
    OrderState,
    Scope,
    Source,
    Targets,
)
from forewarn.core.strategy import PlannedEvent, PlannedWave, Splitter, planned_waves, refuse_unknown_label
from forewarn.core.window_split import refuse_windows_that_never_meet, split_by_window

# Each splits a planned wave that another rule does not let start as a whole. They are applied in this order.
SPLITTERS: tuple[Splitter, ...] = (split_by_window, split_by_budget)


# What guests see of a drill without a description.
DRILL_DESCRIPTION = "A drill: prepare and approve as always; nothing happens to the machine."


def target_machines(
    targets: Targets, machines: Mapping[tuple[str, str], Machine], known_hosts: Collection[str] | None = None
) -> list[Machine]:
    """Return the machines that the targets name; raise NotFound for the first target that names none.

    With `known_hosts`, the hosts themselves are the targets: a host that is known need not carry a machine.
    """
    if targets.machines:
        for scope, name in targets.machines:
            if (scope, name) not in machines:
                raise NotFound(f"there is no machine {scope}/{name}: check its scope and name in the fleet")
        targeted = [machines[key] for key in dict.fromkeys(targets.machines)]
    elif targets.hosts:
        for host in targets.hosts:
            if any(m.host == host for m in machines.values()) or host in (known_hosts or ()):
                continue
            if known_hosts is not None:
                raise NotFound(f"there is no host {host!r}: the fleet does not list it, and no machine is on it")
            raise NotFound(f"no machine is on host {host!r}: check the name of the host in the fleet")
        targeted = [m for m in machines.values() if m.host in targets.hosts]
    else:
        scopes, domain = set(targets.scopes or (targets.scope,)), targets.update_domain
        targeted = [m for m in machines.values() if m.scope in scopes and domain in (None, m.update_domain)]
        for scope in sorted(scopes - {m.scope for m in targeted}):
            raise NotFound(f"scope {scope!r} has no machine{'' if domain is None else f' in update domain {domain}'}")
    if len(targeted) > MAX_MACHINES_PER_MAINTENANCE:
        raise Invalid(
            f"the targets are {len(targeted)} machines: submit several maintenances of at most"
            f" {MAX_MACHINES_PER_MAINTENANCE} machines each"
        )
    return targeted


def plan(
    snapshot: Snapshot, request: MaintenanceRequest, *, now: datetime, created_by: str, new_id: Callable[[], str]
) -> tuple[Maintenance, list[Event], list[Order]]:
    """Return the maintenance and all its events, Planned, with their final ids.

    A maintenance that works on hosts has the orders of its hosts instead: the events of a host are planned in its turn.
    """
    works_on_hosts = request.host_mode is not None
    known_hosts = snapshot.hosts if works_on_hosts else None
    machines = target_machines(request.named_targets, snapshot.machines, known_hosts)
    _refuse_other_scope_kinds(request, machines, snapshot.scopes)
    refuse_windows_that_never_meet(snapshot, request.strategy.windows, {m.scope for m in machines}, now)
    maintenance = Maintenance(
        id=new_id(),
        type=request.type,
        source=request.source,
        created=now,
        created_by=created_by,
        not_before=request.not_before,
        earliest=request.earliest,
        duration_s=request.duration_s,
        description=request.description or (DRILL_DESCRIPTION if request.drill_hold_s else ""),
        emergency=request.emergency,
        on_failure=request.on_failure,
        targets=request.targets,
        wake_at=now,
        host_mode=request.host_mode,
        return_machines=request.return_machines,
        to_host=request.to_host,
        strategy=request.strategy,
        not_after=request.not_after,
        drill_hold_s=request.drill_hold_s,
    )
    if not works_on_hosts:
        return maintenance, plan_events(snapshot, maintenance, machines, new_id=new_id), []
    orders = [
        Order(
            id=new_id(),
            issued=now,
            state=OrderState.PLANNED,
            host=host,
            maintenance_id=maintenance.id,
            position=position,
        )
        for position, host in enumerate(dict.fromkeys(request.named_targets.hosts), start=1)
    ]
    return maintenance, [], orders


def plan_events(
    snapshot: Snapshot,
    maintenance: Maintenance,
    machines: Iterable[Machine],
    *,
    new_id: Callable[[], str],
    after_wave: int = 0,
    first_position: int = 0,
    host: str = "",
    to_host: str = "",
    splitters: Iterable[Splitter] = SPLITTERS,
) -> list[Event]:
    """Return events of a maintenance for these machines, Planned, in waves after the wave `after_wave`."""
    events: list[Event] = []
    for number, wave in enumerate(_waves(snapshot, maintenance, machines, splitters), start=after_wave + 1):
        for planned in wave:
            scope = snapshot.scopes[planned.scope]
            events.append(
                Event(
                    id=new_id(),
                    maintenance_id=maintenance.id,
                    wave=number,
                    position=first_position + len(events),
                    scope=scope.name,
                    update_domain=planned.update_domain,
                    type=maintenance.type,
                    source=maintenance.source,
                    resources=tuple(sorted(m.name for m in planned.machines)),
                    description=maintenance.description,
                    duration_s=maintenance.duration_s,
                    emergency=maintenance.emergency,
                    born_approved=maintenance.emergency
                    or (maintenance.source is Source.USER and scope.approve_user_events),
                    approval_mode=scope.approval,
                    host=host,
                    to_host=to_host,
                    group=planned.group,
                )
            )
    return events


def _waves(
    snapshot: Snapshot, maintenance: Maintenance, machines: Iterable[Machine], splitters: Iterable[Splitter]
) -> list[PlannedWave]:
    """Return the waves in order.

    User events, Preempt and Terminate: one event per machine, one wave. An emergency has one wave too. Any other maintenance
    has the waves of its strategy, split where other rules ask for it.
    """
    if maintenance.source is Source.USER or EVENT_TYPES[maintenance.type].one_event_per_machine:
        ordered = sorted(machines, key=lambda m: m.key)
        return [[PlannedEvent("", m.scope, m.update_domain, (m,)) for m in ordered]] if ordered else []
    waves = planned_waves(maintenance.strategy, machines, snapshot.hosts)
    refuse_unknown_label(maintenance.strategy, waves)
    if maintenance.emergency:
        together = sorted(chain.from_iterable(waves), key=lambda planned: (planned.scope, planned.update_domain))
        return [together] if together else []
    for splitter in splitters:
        waves = [part for wave in waves for part in splitter(snapshot, maintenance, wave)]
    return waves


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


@fast_init
@dataclass(frozen=True, slots=True)
class Publication:
    """The values that publication fixes on an event."""

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
    """Return what publication now would fix on each event of a wave: one NotBefore, the latest that any of them needs."""
    notices = {}
    for event in events:
        requested = event.requested_not_before or maintenance.not_before
        scope, now = scopes[event.scope], now_in(event.scope)
        # A disabled scope gets no minimum notice: NotBefore is the requested one, or now.
        notice_s = scope.notice_s(event.type) if scope.enabled else 0
        needed = now + timedelta(seconds=notice_s)
        notices[event.id] = (
            now,
            max(needed, requested) if requested else needed,
            notice_s,
            scope.enabled or requested is not None,
        )
    not_before = _whole_second(max(needed for _, needed, _, _ in notices.values()))
    return {
        event_id: Publication(now, not_before, notice_s, needs_approval)
        for event_id, (now, _, notice_s, needs_approval) in notices.items()
    }


def due_notice_s(wave: Iterable[Event], scopes: Mapping[str, Scope]) -> int | None:
    """Return the minimum notice that an unpublished wave would give as the scopes are now; None if a scope is gone."""
    due = []
    for event in wave:
        scope = scopes.get(event.scope)
        if scope is None:
            return None
        due.append(0 if event.born_approved or not scope.enabled else scope.notice_s(event.type))
    return max(due, default=None)


def _whole_second(moment: datetime) -> datetime:
    """Round up: guests see whole seconds, and the NotBefore they see must not be earlier than the notice requires."""
    return moment if moment.microsecond == 0 else moment.replace(microsecond=0) + timedelta(seconds=1)
