"""Mutations for the simulation: rules of the core and of the nodes, bent on purpose. Some seed must notice each.

The core's own check of every change is switched off, so that only the judge can notice. Each mutation comes with the
complaint it must cause: a mutation that merely crashes the code proves nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core import (
    advance,
    constraints,
    draft,
    host_waiting,
    host_work,
    placement,
    requested_start,
    strategy,
    target_waits,
    waiting,
)
from forewarn.core.change import Change
from forewarn.core.draft import Draft
from forewarn.core.model import Event, Maintenance, OrderState
from forewarn.core.reason import Waiting
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.last_seen import LastSeen
from forewarn.service import clock, follower
from forewarn.service.control import Control
from forewarn.service.cycle_counts import CycleCounts
from forewarn.service.follower import Follower
from forewarn.service.orders import Orders
from forewarn.store import FeedUpdate
from forewarn.store.memory import MemoryStore
from tests.properties import mutations as core
from tests.sim.database import Database, Tables
from tests.sim.node import MAX_STALE_MS, Node, StateFolder

Patch = Callable[[pytest.MonkeyPatch], None]

OF_THE_CORE: dict[Patch, str] = {
    core.no_update_domain_guard: "had another update domain",
    core.no_machine_guard: "had a machine of it",
    core.start_without_approval: "before its NotBefore and without approval",
    core.one_approval_is_enough_for_all: "before its NotBefore and without approval",
    core.approval_bumps_the_incarnation: "the incarnation of .* went from",
    core.incarnation_stays: "two contents|the incarnation of .* went from",
    core.notice_not_applied: "less than its notice",
    core.raised_notice_not_applied: "less than its notice of 1200 s",
    core.started_events_can_be_cancelled: "went from Started to Cancelled",
    core.ended_events_can_be_cancelled: "went from Completed to Cancelled",
    core.overtaking_in_a_scope: "overtook",
    core.earliest_ignored: "before the earliest start",
    core.deadline_ignored: "after the deadline",
    core.budgets_ignored: "were unavailable at once",
    core.budget_of_hosts_ignored: "hosts of the fleet were down at once",
    core.rescheduled_past_the_deadline: "rescheduled past the deadline",
    core.a_drill_hands_out_an_order: "of a drill is",
    core.a_drill_does_not_yield: "of a drill is visible beside",
    core.waves_do_not_start_together: "was left behind",
    core.all_waves_published_at_once: "visible at once|had another update domain",
    core.not_before_moves_after_publication: "changed its NotBefore",
    core.nobody_is_woken: "is still",
    core.others_are_not_woken: "is still",
    core.wakes_too_late: "is still",
    core.enabling_keeps_the_epoch: "kept its epoch",
    core.a_host_looks_empty: "the work on host .* was let in while",
    core.a_cordoned_host_is_chosen: "which was cordoned",
    core.machines_are_stopped_when_announced: "has an order and is Scheduled",
    core.a_cancelled_host_is_worked_on: "worked on all the same",
    core.two_update_domains_in_one_wave: "has two update domains of",
    core.start_outside_a_window: "started outside its window",
    core.bake_time_ignored: "before the bake time",
    core.limit_of_failures_ignored: "moved on after",
    core.no_operator_continues: "did not wait until an operator",
}


def a_rescheduled_host_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """Let a host, and the events of its machines, have their turn whatever time the host was moved to."""
    original = waiting.host_not_before
    for module in (host_work, advance, host_waiting):
        patch.setattr(
            module,
            "host_not_before",
            lambda one, maintenance, order: original(one, maintenance, replace(order, requested_not_before=None)),
        )
    for module in (host_work, advance):
        patch.setattr(module, "host_planned_at", lambda one, maintenance, order: None)
    requested = (requested_start.requested_publication_waits, requested_start.requested_start_waits)
    for name in ("BEFORE_PUBLICATION", "BEFORE_START"):
        left = tuple(each for each in getattr(constraints, name) if each not in requested)
        patch.setattr(constraints, name, left)


def machines_that_can_go_nowhere_are_announced(patch: pytest.MonkeyPatch) -> None:
    """Let machines be announced, and their departure start, while every host they could go to is closed."""
    for module in (host_work, host_waiting, target_waits):
        patch.setattr(module, "no_target", lambda draft, maintenance, host, to_host: [])


def a_host_in_maintenance_is_chosen(patch: pytest.MonkeyPatch) -> None:
    original = placement.Hosts.why_not
    patch.setattr(placement.Hosts, "why_not", lambda hosts, name: original(replace(hosts, in_maintenance=()), name))


def no_invariants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft, "check_invariants", lambda before, after, now: None)


def acts_before_saving(patch: pytest.MonkeyPatch) -> None:
    """Call the executor before the order is saved as taken."""
    original = Control.take_order

    def hasty(control: Control, order_id: str, actor: Any, *, node: str) -> Any:
        orders = orders_of[control]
        # Orders of hosts, and orders that another node has just taken, are taken as they should be.
        for order in (o for o in orders._store.orders({OrderState.OPEN}, 500) if o.id == order_id):
            work = orders._work_of(order)
            assert work is not None
            orders._hand_to_executor(work)
        return original(control, order_id, actor, node=node)

    orders_of: dict[Control, Orders] = {}
    original_init = Orders.__init__

    def remembered(orders: Orders, control: Control, *arguments: Any, **options: Any) -> None:
        original_init(orders, control, *arguments, **options)
        if not orders.of_hosts:
            orders_of[control] = orders

    patch.setattr(Orders, "__init__", remembered)
    patch.setattr(Control, "take_order", hasty)


def budget_not_reserved(patch: pytest.MonkeyPatch) -> None:
    """Two nodes that publish at once both find room in the budget of the fleet."""
    patch.setattr(draft.Draft, "_relies_on_fleet_use", lambda one, moved, orders, maintenances: False)


def no_version_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "_check", lambda store, change: None)


def lost_notifications_are_not_made_up_for(patch: pytest.MonkeyPatch) -> None:
    def trusting(node: Node) -> None:
        node._read_ms = node._universe.now_ms
        node.side.documents.fresh_until_s = (node._read_ms + MAX_STALE_MS) / 1_000

    patch.setattr(Node, "_catch_up", trusting)


def older_than_the_guest(patch: pytest.MonkeyPatch) -> None:
    """Answer from memory a guest that has seen a newer document than this node."""
    patch.setattr(EndpointState, "is_behind", lambda endpoint, state, etag: False)


def answers_before_it_shows(patch: pytest.MonkeyPatch) -> None:
    """Answer a write before the node's own documents show it."""
    listen = Control.listen

    def deaf(control: Control, listener: Callable[[Change], None]) -> None:
        if getattr(listener, "__func__", None) is not Documents.on_change:
            listen(control, listener)

    patch.setattr(Control, "listen", deaf)


