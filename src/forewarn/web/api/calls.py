"""What is done: one function for each call of the API, and the table that says who may make it and what it takes and tells.

The table is the API: routes, authorisation and the OpenAPI document all come from it.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from forewarn.clock import Clock
from forewarn.control import Control, Once
from forewarn.core import fleet
from forewarn.core.errors import Forbidden, Invalid, NotFound, Refused
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import (
    Actor,
    ApprovalMode,
    Event,
    EventType,
    MaintenanceStatus,
    OrderState,
    Request,
    Role,
    Snapshot,
    Source,
    Status,
    Targets,
    Token,
)
from forewarn.core.transitions import Verb
from forewarn.store import (
    AuditQuery,
    EventQuery,
    Focus,
    MachineQuery,
    MaintenanceQuery,
    OrderQuery,
    ScopeQuery,
    Store,
)
from forewarn.web.api import shapes, views
from forewarn.web.api.access import Asking, digest, sealed, secret_text
from forewarn.web.api.shapes import Said

EVERYBODY = frozenset(Role)
OPERATORS = frozenset({Role.OPERATOR})
OWNERS = frozenset({Role.OPERATOR, Role.OWNER})
MAX_KEY_CHARS = 255
MAX_TIMELINE = 500
MAX_BEGINNING = 50
MAX_BODY_BYTES = 1024 * 1024
MAX_FLEET_BYTES = 256 * 1024 * 1024
JSON, TOML = "application/json", "application/toml"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, already known to be allowed to its caller's role, and read."""

    who: Asking
    path: dict[str, str]
    query: Any
    body: Any
    key: str
    digest: str
    accept: str = JSON

    @property
    def once(self) -> Once | None:
        return Once(self.who.token_id, self.key, self.digest) if self.key else None


class Api:
    """What the calls work with."""

    def __init__(
        self,
        control: Control,
        store: Store,
        clock: Clock,
        *,
        advance: Callable[[float], object],
        new_id: Callable[[], str],
        random: Callable[[], bytes],
    ) -> None:
        """`advance` moves the clock, doing everything that becomes due at its own time."""
        self.control = control
        self.store = store
        self.clock = clock
        self.advance = advance
        self.new_id = new_id
        self.random = random

    # -- looking things up, as far as the caller may see them

    def event(self, ask: Ask) -> Event:
        event, _ = self.control.event(ask.path["id"])
        if not ask.who.sees(event.scope):
            raise NotFound(f"there is no event {ask.path['id']}")
        return event

    def told_events(self, ask: Ask, events: Sequence[Event]) -> list[shapes.EventOut]:
        snapshot = self.control.told(events=events)
        waiting = self.control.waiting(snapshot, [e.id for e in events if e.id in snapshot.events])
        telling = views.Telling(snapshot, waiting, ask.who.within)
        return [telling.event(snapshot.events[e.id]) for e in events if e.id in snapshot.events]

    def told_event(self, ask: Ask, event_id: str) -> shapes.EventOut:
        event, order = self.control.event(event_id)
        snapshot = self.control.told(events=[event])
        if event_id not in snapshot.events:
            raise NotFound(f"there is no event {event_id}")
        entries = self.store.audit(AuditQuery(event_id=event_id, limit=MAX_TIMELINE))
        if len(entries) == MAX_TIMELINE:  # how it began is told in any case
            first = self.store.audit(AuditQuery(event_id=event_id, after=0, limit=MAX_BEGINNING))
            entries += [entry for entry in reversed(first) if entry.id < entries[-1].id]
        timeline = views.long_timeline(entries, order, self.store.first_seen(event_id))
        waiting = self.control.waiting(snapshot, [event_id])
        return views.Telling(snapshot, waiting, ask.who.within).event(snapshot.events[event_id], timeline)

    def told_maintenance(
        self, ask: Ask, maintenance_id: str, snapshot: Snapshot | None = None, *, why: bool = True
    ) -> shapes.MaintenanceOut:
        snapshot = snapshot or self.control.told(maintenances=[maintenance_id])
        maintenance = snapshot.maintenances.get(maintenance_id)
        events = [e for e in snapshot.events.values() if e.maintenance_id == maintenance_id]
        if maintenance is None or not any(ask.who.sees(e.scope) for e in events):
            raise NotFound(f"there is no maintenance {maintenance_id}")
        waiting = self.control.waiting(snapshot, [e.id for e in events]) if why else {}
        return views.Telling(snapshot, waiting, ask.who.within).maintenance(maintenance)

    def targets(self, said: shapes.TargetsIn) -> Targets:
        return Targets(
            machines=tuple(self.machine_key(name) for name in said.machines),
            scope=said.scope,
            update_domain=said.update_domain,
            hosts=tuple(said.hosts),
        )

    def machine_key(self, name: str) -> tuple[str, str]:
        """`scope/name`, or the name alone where only one machine has it."""
        scope, slash, rest = name.partition("/")
        if slash:
            return scope, rest
        found = self.store.machines_named(name)
        if not found:
            raise NotFound(f"there is no machine {name}: write it as scope/name")
        if len(found) > 1:
            those = " or ".join(f"{m.scope}/{m.name}" for m in found[:3])
            raise Invalid(f"several machines are called {name}: say which, {those}")
        return found[0].key


