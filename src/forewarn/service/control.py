"""The use cases: each gives the core a snapshot to decide on, and saves the Change that the core returns.

With `decisions`, `fleet` and `hooks`, this is the only module that calls both the core's verbs and the store. It holds no
rules.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from forewarn.core import host_verbs, lifecycle, order_verbs, rescheduling
from forewarn.core.change import Change, Snapshot
from forewarn.core.clock_hold import confirm_clock
from forewarn.core.document import ApiVersion, render
from forewarn.core.errors import NotFound, Refused, RequestError
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.fast_init import replace
from forewarn.core.formatting import names
from forewarn.core.host_orders import hosts_to_read
from forewarn.core.hosts import known_host
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.lifecycle import GuestApproval
from forewarn.core.model import (
    LABEL_GROUP,
    UNFINISHED,
    Actor,
    AuditEntry,
    Event,
    HostMode,
    Maintenance,
    MaintenanceRequest,
    Order,
    OrderState,
    StoreHold,
    Targets,
)
from forewarn.core.operator_model import MAX_CALENDAR_TOKENS, MAX_CALENDAR_TOKENS_PER_SCOPE, Role, Token
from forewarn.core.order_verbs import OrderReport, Outcome, Unknown
from forewarn.core.plan_warnings import UNREPORTED_MOVES, PlanWarning, plan_warnings
from forewarn.core.reason import Waiting
from forewarn.core.store_hold import hold_store, resume_store, starts_after_resuming
from forewarn.core.transitions import Verb
from forewarn.core.waiting import waiting_for
from forewarn.service.decisions import Decision, Once, waking_others
from forewarn.service.fleet import FleetUseCases, waking_hosts
from forewarn.service.hooks import HookUseCases
from forewarn.service.placement import with_target_hosts
from forewarn.service.selection import resolved_targets
from forewarn.service.windows import WindowUseCases
from forewarn.store import Focus, MaintenanceQuery

# How many maintenances are read at once to see what resuming the store would start.
RESUMED_AT_ONCE = 100
MAX_LOGGED_MACHINES = 20

log = logging.getLogger("forewarn.service.control")


@dataclass(frozen=True, slots=True)
class Submission:
    """A maintenance just submitted, at what time, the snapshot that its change leads to, and warnings about it."""

    maintenance_id: str
    snapshot: Snapshot
    at: datetime
    warnings: tuple[PlanWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumeEffects:
    """What resuming a held store would do at once: the events that start, and the orders that executors get.

    An open order is handed out. A running order was taken before the hold: the ticker asks its executor about it. If the executor
    does not know, the order is in doubt, or begins again if it is repeatable. `more` says that the lists are not complete.
    """

    hold: StoreHold | None
    starts: tuple[Event, ...]
    orders: tuple[tuple[Order, Event], ...]
    more: bool
    host_orders: tuple[tuple[Order, Maintenance], ...] = ()


class HostNotChecked(Exception):
    """The order of a host is to be taken: whether the host is free is checked first, without holding up other decisions."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.id)
        self.order = order


class HostObstacles(Protocol):
    """Says what forbids the work on a host, or ""."""

    def stops_us(self, host: str) -> str: ...

    def unreported_moves(self) -> str: ...

    def obstacle(self, order: Order) -> str: ...


