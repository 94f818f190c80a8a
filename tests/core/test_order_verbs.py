"""What the verbs of executors do to orders and their events."""

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core import order_verbs
from forewarn.core.change import Change
from forewarn.core.errors import Invalid, Refused
from forewarn.core.fleet_rules import FleetRules, Window
from forewarn.core.model import (
    EventType,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    ScopeKind,
    Source,
    Status,
    Strategy,
)
from forewarn.core.order_verbs import OrderReport, Outcome
from forewarn.core.transitions import Verb
from tests.support.builders import (
    EXECUTOR,
    ORDER_TIMEOUT_S,
    World,
    actions,
    at,
    failed_event,
    machine,
    scope,
    shop,
)

# -- what executors report


def test_taking_an_order_records_the_node() -> None:
    """The node and the time are saved before the work."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.now = at(1)
    change = world.take(event.id)
    order = world.order(event.id)
    assert (order.state, order.node, order.taken) == (OrderState.RUNNING, "node-1", at(1))
    assert change.audit[0].detail == "attempt 1 by node-1"


def test_a_finished_order_completes_its_event() -> None:
    """The event is Completed and leaves the document; the report's reason is kept."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.now = at(2)
    change = world.report(event.id, Outcome(ok=True, reason="rebooted", output="uptime 3 s"))
    done, order = world.event(event.id), world.order(event.id)
    assert (done.status, done.ended, done.reason) == (Status.COMPLETED, at(2), "rebooted")
    assert (order.state, order.ended, order.output) == (OrderState.DONE, at(2), "uptime 3 s")
    assert world.scope().incarnation == 4
    assert actions(change) == ["playbook: order finished", "playbook: event completed"]
    world.tick()
    completed = world.maintenance(event.id)
    assert (completed.status, completed.ended) == (MaintenanceStatus.COMPLETED, at(2))


def test_a_failed_order_leaves_its_event_started() -> None:
    """An event whose order failed stays Started and visible."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    (entry,) = world.fail(event.id).audit
    assert (entry.who, entry.action, entry.event_id, entry.detail) == ("playbook", "order failed", event.id, "burnt")
    assert world.status(event.id) is Status.STARTED
    assert (world.order(event.id).state, world.order(event.id).reason) == (OrderState.FAILED, "burnt")
    assert world.scope().incarnation == 3


def test_a_late_success_counts() -> None:
    """After a timeout an executor may still report success."""
    world, first, second = failed_event()
    world.finish(first)
    world.tick()
    assert world.status(first) is Status.COMPLETED
    assert world.status(second) is Status.SCHEDULED


@pytest.mark.parametrize("ok", [True, False])
def test_a_report_may_name_new_hosts(ok: bool) -> None:
    """The machine has its new host in the same transaction, also if the work on another machine failed."""
    world = World(scope(), machines=[machine("shop/web-0", host="h1")])
    (event,) = world.submit("shop/web-0", type=EventType.REDEPLOY)
    world.start(event.id)
    change = world.report(event.id, Outcome(ok=ok, new_hosts={("shop", "web-0"): "h2"}))
    assert change.machines == (machine("shop/web-0", host="h2"),)


def test_a_moved_machine_wakes_what_may_wait_for_its_labels() -> None:
    """A planned wave with the machine is examined again, because the new host may have other labels; other waves are not."""
    rules = FleetRules(windows={"nights": Window(name="nights", spans=("daily 20:00-21:00",))})
    world = World(scope(), machines=[machine("shop/web-0", host="h1"), machine("shop/web-1", host="h1")])
    world.save(Change(at=world.now, fleet_rules=rules))
    (event,) = world.submit("shop/web-0", type=EventType.REDEPLOY)
    world.start(event.id)
    at_night = Strategy(windows=("nights",))
    (waiting,), (_,) = (world.submit(f"shop/{name}", strategy=at_night) for name in ("web-0", "web-1"))
    assert waiting.status is Status.PLANNED
    change = world.report(event.id, Outcome(ok=False, new_hosts={("shop", "web-0"): "h2"}))
    assert set(change.wakes) == {event.maintenance_id, waiting.maintenance_id}


@pytest.mark.parametrize("named", [("shop", "web-1"), ("ship", "web-0"), ("shop", "web-9")])
def test_new_hosts_are_for_the_events_own_machines(named: tuple[str, str]) -> None:
    """A report that moves another event's machine is refused."""
    machines = [machine("shop/web-0"), machine("shop/web-1"), machine("ship/web-0")]
    world = World(scope(), scope("ship"), machines=machines)
    (event,) = world.submit("shop/web-0", type=EventType.REDEPLOY)
    world.start(event.id)
    before = deepcopy(world.snapshot())
    with pytest.raises(Invalid, match=f"new_hosts names {'/'.join(named)}, which is not a machine of event {event.id}"):
        world.report(event.id, Outcome(ok=True, new_hosts={named: "h2"}))
    assert world.snapshot() == before