def runs_again_without_asking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Orders, "_resume", lambda orders, work, **_: orders._hand_to_executor(work))


def forgets_what_it_may_have_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Orders, "resume_unconfirmed", lambda orders: None)


def lost_reports_are_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """Forget a report once it is saved, also if a failover loses it."""
    patch.setattr(Orders, "_repeat_lost_reports", lambda orders: None)


def answers_what_it_did_not_save(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge approvals without saving them."""
    original = Tables.apply

    def forgetful(store: Tables, change: Change) -> None:
        if not change.approvals:
            original(store, change)

    patch.setattr(Tables, "apply", forgetful)


def read_before_it_is_taken_in(patch: pytest.MonkeyPatch) -> None:
    """Advance the follower's position before its listeners have processed the changes."""

    def hasty(one: Follower, wait_s: float) -> FeedUpdate:
        news = one._feed.poll(one._position, wait_s)
        one._keep_time(news)
        one._position, one._known_s = news.position, news.sent_s
        for hearer in one._listeners:
            hearer(news)
        return news

    patch.setattr(Follower, "poll", hasty)


def what_is_forgotten_is_not_read(patch: pytest.MonkeyPatch) -> None:
    """Ignore that everything must be read again, after a change too large to list or no longer kept."""
    original = Documents.follow
    patch.setattr(Documents, "follow", lambda documents, news: original(documents, replace(news, everything=False)))


def never_stale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Documents, "stale", lambda documents, now_s: False)


def takes_over_without_asking(patch: pytest.MonkeyPatch) -> None:
    original = Orders.take_over

    def hasty(orders: Orders) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(orders, "_resume", lambda work, **_: orders._hand_to_executor(work))
            return original(orders)

    patch.setattr(Orders, "take_over", hasty)


def begins_what_may_have_begun(patch: pytest.MonkeyPatch) -> None:
    """Take over and begin every order of a dead node that this node's executor does not know."""
    original = Orders._resume
    patch.setattr(Orders, "_resume", lambda orders, work, *, not_begun=False: original(orders, work, not_begun=True))
    patch.setattr(Orders, "_take_over_running", Orders._take_over)


def nobody_takes_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Orders, "take_over", lambda orders: CycleCounts())