class Control(FleetUseCases, WindowUseCases, HookUseCases):
    """All use cases: those on the fleet, on windows and on hooks, and the rest here."""

    # The ticker sets it.
    host_check: HostObstacles | None = None

    # -- what operators request

    def submit(self, request: MaintenanceRequest, actor: Actor) -> str:
        """Schedule a maintenance and return its id."""
        return self.submit_once(request, actor, None).maintenance_id

    def submit_once(self, request: MaintenanceRequest, actor: Actor, once: Once | None) -> Submission:
        """Schedule a maintenance; with `once`, save the response with it."""

        named = replace(request, resolved=resolved_targets(self._store, request))

        def decide(snapshot: Snapshot, now: datetime) -> tuple[Change, Submission]:
            return self._submitted(snapshot, named, now, actor)

        return self._decide_once(_focus_of(named.named_targets), decide, once)

    def plan(
        self, request: MaintenanceRequest, actor: Actor, *, read: Callable[[Focus], Snapshot] | None = None
    ) -> Submission:
        """Return what `submit_once` would lead to, without saving it; `read` may replace `Store.snapshot`."""
        named = replace(request, resolved=resolved_targets(self._store, request))
        snapshot = (read or self._store.snapshot)(_focus_of(named.named_targets))
        now = self._clock.now()
        return self._submitted(snapshot, named, now, actor)[1]

    def _submitted(
        self, snapshot: Snapshot, request: MaintenanceRequest, now: datetime, actor: Actor
    ) -> tuple[Change, Submission]:
        _refuse_unknown_scope(snapshot, request.named_targets)
        if request.to_host and any(host.listed for host in self._store.hosts().values()):
            focus = Focus(hosts=(request.to_host,), whole_maintenances=False, open_events=False, document_only=True)
            known_host(self._store.snapshot(focus), request.to_host)
        if request.host_mode is not None and self.host_check is not None:
            for host in request.named_targets.hosts:
                if reason := self.host_check.stops_us(host):
                    raise Refused(reason)
        if request.strategy.group_by.startswith(LABEL_GROUP):
            snapshot = replace(snapshot, hosts={**self._store.hosts(), **snapshot.hosts})  # machines inherit labels
        snapshot = with_target_hosts(self._store, snapshot, needed=request.host_mode is HostMode.EVACUATE)
        maintenance_id, change = lifecycle.submit(
            snapshot, request, now=now, actor=actor, new_id=self._new_id, order_timeout_s=self._order_timeout_s
        )
        after = _applied(snapshot, change)
        warnings = plan_warnings(snapshot, after, maintenance_id, now)
        if request.host_mode is HostMode.EVACUATE and self.host_check is not None and not self.follows_inventory:
            unreported = self.host_check.unreported_moves()
            warnings += (PlanWarning(UNREPORTED_MOVES, unreported),) if unreported else ()
        return change, Submission(maintenance_id, after, now, warnings)

    def approve_event(self, event_id: str, actor: Actor) -> None:
        self._decide(_only(event_id), lambda s, now: lifecycle.approve_as_operator(s, event_id, now=now, actor=actor))

    def cancel_event(self, event_id: str, actor: Actor) -> None:
        self._decide(_ending(event_id), lambda s, now: lifecycle.cancel_event(s, event_id, now=now, actor=actor))

    def reschedule_event(self, event_id: str, not_before: datetime, actor: Actor) -> str:
        """Move an event that has not started; return the id of the event that replaces it."""
        event, _ = self.event(event_id)
        return self._decide_once(
            Focus(maintenances=(event.maintenance_id,)),
            lambda s, now: rescheduling.reschedule_event(
                s,
                event_id,
                not_before,
                now=now,
                actor=actor,
                new_id=self._new_id,
                max_reschedules=self._max_reschedules,
            ),
            None,
        )

    def reschedule_host(self, maintenance_id: str, host: str, not_before: datetime, actor: Actor) -> None:
        """Move a host of a maintenance whose machines have not begun to leave."""
        self._decide(
            Focus(maintenances=(maintenance_id,), hosts=(host,)),
            lambda s, now: rescheduling.reschedule_host(
                s, maintenance_id, host, not_before, now=now, actor=actor, max_reschedules=self._max_reschedules
            ),
        )

    def resolve_failure(self, event_id: str, verb: Verb, actor: Actor) -> None:
        """Retry, finish or abandon an event whose order failed or is in doubt."""
        timeout_s = self._order_timeout_s
        self._decide_on_orders(
            _ending(event_id),
            lambda s, now: lifecycle.resolve_failure(
                s, event_id, verb, now=now, actor=actor, order_timeout_s=timeout_s
            ),
        )

    def retry_failed(self, maintenance_id: str, actor: Actor) -> None:
        """Retry every failed order of a maintenance in one change."""
        timeout_s = self._order_timeout_s
        focus = Focus(maintenances=(maintenance_id,))
        self._decide(
            self._focus_with_hosts(focus),
            lambda s, now: lifecycle.retry_failed(s, maintenance_id, now=now, actor=actor, order_timeout_s=timeout_s),
        )

    def skip_host(self, maintenance_id: str, host: str, actor: Actor) -> None:
        """Leave one host of a maintenance out."""
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: host_verbs.skip_host(s, maintenance_id, host, now=now, actor=actor),
        )

    def resolve_host(self, order_id: str, verb: Verb, actor: Actor) -> None:
        """Retry, finish or abandon the work on a host that failed or is in doubt."""
        timeout_s = self._order_timeout_s
        self._decide_on_orders(
            _only(order_id),
            lambda s, now: host_verbs.resolve_host(s, order_id, verb, now=now, actor=actor, order_timeout_s=timeout_s),
        )

    def cancel_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.cancel_maintenance(s, maintenance_id, now=now, actor=actor),
        )

    def pause_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.pause(s, maintenance_id, now=now, actor=actor),
        )

    def resume_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.resume(s, maintenance_id, now=now, actor=actor),
        )

    def continue_maintenance(self, maintenance_id: str, actor: Actor) -> None:
        """Let a maintenance go on that its strategy stopped after a wave."""
        self._decide(
            Focus(maintenances=(maintenance_id,)),
            lambda s, now: lifecycle.continue_maintenance(s, maintenance_id, now=now, actor=actor),
        )

    # -- tokens

    def add_token(self, token: Token, actor: Actor, *, once: Once | None = None) -> None:
        scopes = f" of {', '.join(token.scopes)}" if token.scopes else ""
        detail = f"{token.name}: {token.role}{scopes}"

        def decide(_: Snapshot, now: datetime) -> tuple[Change, Token]:
            if token.role is Role.CALENDAR:
                _refuse_more_calendars(self._store.tokens(), token.scopes)
            entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="token created", detail=detail)
            return Change(at=now, tokens=(token,), audit=(entry,)), token

        self._decide_once(Focus(), decide, once)

    def revoke_token(self, token_id: str, actor: Actor) -> None:
        known = {token.id: token for token in self._store.tokens()}
        if token_id not in known:
            raise NotFound(f"there is no token {token_id}")

        def decide(_: Snapshot, now: datetime) -> Change:
            entry = AuditEntry(
                at=now, who=actor.name, origin=actor.origin, action="token revoked", detail=known[token_id].name
            )
            return Change(at=now, removed_tokens=(token_id,), audit=(entry,))

        self._decide(Focus(), decide)

    def record_failed_authentication(self, detail: str) -> None:
        """Add one audit entry about requests that this node refused since the last such entry."""

        def decide(_: Snapshot, now: datetime) -> Change:
            entry = AuditEntry(at=now, who="service", origin=self._node, action="authentication failed", detail=detail)
            return Change(at=now, audit=(entry,))

        self._decide(Focus(), decide)

    # -- what guests request

    def approve(self, scope: str, machine: str, event_ids: Iterable[str], actor: Actor) -> None:
        """Record a machine's StartRequests, all or none."""
        (error,) = self.approve_together([GuestApproval(scope, machine, tuple(event_ids), actor)])
        if error is not None:
            raise error

    def approve_together(self, approvals: Sequence[GuestApproval]) -> list[RequestError | None]:
        """Record the StartRequests of some machines in one commit; return for each why it is refused, or None."""
        ids = tuple(dict.fromkeys(event_id for approval in approvals for event_id in approval.event_ids))
        return self._decide_once(
            Focus(events=ids, whole_maintenances=False, open_events=False),
            lambda s, now: lifecycle.approve(s, approvals, now=now),
            None,
        )

    def enable(self, scope: str, actor: Actor) -> None:
        self._decide(_in_scope(scope), lambda s, now: lifecycle.enable(s, scope, now=now, actor=actor))

    def disable(self, scope: str, actor: Actor) -> None:
        self._decide(_in_scope(scope), lambda s, now: lifecycle.disable(s, scope, now=now, actor=actor))

    # -- what executors report

    def take_order(self, order_id: str, actor: Actor, *, node: str) -> Order:
        """Return the order as saved. The order of a host is refused while something on the host forbids its work."""
        timeout_s, checked = self._order_timeout_s, False

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            order = snapshot.orders.get(order_id)
            if order is not None and order.host and not checked:
                raise HostNotChecked(order)
            return order_verbs.take(snapshot, order_id, now=now, actor=actor, node=node, order_timeout_s=timeout_s)

        try:
            change = self._decide_on_orders(_only(order_id), decide)
        except HostNotChecked as found:
            self._refuse_occupied(found.order, actor)
            checked = True
            change = self._decide_on_orders(_only(order_id), decide)
        return change.orders[0]

    def _refuse_occupied(self, order: Order, actor: Actor) -> None:
        """Refuse an order that something on its host forbids, and keep the reason on the order."""
        if order.state is not OrderState.OPEN or self.host_check is None:
            return
        reason = self.host_check.obstacle(order)
        if reason != order.reason:
            self._decide_on_orders(
                _only(order.id), lambda s, now: host_verbs.note_host(s, order.id, reason, now=now, actor=actor)
            )
        if reason:
            raise Refused(reason)

    def take_over_order(self, order_id: str, actor: Actor, *, node: str, of: str) -> Order:
        """Return the order as saved."""
        timeout_s = self._order_timeout_s
        change = self._decide_on_orders(
            _only(order_id),
            lambda s, now: order_verbs.take_over(
                s, order_id, now=now, actor=actor, node=node, of=of, order_timeout_s=timeout_s
            ),
        )
        return change.orders[0]

    def report_order(
        self, order_id: str, outcome: Outcome | Unknown, actor: Actor, *, attempt: int | None = None
    ) -> None:
        self.report_orders([OrderReport(order_id, attempt, outcome)], actor)

    def report_orders(self, reports: Sequence[OrderReport], actor: Actor) -> None:
        """Save the results of some orders in one change, all or none."""
        ids = tuple(report.order_id for report in reports)
        ends = [report.outcome for report in reports if isinstance(report.outcome, Outcome)]
        moved = tuple(key for outcome in ends for key in outcome.new_hosts or ())
        events: dict[str, Event] = {}

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            events.update((each, snapshot.events[each]) for each in ids if each in snapshot.events)
            change = order_verbs.report(snapshot, reports, now=now, actor=actor)
            return waking_hosts(self._store, change, snapshot.machines)

        # A machine that moves concerns all its open events.
        focus = _ending(*ids, moved=moved)
        change = self._decide_on_orders(focus, decide)
        _log_unresolved(change, events)

    def order(self, order_id: str) -> tuple[Order, Maintenance, Event | None]:
        """Return an order with its maintenance, and with its event unless it is the order of a host."""
        snapshot = self._store.snapshot(_only(order_id))
        order = snapshot.orders.get(order_id)
        if order is None:
            raise NotFound(f"there is no order {order_id}")
        event = snapshot.events.get(order_id)
        maintenance_id = event.maintenance_id if event is not None else order.maintenance_id
        maintenance = snapshot.maintenances.get(maintenance_id) or self._store.maintenance(maintenance_id)
        if maintenance is None:
            raise NotFound(f"there is no order {order_id}")
        return order, maintenance, event

    def _focus_with_hosts(self, focus: Focus) -> Focus:
        """Return the focus with the hosts whose turn it is in its maintenances, and with the machines that left them."""
        hosts, machines = hosts_to_read(self._store.snapshot(focus), focus.maintenances)
        return replace(focus, hosts=hosts, machines=machines)

    # -- what becomes due

    def tick(self, maintenance_ids: Iterable[str], actor: Actor) -> Change:
        """Advance these maintenances in one transaction. Raises Conflict; the next cycle of the ticker tries again."""
        timeout_s = self._order_timeout_s
        with self._deciding:
            decided_s, now = self._monotonic(), self._now()
            focus = Focus(maintenances=tuple(maintenance_ids), current_waves=True)
            snapshot = self._store.snapshot(focus)
            hosts, machines = hosts_to_read(snapshot, focus.maintenances)
            if hosts:
                snapshot = self._store.snapshot(replace(focus, hosts=hosts, machines=machines))
            snapshot = with_target_hosts(self._store, snapshot)
            change = lifecycle.tick(snapshot, now=now, actor=actor, order_timeout_s=timeout_s, new_id=self._new_id)
            change = waking_others(self._store, change)
            if not change.empty:
                self._refuse_old(decided_s, change)
                self._store.apply(change)
        _log_unresolved(change, snapshot.events)
        self._notify(change)
        return change

    # -- the clock

    def confirm_clock(self, actor: Actor) -> None:
        """Confirm the hold that is saved now; refuse if another jump is noticed meanwhile."""
        seen = self.clock_hold()

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            if snapshot.hold is not None and snapshot.hold != seen:
                raise Refused("the clock jumped again meanwhile: check it, then confirm it")
            return confirm_clock(snapshot, now=now, actor=actor)

        self._decide(Focus(), decide)

    # -- the hold of the store

    def hold_store(self, reason: str, actor: Actor) -> None:
        """Hold the store: nothing starts and no order is handed out until an operator resumes it."""
        self._decide(Focus(), lambda s, now: hold_store(s, reason, now=now, actor=actor))

    def resume_store(self, seen: datetime | None, actor: Actor) -> None:
        """Resume the store from the hold that began at `seen`; refuse if another one began meanwhile."""
        self._decide(Focus(), lambda s, now: resume_store(s, seen, now=now, actor=actor))

    def effects_of_resuming(self, limit: int) -> ResumeEffects:
        """Return what would happen at once if the store were resumed now; `limit` bounds each list."""
        now, hold = self._clock.now(), self.store_hold()
        starts: dict[str, Event] = {}
        before: tuple[datetime, str] | None = None
        while len(starts) <= limit:
            open_ones = self._store.maintenances(
                MaintenanceQuery(statuses=UNFINISHED, before=before, limit=RESUMED_AT_ONCE)
            )
            if not open_ones:
                break
            before = (open_ones[-1].created, open_ones[-1].id)
            snapshot = self._store.snapshot(Focus(maintenances=tuple(m.id for m in open_ones)))
            snapshot = with_target_hosts(self._store, snapshot)
            found = starts_after_resuming(snapshot, now=now, order_timeout_s=self._order_timeout_s)
            starts |= {event.id: event for event in found}
        orders = self._store.orders({OrderState.OPEN, OrderState.RUNNING}, limit + 1)
        host_orders = self._store.orders({OrderState.OPEN, OrderState.RUNNING}, limit + 1, of_hosts=True)
        maintenances = {o.maintenance_id: self._store.maintenance(o.maintenance_id) for o in host_orders[:limit]}
        events = self._store.snapshot(
            Focus(events=tuple(o.id for o in orders), whole_maintenances=False, document_only=True)
        ).events
        return ResumeEffects(
            hold=hold,
            starts=tuple(starts.values())[:limit],
            orders=tuple((order, events[order.id]) for order in orders[:limit] if order.id in events),
            more=len(starts) > limit or len(orders) > limit or len(host_orders) > limit,
            host_orders=tuple(
                (order, of_order)
                for order in host_orders[:limit]
                if (of_order := maintenances[order.maintenance_id]) is not None
            ),
        )

    # -- reading

    def document(self, scope: str, version: ApiVersion) -> bytes:
        """Return what the scope's guests see now."""
        snapshot = self._store.snapshot(Focus(scopes=(scope,), whole_maintenances=False, document_only=True))
        if scope not in snapshot.scopes:
            raise NotFound(f"there is no scope {scope!r}", scope=scope)
        return render(snapshot.scopes[scope], (e for e in snapshot.events.values() if e.scope == scope), version)

    def why(self, event_id: str) -> tuple[Waiting, ...]:
        """Return what an event waits for."""
        event, _ = self.event(event_id)
        # A wave waits for events in any of its scopes: read all of them.
        snapshot = self._store.snapshot(Focus(maintenances=(event.maintenance_id,)))
        snapshot = with_target_hosts(self._store, snapshot)
        return waiting_for(snapshot, event_id, self._clock.now())

    def event(self, event_id: str) -> tuple[Event, Order | None]:
        snapshot = self._store.snapshot(_only(event_id))
        if event_id not in snapshot.events:
            raise NotFound(f"there is no event {event_id}")
        return snapshot.events[event_id], snapshot.orders.get(event_id)

    def maintenance(self, maintenance_id: str) -> tuple[Maintenance, list[Event]]:
        snapshot = self._store.snapshot(Focus(maintenances=(maintenance_id,)))
        if maintenance_id not in snapshot.maintenances:
            raise NotFound(f"there is no maintenance {maintenance_id}")
        events = [e for e in snapshot.events.values() if e.maintenance_id == maintenance_id]
        return snapshot.maintenances[maintenance_id], sorted(events, key=lambda e: e.position)

    def _decide_on_orders(self, focus: Focus, decide: Decision) -> Change:
        """Decide with the machines that the named orders concern.

        These are the machines of the scopes of Terminate events, whose end changes the inventory. For the order of a host, they
        are the machines on the host; its maintenance is read whole.
        """

        def decide_with_machines(snapshot: Snapshot, now: datetime) -> Change:
            named = [snapshot.events[i] for i in focus.events if i in snapshot.events]
            scopes = tuple({e.scope for e in named if EVENT_TYPES[e.type].removes_machines})
            of_hosts = [order for i in focus.events if (order := snapshot.orders.get(i)) is not None and order.host]
            wider = replace(focus, scopes=scopes, inventory=True, open_events=True) if scopes else focus
            if of_hosts:
                maintenances = tuple(dict.fromkeys(order.maintenance_id for order in of_hosts))
                hosts = tuple(dict.fromkeys(order.host for order in of_hosts))
                wider = replace(
                    wider, hosts=hosts, maintenances=maintenances, open_events=True, whole_maintenances=True
                )
            return decide(self._store.snapshot(wider) if wider is not focus else snapshot, now)

        return self._decide(focus, decide_with_machines)


