"""When a wave is published and started, when an order times out, and when a maintenance wakes."""

from datetime import timedelta
from typing import Any

import pytest

from forewarn.core import advance, lifecycle, waiting
from forewarn.core.draft import Draft
from forewarn.core.model import (
    Event,
    EventType,
    Maintenance,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    Source,
    Status,
    Targets,
)
from forewarn.core.transitions import Verb
from tests.support.builders import OPERATOR, START, TICKER, World, at, guid, machine, request, scope, shop, two_scopes


def statuses(world: World, *event_ids: str) -> list[str]:
    return [str(world.status(event_id)) for event_id in event_ids]


# -- start


def test_an_event_starts_once_not_before_has_passed_and_never_before() -> None:
    """Without approval: not a second before NotBefore, and at NotBefore itself."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.tick_at(15 - 1 / 60)
    assert world.status(event.id) is Status.SCHEDULED
    change = world.tick_at(15)
    started = world.event(event.id)
    assert (started.status, started.started, started.not_before) == (Status.STARTED, at(15), at(15))
    assert world.maintenance(event.id).status is MaintenanceStatus.RUNNING
    assert [(entry.action, entry.event_id) for entry in change.audit] == [("event started", event.id)]


def test_notice_counts_from_the_observed_publication() -> None:
    """A store may take long to save: an unapproved event gives its whole notice from when guests could see it."""
    world = shop()
    _, change = lifecycle.submit(
        world.snapshot(), request("shop/web-0"), now=START, actor=OPERATOR, new_id=lambda: guid(1), order_timeout_s=60
    )
    world.now = at(14)  # saved only now
    world.adopt(change)
    assert world.tick_at(14).maintenances[0].observed_published_at == at(14)
    world.tick_at(15)
    assert world.status(guid(1)) is Status.SCHEDULED
    assert world.maintenance(guid(1)).wake_at == at(29)
    assert [reason.until for reason in world.waiting_for(guid(1)) if reason.code == "notice"] == [at(29)]
    world.tick_at(29)
    assert world.status(guid(1)) is Status.STARTED


def test_an_event_saved_late_may_be_approved() -> None:
    """An approval starts the event at once; only the notice counts from the observed publication."""
    world = shop()
    _, change = lifecycle.submit(
        world.snapshot(), request("shop/web-0"), now=START, actor=OPERATOR, new_id=lambda: guid(1), order_timeout_s=60
    )
    world.now = at(14)
    world.adopt(change)
    world.start(guid(1))
    assert world.event(guid(1)).started == at(14)


def test_each_wave_has_its_own_observed_publication() -> None:
    """The notice of the second wave counts from its own observed publication."""
    world = shop(2)
    first, second = world.submit(targets=Targets(scope="shop"))
    world.tick_at(15)
    world.now = at(20)
    world.finish(first.id)
    published = lifecycle.tick(world.snapshot(), now=at(20), actor=TICKER, order_timeout_s=60, new_id=str)
    assert published.maintenances[0].observed_published_at is None
    assert published.maintenances[0].wake_at == at(20)
    world.save(published)
    world.tick_at(22)
    assert world.event(second.id).not_before == at(35)
    world.tick_at(36)
    assert world.status(second.id) is Status.SCHEDULED
    world.tick_at(37)
    assert world.status(second.id) is Status.STARTED


def test_an_approved_event_starts_as_soon_as_it_can() -> None:
    """Approval brings the start forward; NotBefore stays what was published."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.approve("shop/web-2", event.id)
    world.tick_at(1)
    assert (world.event(event.id).started, world.event(event.id).not_before) == (at(1), at(15))