def a_jump_is_not_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Control, "_now", lambda control: control._clock.now())


def a_hold_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft.Draft, "trusted_in", draft.Draft.now_in)


def back_and_forth_is_no_jump(patch: pytest.MonkeyPatch) -> None:
    original = clock._JumpDetector.observe

    def forgiving(watched: Any, reading: datetime, read_s: float | None = None) -> None:
        read_s = watched._boot_s() if read_s is None else read_s
        if watched._last is None or reading > watched._last.booted + timedelta(seconds=read_s):
            original(watched, reading, read_s)

    patch.setattr(clock._JumpDetector, "observe", forgiving)


def a_restart_forgets_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Ignore the reading of the clock that the state folder keeps for the next process."""
    patch.setattr(StateFolder, "load", lambda folder: None)


def late_readings_count(patch: pytest.MonkeyPatch) -> None:
    """Accept readings of the clock, however long they took."""
    patch.setattr(clock, "MAX_READING_S", 1e9)
    patch.setattr(follower, "MAX_READING_S", 1e9)


def epochs_are_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """Keep the epochs after a failover that lost commits, so that tags are used a second time."""
    patch.setattr(Database, "_begin_epochs", lambda database, steps: None)


def every_failover_is_one_step(patch: pytest.MonkeyPatch) -> None:
    """Count every failover as one timeline, so that epochs of a lost agreement are used a second time."""
    patch.setattr(Database, "_steps", lambda database: 1)


def only_its_own_guests_count(patch: pytest.MonkeyPatch) -> None:
    def blind(attendance: LastSeen, now: Any, after: Any) -> list[str]:
        return attendance._documents.idle(now, after)

    patch.setattr(LastSeen, "_silent_everywhere", blind)


def decisions_never_age(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Control, "_refuse_old", lambda control, decided_s, change: None)


def others_changes_are_not_looked_after(patch: pytest.MonkeyPatch) -> None:
    """Answer a request that another node already carried out without reading that node's change."""
    patch.setattr(Control, "listen_to_unchanged", lambda control, hearer: None)


def bake_cut_short_by_a_failover(patch: pytest.MonkeyPatch) -> None:
    """Forget the bake time when the store has failed over: epochs grow by 1,000 then."""
    original = strategy.bake_waits

    def forgotten(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
        failed_over = any(draft.scopes[event.scope].epoch >= 1_000 for event in wave)
        return [] if failed_over else original(draft, maintenance, wave)

    replaced = tuple(forgotten if each is original else each for each in constraints.BEFORE_PUBLICATION)
    patch.setattr(constraints, "BEFORE_PUBLICATION", replaced)


OF_NODES: dict[Patch, str] = {
    acts_before_saving: "without having taken it|while it was saved as open",
    no_version_check: "was written over",
    lost_notifications_are_not_made_up_for: "long after it was replaced",
    older_than_the_guest: "showed it the older",
    read_before_it_is_taken_in: "long after it was replaced",
    what_is_forgotten_is_not_read: "long after it was replaced",
    never_stale: "long after it was replaced",
    takes_over_without_asking: "or requested its status",
    begins_what_may_have_begun: "was done twice",
    nobody_takes_over: "never executed: it timed out",
    a_jump_is_not_held: "after its publication, without approval",
    a_hold_holds_nothing: "after its publication, without approval",
    back_and_forth_is_no_jump: "after its publication, without approval",
    a_restart_forgets_the_clock: "after its publication, without approval",
    late_readings_count: "for the first part of its notice",
    epochs_are_not_renewed: "two contents|showed it the older|never saved|with another content",
    every_failover_is_one_step: "two contents|showed it the older|never saved|with another content",
    answers_before_it_shows: "showed .* the document before it",
    runs_again_without_asking: "or requested its status",
    forgets_what_it_may_have_taken: "never executed: it timed out",
    lost_reports_are_not_repeated: "never executed: it timed out",
    answers_what_it_did_not_save: "acknowledged .* lost",
    only_its_own_guests_count: "was disabled though a guest had polled",
    decisions_never_age: "for the first part of its notice",
    bake_cut_short_by_a_failover: "before the bake time",
    a_rescheduled_host_does_not_wait: "before the time it was moved to",
    machines_that_can_go_nowhere_are_announced: "although its machines could go to no host",
    a_host_in_maintenance_is_chosen: "which was in maintenance",
    others_changes_are_not_looked_after: "which was never saved|with another content|showed it the older",
}
MUTATIONS = OF_THE_CORE | OF_NODES
