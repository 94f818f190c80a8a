"""Mutations of the core: each bends one rule on purpose, and the tests must notice it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from forewarn.core import (
    advance,
    budgets,
    constraints,
    deadline,
    host_verbs,
    host_waiting,
    host_work,
    lifecycle,
    order_verbs,
    placement,
    planning,
    rescheduling,
    strategy,
    waiting,
    window_rules,
)
from forewarn.core.change import Change
from forewarn.core.draft import Draft
from forewarn.core.model import Event, HostMode, Maintenance, OnFailure, Order, OrderState, Phase, Scope, Status
from forewarn.core.reason import Waiting
from forewarn.core.strategy import PlannedWave, bake_waits
from forewarn.core.transitions import ORDER_TRANSITIONS, TRANSITIONS, OrderVerb, Verb

Patch = Callable[[pytest.MonkeyPatch], None]


def _ignore_obstacles(patch: pytest.MonkeyPatch, code: str) -> None:
    """Ignore the obstacles with this code that started events cause."""
    original = waiting._blocked_by_started

    def others(draft: Draft, wave: list[Event]) -> Iterator[Waiting]:
        return (reason for reason in original(draft, wave) if reason.code != code)

    patch.setattr(waiting, "_blocked_by_started", others)


def no_update_domain_guard(patch: pytest.MonkeyPatch) -> None:
    _ignore_obstacles(patch, "update-domain")


def no_machine_guard(patch: pytest.MonkeyPatch) -> None:
    _ignore_obstacles(patch, "machine")


def start_without_approval(patch: pytest.MonkeyPatch) -> None:
    for module in (waiting, advance):
        patch.setattr(module, "ready", lambda maintenance, event, now: True)


def one_approval_is_enough_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "approved", lambda event: bool(event.approvals))


def approval_bumps_the_incarnation(patch: pytest.MonkeyPatch) -> None:
    original = Draft._changed_scopes

    def bumped(draft: Draft, *changes: Any) -> dict[str, Scope]:
        changed = original(draft, *changes)
        for approval in draft._approvals:
            name = draft.events[approval.event_id].scope
            scope = changed.get(name, draft.scopes[name])
            changed[name] = replace(scope, incarnation=scope.incarnation + 1)
        return changed

    patch.setattr(Draft, "_changed_scopes", bumped)


def incarnation_stays(patch: pytest.MonkeyPatch) -> None:
    original = Draft._next_scope

    def stays(draft: Draft, name: str, *, document_changed: bool) -> Scope:
        scope = original(draft, name, document_changed=document_changed)
        return replace(scope, incarnation=draft.before.scopes[name].incarnation)

    patch.setattr(Draft, "_next_scope", stays)


def notice_not_applied(patch: pytest.MonkeyPatch) -> None:
    original = planning.publication

    def hasty(*arguments: Any) -> dict[str, planning.Publication]:
        publications = original(*arguments)
        return {i: replace(each, not_before=each.published, minimum_notice_s=0) for i, each in publications.items()}

    patch.setattr(advance, "publication", hasty)


def raised_notice_not_applied(patch: pytest.MonkeyPatch) -> None:
    original = planning.publication

    def protocol_only(maintenance: Any, events: Any, scopes: dict[str, Scope], now_in: Any) -> Any:
        return original(maintenance, events, {n: replace(s, minimum_notice_s={}) for n, s in scopes.items()}, now_in)

    patch.setattr(advance, "publication", protocol_only)


def notice_counts_from_publication(patch: pytest.MonkeyPatch) -> None:
    for module in (waiting, advance):
        patch.setattr(module, "notice_end", lambda maintenance, event: event.not_before)


def started_events_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS[Status.STARTED], Verb.CANCEL, Status.CANCELLED)


def ended_events_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS[Status.COMPLETED], Verb.CANCEL, Status.CANCELLED)


def overtaking_in_a_scope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "_due_wave_ahead", lambda draft, maintenance, wave: [])


def earliest_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "_before_earliest", lambda draft, maintenance, wave: False)


def deadline_ignored(patch: pytest.MonkeyPatch) -> None:
    others = tuple(each for each in constraints.BEFORE_START if each is not deadline.deadline_waits)
    patch.setattr(constraints, "BEFORE_START", others)
    patch.setattr(deadline, "is_past_deadline", lambda draft, maintenance: False)
    patch.setattr(advance, "is_past_deadline", lambda draft, maintenance: False)


def budgets_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budgets, "_shortages", lambda draft, maintenance, wave: [])


def budgets_count_started_events_only(patch: pytest.MonkeyPatch) -> None:
    """A published event reserves nothing."""

    def started(draft: Draft, maintenance: Maintenance, scope: str) -> list[Event]:
        return [event for event in draft.events_in(scope) if event.status is Status.STARTED]

    patch.setattr(budgets, "_users", started)


def what_is_up_again_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """A maintenance of another scope waits for the budget of the fleet for ever."""
    patch.setattr(Change, "frees_budget", property(lambda change: False))


def budget_of_hosts_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budgets, "_host_shortages", lambda draft, maintenance, hosts, wave: iter(()))


def rescheduled_past_the_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rescheduling, "_check_time", lambda draft, maintenance, planned, not_before: None)


def a_drill_hands_out_an_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(advance, "drill_order", lambda event, now: Order(id=event.id, issued=now))


def a_drill_does_not_yield(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(advance, "yield_to", lambda draft, wave: None)


def waves_do_not_start_together(patch: pytest.MonkeyPatch) -> None:
    original = waiting.current_wave
    patch.setattr(advance, "current_wave", lambda draft, maintenance: original(draft, maintenance)[:1])


def all_waves_published_at_once(patch: pytest.MonkeyPatch) -> None:
    def everything(draft: Draft, maintenance: Any) -> list[Event]:
        return [
            e for e in draft.events_of(maintenance.id) if e.status is Status.PLANNED or e.status is Status.SCHEDULED
        ]

    patch.setattr(advance, "current_wave", everything)


def not_before_moves_after_publication(patch: pytest.MonkeyPatch) -> None:
    original = lifecycle._record_approval

    def moving(draft: Draft, event: Event, machine: str) -> None:
        original(draft, event, machine)
        draft.put(replace(draft.events[event.id], not_before=draft.now_in(event.scope)))

    patch.setattr(lifecycle, "_record_approval", moving)


def nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Draft, "_wakes", lambda draft, *changes: set())


def others_are_not_woken(patch: pytest.MonkeyPatch) -> None:
    """Wake only the maintenance whose own event changed, not those that waited for the event."""
    original = Draft._wakes

    def own(draft: Draft, moved: list[Event], *changes: Any) -> set[str]:
        return original(draft, moved, *changes) & {e.maintenance_id for e in moved}

    patch.setattr(Draft, "_wakes", own)


def wakes_too_late(patch: pytest.MonkeyPatch) -> None:
    def never(draft: Draft, maintenance: Any) -> datetime | None:
        return None

    patch.setattr(advance, "_wake_at", never)


def enabling_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    original = lifecycle.enable

    def same_epoch(snapshot: Any, scope: str, **options: Any) -> Any:
        change = original(snapshot, scope, **options)
        kept = tuple(replace(s, epoch=snapshot.scopes[s.name].epoch, incarnation=1) for s in change.scopes)
        return replace(change, scopes=kept)

    patch.setattr(lifecycle, "enable", same_epoch)


def a_doubt_has_a_time_limit(patch: pytest.MonkeyPatch) -> None:
    original = order_verbs._doubt

    def limited(draft: Draft, order: Order, reason: str) -> None:
        original(draft, order, reason)
        draft.put_order(replace(draft.orders[order.id], deadline=order.deadline))

    patch.setattr(order_verbs, "_doubt", limited)


def a_retry_is_no_new_attempt(patch: pytest.MonkeyPatch) -> None:
    original = host_work.reissued

    def same_attempt(order: Order, now: datetime, order_timeout_s: int) -> Order:
        return replace(original(order, now, order_timeout_s), attempt=order.attempt)

    for module in (lifecycle, host_verbs):
        patch.setattr(module, "reissued", same_attempt)


def hold_of_the_store_ignored(patch: pytest.MonkeyPatch) -> None:
    for module in (waiting, host_waiting):
        patch.setattr(module, "store_held", lambda draft: [])


def a_host_looks_empty(patch: pytest.MonkeyPatch) -> None:
    """Work on a host begins before the last machine has left."""
    patch.setattr(host_work, "machines_on", lambda draft, host: [])


def a_cordoned_host_is_chosen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement.Hosts, "why_not", lambda hosts, name: "")


def machines_are_stopped_when_announced(patch: pytest.MonkeyPatch) -> None:
    """The order that shuts machines down is issued before their event has started."""
    original = advance._publish

    def published(draft: Draft, maintenance_id: str) -> None:
        original(draft, maintenance_id)
        if draft.maintenances[maintenance_id].host_mode is HostMode.IN_PLACE:
            for event in draft.events_of(maintenance_id):
                if event.status is Status.SCHEDULED and event.id not in draft.orders:
                    draft.put_order(Order(id=event.id, issued=draft.now, phase=Phase.STOP))

    patch.setattr(advance, "_publish", published)


def a_cancelled_host_is_worked_on(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(ORDER_TRANSITIONS[OrderState.CANCELLED], OrderVerb.TAKE, OrderState.RUNNING)


def start_outside_a_window(patch: pytest.MonkeyPatch) -> None:
    others = tuple(each for each in constraints.BEFORE_START if each is not window_rules.window_start_waits)
    patch.setattr(constraints, "BEFORE_START", others)


def announced_at_once(patch: pytest.MonkeyPatch) -> None:
    others = tuple(each for each in constraints.BEFORE_PUBLICATION if each is not window_rules.window_publication_waits)
    patch.setattr(constraints, "BEFORE_PUBLICATION", others)


def announced_beyond_its_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(advance, "why_missed", lambda draft, maintenance, wave: "")


def two_update_domains_in_one_wave(patch: pytest.MonkeyPatch) -> None:
    """Let all events of neighbouring groups share the first wave, whatever their update domains."""
    original = strategy.planned_waves

    def crowded(*arguments: Any) -> list[PlannedWave]:
        waves = original(*arguments)
        return [[event for wave in waves[:2] for event in wave], *waves[2:]] if waves else []

    patch.setattr(planning, "planned_waves", crowded)


def bake_time_ignored(patch: pytest.MonkeyPatch) -> None:
    others = tuple(each for each in constraints.BEFORE_PUBLICATION if each is not bake_waits)
    patch.setattr(constraints, "BEFORE_PUBLICATION", others)


def limit_of_failures_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "_failures_hold", lambda draft, maintenance: maintenance.on_failure is OnFailure.HOLD)


def no_operator_continues(patch: pytest.MonkeyPatch) -> None:
    for module in (waiting, lifecycle):
        patch.setattr(module, "awaits_continue", lambda draft, maintenance: False)


# Each mutation with the message it must cause: a mutation that merely crashes the code proves nothing.
MUTATIONS: dict[Patch, str] = {
    no_update_domain_guard: "invariant 6: ",
    no_machine_guard: "invariant 6: machine .* at once",
    start_without_approval: "invariant 1: .* without approval",
    one_approval_is_enough_for_all: "invariant 1: .* without approval",
    approval_bumps_the_incarnation: "invariant 4: ",
    incarnation_stays: "invariant 4: ",
    notice_not_applied: "invariant 2: .* less than its minimum notice",
    raised_notice_not_applied: "invariant 2: .* less than its minimum notice",
    notice_counts_from_publication: "invariant 2: .* before guests could see it",
    started_events_can_be_cancelled: "invariant 7: .* Started to Cancelled",
    ended_events_can_be_cancelled: "invariant 7: .* Completed to Cancelled",
    overtaking_in_a_scope: "would overtake",
    earliest_ignored: "invariant 1: .* before the earliest start",
    budgets_ignored: "invariant 16: ",
    budgets_count_started_events_only: "invariant 16: ",
    what_is_up_again_wakes_nobody: "the ticker does not move it",
    deadline_ignored: "invariant 1: .* after the deadline|the ticker does not move it",
    rescheduled_past_the_deadline: "invariant 1: .* rescheduled past the deadline",
    a_drill_hands_out_an_order: "invariant 11: order .* of a drill would be open",
    a_drill_does_not_yield: "invariant 15: ",
    waves_do_not_start_together: "invariant 8: .* left behind|the ticker does not move it",
    all_waves_published_at_once: "invariant 8: .* visible at once|invariant 6: |the ticker does not move it",
    not_before_moves_after_publication: "invariant 2: .* change its NotBefore",
    nobody_is_woken: "the ticker does not move it",
    others_are_not_woken: "the ticker does not move it",
    wakes_too_late: "the ticker does not move it",
    enabling_keeps_the_epoch: "invariant 4: ",
    a_doubt_has_a_time_limit: "invariant 11: .* with a time limit",
    a_retry_is_no_new_attempt: "invariant 11: .* to open within one attempt",
    hold_of_the_store_ignored: "invariant 1: .* while the store is held",
    two_update_domains_in_one_wave: "invariant 6: wave .* would have update domains",
    bake_time_ignored: "invariant 8: .* would not wait for the bake time",
    limit_of_failures_ignored: "invariant 8: .* would move on after",
    no_operator_continues: "invariant 8: .* would follow without an operator",
}
# Found by the machine with windows.
WINDOW_MUTATIONS: dict[Patch, str] = {
    start_outside_a_window: "invariant 1: .* would start outside its window",
    announced_at_once: "was announced long before its window",
    announced_beyond_its_window: "is still announced for a window that has closed",
}
# Found by the machine with hosts.
HOST_MUTATIONS: dict[Patch, str] = {
    budget_of_hosts_ignored: "invariant 16: .* hosts of the fleet would be down",
    a_host_looks_empty: "invariant 11: the work on host .* would begin while",
    a_cordoned_host_is_chosen: "was chosen although it is cordoned",
    machines_are_stopped_when_announced: "invariant 11: .* no started event announces it",
    a_cancelled_host_is_worked_on: "invariant 11: .* from cancelled to running",
}
