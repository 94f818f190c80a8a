"""Scopes, machines and the whole fleet: shown, stated, removed, restarted."""

from collections.abc import Callable
from typing import Any

import msgspec

from forewarn.core import fleet
from forewarn.core.change import Snapshot
from forewarn.core.document import NEWEST, api_version
from forewarn.core.errors import NotFound
from forewarn.core.fleet_difference import Difference
from forewarn.core.model import EventType, MaintenanceRequest, Source, Targets
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import Said
from forewarn.operator.api.context import (
    TOML,
    Answer,
    Api,
    Ask,
    Paged,
    cursor_of,
    said_cursor,
    split_page,
    told_ok,
    told_page,
)
from forewarn.store import (
    Focus,
    MachineQuery,
    ScopeQuery,
)

# -- scopes and machines


def list_scopes(api: Api, ask: Ask) -> Answer:
    limit = ask.query.limit
    after = said_cursor(ask.query.cursor, tuple[str]) or ("",)
    found = api.store.scopes_page(ScopeQuery(within=ask.who.within, after=after[0], limit=limit + 1))
    page, last = split_page(found, limit)
    return told_page(map(views.scope_out, page), cursor_of(last.name) if last else None)


def get_scope(api: Api, ask: Ask) -> Answer:
    return told_ok(views.scope_out(_scope(api, ask.path["scope"])))


def _scope(api: Api, name: str) -> Any:
    scope = api.store.snapshot(Focus(scopes=(name,), whole=False, shown=True)).scopes.get(name)
    if scope is None:
        raise NotFound(f"there is no scope {name!r}")
    return scope


class DocumentQuery(Said):
    """In which api-version."""

    api_version: str = NEWEST


def get_document(api: Api, ask: Ask) -> Answer:
    """Exactly the bytes a guest of the scope gets."""
    return Answer(200, api.control.document(ask.path["scope"], api_version(ask.query.api_version)))


def get_counts(api: Api, ask: Ask) -> Answer:
    return told_ok(views.counts_out(api.store.counts(ask.who.within)))


def put_scope(api: Api, ask: Ask) -> Answer:
    name = ask.path["scope"]
    new = api.control.put_scope(views.scope_in(name, ask.body), ask.who.actor)
    return told_ok(views.scope_out(_scope(api, name)), 201 if new else 200)


def delete_scope(api: Api, ask: Ask) -> Answer:
    api.control.remove_scope(ask.path["scope"], ask.who.actor)
    return Answer(204, b"")


class MachinesQuery(Paged):
    """Which machines."""

    scope: str = ""
    host: str = ""


def list_machines(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    found = api.store.machines_page(
        MachineQuery(
            scope=query.scope,
            host=query.host,
            within=ask.who.within,
            after=said_cursor(query.cursor, tuple[str, str]),
            limit=limit + 1,
        )
    )
    page, last = split_page(found, limit)
    seen = api.store.seen([m.key for m in page])
    told = [views.machine_out(m, seen.get(m.key)) for m in page]
    return told_page(told, cursor_of(*last.key) if last else None)


def get_machine(api: Api, ask: Ask) -> Answer:
    return told_ok(_machine_out(api, (ask.path["scope"], ask.path["name"])))


def _machine_out(api: Api, key: tuple[str, str]) -> bodies.MachineOut:
    machine = api.store.snapshot(Focus(machines=(key,), whole=False)).machines.get(key)
    if machine is None:
        raise NotFound(f"there is no machine {'/'.join(key)}")
    return views.machine_out(machine, api.store.seen([key]).get(key))


def put_machine(api: Api, ask: Ask) -> Answer:
    machine = views.machine_in(ask.path["scope"], ask.path["name"], ask.body)
    new = api.control.put_machine(machine, ask.who.actor)
    return told_ok(_machine_out(api, machine.key), 201 if new else 200)


def delete_machine(api: Api, ask: Ask) -> Answer:
    api.control.remove_machine((ask.path["scope"], ask.path["name"]), ask.who.actor)
    return Answer(204, b"")


def user_event(type_: EventType) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        targets = Targets(machines=((ask.path["scope"], ask.path["name"]),))
        request = MaintenanceRequest(type=type_, targets=targets, source=Source.USER)
        if ask.query.dry_run:
            return told_ok(api.told_plan(ask, request).waves[0].events[0])
        told: list[bytes] = []

        def answer(maintenance_id: str, snapshot: Snapshot) -> tuple[int, str]:
            waves = api.told_maintenance(ask, maintenance_id, snapshot).waves
            told.append(msgspec.json.encode(waves[0].events[0]))
            return 202, told[-1].decode()

        api.control.submit(request, ask.who.actor, once=ask.once, answer=answer)
        return Answer(202, told[-1])

    return call


# -- the fleet


class FleetQuery(Said):
    """How a fleet is applied."""

    dry_run: bool = False
    prune: bool = False


def get_fleet(api: Api, ask: Ask) -> Answer:
    known = api.store.inventory()
    stated = fleet.Fleet(
        {name: scope for name, scope in sorted(known.scopes.items()) if ask.who.sees(name)},
        {key: machine for key, machine in sorted(known.machines.items()) if ask.who.sees(key[0])},
    )
    if TOML in ask.accept:
        return Answer(200, fleet.fleet_text(stated).encode(), TOML)
    return told_ok(views.fleet_out(stated))


def post_fleet(api: Api, ask: Ask) -> Answer:
    stated, query = ask.body, ask.query
    if isinstance(stated, bodies.Fleet):
        stated = fleet.stated_fleet(
            [views.scope_in(s.name, s) for s in stated.scopes],
            [views.machine_in(m.scope, m.name, m) for m in stated.machines],
        )

    def answer(diff: Difference) -> tuple[int, str]:
        return 200, msgspec.json.encode(views.change_out(diff, dry_run=query.dry_run)).decode()

    diff = api.control.apply_fleet(
        stated, ask.who.actor, prune=query.prune, dry_run=query.dry_run, once=ask.once, answer=answer
    )
    return Answer(*_encoded(answer(diff)))


def _encoded(told: tuple[int, str]) -> tuple[int, bytes]:
    return told[0], told[1].encode()
