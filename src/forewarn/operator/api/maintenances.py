"""Schedule, list, show, pause, resume and cancel maintenances, and retry all their failed orders."""

from collections.abc import Callable
from typing import Annotated

import msgspec

from forewarn.core.model import Actor, MaintenanceRequest, MaintenanceStatus
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Moment,
    Paged,
    Result,
    cursor_of,
    in_utc,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.operator.api.receipts import SaveMaintenance
from forewarn.service.control import Control
from forewarn.store import MaintenanceQuery


class MaintenancesQuery(Paged):
    """Which maintenances."""

    status: tuple[MaintenanceStatus, ...] = ()


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
    )
    if context.query.dry_run:
        plan = api.control.plan(request, caller.actor, read=api.snapshots.of)
        return Result(200, views.plan_out(plan, caller.within))
    submission = api.control.submit_once(request, caller.actor, context.once(SaveMaintenance(caller.within)))
    return Result(201, views.submission_out(submission, caller.within))


def list_maintenances(api: Api, context: CallContext) -> Result:
    query = context.query
    rows = api.store.maintenances(
        MaintenanceQuery(
            statuses=query.status or tuple(MaintenanceStatus),
            within=context.caller.within,
            before=read_cursor(query.cursor, tuple[Moment, str]),
            limit=query.limit + 1,
        )
    )
    page, last = split_page(rows, query.limit)
    return page_of(
        [views.body_of(bodies.MaintenanceRow, each) for each in page],
        cursor_of(last.created, last.id) if last else None,
    )


def get_maintenance(api: Api, context: CallContext) -> Result:
    skip, limit = context.query.skip, context.query.limit
    part = slice(skip, None if limit is None else skip + limit)
    return Result(200, api.maintenance_body(context.caller, context.path["id"], part))


def change_maintenance(change: Callable[[Control, str, Actor], None]) -> Callable[[Api, CallContext], Result]:
    """Return the call that pauses, resumes, cancels or retries a maintenance and returns it."""

    def call(api: Api, context: CallContext) -> Result:
        change(api.control, context.path["id"], context.caller.actor)
        return Result(200, api.maintenance_body(context.caller, context.path["id"]))

    return call
