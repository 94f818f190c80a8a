"""Maintenance of hosts, one after another: plan a host's events, open its order, bring its machines back.

`advance` calls `move_hosts` before it publishes. A host's events are planned when its turn comes, from the machines that are on
it then: machines that left an earlier host may be among them. Evacuation: the machines leave, then the order of the host opens.
In place: the machines are shut down, the order of the host opens, and whatever becomes of it, they are started again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from forewarn.core.budgets import host_budget_waits
from forewarn.core.cancelling import cancel
from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.formatting import iso_seconds, names
from forewarn.core.host_orders import (
    UNDER_WAY,
    current_host,
    departures,
    events_of_host,
    is_read,
    is_stopped,
    machines_in_the_way,
    machines_on,
    machines_to_return,
    machines_to_start,
    other_work,
)
from forewarn.core.model import (
    UNSTARTED,
    HostMode,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Phase,
    Status,
)
from forewarn.core.planning import plan_events
from forewarn.core.target_waits import no_target
from forewarn.core.transitions import OrderVerb, order_after
from forewarn.core.waiting import host_not_before, host_planned_at, stopped
from forewarn.core.window_split import without_common_window

# Without a time limit of orders, the work on a host whose machines are shut down must be taken within this time.
DOWN_LIMIT_S = 3_600


def move_hosts(draft: Draft, maintenance_id: str, order_timeout_s: int, new_id: Callable[[], str]) -> None:
    """Move the hosts of a maintenance as far as the machines on them, their events and their orders allow.

    Stop at a host that was not read: the next tick reads it.
    """
    maintenance = draft.maintenances[maintenance_id]
    if maintenance.host_mode is None:
        return
    current = current_host(draft, maintenance)
    while (
        current is not None and is_read(draft, current) and _move(draft, maintenance, current, order_timeout_s, new_id)
    ):
        current = current_host(draft, maintenance)
    # Last: a host may just have been dropped because of one of its events.
    for order in draft.host_orders_of(maintenance_id):
        _start_machines_again(draft, order, order_timeout_s)


def _move(
    draft: Draft, maintenance: Maintenance, order: Order, order_timeout_s: int, new_id: Callable[[], str]
) -> bool:
    """Return whether the order or its events changed, so that more may be possible."""
    if order.state is OrderState.DONE and (keys := machines_to_return(draft, maintenance, order)):
        if stopped(draft, maintenance) or no_target(draft, maintenance, order.host, order.host):
            return False
        _plan(draft, maintenance, order, [draft.machines[key] for key in keys], new_id, to_host=order.host)
        return True
    if order.state is not OrderState.PLANNED:
        return False
    events = departures(draft, order)
    lost = {e.status for e in events} & {Status.CANCELLED, Status.ABANDONED}
    if lost:
        verb, what = (OrderVerb.ABANDON, "abandoned") if Status.ABANDONED in lost else (OrderVerb.CANCEL, "cancelled")
        drop_host(draft, order, verb, f"an event of host {order.host} was {what}")
        return True
    on_host, busy = machines_on(draft, order.host), other_work(draft, order) is not None
    if not events and on_host:
        planned_at = host_planned_at(draft, maintenance, order)
        may_plan = (
            not busy and not stopped(draft, maintenance) and (planned_at is None or draft.trusted_in("") >= planned_at)
        )
        may_plan = may_plan and not no_target(draft, maintenance, order.host, maintenance.to_host)
        return may_plan and _plan_host(draft, maintenance, order, on_host, new_id)
    if any(e.status is not Status.PLANNED for e in events):
        cordon(draft, order.host, maintenance.id)  # the end of another maintenance may have uncordoned it
    if maintenance.host_mode is HostMode.IN_PLACE:
        return _open_in_place(draft, maintenance, order, order_timeout_s)
    if any(e.status is not Status.COMPLETED for e in events) or on_host or busy or stopped(draft, maintenance):
        return False
    return _may_begin(draft, maintenance, order) and _open(draft, order, order_timeout_s)


def _may_begin(draft: Draft, maintenance: Maintenance, order: Order) -> bool:
    """Whether the work on a host that is ready may begin now. A host whose events were published has its part of the budget."""
    floor = host_not_before(draft, maintenance, order)
    in_time = floor is None or draft.trusted_in("") >= floor
    return in_time and not host_budget_waits(draft, maintenance, order)


def may_open_empty(draft: Draft, maintenance: Maintenance, order: Order) -> bool:
    """Whether the work on a host without machines and events may begin now."""
    is_empty = not machines_on(draft, order.host) and not departures(draft, order)
    may_open = order.state is OrderState.PLANNED and is_empty and other_work(draft, order) is None
    return may_open and _may_begin(draft, maintenance, order)


def _plan_host(
    draft: Draft, maintenance: Maintenance, order: Order, machines: list[Machine], new_id: Callable[[], str]
) -> bool:
    refusal = why_not_in_place(draft.before, maintenance, order.host, machines)
    if refusal and host_budget_waits(draft, maintenance, order):
        return False  # a failed order counts as a host that is down
    if refusal:
        fail_host(draft, order, refusal)
    else:
        draft.note("host begun", maintenance_id=order.maintenance_id, detail=f"host {order.host}: its turn has begun")
        _plan(draft, maintenance, order, machines, new_id, to_host=maintenance.to_host)
    return True


def _plan(
    draft: Draft,
    maintenance: Maintenance,
    order: Order,
    machines: Iterable[Machine],
    new_id: Callable[[], str],
    *,
    to_host: str,
) -> None:
    known = draft.events_of(maintenance.id)
    for event in plan_events(
        draft.before,
        maintenance,
        machines,
        new_id=new_id,
        after_wave=max((e.wave for e in known), default=0),
        first_position=draft.next_position(maintenance.id),
        host=order.host,
        to_host=to_host,
    ):
        draft.put(event if event.returns else replace(event, requested_not_before=order.requested_not_before))


def why_not_in_place(snapshot: Snapshot, maintenance: Maintenance, host: str, machines: list[Machine]) -> str:
    """Return why machines cannot be shut down together on their host, or "". An emergency asks neither question."""
    if maintenance.host_mode is not HostMode.IN_PLACE or maintenance.emergency:
        return ""
    apart = without_common_window(snapshot, maintenance, {machine.scope for machine in machines})
    if apart:
        return (
            f"the machines on host {host} have no common window ({names(apart)}), and in-place maintenance shuts all of"
            " them down at once: change the windows, or evacuate the host"
        )
    return _several_domains(host, machines)


def _several_domains(host: str, machines: Iterable[Machine]) -> str:
    """Return that one scope would lose several update domains at once, or ""."""
    domains: dict[str, dict[int, list[Machine]]] = defaultdict(lambda: defaultdict(list))
    for machine in machines:
        domains[machine.scope][machine.update_domain].append(machine)
    crowded = {scope: by_domain for scope, by_domain in domains.items() if len(by_domain) > 1}
    if not crowded:
        return ""
    # The update domain with the most machines stays.
    to_move = [
        str(machine)
        for _, by_domain in sorted(crowded.items())
        for group in sorted(by_domain.values(), key=len)[:-1]
        for machine in group
    ]
    return (
        f"host {host} carries several update domains of {names(sorted(crowded))}, and in-place maintenance shuts all its"
        f" machines down at once: move {names(sorted(to_move))} to another host first, or evacuate the host"
    )


def _open_in_place(draft: Draft, maintenance: Maintenance, order: Order, order_timeout_s: int) -> bool:
    """Open the order once every machine on the host is shut down. From the first one on, a time limit counts."""
    events = departures(draft, order)
    waiting = [e for e in events if is_stopped(draft, e)]
    limit_s = (order_timeout_s or DOWN_LIMIT_S) if waiting else order_timeout_s
    free = other_work(draft, order) is None and not machines_in_the_way(draft, maintenance, order)
    if free and len(waiting) == len(events):
        may_open = bool(events) or (not stopped(draft, maintenance) and _may_begin(draft, maintenance, order))
        return may_open and _open(draft, order, limit_s)
    if waiting and order.deadline is None:
        deadline = draft.now + timedelta(seconds=limit_s)
        draft.put_order(replace(order, deadline=deadline))
        detail = f"host {order.host}: its work must be ready to begin by {iso_seconds(deadline)}"
        draft.note("host waiting", maintenance_id=order.maintenance_id, detail=detail)
    return False


def _open(draft: Draft, order: Order, order_timeout_s: int) -> bool:
    cordon(draft, order.host, order.maintenance_id)
    state = order_after(order, OrderVerb.OPEN)
    draft.put_order(replace(order, state=state, issued=draft.now, deadline=_deadline(draft.now, order_timeout_s)))
    draft.note("host ready", maintenance_id=order.maintenance_id, detail=f"host {order.host}: its work may begin")
    return True


def _deadline(now: datetime, order_timeout_s: int) -> datetime | None:
    return now + timedelta(seconds=order_timeout_s) if order_timeout_s else None


def _start_machines_again(draft: Draft, order: Order, order_timeout_s: int) -> None:
    """Issue the orders that start the machines of a host again, once its work has ended or will not be done."""
    for event in machines_to_start(draft, order):
        waiting, now = draft.orders[event.id], draft.now_in(event.scope)
        draft.put_order(reissued(waiting, now, order_timeout_s))
        draft.note("machines to be started", event=event, detail=f"the work on host {order.host} is {order.state}")


def reissued(order: Order, now: datetime, order_timeout_s: int) -> Order:
    """Return the order as its next attempt, with its whole time limit."""
    return Order(
        id=order.id,
        issued=now,
        deadline=_deadline(now, order_timeout_s),
        attempt=order.attempt + 1,
        host=order.host,
        maintenance_id=order.maintenance_id,
        position=order.position,
        phase=order.phase,
        reschedules=order.reschedules,
        requested_not_before=order.requested_not_before,
    )


def cordon(draft: Draft, host: str, maintenance_id: str) -> None:
    """Let nothing be sent to the host, unless it is cordoned already."""
    known = draft.host(host)
    if known.cordoned is None:
        draft.put_host(replace(known, cordoned=draft.now, cordoned_by=maintenance_id))
        draft.note("host cordoned", maintenance_id=maintenance_id, detail=host)


def finish_host(draft: Draft, order: Order, *, reason: str, output: str = "") -> None:
    """Record that the work on a host is done, and uncordon the host if this maintenance cordoned it."""
    done = order_after(order, OrderVerb.FINISH)
    draft.put_order(replace(order, state=done, ended=draft.now, deadline=None, reason=reason, output=output))
    lift_cordon(draft, order)


def lift_cordon(draft: Draft, order: Order) -> None:
    """Uncordon the host if this maintenance cordoned it."""
    known = draft.host(order.host)
    if known.cordoned is not None and known.cordoned_by == order.maintenance_id:
        draft.put_host(replace(known, cordoned=None, cordoned_by=""))
        draft.note("host uncordoned", maintenance_id=order.maintenance_id, detail=order.host)


def fail_host(draft: Draft, order: Order, reason: str, detail: str = "") -> None:
    failed = order_after(order, OrderVerb.FAIL)
    draft.put_order(replace(order, state=failed, ended=draft.now, deadline=None, reason=reason))
    draft.note("order failed", maintenance_id=order.maintenance_id, detail=f"host {order.host}: {detail or reason}")


def drop_host(draft: Draft, order: Order, verb: OrderVerb, reason: str) -> None:
    """Cancel or abandon the work on a host, and cancel its events that have not started. The host stays cordoned."""
    for event in events_of_host(draft, order):
        if event.status in UNSTARTED:
            cancel(draft, event, reason)
    state = order_after(order, verb)
    draft.put_order(replace(order, state=state, ended=draft.now, deadline=None, reason=reason))
    draft.note(f"host {state}", maintenance_id=order.maintenance_id, detail=f"host {order.host}: {reason}")


def repeated_phase(draft: Draft, order: Order) -> Phase:
    """Return the phase of a repeated order: once the work on its host is over, only to start the machines makes sense."""
    event = draft.events[order.id]
    hosts = (o for o in draft.host_orders_of(event.maintenance_id) if o.host == event.host)
    over = any(o.state is not OrderState.PLANNED and o.state not in UNDER_WAY for o in hosts)
    return Phase.START if order.phase is Phase.STOP and over else order.phase
