"""Maintenance of hosts: whose turn it is, when the work on a host begins, and what becomes of its machines."""

from dataclasses import replace
from typing import Any

import pytest

from forewarn.core import host_verbs, order_verbs
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import IllegalTransition, Invalid, NotFound, Refused
from forewarn.core.fleet_rules import FleetRules, Window
from forewarn.core.host_orders import hosts_to_read
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import (
    EventType,
    Host,
    HostMode,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    Phase,
    Source,
    Status,
    Targets,
)
from forewarn.core.needs_operator import needs_operator
from forewarn.core.order_verbs import Outcome
from forewarn.core.placement import Hosts
from forewarn.core.transitions import Verb
from tests.support.builders import EXECUTOR, OPERATOR, ORDER_TIMEOUT_S, at, request
from tests.support.farm import Farm, two_hosts

HOUR = 60


# -- evacuation


def test_a_host_is_announced_in_its_turn() -> None:
    """The first host's machines are announced at once, in waves; the second host has no events yet."""
    farm = two_hosts()
    waves = [(e.wave, e.scope, e.resources, e.status) for e in farm.events_on("a")]
    assert waves == [
        (1, "blog", ("db-0",), Status.SCHEDULED),
        (1, "shop", ("web-0",), Status.SCHEDULED),
        (2, "shop", ("web-1",), Status.PLANNED),
    ]
    assert farm.events_on("b") == []
    assert (farm.state("a"), farm.state("b")) == (OrderState.PLANNED, OrderState.PLANNED)
    assert (farm.why("a"), farm.why("b")) == (["host-not-empty"], ["earlier-host"])
    assert farm.known().status is MaintenanceStatus.PLANNED


def test_a_host_is_cordoned_when_its_first_wave_is_published() -> None:
    """From then on nothing is sent to it; a host whose turn has not come stays as it is."""
    farm = two_hosts()
    row = farm.row("a")
    assert row is not None
    assert (row.cordoned, row.cordoned_by) == (farm.now, farm.maintenance_id)
    assert farm.row("b") is None


def test_the_work_begins_when_the_last_machine_has_left() -> None:
    """Moved machines leave the host; then its order opens, with a time limit, and can be taken."""
    farm = two_hosts()
    first = farm.events_on("a")
    farm.start(*(e.id for e in first[:2]))
    for event in first[:2]:
        farm.move(event.id, "spare")
    farm.tick()
    assert farm.state("a") is OrderState.PLANNED
    with pytest.raises(IllegalTransition):
        farm.take(farm.work("a").id)
    farm.start(first[2].id)
    farm.move(first[2].id, "spare")
    farm.tick()
    assert farm.state("a") is OrderState.OPEN
    assert farm.work("a").deadline == at(ORDER_TIMEOUT_S / 60)
    assert farm.why("a") == ["executor"]
    farm.take(farm.work("a").id)
    assert farm.state("a") is OrderState.RUNNING
    assert farm.why("a") == ["executor"]
    assert farm.known().status is MaintenanceStatus.RUNNING


def test_the_second_host_sends_away_what_came_from_the_first() -> None:
    """Its events are planned when its turn comes, from the machines that are on it then; waves are numbered on."""
    farm = two_hosts()
    farm.empty("a", to="b")
    farm.finish(farm.work("a").id)
    farm.tick()
    assert farm.state("a") is OrderState.DONE
    row = farm.row("a")
    assert row is not None
    assert row.cordoned is None
    assert [(e.wave, e.resources) for e in farm.events_on("b")] == [
        (3, ("db-0",)),
        (3, ("web-0", "web-2")),
        (4, ("web-1",)),
    ]
    farm.empty("b", to="a")
    farm.finish(farm.work("b").id)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.COMPLETED
    assert farm.why("b") == []


def test_a_host_that_an_operator_cordoned_stays_cordoned() -> None:
    """A maintenance uncordons only what it cordoned."""
    farm = Farm("shop/web-0 0 a")
    farm.save(Change(at=farm.now, hosts=(Host(name="a", cordoned=farm.now),)))
    farm.work_on("a")
    farm.empty("a")
    farm.finish(farm.work("a").id)
    farm.tick()
    row = farm.row("a")
    assert row is not None
    assert row.cordoned == farm.now
    assert farm.known().status is MaintenanceStatus.COMPLETED


def test_a_host_without_machines_goes_straight_on() -> None:
    """Nothing has to be announced: the order opens at once, and the host is cordoned."""
    farm = Farm("shop/web-0 0 a")
    farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
    farm.work_on("c")
    assert farm.state("c") is OrderState.OPEN
    row = farm.row("c")
    assert row is not None
    assert row.cordoned_by == farm.maintenance_id
    farm.finish(farm.work("c").id)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.COMPLETED
    with pytest.raises(NotFound, match="there is no host 'spare'"):
        farm.work_on("spare")


@pytest.mark.parametrize("mode", HostMode)
def test_the_work_on_an_empty_host_waits_for_the_requested_start(mode: HostMode) -> None:
    """Without events, nothing else would keep to the time that the operator named."""
    farm = Farm("shop/web-0 0 a")
    farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
    type_ = EventType.FREEZE if mode is HostMode.EVACUATE else EventType.REBOOT
    farm.work_on("c", type=type_, host_mode=mode, not_before=at(HOUR), earliest=at(2 * HOUR))
    assert farm.state("c") is OrderState.PLANNED
    assert farm.why("c") == ["earliest"]
    assert farm.known().wake_at == at(2 * HOUR)
    farm.tick_at(2 * HOUR)
    assert farm.state("c") is OrderState.OPEN


