"""The protocol of a store, its methods grouped by the guarantee they give, and the values they exchange.

Every store can be called from several threads at once.
"""

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from forewarn.core.change import Change, Snapshot
from forewarn.core.fast_init import fast_init
from forewarn.core.fleet_rules import FleetRules, FleetUse
from forewarn.core.model import (
    AuditEntry,
    Event,
    EventType,
    Host,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Scope,
    Status,
)
from forewarn.core.operator_model import Hook, HookDelivery, LoginSession, Receipt, Token
from forewarn.core.progress import WaveProgress
from forewarn.store.audit_chain import AuditChain
from forewarn.store.queries import (
    AuditQuery,
    EventQuery,
    Focus,
    HostQuery,
    IdKind,
    MachineQuery,
    MaintenanceQuery,
    OpenWavesQuery,
    OrderQuery,
    ScopeQuery,
)

# How many deliveries of each hook are kept: those that were attempted last.
MAX_DELIVERIES = 200


@dataclass(frozen=True, slots=True)
class OpenWave:
    """The number of events of a wave that have this status, and some facts about its maintenance."""

    maintenance_id: str
    type: EventType
    description: str
    created: datetime
    wave: int
    status: Status
    events: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of events, and the cursor of the next page or None. A search may continue after a page that is not full."""

    events: tuple[Event, ...]
    next_before: int | None = None


@dataclass(frozen=True, slots=True)
class HostCount:
    """A host, and the number of machines on it that the query may see."""

    host: Host
    machines: int

    @property
    def name(self) -> str:
        return self.host.name


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every scope, machine and host, to compare the fleet with a description of it; not for decisions about events."""

    scopes: dict[str, Scope] = field(default_factory=dict)
    machines: dict[tuple[str, str], Machine] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)


class MachineIdentity(msgspec.Struct, frozen=True, order=True, gc=False):
    """How the endpoint recognises a machine. Small, because a fleet may have a million machines."""

    scope: str
    name: str
    update_domain: int
    fault_domain: int
    instance_id: str
    interface: str
    addresses: tuple[str, ...]  # the address "" means every address of the interface

    @classmethod
    def of(cls, m: Machine) -> "MachineIdentity":
        addresses = m.addresses or (("",) if m.interface else ())
        return cls(m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, m.interface, addresses)


class LabelledMachine(NamedTuple):
    """What a selector reads of a machine: its labels, and those of its host for the keys that it does not have."""

    scope: str
    name: str
    update_domain: int
    host: str
    labels: Mapping[str, str]
    host_labels: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str]:
        return (self.scope, self.name)


@fast_init
@dataclass(frozen=True, slots=True)
class MachineLastSeen:
    """The time of a machine's last request."""

    scope: str
    name: str
    at: datetime


@fast_init
@dataclass(frozen=True, slots=True)
class EventFirstSeen:
    """The time when a machine first saw an event."""

    event_id: str
    machine: str
    at: datetime


@fast_init
@dataclass(frozen=True, slots=True)
class FeedPosition:
    """How far a node has read the feed.

    `cluster` is the database's identity and timeline. The node has read every change of transactions below `horizon`, and the
    changes numbered in `handled` of later ones. `forgotten` is the last transaction whose changes had been deleted by then.
    """

    cluster: tuple[str, int]
    horizon: int
    handled: frozenset[int] = frozenset()
    forgotten: int = 0


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FeedUpdate:
    """What other nodes changed since a position, and the position to go on from.

    `everything` means that the node must read everything again. `scopes` maps changed scopes to their new versions; a scope in
    `removed` may exist again. `now` is the database's time, read between `sent_s` and `received_s` of the monotonic clock.
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
    """The changes that other processes make to a shared store. Raises StoreUnavailable while they cannot be read."""

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        """Wait up to `wait_s` for a change, then return what changed since the position; None asks for everything."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of open events by status, of Started events with a failed order or one in doubt, of scopes and of machines.

    Where all scopes are counted, the hosts with a failed order or one in doubt are counted with these events.
    """

    planned: int = 0
    scheduled: int = 0
    started: int = 0
    failed: int = 0
    in_doubt: int = 0
    scopes: int = 0
    machines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Unfinished work: open events by status, Started events with a failed order or one in doubt, open and running orders.

    `earliest_start` is the earliest NotBefore of the Scheduled events, `earliest_wake` the time of the ticker's next work.
    """

    planned: int = 0
    scheduled: int = 0
    started: int = 0
    failed: int = 0
    in_doubt: int = 0
    open: int = 0
    running: int = 0
    earliest_start: datetime | None = None
    earliest_wake: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePosition:
    """Which database a store is, and how far its audit has come.

    `resumed` says that an operator resumed this very database after a hold. `unfinished` says that a maintenance is open.
    """

    identity: str
    timeline: int
    audit_id: int
    resumed: bool
    held: bool
    unfinished: bool


