"""The invariants: what must be true of every change, checked independently of the rules that should ensure it.

`check_invariants` compares the snapshot before a decision with the snapshot after it and raises InvariantBroken with the
number of the invariant in the design's list. It shares no predicate with `lifecycle` or `waiting`, so that a mistake
there cannot hide itself here.
"""

from collections import defaultdict
from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from operator import attrgetter

from forewarn.core.amounts import parse_amount
from forewarn.core.change import Snapshot, UnreadEvents
from forewarn.core.errors import InvariantBroken
from forewarn.core.fast_init import replace
from forewarn.core.model import (
    DEFAULT_STRATEGY,
    ENDED,
    UNSTARTED,
    VISIBLE,
    ApprovalMode,
    Event,
    HostMode,
    Maintenance,
    OnFailure,
    Order,
    OrderState,
    Phase,
    Status,
)
from forewarn.core.windows import StartLimits

# 7. Statuses never go backwards, and ended statuses are final.
_STEPS = {
    None: {Status.PLANNED, Status.SCHEDULED, Status.STARTED},
    Status.PLANNED: {Status.SCHEDULED, Status.STARTED, Status.CANCELLED},
    Status.SCHEDULED: {Status.STARTED, Status.CANCELLED},
    Status.STARTED: {Status.COMPLETED, Status.ABANDONED},
}
# 11. An order that was taken is open again only as a new attempt.
_ORDER_STEPS = {
    None: {OrderState.OPEN},
    OrderState.OPEN: {OrderState.RUNNING, OrderState.DONE, OrderState.FAILED},
    OrderState.RUNNING: {OrderState.IN_DOUBT, OrderState.DONE, OrderState.FAILED},
    OrderState.IN_DOUBT: {OrderState.RUNNING, OrderState.DONE, OrderState.FAILED},
    OrderState.FAILED: {OrderState.DONE},
}
# An order of a host is planned first. It can be dropped before it is taken, and abandoned when it failed or is in doubt.
_HOST_STEPS = {
    None: {OrderState.PLANNED, OrderState.OPEN},
    OrderState.PLANNED: {OrderState.OPEN, OrderState.FAILED, OrderState.CANCELLED, OrderState.ABANDONED},
    OrderState.OPEN: {OrderState.RUNNING, OrderState.DONE, OrderState.FAILED, OrderState.CANCELLED},
    OrderState.RUNNING: {OrderState.IN_DOUBT, OrderState.DONE, OrderState.FAILED},
    OrderState.IN_DOUBT: {OrderState.RUNNING, OrderState.DONE, OrderState.FAILED, OrderState.ABANDONED},
    OrderState.FAILED: {OrderState.DONE, OrderState.ABANDONED},
}
_MAY_BE_RETRIED = {OrderState.FAILED, OrderState.IN_DOUBT}
_WORK_MAY_BEGIN = {OrderState.OPEN, OrderState.RUNNING}
_WORK_IN_HAND = {OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT}
_WORK_MAY_GO_ON = {OrderState.PLANNED, OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT}
# 3. The fields of an event that never change.
_IDENTITY = (
    "maintenance_id", "position", "scope", "update_domain", "type", "source", "resources", "replaces",
    "requested_not_before",
)  # fmt: skip
_identity = attrgetter(*_IDENTITY)
_NO_LIMITS = StartLimits((), ())


def check_invariants(before: Snapshot, after: Snapshot, now: datetime) -> None:
    """Raise InvariantBroken if the step from `before` to `after` at `now` breaks an invariant."""
    changed = []
    for event in after.events.values():
        known = before.events.get(event.id)
        if known is event or known == event:
            continue
        changed.append(event)
        _check_identity(known, event)
        _check_resources(event)
        _check_approvals(event)
        _check_notice(before, event)
        _check_start(after, event)
        _check_rescheduled(before, after, event)
    for order in after.orders.values():
        earlier = before.orders.get(order.id)
        if earlier is not order:
            if _is_drill(after, after.events.get(order.id)):
                _check_drill_order(order)
                continue
            _check_order(earlier, order, after.events.get(order.id))
            _check_phase(after, earlier, order)
            _check_host_order(after, earlier, order)
    started = [e for e in changed if e.status is Status.STARTED and _status_before(before, e) is not Status.STARTED]
    _check_not_held(before, after, started)
    if changed:
        _check_changed_events(before, after, now, changed, started)
    _check_fleet_budgets(before, after, changed)
    _check_scopes(before, after, _changed_documents(before, after, changed))