def test_a_machine_that_arrives_late_is_in_the_way() -> None:
    """forewarn does not plan again: an operator moves the machine, and the order opens."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.put_on("a")
    farm.empty("a")
    assert farm.state("a") is OrderState.PLANNED
    (reason,) = waiting_for_hosts(farm.snapshot(), farm.maintenance_id, farm.now)["a"]
    assert reason.code == "host-not-empty"
    assert reason.machines == ("shop/late",)
    assert "still carries shop/late" in reason.message
    assert [r.code for r in needs_operator(farm.snapshot(), farm.maintenance_id, farm.now)] == ["host-not-empty"]
    farm.put_on("spare")
    farm.save(Change(at=farm.now, wakes=(farm.maintenance_id,)))
    farm.tick()
    assert farm.state("a") is OrderState.OPEN


def test_nobody_takes_the_order_of_a_host_that_got_a_machine() -> None:
    """The order is open, and a machine arrives before it is taken: taking it is refused, and the reason names the machine."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.empty("a")
    farm.put_on("a")
    with pytest.raises(Refused, match="host a is not empty: shop/late"):
        farm.take(farm.work("a").id)
    assert farm.why("a") == ["host-not-empty"]
    assert needs_operator(farm.snapshot(), farm.maintenance_id, farm.now) != ()


def test_an_agent_that_never_approves_only_delays() -> None:
    """Its event starts at its NotBefore, and the host is emptied then."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.tick_at(14)
    assert farm.events_on("a")[0].status is Status.SCHEDULED
    farm.tick_at(15)
    (event,) = farm.events_on("a")
    assert event.status is Status.STARTED
    farm.move(event.id, "spare")
    farm.tick()
    assert farm.state("a") is OrderState.OPEN


def test_a_migration_that_fails_holds_the_host_until_it_is_retried() -> None:
    """The host is not empty; after the retry the work begins."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    (event,) = farm.events_on("a")
    farm.start(event.id)
    farm.fail(event.id)
    farm.tick()
    assert farm.state("a") is OrderState.PLANNED
    assert farm.why("a") == ["unresolved", "host-not-empty"]
    assert farm.known().status is MaintenanceStatus.PAUSED
    farm.resolve_failure(event.id, Verb.RETRY)
    farm.move(event.id, "spare")
    farm.tick()
    assert farm.state("a") is OrderState.OPEN


def test_cancelling_one_event_cancels_the_rest_of_its_host() -> None:
    """The other events and the work on the host are cancelled; it stays cordoned, the next host begins, the end is Failed."""
    farm = two_hosts()
    farm.cancel_event(farm.events_on("a")[2].id)
    farm.tick()
    assert {e.status for e in farm.events_on("a")} == {Status.CANCELLED}
    assert farm.state("a") is OrderState.CANCELLED
    row = farm.row("a")
    assert row is not None
    assert row.cordoned is not None
    assert len(farm.events_on("b")) == 1
    farm.empty("b")
    farm.finish(farm.work("b").id)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.FAILED


def test_a_started_event_of_a_cancelled_host_runs_to_its_end() -> None:
    """The next host begins when it has ended."""
    farm = two_hosts()
    first = farm.events_on("a")
    farm.start(first[0].id, first[1].id)
    farm.cancel_event(first[2].id)
    farm.tick()
    assert farm.state("a") is OrderState.CANCELLED
    assert [e.status for e in farm.events_on("a")] == [Status.STARTED, Status.STARTED, Status.CANCELLED]
    assert farm.events_on("b") == []
    for event in first[:2]:
        farm.move(event.id, "spare")
    farm.tick()
    assert len(farm.events_on("b")) == 1


def test_abandoning_an_event_abandons_its_host() -> None:
    """A machine that could not be moved is on the host: its work is not done."""
    farm = Farm("shop/web-0 0 a", "shop/web-1 1 a")
    farm.work_on("a")
    first, _ = farm.events_on("a")
    farm.start(first.id)
    farm.fail(first.id)
    farm.resolve_failure(first.id, Verb.ABANDON)
    farm.tick()
    assert [e.status for e in farm.events_on("a")] == [Status.ABANDONED, Status.CANCELLED]
    assert farm.state("a") is OrderState.ABANDONED
    assert farm.known().status is MaintenanceStatus.FAILED


def test_a_paused_maintenance_begins_no_work_on_a_host() -> None:
    """Neither the next host's events nor the work on an empty host; after resuming both go on."""
    farm = two_hosts()
    farm.pause(farm.maintenance_id)
    farm.skip_host(farm.maintenance_id, "a")
    farm.tick()
    assert farm.events_on("b") == []
    assert farm.why("b") == ["paused", "host-not-empty"]
    farm.resume(farm.maintenance_id)
    farm.tick()
    (event,) = farm.events_on("b")
    farm.start(event.id)
    farm.pause(farm.maintenance_id)
    farm.move(event.id, "spare")
    farm.tick()
    assert farm.state("b") is OrderState.PLANNED
    farm.resume(farm.maintenance_id)
    farm.tick()
    assert farm.state("b") is OrderState.OPEN


def test_cancelling_the_maintenance_cancels_what_was_not_taken() -> None:
    """Planned and open orders of hosts are cancelled and cannot be taken; a host stays cordoned, so the end is Failed."""
    farm = two_hosts()
    farm.empty("a")
    farm.cancel_maintenance(farm.maintenance_id)
    assert (farm.state("a"), farm.state("b")) == (OrderState.CANCELLED, OrderState.CANCELLED)
    assert farm.known().status is MaintenanceStatus.FAILED
    with pytest.raises(IllegalTransition):
        farm.take(farm.work("a").id)
    with pytest.raises(IllegalTransition):
        farm.finish(farm.work("a").id)


@pytest.mark.parametrize(
    ("not_before", "submitted", "ended_as"),
    [
        (None, MaintenanceStatus.RUNNING, MaintenanceStatus.FAILED),
        (at(HOUR), MaintenanceStatus.PLANNED, MaintenanceStatus.CANCELLED),
    ],
    ids=["its turn has begun", "its turn has not begun"],
)
def test_cancelling_before_the_first_turn_fails_nothing(
    not_before: Any, submitted: MaintenanceStatus, ended_as: MaintenanceStatus
) -> None:
    """No host was cordoned for the maintenance: it ends as Cancelled."""
    farm = Farm("shop/web-0 0 a")
    farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
    farm.work_on("c", "a", not_before=not_before)
    assert farm.known().status is submitted
    farm.cancel_maintenance(farm.maintenance_id)
    assert farm.known().status is ended_as
    row = farm.row("c")
    assert row is not None
    assert (row.cordoned is not None) == (ended_as is MaintenanceStatus.FAILED)


