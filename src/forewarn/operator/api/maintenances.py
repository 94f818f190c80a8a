"""Schedule, list, show, pause, resume, continue and cancel maintenances, retry their failed orders, and skip one host."""

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.estimate import expected_end
from forewarn.core.model import Actor, HostMode, Maintenance, MaintenanceRequest, MaintenanceStatus, Order, Strategy
from forewarn.core.placement import Hosts
from forewarn.core.plan_warnings import target_warnings
from forewarn.core.window_rules import may_limit
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Moment,
    Result,
    Searched,
    cursor_of,
    in_utc,
    page_of,
    read_cursor,
    searched,
)
from forewarn.operator.api.receipts import SaveMaintenance
from forewarn.service.control import Control, Submission
from forewarn.service.placement import hosts_in_maintenance, planned_targets
from forewarn.store import Focus, MaintenanceQuery

MAX_LISTED_TARGETS = 20
# Of each machine in a plan.
MAX_PLANNED_TARGETS = 3

Key = tuple[datetime, str]


class MaintenancesQuery(Searched):
    """Which maintenances; `on_hosts` selects those that work on hosts."""

    status: tuple[MaintenanceStatus, ...] = ()
    on_hosts: bool = False


class PartQuery(RequestBody):
    """Of its events, `limit` after the first `skip`; by default all."""

    skip: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


def post_maintenance(api: Api, context: CallContext) -> Result:
    body: bodies.MaintenanceIn = context.body
    caller = context.caller
    request = MaintenanceRequest(
        type=body.type,
        targets=api.targets(body.targets),
        source=body.source,
        not_before=in_utc(body.not_before, "not_before"),
        earliest=in_utc(body.earliest, "earliest"),
        duration_s=body.duration_s,
        description=body.description,
        emergency=body.emergency,
        on_failure=body.on_failure,
        host_mode=body.host_mode,
        return_machines=body.return_machines,
        to_host=body.to_host,
        strategy=Strategy(**{**msgspec.structs.asdict(body.strategy), "windows": tuple(body.strategy.windows)}),
        not_after=in_utc(body.not_after, "not_after"),
    )
    if context.query.dry_run:
        plan = api.control.plan(request, caller.actor, read=api.snapshots.of)
        shown = views.plan_out(plan, caller.within)
        if request.host_mode is HostMode.EVACUATE:
            _add_targets(api, plan, shown)
        return Result(200, shown)
    submission = api.control.submit_once(request, caller.actor, context.once(SaveMaintenance(caller.within)))
    return Result(201, views.submission_out(submission, caller.within))


def _add_targets(api: Api, plan: Submission, shown: bodies.SubmittedMaintenance) -> None:
    """Show where the machines of each host may go, and warn about machines that may go nowhere."""
    hosts = Hosts(rows=api.store.hosts(), in_maintenance=hosts_in_maintenance(api.store))
    for turn, host in enumerate(shown.hosts, 1):
        leaving = views.machines_of_host(plan.snapshot, host.host)
        later = {other.host for other in shown.hosts[turn:]}
        found = planned_targets(api.store, leaving, shown.to_host, emptied_next=later)
        host.targets = {name: list(targets[:MAX_PLANNED_TARGETS]) for name, targets in found.items()}
        warnings = target_warnings(found, hosts, host=host.host, to_host=shown.to_host)
        shown.warnings += [views.body_of(bodies.Problem, each) for each in warnings]


def list_maintenances(api: Api, context: CallContext) -> Result:
    query, within = context.query, context.caller.within

    def read(before: Key | None, limit: int) -> list[tuple[Key, Maintenance | None]]:
        statuses = query.status or tuple(MaintenanceStatus)
        wanted = MaintenanceQuery(statuses=statuses, on_hosts=query.on_hosts, within=within, before=before, limit=limit)
        if not query.text:
            return [((each.created, each.id), each) for each in api.store.maintenances(wanted)]
        keys = api.store.maintenance_keys(wanted)
        found = api.store.search_maintenances([i for _, i in keys], query.text, within)
        # A maintenance that does not match still counts as read.
        return [(key, found.get(key[1])) for key in keys]

    start = read_cursor(query.cursor, tuple[Moment, str])
    items, last = searched(
        read, lambda each: query.text if each else "", text=query.text, start=start, limit=query.limit
    )
    page = [each for each in items if each is not None]
    return page_of(_rows(api, page, within), cursor_of(*last) if last else None)


def _rows(api: Api, maintenances: list[Maintenance], within: tuple[str, ...] | None) -> list[bodies.MaintenanceRow]:
    """Show maintenances with their progress: the store counts the events of the whole page in one query and returns sums."""
    ids = [each.id for each in maintenances]
    waves = api.store.wave_progress(ids, None)
    seen = waves if within is None else api.store.wave_progress(ids, within)
    of_hosts = tuple(each.id for each in maintenances if each.host_mode is not None)
    focus = Focus(maintenances=of_hosts, whole_maintenances=False, open_events=False)
    state, rules, now = api.store.snapshot(focus), api.store.fleet_rules(), api.clock.now()
    held = state.hold is not None or state.store_hold is not None
    host_orders: dict[str, list[Order]] = defaultdict(list)
    for order in state.orders.values():
        host_orders[order.maintenance_id].append(order)
    return [
        views.maintenance_row(
            each,
            seen.get(each.id, ()),
            waves.get(each.id, ()),
            within=within,
            estimated_end=expected_end(
                each,
                waves.get(each.id, ()),
                held=held,
                start_of=_unknown_start if may_limit(rules, each, None, now) else _any_start,
                now=now,
            ),
            host_orders=host_orders[each.id],
            max_targets=MAX_LISTED_TARGETS,
        )
        for each in maintenances
    ]


def _any_start(_: int, wanted: datetime) -> datetime:
    return wanted


def _unknown_start(*_: object) -> None:
    """Return None: which windows and no-go times limit a wave depends on its events, and a list does not read them."""


def get_maintenance(api: Api, context: CallContext) -> Result:
    skip, limit = context.query.skip, context.query.limit
    part = slice(skip, None if limit is None else skip + limit)
    return Result(200, api.maintenance_body(context.caller, context.path["id"], part))


def change_maintenance(change: Callable[[Control, str, Actor], None]) -> Callable[[Api, CallContext], Result]:
    """Return the call that pauses, resumes, continues, cancels or retries a maintenance and returns it."""

    def call(api: Api, context: CallContext) -> Result:
        change(api.control, context.path["id"], context.caller.actor)
        return Result(200, api.maintenance_body(context.caller, context.path["id"]))

    return call


def skip_host(api: Api, context: CallContext) -> Result:
    api.control.skip_host(context.path["id"], context.path["host"], context.caller.actor)
    return Result(200, api.maintenance_body(context.caller, context.path["id"]))


def reschedule_host(api: Api, context: CallContext) -> Result:
    not_before = in_utc(context.body.not_before, "not_before")
    api.control.reschedule_host(context.path["id"], context.path["host"], not_before, context.caller.actor)
    return Result(200, api.maintenance_body(context.caller, context.path["id"]))
