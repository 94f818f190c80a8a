"""Builders of stored objects with sensible times, and Hypothesis strategies that fill every field."""

import string
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from forewarn.core.change import Change
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import (
    ENDED,
    Approval,
    ApprovalMode,
    AuditEntry,
    Event,
    EventType,
    HostMode,
    Machine,
    Maintenance,
    MaintenanceStatus,
    OnFailure,
    Order,
    OrderState,
    Phase,
    Scope,
    ScopeKind,
    Source,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.operator_model import Hook, HookDelivery, LoginSession, Receipt, Role, Token
from forewarn.store import Focus, Store

START = datetime(2030, 1, 1, tzinfo=UTC)
ENDED_MAINTENANCE = frozenset({MaintenanceStatus.COMPLETED, MaintenanceStatus.CANCELLED, MaintenanceStatus.FAILED})
# The states that an order of an event can have without a phase.
EVENT_ORDER_STATES = (
    OrderState.OPEN,
    OrderState.RUNNING,
    OrderState.IN_DOUBT,
    OrderState.DONE,
    OrderState.FAILED,
)
STARTED_ONCE = frozenset({Status.STARTED, Status.COMPLETED, Status.ABANDONED})
UNICODE = "Wartung für Größe Ω, 保守, 🔧 'quoted\" \\ %s"


def at(seconds: float) -> datetime:
    """A moment, in seconds since the tests' beginning of time."""
    return START + timedelta(seconds=seconds)


# -- builders


def scope(name: str = "shop", **fields: Any) -> Scope:
    return Scope(**{"name": name, "kind": ScopeKind.AVAILABILITY_SET, **fields})


def machine(name: str = "web-0", **fields: Any) -> Machine:
    return Machine(**{"scope": "shop", "name": name, **fields})


def maintenance(id_: str = "M1", **fields: Any) -> Maintenance:
    values = {
        "id": id_,
        "type": EventType.REBOOT,
        "source": Source.PLATFORM,
        "created": START,
        "created_by": "operator",
        **fields,
    }
    return Maintenance(**values)


def ended(known: Maintenance, moment: datetime) -> Maintenance:
    return replace(known, status=MaintenanceStatus.COMPLETED, ended=moment, wake_at=None)


def event(id_: str = "E1", maintenance_id: str = "M1", **fields: Any) -> Event:
    """An event with the times its status demands, unless they are given."""
    status = fields.get("status", Status.SCHEDULED)
    visible = status is not Status.PLANNED
    values = {
        "id": id_,
        "maintenance_id": maintenance_id,
        "wave": 1,
        "position": 0,
        "scope": "shop",
        "update_domain": 0,
        "type": EventType.REBOOT,
        "source": Source.PLATFORM,
        "resources": ("web-0",),
        "status": status,
        "published": at(0) if visible else None,
        "not_before": at(900) if visible else None,
        "started": at(900) if status in STARTED_ONCE else None,
        "ended": at(1_000) if status in ENDED else None,
        **fields,
    }
    return Event(**values)


def approval(event_id: str = "E1", name: str = "web-0", **fields: Any) -> Approval:
    return Approval(**{"event_id": event_id, "machine": name, "who": f"shop/{name}", "at": at(60), **fields})


def order(id_: str = "E1", **fields: Any) -> Order:
    """An order; one in doubt names the node that took it."""
    node = "node-1" if fields.get("state") is OrderState.IN_DOUBT else ""
    return Order(**{"id": id_, "issued": at(900), "node": node, **fields})


def host_order(id_: str = "H1", **fields: Any) -> Order:
    """An order of a host, whose turn has not come."""
    values = {"issued": at(0), "host": "kvm-1", "maintenance_id": "M1", "position": 1, "state": OrderState.PLANNED}
    return Order(**{"id": id_, **values, **fields})


def entry(action: str = "event published", **fields: Any) -> AuditEntry:
    return AuditEntry(**{"at": at(0), "who": "operator", "action": action, **fields})


def token(id_: str = "T1", **fields: Any) -> Token:
    """A token whose secret is its id."""
    digest = sha256(id_.encode()).hexdigest()
    return Token(
        **{"id": id_, "name": f"name of {id_}", "role": Role.OPERATOR, "digest": digest, "created": at(0), **fields}
    )


def hook(id_: str = "H1", **fields: Any) -> Hook:
    given: dict[str, Any] = {"id": id_, "url": "https://example.com/in", "kinds": ("started",), "created": at(0)}
    return Hook(**{**given, "secrets": ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",), **fields})


def delivery(audit_id: int, hook_id: str = "H1", **fields: Any) -> HookDelivery:
    given: dict[str, Any] = {"kind": "forewarn.event.started", "at": at(1), "attempts": 1, "delivered": True}
    return HookDelivery(hook_id=hook_id, audit_id=audit_id, **{**given, "status": 200, **fields})


def session(id_: str = "S1", **fields: Any) -> LoginSession:
    """A login whose session id is `id_`."""
    digest = sha256(id_.encode()).hexdigest()
    return LoginSession(**{"digest": digest, "token_id": "T1", "created": at(0), "expires": at(60), **fields})


def receipt(key: str = "K1", **fields: Any) -> Receipt:
    return Receipt(
        **{"token_id": "T1", "key": key, "digest": "d", "status": 201, "body": '{"id": "M1"}', "at": at(0), **fields}
    )


def change(moment: datetime = START, **parts: Iterable[Any]) -> Change:
    """A Change of these parts, each given as any iterable."""
    given: dict[str, Any] = {name: tuple(things) for name, things in parts.items()}
    return Change(at=moment, **given)


def one_maintenance(**event_fields: Any) -> Change:
    """A scope with one machine and one maintenance with one event in it."""
    return change(scopes=[scope()], machines=[machine()], maintenances=[maintenance()], events=[event(**event_fields)])


# -- reading one thing back


def saved_scope(store: Store, name: str = "shop") -> Scope:
    return store.snapshot(Focus(scopes=(name,))).scopes[name]


def saved_event(store: Store, event_id: str = "E1") -> Event:
    return store.snapshot(Focus(events=(event_id,))).events[event_id]


def saved_maintenance(store: Store, maintenance_id: str = "M1") -> Maintenance:
    found = store.maintenance(maintenance_id)
    assert found is not None
    return found


# -- strategies

texts = st.text(max_size=40)
printable = st.text(st.characters(exclude_categories=("C", "Z")), max_size=40)
moments = st.datetimes(datetime(2020, 1, 1), datetime(2099, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
maybe_moments = st.none() | moments
hosts = st.sampled_from(["", "host-1", "host-2", "H.3_x"])
counts = st.integers(0, 10_000)
addresses = st.lists(st.ip_addresses().map(str), max_size=4, unique=True).map(tuple)
notices = st.dictionaries(
    st.sampled_from([t for t in EventType if t is not EventType.TERMINATE]), st.integers(900, 2_592_000)
).map(lambda found: {key: max(seconds, EVENT_TYPES[key].minimum_notice_s) for key, seconds in found.items()})
names = st.text(string.ascii_letters + string.digits + "._-", max_size=20)


def scopes(name: str) -> st.SearchStrategy[Scope]:
    def made(enabled: bool, **fields: Any) -> Scope:
        return Scope(name=name, enabled=enabled, epoch=fields.pop("epochs") + enabled, **fields)

    return st.builds(
        made,
        kind=st.sampled_from(ScopeKind),
        approval=st.sampled_from(ApprovalMode),
        approve_user_events=st.booleans(),
        max_user_operations=st.integers(0, 1_000_000),
        terminate_notice_s=st.integers(300, 900),
        minimum_notice_s=notices,
        enabled=st.booleans(),
        epochs=counts,
        incarnation=st.integers(1, 2**40),
        changed=maybe_moments,
        windows=st.lists(st.sampled_from(["nights", "days"]), max_size=2, unique=True).map(tuple),
        max_unavailable=st.sampled_from(["", "2", "10%"]),
        approval_opens_window=st.booleans(),
    )


def machines(scope_name: str, name: str) -> st.SearchStrategy[Machine]:
    """Machines whose identities are theirs alone: the interface and the instance id bear the scope's name."""
    return st.builds(
        Machine,
        scope=st.just(scope_name),
        name=st.just(name),
        update_domain=st.integers(0, 999),
        fault_domain=st.integers(0, 999),
        host=hosts,
        addresses=addresses,
        interface=printable.map(lambda text: f"{scope_name}{name}{text}"[:64]),
        instance_id=st.just("") | printable.map(lambda text: f"{scope_name}/{name}/{text}"),
        labels=st.dictionaries(st.sampled_from(["rack", "gpu"]), printable, max_size=2),
    )


targets = st.none() | st.one_of(
    st.builds(Targets, machines=st.lists(st.tuples(names, names), min_size=1, max_size=3).map(tuple)),
    st.builds(Targets, scope=st.just("shop"), update_domain=st.none() | st.integers(0, 2)),
    st.builds(Targets, scopes=st.lists(names, min_size=1, max_size=3).map(tuple)),
    st.builds(Targets, hosts=st.lists(names, min_size=1, max_size=3).map(tuple)),
    st.builds(
        Targets, labels=st.sampled_from(["rack=a3,!gpu", "ort=Köln/2"]), names=st.sampled_from([(), ("r2-*", "a/?")])
    ),
    st.builds(Targets, host_labels=st.just("rack=a3"), hosts=st.sampled_from([(), ("kvm-*",)])),
    st.just(Targets(everything=True)),
)


@st.composite
def maintenances(draw: st.DrawFn, id_: str) -> Maintenance:
    status = draw(st.sampled_from(MaintenanceStatus))
    over = status in ENDED_MAINTENANCE
    requested = draw(targets)
    return Maintenance(
        id=id_,
        type=draw(st.sampled_from(EventType)),
        source=draw(st.sampled_from(Source)),
        created=draw(moments),
        created_by=draw(texts),
        not_before=draw(maybe_moments),
        earliest=draw(maybe_moments),
        duration_s=draw(st.integers(-1, 2_592_000)),
        description=draw(texts),
        emergency=draw(st.booleans()),
        on_failure=draw(st.sampled_from(OnFailure)),
        paused=draw(st.booleans()),
        cancelled=draw(st.booleans()),
        status=status,
        wake_at=None if over else draw(maybe_moments),
        observed_published_at=draw(maybe_moments),
        ended=draw(moments) if over else None,
        targets=requested,
        host_mode=draw(st.sampled_from([None, *HostMode])),
        return_machines=draw(st.booleans()),
        to_host=draw(texts),
        # A maintenance that was submitted before targets were kept has no strategy either.
        strategy=Strategy(bake_s=draw(counts), windows=("nights",)) if requested else Strategy(),
        not_after=draw(maybe_moments),
        drill_hold_s=draw(counts),
        continued_after=draw(counts),
    )


@st.composite
def events(draw: st.DrawFn, id_: str, maintenance_id: str, position: int, scope_name: str) -> Event:
    """Events whose times agree with their status; the machines of each are its own."""
    status = draw(st.sampled_from(Status))
    times = sorted(draw(st.lists(moments, min_size=3, max_size=3)))
    visible = status not in (Status.PLANNED, Status.CANCELLED) or (status is Status.CANCELLED and draw(st.booleans()))
    return Event(
        id=id_,
        maintenance_id=maintenance_id,
        wave=draw(st.integers(1, 1_000)),
        position=position,
        scope=scope_name,
        update_domain=draw(st.integers(0, 999)),
        type=draw(st.sampled_from(EventType)),
        source=draw(st.sampled_from(Source)),
        resources=tuple(sorted({f"{id_}-{name}" for name in draw(st.lists(names, min_size=1, max_size=3))})),
        description=draw(texts),
        duration_s=draw(st.integers(-1, 2_592_000)),
        emergency=draw(st.booleans()),
        status=status,
        born_approved=draw(st.booleans()),
        needs_approval=draw(st.booleans()),
        approval_mode=draw(st.sampled_from(ApprovalMode)),
        sequence=draw(counts),
        published=times[0] if visible else None,
        not_before=max(draw(moments), times[0]) if visible else None,
        minimum_notice_s=draw(counts),
        started=times[1] if status in STARTED_ONCE else None,
        ended=times[2] if status in ENDED else None,
        reason=draw(texts),
        host=draw(texts),
        to_host=draw(texts),
        group=draw(texts),
        replaces=draw(st.sampled_from(["", "E0"])),
        reschedules=draw(st.integers(0, 3)),
        requested_not_before=draw(maybe_moments),
    )


def orders(id_: str) -> st.SearchStrategy[Order]:
    return st.builds(
        Order,
        id=st.just(id_),
        issued=moments,
        deadline=maybe_moments,
        state=st.sampled_from(OrderState),
        attempt=st.integers(1, 1_000),
        node=texts,
        taken=maybe_moments,
        ended=maybe_moments,
        reason=texts,
        output=st.text(max_size=2_000),
        phase=st.sampled_from(Phase),
    ).map(_legal)


def host_orders(id_: str, maintenance_id: str, position: int) -> st.SearchStrategy[Order]:
    """Orders of hosts, in every state."""
    of_host: dict[str, Any] = {
        "host": f"host-{position}",
        "maintenance_id": maintenance_id,
        "position": position,
        "phase": Phase.NONE,
    }
    return st.tuples(orders(id_), st.sampled_from(OrderState)).map(
        lambda drawn: _legal(replace(drawn[0], state=drawn[1], **of_host))
    )


def _legal(order: Order) -> Order:
    """An order in doubt names its node and has no time limit. Orders of events are planned only to start machines again."""
    if not order.host and order.state in (OrderState.CANCELLED, OrderState.ABANDONED):
        order = replace(order, state=OrderState.DONE)
    if not order.host and order.state is OrderState.PLANNED:
        order = replace(order, phase=Phase.START)
    if order.state is not OrderState.IN_DOUBT:
        return order
    return replace(order, node=order.node or "node-1", deadline=None)


def approvals(event_id: str) -> st.SearchStrategy[list[Approval]]:
    """By several machines or an operator, in order of time."""
    found = st.builds(Approval, event_id=st.just(event_id), machine=names, who=texts, at=moments, origin=texts)
    unique: Callable[[Approval], object] = lambda a: a.machine  # noqa: E731
    return st.lists(found, max_size=3, unique_by=unique).map(
        lambda every: sorted(every, key=lambda a: (a.at, a.machine))
    )


def entries(maintenance_id: str) -> st.SearchStrategy[list[AuditEntry]]:
    found = st.builds(
        AuditEntry,
        at=moments,
        who=texts,
        action=texts,
        origin=texts,
        scope=texts,
        maintenance_id=st.just(maintenance_id),
        event_id=texts,
        detail=texts,
    )
    return st.lists(found, max_size=4)


@st.composite
def tokens(draw: st.DrawFn, id_: str) -> Token:
    role = draw(st.sampled_from(Role))
    fewest, takes_scopes = int(role is Role.OWNER), role in (Role.OWNER, Role.CALENDAR)
    return Token(
        id=id_,
        name=draw(printable.filter(bool)),
        role=role,
        scopes=draw(st.lists(hosts.filter(bool), min_size=fewest, max_size=3 * takes_scopes).map(tuple)),
        digest=sha256(id_.encode()).hexdigest(),
        created=draw(moments),
        created_by=draw(texts),
        expires=draw(st.none() | moments),
    )


def receipts(token_id: str) -> st.SearchStrategy[list[Receipt]]:
    found = st.builds(
        Receipt,
        token_id=st.just(token_id),
        key=texts,
        digest=texts,
        status=st.integers(100, 599),
        body=st.text(max_size=2_000),
        at=moments,
    )
    return st.lists(found, max_size=3, unique_by=lambda r: r.key)


@st.composite
def anything(draw: st.DrawFn, key: str) -> Change:
    """A change with everything in it, all of it belonging to scope and maintenance `key`."""
    made = [draw(events(f"{key}-E{n}", f"{key}-M", n, key)) for n in range(draw(st.integers(1, 3)))]
    return Change(
        at=draw(moments),
        expect=((key, 0),),
        scopes=(draw(scopes(key)),),
        machines=tuple(draw(machines(key, f"vm-{n}")) for n in range(draw(st.integers(0, 3)))),
        maintenances=(draw(maintenances(f"{key}-M")),),
        events=tuple(made),
        approvals=tuple(a for e in made for a in draw(approvals(e.id))),
        orders=(
            *(draw(orders(e.id)) for e in made if draw(st.booleans())),
            *(draw(host_orders(f"{key}-H{n}", f"{key}-M", n)) for n in range(draw(st.integers(0, 2)))),
        ),
        audit=tuple(draw(entries(f"{key}-M"))),
        tokens=(draw(tokens(f"{key}-T")),),
        receipts=tuple(draw(receipts(f"{key}-T"))),
    )