def _check_changed_events(
    before: Snapshot, after: Snapshot, now: datetime, changed: list[Event], started: list[Event]
) -> None:
    """Check the changed events beside the other events of their scopes and maintenances."""
    by_scope, by_maintenance = _grouped(after)
    if started:
        _check_started_together(by_maintenance, started)
        _check_visible_long_enough(after, started)
        _check_trusted(before, started)
        _check_windows(after, started)
        trusted = now if before.hold is None else min(now, before.hold.trusted)
        _check_not_overtaken(before, after, by_scope, by_maintenance, started, (trusted, now))
        _check_guard(before, by_scope, started)
    for scope in {e.scope for e in changed}:
        visible = [e for e in by_scope[scope] if e.status in VISIBLE]
        started_in_scope = [e for e in visible if e.status is Status.STARTED]
        _check_domains(started_in_scope)
        _check_machines(started_in_scope)
        _check_drills(after, visible)
    _check_scope_budgets(before, after, by_scope, changed)
    for maintenance_id in {e.maintenance_id for e in changed}:
        _check_one_wave_visible(after, after.maintenances[maintenance_id], by_maintenance[maintenance_id])
        _check_domains_of_waves(by_maintenance[maintenance_id])
    _check_strategy(before, after, changed)


def _broken(number: int, sentence: str) -> InvariantBroken:
    return InvariantBroken(f"invariant {number}: {sentence}; nothing was saved, please report this")


def _status_before(before: Snapshot, event: Event) -> Status | None:
    known = before.events.get(event.id)
    return known.status if known is not None else None


def _grouped(snapshot: Snapshot) -> tuple[dict[str, list[Event]], dict[str, list[Event]]]:
    """Return the open events by scope and by maintenance."""
    by_scope: dict[str, list[Event]] = defaultdict(list)
    by_maintenance: dict[str, list[Event]] = defaultdict(list)
    for event in snapshot.events.values():
        if event.status not in ENDED:
            by_scope[event.scope].append(event)
            by_maintenance[event.maintenance_id].append(event)
    return by_scope, by_maintenance


def _check_identity(known: Event | None, event: Event) -> None:
    """3. An event keeps its identity. 7. Its status moves forward. 2. NotBefore never changes after publication."""
    if known is not None:
        for name in _IDENTITY if _identity(known) != _identity(event) else ():
            if getattr(known, name) != getattr(event, name):
                raise _broken(3, f"event {event.id} would change its {name}")
        may_move_back = known.status is event.status is Status.PLANNED and known.requested_not_before is not None
        if event.wave != known.wave and not (may_move_back and event.wave > known.wave):
            raise _broken(3, f"event {event.id} would change its wave")
        if known.published is not None and (known.published, known.not_before) != (
            event.published,
            event.not_before,
        ):
            raise _broken(2, f"event {event.id} would change its NotBefore after publication")
    status = known.status if known is not None else None
    if status is not event.status and event.status not in _STEPS.get(status, ()):
        raise _broken(7, f"event {event.id} would go from {status} to {event.status}")


def _check_resources(event: Event) -> None:
    if not event.resources or list(event.resources) != sorted(set(event.resources)):
        raise _broken(5, f"event {event.id} would have resources that are empty, unsorted or duplicated")


def _check_approvals(event: Event) -> None:
    machines = [a.machine for a in event.approvals]
    if len(machines) != len(set(machines)):
        raise _broken(9, f"event {event.id} would record an approval twice")


def _check_notice(before: Snapshot, event: Event) -> None:
    """2. The event gives the minimum notice, unless the scope was disabled or the event was approved at creation."""
    if event.published is None or event.not_before is None or event.born_approved:
        return
    known = before.events.get(event.id)
    scope = before.scopes.get(event.scope)
    if scope is None or not scope.enabled or (known is not None and known.published is not None):
        return
    if event.not_before - event.published < timedelta(seconds=scope.notice_s(event.type)):
        raise _broken(2, f"event {event.id} would give {event.scope} less than its minimum notice")


