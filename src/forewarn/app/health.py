"""The state of this node for /readyz and /metrics; nothing is decided by it.

A request must not wait for a database that may not answer: the database is queried only if it has just answered, and at most
every few seconds.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime

from forewarn.core.errors import ServiceError
from forewarn.core.hooks import hook_state
from forewarn.core.hosts import HostState, host_state
from forewarn.core.model import Host
from forewarn.core.operator_model import Hook
from forewarn.core.readiness import DrillResult, drill_result, machine_readiness
from forewarn.core.waiting import held_because
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.endpoint import EndpointState
from forewarn.operator.node_facts import Facts, Following, GuestCounts
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.follower import UNREADY_AFTER_S, Follower
from forewarn.service.hook_sender import HookSender
from forewarn.service.inventory import InventoryHealth
from forewarn.service.placement import hosts_in_maintenance
from forewarn.service.settings import Settings
from forewarn.service.ticker import Ticker
from forewarn.store import Backlog, Focus, MaintenanceQuery, SharedStore, Store
from forewarn.store.opening import store_kind

# Counting takes longer the more events are open, so a count is kept for this long.
BACKLOG_KEPT_S = 2.0
# The last drill that has ended is searched among this many of the newest drills.
MAX_DRILLS_READ = 10


class Health:
    """What a node reports about itself."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        control: Control,
        clock: Clock,
        ticker: Ticker,
        follower: Follower | None,
        hook_sender: HookSender | None = None,
        inventory: Callable[[], InventoryHealth] = InventoryHealth,
    ) -> None:
        self._settings = settings
        self._store = store
        self._control = control
        self._clock = clock
        self._ticker = ticker
        self._follower = follower
        self._hook_sender = hook_sender
        self._inventory = inventory
        self._lock = threading.Lock()
        self._counted: tuple[float, Backlog | None] = (0.0, None)
        self._drill: tuple[str, DrillResult] | None = None

    def store_problem(self) -> str:
        """Return what is wrong with the store, or ""."""
        if self._follower is not None:
            return self._follower.complaint() or self._ticker.complaint()
        try:
            self._store.next_wakeup()
        except ServiceError as error:
            return str(error)
        return ""

    def warnings(self) -> dict[str, str]:
        """Return, by part of the node, what works but needs attention."""
        warnings = {"store": self._follower.warning} if self._follower is not None and self._follower.warning else {}
        if inventory := self._inventory().warning():
            warnings["inventory"] = inventory
        with suppress(ServiceError):
            hold = self._control.clock_hold() if self.store_answers() else None
            if hold is not None:
                jump = f"it jumped forward by {hold.jumped_s} s"
                warnings["clock"] = f"{jump}: unapproved starts wait until an operator runs `forewarn clock confirm`"
            store_hold = self._control.store_hold() if self.store_answers() else None
            if store_hold is not None:
                held = "nothing starts and no order is handed out"
                warnings["store_hold"] = f"the store is held, {held}: {held_because(store_hold)}"
        return warnings

    def facts(self, documents: Documents) -> Facts:
        backlog, held, store_held, host_states, hooks, drill = None, None, None, None, None, DrillResult()
        budgets: dict[str, tuple[int, int]] = {}
        now = self._clock.display_time()
        if self.store_answers():
            with suppress(ServiceError):
                backlog = self._backlog()
                held = self._control.clock_hold() is not None
                store_held = self._control.store_hold() is not None
                host_states = _host_states(self._store.hosts().values(), hosts_in_maintenance(self._store))
                hooks = self._store.hooks()
                drill = self._last_drill()
                budgets = self._budgets()
        ticked_s = self._ticker.cycled_at_s
        return Facts(
            role=self._settings.role,
            store=store_kind(self._settings.store_url),
            leads=self._ticker.leads,
            ticked_ago_s=None if ticked_s is None else time.monotonic() - ticked_s,
            taken_over=self._ticker.taken_over,
            scopes=len(documents.views),
            machines=len(documents.callers),
            following=self._following(),
            clock_held=held,
            store_held=store_held,
            backlog=backlog,
            overdue_s=None if backlog is None else _ago_s(now, backlog.earliest_start),
            due_s=None if backlog is None else _ago_s(now, backlog.earliest_wake),
            hosts=host_states,
            hooks=None if hooks is None else _hook_states(hooks),
            hook_failing_s=None
            if hooks is None
            else max((_ago_s(now, hook.failing_since) for hook in hooks if hook.disabled is None), default=0.0),
            drill=drill,
            budgets=budgets,
            inventory=self._inventory(),
            hook_messages={}
            if self._hook_sender is None
            else {"delivered": self._hook_sender.delivered, "failed": self._hook_sender.failed},
        )

    def _budgets(self) -> dict[str, tuple[int, int]]:
        """Return, for each budget that is set for the fleet, how much is down and how much may be."""
        rules = self._store.fleet_rules()
        if not rules.has_budget:
            return {}
        use = self._store.fleet_use()
        hosts = len({host for _, host in use.hosts})
        found = {"machines": (use.machines, rules.max_machines_down), "hosts": (hosts, rules.max_hosts_down)}
        return {name: pair for name, pair in found.items() if pair[1]}

    def _last_drill(self) -> DrillResult:
        """Return the readiness of the last drill that has ended. It is computed once: an ended drill never changes."""
        for drill in self._store.drills(MaintenanceQuery(limit=MAX_DRILLS_READ)):
            if drill.ended is None:
                continue
            if self._drill is None or self._drill[0] != drill.id:
                snapshot = self._store.snapshot(Focus(maintenances=(drill.id,)))
                events = [e for e in snapshot.events.values() if e.maintenance_id == drill.id and not e.replaced_by]
                self._drill = (drill.id, drill_result(machine_readiness(events, {})))
            return self._drill[1]
        return DrillResult()

    def _following(self) -> Following | None:
        follower, store = self._follower, self._store
        if follower is None or not isinstance(store, SharedStore):
            return None
        connections = store.connections()
        return Following(
            silent_s=follower.silent_s(),
            away=connections.away,
            synchronous=not follower.warning,
            timeline=follower.timeline,
            connections=connections,
        )

    def store_answers(self) -> bool:
        """Whether the store has just answered."""
        return self._follower is None or self._follower.silent_s() <= UNREADY_AFTER_S

    def _backlog(self) -> Backlog | None:
        with self._lock:
            counted_s, backlog = self._counted
            if backlog is None or time.monotonic() - counted_s > BACKLOG_KEPT_S:
                backlog = self._store.backlog()
                self._counted = (time.monotonic(), backlog)
            return backlog