def test_a_start_issues_one_order_under_the_events_id() -> None:
    """One order per started event, with a deadline."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    order = world.order(event.id)
    assert (order.id, order.issued, order.deadline) == (event.id, START, at(60))
    assert (order.state, order.attempt) == (OrderState.OPEN, 1)


def test_an_order_may_have_no_deadline() -> None:
    """order_timeout = 0: the order never times out, and no deadline wakes its maintenance."""
    world = two_scopes()
    events = world.submit("ship/web-0", "shop/web-0")
    world.now = at(15)
    world.tick(order_timeout_s=0)
    assert [world.order(e.id).deadline for e in events] == [None, None]
    assert world.maintenance(events[0].id).wake_at is None
    world.tick_at(1_000_000)
    assert [world.order(e.id).state for e in events] == [OrderState.OPEN, OrderState.OPEN]


def test_the_events_of_a_wave_start_together() -> None:
    """A wave waits for the approval of each of its events, then all start in one transaction."""
    world = two_scopes()
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    world.approve("shop/web-0", shop_0.id)
    world.tick_at(1)
    assert statuses(world, ship.id, shop_0.id) == ["Scheduled", "Scheduled"]
    world.approve("ship/web-1", ship.id)
    change = world.tick_at(2)
    assert statuses(world, ship.id, shop_0.id) == ["Started", "Started"]
    assert {e.id for e in change.events} == {ship.id, shop_0.id}


def test_a_wave_does_not_wait_for_a_disabled_scopes_approval() -> None:
    """In a wave with enabled scopes a disabled one shares NotBefore and needs no approval."""
    world = two_scopes(enabled=False)
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    assert ship.not_before == shop_0.not_before == at(15)
    world.approve("shop/web-0", shop_0.id)
    world.tick_at(1)
    assert statuses(world, ship.id, shop_0.id) == ["Started", "Started"]


def test_a_wave_no_longer_waits_for_a_cancelled_event() -> None:
    """A cancelled event does not hold back the rest of its wave."""
    world = two_scopes()
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    world.approve("shop/web-0", shop_0.id)
    world.cancel_event(ship.id)
    world.tick_at(1)
    assert statuses(world, ship.id, shop_0.id) == ["Cancelled", "Started"]


def test_earliest_is_a_hard_floor() -> None:
    """`earliest` is not brought forward by approval, nor passed by NotBefore."""
    world = shop()
    (event,) = world.submit("shop/web-0", earliest=at(30))
    world.approve("shop/web-0", event.id)
    world.tick_at(20)
    assert world.status(event.id) is Status.SCHEDULED
    world.tick_at(30)
    assert world.event(event.id).started == at(30)


def test_a_requested_start_in_a_disabled_scope() -> None:
    """A disabled scope's event starts at the requested NotBefore, not before."""
    world = shop(enabled=False)
    (event,) = world.submit("shop/web-0", not_before=at(5))
    world.tick_at(4)
    assert world.status(event.id) is Status.SCHEDULED
    world.tick_at(5)
    assert world.status(event.id) is Status.STARTED


# -- one wave after the other


def test_the_next_wave_is_published_when_the_last_has_ended() -> None:
    """Platform maintenance touches one update domain at a time; the next follows, with its own notice."""
    world = shop(domains=3)
    first, second, third = world.submit(targets=Targets(scope="shop"))
    world.start(first.id)
    world.tick_at(10)
    assert statuses(world, first.id, second.id, third.id) == ["Started", "Planned", "Planned"]
    world.finish(first.id)
    world.tick_at(11)
    assert statuses(world, first.id, second.id, third.id) == ["Completed", "Scheduled", "Planned"]
    assert world.event(second.id).not_before == at(26)


def test_the_next_wave_waits_for_every_event_of_the_last() -> None:
    """A wave has ended when each of its events has."""
    world = two_scopes()
    first, second, third, fourth = world.submit(*(f"{name}/web-{i}" for name in ("shop", "ship") for i in range(2)))
    world.start(first.id, second.id)
    world.finish(first.id)
    world.tick_at(1)
    assert statuses(world, third.id, fourth.id) == ["Planned", "Planned"]
    world.finish(second.id)
    world.tick_at(2)
    assert statuses(world, third.id, fourth.id) == ["Scheduled", "Scheduled"]