def test_the_audit_says_when_the_turn_of_a_host_begins() -> None:
    """Of each host, when its events are planned."""
    farm = Farm("shop/web-0 0 a", "shop/web-1 1 b")
    request_ = request(type=EventType.FREEZE, targets=Targets(hosts=("a", "b")), host_mode=HostMode.EVACUATE)
    _, change = farm.submit_request(request_)
    farm.maintenance_id = change.maintenances[0].id
    begun = [entry.detail for entry in change.audit if entry.action == "host begun"]
    assert begun == ["host a: its turn has begun"]
    change = farm.skip_host(farm.maintenance_id, "a")
    assert "host begun" not in [entry.action for entry in change.audit]
    assert "host b: its turn has begun" in [entry.detail for entry in farm.tick().audit]


def test_work_under_way_ends_before_a_cancelled_maintenance() -> None:
    """What was taken runs to its end; nothing is brought back."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a", return_machines=True)
    farm.empty("a")
    farm.take(farm.work("a").id)
    farm.cancel_maintenance(farm.maintenance_id)
    assert farm.known().status is MaintenanceStatus.RUNNING
    farm.finish(farm.work("a").id)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.CANCELLED
    assert farm.events_on("a", back=True) == []


# -- two maintenances of one host


def twice_on_an_empty_host() -> tuple[Farm, str]:
    """Return the farm with its second maintenance of the empty host `c`, and the id of the first one's order."""
    farm = Farm("shop/web-0 0 a")
    farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
    farm.work_on("c")
    first = farm.work("c").id
    farm.work_on("c")
    return farm, first


def test_one_maintenance_at_a_time_works_on_a_host() -> None:
    """The second waits until the first has ended, and names it; the host is cordoned for it then."""
    farm, first = twice_on_an_empty_host()
    assert farm.state("c") is OrderState.PLANNED
    (reason,) = waiting_for_hosts(farm.snapshot(), farm.maintenance_id, farm.now)["c"]
    assert (reason.code, reason.orders) == ("host-busy", ())
    assert f"maintenance {farm.order(first).maintenance_id} works on host c, and its order is open" in reason.message
    assert needs_operator(farm.snapshot(), farm.maintenance_id, farm.now) == ()
    farm.take(first)
    farm.fail(first)
    farm.save(Change(at=farm.now, wakes=(farm.maintenance_id,)))
    farm.tick()
    assert farm.state("c") is OrderState.PLANNED
    (reason,) = needs_operator(farm.snapshot(), farm.maintenance_id, farm.now)
    assert (reason.code, reason.orders) == ("host-busy", (first,))
    farm.resolve_host(first, Verb.FINISH)
    farm.save(Change(at=farm.now, wakes=(farm.maintenance_id,)))
    farm.tick()
    assert farm.state("c") is OrderState.OPEN
    row = farm.row("c")
    assert row is not None
    assert row.cordoned_by == farm.maintenance_id


def test_machines_are_not_announced_while_another_maintenance_works_on_their_host() -> None:
    """They arrived after its work began. In place, none is shut down to wait for the other work."""
    for mode, type_ in ((HostMode.EVACUATE, EventType.FREEZE), (HostMode.IN_PLACE, EventType.REBOOT)):
        farm = Farm("shop/web-0 0 a")
        farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
        farm.work_on("c")
        first = farm.work("c").id
        farm.take(first)
        farm.put_on("c")
        farm.work_on("c", host_mode=mode, type=type_)
        assert farm.events_on("c") == []
        assert farm.why("c") == ["host-busy", "host-not-empty"]
        farm.finish(first)
        farm.save(Change(at=farm.now, wakes=(farm.maintenance_id,)))
        farm.tick()
        assert len(farm.events_on("c")) == 1


def test_machines_that_are_down_do_not_wait_for_other_work_for_ever() -> None:
    """The other work began after they were announced; the time limit counts, and they are started again."""
    farm = in_place("shop/web-0 0 c", hosts=("c",))
    mine = farm.maintenance_id
    (event,) = farm.events_on("c")
    farm.start(event.id)
    farm.put_on("spare", "shop/web-0")
    farm.work_on("c")
    other = farm.maintenance_id
    farm.maintenance_id = mine
    farm.put_on("c", "shop/web-0")
    farm.finish(event.id)
    farm.tick()
    assert (farm.state("c"), farm.why("c"), farm.work("c").deadline) == (OrderState.PLANNED, ["host-busy"], at(HOUR))
    farm.tick_at(HOUR)
    assert farm.state("c") is OrderState.FAILED
    assert farm.order(event.id).state is OrderState.OPEN
    farm.maintenance_id = other
    assert farm.state("c") is OrderState.FAILED


def test_the_end_of_one_maintenance_leaves_the_host_cordoned_for_the_other() -> None:
    """The first uncordons the host that the second has begun to empty: its next tick cordons the host again."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    first, (event,) = farm.work("a").id, farm.events_on("a")
    farm.work_on("a")
    farm.start(event.id)
    farm.move(event.id, "spare")
    farm.tick()
    farm.finish(first)
    row = farm.row("a")
    assert row is not None
    assert row.cordoned is None
    farm.save(Change(at=farm.now, wakes=(farm.maintenance_id,)))
    farm.tick()
    row = farm.row("a")
    assert row is not None
    assert row.cordoned_by == farm.maintenance_id


def test_the_row_of_the_host_guards_the_opening_of_its_order() -> None:
    """Two nodes that read the host as free do not both open an order: the version of the host has changed for one."""
    farm, first = twice_on_an_empty_host()
    farm.finish(first)
    farm.save(Change(at=farm.now, wakes=(farm.maintenance_id,)))
    change = farm.tick()
    assert [host.name for host in change.hosts] == ["c"]
    farm.fail(farm.work("c").id)
    retried = farm.resolve_host(farm.work("c").id, Verb.RETRY)
    assert [host.name for host in retried.hosts] == ["c"]


# -- failures of the work itself


def test_failed_work_holds_the_maintenance_until_it_is_retried() -> None:
    """With on_failure = hold the next host waits; a retry is a new attempt."""
    farm = two_hosts()
    farm.empty("a")
    order_id = farm.work("a").id
    farm.take(order_id)
    farm.fail(order_id)
    farm.tick()
    assert (farm.state("a"), farm.why("a")) == (OrderState.FAILED, ["order-failed"])
    assert farm.why("b") == ["unresolved", "earlier-host"]
    assert farm.known().status is MaintenanceStatus.PAUSED
    assert [r.code for r in needs_operator(farm.snapshot(), farm.maintenance_id, farm.now)] == ["order-failed"]
    farm.retry_failed(farm.maintenance_id)
    assert (farm.state("a"), farm.work("a").attempt) == (OrderState.OPEN, 2)
    farm.take(order_id)
    farm.doubt(order_id)
    assert (farm.state("a"), farm.why("a")) == (OrderState.IN_DOUBT, ["in-doubt"])
    farm.take_over(order_id)
    assert farm.state("a") is OrderState.RUNNING
    farm.finish(order_id)
    farm.tick()
    assert len(farm.events_on("b")) == 1


def test_work_that_nobody_reports_times_out() -> None:
    """An open or running order of a host fails at its deadline."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.empty("a")
    assert farm.known().wake_at == farm.work("a").deadline == at(HOUR)
    farm.tick_at(HOUR)
    assert farm.state("a") is OrderState.FAILED
    assert "timed out: no result by" in farm.work("a").reason
    farm.resolve_host(farm.work("a").id, Verb.RETRY)
    with pytest.raises(Refused, match="nothing to retry"):
        farm.retry_failed(farm.maintenance_id)


