"""What a decision reads (Snapshot) and what it writes (Change)."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from forewarn.core.fast_init import fast_init
from forewarn.core.fleet_rules import NO_RULES, NOTHING_DOWN, FleetRules, FleetUse
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    ENDED,
    OVER,
    VISIBLE,
    Approval,
    AuditEntry,
    ClockHold,
    Event,
    Host,
    Machine,
    Maintenance,
    Order,
    Scope,
    StoreHold,
)
from forewarn.core.operator_model import Hook, Receipt, Token
from forewarn.core.placement import Hosts


@fast_init
@dataclass(frozen=True, slots=True)
class UnreadEvents:
    """What is known of the events of a maintenance that a snapshot does not have: ended ones, and later waves.

    `last_position` is the highest position of all events of the maintenance. `last_ended` is the last end of an event that had
    started, if there is one. `replaced` counts the events that another event replaces.
    """

    last_position: int
    last_ended: datetime | None = None
    replaced: int = 0


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state a decision reads: some scopes, their open events with approvals and orders, and their maintenances.

    A maintenance is present with all its events. Events in scopes that are not in `scopes` may be read but not changed.
    Machines and hosts are present only if the caller requested them; a host that has no row is absent. `hold` is the
    unconfirmed hold of the clock; `confirmed` is the last hold that an operator confirmed, while there is no later one.
    `store_hold` is the hold of the store until an operator resumes it, `resumed` the last hold after that. Of a host
    in `read_hosts`, every machine is present, and every order that is not over, also if its maintenance is absent. The
    `fleet_rules` are present if whole maintenances are. So are the `machine_counts` of the scopes that limit a share of
    their machines, and the `fleet_use` if the fleet has a budget. `target_hosts` are the hosts that evacuated
    machines may be sent to, if the caller requested them. Of a maintenance in `unread`, only the visible events are
    present, and those of the first wave that has planned events. With the `fleet_rules` come, for each no-go time with
    labels, the machines that it binds (`no_go_machines`): of those present, and of those in events that have not started.
    If the fleet has windows, `other_scopes` are the rest of the scopes of the events: only their windows count.
    """

    scopes: Mapping[str, Scope] = field(default_factory=dict)
    machines: Mapping[tuple[str, str], Machine] = field(default_factory=dict)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    maintenances: Mapping[str, Maintenance] = field(default_factory=dict)
    events: Mapping[str, Event] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    hold: ClockHold | None = None
    confirmed: ClockHold | None = None
    store_hold: StoreHold | None = None
    resumed: StoreHold | None = None
    read_hosts: frozenset[str] = frozenset()
    unread: Mapping[str, UnreadEvents] = field(default_factory=dict)
    fleet_rules: FleetRules = NO_RULES
    machine_counts: Mapping[str, int] = field(default_factory=dict)
    fleet_use: FleetUse = NOTHING_DOWN
    no_go_machines: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    other_scopes: Mapping[str, Scope] = field(default_factory=dict)
    target_hosts: Hosts | None = None


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One decision. The store saves all of it in one transaction, or nothing.

    `expect` lists the scopes the decision relied on, each with the version it must still have; version 0 means that the
    scope must not exist. Scopes, maintenances, hosts and hooks carry the version at which they were read; the store adds
    one. A removed host is given by its name and that version. `wakes` lists the maintenances that a tick must examine
    because of this change. Approvals rely on no version, so any number of them can be saved concurrently. Tokens are
    added and removed, never updated. A receipt that already exists makes the whole change a conflict. If there are two
    holds, the store keeps the earlier. `releases_hold` must be the stored hold; releasing it wakes every open
    maintenance. `store_hold` replaces no hold that is not resumed yet; `resumes_store` must be the stored hold, and
    resuming wakes every open maintenance too. `fleet_rules` carry the version at which they were read; changing them
    wakes every open maintenance. `reservations` must be the stored number; the store adds one. If the fleet has a budget,
    the store also adds one for a change that `frees_budget`, and wakes the maintenances that wait for the budget. It adds
    one and wakes nothing for a change that `takes_budget_unasked`.
    `begins_work` says that an event starts or an order is handed out: the store refuses such a change while it is held.
    """

    at: datetime
    expect: tuple[tuple[str, int], ...] = ()
    scopes: tuple[Scope, ...] = ()
    removed_scopes: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_machines: tuple[tuple[str, str], ...] = ()
    hosts: tuple[Host, ...] = ()
    removed_hosts: tuple[tuple[str, int], ...] = ()
    maintenances: tuple[Maintenance, ...] = ()
    events: tuple[Event, ...] = ()
    approvals: tuple[Approval, ...] = ()
    orders: tuple[Order, ...] = ()
    wakes: tuple[str, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    tokens: tuple[Token, ...] = ()
    removed_tokens: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    removed_hooks: tuple[str, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    hold: ClockHold | None = None
    releases_hold: ClockHold | None = None
    store_hold: StoreHold | None = None
    resumes_store: StoreHold | None = None
    fleet_rules: FleetRules | None = None
    reservations: int | None = None
    begins_work: bool = False

    @property
    def frees_budget(self) -> bool:
        """Whether machines or hosts that were down are up again."""
        ended = [e for e in self.events if e.status in ENDED and e.published is not None]
        return bool(ended or [order for order in self.orders if order.host and order.state in OVER])

    @property
    def takes_budget_unasked(self) -> bool:
        """Whether machines are taken down, or stay down, that count and never wait for a budget."""
        return bool([e for e in self.events if e.status in VISIBLE and not e.one_domain_at_a_time])

    @property
    def empty(self) -> bool:
        """Whether there is nothing to save, because the request repeats an earlier one."""
        return not (
            self.scopes
            or self.removed_scopes
            or self.machines
            or self.removed_machines
            or self.hosts
            or self.removed_hosts
            or self.maintenances
            or self.events
            or self.approvals
            or self.orders
            or self.wakes
            or self.audit
            or self.tokens
            or self.removed_tokens
            or self.hooks
            or self.removed_hooks
            or self.receipts
            or self.hold
            or self.releases_hold
            or self.store_hold
            or self.resumes_store
            or self.fleet_rules
            or self.reservations is not None
        )
