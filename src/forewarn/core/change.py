"""What a decision reads (Snapshot) and what it writes (Change)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from forewarn.core.model import (
    Approval,
    AuditEntry,
    Event,
    Hold,
    Machine,
    Maintenance,
    Order,
    Receipt,
    Scope,
    Token,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The scopes concerned, their open events with approvals and orders, and the maintenances these belong to, whole.

    A maintenance may reach into scopes that are not concerned: those events are there to be read, not changed.
    Machines are there only where they were asked for. `hold` is one that nobody has confirmed; the last that somebody has
    is `confirmed`, until there is another.
    """

    scopes: Mapping[str, Scope] = field(default_factory=dict)
    machines: Mapping[tuple[str, str], Machine] = field(default_factory=dict)
    maintenances: Mapping[str, Maintenance] = field(default_factory=dict)
    events: Mapping[str, Event] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    hold: Hold | None = None
    confirmed: Hold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One decision, saved whole or not at all.

    `expect` names every scope the decision relied on and the version it must still have (0: it must not exist). Scopes
    and maintenances carry the version they were read at; the store adds one. `wakes` are maintenances that a tick must
    look at again because of this change. Approvals rely on no version: any number may be recorded at once. Tokens are added
    and removed, never updated; a receipt that is already there makes the whole change a conflict. Of two holds the earlier
    counts; one that is released must be the one that was looked at, and wakes every open maintenance.
    """

    at: datetime
    expect: tuple[tuple[str, int], ...] = ()
    scopes: tuple[Scope, ...] = ()
    removed_scopes: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_machines: tuple[tuple[str, str], ...] = ()
    maintenances: tuple[Maintenance, ...] = ()
    events: tuple[Event, ...] = ()
    approvals: tuple[Approval, ...] = ()
    orders: tuple[Order, ...] = ()
    wakes: tuple[str, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    tokens: tuple[Token, ...] = ()
    removed_tokens: tuple[str, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    hold: Hold | None = None
    releases_hold: Hold | None = None

    @property
    def empty(self) -> bool:
        """Nothing to save: the request was a repetition."""
        return not (
            self.scopes
            or self.removed_scopes
            or self.machines
            or self.removed_machines
            or self.maintenances
            or self.events
            or self.approvals
            or self.orders
            or self.wakes
            or self.audit
            or self.tokens
            or self.removed_tokens
            or self.receipts
            or self.hold
            or self.releases_hold
        )