def test_with_continue_the_next_host_begins_after_a_failure() -> None:
    """The failed host stays for an operator, and the maintenance stays open."""
    farm = two_hosts(on_failure=OnFailure.CONTINUE)
    farm.empty("a")
    farm.fail(farm.work("a").id)
    farm.tick()
    assert len(farm.events_on("b")) == 1
    farm.empty("b")
    farm.finish(farm.work("b").id)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.RUNNING
    farm.resolve_host(farm.work("a").id, Verb.FINISH)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.COMPLETED


def test_with_continue_a_failed_event_does_not_hold_the_next_host() -> None:
    """An event of a cancelled host whose order failed stays Started, and the next host begins."""
    farm = two_hosts(on_failure=OnFailure.CONTINUE)
    first = farm.events_on("a")
    farm.start(first[0].id, first[1].id)
    farm.fail(first[0].id)
    farm.move(first[1].id, "spare")
    farm.cancel_event(first[2].id)
    farm.tick()
    assert farm.state("a") is OrderState.CANCELLED
    assert len(farm.events_on("b")) == 1


def test_with_cancel_a_failure_cancels_the_other_hosts() -> None:
    """The rest of the maintenance is cancelled; the failed work is an operator's to end."""
    farm = two_hosts(on_failure=OnFailure.CANCEL)
    farm.empty("a")
    farm.fail(farm.work("a").id)
    farm.tick()
    assert (farm.state("a"), farm.state("b")) == (OrderState.FAILED, OrderState.CANCELLED)
    assert "the order of host a failed" in farm.work("b").reason
    farm.resolve_host(farm.work("a").id, Verb.ABANDON)
    farm.tick()
    assert farm.state("a") is OrderState.ABANDONED
    assert farm.known().status is MaintenanceStatus.FAILED


def test_work_on_a_host_moves_no_machine() -> None:
    """A report that says so is refused."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.empty("a")
    with pytest.raises(Invalid, match="it moves no machine"):
        farm.report(farm.work("a").id, Outcome(ok=True, new_hosts={("shop", "web-0"): "b"}))


# -- the way back


def test_machines_come_back_by_new_events() -> None:
    """With return_machines they get new events with full notice, and the next host waits for them."""
    farm = two_hosts(return_machines=True)
    farm.empty("a", to="c")
    farm.finish(farm.work("a").id)
    farm.now = at(1)
    farm.tick()
    back = farm.events_on("a", back=True)
    assert [(e.wave, e.resources, e.to_host) for e in back] == [
        (3, ("db-0",), "a"),
        (3, ("web-0",), "a"),
        (4, ("web-1",), "a"),
    ]
    assert back[0].not_before == at(16)
    assert farm.known().status is MaintenanceStatus.RUNNING
    assert farm.events_on("b") == []
    farm.start(back[0].id, back[1].id)
    farm.move(back[0].id, "a")
    farm.move(back[1].id, "a")
    farm.cancel_event(back[2].id)
    farm.tick()
    assert farm.state("a") is OrderState.DONE
    row = farm.row("a")
    assert row is not None
    assert row.cordoned is None
    assert len(farm.events_on("b")) == 1
    farm.empty("b", to="c")
    farm.finish(farm.work("b").id)
    farm.tick()
    (last,) = farm.events_on("b", back=True)
    farm.start(last.id)
    farm.move(last.id, "b")
    farm.tick()
    assert farm.known().status is MaintenanceStatus.COMPLETED


def test_a_pause_also_holds_the_way_back() -> None:
    """Events that bring machines back are planned after the pause."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a", return_machines=True)
    farm.empty("a")
    farm.take(farm.work("a").id)
    farm.pause(farm.maintenance_id)
    farm.finish(farm.work("a").id)
    farm.tick()
    assert farm.events_on("a", back=True) == []
    assert farm.known().status is MaintenanceStatus.PAUSED
    assert farm.to_read() == (("a",), (("shop", "web-0"),))
    farm.resume(farm.maintenance_id)
    farm.tick()
    assert len(farm.events_on("a", back=True)) == 1


