"""Schedule, list, show, pause, resume and cancel maintenances."""

from collections.abc import Callable
from typing import Annotated

import msgspec

from forewarn.core.model import Actor, MaintenanceStatus, Request, Snapshot
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
    ok,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.service.control import Control
from forewarn.store import MaintenanceQuery


class MaintenancesQuery(Paged):
    """Which maintenances."""

    status: tuple[MaintenanceStatus, ...] = ()


def post_maintenance(api: Api, context: CallContext) -> Result:
    said: bodies.MaintenanceIn = context.body
    request = Request(
        type=said.type,
        targets=api.targets(said.targets),
        source=said.source,
        not_before=in_utc(said.not_before, "not_before"),
        earliest=in_utc(said.earliest, "earliest"),
        duration_s=said.duration_s,
        description=said.description,
        emergency=said.emergency,
        on_failure=said.on_failure,
    )
    if context.query.dry_run:
        return ok(api.plan_body(context, request))
    told: list[bytes] = []

    def answer(maintenance_id: str, snapshot: Snapshot) -> tuple[int, str]:
        told.append(msgspec.json.encode(api.maintenance_body(context, maintenance_id, snapshot)))
        return 201, told[-1].decode()

    api.control.submit(request, context.caller.actor, once=context.once, answer=answer)
    return Result(201, told[-1])


def list_maintenances(api: Api, context: CallContext) -> Result:
    query, limit = context.query, context.query.limit
    found = api.store.maintenances(
        MaintenanceQuery(
            statuses=query.status or tuple(MaintenanceStatus),
            within=context.caller.within,
            before=read_cursor(query.cursor, tuple[Moment, str]),
            limit=limit + 1,
        )
    )
    page, last = split_page(found, limit)
    return page_of(map(views.maintenance_row, page), cursor_of(last.created, last.id) if last else None)


class PartQuery(RequestBody):
    """Of its events, `limit` after the first `skip`; by default all."""

    skip: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


def get_maintenance(api: Api, context: CallContext) -> Result:
    skip, limit = context.query.skip, context.query.limit
    part = slice(skip, None if limit is None else skip + limit)
    return ok(api.maintenance_body(context, context.path["id"], part=part))


def maintenance_verb(do: Callable[[Control, str, Actor], None]) -> Callable[[Api, CallContext], Result]:
    def call(api: Api, context: CallContext) -> Result:
        do(api.control, context.path["id"], context.caller.actor)
        return ok(api.maintenance_body(context, context.path["id"]))

    return call