def test_a_terminated_machine_leaves_the_inventory() -> None:
    """The machine is removed in the same transaction, and its other events are cancelled."""
    group = scope(kind=ScopeKind.PLACEMENT_GROUP)
    world = World(group, machines=[machine("shop/web-0"), machine("shop/web-1")])
    (alone,) = world.submit("shop/web-0", source=Source.USER)
    (shared,) = world.submit("shop/web-0", "shop/web-1", not_before=at(600))
    (running,) = world.submit("shop/web-1", type=EventType.PREEMPT)
    world.start(running.id)
    (end,) = world.submit("shop/web-0", type=EventType.TERMINATE)
    world.start(end.id)
    change = world.finish(end.id)
    assert change.removed_machines == (("shop", "web-0"),)
    assert list(world.snapshot().machines) == [("shop", "web-1")]
    assert (world.status(alone.id), world.event(alone.id).reason) == (
        Status.CANCELLED,
        "its machines were removed: web-0",
    )
    assert world.status(shared.id) is Status.SCHEDULED
    assert world.status(running.id) is Status.STARTED


def test_an_event_is_cancelled_when_its_last_machine_is_terminated() -> None:
    """An event with no machine left is cancelled and gets no order."""
    group = scope(kind=ScopeKind.PLACEMENT_GROUP)
    world = World(group, machines=[machine("shop/web-0"), machine("shop/web-1")])
    (shared,) = world.submit("shop/web-0", "shop/web-1", not_before=at(9_000))
    for name in ("shop/web-0", "shop/web-1"):
        assert world.status(shared.id) is Status.SCHEDULED
        (end,) = world.submit(name, type=EventType.TERMINATE)
        world.start(end.id)
        world.finish(end.id)
    assert world.status(shared.id) is Status.CANCELLED


def test_a_report_may_name_its_attempt() -> None:
    """A report of the first attempt is refused after the retry, and changes nothing."""
    world = World(scope(), machines=[machine("shop/web-0")])
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.report(event.id, Outcome(ok=False, reason="no"))
    world.resolve_failure(event.id, Verb.RETRY)
    before = world.snapshot()
    with pytest.raises(Refused, match="at attempt 2"):
        order_verbs.report(before, [OrderReport(event.id, 1, Outcome(ok=True))], now=world.now, actor=EXECUTOR)
    change = order_verbs.report(before, [OrderReport(event.id, 2, Outcome(ok=True))], now=world.now, actor=EXECUTOR)
    assert [e.status for e in change.events] == [Status.COMPLETED]


def test_several_reports_are_one_change_or_none() -> None:
    """If one of several reports is refused, none is saved."""
    world = shop(domains=2)
    events = [world.submit(f"shop/web-{i}", source=Source.USER)[0] for i in range(2)]
    for event in events:
        world.start(event.id)
    reports = [OrderReport(event.id, 1, Outcome(ok=True)) for event in events]
    before = world.snapshot()
    with pytest.raises(Refused):
        order_verbs.report(before, [*reports, reports[0]], now=world.now, actor=EXECUTOR)
    change = order_verbs.report(before, reports, now=world.now, actor=EXECUTOR)
    assert [e.status for e in change.events] == [Status.COMPLETED] * 2


def test_the_time_limit_counts_from_taking_the_order() -> None:
    """Waiting for a free executor does not use up the time of the order."""
    world = World(scope(), machines=[machine("shop/web-0")])
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.now = world.now + timedelta(seconds=1_000)
    (order,) = world.take(event.id).orders
    assert order.deadline == world.now + timedelta(seconds=ORDER_TIMEOUT_S)


def test_a_running_order_is_taken_over_from_its_node() -> None:
    """The order keeps attempt and deadline; a second take-over and the old node's report are refused."""
    world = World(scope(), machines=[machine("shop/web-0")])
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    (taken,) = world.take(event.id).orders
    world.now = world.now + timedelta(seconds=60)
    change = take_over(world, event.id, node="node-2", of="node-1")
    assert change.orders == (replace(taken, node="node-2"),)
    assert actions(change) == ["playbook: order taken over"]
    world.save(change)
    with pytest.raises(Refused, match="belongs to node-2 now"):
        take_over(world, event.id, node="node-3", of="node-1")
    late = order_verbs.OrderReport(event.id, 1, Outcome(ok=True), node="node-1")
    with pytest.raises(Refused, match="belongs to node-2 now: a report of node-1 no longer counts"):
        order_verbs.report(world.snapshot(), [late], now=world.now, actor=EXECUTOR)
    world.finish(event.id)
    with pytest.raises(Refused, match="is done"):
        take_over(world, event.id, node="node-3", of="node-2")


def take_over(world: World, order_id: str, *, node: str, of: str) -> Change:
    return order_verbs.take_over(
        world.snapshot(),
        order_id,
        now=world.now,
        actor=EXECUTOR,
        node=node,
        of=of,
        order_timeout_s=ORDER_TIMEOUT_S,
    )


# -- doubt