# -- pages


class Paged(Said):
    """One page of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50
    cursor: str = ""


Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def _page(items: Iterable[Any], next_cursor: str | None) -> Answer:
    return _ok({"items": list(items), "next_cursor": next_cursor})


def _cursor(*parts: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def _after(cursor: str, shape: Any) -> Any:
    """What a cursor says; None for the first page."""
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=shape)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Invalid(f"cursor: {cursor!r} is not one of ours: use next_cursor of the page before, unchanged") from None


def _more(found: list[Any], limit: int) -> tuple[list[Any], Any]:
    """The page, and the last of it when there is another."""
    return found[:limit], found[limit - 1] if len(found) > limit else None


def _ok(told: object, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(told))


# -- scopes and machines


def list_scopes(api: Api, ask: Ask) -> Answer:
    limit = ask.query.limit
    after = _after(ask.query.cursor, tuple[str]) or ("",)
    found = api.store.scopes_page(ScopeQuery(within=ask.who.within, after=after[0], limit=limit + 1))
    page, last = _more(found, limit)
    return _page(map(views.scope_out, page), _cursor(last.name) if last else None)


def get_scope(api: Api, ask: Ask) -> Answer:
    return _ok(views.scope_out(_scope(api, ask.path["scope"])))


def _scope(api: Api, name: str) -> Any:
    scope = api.store.snapshot(Focus(scopes=(name,), whole=False, shown=True)).scopes.get(name)
    if scope is None:
        raise NotFound(f"there is no scope {name!r}")
    return scope


def put_scope(api: Api, ask: Ask) -> Answer:
    name = ask.path["scope"]
    new = api.control.put_scope(views.scope_in(name, ask.body), ask.who.actor)
    return _ok(views.scope_out(_scope(api, name)), 201 if new else 200)


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
            after=_after(query.cursor, tuple[str, str]),
            limit=limit + 1,
        )
    )
    page, last = _more(found, limit)
    seen = api.store.seen([m.key for m in page])
    told = [views.machine_out(m, seen.get(m.key)) for m in page]
    return _page(told, _cursor(*last.key) if last else None)


def get_machine(api: Api, ask: Ask) -> Answer:
    return _ok(_machine_out(api, (ask.path["scope"], ask.path["name"])))


def _machine_out(api: Api, key: tuple[str, str]) -> shapes.MachineOut:
    machine = api.store.snapshot(Focus(machines=(key,), whole=False)).machines.get(key)
    if machine is None:
        raise NotFound(f"there is no machine {'/'.join(key)}")
    return views.machine_out(machine, api.store.seen([key]).get(key))


def put_machine(api: Api, ask: Ask) -> Answer:
    machine = views.machine_in(ask.path["scope"], ask.path["name"], ask.body)
    new = api.control.put_machine(machine, ask.who.actor)
    return _ok(_machine_out(api, machine.key), 201 if new else 200)


def delete_machine(api: Api, ask: Ask) -> Answer:
    api.control.remove_machine((ask.path["scope"], ask.path["name"]), ask.who.actor)
    return Answer(204, b"")


def _user_event(type_: EventType) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        targets = Targets(machines=((ask.path["scope"], ask.path["name"]),))
        request = Request(type=type_, targets=targets, source=Source.USER)
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
    return _ok(views.fleet_out(stated))


def post_fleet(api: Api, ask: Ask) -> Answer:
    stated, query = ask.body, ask.query
    if isinstance(stated, shapes.Fleet):
        stated = fleet.stated_fleet(
            [views.scope_in(s.name, s) for s in stated.scopes],
            [views.machine_in(m.scope, m.name, m) for m in stated.machines],
        )

    def answer(diff: fleet.Difference) -> tuple[int, str]:
        return 200, msgspec.json.encode(views.change_out(diff, dry_run=query.dry_run)).decode()

    diff = api.control.apply_fleet(
        stated, ask.who.actor, prune=query.prune, dry_run=query.dry_run, once=ask.once, answer=answer
    )
    return Answer(*_encoded(answer(diff)))


def _encoded(told: tuple[int, str]) -> tuple[int, bytes]:
    return told[0], told[1].encode()


# -- maintenances


class DryRun(Said):
    """With dry_run nothing is saved."""

    dry_run: bool = False


class MaintenancesQuery(Paged):
    """Which maintenances."""

    status: tuple[MaintenanceStatus, ...] = ()


def post_maintenance(api: Api, ask: Ask) -> Answer:
    said: shapes.MaintenanceIn = ask.body
    request = Request(
        type=said.type,
        targets=api.targets(said.targets),
        source=said.source,
        not_before=_utc(said.not_before, "not_before"),
        earliest=_utc(said.earliest, "earliest"),
        duration_s=said.duration_s,
        description=said.description,
        emergency=said.emergency,
        on_failure=said.on_failure,
    )
    if ask.query.dry_run:
        maintenance_id, snapshot = api.control.plan(request, ask.who.actor)
        return _ok(views.as_plan(api.told_maintenance(ask, maintenance_id, snapshot, why=False)))
    told: list[bytes] = []

    def answer(maintenance_id: str, snapshot: Snapshot) -> tuple[int, str]:
        told.append(msgspec.json.encode(api.told_maintenance(ask, maintenance_id, snapshot)))
        return 201, told[-1].decode()

    api.control.submit(request, ask.who.actor, once=ask.once, answer=answer)
    return Answer(201, told[-1])


def _utc(moment: datetime | None, key: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise Invalid(f"{key}: {moment.isoformat()} has no zone: write it in UTC, like 2030-01-01T12:00:00Z")
    return moment.astimezone(UTC) if moment is not None else None


def list_maintenances(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    found = api.store.maintenances(
        MaintenanceQuery(
            statuses=query.status or tuple(MaintenanceStatus),
            within=ask.who.within,
            before=_after(query.cursor, tuple[Moment, str]),
            limit=limit + 1,
        )
    )
    page, last = _more(found, limit)
    return _page(map(views.maintenance_row, page), _cursor(last.created, last.id) if last else None)


def get_maintenance(api: Api, ask: Ask) -> Answer:
    return _ok(api.told_maintenance(ask, ask.path["id"]))


def _maintenance_verb(do: Callable[[Control, str, Actor], None]) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        do(api.control, ask.path["id"], ask.who.actor)
        return _ok(api.told_maintenance(ask, ask.path["id"]))

    return call


# -- events


class EventsQuery(Paged):
    """Which events; `since` leaves out those that had ended by then."""

    status: tuple[Status, ...] = ()
    scope: str = ""
    machine: str = ""
    type: tuple[EventType, ...] = ()
    since: datetime | None = None
    maintenance: str = ""


def list_events(api: Api, ask: Ask) -> Answer:
    query = ask.query
    before = _after(query.cursor, tuple[Number])
    scope, machine = query.scope, query.machine
    if "/" in machine and not scope:
        scope, _, machine = machine.partition("/")
    page = api.store.events(
        EventQuery(
            scope=scope,
            machine=machine,
            maintenance_id=query.maintenance,
            statuses=query.status or tuple(Status),
            types=query.type or tuple(EventType),
            since=_utc(query.since, "since"),
            within=ask.who.within,
            limit=query.limit,
            before=before[0] if before else None,
        )
    )
    next_cursor = _cursor(page.next_before) if page.next_before is not None else None
    return _page(api.told_events(ask, page.events), next_cursor)


def get_event(api: Api, ask: Ask) -> Answer:
    return _ok(api.told_event(ask, api.event(ask).id))


def approve_event(api: Api, ask: Ask) -> Answer:
    event = api.event(ask)
    if ask.who.role is Role.OWNER and event.approval is ApprovalMode.OPERATOR:
        raise Forbidden(f"event {event.id} is approved by operators alone: its scope has approval = operator")
    api.control.approve_event(event.id, ask.who.actor)
    return _ok(api.told_event(ask, event.id))


def cancel_event(api: Api, ask: Ask) -> Answer:
    event = api.event(ask)
    if ask.who.role is Role.OWNER and event.source is not Source.USER:
        raise Forbidden(f"event {event.id} is the platform's: an owner cancels user events only")
    api.control.cancel_event(event.id, ask.who.actor)
    return _ok(api.told_event(ask, event.id))


def _settle(verb: Verb) -> Callable[[Api, Ask], Answer]:
    def call(api: Api, ask: Ask) -> Answer:
        event = api.event(ask)
        api.control.settle_event(event.id, verb, ask.who.actor)
        return _ok(api.told_event(ask, event.id))

    return call


# -- orders


class OrdersQuery(Paged):
    """Which orders; with a maintenance, all of its own that are in these states."""

    state: tuple[OrderState, ...] = ()
    maintenance: str = ""


def list_orders(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    if query.maintenance:
        return _orders_of(api, ask)
    found = api.store.orders_page(
        OrderQuery(
            states=query.state or tuple(OrderState),
            within=ask.who.within,
            before=_after(query.cursor, tuple[Moment, str]),
            limit=limit + 1,
        )
    )
    page, last = _more(found, limit)
    events = api.store.snapshot(Focus(events=tuple(o.id for o in page), whole=False, shown=True)).events
    told = [views.order_out(o, events[o.id]) for o in page if o.id in events]
    return _page(told, _cursor(last.issued, last.id) if last else None)


def _orders_of(api: Api, ask: Ask) -> Answer:
    """At most as many as a maintenance has events, in their order: one page."""
    snapshot = api.control.told(maintenances=[ask.query.maintenance])
    wanted = ask.query.state or tuple(OrderState)
    told = [
        views.order_out(order, event)
        for event in sorted(snapshot.events.values(), key=lambda e: e.position)
        if event.maintenance_id == ask.query.maintenance and ask.who.sees(event.scope)
        if (order := snapshot.orders.get(event.id)) is not None and order.state in wanted
    ]
    return _page(told, None)


def start_order(api: Api, ask: Ask) -> Answer:
    order = api.control.take_order(ask.path["id"], ask.who.actor, node=ask.who.name)
    return _ok(_order_out(api, order.id))


def finish_order(api: Api, ask: Ask) -> Answer:
    new_hosts = {api.machine_key(name): host for name, host in ask.body.new_hosts.items()}
    return _report(api, ask, Outcome(True, output=ask.body.output, new_hosts=new_hosts or None))


def fail_order(api: Api, ask: Ask) -> Answer:
    return _report(api, ask, Outcome(False, reason=ask.body.reason, output=ask.body.output))


def _report(api: Api, ask: Ask, outcome: Outcome) -> Answer:
    api.control.report_order(ask.path["id"], outcome, ask.who.actor, attempt=ask.body.attempt)
    return _ok(_order_out(api, ask.path["id"]))


def _order_out(api: Api, order_id: str) -> shapes.OrderOut:
    event, order = api.control.event(order_id)
    if order is None:
        raise NotFound(f"there is no order {order_id}")
    return views.order_out(order, event)


# -- audit, tokens, clock


class AuditsQuery(Paged):
    """Which entries."""

    scope: str = ""
    maintenance: str = ""
    event: str = ""


def list_audit(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    before = _after(query.cursor, tuple[Number])
    found = api.store.audit(
        AuditQuery(
            scope=query.scope,
            maintenance_id=query.maintenance,
            event_id=query.event,
            within=ask.who.within,
            limit=limit + 1,
            before=before[0] if before else None,
        )
    )
    page, last = _more(found, limit)
    told = [views.audit_out(entry, ask.who.within) for entry in page]
    return _page(told, _cursor(last.id) if last else None)


def list_tokens(api: Api, ask: Ask) -> Answer:
    limit = ask.query.limit
    after = _after(ask.query.cursor, tuple[Moment, str])
    found = [t for t in api.store.tokens() if after is None or (t.created, t.id) < after]
    page, last = _more(found[: limit + 1], limit)
    return _page(map(views.token_out, page), _cursor(last.created, last.id) if last else None)


def post_token(api: Api, ask: Ask) -> Answer:
    """Under a key the secret is kept for a day, sealed with the caller's own token, to be told again."""
    said: shapes.TokenIn = ask.body
    scopes = tuple(sorted(set(said.scopes)))
    for missing in set(scopes) - api.store.snapshot(Focus(scopes=scopes, whole=False, shown=True)).scopes.keys():
        raise NotFound(f"there is no scope {missing!r}: an owner's scopes must exist")
    secret = api.random()
    token = Token(
        id=api.new_id(),
        name=said.name,
        role=said.role,
        scopes=scopes,
        digest=digest(secret_text(secret)),
        created=api.clock.now(),
        created_by=ask.who.name,
    )
    told = views.token_out(token)
    kept = SealedToken(told=told, sealed=sealed(ask.who, token.id, secret))
    api.control.add_token(token, ask.who.actor, once=ask.once, answer=(201, msgspec.json.encode(kept).decode()))
    return _new_token(told, secret)


