"""Schedule, list, show, pause, resume and cancel maintenances."""

from collections.abc import Callable
from typing import Annotated

import msgspec

from forewarn.core.model import Actor, MaintenanceStatus, Request, Snapshot
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import Said
from forewarn.operator.api.context import (
    Answer,
    Api,
    Ask,
    Moment,
    Paged,
    cursor_of,
    in_utc,
    said_cursor,
    split_page,
    told_ok,
    told_page,
)
from forewarn.service.control import Control
from forewarn.store import MaintenanceQuery


class MaintenancesQuery(Paged):
    """Which maintenances."""

    status: tuple[MaintenanceStatus, ...] = ()


def post_maintenance(api: Api, ask: Ask) -> Answer:
    said: bodies.MaintenanceIn = ask.body
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
    if ask.query.dry_run:
        return told_ok(api.told_plan(ask, request))
    told: list[bytes] = []

    def answer(maintenance_id: str, snapshot: Snapshot) -> tuple[int, str]:
        told.append(msgspec.json.encode(api.told_maintenance(ask, maintenance_id, snapshot)))
        return 201, told[-1].decode()

    api.control.submit(request, ask.who.actor, once=ask.once, answer=answer)
    return Answer(201, told[-1])


def list_maintenances(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    found = api.store.maintenances(
        MaintenanceQuery(
            statuses=query.status or tuple(MaintenanceStatus),
            within=ask.who.within,
            before=said_cursor(query.cursor, tuple[Moment, str]),
            limit=limit + 1,
        )
    )
    page, last = split_page(found, limit)
    return told_page(map(views.maintenance_row, page), cursor_of(last.created, last.id) if last else None)


class PartQuery(Said):
    """Of its events, `limit` after the first `skip`; by default all."""

    skip: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


def get_maintenance(api: Api, ask: Ask) -> Answer:
    skip, limit = ask.query.skip, ask.query.limit
    part = slice(skip, None if limit is None else skip + limit)
    return told_ok(api.told_maintenance(ask, ask.path["id"], part=part))


def maintenance_verb(do: Callable[[Control, str, Actor], None]) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        do(api.control, ask.path["id"], ask.who.actor)
        return told_ok(api.told_maintenance(ask, ask.path["id"]))

    return call
