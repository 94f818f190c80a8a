"""Scopes, machines and the whole fleet: shown, stated, removed, restarted."""

from collections.abc import Callable
from typing import Any

import msgspec

from forewarn.core import fleet
from forewarn.core.document import NEWEST, api_version
from forewarn.core.errors import NotFound
from forewarn.core.model import (
    EventType,
    Request,
    Snapshot,
    Source,
    Targets,
)
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import (
    TOML,
    Api,
    CallContext,
    Paged,
    Result,
    cursor_of,
    ok,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.store import (
    Focus,
    MachineQuery,
    ScopeQuery,
)

# -- scopes and machines


def list_scopes(api: Api, context: CallContext) -> Result:
    limit = context.query.limit
    after = read_cursor(context.query.cursor, tuple[str]) or ("",)
    found = api.store.scopes_page(ScopeQuery(within=context.caller.within, after=after[0], limit=limit + 1))
    page, last = split_page(found, limit)
    return page_of(map(views.scope_out, page), cursor_of(last.name) if last else None)


def get_scope(api: Api, context: CallContext) -> Result:
    return ok(views.scope_out(_scope(api, context.path["scope"])))


def _scope(api: Api, name: str) -> Any:
    scope = api.store.snapshot(Focus(scopes=(name,), whole=False, shown=True)).scopes.get(name)
    if scope is None:
        raise NotFound(f"there is no scope {name!r}")
    return scope


class DocumentQuery(RequestBody):
    """In which api-version."""

    api_version: str = NEWEST


def get_document(api: Api, context: CallContext) -> Result:
    """Exactly the bytes a guest of the scope gets."""
    return Result(200, api.control.document(context.path["scope"], api_version(context.query.api_version)))


def get_counts(api: Api, context: CallContext) -> Result:
    return ok(views.counts_out(api.store.counts(context.caller.within)))


def put_scope(api: Api, context: CallContext) -> Result:
    name = context.path["scope"]
    new = api.control.put_scope(views.scope_in(name, context.body), context.caller.actor)
    return ok(views.scope_out(_scope(api, name)), 201 if new else 200)


def delete_scope(api: Api, context: CallContext) -> Result:
    api.control.remove_scope(context.path["scope"], context.caller.actor)
    return Result(204, b"")


class MachinesQuery(Paged):
    """Which machines."""

    scope: str = ""
    host: str = ""


def list_machines(api: Api, context: CallContext) -> Result:
    query, limit = context.query, context.query.limit
    found = api.store.machines_page(
        MachineQuery(
            scope=query.scope,
            host=query.host,
            within=context.caller.within,
            after=read_cursor(query.cursor, tuple[str, str]),
            limit=limit + 1,
        )
    )
    page, last = split_page(found, limit)
    seen = api.store.seen([m.key for m in page])
    told = [views.machine_out(m, seen.get(m.key)) for m in page]
    return page_of(told, cursor_of(*last.key) if last else None)


def get_machine(api: Api, context: CallContext) -> Result:
    return ok(_machine_out(api, (context.path["scope"], context.path["name"])))


def _machine_out(api: Api, key: tuple[str, str]) -> bodies.MachineOut:
    machine = api.store.snapshot(Focus(machines=(key,), whole=False)).machines.get(key)
    if machine is None:
        raise NotFound(f"there is no machine {'/'.join(key)}")
    return views.machine_out(machine, api.store.seen([key]).get(key))


def put_machine(api: Api, context: CallContext) -> Result:
    machine = views.machine_in(context.path["scope"], context.path["name"], context.body)
    new = api.control.put_machine(machine, context.caller.actor)
    return ok(_machine_out(api, machine.key), 201 if new else 200)


def delete_machine(api: Api, context: CallContext) -> Result:
    api.control.remove_machine((context.path["scope"], context.path["name"]), context.caller.actor)
    return Result(204, b"")


def user_event(type_: EventType) -> Callable[[Api, CallContext], Result]:
    def call(api: Api, context: CallContext) -> Result:
        targets = Targets(machines=((context.path["scope"], context.path["name"]),))
        request = Request(type=type_, targets=targets, source=Source.USER)
        if context.query.dry_run:
            return ok(api.plan_body(context, request).waves[0].events[0])
        told: list[bytes] = []

        def answer(maintenance_id: str, snapshot: Snapshot) -> tuple[int, str]:
            waves = api.maintenance_body(context, maintenance_id, snapshot).waves
            told.append(msgspec.json.encode(waves[0].events[0]))
            return 202, told[-1].decode()

        api.control.submit(request, context.caller.actor, once=context.once, answer=answer)
        return Result(202, told[-1])

    return call


# -- the fleet


class FleetQuery(RequestBody):
    """How a fleet is applied."""

    dry_run: bool = False
    prune: bool = False


def get_fleet(api: Api, context: CallContext) -> Result:
    known = api.store.inventory()
    stated = fleet.Fleet(
        {name: scope for name, scope in sorted(known.scopes.items()) if context.caller.sees(name)},
        {key: machine for key, machine in sorted(known.machines.items()) if context.caller.sees(key[0])},
    )
    if TOML in context.accept:
        return Result(200, fleet.fleet_text(stated).encode(), TOML)
    return ok(views.fleet_out(stated))


def post_fleet(api: Api, context: CallContext) -> Result:
    stated, query = context.body, context.query
    if isinstance(stated, bodies.Fleet):
        stated = fleet.stated_fleet(
            [views.scope_in(s.name, s) for s in stated.scopes],
            [views.machine_in(m.scope, m.name, m) for m in stated.machines],
        )

    def answer(diff: fleet.Difference) -> tuple[int, str]:
        return 200, msgspec.json.encode(views.change_out(diff, dry_run=query.dry_run)).decode()

    diff = api.control.apply_fleet(
        stated, context.caller.actor, prune=query.prune, dry_run=query.dry_run, once=context.once, answer=answer
    )
    return Result(*_encoded(answer(diff)))


def _encoded(told: tuple[int, str]) -> tuple[int, bytes]:
    return told[0], told[1].encode()