def doubtful_event(on_failure: OnFailure = OnFailure.HOLD) -> tuple[World, str, str]:
    """A world at minute 1 whose first wave was taken and is in doubt; the events of its two waves."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1", on_failure=on_failure)
    world.start(first.id)
    world.take(first.id)
    world.now = at(1)
    world.doubt(first.id)
    return world, first.id, second.id


def test_an_order_in_doubt_keeps_its_node_and_has_no_time_limit() -> None:
    """The event stays Started and visible; the audit has the node and the reason."""
    world, first, _ = doubtful_event()
    order = world.order(first)
    assert (order.state, order.node, order.deadline, order.ended) == (OrderState.IN_DOUBT, "node-1", None, None)
    assert (order.reason, order.attempt, world.status(first)) == ("its node is gone", 1, Status.STARTED)
    world.save(take_over(world, first, node="node-1", of="node-1"))
    (entry,) = world.doubt(first).audit
    assert (entry.action, entry.detail) == ("order in doubt", "attempt 1 by node-1: its node is gone")


@pytest.mark.parametrize("on_failure", list(OnFailure))
def test_neither_time_nor_on_failure_applies_to_an_order_in_doubt(on_failure: OnFailure) -> None:
    """A month later the order is in doubt, its event is Started, and the next wave waits for it."""
    world, first, second = doubtful_event(on_failure)
    world.tick_at(30 * 24 * 60)
    assert (world.order(first).state, world.status(first)) == (OrderState.IN_DOUBT, Status.STARTED)
    assert world.status(second) is Status.PLANNED
    assert world.codes(first) == ["in-doubt"]
    assert world.codes(second) == ["unresolved"]
    assert world.maintenance(first).status is MaintenanceStatus.RUNNING
    assert world.maintenance(first).wake_at is None


def test_the_node_with_the_work_ends_the_doubt() -> None:
    """Its order is under way again, and its time limit counts from now; a report then ends the event."""
    world, first, _ = doubtful_event()
    world.now = at(500)
    change = take_over(world, first, node="node-1", of="node-1")
    (order,) = change.orders
    assert (order.state, order.node, order.attempt, order.reason) == (OrderState.RUNNING, "node-1", 1, "")
    assert order.deadline == world.now + timedelta(seconds=ORDER_TIMEOUT_S)
    world.save(change)
    world.finish(first)
    assert world.status(first) is Status.COMPLETED


@pytest.mark.parametrize("ok, state", [(True, OrderState.DONE), (False, OrderState.FAILED)])
def test_a_report_of_its_node_ends_the_doubt(ok: bool, state: OrderState) -> None:
    """A node that was cut off reports how the work ended; another node's report is refused."""
    world, first, _ = doubtful_event()
    late = OrderReport(first, 1, Outcome(ok=ok), node="node-2")
    with pytest.raises(Refused, match="belongs to node-1"):
        order_verbs.report(world.snapshot(), [late], now=world.now, actor=EXECUTOR)
    world.save(order_verbs.report(world.snapshot(), [replace(late, node="node-1")], now=world.now, actor=EXECUTOR))
    assert world.order(first).state is state


def test_retry_of_an_order_in_doubt_is_a_new_attempt() -> None:
    """The operator checked the machines; what the first attempt reports later no longer counts."""
    world, first, _ = doubtful_event()
    world.resolve_failure(first, Verb.RETRY)
    order = world.order(first)
    assert (order.state, order.attempt, order.node, order.reason) == (OrderState.OPEN, 2, "", "")
    assert order.deadline is not None
    late = OrderReport(first, 1, Outcome(ok=True), node="node-1")
    with pytest.raises(Refused, match="attempt 1 no longer counts"):
        order_verbs.report(world.snapshot(), [late], now=world.now, actor=EXECUTOR)


def test_abandon_ends_the_doubt() -> None:
    """The event is Abandoned, and its order no longer counts as in doubt; the order says why it failed."""
    world, first, _ = doubtful_event()
    world.resolve_failure(first, Verb.ABANDON)
    order = world.order(first)
    assert (world.status(first), order.state) == (Status.ABANDONED, OrderState.FAILED)
    assert order.reason == "abandoned by alice; it was in doubt: its node is gone"
    assert order.ended == world.event(first).ended == at(1)


def test_a_terminated_machine_has_no_new_host() -> None:
    """A terminated machine is removed, even if the report names a new host for it."""
    world = World(scope(kind=ScopeKind.PLACEMENT_GROUP), machines=[machine("shop/web-0", host="h1")])
    (event,) = world.submit("shop/web-0", type=EventType.TERMINATE)
    world.start(event.id)
    change = world.report(event.id, Outcome(ok=True, new_hosts={("shop", "web-0"): "h2"}))
    assert (change.machines, change.removed_machines) == ((), (("shop", "web-0"),))


def test_other_types_leave_the_machine() -> None:
    """Only Terminate removes the machine; a preempted machine stays in the inventory."""
    world = shop(domains=1)
    (event,) = world.submit("shop/web-0", type=EventType.PREEMPT)
    world.start(event.id)
    assert world.finish(event.id).removed_machines == ()
    assert list(world.snapshot().machines) == [("shop", "web-0")]
