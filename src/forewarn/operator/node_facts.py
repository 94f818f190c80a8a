"""What /metrics shows of a node, as data: `metrics` turns it into Prometheus' format."""

from collections.abc import Mapping
from dataclasses import field

from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.readiness import DrillResult
from forewarn.service.inventory import InventoryHealth
from forewarn.store import Backlog, Connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How a node follows a database that it shares with other nodes."""

    silent_s: float
    away: bool
    synchronous: bool
    timeline: int
    connections: Connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The state of a node. `following` is None if the store is its own; figures of the store are None while it is away.

    `budgets` are those that are set for the fleet: how much is down, and how much may be.
    """

    role: str
    store: str
    leads: bool
    ticked_ago_s: float | None
    taken_over: int
    scopes: int
    machines: int
    following: Following | None = None
    clock_held: bool | None = None
    store_held: bool | None = None
    backlog: Backlog | None = None
    overdue_s: float | None = None
    due_s: float | None = None
    hosts: Mapping[str, int] | None = None
    hooks: Mapping[str, int] | None = None
    drill: DrillResult = field(default_factory=DrillResult)
    budgets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    hook_failing_s: float | None = None
    hook_messages: Mapping[str, int] = field(default_factory=dict)
    inventory: InventoryHealth = field(default_factory=InventoryHealth)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestCounts:
    """The counters of the guest listener since its start, and what it holds now."""

    by_status: Mapping[int, int]
    remembered: int
    parsed: int
    connections: int
    waiting: int
    accepted: int
    refused: Mapping[str, int]
    paused: int
    blocked: int
    timed_out: int
    unknown: int
    forged: int
    rendered: int
    absent_addresses: int = 0
