"""The verbs of operators, guests and the ticker, one by one: what each decides, and what it leaves alone."""

from copy import deepcopy
from dataclasses import replace

import pytest

from forewarn.core.errors import Invalid, MachineBusy, Refused, TooManyUserOperations
from forewarn.core.lifecycle import GuestApproval, approve, tick
from forewarn.core.model import (
    MAX_OPEN_USER_EVENTS,
    Actor,
    Approval,
    ApprovalMode,
    EventType,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.transitions import Verb
from tests.support.builders import (
    ORDER_TIMEOUT_S,
    START,
    TICKER,
    World,
    actions,
    at,
    failed_event,
    guid,
    machine,
    request,
    scope,
    shop,
)

# -- submit


def test_submit_publishes_the_first_wave_and_plans_the_rest() -> None:
    """The first wave is published at once, the others stay invisible, and the incarnation grows by one."""
    world = shop(domains=3)
    events, change = world.submit_request(request("shop/web-0", "shop/web-1", "shop/web-2"))
    assert [e.status for e in events] == [Status.SCHEDULED, Status.PLANNED, Status.PLANNED]
    assert (events[0].published, events[0].not_before, events[0].minimum_notice_s) == (START, at(15), 900)
    assert world.scope().incarnation == 2
    assert world.maintenance(events[0].id).status is MaintenanceStatus.PLANNED
    assert actions(change) == ["alice: maintenance submitted", "alice: event published"]


def test_submit_returns_the_id_of_the_maintenance() -> None:
    """The returned id is the one in the change."""
    _, change = shop().submit_request(request("shop/web-0"))
    assert [m.id for m in change.maintenances] == [guid(1)]
    assert {e.maintenance_id for e in change.events} == {guid(1)}


def test_an_event_of_a_disabled_scope_starts_at_once() -> None:
    """A disabled scope gets no notice: its event is Started with its order."""
    world = shop(enabled=False)
    (event,), change = world.submit_request(request("shop/web-0"))
    assert event.status is Status.STARTED
    assert event.started == START
    assert world.order(event.id).deadline == at(60)
    assert actions(change)[1:] == ["alice: event published", "alice: event started"]


def test_a_user_event_approved_at_creation_is_never_scheduled() -> None:
    """The event becomes visible when it starts."""
    world = shop(approve_user_events=True)
    (event,), change = world.submit_request(request("shop/web-0", source=Source.USER))
    assert event.status is Status.STARTED
    assert event.published == event.not_before == event.started == START
    assert event.approvals == ()
    assert actions(change)[1:] == ["alice: event started"]


def test_an_emergency_starts_everything_at_once() -> None:
    """An emergency is one wave in all update domains."""
    world = shop(domains=3)
    events = world.submit(targets=Targets(scope="shop"), emergency=True)
    assert [e.status for e in events] == [Status.STARTED] * 3
    assert world.scope().incarnation == 2


def test_an_emergency_does_not_wait() -> None:
    """Neither a started event in another update domain nor a due wave holds back an emergency."""
    world = shop(domains=3)
    (running,) = world.submit("shop/web-0")
    world.start(running.id)
    (waiting,) = world.submit("shop/web-1")
    world.approve("shop/web-0", waiting.id)
    (emergency,) = world.submit("shop/web-2", emergency=True)
    assert emergency.status is Status.STARTED
    assert world.status(waiting.id) is Status.SCHEDULED


def test_an_emergency_is_refused_for_a_busy_machine() -> None:
    """If a machine is in a Started event, the whole emergency is refused, with the name of the machine."""
    world = shop(domains=2)
    (running,) = world.submit("shop/web-1")
    world.start(running.id)
    before = deepcopy(world.snapshot())
    with pytest.raises(
        MachineBusy, match=f"shop/web-1 is in event {running.id}, which has started: wait until it ends"
    ):
        world.submit(targets=Targets(scope="shop"), emergency=True)
    assert world.snapshot() == before


def test_an_emergency_overtakes_scheduled_events() -> None:
    """A Scheduled event of the machine waits for the emergency."""
    world = shop()
    (waiting,) = world.submit("shop/web-0")
    (emergency,) = world.submit("shop/web-0", emergency=True)
    world.start(waiting.id)
    assert emergency.status is Status.STARTED
    assert world.status(waiting.id) is Status.SCHEDULED


def test_the_limit_of_user_operations() -> None:
    """At most `max_user_operations` user events of a scope are open; the next is refused until one ends."""
    world = shop(domains=3, max_user_operations=2)
    first, _ = world.submit("shop/web-0", "shop/web-1", source=Source.USER)
    before = deepcopy(world.snapshot())
    with pytest.raises(TooManyUserOperations, match="shop allows 2 user operations at once and 2 are open: wait"):
        world.submit("shop/web-2", source=Source.USER)
    assert world.snapshot() == before
    world.cancel_event(first.id)
    assert world.submit("shop/web-2", source=Source.USER)[0].status is Status.SCHEDULED


def test_one_request_may_not_exceed_the_limit_either() -> None:
    """Each machine of a user's request is an operation."""
    with pytest.raises(TooManyUserOperations):
        shop(domains=3, max_user_operations=2).submit(targets=Targets(scope="shop"), source=Source.USER)


def test_a_machine_has_one_open_user_operation_of_a_type() -> None:
    """A second restart is refused until the first ends; a redeploy, and the platform's reboot, are other operations."""
    world = shop(domains=2)
    (first,) = world.submit("shop/web-0", source=Source.USER)
    with pytest.raises(MachineBusy, match=f"shop/web-0 already has an open Reboot by its user, event {first.id}: "):
        world.submit("shop/web-1", "shop/web-0", source=Source.USER)
    world.submit("shop/web-0", type=EventType.REDEPLOY, source=Source.USER)
    world.submit("shop/web-0")
    world.submit("shop/web-1", source=Source.USER)
    world.cancel_event(first.id)
    assert world.submit("shop/web-0", source=Source.USER)[0].status is Status.SCHEDULED


@pytest.mark.parametrize("setting", [0, MAX_OPEN_USER_EVENTS + 1])
def test_open_user_events_are_bounded_in_every_scope(setting: int) -> None:
    """Whatever the setting of the scope is, a document stays readable; the platform's events are not refused."""
    world = shop(domains=MAX_OPEN_USER_EVENTS + 1, max_user_operations=setting)
    every = [f"shop/web-{number}" for number in range(MAX_OPEN_USER_EVENTS)]
    events = world.submit(*every, source=Source.USER)
    one_more = f"shop/web-{MAX_OPEN_USER_EVENTS}"
    with pytest.raises(TooManyUserOperations, match="shop allows 500 user operations at once and 500 are open: wait"):
        world.submit(one_more, source=Source.USER)
    assert world.submit(one_more)[0].status is Status.SCHEDULED
    assert world.submit(one_more, type=EventType.PREEMPT)[0].status is Status.SCHEDULED
    world.cancel_event(events[0].id)
    assert world.submit(one_more, source=Source.USER)[0].status is Status.SCHEDULED


def test_platform_maintenance_is_no_user_operation() -> None:
    """The limit neither counts nor refuses platform events."""
    world = shop(domains=2, max_user_operations=1)
    world.submit("shop/web-0")
    world.submit("shop/web-0", type=EventType.PREEMPT)
    assert world.submit("shop/web-0", source=Source.USER)[0].status is Status.SCHEDULED
    assert world.submit("shop/web-1")[0].status is Status.SCHEDULED


def test_no_limit_by_default() -> None:
    """max_user_operations = 0 means no limit."""
    world = shop(domains=20)
    assert len(world.submit(targets=Targets(scope="shop"), source=Source.USER)) == 20


# -- approve


def test_an_approval_is_a_fact_on_the_event() -> None:
    """Who approved, for which machine, when and from where is recorded; the status is still Scheduled."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.now = at(2)
    change = world.approve("shop/web-1", event.id)
    approval = Approval(event_id=event.id, machine="web-1", who="shop/web-1", at=at(2), origin="guest")
    assert change.approvals == (approval,)
    assert world.event(event.id) == replace(event, approvals=(approval,))
    assert actions(change) == ["shop/web-1: event approved"]


def test_an_approval_relies_on_no_version_and_raises_none() -> None:
    """Only the approval and the wake-up are written, so many agents can approve at once."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    change = world.approve("shop/web-0", event.id)
    assert (change.expect, change.scopes, change.events, change.maintenances) == ((), (), (), ())
    assert change.wakes == (event.maintenance_id,)


def test_approving_again_changes_nothing() -> None:
    """Approval is recorded once; repeating it, from whichever machine, changes nothing and succeeds."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.approve("shop/web-0", event.id)
    assert world.approve("shop/web-0", event.id).empty
    assert world.approve("shop/web-2", event.id).empty


def test_one_id_twice_in_a_request_counts_once() -> None:
    """Repeats in one request count once, in the record and in the audit."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    change = world.approve("shop/web-0", event.id, event.id)
    assert len(change.approvals) == len(change.audit) == 1


def test_an_unknown_id_refuses_the_whole_request() -> None:
    """If one id is not of this scope, no event of the request is approved."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    with pytest.raises(Invalid, match=rf"^Bad request\. EventId {guid(99)} is not an event of this machine's scope$"):
        world.approve("shop/web-0", event.id, guid(99))
    assert world.event(event.id).approvals == ()


def test_a_machine_approves_only_its_own_scopes_events() -> None:
    """An event of another scope is refused like an unknown one."""
    world = World(scope("shop"), scope("ship"), machines=[machine("shop/web-0"), machine("ship/app-0")])
    (event,) = world.submit("ship/app-0")
    with pytest.raises(Invalid, match="is not an event of this machine's scope"):
        world.approve("shop/web-0", event.id)
    assert world.event(event.id).approvals == ()


def test_an_unpublished_event_cannot_be_approved() -> None:
    """A planned event, or one cancelled before publication, is unknown to guests."""
    world = shop(domains=2)
    _, second = world.submit("shop/web-0", "shop/web-1")
    with pytest.raises(Invalid):
        world.approve("shop/web-1", second.id)
    world.cancel_event(second.id)
    with pytest.raises(Invalid):
        world.approve("shop/web-1", second.id)
    assert world.event(second.id).approvals == ()


def test_approvals_of_several_machines_are_recorded_in_one_change() -> None:
    """Each is recorded for its own machine; one that is refused, and one that is repeated, stop no other."""
    world = World(scope(approval=ApprovalMode.ALL), machines=[machine(f"shop/web-{i}") for i in range(3)])
    (event,) = world.submit("shop/web-0", "shop/web-1", "shop/web-2")
    asked = [("web-0", event.id), ("web-1", guid(99)), ("web-2", event.id), ("web-0", event.id)]
    approvals = [GuestApproval("shop", name, (event_id,), Actor(name, "guest")) for name, event_id in asked]
    change, errors = approve(world.snapshot(), approvals, now=world.now)
    assert [(a.machine, a.who) for a in change.approvals] == [("web-0", "web-0"), ("web-2", "web-2")]
    assert actions(change) == ["web-0: event approved", "web-2: event approved"]
    assert [type(error) for error in errors] == [type(None), Invalid, type(None), type(None)]


def test_approval_all_takes_every_resource() -> None:
    """approval = all: each machine in Resources must approve; an approval of another machine has no effect."""
    world = World(scope(approval=ApprovalMode.ALL), machines=[machine(f"shop/web-{i}", i // 2) for i in range(4)])
    (event,) = world.submit("shop/web-0", "shop/web-1")
    assert world.approve("shop/web-3", event.id).empty
    world.approve("shop/web-0", event.id)
    assert world.approve("shop/web-0", event.id).empty
    world.tick()
    assert world.status(event.id) is Status.SCHEDULED
    world.approve("shop/web-1", event.id)
    world.tick()
    assert world.status(event.id) is Status.STARTED


def test_approval_operator_leaves_guests_without_effect() -> None:
    """approval = operator: an approval of a guest is accepted without effect, an operator's counts."""
    world = shop(approval=ApprovalMode.OPERATOR)
    (event,) = world.submit("shop/web-0")
    assert world.approve("shop/web-0", event.id).empty
    world.start(event.id)
    assert world.status(event.id) is Status.STARTED


@pytest.mark.parametrize("mode", ApprovalMode)
def test_an_operators_approval_counts_for_all(mode: ApprovalMode) -> None:
    """With any setting, one approval of an operator is enough, and is recorded once."""
    world = shop(approval=mode)
    (event,) = world.submit("shop/web-0")
    change = world.approve_as_operator(event.id)
    assert [(a.machine, a.who, a.origin) for a in change.approvals] == [("", "alice", "console")]
    assert world.approve_as_operator(event.id).empty
    world.tick()
    assert world.status(event.id) is Status.STARTED


def test_approving_a_started_event_changes_nothing() -> None:
    """An event that started at its NotBefore records no later approval."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.tick_at(15)
    assert world.approve("shop/web-0", event.id).empty
    assert world.approve_as_operator(event.id).empty
    assert world.event(event.id).approvals == ()


def test_an_operators_approval_is_recorded_beside_a_guests() -> None:
    """An operator's approval after a guest's is recorded; a guest's after it is not."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.approve("shop/web-0", event.id)
    world.approve_as_operator(event.id)
    assert [a.machine for a in world.event(event.id).approvals] == ["web-0", ""]
    assert world.approve("shop/web-1", event.id).empty


# -- cancel


def test_a_cancelled_event_says_who_cancelled_it() -> None:
    """It ends with this reason, and leaves the document."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.now = at(3)
    change = world.cancel_event(event.id)
    cancelled = world.event(event.id)
    assert (cancelled.status, cancelled.ended, cancelled.reason) == (Status.CANCELLED, at(3), "cancelled by alice")
    assert world.scope().incarnation == 3
    assert change.wakes == (event.maintenance_id,)


def test_later_waves_go_on_without_a_cancelled_event() -> None:
    """The wave of a cancelled event no longer waits for it, and later waves go on."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.cancel_event(first.id)
    world.tick_at(1)
    assert world.event(second.id).not_before == at(16)


def test_cancelling_a_planned_event_shows_guests_nothing() -> None:
    """Cancelling an invisible event does not change the incarnation."""
    world = shop(domains=2)
    _, second = world.submit("shop/web-0", "shop/web-1")
    world.cancel_event(second.id)
    assert world.scope().incarnation == 2


def test_cancelling_a_maintenance_cancels_its_unstarted_events() -> None:
    """A Started event runs to its end, and then the maintenance is Cancelled."""
    world = shop(domains=3)
    first, second, third = world.submit(targets=Targets(scope="shop"))
    world.start(first.id)
    change = world.cancel_maintenance(first.maintenance_id)
    assert [world.status(e.id) for e in (first, second, third)] == ["Started", "Cancelled", "Cancelled"]
    assert world.maintenance(first.id).status is MaintenanceStatus.RUNNING
    assert world.event(third.id).reason == "maintenance cancelled by alice"
    assert actions(change)[0] == "alice: maintenance cancelled"
    world.finish(first.id)
    world.tick()
    assert world.maintenance(first.id).status is MaintenanceStatus.CANCELLED


def test_a_cancelled_maintenance_has_ended() -> None:
    """Without started events the maintenance ends in the same transaction."""
    world = shop()
    (event,) = world.submit("shop/web-0", earliest=at(60))
    world.now = at(4)
    world.cancel_maintenance(event.maintenance_id)
    cancelled = world.maintenance(event.id)
    assert (cancelled.status, cancelled.ended, cancelled.wake_at) == (MaintenanceStatus.CANCELLED, at(4), None)


def test_cancelling_again_changes_nothing() -> None:
    """A maintenance that is already cancelled stays as it is."""
    world = shop(domains=2)
    first, _ = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.cancel_maintenance(first.maintenance_id)
    assert world.cancel_maintenance(first.maintenance_id).empty


def test_an_ended_maintenance_is_neither_cancelled_nor_paused() -> None:
    """The refusal says how the maintenance ended."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.cancel_maintenance(event.maintenance_id)
    for verb in (world.cancel_maintenance, world.pause, world.resume):
        with pytest.raises(Refused, match=f"maintenance {event.maintenance_id} has ended: it is Cancelled"):
            verb(event.maintenance_id)


# -- pause and resume


def test_pause_holds_the_start_and_keeps_not_before() -> None:
    """A paused maintenance does not start, however late it is; its NotBefore is unchanged."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    change = world.pause(event.maintenance_id)
    paused = world.maintenance(event.id)
    assert (paused.status, paused.wake_at) == (MaintenanceStatus.PAUSED, None)
    assert actions(change) == ["alice: maintenance paused"]
    world.tick_at(60)
    assert (world.status(event.id), world.event(event.id).not_before) == (Status.SCHEDULED, at(15))


def test_pause_holds_publication() -> None:
    """A paused maintenance does not publish its next wave; after resume it does, with full notice."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.pause(first.maintenance_id)
    world.finish(first.id)
    world.tick_at(5)
    assert world.status(second.id) is Status.PLANNED
    world.now = at(30)
    world.resume(first.maintenance_id)
    world.tick()
    assert world.event(second.id).not_before == at(45)


def test_resume_wakes_the_maintenance_at_once() -> None:
    """A resumed maintenance is due for a tick now."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.pause(event.maintenance_id)
    world.now = at(20)
    change = world.resume(event.maintenance_id)
    assert world.maintenance(event.id).wake_at == at(20)
    assert actions(change) == ["alice: maintenance resumed"]
    world.tick()
    assert world.status(event.id) is Status.STARTED


def test_resuming_a_maintenance_without_open_events_ends_it() -> None:
    """A paused maintenance whose last event was cancelled ends, and nothing wakes."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.pause(event.maintenance_id)
    world.cancel_event(event.id)
    world.resume(event.maintenance_id)
    ended = world.maintenance(event.id)
    assert (ended.status, ended.ended, ended.wake_at) == (MaintenanceStatus.CANCELLED, START, None)


def test_pausing_and_resuming_again_changes_nothing() -> None:
    """Pausing a paused maintenance, or resuming one that is not paused, saves nothing."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    assert world.resume(event.maintenance_id).empty
    world.pause(event.maintenance_id)
    assert world.pause(event.maintenance_id).empty


# -- resolve a failure


def test_retry_issues_the_order_again() -> None:
    """retry: the same id, the next attempt, a new deadline; the event is Started all along."""
    world, first, _ = failed_event()
    world.now = at(30)
    change = world.resolve_failure(first, Verb.RETRY)
    order = world.order(first)
    assert (order.id, order.attempt, order.state) == (first, 2, OrderState.OPEN)
    assert (order.issued, order.deadline, order.reason) == (at(30), at(90), "")
    assert world.status(first) is Status.STARTED
    assert actions(change) == ["alice: event retry by operator"]


def test_a_retry_does_not_hide_the_next_wave() -> None:
    """on_failure = continue: the published next wave stays visible during the retry, and waits for it."""
    world, first, second = failed_event(on_failure=OnFailure.CONTINUE)
    world.tick()
    world.resolve_failure(first, Verb.RETRY)
    world.start(second)
    assert (world.status(first), world.status(second)) == (Status.STARTED, Status.SCHEDULED)
    assert world.codes(second) == ["earlier-wave"]
    world.finish(first)
    world.tick()
    assert world.status(second) is Status.STARTED


def test_finish_by_an_operator_completes_the_event() -> None:
    """finish: the event is Completed, and the maintenance goes on."""
    world, first, second = failed_event()
    world.resolve_failure(first, Verb.FINISH)
    assert (world.status(first), world.event(first).reason) == (Status.COMPLETED, "finished by alice")
    assert world.order(first).state is OrderState.DONE
    world.tick()
    assert world.status(second) is Status.SCHEDULED


def test_abandon_ends_the_event_without_its_work() -> None:
    """abandon: the event ends, its order stays failed, and the maintenance goes on and ends as Failed."""
    world, first, second = failed_event()
    world.now = at(9)
    world.resolve_failure(first, Verb.ABANDON)
    abandoned = world.event(first)
    assert (abandoned.status, abandoned.ended, abandoned.reason) == (Status.ABANDONED, at(9), "abandoned by alice")
    assert world.order(first).state is OrderState.FAILED
    world.tick()
    world.start(second)
    world.finish(second)
    world.tick()
    assert world.maintenance(first).status is MaintenanceStatus.FAILED


def test_finishing_a_failed_terminate_removes_the_machine() -> None:
    """An operator who finishes a Terminate removes the machine."""
    world = World(scope(kind=ScopeKind.PLACEMENT_GROUP), machines=[machine("shop/web-0")])
    (event,) = world.submit("shop/web-0", type=EventType.TERMINATE)
    world.start(event.id)
    world.fail(event.id)
    world.resolve_failure(event.id, Verb.FINISH)
    assert world.snapshot().machines == {}


# -- enabling


def test_enabling_starts_an_epoch() -> None:
    """The first request of a scope's guests enables it: a new epoch, incarnation 1."""
    world = shop(enabled=False, epoch=3)
    (event,) = world.submit("shop/web-0", not_before=at(60))
    assert world.scope().incarnation == 2
    change = world.enable()
    enabled = world.scope()
    assert (enabled.enabled, enabled.epoch, enabled.incarnation) == (True, 4, 1)
    assert [(entry.action, entry.scope) for entry in change.audit] == [("scope enabled", "shop")]
    assert world.event(event.id) == event


def test_enabling_again_changes_nothing() -> None:
    """An enabled scope is not enabled again, nor a disabled one disabled."""
    world = shop()
    assert world.enable().empty
    world.disable()
    assert world.disable().empty


def test_disabling_keeps_published_events() -> None:
    """An event published before keeps its NotBefore, and the document does not change."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    change = world.disable()
    disabled = world.scope()
    assert (disabled.enabled, disabled.epoch, disabled.incarnation) == (False, 1, 2)
    assert [entry.action for entry in change.audit] == ["scope disabled"]
    world.tick_at(14)
    assert world.event(event.id) == event


# -- what a verb may read


def test_a_tick_skips_maintenances_with_scopes_outside_the_snapshot() -> None:
    """A maintenance is advanced as a whole or not at all."""
    world = World(scope("shop"), scope("ship"), machines=[machine("shop/web-0"), machine("ship/app-0")])
    first, second = world.submit("shop/web-0", "ship/app-0")
    snapshot = world.snapshot()
    partial = replace(snapshot, scopes={"shop": snapshot.scopes["shop"]})
    assert tick(partial, now=at(60), actor=TICKER, order_timeout_s=ORDER_TIMEOUT_S, new_id=str).empty
    world.tick_at(60)
    assert [world.status(e.id) for e in (first, second)] == [Status.STARTED, Status.STARTED]


def test_a_tick_wakes_a_maintenance_outside_that_it_does_not_hold_back() -> None:
    """Another tick decides about it: what it waited for may have left the queue by a change that it does not show."""
    world = World(scope("shop"), scope("ship"), machines=[machine("shop/web-0"), machine("ship/app-0")])
    first, _ = world.submit("shop/web-0", "ship/app-0")
    waiting = replace(world.maintenance(first.id), observed_published_at=START, wake_at=None)
    snapshot = world.snapshot()
    partial = replace(snapshot, scopes={"shop": snapshot.scopes["shop"]}, maintenances={waiting.id: waiting})

    def wakes(minutes: int) -> tuple[str, ...]:
        return tick(partial, now=at(minutes), actor=TICKER, order_timeout_s=ORDER_TIMEOUT_S, new_id=str).wakes

    assert wakes(60) == (waiting.id,)
    assert wakes(5) == ()


# -- retrying all failed orders


def test_retry_failed_retries_every_failed_order_of_the_maintenance_at_once() -> None:
    """The orders are open again as a second attempt, in one change, and the maintenance runs again. Orders in doubt stay."""
    world = World(*(scope(f"s{i}") for i in range(4)), machines=[machine(f"s{i}/web", 0) for i in range(4)])
    events = world.submit(*(f"s{i}/web" for i in range(4)))
    world.start(*(event.id for event in events))
    first, second, doubtful, running = (event.id for event in events)
    world.take(doubtful)
    world.doubt(doubtful)
    for event_id in (first, second):
        world.fail(event_id)
    world.tick()
    assert world.maintenance(first).status is MaintenanceStatus.PAUSED
    change = world.retry_failed(events[0].maintenance_id)
    assert {order.id for order in change.orders} == {first, second}
    assert [(entry.event_id, entry.action) for entry in change.audit] == [
        (each, "event retry by operator") for each in (first, second)
    ]
    for event_id in (first, second):
        assert (world.order(event_id).state, world.order(event_id).attempt) == (OrderState.OPEN, 2)
    assert (world.order(doubtful).state, world.order(running).attempt) == (OrderState.IN_DOUBT, 1)
    assert world.maintenance(first).status is MaintenanceStatus.RUNNING


def test_retry_failed_needs_a_failed_order() -> None:
    """Without one there is nothing to retry, and a maintenance that has ended is refused."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    with pytest.raises(Refused, match=r"no order of maintenance .* has failed: there is nothing to retry"):
        world.retry_failed(event.maintenance_id)
    world.start(event.id)
    world.fail(event.id)
    world.resolve_failure(event.id, Verb.ABANDON)
    world.tick()
    with pytest.raises(Refused, match="has ended: it is Failed"):
        world.retry_failed(event.maintenance_id)