def test_machines_that_are_back_or_gone_need_no_event() -> None:
    """An operator moved them back by hand, or removed them: the maintenance ends."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a", return_machines=True)
    farm.empty("a")
    farm.take(farm.work("a").id)
    farm.put_on("a", "shop/web-0")
    farm.finish(farm.work("a").id)
    farm.tick()
    assert farm.events_on("a", back=True) == []
    assert farm.known().status is MaintenanceStatus.COMPLETED


# -- in place


def in_place(*machines: str, hosts: tuple[str, ...] = ("a",), **options: Any) -> Farm:
    farm = Farm(*(machines or ("shop/web-0 0 a", "shop/web-1 0 a", "blog/db-0 0 a")))
    farm.work_on(*hosts, **{"type": EventType.REBOOT, "host_mode": HostMode.IN_PLACE, **options})
    return farm


def test_all_machines_of_a_host_are_shut_down_first() -> None:
    """One wave; the host's work begins when all are down, and the events stay Started without a time limit."""
    farm = in_place()
    events = farm.events_on("a")
    assert {e.wave for e in events} == {1}
    farm.start(*(e.id for e in events))
    assert {farm.order(e.id).phase for e in events} == {Phase.STOP}
    farm.finish(events[0].id)
    farm.tick()
    assert farm.state("a") is OrderState.PLANNED
    assert farm.work("a").deadline == at(HOUR)
    assert farm.codes(events[0].id) == ["host-work"]
    assert farm.status(events[0].id) is Status.STARTED
    assert farm.order(events[0].id).deadline is None
    farm.finish(events[1].id)
    farm.tick()
    assert farm.state("a") is OrderState.OPEN
    assert needs_operator(farm.snapshot(), farm.maintenance_id, farm.now) == ()


@pytest.mark.parametrize("end", ["finish", "fail", "skip", "abandon"])
def test_whatever_becomes_of_the_work_the_machines_are_started_again(end: str) -> None:
    """Their orders open again as a new attempt with a time limit; then the events complete."""
    farm = in_place()
    farm.shut_down("a")
    order_id = farm.work("a").id
    if end == "skip":
        farm.skip_host(farm.maintenance_id, "a")
    else:
        farm.take(order_id)
        if end == "finish":
            farm.finish(order_id)
        elif end == "fail":
            farm.fail(order_id)
        else:
            farm.doubt(order_id)
            farm.tick()
            assert {farm.order(e.id).state for e in farm.events_on("a")} == {OrderState.PLANNED}
            farm.resolve_host(order_id, Verb.ABANDON)
    farm.tick()
    for event in farm.events_on("a"):
        order = farm.order(event.id)
        assert (order.state, order.phase, order.attempt) == (OrderState.OPEN, Phase.START, 2)
        assert order.deadline == at(HOUR)
        farm.finish(event.id)
    farm.tick()
    assert {e.status for e in farm.events_on("a")} == {Status.COMPLETED}
    if end == "fail":
        with pytest.raises(Refused, match="cannot be retried while its machines run: finish or abandon"):
            farm.resolve_host(order_id, Verb.RETRY)
        farm.resolve_host(order_id, Verb.FINISH)
        farm.tick()
    ended_as = MaintenanceStatus.COMPLETED if end in ("finish", "fail") else MaintenanceStatus.FAILED
    assert farm.known().status is ended_as


def test_machines_are_started_again_in_the_tick_that_drops_their_host() -> None:
    """One machine could not be shut down, and its event is abandoned: nothing would wake the maintenance once more."""
    farm = in_place()
    down, broken = farm.events_on("a")
    farm.start(down.id, broken.id)
    farm.finish(down.id)
    farm.tick()
    farm.fail(broken.id)
    farm.resolve_failure(broken.id, Verb.ABANDON)
    farm.tick()
    assert farm.state("a") is OrderState.ABANDONED
    assert (farm.order(down.id).state, farm.order(down.id).phase) == (OrderState.OPEN, Phase.START)


@pytest.mark.parametrize("opened", [True, False], ids=["open", "planned"])
def test_cancelling_the_maintenance_starts_the_machines_again(opened: bool) -> None:
    """The next tick comes at once, whether the work could begin or another machine was still to be shut down."""
    farm = in_place()
    if opened:
        farm.shut_down("a")
    else:
        events = farm.events_on("a")
        farm.start(*(e.id for e in events))
        farm.finish(events[0].id)
        farm.tick()
    assert farm.state("a") is (OrderState.OPEN if opened else OrderState.PLANNED)
    farm.cancel_maintenance(farm.maintenance_id)
    assert farm.known().wake_at == farm.now
    farm.tick()
    first = farm.order(farm.events_on("a")[0].id)
    assert (first.phase, first.state, first.attempt) == (Phase.START, OrderState.OPEN, 2)


def test_a_pause_keeps_no_machine_shut_down() -> None:
    """It comes between a report and the tick that follows: the work still begins, and the machines are started again."""
    farm = in_place("shop/web-0 0 a")
    (event,) = farm.events_on("a")
    farm.start(event.id)
    farm.finish(event.id)
    farm.pause(farm.maintenance_id)
    assert farm.known().wake_at == farm.now
    farm.tick()
    assert farm.state("a") is OrderState.OPEN
    farm.resume(farm.maintenance_id)
    farm.finish(farm.work("a").id)
    farm.pause(farm.maintenance_id)
    assert farm.known().wake_at == farm.now
    farm.tick()
    assert farm.order(event.id).state is OrderState.OPEN


def test_failed_work_in_place_does_not_hold_up_the_retry_of_events() -> None:
    """The work cannot be retried, but the machine that did not start can."""
    farm = in_place("shop/web-0 0 a")
    farm.shut_down("a")
    farm.fail(farm.work("a").id)
    farm.tick()
    with pytest.raises(Refused, match="cannot be retried while its machines run"):
        farm.retry_failed(farm.maintenance_id)
    (event,) = farm.events_on("a")
    farm.fail(event.id)
    farm.retry_failed(farm.maintenance_id)
    assert (farm.order(event.id).state, farm.order(event.id).attempt) == (OrderState.OPEN, 3)
    assert farm.state("a") is OrderState.FAILED


def test_work_in_doubt_leaves_the_machines_down() -> None:
    """An operator checks the host first; a retry begins the work again while all are still down."""
    farm = in_place()
    farm.shut_down("a")
    order_id = farm.work("a").id
    farm.take(order_id)
    farm.doubt(order_id)
    assert [r.code for r in needs_operator(farm.snapshot(), farm.maintenance_id, farm.now)] == ["in-doubt"]
    farm.resolve_host(order_id, Verb.RETRY)
    assert (farm.state("a"), farm.work("a").attempt) == (OrderState.OPEN, 2)