class SealedToken(msgspec.Struct):
    """What is kept of the answer to a request for a token."""

    told: shapes.TokenOut
    sealed: bytes


def _new_token(told: shapes.TokenOut, secret: bytes) -> Answer:
    return _ok(shapes.NewToken(**msgspec.structs.asdict(told), token=secret_text(secret)), 201)


def repeat_token(ask: Ask, body: str) -> Answer:
    kept = msgspec.json.decode(body, type=SealedToken)
    return _new_token(kept.told, sealed(ask.who, kept.told.id, kept.sealed))


def delete_token(api: Api, ask: Ask) -> Answer:
    if ask.path["id"] == ask.who.token_id:
        raise Refused("this is the token you are using: revoke it with another one")
    api.control.revoke_token(ask.path["id"], ask.who.actor)
    return Answer(204, b"")


def get_clock(api: Api, ask: Ask) -> Answer:
    del ask
    kind = api.clock.name if api.clock.name in ("system", "manual") else "scaled"
    return _ok(shapes.ClockOut(now=api.clock.now(), kind=kind))  # type: ignore[arg-type]


def advance_clock(api: Api, ask: Ask) -> Answer:
    api.advance(ask.body.seconds)
    return get_clock(api, ask)


# -- the table


class Nothing(Said):
    """No parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the API: where, who may, what it takes, what it tells with which statuses."""

    method: str
    path: str
    do: Callable[[Api, Ask], Answer]
    roles: Collection[Role]
    summary: str
    tells: Any = None
    status: Collection[int] = (200,)
    takes: Any = None
    takes_nothing_too: bool = False
    repeat: Callable[[Ask, str], Answer] | None = None  # how a kept answer is told again, where not as it is
    query: type[Said] = Nothing
    creates: bool = False
    max_bytes: int = MAX_BODY_BYTES

    @property
    def name(self) -> str:
        """Unique: the method and the path."""
        return "-".join([self.method.lower(), *(part.strip("{}") for part in self.path.split("/")[2:])])

    @property
    def errors(self) -> list[int]:
        """What may go wrong with it."""
        statuses = {401, 403, 503}
        if self.query is not Nothing or self.creates or self.takes is not None or self.method == "POST":
            statuses |= {400, 422}
        if self.method != "GET":
            statuses |= {404, 408, 409, 413}
        return sorted(statuses | ({400, 404} if "{" in self.path else set()))