def test_a_setting_changed_meanwhile_applies_to_the_next_wave() -> None:
    """Settings count at publication: a scope that was disabled since gets no notice for the next wave."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.disable()
    world.finish(first.id)
    world.tick_at(1)
    assert (world.status(second.id), world.event(second.id).needs_approval) == (Status.STARTED, False)


# -- what stands in the way


def test_one_update_domain_of_a_scope_at_a_time() -> None:
    """A due platform event waits while any event is started in another update domain of its scope."""
    world = shop(domains=2)
    (user,) = world.submit("shop/web-0", source=Source.USER)
    (platform,) = world.submit("shop/web-1")
    world.start(user.id)
    world.start(platform.id)
    assert statuses(world, user.id, platform.id) == ["Started", "Scheduled"]
    world.finish(user.id)
    world.tick()
    assert world.status(platform.id) is Status.STARTED


def test_the_same_update_domain_may_go_down_together() -> None:
    """Two maintenances of one update domain run side by side if they share no machine."""
    world = World(scope(), machines=[machine("shop/web-0"), machine("shop/web-1")])
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-1")
    world.start(first.id, second.id)
    assert statuses(world, first.id, second.id) == ["Started", "Started"]


@pytest.mark.parametrize(
    "options",
    [
        {"source": Source.USER, "type": EventType.REBOOT},
        {"source": Source.USER, "type": EventType.REDEPLOY},
        {"type": EventType.PREEMPT},
    ],
)
def test_the_update_domain_rule_applies_to_rolling_platform_events_only(options: dict[str, Any]) -> None:
    """User events and Preempt start while another update domain has a started event."""
    world = shop(domains=2)
    (rolling,) = world.submit("shop/web-0")
    (exempt,) = world.submit("shop/web-1", **options)
    world.start(rolling.id)
    world.start(exempt.id)
    assert statuses(world, rolling.id, exempt.id) == ["Started", "Started"]


def test_a_machine_is_in_one_started_event() -> None:
    """A due event waits until the started event of its machine ends, whatever its type."""
    world = shop()
    (first,) = world.submit("shop/web-0", source=Source.USER, type=EventType.REDEPLOY)
    (second,) = world.submit("shop/web-0", source=Source.USER)
    world.start(first.id, second.id)
    assert statuses(world, first.id, second.id) == ["Started", "Scheduled"]
    world.finish(first.id)
    world.tick()
    assert world.status(second.id) is Status.STARTED


def test_an_obstacle_in_one_scope_holds_the_whole_wave() -> None:
    """A wave starts together: an obstacle in one scope holds back its events in all scopes."""
    world = two_scopes()
    (busy,) = world.submit("ship/web-1")
    world.start(busy.id)
    first, second = world.submit("shop/web-0", "ship/web-0")
    world.start(first.id, second.id)
    assert statuses(world, first.id, second.id) == ["Scheduled", "Scheduled"]


def test_due_waves_start_in_order_of_not_before() -> None:
    """Of two due waves, the one with the earlier NotBefore starts first; with equal NotBefore the id decides."""
    world = shop(domains=3)
    (late,) = world.submit("shop/web-0", not_before=at(40))
    (early,) = world.submit("shop/web-1", not_before=at(20))
    (equal,) = world.submit("shop/web-2", not_before=at(20))
    world.tick_at(50)
    assert statuses(world, late.id, early.id, equal.id) == ["Scheduled", "Started", "Scheduled"]
    world.finish(early.id)
    world.tick_at(51)
    assert statuses(world, late.id, early.id, equal.id) == ["Scheduled", "Completed", "Started"]


def test_due_waves_do_not_overtake_each_other_in_a_scope() -> None:
    """A due wave that waits holds back later waves of its scopes, even if nothing else holds them."""
    world = two_scopes()
    (busy,) = world.submit("ship/web-1")
    world.start(busy.id)
    first = world.submit("shop/web-0", "ship/web-0")
    world.now = at(1)
    (behind,) = world.submit("shop/web-1", source=Source.USER)
    world.start(*(e.id for e in first), behind.id)
    assert statuses(world, first[0].id, first[1].id, behind.id) == ["Scheduled", "Scheduled", "Scheduled"]
    world.finish(busy.id)
    world.tick_at(2)
    assert statuses(world, first[0].id, first[1].id, behind.id) == ["Started", "Started", "Started"]


def test_a_wave_that_is_not_due_holds_back_no_other() -> None:
    """A wave that still waits for its notice has no position in the queue."""
    world = shop(domains=2)
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-1", not_before=at(60))
    world.start(second.id)
    assert statuses(world, first.id, second.id) == ["Scheduled", "Started"]


def test_a_paused_wave_holds_back_no_other() -> None:
    """A paused maintenance is not due, and pausing it lets later waves start."""
    world = two_scopes()
    (busy,) = world.submit("ship/web-1")
    world.start(busy.id)
    first = world.submit("shop/web-0", "ship/web-0")
    world.now = at(1)
    (behind,) = world.submit("shop/web-1", source=Source.USER)
    world.start(*(e.id for e in first), behind.id)
    change = world.pause(first[0].maintenance_id)
    assert behind.maintenance_id in change.wakes
    world.tick()
    assert world.status(behind.id) is Status.STARTED


def test_an_event_approved_at_creation_queues_by_its_submission() -> None:
    """A user event approved at creation starts before a wave with a later NotBefore."""
    world = shop(domains=2, approve_user_events=True)
    (busy,) = world.submit("shop/web-0", source=Source.USER)
    world.now = at(1)
    (behind,) = world.submit("shop/web-0", source=Source.USER, type=EventType.REDEPLOY)
    (rolling,) = world.submit("shop/web-1")
    world.tick_at(20)
    assert statuses(world, busy.id, behind.id, rolling.id) == ["Started", "Planned", "Scheduled"]
    world.finish(busy.id)
    world.tick_at(21)
    assert statuses(world, busy.id, behind.id, rolling.id) == ["Completed", "Started", "Scheduled"]


def test_a_wave_has_one_position_in_the_queue() -> None:
    """All events of a wave share the position of its earliest event, also one approved at creation."""
    world = two_scopes(approve_user_events=True)
    (busy,) = world.submit("ship/web-0", source=Source.USER, type=EventType.REDEPLOY)
    world.now = at(1)
    born_approved, scheduled = world.submit("ship/web-0", "shop/web-0", source=Source.USER, not_before=at(50))
    assert statuses(world, born_approved.id, scheduled.id) == ["Planned", "Scheduled"]
    blocked = world.submit("ship/web-1", "shop/web-1")
    world.approve("shop/web-0", scheduled.id)
    world.tick_at(30)
    world.finish(busy.id)
    world.tick_at(31)
    assert statuses(world, born_approved.id, scheduled.id) == ["Started", "Started"]
    assert statuses(world, *(e.id for e in blocked)) == ["Scheduled", "Scheduled"]


def test_a_tick_examines_each_wave_of_a_long_queue_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one wave starts and blocks the others, the cost of a tick does not grow with the square of the queue."""
    world, examined = shop(domains=30), list[str]()

    def noted(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> bool:
        examined.append(maintenance.id)
        return waiting_due(draft, maintenance, wave)

    waves = [world.submit(f"shop/web-{i}") for i in range(30)]
    world.tick()
    waiting_due = waiting.due
    for module in (advance, waiting):
        monkeypatch.setattr(module, "due", noted)
    world.tick_at(20)
    assert [world.status(event.id) for (event,) in waves] == [Status.STARTED, *[Status.SCHEDULED] * 29]
    assert len(examined) == len(set(examined)) == 30


# -- the order of the document


def test_events_are_numbered_in_order_of_publication() -> None:
    """Each wave comes after everything visible in its scope; the events of one wave share their number."""
    world = World(scope(), machines=[machine(f"shop/web-{i}") for i in range(4)])
    first = world.submit("shop/web-0", "shop/web-1", source=Source.USER)
    (second,) = world.submit("shop/web-2")
    (third,) = world.submit("shop/web-3", emergency=True)
    assert [e.sequence for e in first] == [1, 1]
    assert (second.sequence, third.sequence) == (2, 3)


def test_an_event_approved_at_creation_is_numbered_when_it_starts() -> None:
    """No guest saw the event before: in the document it comes after what was published meanwhile."""
    world = shop(domains=2, approve_user_events=True)
    (busy,) = world.submit("shop/web-0", source=Source.USER)
    (born,) = world.submit("shop/web-0", source=Source.USER, type=EventType.REDEPLOY)
    (rolling,) = world.submit("shop/web-1", not_before=at(600))
    world.finish(busy.id)
    world.tick_at(1)
    assert world.event(born.id).sequence > world.event(rolling.id).sequence
    assert world.event(born.id).published == at(1)


# -- orders that come to nothing


def test_an_order_past_its_deadline_has_failed() -> None:
    """A timed-out order fails at its deadline and leaves the event Started."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.tick_at(60 - 1 / 60)
    assert world.order(event.id).state is OrderState.OPEN
    change = world.tick_at(60)
    order = world.order(event.id)
    assert (order.state, order.ended) == (OrderState.FAILED, at(60))
    assert order.reason == "timed out: no result by 2030-01-01T13:00:00Z"
    assert world.status(event.id) is Status.STARTED
    assert [(a.action, a.event_id, a.detail) for a in change.audit] == [("order failed", event.id, order.reason)]


def test_a_running_order_times_out_too() -> None:
    """A taken order without a report times out like an order that no executor took."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.start(event.id)
    world.take(event.id)
    world.tick_at(60)
    assert world.order(event.id).state is OrderState.FAILED
    assert world.tick_at(120).audit == ()


def failed_first_wave(on_failure: OnFailure) -> tuple[World, list[str]]:
    world = shop(domains=3)
    events = world.submit(targets=Targets(scope="shop"), on_failure=on_failure)
    world.start(events[0].id)
    world.fail(events[0].id)
    world.tick_at(1)
    return world, [e.id for e in events]


def test_on_failure_hold() -> None:
    """hold: the maintenance pauses until an operator resolves the failure, then it goes on."""
    world, ids = failed_first_wave(OnFailure.HOLD)
    assert statuses(world, *ids) == ["Started", "Planned", "Planned"]
    assert world.maintenance(ids[0]).status is MaintenanceStatus.PAUSED
    world.resolve_failure(ids[0], Verb.ABANDON)
    world.tick_at(2)
    assert statuses(world, *ids) == ["Abandoned", "Scheduled", "Planned"]


def test_on_failure_cancel() -> None:
    """cancel: the unstarted events are cancelled once; the failed event stays Started until an operator resolves the failure."""
    world, ids = failed_first_wave(OnFailure.CANCEL)
    assert statuses(world, *ids) == ["Started", "Cancelled", "Cancelled"]
    assert world.event(ids[1]).reason == f"the order of event {ids[0]} failed"
    assert world.tick_at(2).audit == ()
    world.resolve_failure(ids[0], Verb.FINISH)
    world.tick_at(3)
    assert world.maintenance(ids[0]).status is MaintenanceStatus.CANCELLED


def test_on_failure_continue() -> None:
    """continue: the next wave is published, but two update domains never have started events at once."""
    world, ids = failed_first_wave(OnFailure.CONTINUE)
    assert statuses(world, *ids) == ["Started", "Scheduled", "Planned"]
    assert world.maintenance(ids[0]).status is MaintenanceStatus.RUNNING
    world.start(ids[1])
    assert statuses(world, *ids) == ["Started", "Scheduled", "Planned"]
    world.resolve_failure(ids[0], Verb.ABANDON)
    world.tick_at(2)
    assert statuses(world, *ids) == ["Abandoned", "Started", "Planned"]


def test_on_failure_continue_goes_on_elsewhere() -> None:
    """continue: a failure in one scope does not hold back the next wave in other scopes."""
    world = two_scopes()
    ship, shop_0, shop_1 = world.submit("ship/web-0", "shop/web-0", "shop/web-1", on_failure=OnFailure.CONTINUE)
    world.start(ship.id, shop_0.id)
    world.fail(ship.id)
    world.finish(shop_0.id)
    world.tick_at(1)
    world.start(shop_1.id)
    assert statuses(world, ship.id, shop_0.id, shop_1.id) == ["Started", "Completed", "Started"]


# -- how a maintenance stands


def test_the_status_of_a_maintenance_follows_its_events() -> None:
    """Planned, Running once something started, Completed at the end."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")

    def now() -> Maintenance:
        return world.maintenance(first.id)

    assert (now().status, now().ended) == (MaintenanceStatus.PLANNED, None)
    world.start(first.id)
    assert now().status is MaintenanceStatus.RUNNING
    world.finish(first.id)
    world.tick()
    assert (now().status, now().ended) == (MaintenanceStatus.RUNNING, None)
    world.now = at(3)
    world.start(second.id)
    world.finish(second.id)
    world.tick()
    assert (now().status, now().ended, now().wake_at) == (MaintenanceStatus.COMPLETED, at(3), None)


def test_a_maintenance_of_cancelled_events_only_is_cancelled() -> None:
    """If every event was cancelled, the maintenance is Cancelled; with one completed event it is Completed."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.cancel_event(first.id)
    world.cancel_event(second.id)
    world.tick()
    assert world.maintenance(first.id).status is MaintenanceStatus.CANCELLED
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.finish(first.id)
    world.cancel_event(second.id)
    world.tick()
    assert world.maintenance(first.id).status is MaintenanceStatus.COMPLETED


# -- when a maintenance wakes


def test_wake_at_is_the_next_moment_that_matters() -> None:
    """wake_at is when passing time could next change something: NotBefore, then the order's deadline."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    assert world.maintenance(event.id).wake_at == at(15)
    world.tick_at(15)
    assert world.maintenance(event.id).wake_at == at(75)
    world.take(event.id)
    world.tick_at(16)
    assert world.maintenance(event.id).wake_at == at(75)
    world.fail(event.id)
    world.tick_at(17)
    assert world.maintenance(event.id).wake_at is None


def test_wake_at_is_the_earliest_start_when_that_is_all_it_waits_for() -> None:
    """An approved event wakes at `earliest`; an unapproved one at the first of NotBefore and `earliest`."""
    world = shop()
    (event,) = world.submit("shop/web-0", earliest=at(30))
    assert world.maintenance(event.id).wake_at == at(15)
    world.approve("shop/web-0", event.id)
    world.tick_at(1)
    assert world.maintenance(event.id).wake_at == at(30)


@pytest.mark.parametrize("minutes", [30, 31])
def test_a_due_and_blocked_wave_has_no_wake_at(minutes: float) -> None:
    """After `earliest`, passing time changes nothing: the end of the blocking event wakes the wave."""
    world = shop(domains=2)
    (busy,) = world.submit("shop/web-0")
    world.start(busy.id)
    (event,) = world.submit("shop/web-1", earliest=at(30))
    world.tick_at(minutes)
    assert world.codes(event.id) == ["update-domain"]
    assert world.maintenance(event.id).wake_at is None


def test_a_tick_that_finds_nothing_to_do_saves_nothing() -> None:
    """Ticking twice at the same moment is ticking once."""
    world = shop(domains=2)
    world.submit("shop/web-0", "shop/web-1")
    world.tick_at(15)
    assert world.tick().empty


def test_time_does_not_run_backwards_for_a_scope() -> None:
    """Decisions use max(now, the scope's last change): a clock set back starts nothing twice and ends nothing early."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.tick_at(15)
    world.now = START
    change = world.finish(event.id)
    assert world.event(event.id).ended == at(15)
    assert change.audit[0].at == at(15)
    assert world.scope().changed == at(15)
    (again,) = world.submit("shop/web-0")
    assert (again.published, again.not_before) == (at(15), at(30))


def test_notice_is_given_in_full_between_two_seconds() -> None:
    """If the notice ends between two seconds, NotBefore is the next whole second."""
    world = shop()
    world.now = START + timedelta(milliseconds=500)
    events, _ = world.submit_request(request("shop/web-0"))
    assert events[0].not_before == START + timedelta(seconds=901)
    world.tick_at(15.01)
    assert world.status(events[0].id) is Status.SCHEDULED
    world.now = START + timedelta(seconds=901)
    world.tick()
    assert world.status(events[0].id) is Status.STARTED