def _check_start(after: Snapshot, event: Event) -> None:
    """1. Approved, past NotBefore, or needing no approval; not before `earliest`, and before `not_after`. 11. It has an order."""
    if event.started is None:
        return
    maintenance = after.maintenances[event.maintenance_id]
    past_not_before = event.not_before is not None and event.started >= event.not_before
    if not past_not_before and not _may_start_early(event):
        raise _broken(1, f"event {event.id} would start without approval and before its NotBefore")
    earliest = maintenance.earliest
    if earliest is not None and event.started < earliest:
        raise _broken(1, f"event {event.id} would start before the earliest start of its maintenance")
    if maintenance.not_after is not None and event.started >= maintenance.not_after and not event.returns:
        raise _broken(1, f"event {event.id} would start after the deadline of its maintenance")
    if event.requested_not_before is not None and event.started < event.requested_not_before:
        raise _broken(1, f"event {event.id} would start before the time it was rescheduled to")
    if event.id not in after.orders:
        raise _broken(11, f"event {event.id} would be Started without an order")


def _check_rescheduled(before: Snapshot, after: Snapshot, event: Event) -> None:
    """1. No event is rescheduled past the deadline. 3. It replaces an event that is cancelled and names it."""
    if event.id in before.events:
        return
    deadline, requested = after.maintenances[event.maintenance_id].not_after, event.requested_not_before
    if deadline is not None and requested is not None and requested >= deadline:
        raise _broken(1, f"event {event.id} would be rescheduled past the deadline of its maintenance")
    replaced = after.events.get(event.replaces)
    if event.replaces and (
        replaced is None or replaced.status is not Status.CANCELLED or replaced.replaced_by != event.id
    ):
        raise _broken(3, f"event {event.id} would replace event {event.replaces}, which does not end for it")


def _check_order(known: Order | None, order: Order, event: Event | None) -> None:
    """11. Only a new attempt lets work begin again. An order in doubt names its node, and no time limit ends it."""
    if known is not None and (known.host, known.maintenance_id) != (order.host, order.maintenance_id):
        raise _broken(11, f"order {order.id} would belong to another host or maintenance")
    # A host that was rescheduled moves back again if another one gets an earlier time.
    may_move_back = order.reschedules > 0 and order.state is OrderState.PLANNED
    if (
        known is not None
        and known.position != order.position
        and not (may_move_back and order.position > known.position)
    ):
        raise _broken(11, f"the turn of order {order.id} would change, and nobody rescheduled its host")
    stopped = known is not None and (known.phase, order.phase) == (Phase.STOP, Phase.START)
    if known is not None and order.attempt != known.attempt:
        retried = order.attempt == known.attempt + 1 and order.state is OrderState.OPEN
        starts_again = known.state is OrderState.PLANNED and known.phase is order.phase is Phase.START
        if not retried or (known.state not in _MAY_BE_RETRIED and not starts_again):
            raise _broken(
                11, f"order {order.id} would go from attempt {known.attempt}, which is {known.state}, to another"
            )
    elif known is None or known.state is not order.state:
        state = known.state if known is not None else None
        steps = _HOST_STEPS if order.host else _ORDER_STEPS
        if order.state not in ({OrderState.PLANNED} if stopped else steps.get(state, ())):
            raise _broken(11, f"order {order.id} would go from {state} to {order.state} within one attempt")
    if order.state is OrderState.IN_DOUBT:
        if not order.node or order.deadline is not None:
            raise _broken(11, f"order {order.id} would be in doubt without a node, or with a time limit")
        if event is not None and event.status is not Status.STARTED:
            raise _broken(11, f"order {order.id} would be in doubt although its event is {event.status}")


def _is_drill(after: Snapshot, event: Event | None) -> bool:
    return event is not None and after.maintenances[event.maintenance_id].drill_hold_s > 0


def _check_drill_order(order: Order) -> None:
    """11. The order of a drill is done from the beginning: no executor gets it."""
    if order.state is not OrderState.DONE:
        raise _broken(11, f"order {order.id} of a drill would be {order.state}")


