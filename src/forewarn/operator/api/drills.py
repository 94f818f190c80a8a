"""Schedule drills, list them with their readiness, and report on one."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime

from forewarn.core.errors import Forbidden, NotFound
from forewarn.core.model import Event, Maintenance, MaintenanceRequest, Targets
from forewarn.core.readiness import MachineReadiness, drill_result, machine_readiness
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import Identity
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Moment,
    Result,
    cursor_of,
    in_utc,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.operator.api.receipts import SaveMaintenance
from forewarn.store import Focus, MaintenanceQuery


def post_drill(api: Api, context: CallContext) -> Result:
    body, caller = context.body, context.caller
    targets = api.targets(body.targets)
    _refuse_foreign(caller, targets)
    request = MaintenanceRequest(
        type=body.type,
        targets=targets,
        not_before=in_utc(body.not_before, "not_before"),
        description=body.description,
        drill_hold_s=body.hold_s,
    )
    if context.query.dry_run:
        return Result(
            200, views.plan_out(api.control.plan(request, caller.actor, read=api.snapshots.of), caller.within)
        )
    submission = api.control.submit_once(request, caller.actor, context.once(SaveMaintenance(caller.within)))
    return Result(201, views.submission_out(submission, caller.within))


def _refuse_foreign(caller: Identity, targets: Targets) -> None:
    """Refuse an owner's drill unless the owner names own scopes, or machines of them."""
    if caller.within is None:
        return
    named = {targets.scope, *targets.scopes, *(scope for scope, _ in targets.machines)} - {""}
    if not named or not all(caller.sees(scope) for scope in named):
        raise Forbidden(f"an owner drills own scopes, or machines of them: {', '.join(caller.within)}")


def list_drills(api: Api, context: CallContext) -> Result:
    query, within = context.query, context.caller.within
    before = read_cursor(query.cursor, tuple[Moment, str])
    found = api.store.drills(MaintenanceQuery(within=within, before=before, limit=query.limit + 1))
    page, last = split_page(found, query.limit)
    events = _events_of(api, page, within)
    rows = [_row(each, events[each.id], machine_readiness(events[each.id], {})) for each in page]
    return page_of(rows, cursor_of(last.created, last.id) if last is not None else None)


def cancel_drill(api: Api, context: CallContext) -> Result:
    """Cancel a drill; an owner one that the owner may schedule."""
    drill, _ = _drill(api, context)
    if not all(context.caller.sees(event.scope) for event in _events_of(api, [drill], None)[drill.id]):
        raise Forbidden("this drill is in other scopes too: an owner cancels drills of own scopes only")
    api.control.cancel_maintenance(drill.id, context.caller.actor)
    return get_drill(api, context)


def _drill(api: Api, context: CallContext) -> tuple[Maintenance, list[Event]]:
    """Return the drill that the path names, with the events that the caller may see."""
    drill = api.store.maintenance(context.path["id"])
    events = _events_of(api, [drill], context.caller.within)[drill.id] if drill is not None else []
    if drill is None or not drill.drill_hold_s or not events:
        raise NotFound(f"there is no drill {context.path['id']}")
    return drill, events


def get_drill(api: Api, context: CallContext) -> Result:
    drill, events = _drill(api, context)
    seen: Mapping[str, Mapping[str, datetime]] = {event.id: api.store.first_seen(event.id) for event in events}
    machines = machine_readiness(events, seen)
    row = _row(drill, events, machines)
    machines.sort(key=lambda each: (each.ready is True, each.ready is None, each.scope, each.name))
    shown = [bodies.MachineReadinessOut(**asdict(each)) for each in machines]
    return Result(200, bodies.DrillOut(**{name: getattr(row, name) for name in row.__struct_fields__}, machines=shown))


def _events_of(api: Api, drills: Collection[Maintenance], within: tuple[str, ...] | None) -> Mapping[str, list[Event]]:
    """Return the events of these drills that the caller may see, without those that were rescheduled."""
    snapshot = api.store.snapshot(Focus(maintenances=tuple(each.id for each in drills)))
    events: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(snapshot.events.values(), key=lambda each: each.position):
        if not event.replaced_by and (within is None or event.scope in within):
            events[event.maintenance_id].append(event)
    return events


def _row(drill: Maintenance, events: list[Event], machines: list[MachineReadiness]) -> bodies.DrillRow:
    return bodies.DrillRow(
        id=drill.id,
        type=drill.type,
        status=drill.status,
        created=drill.created,
        created_by=drill.created_by,
        ended=drill.ended,
        description=drill.description,
        hold_s=drill.drill_hold_s,
        scopes=sorted({event.scope for event in events}),
        readiness=bodies.ReadinessOut(**asdict(drill_result(machines))),
    )