class Connections(NamedTuple):
    """The state of a connection pool: connections in use, idle ones, their limit, and whether the database is away."""

    used: int
    idle: int
    limit: int
    away: bool


class Store(Protocol):
    """Durable state. Every method raises StoreUnavailable if the store cannot be read or written."""

    # Consistent: everything returned was true at one moment.

    def snapshot(self, focus: Focus) -> Snapshot:
        """Return what a decision about `focus` needs."""

    def inventory(self) -> Inventory:
        """Return the whole fleet."""

    def scopes(self) -> dict[str, Scope]:
        """Return every scope by name."""

    def scope_names(self) -> list[str]:
        """Return the name of every scope."""

    def last_change(self) -> datetime | None:
        """Return the time of the last change of any scope."""

    def fleet_use(self) -> FleetUse:
        """Return what is down in the fleet."""

    def fleet_rules(self) -> FleetRules:
        """Return the rules that operators set for the whole fleet."""

    def hosts(self) -> dict[str, Host]:
        """Return every host that has a row, by name."""

    def machine_identities(self) -> Iterator[MachineIdentity]:
        """Iterate over the identities of all machines."""

    def labelled_machines(
        self, scopes: tuple[str, ...] | None, after: tuple[str, str] = ("", "")
    ) -> Generator[LabelledMachine, None, None]:
        """Iterate over the machines of these scopes, None for all, by key: those after the key `after`."""

    # Atomic and durable: when it returns, the change survives a crash; when it raises, nothing of it happened.

    def apply(self, change: Change) -> None:
        """Save a decision, or raise Conflict if what it relied on has changed."""

    def begin_anew(self, change: Change) -> None:
        """Save the hold of a database that was replaced, and begin a new epoch in every scope.

        Guests may have seen later incarnations, which must not be used again in the old epoch. Every login ends.
        """

    # Hints: may be a moment old; the caller decides again on a snapshot.

    def due(self, now: datetime, limit: int, *, latest_first: bool = False) -> list[str]:
        """Return the ids of maintenances whose `wake_at` has passed, earliest first, or latest first."""

    def next_wakeup(self) -> datetime | None:
        """Return the earliest `wake_at`."""

    def orders(self, states: Collection[OrderState], limit: int, *, of_hosts: bool = False) -> list[Order]:
        """Return orders in these states, oldest first: those of events, or those of hosts."""

    # Loose: written in batches; a crash may lose the last few.

    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None:
        """Save when machines were last seen. A later time stays: another node may have saved it."""

    def record_first_seen(self, first_seen: Collection[EventFirstSeen]) -> None:
        """Save when machines first saw events. The first record of a machine and an event stays."""

    def first_seen(self, event_id: str) -> dict[str, datetime]:
        """Return when each machine first saw the event, by name."""

    def last_seen(self, machines: Collection[tuple[str, str]]) -> dict[tuple[str, str], datetime]:
        """Return the time of each machine's last request, without machines that never sent one."""

    def last_seen_by_scope(self, scopes: Collection[str]) -> dict[str, datetime]:
        """Return the time of the last request from each scope, without scopes that never sent one."""

    # Lists and history: a page is one moment; a row added between two pages neither repeats nor hides another.

    def counts(self, within: tuple[str, ...] | None) -> Counts:
        """Count what lies in these scopes; None for all."""

    def backlog(self) -> Backlog:
        """Return the unfinished work, for monitoring."""

    def machines_named(self, name: str, limit: int = 4) -> list[Machine]:
        """Return the machines of this name, by scope."""

    def ids_starting(self, kind: IdKind, prefix: str, within: tuple[str, ...] | None, limit: int) -> list[str]:
        """Return the ids of this kind that start with `prefix`, sorted; `within` as in the queries."""

    def scopes_page(self, query: ScopeQuery) -> list[Scope]: ...

    def machines_page(self, query: MachineQuery) -> list[Machine]: ...

    def hosts_page(self, query: HostQuery) -> list[HostCount]: ...

    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]: ...

    def drills(self, query: MaintenanceQuery) -> list[Maintenance]:
        """Return a page of the drills, whatever their status."""

    def maintenance_keys(self, query: MaintenanceQuery) -> list[tuple[datetime, str]]:
        """Return (created, id) of the maintenances that `maintenances` returns, without reading them."""

    def search_maintenances(
        self, ids: Collection[str], text: str, within: tuple[str, ...] | None
    ) -> dict[str, Maintenance]:
        """Return those of these maintenances whose `maintenance_text` within these scopes contains the text, by id."""

    def wave_progress(
        self, maintenance_ids: Collection[str], within: tuple[str, ...] | None
    ) -> dict[str, tuple[WaveProgress, ...]]:
        """Return the progress of these maintenances by wave, from their events within these scopes."""

    def open_waves(self, query: OpenWavesQuery) -> tuple[list[OpenWave], dict[Status, int]]:
        """Count the open events that match: by maintenance, wave and status, newest first, and by status. Reads all of them."""

    def orders_page(self, query: OrderQuery) -> list[Order]: ...

    def events(self, query: EventQuery) -> Page: ...

    def audit(self, query: AuditQuery) -> list[AuditEntry]: ...

    def audit_chain(self) -> AuditChain:
        """Return where the hash chain of the audit begins and ends."""

    def maintenance(self, maintenance_id: str) -> Maintenance | None: ...

    def prune(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` events of maintenances that ended before, then those maintenances that have none left, and up
        to `limit` of the oldest audit entries, whose last hash is kept; return the number of deleted rows."""

    # Tokens, logins, and receipts of answered requests.

    def tokens(self) -> list[Token]:
        """Return every token, newest first."""

    def record_token_uses(self, uses: Mapping[str, datetime]) -> None:
        """Save when tokens were last used, by id; a crash may lose the last few."""

    def token_uses(self) -> dict[str, datetime]:
        """Return when each token was last used, by id, without tokens that never were."""

    def add_session(self, session: LoginSession) -> None:
        """Save a login. If its token has too many, those that end first are deleted."""

    def session(self, digest: str) -> LoginSession | None:
        """Return a login, also one that has ended."""

    def end_session(self, digest: str) -> None:
        """Delete a login. The removal of a token deletes its logins too."""

    def forget_sessions(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` logins that ended before; return their number."""

    def receipt(self, token_id: str, key: str) -> Receipt | None: ...

    def forget_receipts(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` receipts older than `before`, oldest first; return their number."""

    # Hooks: saved by `apply` where an operator changes them, and by `save_hooks` while messages are delivered.

    def hooks(self) -> list[Hook]:
        """Return every hook, oldest first."""

    def save_hooks(self, hooks: Collection[Hook], deliveries: Collection[HookDelivery] = ()) -> None:
        """Save how far deliveries have come, or raise Conflict if one of the hooks has changed or is deleted."""

    def hook_deliveries(self, hook_id: str, limit: int, before: int | None = None) -> list[HookDelivery]:
        """Return the deliveries of entries with an id below `before`, newest entry first."""

    # Housekeeping.

    def position(self) -> StorePosition | None:
        """Return which database this is and how far it has come; None for a store that ends with the process."""

    def claim(self) -> None:
        """Claim the store for this process, or raise StoreInUse. `close` or the end of the process releases it."""

    def close(self) -> None: ...


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store that several processes write to."""

    def feed(self) -> Feed:
        """Open a feed of the changes that other processes make."""

    def now(self) -> datetime:
        """Return the store's time, which counts for all processes."""

    def connections(self) -> Connections:
        """Return the state of this process's connection pool, without a query."""

    def forget_changes(self, limit: int) -> int:
        """Delete up to `limit` changes that every node has long read; return their number."""

    # Leases, which decide which node does a job. The store's clock counts.

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        """Take or renew a lease for so many seconds from now; return whether the node holds it."""

    def drop_lease(self, name: str, node: str) -> None:
        """Give up a lease that the node holds."""

    def live_nodes(self, past_s: float = 0.0, *, kind: str = "node") -> set[str]:
        """Return the nodes whose own lease, `node NAME`, has not ended, or ended at most `past_s` seconds ago.

        With another `kind`, return the names in the leases of that kind.
        """