def _check_drills(after: Snapshot, visible: list[Event]) -> None:
    """15. Drill events end when a real event is published in their scope."""
    drills = [event for event in visible if _is_drill(after, event)]
    if drills and len(drills) < len(visible):
        raise _broken(15, f"event {drills[0].id} of a drill would be visible beside a real event of {drills[0].scope}")


def _check_phase(after: Snapshot, known: Order | None, order: Order) -> None:
    """11. Machines are shut down only in a started event, and started again only when the work on their host is over."""
    if not order.phase or order.state not in _WORK_MAY_GO_ON:
        return
    event = after.events.get(order.id)
    if event is None or event.status is not Status.STARTED:
        raise _broken(11, f"order {order.id} would shut machines down, and no started event announces it")
    begins = known is None or (known.state, known.attempt) != (order.state, order.attempt)
    for host in after.orders.values() if begins and order.phase is Phase.START else ():
        of_event = (host.maintenance_id, host.host) == (event.maintenance_id, event.host)
        if of_event and order.state in _WORK_MAY_BEGIN and host.state in _WORK_MAY_GO_ON:
            raise _broken(
                11, f"order {order.id} would start machines while the work on host {host.host} is {host.state}"
            )


def _check_host_order(after: Snapshot, known: Order | None, order: Order) -> None:
    """11. Work on a host begins only while no machine is on it, or in place while all of them are shut down.

    No other maintenance works on the host then.

    Machines that arrive later are facts: they do not undo work that has begun.
    """
    begins = known is None or (known.state, known.attempt, known.node) != (order.state, order.attempt, order.node)
    if not order.host or order.state not in _WORK_MAY_BEGIN or not begins:
        return
    if known is not None and (known.state, order.state) == (OrderState.RUNNING, OrderState.RUNNING):
        return  # another node takes over work that has begun
    if known is not None and (known.state, order.state) == (OrderState.IN_DOUBT, OrderState.RUNNING):
        return
    if order.host not in after.read_hosts:
        raise _broken(11, f"the work on host {order.host} would begin, and its machines are not known")
    for other in after.orders.values():
        if other.host == order.host and other.id != order.id and other.state in _WORK_IN_HAND:
            raise _broken(
                11, f"the work on host {order.host} would begin while order {other.id} of it is {other.state}"
            )
    in_place = after.maintenances[order.maintenance_id].host_mode is HostMode.IN_PLACE
    shut_down = {
        (event.scope, name)
        for event in after.events.values()
        if in_place and event.maintenance_id == order.maintenance_id and event.status is Status.STARTED
        if (work := after.orders[event.id]).phase is Phase.START and work.state is OrderState.PLANNED
        for name in event.resources
    }
    for machine in after.machines.values():
        if machine.host == order.host and machine.key not in shut_down:
            raise _broken(11, f"the work on host {order.host} would begin while {machine} is on it")


def _check_visible_long_enough(after: Snapshot, started: Iterable[Event]) -> None:
    """2. An event without approval starts only after guests could see it for the minimum notice."""
    for event in started:
        maintenance = after.maintenances[event.maintenance_id]
        if (
            not _may_start_early(event)
            and event.started is not None
            and not _visible_long_enough(maintenance, event, event.started)
        ):
            raise _broken(2, f"event {event.id} would start before guests could see it for its minimum notice")


def _visible_long_enough(maintenance: Maintenance, event: Event, now: datetime) -> bool:
    notice, observed = timedelta(seconds=event.minimum_notice_s), maintenance.observed_published_at
    return not notice or (observed is not None and now - observed >= notice)


def _check_trusted(before: Snapshot, started: Iterable[Event]) -> None:
    """1. While the clock is held, no event starts because of time that passed after the last trusted reading."""
    hold = before.hold
    for event in started if hold is not None else ():
        maintenance = before.maintenances.get(event.maintenance_id)
        moments = [
            None if _may_start_early(event) else event.not_before,
            event.requested_not_before,
            maintenance.earliest if maintenance is not None else None,
        ]
        if any(moment is not None and hold is not None and moment > hold.trusted for moment in moments):
            raise _broken(1, f"event {event.id} would start by a clock that jumped and that no operator confirmed")