def guest_counts(endpoint: EndpointState, absent_addresses: int = 0) -> GuestCounts:
    """Copy the guest listener's counters for the metrics page."""
    counters = endpoint.counters
    by_status = dict(counters.outcomes)
    by_status[200] = by_status.get(200, 0) + counters.remembered - counters.not_modified
    by_status[304] = by_status.get(304, 0) + counters.not_modified
    return GuestCounts(
        by_status=by_status,
        remembered=counters.remembered,
        parsed=counters.parsed,
        connections=len(endpoint.connections),
        waiting=sum(len(view.waiters) for view in list(endpoint.documents.views.values()) if view.waiters),
        accepted=counters.accepted,
        refused=dict(counters.refused),
        paused=counters.paused,
        blocked=counters.blocked,
        timed_out=counters.timed_out,
        unknown=counters.unknown,
        forged=counters.forged,
        rendered=endpoint.documents.rendered_states,
        absent_addresses=absent_addresses,
    )


def _host_states(hosts: Iterable[Host], busy: Collection[str]) -> dict[str, int]:
    shown = (host for host in hosts if host.listed or host.cordoned is not None)
    states = Counter(host_state(host, in_maintenance=host.name in busy) for host in shown)
    return {state: states[state] for state in HostState}


def _hook_states(hooks: Iterable[Hook]) -> dict[str, int]:
    states = Counter(hook_state(hook) for hook in hooks)
    return {state: states[state] for state in ("active", "failing", "disabled")}


def _ago_s(now: datetime, moment: datetime | None) -> float:
    """Return how long ago a moment was; 0 for the future and for None."""
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
