"""The arguments of store reads: what a snapshot covers, and which page of a list to return.

In every query, `within` names the scopes that the caller may see: None for all, () for none. A `text` is
`folded` and is searched in what is folded too, in each field and name alone; "" is in every text. It has no control characters.
"""

import string
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from forewarn.core.fast_init import fast_init
from forewarn.core.model import OPEN, EventType, Maintenance, MaintenanceStatus, OrderState, Status, require
from forewarn.core.operator_model import MAX_SCOPES_PER_TOKEN

MAX_PAGE = 1_000

IdKind = Literal["event", "maintenance", "order"]

# How many items of a history one request searches. The cursor of its page continues the search.
MAX_SEARCHED = 5_000
SEARCHED_AT_ONCE = 500
_SMALL_LETTERS = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(text: str) -> str:
    """Return the text with small letters for the capitals of ASCII: the only case that every database ignores."""
    return text.translate(_SMALL_LETTERS)


def maintenance_text(maintenance: Maintenance, within: tuple[str, ...] | None) -> str:
    """Return what a search within these scopes finds a maintenance by. A searched text has no line feed."""
    about = (maintenance.id, maintenance.type, maintenance.description, maintenance.created_by)
    targets = maintenance.targets
    if targets is None:
        return folded("\n".join(about))
    scopes = (scope for scope in (targets.scope, *targets.scopes) if within is None or scope in within)
    machines = (f"{scope}/{name}" for scope, name in targets.machines if within is None or scope in within)
    rest = (
        (targets.labels, *targets.names, *targets.hosts, targets.host_labels) if within is None else (targets.labels,)
    )
    return folded("\n".join((*about, *scopes, *machines, *filter(None, rest))))


def selected_scopes(scope: str, within: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the sorted scopes that a page may come from, or None for all. Rows without a scope belong to none of them."""
    if within is None:
        return (scope,) if scope else None
    return tuple(sorted({name for name in within if name and scope in ("", name)}))


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """What a snapshot covers: the scopes named here, and the scopes of the machines, maintenances and events named here.

    `hosts` adds the rows of these hosts, the machines on them and the scopes of those. `inventory` adds every machine of the
    named scopes.
    `whole_maintenances` reads every event of each maintenance in the snapshot, which a decision about waves needs. Without it,
    the snapshot holds only the open events of its scopes and the named events; without `open_events` too, only the named events.
    `next_events` then adds the events of its scopes that may move when a named event ends: the Scheduled event that is first
    to be ready; the Planned events that were approved at creation; and all Planned events if the scope has a budget. If one
    of them may move, waking its maintenance is enough: a tick of it reads the whole scope. It also adds the events of the named
    machines that have not started, because a machine on another host may be bound by other rules.
    `current_waves` leaves out the events of a maintenance that a tick does not need: see `Snapshot.unread`.
    An id in `events` may be the id of a host's order, which is read then. A maintenance comes with the orders of its hosts.
    `document_only` reads only what a document shows: scopes and events, without maintenances, orders and approvals.
    `identities` (pairs of interface and address) and `instance_ids` select machines by how the endpoint recognises callers.
    """

    scopes: tuple[str, ...] = ()
    machines: tuple[tuple[str, str], ...] = ()
    identities: tuple[tuple[str, str], ...] = ()
    instance_ids: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    maintenances: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    inventory: bool = False
    whole_maintenances: bool = True
    open_events: bool = True
    next_events: bool = False
    document_only: bool = False
    current_waves: bool = False

    @property
    def names_nothing(self) -> bool:
        """Whether the snapshot covers no scope."""
        named = self.scopes or self.machines or self.identities or self.instance_ids
        return not (named or self.hosts or self.maintenances or self.events)

    @property
    def reads_rules(self) -> bool:
        """Whether the snapshot has what can hold back whole maintenances: the rules of the fleet, and what budgets count."""
        return self.whole_maintenances and not self.document_only


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageQuery:
    """The fields of every page query."""

    within: tuple[str, ...] | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        require(
            self.within is None or len(self.within) <= MAX_SCOPES_PER_TOKEN,
            f"within names {len(self.within or ())} scopes: at most {MAX_SCOPES_PER_TOKEN} are allowed",
        )
        require(1 <= self.limit <= MAX_PAGE, f"limit is {self.limit}: a page holds 1 to {MAX_PAGE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery(_PageQuery):
    """A page of the events that match every field, newest first.

    `text` must be in an id, the type, the description or in `scope/name` of a machine. `host` names the machines that are on it
    now. `since` leaves out events that ended earlier. `before` is the `next_before` of
    the previous page.
    """

    scope: str = ""
    machine: str = ""
    host: str = ""
    maintenance_id: str = ""
    statuses: Collection[Status] = tuple(Status)
    types: Collection[EventType] = tuple(EventType)
    since: datetime | None = None
    text: str = ""
    before: int | None = None

    def __post_init__(self) -> None:
        require(not self.machine or bool(self.scope), "machine goes with a scope: name the scope it lies in")
        require(not (self.machine and self.host), "machine and host exclude each other: name one of them")
        _PageQuery.__post_init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWavesQuery:
    """The open events to count: those that match every field. At most `limit` waves are returned, all events are counted.

    `host` names the machines that are on it now. `text`, in lower case, must be in an id, the type, the description or the
    `scope/name` of a machine.
    """

    scope: str = ""
    host: str = ""
    statuses: Collection[Status] = tuple(OPEN)
    types: Collection[EventType] = tuple(EventType)
    text: str = ""
    within: tuple[str, ...] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery(_PageQuery):
    """A page of the audit entries that match every field, newest first; `before` is the last id of the previous page.

    With `after` it is a stream instead: entries with a greater id, oldest first.
    """

    scope: str = ""
    maintenance_id: str = ""
    event_id: str = ""
    before: int | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        require(self.before is None or self.after is None, "before and after exclude each other: a page or a stream")
        _PageQuery.__post_init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeQuery(_PageQuery):
    """A page of the scopes whose name contains `text`, by name; `after` is the last name of the previous page."""

    after: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostQuery(_PageQuery):
    """A page of the hosts whose name contains `text`, by name; `after` is the last name of the previous page.

    These are the hosts that carry machines within the scopes and, for a caller who may see all scopes, also those that the
    fleet lists and those that are cordoned.
    """

    after: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineQuery(_PageQuery):
    """A page of machines by (scope, name); `after` is the last key of the previous page.

    `text` must be in the machine's `scope/name`, host or instance id, or in an address if the text has a dot or colon.
    """

    scope: str = ""
    host: str = ""
    text: str = ""
    after: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceQuery(_PageQuery):
    """A page of maintenances with an event within these scopes, newest first; `before` is the last (created, id).

    `on_hosts` selects those that work on hosts.
    """

    on_hosts: bool = False
    statuses: Collection[MaintenanceStatus] = tuple(MaintenanceStatus)
    before: tuple[datetime, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderQuery(_PageQuery):
    """A page of orders of events within these scopes, newest first; `before` is the last (issued, id).

    Without `abandoned`, orders of abandoned events are left out: they failed, and no operator can resolve them any more.
    """

    states: Collection[OrderState] = tuple(OrderState)
    abandoned: bool = True
    before: tuple[datetime, str] | None = None