def _check_windows(after: Snapshot, started: Iterable[Event]) -> None:
    """1. Platform Freeze/Reboot/Redeploy without emergency starts inside its windows, and in no no-go time."""
    for event in started:
        if event.one_domain_at_a_time and event.started is not None and not _limits(after, event).allow(event.started):
            raise _broken(1, f"event {event.id} would start outside its window or in a no-go time")


def _limits(after: Snapshot, event: Event) -> StartLimits:
    """Return the windows and no-go times of one event, whatever the rest of its wave."""
    rules, scope = after.fleet_rules, after.scopes.get(event.scope) or after.other_scopes.get(event.scope)
    opened = scope is None or (scope.approval_opens_window and _is_approved(event))
    choices = (
        () if scope is None or opened else scope.windows,
        after.maintenances[event.maintenance_id].strategy.windows,
    )
    if not (rules.no_go_times or any(choices)):
        return _NO_LIMITS
    machines = {(event.scope, name) for name in event.resources}
    windows = [tuple(rules.windows[name] for name in names if name in rules.windows) for names in choices if names]
    no_go_times = [
        no_go
        for no_go in rules.no_go_times.values()
        if (not no_go.scopes or event.scope in no_go.scopes)
        and (not no_go.labels or not machines.isdisjoint(after.no_go_machines.get(no_go.name, ())))
    ]
    return StartLimits(tuple(windows), tuple(no_go_times))


def _certainly_in_window(after: Snapshot, event: Event, moments: tuple[datetime, ...]) -> bool:
    """Whether no window holds the event back."""
    if not event.one_domain_at_a_time:
        return True
    scope, limits = after.scopes.get(event.scope), _limits(after, event)
    changed = min(moments) if scope is None or scope.changed is None else scope.changed
    return all(limits.allow(max(moment, changed)) for moment in moments) and all(map(limits.allow, moments))


def _check_not_held(before: Snapshot, after: Snapshot, started: Iterable[Event]) -> None:
    """1. While the store is held, no event starts. 11. No order is handed out either."""
    if before.store_hold is None:
        return
    for event in started:
        raise _broken(1, f"event {event.id} would start while the store is held")
    for order in after.orders.values():
        known = before.orders.get(order.id)
        handed_out = known is None or (known.state, known.node) != (order.state, order.node)
        if order.state is OrderState.RUNNING and handed_out:
            raise _broken(11, f"order {order.id} would be handed out while the store is held")


def _may_start_early(event: Event) -> bool:
    """Whether the event may start before its NotBefore: approved at creation, needing no approval, or approved since."""
    return event.born_approved or not event.needs_approval or _is_approved(event)


def _is_approved(event: Event) -> bool:
    if not event.approvals:
        return False
    approved_by = {a.machine for a in event.approvals}
    enough = {
        ApprovalMode.ANY: True,
        ApprovalMode.ALL: approved_by >= set(event.resources),
        ApprovalMode.OPERATOR: False,
    }
    return "" in approved_by or enough[event.approval_mode]


def _check_started_together(by_maintenance: dict[str, list[Event]], started: Iterable[Event]) -> None:
    """8. Events of a wave start in one transaction."""
    for maintenance_id, wave in {(e.maintenance_id, e.wave) for e in started}:
        for event in by_maintenance[maintenance_id]:
            if event.wave == wave and event.status in UNSTARTED:
                raise _broken(8, f"event {event.id} would be left behind by the other events of its wave")


def _check_one_wave_visible(after: Snapshot, maintenance: Maintenance, events: Iterable[Event]) -> None:
    """8. Wave n+1 is not visible while wave n is; with on_failure = continue a failed event does not count."""
    waves = {e.wave for e in events if e.status in VISIBLE and not _passed_over(after, maintenance, e)}
    if len(waves) > 1:
        raise _broken(8, f"waves {sorted(waves)} of maintenance {maintenance.id} would be visible at once")