def test_a_host_with_several_update_domains_of_a_scope_is_refused() -> None:
    """The refusal names the machines to move first; an emergency may."""
    machines = ("shop/web-0 0 a", "shop/web-1 0 a", "shop/web-2 1 a", "blog/db-0 0 a")
    with pytest.raises(Refused, match=r"several update domains of shop.*move shop/web-2 to another host first"):
        in_place(*machines)
    farm = in_place(*machines, emergency=True)
    assert {e.status for e in farm.events_on("a")} == {Status.STARTED}
    row = farm.row("a")
    assert row is not None
    assert row.cordoned_by == farm.maintenance_id


def test_a_host_that_got_another_update_domain_meanwhile_fails() -> None:
    """When its turn comes nothing is announced; the order fails with the same sentence."""
    farm = in_place("shop/web-0 0 a", "shop/web-1 0 b", hosts=("a", "b"))
    farm.put_on("b", "shop/web-2", 1)
    farm.shut_down("a")
    farm.finish(farm.work("a").id)
    farm.tick()
    for event in farm.events_on("a"):
        farm.finish(event.id)
    farm.tick()
    assert farm.events_on("b") == []
    assert farm.state("b") is OrderState.FAILED
    assert "several update domains of shop" in farm.work("b").reason


def test_a_refused_host_fails_only_when_the_budget_has_room() -> None:
    """A failed order counts as a host that is down, so it must not fail beside another host that uses the budget."""
    farm = Farm("shop/web-0 0 a", "shop/web-1 0 b")
    farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
    farm.work_on("c")
    other = farm.work("c").id
    farm.work_on("a", "b", type=EventType.REBOOT, host_mode=HostMode.IN_PLACE)
    farm.put_on("b", "shop/web-2", 1)
    farm.shut_down("a")
    farm.finish(farm.work("a").id)
    farm.tick()
    farm.save(Change(at=farm.now, fleet_rules=FleetRules(max_hosts_down=1)))
    for event in farm.events_on("a"):
        farm.finish(event.id)
    farm.tick()
    assert (farm.order(other).state, farm.state("b")) == (OrderState.OPEN, OrderState.PLANNED)
    farm.take(other)
    farm.finish(other)
    farm.tick()
    assert farm.state("b") is OrderState.FAILED


def test_a_machine_without_a_started_event_is_never_hit() -> None:
    """It arrives after the announcement: the work waits, and after the time limit the other machines are started again."""
    farm = in_place()
    farm.put_on("a", "blog/late")
    farm.shut_down("a")
    assert farm.state("a") is OrderState.PLANNED
    assert farm.why("a") == ["host-not-empty"]
    farm.tick_at(HOUR)
    assert farm.state("a") is OrderState.FAILED
    assert "they are started again" in farm.work("a").reason
    assert {farm.order(e.id).state for e in farm.events_on("a")} == {OrderState.OPEN}


def test_a_machine_that_arrives_last_stops_the_taking() -> None:
    """The order is open, and a machine that runs arrives: taking it is refused."""
    farm = in_place()
    farm.shut_down("a")
    farm.put_on("a", "blog/late")
    with pytest.raises(Refused, match="host a is not empty: blog/late"):
        farm.take(farm.work("a").id)


def test_a_failed_shutdown_can_be_finished_by_hand() -> None:
    """An operator who shut the machine down finishes the order: then the machine counts as down."""
    farm = in_place("shop/web-0 0 a")
    (event,) = farm.events_on("a")
    farm.start(event.id)
    farm.fail(event.id)
    farm.resolve_failure(event.id, Verb.FINISH)
    farm.tick()
    assert farm.status(event.id) is Status.STARTED
    assert farm.state("a") is OrderState.OPEN


def test_nobody_reports_an_order_that_is_planned() -> None:
    """A late or repeated report of the shutdown changes nothing, whether it says done, failed or unknown."""
    farm = in_place("shop/web-0 0 a")
    with pytest.raises(IllegalTransition, match="is planned: no executor has it"):
        farm.fail(farm.work("a").id)
    (event,) = farm.events_on("a")
    farm.start(event.id)
    farm.tick_at(2 * HOUR)
    assert farm.order(event.id).state is OrderState.FAILED
    farm.resolve_failure(event.id, Verb.FINISH)
    for late in (farm.finish, farm.fail, farm.doubt):
        with pytest.raises(IllegalTransition, match="is planned: no executor has it"):
            late(event.id)
    farm.tick()
    assert farm.state("a") is OrderState.OPEN


def test_a_shutdown_is_repeated_only_for_work_that_is_still_to_be_done() -> None:
    """Once the host is out of the question, a retry starts the machine instead."""
    farm = in_place("shop/web-0 0 a")
    (event,) = farm.events_on("a")
    farm.start(event.id)
    farm.fail(event.id)
    farm.resolve_failure(event.id, Verb.RETRY)
    assert farm.order(event.id).phase is Phase.STOP
    farm.fail(event.id)
    farm.skip_host(farm.maintenance_id, "a")
    farm.resolve_failure(event.id, Verb.RETRY)
    assert farm.order(event.id).phase is Phase.START
    farm.finish(event.id)
    farm.tick()
    assert farm.status(event.id) is Status.COMPLETED


def test_machines_never_stay_down_without_a_limit() -> None:
    """Also an operator who sets no time limit for orders gets one, until the work on the host was taken."""
    farm = in_place()
    events = farm.events_on("a")
    for event in events:
        farm.approve_as_operator(event.id)
    farm.tick(order_timeout_s=0)
    farm.finish(events[0].id)
    farm.tick(order_timeout_s=0)
    assert (farm.state("a"), farm.work("a").deadline) == (OrderState.PLANNED, at(HOUR))
    farm.finish(events[1].id)
    farm.now = at(1)
    farm.tick(order_timeout_s=0)
    assert (farm.state("a"), farm.work("a").deadline) == (OrderState.OPEN, at(HOUR + 1))
    farm.tick_at(HOUR + 1)
    assert farm.state("a") is OrderState.FAILED
    assert {farm.order(e.id).state for e in events} == {OrderState.OPEN}