def _log_unresolved(change: Change, events: Mapping[str, Event]) -> None:
    """Log each order that failed or is in doubt now: an operator must act."""
    for order in change.orders:
        if order.state not in (OrderState.FAILED, OrderState.IN_DOUBT):
            continue
        if order.host:
            what = "failed" if order.state is OrderState.FAILED else "is in doubt"
            fields = {"host": order.host, "maintenance": order.maintenance_id, "reason": order.reason}
            log.error("the work on host %s %s: %s", order.host, what, order.reason, extra={"fields": fields})
            continue
        event = events[order.id]
        log.error(
            "the order of event %s %s: %s of %s in %s: %s",
            event.id,
            "failed" if order.state is OrderState.FAILED else "is in doubt",
            event.type,
            names(event.resources, MAX_LOGGED_MACHINES),
            event.scope,
            order.reason,
            extra={
                "fields": {
                    "event": event.id,
                    "scope": event.scope,
                    "machines": list(event.resources[:MAX_LOGGED_MACHINES]),
                    "reason": order.reason,
                }
            },
        )


def _on_host(name: str) -> Focus:
    return Focus(hosts=(name,), whole_maintenances=False, open_events=False)


def _applied(snapshot: Snapshot, change: Change) -> Snapshot:
    """Return the snapshot as it will be after the change."""
    return replace(
        snapshot,
        scopes={**snapshot.scopes, **{scope.name: scope for scope in change.scopes}},
        hosts={**snapshot.hosts, **{host.name: host for host in change.hosts}},
        maintenances={**snapshot.maintenances, **{m.id: m for m in change.maintenances}},
        events={**snapshot.events, **{event.id: event for event in change.events}},
        orders={**snapshot.orders, **{order.id: order for order in change.orders}},
    )