def _passed_over(after: Snapshot, maintenance: Maintenance, event: Event) -> bool:
    """Whether a failed event let the next wave go on; a retry does not hide that wave again."""
    order = after.orders.get(event.id)
    failed = order is not None and (order.state is OrderState.FAILED or order.attempt > 1)
    return failed and maintenance.on_failure is OnFailure.CONTINUE


def _check_domains(started: Iterable[Event]) -> None:
    """6. Platform Freeze/Reboot/Redeploy without emergency: at most one update domain of a scope started at a time."""
    domains = {e.update_domain for e in started if e.one_domain_at_a_time}
    if len(domains) > 1:
        raise _broken(6, f"update domains {sorted(domains)} of one scope would have started events at once")


def _check_domains_of_waves(events: Iterable[Event]) -> None:
    """6. The events of a wave start together, so a scope has one update domain in it."""
    domains: dict[tuple[int, str], int] = {}
    for event in events:
        domain = domains.setdefault((event.wave, event.scope), event.update_domain)
        if domain != event.update_domain and event.one_domain_at_a_time:
            raise _broken(
                6, f"wave {event.wave} would have update domains {domain} and {event.update_domain} of {event.scope}"
            )


def _check_strategy(before: Snapshot, after: Snapshot, changed: Iterable[Event]) -> None:
    """8. No wave follows before the bake time, before an operator lets it continue, or at the limit of failures."""
    moved: dict[str, list[Event]] = defaultdict(list)
    for event in changed:
        if event.status in VISIBLE and _status_before(before, event) is not event.status:
            moved[event.maintenance_id].append(event)
    for maintenance in (after.maintenances[each] for each in moved):
        strategy, wave = maintenance.strategy, moved[maintenance.id]
        if strategy == DEFAULT_STRATEGY:
            continue
        number = max(e.wave for e in wave)
        if maintenance.continued_after < strategy.pause_after < number:
            raise _broken(8, f"wave {number} of maintenance {maintenance.id} would follow without an operator")
        events = [e for e in after.events.values() if e.maintenance_id == maintenance.id]
        hosts = [o for o in after.orders.values() if o.host and o.maintenance_id == maintenance.id]
        failed = sum(e.status is Status.STARTED and after.orders[e.id].state is OrderState.FAILED for e in events)
        failed += sum(o.state is OrderState.FAILED for o in hosts)
        replaced = sum(bool(e.replaced_by) for e in events)
        unread = after.unread.get(maintenance.id) or UnreadEvents(len(events) - 1, replaced=replaced)
        orders = unread.last_position + 1 - unread.replaced + len(hosts)
        if strategy.max_failures and failed >= parse_amount(strategy.max_failures).of(orders):
            raise _broken(8, f"wave {number} of maintenance {maintenance.id} would move on after {failed} failures")
        ends = [e.ended or after.orders[e.id].ended for e in events if e.wave < number and e.started is not None]
        ends.append(unread.last_ended)
        last = max((end for end in ends if end is not None), default=None)
        published = [e.published for e in wave if e.published is not None and e.status is Status.SCHEDULED]
        trusted = [before.hold.trusted] if before.hold is not None else []
        bake = timedelta(seconds=strategy.bake_s)
        if bake and last is not None and published and min(published + trusted) - last < bake:
            raise _broken(8, f"wave {number} of maintenance {maintenance.id} would not wait for the bake time")


def _check_guard(before: Snapshot, by_scope: dict[str, list[Event]], started: Iterable[Event]) -> None:
    """6. Rolling maintenance does not start while any event is started in another update domain of its scope."""
    for event in started:
        for other in by_scope[event.scope] if event.one_domain_at_a_time else ():
            was_started = _status_before(before, other) is Status.STARTED and other.status is Status.STARTED
            if was_started and other.update_domain != event.update_domain:
                raise _broken(
                    6, f"event {event.id} would start while event {other.id} is started in another update domain"
                )