def test_work_in_place_that_takes_too_long_is_in_doubt() -> None:
    """It may still go on: the machines stay down, and an operator decides."""
    farm = in_place()
    farm.shut_down("a")
    farm.take(farm.work("a").id)
    farm.tick_at(HOUR)
    order = farm.work("a")
    assert (order.state, order.deadline) == (OrderState.IN_DOUBT, None)
    assert "timed out: no result by 2030-01-01T13:00:00Z; its machines stay shut down" in order.reason
    assert {farm.order(e.id).state for e in farm.events_on("a")} == {OrderState.PLANNED}
    assert [r.code for r in needs_operator(farm.snapshot(), farm.maintenance_id, farm.now)] == ["in-doubt"]
    farm.finish(order.id)
    farm.tick()
    assert {farm.order(e.id).state for e in farm.events_on("a")} == {OrderState.OPEN}


def test_late_work_stays_in_doubt_while_its_node_does_it() -> None:
    """Otherwise it would be in doubt again after each time limit. A node that returns with its state folder takes it over."""
    farm = in_place()
    farm.shut_down("a")
    farm.take(farm.work("a").id)
    farm.tick_at(HOUR)
    order = farm.work("a")

    def take_over(node: str) -> Change:
        return order_verbs.take_over(
            farm.snapshot(), order.id, now=farm.now, actor=EXECUTOR, node=node, of=order.node, order_timeout_s=ORDER_TIMEOUT_S
        )  # fmt: skip

    with pytest.raises(Refused, match="it stays in doubt until it ends"):
        take_over(order.node)
    assert take_over("another process").orders[0].state is OrderState.RUNNING


def test_an_order_that_times_out_says_what_held_it_back() -> None:
    """Evacuation: the executor found a machine on the host that forewarn does not know."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.empty("a")
    order_id = farm.work("a").id
    farm.save(host_verbs.note_host(farm.snapshot(), order_id, "host a still runs x", now=farm.now, actor=EXECUTOR))
    farm.tick_at(HOUR)
    assert farm.work("a").reason == "timed out: no result by 2030-01-01T13:00:00Z; host a still runs x"


# -- what a decision reads


def test_a_host_that_was_not_read_is_left_to_the_next_tick() -> None:
    """A tick moves only what it has read: otherwise a host would look empty."""
    farm = two_hosts()
    farm.hosts = ()
    farm.cancel_event(farm.events_on("a")[2].id)
    farm.tick()
    assert farm.state("a") is OrderState.PLANNED
    farm.hosts = ("a",)
    farm.tick()
    assert farm.state("a") is OrderState.CANCELLED
    assert farm.known().wake_at == farm.now
    assert farm.why("b") == ["ticker"]
    farm.hosts = ("b",)
    farm.tick()
    assert len(farm.events_on("b")) == 1


def test_a_decision_reads_the_host_whose_turn_it_is() -> None:
    """And the machines that left an earlier one, if they are to come back."""
    farm = two_hosts(return_machines=True)
    assert farm.to_read() == (("a",), ())
    farm.empty("a")
    farm.finish(farm.work("a").id)
    hosts, machines = farm.to_read()
    assert hosts == ("a", "b")
    assert set(machines) == {("shop", "web-0"), ("shop", "web-1"), ("blog", "db-0")}
    farm.tick()
    assert farm.to_read() == (("a",), ())
    farm.cancel_maintenance(farm.maintenance_id)
    assert farm.to_read() == ((), ())
    assert hosts_to_read(farm.snapshot(), ["unknown"]) == ((), ())


def test_a_decision_reads_every_host_that_it_may_cordon() -> None:
    """With `continue`, the next host is announced. Then an operator finishes the first host, and its machines return."""
    farm = two_hosts(return_machines=True, on_failure=OnFailure.CONTINUE)
    farm.empty("a")
    farm.fail(farm.work("a").id)
    farm.tick()
    (announced,) = farm.events_on("b")
    farm.resolve_host(farm.work("a").id, Verb.FINISH)
    farm.tick()
    assert farm.events_on("a", back=True)
    assert farm.status(announced.id) is Status.SCHEDULED
    assert farm.to_read() == (("a", "b"), ())


def test_a_host_that_is_over_is_not_read_again() -> None:
    """Without a way back, only the next host is read."""
    farm = two_hosts()
    farm.empty("a")
    farm.finish(farm.work("a").id)
    assert farm.to_read() == (("b",), ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_mode": None, "return_machines": True}, "machines come back only after an evacuation"),
        ({"host_mode": None, "to_host": "c"}, "machines go to a named host only in an evacuation"),
        ({"host_mode": HostMode.IN_PLACE}, r"work on hosts \(in-place\) needs type Reboot, not Freeze"),
        ({"type": EventType.REBOOT}, r"work on hosts \(evacuate\) needs type Freeze or Redeploy, not Reboot"),
        ({"type": EventType.REDEPLOY, "source": Source.USER}, r"work on hosts \(evacuate\) needs source Platform"),
        ({"targets": Targets(scope="shop")}, r"work on hosts \(evacuate\) needs hosts as targets"),
        ({"to_host": "a"}, "machines cannot go to a: it is one of the hosts to evacuate"),
        ({"to_host": "no host"}, "host 'no host' is not a name"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    """The modes go with hosts, with platform maintenance and with the types that can prepare the work."""
    given = {"type": EventType.FREEZE, "host_mode": HostMode.EVACUATE, "targets": Targets(hosts=("a",)), **options}
    with pytest.raises(Invalid, match=message):
        request(**given)


def test_evacuated_machines_go_where_the_operator_says() -> None:
    """Every event that empties the host names the destination."""
    farm = two_hosts(to_host="c")
    assert {e.to_host for e in farm.events_on("a")} == {"c"}
    assert {e.host for e in farm.events_on("a")} == {"a"}


def test_the_orders_of_hosts_rely_on_the_version_of_their_maintenance() -> None:
    """No scope guards them: a change of one writes its maintenance, so that two nodes cannot both take it."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.empty("a")
    change = order_verbs.take(
        farm.snapshot(), farm.work("a").id, now=farm.now, actor=OPERATOR, node="n", order_timeout_s=0
    )
    assert [m.id for m in change.maintenances] == [farm.maintenance_id]
    assert change.begins_work


