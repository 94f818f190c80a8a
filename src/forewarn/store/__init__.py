"""Where state lives: one protocol, grouped by the guarantee each method needs; implementations beside this file.

Stores know core.model and nothing else of the core: they keep what they are given and give it back. A store is safe to
call from several threads.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from forewarn.core.change import Change, Snapshot
from forewarn.core.model import (
    MAX_SCOPES_PER_TOKEN,
    AuditEntry,
    Event,
    EventType,
    Machine,
    Maintenance,
    MaintenanceStatus,
    Order,
    OrderState,
    Receipt,
    Scope,
    Status,
    Token,
    require,
)

MAX_PAGE = 1_000

IdKind = Literal["event", "maintenance", "order"]


def _check_limit(limit: int) -> None:
    require(1 <= limit <= MAX_PAGE, f"limit is {limit}: a page holds 1 to {MAX_PAGE}")


def _check_within(within: tuple[str, ...] | None) -> None:
    require(
        within is None or len(within) <= MAX_SCOPES_PER_TOKEN,
        f"within names {len(within or ())} scopes: at most {MAX_SCOPES_PER_TOKEN} are allowed",
    )


def selected_scopes(scope: str, within: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The scopes a page may come from, in order; None for all. What lies in no scope is never within any."""
    if within is None:
        return (scope,) if scope else None
    return tuple(sorted({name for name in within if name and scope in ("", name)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """What a snapshot is about: the scopes these name, touch or lie in become the scopes concerned.

    `inventory` adds every machine of the named scopes. `whole` gives each maintenance met with all its events, which a
    decision about waves needs; without it only the open events of the scopes concerned and the named events are read.
    `shown` asks for no more than a document shows: scopes and events, without maintenances, orders and approvals.
    `identities` and `instance_ids` name machines by how callers are known: pairs of interface and address.
    """

    scopes: tuple[str, ...] = ()
    machines: tuple[tuple[str, str], ...] = ()
    identities: tuple[tuple[str, str], ...] = ()
    instance_ids: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    maintenances: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    inventory: bool = False
    whole: bool = True
    shown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """A page of events that match all of it, newest first; `before` is the cursor of the page that went before.

    `since` leaves out what had ended by then. `within` are the scopes whoever asks may see: None for all, () for none.
    """

    scope: str = ""
    machine: str = ""
    maintenance_id: str = ""
    statuses: Collection[Status] = tuple(Status)
    types: Collection[EventType] = tuple(EventType)
    since: datetime | None = None
    within: tuple[str, ...] | None = None
    limit: int = 50
    before: int | None = None

    def __post_init__(self) -> None:
        require(not self.machine or bool(self.scope), "machine goes with a scope: name the scope it lies in")
        _check_within(self.within)
        _check_limit(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """A page of the audit that matches all of it, newest first; `before` is the id of the last entry of the page before.

    With `after` it is a stream: entries with a greater id, oldest first.
    """

    scope: str = ""
    maintenance_id: str = ""
    event_id: str = ""
    within: tuple[str, ...] | None = None
    limit: int = 50
    before: int | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        require(self.before is None or self.after is None, "before and after exclude each other: a page or a stream")
        _check_within(self.within)
        _check_limit(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeQuery:
    """A page of scopes by name; `after` is the last name of the page before."""

    within: tuple[str, ...] | None = None
    after: str = ""
    limit: int = 50

    def __post_init__(self) -> None:
        _check_within(self.within)
        _check_limit(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineQuery:
    """A page of machines by (scope, name); `after` is the last of the page before."""

    scope: str = ""
    host: str = ""
    within: tuple[str, ...] | None = None
    after: tuple[str, str] | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        _check_within(self.within)
        _check_limit(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceQuery:
    """A page of maintenances, newest first; `within` wants an event in one of these, `before` is the last's (created, id)."""

    statuses: Collection[MaintenanceStatus] = tuple(MaintenanceStatus)
    within: tuple[str, ...] | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        _check_within(self.within)
        _check_limit(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderQuery:
    """A page of orders, newest first; `within` wants the event in one of these, `before` is the last's (issued, id)."""

    states: Collection[OrderState] = tuple(OrderState)
    within: tuple[str, ...] | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        _check_within(self.within)
        _check_limit(self.limit)


@dataclass(frozen=True, slots=True)
class Page:
    """Events and the cursor of the next page, None when there is none."""

    events: tuple[Event, ...]
    next_before: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every scope and machine: for stating the fleet, never for deciding about events."""

    scopes: dict[str, Scope] = field(default_factory=dict)
    machines: dict[tuple[str, str], Machine] = field(default_factory=dict)


class MachineIdentity(NamedTuple):
    """How a machine is told from others: small, because there may be a million."""

    scope: str
    name: str
    update_domain: int
    fault_domain: int
    instance_id: str
    identities: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MachineLastSeen:
    """When a machine last asked."""

    scope: str
    name: str
    at: datetime


@dataclass(frozen=True, slots=True)
class EventFirstSeen:
    """When a machine first saw an event."""

    event_id: str
    machine: str
    at: datetime


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """How far a node has read: of which database, up to which transaction, what it read of later ones, and what had been
    forgotten by then."""

    cluster: tuple[str, int]
    horizon: int
    handled: frozenset[int] = frozenset()
    forgotten: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedUpdate:
    """What others changed: scopes with the version they got, those that went (and may have come again), machines.

    `now` is the database's time; it was asked for and told at these readings of the monotonic clock.
    """

    position: FeedPosition
    everything: bool
    scopes: Mapping[str, int]
    removed: frozenset[str]
    machines: tuple[tuple[str, str], ...]
    changed: bool
    now: datetime
    sent_s: float
    received_s: float
    warning: str = ""


class Feed(Protocol):
    """What other processes do to a store that several share. Raises StoreUnavailable while it cannot know."""

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        """Wait so long for something to happen, then tell what changed since."""

    def close(self) -> None: ...


class Leases(Protocol):
    """Who does what, where several could; by the store's own clock."""

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        """Whether it is this node's for so long from now."""

    def drop_lease(self, name: str, node: str) -> None:
        """Give up one that is this node's."""

    def live_nodes(self, past_s: float = 0.0) -> set[str]:
        """The nodes whose own lease, `node NAME`, has not ended, or not longer ago than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many: open events by status, those Started whose order failed, scopes and machines."""

    planned: int = 0
    scheduled: int = 0
    started: int = 0
    failed: int = 0
    scopes: int = 0
    machines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is not over: open events by status, orders not ended, those failed and not settled; what comes first, and may be late.

    `earliest_start` is the least NotBefore of what is Scheduled, `earliest_wake` when the ticker has to look first.
    """

    planned: int = 0
    scheduled: int = 0
    started: int = 0
    failed: int = 0
    open: int = 0
    running: int = 0
    earliest_start: datetime | None = None
    earliest_wake: datetime | None = None


class Connections(NamedTuple):
    """To a database elsewhere: how many are at work and how many wait for work, how many there may be, whether it is away."""

    used: int
    idle: int
    most: int
    away: bool


class Store(Protocol):
    """Raises StoreUnavailable when it cannot read or write, whatever the method."""

    # Consistent: everything returned was true at one moment.

    def snapshot(self, focus: Focus) -> Snapshot:
        """What a decision about `focus` needs to know."""

    def inventory(self) -> Inventory:
        """The whole fleet."""

    def scopes(self) -> dict[str, Scope]:
        """Every scope."""

    def machine_identities(self) -> Iterator[MachineIdentity]:
        """Every machine, one by one, for whoever must tell callers apart."""

    # Atomic and durable: when it returns, the change survives a crash; when it raises, nothing of it happened.

    def apply(self, change: Change) -> None:
        """Save a decision, or raise Conflict if what it relied on has changed."""

    # Hints: may be a moment old; whoever acts on them decides again on a snapshot.

    def due(self, now: datetime, limit: int) -> list[str]:
        """Ids of maintenances whose wake_at has come, the longest waiting first."""

    def next_wakeup(self) -> datetime | None:
        """The earliest wake_at."""

    def orders(self, states: Collection[OrderState], limit: int) -> list[Order]:
        """Orders in these states, oldest first."""

    # Loose: written in batches; a crash may lose the last few.

    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None: ...

    def record_first_seen(self, sightings: Collection[EventFirstSeen]) -> None:
        """The first of a machine and an event stays."""

    def first_seen(self, event_id: str) -> dict[str, datetime]:
        """When each machine first saw an event, by name."""

    def last_seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        """When these last asked; those that never did are not in it."""

    def last_seen_by_scope(self, scopes: Collection[str]) -> dict[str, datetime]:
        """When any machine of these scopes last asked; those of which none did are not in it."""

    # Lists and history: a page is one moment, and what is added between two pages neither doubles nor hides a row.

    def counts(self, within: tuple[str, ...] | None) -> Counts:
        """Of what lies in these scopes; None for all."""

    def backlog(self) -> Backlog:
        """For whoever watches over the service."""

    def machines_named(self, name: str, limit: int = 4) -> list[Machine]:
        """The machines of this name, by scope."""

    def ids_starting(self, kind: IdKind, prefix: str, within: tuple[str, ...] | None, limit: int) -> list[str]:
        """Ids of this kind that start with `prefix`, in order; `within` as in the queries."""

    def scopes_page(self, query: ScopeQuery) -> list[Scope]: ...

    def machines_page(self, query: MachineQuery) -> list[Machine]: ...

    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]: ...

    def orders_page(self, query: OrderQuery) -> list[Order]: ...

    def events(self, query: EventQuery) -> Page: ...

    def audit(self, query: AuditQuery) -> list[AuditEntry]: ...

    def maintenance(self, maintenance_id: str) -> Maintenance | None: ...

    def prune(self, before: datetime, limit: int) -> int:
        """Forget at most `limit` events of maintenances that ended before, those of these that have none left, and as many audit
        entries; how many of all."""

    # Who may use the operator side, and what they were answered.

    def tokens(self) -> list[Token]:
        """Every token, newest first."""

    def receipt(self, token_id: str, key: str) -> Receipt | None: ...

    def forget_receipts(self, before: datetime, limit: int) -> int:
        """Forget at most `limit` receipts older than `before`, the oldest first; how many."""

    # Housekeeping.

    def claim(self) -> None:
        """Claim the store for this process, or raise StoreInUse; released by close or by the process's death."""

    def close(self) -> None: ...


@runtime_checkable
class SharedStore(Store, Leases, Protocol):
    """A store that several processes write to."""

    def feed(self) -> Feed:
        """What the others change, as it happens."""

    def now(self) -> datetime:
        """The time that counts for all of them."""

    def connections(self) -> Connections:
        """Of this process; asks nobody."""

    def forget_changes(self, limit: int) -> int:
        """Forget what every one of them has long heard of; how much."""