def _check_scope_budgets(
    before: Snapshot, after: Snapshot, by_scope: dict[str, list[Event]], changed: Iterable[Event]
) -> None:
    """16. A published event fits into `max_unavailable` beside what was visible before; other events may exceed it."""
    if not [scope for scope in after.scopes.values() if scope.max_unavailable]:
        return
    published = {e.id: e for e in changed if _becomes_visible(before, e) and e.one_domain_at_a_time}
    for name in {e.scope for e in published.values()}:
        scope = after.scopes.get(name)
        if scope is None or not scope.max_unavailable:
            continue
        known = {n for e in by_scope[scope.name] if _stays_visible(before, e) for n in e.resources}
        new = {n for e in by_scope[scope.name] if e.id in published for n in e.resources}
        number = int(scope.max_unavailable.rstrip("%"))
        if scope.max_unavailable.endswith("%"):
            number = max(1, before.machine_counts.get(scope.name, 0) * number // 100)
        if not new <= known and len(new | known) > number:
            raise _broken(16, f"{len(new | known)} machines of {scope.name} would be unavailable, and {number} may be")


def _check_fleet_budgets(before: Snapshot, after: Snapshot, changed: Iterable[Event]) -> None:
    """16. What is published, and work on a host that begins, fits into the budgets of the fleet beside what was down before."""
    rules, use = after.fleet_rules, before.fleet_use
    if rules.max_machines_down:
        bound = [e for e in changed if e.one_domain_at_a_time and _becomes_visible(before, e)]
        new = {(e.scope, name) for e in bound for name in e.resources}
        was = {(e.scope, name) for e in before.events.values() if e.status in VISIBLE for name in e.resources}
        stays = {(e.scope, n) for e in after.events.values() if _stays_visible(before, e) for n in e.resources}
        down = use.machines - len(was) + len(stays | new)
        if not new <= stays and down > rules.max_machines_down:
            raise _broken(16, f"{down} machines of the fleet would be down, and {rules.max_machines_down} may be")
    if rules.max_hosts_down:
        worked_on = _hosts_worked_on(after)
        new_hosts = worked_on - _hosts_worked_on(before)
        bound_hosts = {host for i, host in new_hosts if not after.maintenances[i].emergency}
        stay = {host for i, host in use.hosts if i not in after.maintenances} | {h for _, h in worked_on - new_hosts}
        if not bound_hosts <= stay and len(stay | bound_hosts) > rules.max_hosts_down:
            many = len(stay | bound_hosts)
            raise _broken(16, f"{many} hosts of the fleet would be down, and {rules.max_hosts_down} may be")


def _hosts_worked_on(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Return the maintenances with the hosts that they take down: from a published event to the end of the work."""
    begun = {*VISIBLE, Status.COMPLETED}
    turns = {(e.maintenance_id, e.host) for e in snapshot.events.values() if e.status in begun and e.host}
    visible = [e for e in snapshot.events.values() if e.status in VISIBLE]
    hosts = {(e.maintenance_id, e.host) for e in visible if e.host}
    by_host = {m.id for m in snapshot.maintenances.values() if m.strategy.group_by == "host"}
    hosts |= {(e.maintenance_id, e.group) for e in visible if e.group and e.maintenance_id in by_host}
    unended = {*_WORK_MAY_GO_ON, OrderState.FAILED}
    for order in snapshot.orders.values():
        pair = (order.maintenance_id, order.host)
        if order.host and order.state in unended and (order.state is not OrderState.PLANNED or pair in turns):
            hosts.add(pair)
    return {(i, host) for i, host in hosts if i in snapshot.maintenances}


def _becomes_visible(before: Snapshot, event: Event) -> bool:
    return event.status in VISIBLE and _status_before(before, event) not in VISIBLE


def _stays_visible(before: Snapshot, event: Event) -> bool:
    return event.status in VISIBLE and _status_before(before, event) in VISIBLE


def _check_machines(started: Iterable[Event]) -> None:
    """6. A machine is in at most one started event."""
    event_of_machine: dict[str, str] = {}
    for event in started:
        for name in event.resources:
            if name in event_of_machine:
                raise _broken(
                    6,
                    f"machine {event.scope}/{name} would be in started events {event_of_machine[name]} and {event.id} at once",
                )
            event_of_machine[name] = event.id


def _check_not_overtaken(
    before: Snapshot,
    after: Snapshot,
    by_scope: dict[str, list[Event]],
    by_maintenance: dict[str, list[Event]],
    started: Iterable[Event],
    moments: tuple[datetime, ...],
) -> None:
    """8. Due waves do not overtake each other in a scope."""
    positions: dict[str, tuple[datetime, str]] = {}
    for event in started:
        position = _queue_position(after, event)
        positions[event.maintenance_id] = min(position, positions.get(event.maintenance_id, position))
    for event in started:
        for other in by_scope[event.scope] if not event.emergency else ():
            position = positions[event.maintenance_id]
            if other.status is Status.SCHEDULED and _queue_position(after, other) < position:
                maintenance = after.maintenances[other.maintenance_id]
                held_at_deadline = after.hold is not None and maintenance.not_after is not None
                events = by_maintenance[other.maintenance_id]
                stranded = any(_may_lack_target(before, after, maintenance, e) for e in events)
                if not held_at_deadline and not stranded and _certainly_due(after, maintenance, events, moments):
                    raise _broken(8, f"event {event.id} would overtake event {other.id} in {event.scope}")


def _queue_position(after: Snapshot, event: Event) -> tuple[datetime, str]:
    """Return (NotBefore, id), with the time of submission for an event that guests do not see before it starts."""
    maintenance = after.maintenances[event.maintenance_id]
    since = None if event.born_approved else event.not_before
    return since or maintenance.created, maintenance.id


def _may_lack_target(before: Snapshot, after: Snapshot, maintenance: Maintenance, event: Event) -> bool:
    """Whether the machines of an event that leave their host could go nowhere, before the change or after it."""
    hosts = before.target_hosts
    if hosts is None or maintenance.host_mode is not HostMode.EVACUATE or event.status is not Status.SCHEDULED:
        return False
    rows = ({**hosts.rows, **each.hosts} for each in (before, after))
    return any(replace(hosts, rows=each).no_target(event.host, event.to_host) for each in rows)


def _certainly_due(
    after: Snapshot, maintenance: Maintenance, events: Iterable[Event], moments: tuple[datetime, ...]
) -> bool:
    """Whether the maintenance was due beyond doubt: all its visible events may start, none has started, it is not paused."""
    now = min(moments)
    if maintenance.paused or (maintenance.earliest is not None and maintenance.earliest > now):
        return False
    if maintenance.not_after is not None and maintenance.not_after <= max(moments):
        return False  # a later tick cancels it
    candidates = [e for e in events if e.status is not Status.PLANNED or e.born_approved]
    return all(
        e.status is Status.SCHEDULED
        and _certainly_in_window(after, e, moments)
        and (e.requested_not_before is None or e.requested_not_before <= now)
        and (
            not e.needs_approval
            or _is_approved(e)
            or ((e.not_before or now) <= now and _visible_long_enough(maintenance, e, now))
        )
        for e in candidates
    )


def _check_scopes(before: Snapshot, after: Snapshot, changed_documents: Container[str]) -> None:
    """4. The incarnation follows the visible document. 13. Time does not run backwards for a scope."""
    for name, scope in after.scopes.items():
        known = before.scopes.get(name)
        if known is None or known is scope:
            if known is not None and name in changed_documents:
                raise _broken(4, f"the document of {name} would change while its incarnation stays")
            continue
        expected = known.incarnation + (name in changed_documents)
        if scope.epoch != known.epoch:
            expected = 1
            if known.enabled or not scope.enabled or scope.epoch != known.epoch + 1:
                raise _broken(4, f"{name} would start an epoch without being enabled")
        if scope.incarnation != expected:
            raise _broken(4, f"the incarnation of {name} would be {scope.incarnation} instead of {expected}")
        if known.changed is not None and (scope.changed is None or scope.changed < known.changed):
            raise _broken(13, f"time would run backwards for {name}")


def _changed_documents(before: Snapshot, after: Snapshot, changed: Iterable[Event]) -> set[str]:
    """Return the scopes whose visible events differ, or the statuses of these."""
    found = {e.scope for e in before.events.values() if e.id not in after.events and e.status in VISIBLE}
    for event in changed:
        status = _status_before(before, event)
        if status is not event.status and (status in VISIBLE or event.status in VISIBLE):
            found.add(event.scope)
    return found
