"""Show, change and remove scopes and machines, restart machines, show and cordon hosts, and apply the whole fleet."""

from collections.abc import Callable
from contextlib import closing
from itertools import islice

from forewarn.core import fleet
from forewarn.core.document import NEWEST, api_version
from forewarn.core.errors import NotFound
from forewarn.core.hosts import IN_MAINTENANCE, known_host
from forewarn.core.model import (
    Actor,
    EventType,
    Machine,
    MaintenanceRequest,
    Order,
    OrderState,
    Source,
    Targets,
    require,
)
from forewarn.core.selectors import Selection
from forewarn.operator.api import bodies, views
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.bodies.common import Text
from forewarn.operator.api.context import (
    TOML,
    Api,
    CallContext,
    Result,
    Searched,
    cursor_of,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.operator.api.receipts import SaveEvent
from forewarn.service.control import Control
from forewarn.service.placement import MAX_HOST_ORDERS, hosts_in_maintenance
from forewarn.store import Focus, HostQuery, MachineQuery, ScopeQuery, selected_scopes

# -- scopes and machines


class DocumentQuery(RequestBody):
    """In which api-version."""

    api_version: str = NEWEST


class MachinesQuery(Searched):
    """Which machines; `q` is searched in `scope/name`, host, instance id and addresses. `labels` is a selector, and
    one of the patterns `names` must match; both without `q`.

    A machine has the labels of its host for the keys that it does not have. For an owner only the machine's own labels count.
    """

    scope: str = ""
    host: str = ""
    labels: Text = ""
    names: tuple[Text, ...] = ()


def list_scopes(api: Api, context: CallContext) -> Result:
    query = context.query
    after = read_cursor(query.cursor, tuple[str]) or ("",)
    rows = api.store.scopes_page(
        ScopeQuery(within=context.caller.within, text=query.text, after=after[0], limit=query.limit + 1)
    )
    page, last = split_page(rows, query.limit)
    return page_of([views.body_of(bodies.ScopeOut, scope) for scope in page], cursor_of(last.name) if last else None)


def get_scope(api: Api, context: CallContext) -> Result:
    return Result(200, _scope_out(api, context.path["scope"]))


def _scope_out(api: Api, name: str) -> bodies.ScopeOut:
    scope = api.store.snapshot(
        Focus(scopes=(name,), whole_maintenances=False, open_events=False, document_only=True)
    ).scopes.get(name)
    if scope is None:
        raise NotFound(f"there is no scope {name!r}", scope=name)
    return views.body_of(bodies.ScopeOut, scope)


def get_document(api: Api, context: CallContext) -> Result:
    """Return exactly the bytes that a guest of the scope gets."""
    return Result(200, api.control.document(context.path["scope"], api_version(context.query.api_version)))


def get_counts(api: Api, context: CallContext) -> Result:
    return Result(200, views.body_of(bodies.CountsOut, api.store.counts(context.caller.within)))


def put_scope(api: Api, context: CallContext) -> Result:
    name = context.path["scope"]
    new, warnings = api.control.put_scope(views.scope_in(name, context.body), context.caller.actor)
    body = _scope_out(api, name)
    body.warnings = list(warnings)
    return Result(201 if new else 200, body)


def delete_scope(api: Api, context: CallContext) -> Result:
    api.control.remove_scope(context.path["scope"], context.caller.actor)
    return Result(204)


def list_machines(api: Api, context: CallContext) -> Result:
    query = context.query
    wanted = MachineQuery(
        scope=query.scope,
        host=query.host,
        text=query.text,
        within=context.caller.within,
        after=read_cursor(query.cursor, tuple[str, str]),
        limit=query.limit + 1,
    )
    selects = query.labels.strip() or query.names
    rows = _selected(api, query, wanted) if selects else api.store.machines_page(wanted)
    page, last = split_page(rows, query.limit)
    seen = api.store.last_seen([m.key for m in page])
    items = [views.machine_out(m, seen.get(m.key)) for m in page]
    return page_of(items, cursor_of(*last.key) if last else None)


def _selected(api: Api, query: MachinesQuery, wanted: MachineQuery) -> list[Machine]:
    require(not wanted.text, "q excludes labels and names: use one of them")
    selection = Selection(query.names, query.labels)
    scopes = selected_scopes(wanted.scope, wanted.within)
    with closing(api.store.labelled_machines(scopes, wanted.after or ("", ""))) as machines:
        matching = (
            m.key
            for m in machines
            if wanted.host in ("", m.host)
            and selection.takes(f"{m.scope}/{m.name}", m.labels, m.host_labels if wanted.within is None else {})
        )
        keys = tuple(islice(matching, wanted.limit))
    found = api.store.snapshot(Focus(machines=keys, whole_maintenances=False, open_events=False)).machines
    return [found[key] for key in keys if key in found]


def list_hosts(api: Api, context: CallContext) -> Result:
    query = context.query
    after = read_cursor(query.cursor, tuple[str]) or ("",)
    rows = api.store.hosts_page(
        HostQuery(within=context.caller.within, text=query.text, after=after[0], limit=query.limit + 1)
    )
    page, last = split_page(rows, query.limit)
    whole = context.caller.within is None
    busy = hosts_in_maintenance(api.store)
    ended = _ended(api, {e.host.cordoned_by for e in page}) if whole else set()
    items = [
        views.host_out(
            e.host, e.machines, whole=whole, in_maintenance=e.name in busy, cordon_left=e.host.cordoned_by in ended
        )
        for e in page
    ]
    return page_of(items, cursor_of(last.name) if last else None)


def get_host(api: Api, context: CallContext) -> Result:
    """Return a host; an owner sees the hosts that carry the owner's machines."""
    name, caller = context.path["host"], context.caller
    snapshot = api.store.snapshot(Focus(hosts=(name,), whole_maintenances=False, open_events=False))
    machines = sum(caller.sees(scope) for scope, _ in snapshot.machines)
    if caller.within is not None and not machines:
        raise NotFound(f"there is no host {name!r}: none of your machines is on it")
    host, orders = known_host(snapshot, name), _host_orders(api, name)
    in_maintenance = any(order.state in IN_MAINTENANCE for order in orders)
    left = bool(_ended(api, {host.cordoned_by}))
    body = views.host_out(host, machines, whole=caller.within is None, in_maintenance=in_maintenance, cordon_left=left)
    if caller.within is None:
        of = {order.maintenance_id: api.store.maintenance(order.maintenance_id) for order in orders}
        found = ((order, of[order.maintenance_id]) for order in orders)
        body.orders = [views.order_out(order, maintenance) for order, maintenance in found if maintenance is not None]
    return Result(200, body)


def _ended(api: Api, maintenance_ids: set[str]) -> set[str]:
    """Return those of these maintenances that have ended or are no longer kept."""
    found = {each: api.store.maintenance(each) for each in maintenance_ids if each}
    return {each for each, maintenance in found.items() if maintenance is None or maintenance.ended is not None}


def _host_orders(api: Api, host: str) -> list[Order]:
    """Return the orders of a host that have not ended, the next one first."""
    states = (*IN_MAINTENANCE, OrderState.PLANNED)
    orders = api.store.orders(states, MAX_HOST_ORDERS, of_hosts=True)
    return sorted((o for o in orders if o.host == host), key=lambda o: (o.state is OrderState.PLANNED, o.issued))


def change_host(change: Callable[[Control, str, Actor], None]) -> Callable[[Api, CallContext], Result]:
    """Return the call that cordons or uncordons a host."""

    def call(api: Api, context: CallContext) -> Result:
        change(api.control, context.path["host"], context.caller.actor)
        return get_host(api, context)

    return call


def get_machine(api: Api, context: CallContext) -> Result:
    return Result(200, _machine_out(api, _key(context)))


def _key(context: CallContext) -> tuple[str, str]:
    return context.path["scope"], context.path["name"]


def _machine_out(api: Api, key: tuple[str, str]) -> bodies.MachineOut:
    machine = api.store.snapshot(Focus(machines=(key,), whole_maintenances=False, open_events=False)).machines.get(key)
    if machine is None:
        raise NotFound(f"there is no machine {'/'.join(key)}")
    return views.machine_out(machine, api.store.last_seen([key]).get(key))


def put_machine(api: Api, context: CallContext) -> Result:
    machine = views.machine_in(*_key(context), context.body)
    new = api.control.put_machine(machine, context.caller.actor)
    return Result(201 if new else 200, _machine_out(api, machine.key))


def delete_machine(api: Api, context: CallContext) -> Result:
    api.control.remove_machine(_key(context), context.caller.actor)
    return Result(204)


def _user_event(type_: EventType) -> Callable[[Api, CallContext], Result]:
    """Return the call that restarts or redeploys a machine as its user."""

    def call(api: Api, context: CallContext) -> Result:
        caller = context.caller
        request = MaintenanceRequest(type=type_, targets=Targets(machines=(_key(context),)), source=Source.USER)
        if context.query.dry_run:
            plan = api.control.plan(request, caller.actor, read=api.snapshots.of)
            return Result(200, views.only_event(views.plan_out(plan, caller.within)))
        submission = api.control.submit_once(request, caller.actor, context.once(SaveEvent(caller.within)))
        return Result(202, views.only_event(views.submission_out(submission, caller.within)))

    return call


restart_machine = _user_event(EventType.REBOOT)
redeploy_machine = _user_event(EventType.REDEPLOY)


# -- the fleet


class FleetQuery(RequestBody):
    """How a fleet is applied."""

    dry_run: bool = False
    prune: bool = False


def get_fleet(api: Api, context: CallContext) -> Result:
    inventory = api.store.inventory()
    visible = fleet.Fleet(
        {name: scope for name, scope in sorted(inventory.scopes.items()) if context.caller.sees(name)},
        {key: machine for key, machine in sorted(inventory.machines.items()) if context.caller.sees(key[0])},
        {h.name: h for h in inventory.hosts.values() if h.listed and context.caller.within is None},
    )
    if TOML in context.accept:
        return Result(200, fleet.fleet_text(visible).encode(), TOML)
    return Result(200, views.fleet_out(visible))


def post_fleet(api: Api, context: CallContext) -> Result:
    stated, query = context.body, context.query
    if isinstance(stated, bodies.Fleet):
        stated = fleet.stated_fleet(
            [views.scope_in(s.name, s) for s in stated.scopes],
            [views.machine_in(m.scope, m.name, m) for m in stated.machines],
            [views.host_in(h) for h in stated.hosts],
        )
    difference = api.control.apply_fleet(
        stated, context.caller.actor, prune=query.prune, dry_run=query.dry_run, once=context.once()
    )
    return Result(200, views.change_out(difference, dry_run=query.dry_run))
