"""When only an operator can move a maintenance, and why. Decides with the predicates of `waiting`; changes nothing."""

from datetime import datetime

from forewarn.core.budgets import budgets_only_an_operator_frees
from forewarn.core.change import Snapshot
from forewarn.core.constraints import publication_waits
from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.host_orders import UNDER_WAY, current_host, departures
from forewarn.core.host_waiting import host_reasons
from forewarn.core.model import Actor, Event, Maintenance, OrderState, Status
from forewarn.core.reason import Waiting, clock_held
from forewarn.core.target_waits import target_waits
from forewarn.core.waiting import (
    awaits_continue,
    blocking_failures,
    blocking_hosts,
    current_wave,
    due,
    not_continued,
    obstacles,
    order_progress,
    ready,
    startable,
)
from forewarn.core.window_rules import without_a_time


def needs_operator(snapshot: Snapshot, maintenance_id: str, now: datetime) -> tuple[Waiting, ...]:
    """Return why only an operator can move the maintenance: orders that failed or are in doubt, a held clock or store.

    Windows and no-go times that leave no time to start, and budgets that only an operator frees, count too.
    Return nothing while an executor is at work, and while passing time or a guest's approval could start the next wave.
    Return nothing for an operator's pause, which is intended. A pause of the strategy after a wave counts.
    """
    draft = Draft(snapshot, now, Actor("reader"))
    maintenance = draft.maintenances[maintenance_id]
    started = [e for e in draft.events_of(maintenance_id) if e.status is Status.STARTED]
    progress = [replace(order_progress(draft, e), events=(e.id,)) for e in started]
    progress += _hosts(draft, maintenance)
    if any(reason.code in ("executor", "drill") for reason in progress):
        return ()
    # An event whose machines are shut down waits for the work on their host. `_hosts` returned the reasons of that work.
    progress = [reason for reason in progress if reason.code != "host-work"]
    if awaits_continue(draft, maintenance):
        return (*progress, not_continued(maintenance))
    wave = current_wave(draft, maintenance)
    # The events of a wave start together, so the first event shows whether the wave has started.
    held = blocking_failures(draft, maintenance) or blocking_hosts(draft, maintenance)
    if not wave or wave[0].status is Status.STARTED or held:
        return tuple(progress)
    if maintenance.paused:
        return ()
    return tuple(target_waits(draft, maintenance, wave)) or _obstacles(draft, maintenance, wave)


def _hosts(draft: Draft, maintenance: Maintenance) -> list[Waiting]:
    """Return what the work on the hosts waits for, without the events that empty them or shut their machines down."""
    orders = draft.host_orders_of(maintenance.id)
    under_way = [order for order in orders if order.state in UNDER_WAY or order.state is OrderState.FAILED]
    current = current_host(draft, maintenance) if orders else None
    reasons = [host_reasons(draft, maintenance, order, current)[0] for order in under_way]
    if current is not None and current.state in (OrderState.PLANNED, OrderState.DONE):
        found = host_reasons(draft, maintenance, current, current)
        reasons += [reason for reason in found if reason.code == "no-target"]
        reasons += [reason for reason in found if reason.code == "host-busy" and reason.orders]
        # A host without events gets them in the next tick.
        if departures(draft, current):
            reasons += [reason for reason in found if reason.code == "host-not-empty" and not reason.events]
    return reasons


def _obstacles(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> tuple[Waiting, ...]:
    """Return what holds back an unstarted wave until an operator acts.

    Return nothing if the wave is not ready even by the time that a held clock shows.
    """
    if planned := [e for e in wave if e.status is Status.PLANNED and not e.born_approved]:
        clock = [r for r in publication_waits(draft, maintenance, planned) if r.code == "clock"][:1]
        never = without_a_time(draft, maintenance, planned)
        return (*clock, *never, *budgets_only_an_operator_frees(draft, maintenance, planned))
    if not all(startable(e) and ready(maintenance, e, draft.now_in(e.scope)) for e in wave):
        return ()
    if maintenance.earliest is not None and draft.now < maintenance.earliest:
        return ()
    hold = draft.before.hold
    clock = [clock_held(hold)] if hold is not None and not due(draft, maintenance, wave) else []
    return (*clock, *(r for r in obstacles(draft, maintenance, wave) if r.code in ("store-held", "unresolved")))