# -- machines that can go nowhere


class ListedFarm(Farm):
    """A farm whose fleet lists the hosts a, b and c; those in `closed` are cordoned by an operator."""

    closed: tuple[str, ...] = ()

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        cordoned = {name: at(0) if name in self.closed else None for name in "abc"}
        rows = {name: Host(name=name, listed=True, cordoned=since) for name, since in cordoned.items()}
        return replace(snapshot, target_hosts=Hosts(rows=rows))

    def needs(self) -> list[str]:
        return [reason.code for reason in needs_operator(self.snapshot(), self.maintenance_id, self.now)]


def test_machines_that_can_go_nowhere_are_not_announced() -> None:
    """Their host waits, is not cordoned, and says why. When a host is open again, the machines then on it get events."""
    farm = ListedFarm("shop/web-0 0 a")
    farm.closed = ("b", "c")
    farm.work_on("a")
    assert (farm.events_on("a"), farm.row("a")) == ([], None)
    assert (farm.why("a"), farm.needs()) == (["no-target"], ["no-target"])
    farm.tick()
    farm.put_on("a")
    assert farm.events_on("a") == []
    farm.closed = ("b",)
    farm.tick()
    assert [event.resources for event in farm.events_on("a")] == [("late", "web-0")]
    assert farm.events_on("a")[0].status is Status.SCHEDULED


@pytest.mark.parametrize(("closed", "announced"), [(("b",), False), (("c",), True)])
def test_the_host_that_an_operator_names_must_be_open(closed: tuple[str, ...], announced: bool) -> None:
    """Another host does not help."""
    farm = ListedFarm("shop/web-0 0 a")
    farm.closed = closed
    farm.work_on("a", to_host="b")
    assert bool(farm.events_on("a")) is announced


def test_a_later_wave_waits_for_an_open_host() -> None:
    """The last open host was cordoned meanwhile: the wave is not published, and no other maintenance waits for it."""
    farm = ListedFarm("shop/web-0 0 a", "shop/web-1 1 a")
    farm.work_on("a")
    first, second = farm.events_on("a")
    farm.start(first.id)
    farm.move(first.id, "b")
    farm.closed = ("b", "c")
    farm.tick()
    assert farm.status(second.id) is Status.PLANNED
    assert (farm.codes(second.id), farm.needs()) == (["no-target"], ["no-target"])
    farm.closed = ()
    farm.tick()
    assert farm.status(second.id) is Status.SCHEDULED


def test_a_published_wave_does_not_start_without_an_open_host() -> None:
    """It stays scheduled although its notice is over, also in an emergency; what holds it back is said."""
    farm = ListedFarm("shop/web-0 0 a")
    farm.work_on("a")
    (event,) = farm.events_on("a")
    farm.closed = ("b", "c")
    farm.now = at(HOUR)
    farm.tick()
    assert farm.status(event.id) is Status.SCHEDULED
    assert (farm.codes(event.id), farm.needs()) == (["no-target"], ["no-target"])
    farm.closed = ()
    farm.tick()
    assert farm.status(event.id) is Status.STARTED


@pytest.mark.parametrize("closed", [("b", "c"), ("b",)])
def test_a_wave_without_an_open_host_holds_up_no_other_maintenance(closed: tuple[str, ...]) -> None:
    """A wave that is due and can go nowhere loses its place in the queue of its scope; with an open host it comes first."""
    farm = ListedFarm("shop/web-0 0 a", "shop/web-1 1 b")
    farm.work_on("a")
    (event,) = farm.events_on("a")
    farm.now = at(1)
    farm.submit_request(request(type=EventType.REBOOT, targets=Targets(machines=(("shop", "web-1"),))))
    farm.closed = closed
    farm.now = at(HOUR)
    farm.tick()
    first, second = (Status.SCHEDULED, Status.STARTED) if "c" in closed else (Status.STARTED, Status.SCHEDULED)
    assert (farm.status(event.id), [e.status for e in farm.snapshot().events.values() if not e.host]) == (
        first,
        [second],
    )


def test_the_events_of_a_dropped_host_are_not_planned_again() -> None:
    """One event of the host is cancelled; before a tick sees it, the window of the other one closes."""
    farm = Farm("shop/web-0 0 a", "blog/db-0 0 a", windows=("noon",))
    noon = Window(name="noon", spans=("daily 12:00-13:00",))
    farm.save(Change(at=farm.now, fleet_rules=FleetRules(windows={"noon": noon})))
    farm.work_on("a")
    blog, shop = farm.events_on("a")
    assert blog.status is shop.status is Status.SCHEDULED
    known = farm.snapshot().scopes["blog"]
    moved = replace(known, incarnation=known.incarnation + 1)
    cancelled = replace(blog, status=Status.CANCELLED, ended=farm.now)
    farm.save(Change(at=farm.now, expect=(("blog", known.version),), scopes=(moved,), events=(cancelled,)))
    farm.tick_at(2 * HOUR)
    assert [e.status for e in farm.events_on("a")] == [Status.CANCELLED, Status.CANCELLED]
    assert (farm.state("a"), farm.known().status) == (OrderState.CANCELLED, MaintenanceStatus.FAILED)


def test_machines_do_not_come_back_to_a_cordoned_host() -> None:
    """No event is announced that could not succeed; they come back when an operator uncordons the host."""
    farm = ListedFarm("shop/web-0 0 a", "shop/web-1 0 b")
    farm.work_on("a", "b", return_machines=True)
    farm.empty("a", to="c")
    farm.finish(farm.work("a").id)
    farm.closed = ("a",)
    farm.save(Change(at=farm.now, hosts=(replace(farm.row("a") or Host(name="a"), cordoned=at(1), cordoned_by=""),)))
    farm.tick()
    assert farm.events_on("a", back=True) == []
    assert (farm.why("a"), farm.why("b"), farm.needs()) == (["no-target"], ["earlier-host"], ["no-target"])
    farm.closed = ()
    farm.save(Change(at=farm.now, hosts=(replace(farm.row("a") or Host(name="a"), cordoned=None),)))
    farm.tick()
    assert len(farm.events_on("a", back=True)) == 1
    assert farm.why("a") == []