def _get(path: str, do: Callable[[Api, Ask], Answer], tells: Any, summary: str, **more: Any) -> Call:
    return Call(
        method="GET", path=path, do=do, roles=more.pop("roles", EVERYBODY), summary=summary, tells=tells, **more
    )


def _post(path: str, do: Callable[[Api, Ask], Answer], tells: Any, summary: str, **more: Any) -> Call:
    return Call(
        method="POST", path=path, do=do, roles=more.pop("roles", OPERATORS), summary=summary, tells=tells, **more
    )


SCOPE, MACHINE = "/v1/scopes/{scope}", "/v1/scopes/{scope}/machines/{name}"
CALLS: tuple[Call, ...] = (
    _get("/v1/scopes", list_scopes, shapes.Page[shapes.ScopeOut], "The scopes, by name.", query=Paged),
    _get(SCOPE, get_scope, shapes.ScopeOut, "One scope."),
    Call(
        method="PUT", path=SCOPE, do=put_scope, roles=OPERATORS, tells=shapes.ScopeOut, takes=shapes.ScopeIn,
        status=(200, 201), summary="Make a scope, or change its settings.",
    ),
    Call(method="DELETE", path=SCOPE, do=delete_scope, roles=OPERATORS, status=(204,), summary="Remove an empty scope."),
    _get("/v1/machines", list_machines, shapes.Page[shapes.MachineOut], "The machines, by name.", query=MachinesQuery),
    _get(MACHINE, get_machine, shapes.MachineOut, "One machine."),
    Call(
        method="PUT", path=MACHINE, do=put_machine, roles=OPERATORS, tells=shapes.MachineOut, takes=shapes.MachineIn,
        status=(200, 201), summary="Add a machine, or change its place.",
    ),
    Call(method="DELETE", path=MACHINE, do=delete_machine, roles=OPERATORS, status=(204,), summary="Remove a machine."),
    _post(
        MACHINE + "/restart", _user_event(EventType.REBOOT), shapes.EventOut, "Restart a machine, as its user.",
        roles=OWNERS, status=(202,), creates=True,
    ),
    _post(
        MACHINE + "/redeploy", _user_event(EventType.REDEPLOY), shapes.EventOut, "Redeploy a machine, as its user.",
        roles=OWNERS, status=(202,), creates=True,
    ),
    _get("/v1/fleet", get_fleet, shapes.Fleet, "The whole fleet, as JSON or TOML."),
    _post(
        "/v1/fleet", post_fleet, shapes.FleetChange, "Make the fleet as stated; tells the difference.",
        takes=shapes.Fleet, query=FleetQuery, creates=True, max_bytes=MAX_FLEET_BYTES,
    ),
    _post(
        "/v1/maintenances", post_maintenance, shapes.MaintenanceOut, "Schedule a maintenance.",
        takes=shapes.MaintenanceIn, query=DryRun, status=(200, 201), creates=True,
    ),
    _get(
        "/v1/maintenances", list_maintenances, shapes.Page[shapes.MaintenanceRow], "The maintenances, newest first.",
        query=MaintenancesQuery,
    ),
    _get("/v1/maintenances/{id}", get_maintenance, shapes.MaintenanceOut, "One maintenance, with its waves."),
    *(
        _post(f"/v1/maintenances/{{id}}/{verb}", _maintenance_verb(do), shapes.MaintenanceOut, summary)
        for verb, do, summary in (
            ("cancel", Control.cancel_maintenance, "Cancel what has not started."),
            ("pause", Control.pause_maintenance, "Hold what has not started."),
            ("resume", Control.resume_maintenance, "Go on with what was paused."),
        )
    ),
    _get("/v1/events", list_events, shapes.Page[shapes.EventOut], "The events, newest first.", query=EventsQuery),
    _get("/v1/events/{id}", get_event, shapes.EventOut, "One event: what it waits for, and what happened to it."),
    _post("/v1/events/{id}/approve", approve_event, shapes.EventOut, "Say go for everybody.", roles=OWNERS),
    _post("/v1/events/{id}/cancel", cancel_event, shapes.EventOut, "Cancel it, if it has not started.", roles=OWNERS),
    *(
        _post(f"/v1/events/{{id}}/{verb}", _settle(verb), shapes.EventOut, summary)
        for verb, summary in (
            (Verb.RETRY, "Try its failed order again."),
            (Verb.FINISH, "Its work was done after all."),
            (Verb.ABANDON, "Give it up."),
        )
    ),
    _get("/v1/orders", list_orders, shapes.Page[shapes.OrderOut], "The orders, newest first.", query=OrdersQuery),
    _post("/v1/orders/{id}/start", start_order, shapes.OrderOut, "Take an order: the work begins."),
    _post(
        "/v1/orders/{id}/finish", finish_order, shapes.OrderOut, "The work is done.", takes=shapes.FinishIn,
        takes_nothing_too=True,
    ),
    _post("/v1/orders/{id}/fail", fail_order, shapes.OrderOut, "The work failed.", takes=shapes.FailIn),
    _get("/v1/audit", list_audit, shapes.Page[shapes.AuditOut], "Who did what, newest first.", query=AuditsQuery),
    _get(
        "/v1/tokens", list_tokens, shapes.Page[shapes.TokenOut], "The tokens, newest first.", roles=OPERATORS,
        query=Paged,
    ),
    _post(
        "/v1/tokens", post_token, shapes.NewToken, "Make a token; its secret is shown this once.",
        takes=shapes.TokenIn, status=(201,), creates=True, repeat=repeat_token,
    ),
    Call(
        method="DELETE", path="/v1/tokens/{id}", do=delete_token, roles=OPERATORS, status=(204,), summary="Revoke a token."
    ),
    _get("/v1/clock", get_clock, shapes.ClockOut, "The service's time."),
    _post("/v1/clock/advance", advance_clock, shapes.ClockOut, "Move a manual or scaled clock.", takes=shapes.AdvanceIn),
)  # fmt: skip


def request_digest(method: str, target: str, body: bytes) -> str:
    """What makes two requests the same."""
    return hashlib.sha256(b"\n".join((method.encode(), target.encode(), body))).hexdigest()