def _refuse_more_calendars(tokens: Iterable[Token], scopes: Iterable[str]) -> None:
    """Refuse one more token for the calendar if the fleet or one of the scopes has as many as it may have."""
    calendars = [token for token in tokens if token.role is Role.CALENDAR]
    if len(calendars) >= MAX_CALENDAR_TOKENS:
        raise Refused(f"there are {MAX_CALENDAR_TOKENS} tokens for the calendar already: revoke one first")
    for scope in scopes:
        if sum(scope in token.scopes for token in calendars) >= MAX_CALENDAR_TOKENS_PER_SCOPE:
            most = MAX_CALENDAR_TOKENS_PER_SCOPE
            raise Refused(f"scope {scope} has {most} tokens for the calendar already: revoke one first")


def _ending(*event_ids: str, moved: tuple[tuple[str, str], ...] = ()) -> Focus:
    """Return the focus on events that may end, and on what may then move next in their scopes: also because machines moved."""
    return Focus(events=event_ids, machines=moved, whole_maintenances=False, open_events=bool(moved), next_events=True)


def _only(event_id: str) -> Focus:
    """Return the focus on one event, for what does not depend on the other events of its scope."""
    return Focus(events=(event_id,), whole_maintenances=False, open_events=False)


def _in_scope(scope: str) -> Focus:
    return Focus(scopes=(scope,), whole_maintenances=False)


def _focus_of(targets: Targets) -> Focus:
    if targets.scope or targets.scopes:
        return Focus(scopes=targets.scopes or (targets.scope,), inventory=True)
    return Focus(machines=targets.machines, hosts=targets.hosts)


def _refuse_unknown_scope(snapshot: Snapshot, targets: Targets) -> None:
    for scope in [targets.scope, *targets.scopes, *(scope for scope, _ in targets.machines)]:
        if scope and scope not in snapshot.scopes:
            raise NotFound(f"there is no scope {scope!r}: check the name in the fleet", scope=scope)
