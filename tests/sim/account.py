"""The judge's own record of the saved state, and the rules that every commit must obey.

It is built from commits alone and shares no rule with the core: notice, guards and the queue are implemented here a second
time. `complaints` lists the rules that were broken.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from forewarn.core.change import Change
from forewarn.core.fast_init import replace
from forewarn.core.model import (
    ApprovalMode,
    Event,
    EventType,
    Host,
    HostMode,
    Maintenance,
    OnFailure,
    Order,
    OrderState,
    Scope,
    Source,
    Status,
)
from tests.sim.universe import MAX_STEP_MS, wall_at

Stage = tuple[int, int]
Content = frozenset[tuple[str, str]]

NOTICE_S = {EventType.FREEZE: 900, EventType.REBOOT: 900, EventType.REDEPLOY: 600, EventType.PREEMPT: 30}
ROLLING = (EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY)
NEXT = {
    None: {Status.PLANNED, Status.SCHEDULED, Status.STARTED},
    Status.PLANNED: {Status.SCHEDULED, Status.STARTED, Status.CANCELLED},
    Status.SCHEDULED: {Status.STARTED, Status.CANCELLED},
    Status.STARTED: {Status.COMPLETED, Status.ABANDONED},
}
VISIBLE = (Status.SCHEDULED, Status.STARTED)
WAITING = (Status.PLANNED, Status.SCHEDULED)
IN_MAINTENANCE = (OrderState.OPEN, OrderState.RUNNING, OrderState.FAILED, OrderState.IN_DOUBT)
DAY_MS = 86_400_000


class Account:
    def __init__(self, *, tolerance_ms: int) -> None:
        self._tolerance_ms = tolerance_ms
        self._jumps: list[tuple[int, int]] = []
        self.complaints: list[str] = []
        self.scopes: dict[str, Scope] = {}
        self.maintenances: dict[str, Maintenance] = {}
        self.events: dict[str, Event] = {}
        self.orders: dict[str, Order] = {}
        self.machines: dict[tuple[str, str], str] = {}  # the host of each machine
        self.arrived_ms: dict[tuple[str, str], int] = {}  # when each machine came to its host
        self.hosts: dict[str, Host] = {}
        self._closed_ms: dict[str, int] = {}  # when a host was last known to be closed
        self._closed: set[str] = set()
        self._commit_ms = 0
        self.approvals: dict[str, set[str]] = defaultdict(set)
        self._approved_at: dict[tuple[str, str], datetime] = {}  # by event and machine: the wall clock at the commit
        self.contents: dict[tuple[str, Stage], Content] = {}
        self.stages: dict[str, list[tuple[int, Stage]]] = defaultdict(list)
        self.promised_s: dict[str, int] = {}
        self.published_ms: dict[str, int] = {}
        self.left_ms: dict[str, int] = {}  # when an event was no longer Scheduled
        self.early: set[str] = set()
        self.by_key: dict[str, list[str]] = defaultdict(list)
        # When the machine of a life was started, by the life and by the boot.
        self._machine_started_ms: dict[str, int] = {}
        self._boots_ms: dict[str, int] = {}
        self._trusted: datetime | None = None
        self._holds: list[tuple[int, str]] = []  # when a jump of the clock was saved, and by which life
        self._lost_holds: list[tuple[int, str]] = []
        self._confirmed_ms: list[int] = []
        self._commits: list[
            tuple[int, str, Change | int]
        ] = []  # a number: all scopes started a new epoch, this many timelines later
        # What was lost in a failover. `failover_open` until the nodes have agreed on the new server.
        self.lost: set[int] = set()
        self.lost_orders: set[tuple[str, int]] = set()
        self.lost_events: set[str] = set()
        self.lost_approvals: set[tuple[str, str]] = set()
        self.lost_maintenances: set[str] = set()
        self.lost_starts: dict[str, list[tuple[int, int]]] = defaultdict(list)  # from the start to the failover
        self.failover_open = False

    def was_on_host(self, key: tuple[str, str], at_ms: int) -> bool:
        """Whether the machine was on its host already when something was decided that was saved at this moment."""
        return self.arrived_ms[key] < at_ms - self._tolerance_ms

    def was_closed(self, since_ms: int, at_ms: int) -> bool:
        """Whether a host was closed already when something was decided that was saved at this moment."""
        return since_ms < at_ms - self._tolerance_ms

    def in_maintenance(self) -> dict[str, tuple[str, int]]:
        """Return the hosts whose work is open, running, failed or in doubt, with the id and attempt of its order."""
        return {o.host: (o.id, o.attempt) for o in self.orders.values() if o.host and o.state in IN_MAINTENANCE}

    def closed_hosts(self) -> set[str]:
        """Return the hosts to which no machine may be sent."""
        return self._closed

    def _find_closed_hosts(self) -> set[str]:
        return {name for name, host in self.hosts.items() if host.cordoned is not None} | self.in_maintenance().keys()

    def targets(self, event: Event) -> set[str]:
        """Return the hosts that the machines of an event may go to when they leave their host."""
        listed = {host.name for host in self.hosts.values() if host.listed}
        return {event.to_host} if event.to_host else listed - {event.host}

    def _surely_has_target(self, event: Event) -> bool:
        targets = self.targets(event)
        if self.maintenances[event.maintenance_id].host_mode is not HostMode.EVACUATE or not targets:
            return True
        return any(
            name not in self.closed_hosts() and self.was_closed(self._closed_ms.get(name, -DAY_MS), self._commit_ms)
            for name in targets
        )

    def clock_moved(self, at_ms: int, by_ms: int) -> None:
        self._jumps.append((at_ms, by_ms))

    def node_started(self, at_ms: int, life: str, boot: str = "") -> None:
        self._machine_started_ms[life] = self._boots_ms.setdefault(boot or life, at_ms)

    def commit(self, at_ms: int, change: Change, life: str = "") -> None:
        self._commits.append((at_ms, life, change))
        self._check_versions(change)
        before = dict(self.events)
        known = dict(self.maintenances)
        closed = self._closed
        for event in change.events:
            self._check_step(before.get(event.id), event)
            self.events[event.id] = event
        for approval in change.approvals:
            self._record_approval(at_ms, approval.event_id, approval.machine)
        self.orders |= {order.id: order for order in change.orders}
        self.hosts |= {host.name: host for host in change.hosts}
        self._commit_ms = at_ms
        if change.orders or change.hosts:
            self._closed = self._find_closed_hosts()
        self._closed_ms |= dict.fromkeys(closed | self._closed, at_ms)
        for machine in change.machines:
            if self.machines.get(machine.key) != machine.host:
                self.machines[machine.key], self.arrived_ms[machine.key] = machine.host, at_ms
        for key in change.removed_machines:
            self.machines.pop(key, None)
        self._keep_maintenances(change)
        self._check_drills(change)
        for event in change.events:
            was = before.get(event.id)
            if was is None:
                self._planned(event)
            if event.status is Status.STARTED and (was is None or was.status is not Status.STARTED):
                self._started(at_ms, change, event, before, known, life)
            elif event.status is Status.SCHEDULED and (was is None or was.status is not Status.SCHEDULED):
                self._published(at_ms, event)
            if was is not None and was.status is Status.SCHEDULED and event.status is not Status.SCHEDULED:
                self.left_ms[event.id] = at_ms
        self._check_scopes(at_ms, change)
        for maintenance_id in dict.fromkeys(event.maintenance_id for event in change.events):
            self._check_waves(maintenance_id)
        for receipt in change.receipts:
            self.by_key[receipt.key] += [m.id for m in change.maintenances]
        self._keep_hold(at_ms, change, life)

    def _keep_hold(self, at_ms: int, change: Change, life: str) -> None:
        if change.hold is not None:
            self._holds.append((at_ms, life))
            self._trusted = min(change.hold.trusted, self._trusted or change.hold.trusted)
        if change.releases_hold:
            self._confirmed_ms.append(at_ms)
            self._trusted = None

    # -- another server

    def failed_over(self, at_ms: int, lost: tuple[Change, ...], agreements: int = 0) -> None:
        """Rebuild the state without the lost commits. What guests saw and executors did is kept."""
        if not lost and not agreements:
            return
        self.failover_open = True
        self.lost |= {id(change) for change in lost}
        self.lost_orders |= {(order.id, order.attempt) for change in lost for order in change.orders}
        self.lost_events |= {event.id for change in lost for event in change.events}
        self.lost_approvals |= {(given.event_id, given.machine) for change in lost for given in change.approvals}
        self.lost_maintenances |= {each.id for change in lost for each in change.maintenances}
        again = Account(tolerance_ms=self._tolerance_ms)
        kept = sum(isinstance(change, int) for _, _, change in self._commits) - agreements
        for committed_ms, life, change in self._commits:
            if isinstance(change, int):
                if kept:
                    again.adopted(committed_ms, change)
                    kept -= 1
            elif id(change) not in self.lost:
                again.commit(committed_ms, change, life)
        for event_id in self.left_ms.keys() - again.left_ms.keys():
            self.lost_starts[event_id].append((self.left_ms[event_id], at_ms))
        self.scopes, self.maintenances, self.events = again.scopes, again.maintenances, again.events
        self.orders, self.approvals, self.by_key = again.orders, again.approvals, again.by_key
        self.stages, self.promised_s, self.published_ms = again.stages, again.promised_s, again.published_ms
        self.left_ms, self._trusted, self._commits = again.left_ms, again._trusted, again._commits
        self._lost_holds += [hold for hold in self._holds if hold not in again._holds]
        self._holds, self._confirmed_ms = again._holds, again._confirmed_ms
        self._approved_at = again._approved_at
        self.machines, self.arrived_ms, self.hosts = again.machines, again.arrived_ms, again.hosts
        self._closed = again._closed

    def adopted(self, at_ms: int, steps: int) -> None:
        self.failover_open = False
        self._commits.append((at_ms, "", steps))
        for name, known in self.scopes.items():
            epoch, version = known.epoch + 1_000 * steps, known.version + 1_000_000 * steps
            self.scopes[name] = replace(known, epoch=epoch, incarnation=1, version=version)
            self.contents[name, (epoch, 1)] = self.content(name)
            self.stages[name].append((at_ms, (epoch, 1)))

    def complain(self, sentence: str) -> None:
        self.complaints.append(sentence)

    def content(self, scope: str) -> Content:
        return frozenset(
            (e.id, str(e.status)) for e in self.events.values() if e.scope == scope and e.status in VISIBLE
        )

    def jumped_ms(self, since_ms: int) -> int:
        """Return how far the wall clock has jumped forward since then."""
        return sum(by_ms for at_ms, by_ms in self._jumps if at_ms >= since_ms and by_ms > 0)

    def _wall(self, at_ms: int) -> datetime:
        return wall_at(at_ms + sum(by_ms for _, by_ms in self._jumps))

    # -- versions: a decision is based on the last commit

    def _check_versions(self, change: Change) -> None:
        for name, version in [*change.expect, *((scope.name, scope.version) for scope in change.scopes)]:
            known = self.scopes.get(name)
            if version != (known.version if known is not None else 0):
                self.complain(f"scope {name} was written over: decided on version {version}")
        for maintenance in change.maintenances:
            held = self.maintenances.get(maintenance.id)
            if maintenance.version != (held.version if held is not None else 0):
                self.complain(
                    f"maintenance {maintenance.id} was written over: decided on version {maintenance.version}"
                )

    def _keep_maintenances(self, change: Change) -> None:
        for maintenance in change.maintenances:
            self.maintenances[maintenance.id] = replace(maintenance, version=maintenance.version + 1)
        for maintenance_id in change.wakes:
            known = self.maintenances.get(maintenance_id)
            if known is not None and known.ended is None:
                self.maintenances[maintenance_id] = replace(known, version=known.version + 1)
        everything, budget = change.releases_hold or change.fleet_rules, change.frees_budget
        for known in [m for m in self.maintenances.values() if m.ended is None] if everything or budget else ():
            if everything or known.waits_for_budget:
                self.maintenances[known.id] = replace(known, version=known.version + 1)

    # -- events

    def _check_step(self, was: Event | None, event: Event) -> None:
        status = was.status if was is not None else None
        if status is not event.status and event.status not in NEXT.get(status, ()):
            self.complain(f"event {event.id} went from {status} to {event.status}")
        if was is not None and was.published and (was.published, was.not_before) != (event.published, event.not_before):
            self.complain(f"event {event.id} changed its NotBefore after publication")

    def _record_approval(self, at_ms: int, event_id: str, machine: str) -> None:
        if machine in self.approvals[event_id]:
            self.complain(f"the approval of event {event_id} by {machine or 'an operator'} was recorded twice")
        self.approvals[event_id].add(machine)
        self._approved_at[event_id, machine] = self._wall(at_ms)

    def _check_drills(self, change: Change) -> None:
        for order in change.orders:
            if order.id in self.events and self._is_drill(self.events[order.id]) and order.state is not OrderState.DONE:
                self.complain(f"order {order.id} of a drill is {order.state}")
        for scope in {event.scope for event in change.events}:
            visible = [e for e in self.events.values() if e.scope == scope and e.status in VISIBLE]
            drills = [e for e in visible if self._is_drill(e)]
            if drills and len(drills) < len(visible):
                self.complain(f"event {drills[0].id} of a drill is visible beside a real event")

    def _is_drill(self, event: Event) -> bool:
        return self.maintenances[event.maintenance_id].drill_hold_s > 0

    def _planned(self, event: Event) -> None:
        deadline, requested = self.maintenances[event.maintenance_id].not_after, event.requested_not_before
        if deadline is not None and requested is not None and requested >= deadline:
            self.complain(f"event {event.id} was rescheduled past the deadline of its maintenance")
        if event.replaces and self.events[event.replaces].replaced_by != event.id:
            self.complain(f"event {event.id} replaces {event.replaces}, which did not end for it")

    def _published(self, at_ms: int, event: Event) -> None:
        scope = self.scopes[event.scope]
        self.published_ms[event.id] = at_ms
        self.promised_s[event.id] = promised = _notice_s(scope, event) if scope.enabled else 0
        if event.published is None or event.not_before is None:
            self.complain(f"event {event.id} was published without a NotBefore")
        elif event.not_before - event.published < timedelta(seconds=promised):
            self.complain(f"event {event.id} gives {event.scope} less than its notice of {promised} s")
        elif self._wall(at_ms) - event.published > timedelta(milliseconds=self._late_ms(at_ms)):
            self.complain(f"event {event.id} was visible to no guest for the first part of its notice")

    def _late_ms(self, at_ms: int) -> int:
        """Return how late a commit may follow its decision; the clock may have been set in between."""
        return self._tolerance_ms + self.jumped_ms(at_ms - self._tolerance_ms)

    def jumped_since(self, at_ms: int) -> bool:
        """Whether the clock jumped since a decision, which makes its deadlines meaningless."""
        return self.jumped_ms(at_ms - self._tolerance_ms) > MAX_STEP_MS

    def may_start_early(self, event: Event, decided: datetime | None = None) -> bool:
        """Whether the event may start before its NotBefore.

        A decision need not know approvals that were saved after it was made: an approval conflicts with no other change.
        """
        given = self.approvals[event.id]
        approved_by = {by for by in given if decided is None or self._approved_at[event.id, by] <= decided}
        if event.born_approved or not event.needs_approval or "" in approved_by:
            return True
        if event.approval_mode is ApprovalMode.ALL:
            return approved_by >= set(event.resources)
        return event.approval_mode is ApprovalMode.ANY and bool(approved_by)

    # -- starts

    def _started(
        self,
        at_ms: int,
        change: Change,
        event: Event,
        before: dict[str, Event],
        known: dict[str, Maintenance],
        life: str,
    ) -> None:
        maintenance = self.maintenances[event.maintenance_id]
        held = known.get(event.maintenance_id, maintenance)
        self._check_early(at_ms, event, life)
        if event.started is None or (maintenance.earliest is not None and event.started < maintenance.earliest):
            self.complain(f"event {event.id} started before the earliest start of its maintenance")
        if (
            event.started is not None
            and maintenance.not_after is not None
            and event.started >= maintenance.not_after
            and not event.returns
        ):
            self.complain(f"event {event.id} started after the deadline of its maintenance")
        if (
            event.started is not None
            and event.requested_not_before is not None
            and event.started < event.requested_not_before
        ):
            self.complain(f"event {event.id} started before the time it was rescheduled to")
        if held.paused or held.cancelled:
            self.complain(
                f"event {event.id} started while its maintenance was {'paused' if held.paused else 'cancelled'}"
            )
        if event.id not in self.orders:
            self.complain(f"event {event.id} started without an order")
        for other in self._others_started(event, before):
            if _is_rolling(event) and other.update_domain != event.update_domain:
                self.complain(f"event {event.id} started while event {other.id} had another update domain")
            if not set(event.resources).isdisjoint(other.resources):
                self.complain(f"event {event.id} started while event {other.id} had a machine of it")
        for other in self.events.values():
            if other.maintenance_id == event.maintenance_id and other.wave == event.wave and other.status in WAITING:
                self.complain(f"event {other.id} was left behind by event {event.id} of its wave")
            if (
                other.maintenance_id == event.maintenance_id
                and maintenance.on_failure is OnFailure.HOLD
                and self._failed(other)
            ):
                self.complain(f"event {event.id} started though its maintenance is held by {other.id}, which failed")
        self._check_overtaken(event, maintenance, change.at)

    def _check_early(self, at_ms: int, event: Event, life: str) -> None:
        """Check the start by the wall clock, and by a clock that cannot be set."""
        if self.may_start_early(event):
            return
        if event.not_before is None or event.started is None or event.started < event.not_before:
            self.early.add(event.id)
            self.complain(f"event {event.id} started before its NotBefore and without approval")
        published_ms = self.published_ms.get(event.id, at_ms)
        lived_ms = at_ms - published_ms
        promised_ms = self.promised_s.get(event.id, 0) * 1_000
        if lived_ms < promised_ms - self._tolerance_ms - self._excused_ms(published_ms, life):
            self.early.add(event.id)
            self.complain(f"event {event.id} started {lived_ms / 1000:g} s after its publication, without approval")

    def _excused_ms(self, since_ms: int, life: str) -> int:
        """Return the jumps that excuse an early start: small steps, jumps that an operator confirmed, and jumps that the node
        could not know of."""
        excused_ms = 0
        since_ms -= self._tolerance_ms  # the publishing node may not have noticed a jump just before
        for at_ms, by_ms in self._jumps:
            confirmed = any(confirmed_ms >= at_ms for confirmed_ms in self._confirmed_ms)
            if at_ms >= since_ms and by_ms > 0 and (by_ms <= MAX_STEP_MS or confirmed or self._unknown(at_ms, life)):
                excused_ms += by_ms
        return excused_ms

    def _unknown(self, jumped_ms: int, life: str) -> bool:
        """Whether the node could not know of a jump: its record was lost in a failover, or the node's machine started after
        the jump and no node whose machine ran before it has saved it."""
        holds = [(at_ms, holder) for at_ms, holder in self._holds if self._ran_before(holder, jumped_ms) <= at_ms]
        lost = [(at_ms, holder) for at_ms, holder in self._lost_holds if self._ran_before(holder, jumped_ms) <= at_ms]
        first = min((*holds, *lost), default=None)
        if first is not None and first in lost:
            return True
        return not holds and self._machine_started_ms.get(life, 0) > jumped_ms

    def _ran_before(self, life: str, jumped_ms: int) -> float:
        """Return the moment of the jump if the life's machine ran before it, else infinity."""
        return jumped_ms if self._machine_started_ms.get(life, 0) <= jumped_ms else math.inf

    def _others_started(self, event: Event, before: dict[str, Event]) -> Iterator[Event]:
        """Yield events that had started before, and rolling events that start in the same commit as this rolling event."""
        for other in self.events.values():
            if other.id != event.id and other.scope == event.scope and other.status is Status.STARTED:
                was = before.get(other.id)
                together = was is None or was.status is not Status.STARTED
                if not together or (_is_rolling(other) and _is_rolling(event)):
                    yield other

    def _failed(self, event: Event) -> bool:
        order = self.orders.get(event.id)
        return event.status is Status.STARTED and order is not None and order.state is OrderState.FAILED

    def _check_overtaken(self, event: Event, maintenance: Maintenance, now: datetime) -> None:
        """Check that no other maintenance with an earlier position in the queue was due in this scope."""
        own = [e for e in self.events.values() if (e.maintenance_id, e.wave) == (event.maintenance_id, event.wave)]
        position = min(_queue_position(e, maintenance) for e in own if e.status is Status.STARTED)
        for other in self.events.values() if not event.emergency else ():
            if other.scope != event.scope or other.status is not Status.SCHEDULED:
                continue
            rival = self.maintenances[other.maintenance_id]
            if _queue_position(other, rival) < position and self._surely_due(rival, now):
                self.complain(f"event {event.id} overtook event {other.id} in {event.scope}")

    def _surely_due(self, maintenance: Maintenance, decided: datetime) -> bool:
        now = decided if self._trusted is None else min(decided, self._trusted)
        if maintenance.paused or (maintenance.earliest is not None and maintenance.earliest > now):
            return False
        if maintenance.not_after is not None and maintenance.not_after <= decided:
            return False
        events = [e for e in self.events.values() if e.maintenance_id == maintenance.id]
        candidates = [e for e in events if e.status in VISIBLE or (e.status is Status.PLANNED and e.born_approved)]
        return all(
            e.status is Status.SCHEDULED
            and self._surely_has_target(e)
            and not self.scopes[e.scope].windows  # it may wait for one
            and (e.requested_not_before is None or e.requested_not_before <= now)
            and (self.may_start_early(e, decided) or _notice_has_ended(e, maintenance.observed_published_at, now))
            for e in candidates
        )

    def _check_waves(self, maintenance_id: str) -> None:
        """Check that one wave is visible at a time, unless on_failure = continue."""
        if self.maintenances[maintenance_id].on_failure is OnFailure.CONTINUE:
            return
        waves = {e.wave for e in self.events.values() if e.maintenance_id == maintenance_id and e.status in VISIBLE}
        if len(waves) > 1:
            self.complain(f"waves {sorted(waves)} of maintenance {maintenance_id} are visible at once")

    # -- documents

    def _check_scopes(self, at_ms: int, change: Change) -> None:
        """Check that the incarnation counts the changes of the document and that only enabling starts an epoch."""
        written = {scope.name: scope for scope in change.scopes}
        for name in dict.fromkeys([*written, *(event.scope for event in change.events)]):
            known, scope = self.scopes.get(name), written.get(name, self.scopes.get(name))
            if scope is None:
                self.complain(f"scope {name} has events and does not exist")
                continue
            content = self.content(name)
            if known is not None:
                self._check_stage(known, scope, content)
            if name in written:
                self.scopes[name] = replace(scope, version=scope.version + 1)
            stage = (scope.epoch, scope.incarnation)
            if self.contents.setdefault((name, stage), content) != content:
                self.complain(f"incarnation {stage[1]} of {name} in epoch {stage[0]} had two contents")
            self.stages[name].append((at_ms, stage))

    def _check_stage(self, known: Scope, scope: Scope, content: Content) -> None:
        name = scope.name
        before = self.contents.get((name, (known.epoch, known.incarnation)), frozenset())
        if scope.epoch != known.epoch:
            if known.enabled or not scope.enabled or (scope.epoch, scope.incarnation) != (known.epoch + 1, 1):
                self.complain(f"{name} went from epoch {known.epoch} to {scope.epoch} in a way it must not")
        elif scope.enabled and not known.enabled:
            self.complain(f"{name} was enabled and kept its epoch")
        elif scope.incarnation != known.incarnation + (content != before):
            self.complain(f"the incarnation of {name} went from {known.incarnation} to {scope.incarnation}")
        if known.changed is not None and (scope.changed is None or scope.changed < known.changed):
            self.complain(f"time ran backwards for {name}")


def _notice_s(scope: Scope, event: Event) -> int:
    """Return the minimum notice of the contract's table, or the higher one of the scope."""
    if event.type is EventType.TERMINATE:
        return scope.terminate_notice_s
    return max(NOTICE_S[event.type], scope.minimum_notice_s.get(event.type, 0))


def _notice_has_ended(event: Event, observed: datetime | None, now: datetime) -> bool:
    """Whether NotBefore has passed, and the minimum notice since a tick read the event as published."""
    if event.not_before is None or event.not_before > now:
        return False
    notice = timedelta(seconds=event.minimum_notice_s)
    return not notice or (observed is not None and observed + notice <= now)


def _is_rolling(event: Event) -> bool:
    return event.source is Source.PLATFORM and event.type in ROLLING and not event.emergency


def _queue_position(event: Event, maintenance: Maintenance) -> tuple[datetime, str]:
    since = None if event.born_approved else event.not_before
    return since or maintenance.created, maintenance.id
