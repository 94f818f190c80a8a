"""What windows and no-go times hold back. The stories show most of it; here are the edges."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core import lifecycle
from forewarn.core.change import Change
from forewarn.core.errors import InvariantBroken, NotFound, Refused
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import Difference, apply_difference, changes_labels, difference
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.formatting import full_time
from forewarn.core.invariants import check_invariants
from forewarn.core.model import (
    ApprovalMode,
    ClockHold,
    Event,
    EventType,
    Host,
    HostMode,
    OnFailure,
    Order,
    Scope,
    Source,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.needs_operator import needs_operator
from forewarn.core.window_rules import may_limit, missed_windows, starts_of_waves
from tests.support.builders import OPERATOR, START, TICKER, World, at, event, guid, machine, maintenance, scope

# The World begins on Tuesday at 12:00.
AFTERNOON = Window(name="afternoon", spans=("Tue 13:00-15:00",))
WEEKEND = Window(name="weekend", spans=("Sat,Sun 00:00-24:00",))
FAIR = NoGoTime(name="fair", reason="the fair", start=at(30), end=at(90), scopes=("shop",))


def world(*rules: Window | NoGoTime, **settings: Any) -> World:
    """Return a world with these rules and one scope with two update domains."""
    made = World(
        scope(**settings),
        scope("desk"),
        machines=[machine("shop/web-0"), machine("shop/web-1", 1), machine("desk/d-0")],
    )
    windows = {each.name: each for each in rules if isinstance(each, Window)}
    no_go_times = {each.name: each for each in rules if isinstance(each, NoGoTime)}
    made.save(Change(at=START, fleet_rules=FleetRules(windows=windows, no_go_times=no_go_times)))
    return made


def test_not_before_is_the_first_moment_in_the_window_that_leaves_the_notice() -> None:
    made = world(AFTERNOON, windows=("afternoon",))
    (waiting,) = made.submit("shop/web-0")
    made.tick_at(44)
    assert made.waiting_for(waiting.id)[0].until == at(45)
    made.tick_at(45)
    assert made.event(waiting.id).not_before == at(60)
    made = world(AFTERNOON, windows=("afternoon",))
    made.now = at(90)
    (inside,) = made.submit("shop/web-0")
    assert inside.not_before == at(105)


def test_a_requested_start_is_announced_when_its_window_begins_within_the_notice() -> None:
    """The window begins at 13:00: an approval may bring the start forward to then."""
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0", not_before=at(120))
    made.tick_at(45)
    assert made.event(planned.id).not_before == at(120)
    made.approve("shop/web-0", planned.id)
    made.tick_at(50)
    assert made.codes(planned.id) == ["window"]
    made.tick_at(60)
    assert made.status(planned.id) is Status.STARTED


def test_an_earliest_start_after_the_window_waits_for_the_next() -> None:
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0", earliest=at(200))
    assert made.waiting_for(planned.id)[0].until == at(45 + 7 * 1440)


def test_another_notice_wakes_what_waits_for_its_window() -> None:
    """Without notice a wave is published when its window opens, and not earlier."""
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0")
    assert made.disable().wakes == (planned.maintenance_id,)
    made.tick()
    assert made.waiting_for(planned.id)[0].until == at(60)
    assert made.enable().wakes == (planned.maintenance_id,)
    made.tick()
    assert made.waiting_for(planned.id)[0].until == at(45)
    made.tick_at(45)
    assert made.disable().wakes == ()


def test_another_notice_wakes_no_later_wave() -> None:
    """Its notice counts when its turn comes; until then the ticker would examine the maintenance for nothing."""
    made = world()
    first, later = made.submit("shop/web-0", "shop/web-1")
    assert (first.status, later.status) == (Status.SCHEDULED, Status.PLANNED)
    assert made.disable().wakes == ()
    made.start(first.id)
    assert made.enable().wakes == ()


def test_another_notice_wakes_a_wave_after_a_failure_that_holds_nothing_back() -> None:
    made = world(AFTERNOON, windows=("afternoon",))
    first, later = made.submit("shop/web-0", "shop/web-1", on_failure=OnFailure.CONTINUE)
    made.tick_at(45)
    made.tick_at(60)
    made.now = at(178)
    made.fail(first.id)
    made.tick_at(178)
    assert made.codes(later.id) == ["window"]
    assert made.disable().wakes == (later.maintenance_id,)


def test_a_window_that_does_not_exist_is_never_open() -> None:
    """A scope that names one is refused; still, two nodes may remove the window and name it at once."""
    made = world(windows=("gone",))
    (planned,) = made.submit("shop/web-0")
    (reason,) = made.waiting_for(planned.id)
    assert reason.code == "window"
    assert reason.message.startswith("it waits for its window (a removed window), and its windows")
    assert reason.until == START + timedelta(days=400)


def test_a_held_clock_opens_no_window_and_closes_none() -> None:
    """The clock jumped over the beginning of the window, or over its end: until an operator confirms it, nothing starts."""
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0")
    made.tick_at(45)
    made.approve("shop/web-0", planned.id)
    hold = ClockHold(trusted=at(50), noticed=at(70), jumped_s=1_200)
    made.save(Change(at=at(70), hold=hold))
    made.tick_at(70)
    assert made.codes(planned.id) == ["window"]
    assert made.waiting_for(planned.id)[0].until is None
    made.tick_at(400)
    assert made.status(planned.id) is Status.SCHEDULED
    assert made.waiting_for(planned.id)[0].until == at(60 + 7 * 1440)
    made.save(Change(at=at(400), releases_hold=hold))
    made.tick_at(401)
    assert made.status(planned.id) is Status.CANCELLED


def test_a_wave_planned_again_keeps_its_machines_and_loses_its_approvals() -> None:
    made = world(AFTERNOON, windows=("afternoon",), approval=ApprovalMode.ALL)
    (first, second) = made.submit(targets=Targets(scope="shop"))
    made.tick_at(45)
    made.approve("shop/web-0", first.id)
    made.pause(first.maintenance_id)
    made.tick_at(180)
    again = [e for e in made.snapshot().events.values() if e.replaces == first.id]
    assert [(e.wave, e.position, e.resources, e.approvals, e.status) for e in again] == [
        (1, 2, ("web-0",), (), Status.PLANNED)
    ]
    assert made.status(second.id) is Status.PLANNED
    assert made.maintenance(first.id).observed_published_at is None


def test_what_no_window_binds_starts_at_any_time() -> None:
    made = world(AFTERNOON, FAIR, windows=("afternoon",))
    (preempted,) = made.submit("shop/web-0", type=EventType.PREEMPT)
    (restarted,) = made.submit("shop/web-1", source=Source.USER)
    (other,) = made.submit("desk/d-0")
    assert {made.status(e.id) for e in (preempted, restarted, other)} == {Status.SCHEDULED}
    (emergency,) = made.submit("shop/web-0", type=EventType.REDEPLOY, emergency=True)
    assert made.status(emergency.id) is Status.STARTED


def tick_in_part(made: World, scope: str) -> None:
    """Tick with a snapshot about one scope: of the rest of its waves, it has the events and the windows."""
    whole = made.snapshot()
    others = {name: row for name, row in whole.scopes.items() if name != scope}
    part = replace(whole, scopes={scope: whole.scopes[scope]}, other_scopes=others)
    made.save(lifecycle.tick(part, now=made.now, actor=TICKER, order_timeout_s=0, new_id=lambda: guid(999)))


def test_a_wave_of_several_scopes_is_not_overtaken() -> None:
    """Its other scope has an open window, which a decision about one of its scopes reads."""
    made = world(AFTERNOON)
    made.save(Change(at=START, scopes=(replace(made.scope("desk"), windows=("afternoon",)),)))
    made.now = at(60)
    (first, other) = made.submit("shop/web-0", "desk/d-0")
    (busy,) = made.submit("desk/d-0", type=EventType.REDEPLOY, emergency=True)
    made.now = at(61)
    (restart,) = made.submit("shop/web-1", source=Source.USER)
    made.tick_at(80)
    assert [reason.code for reason in made.waiting_for(first.id)] == ["machine"]
    tick_in_part(made, "shop")
    assert [made.status(each.id) for each in (first, other, busy, restart)] == [
        Status.SCHEDULED,
        Status.SCHEDULED,
        Status.STARTED,
        Status.SCHEDULED,
    ]
    assert made.codes(restart.id) == ["queue"]


def test_a_user_is_not_held_up_by_a_wave_with_a_closed_window_elsewhere() -> None:
    """The platform wave was due first by its notice, and is in a scope with a closed window too."""
    made = world(WEEKEND)
    (first, _) = made.submit("shop/web-0", "desk/d-0")
    made.save(Change(at=START, scopes=(replace(made.scope("desk"), windows=("weekend",)),)))
    (restart,) = made.submit("shop/web-0", source=Source.USER)
    made.approve("shop/web-0", restart.id)
    made.now = at(20)
    tick_in_part(made, "shop")
    assert made.status(restart.id) is Status.STARTED
    assert made.status(first.id) is Status.SCHEDULED


def test_a_user_is_not_held_up_by_an_approved_wave_that_waits_for_its_window() -> None:
    """The platform wave is earlier in the queue, but it is not due before its window opens."""
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0")
    made.tick_at(45)
    made.approve("shop/web-0", planned.id)
    made.now = at(50)
    (restart,) = made.submit("shop/web-0", source=Source.USER)
    made.approve("shop/web-0", restart.id)
    made.tick_at(51)
    assert made.status(restart.id) is Status.STARTED
    assert made.codes(planned.id)[0] == "window"


def test_windows_of_a_maintenance_must_exist_and_meet_those_of_its_scopes() -> None:
    made = world(AFTERNOON, WEEKEND, windows=("afternoon",))
    with pytest.raises(NotFound, match="there is no window 'x'"):
        made.submit("shop/web-0", strategy=Strategy(windows=("x",)))
    with pytest.raises(Refused, match="scope shop has no window in common with weekend"):
        made.submit("shop/web-0", strategy=Strategy(windows=("weekend",)))
    (planned,) = made.submit("shop/web-0", strategy=Strategy(windows=("weekend", "afternoon")))
    assert made.waiting_for(planned.id)[0].message.startswith(
        "it waits for its window (afternoon and weekend or afternoon)"
    )
    (other,) = made.submit("desk/d-0", strategy=Strategy(windows=("weekend",)))
    assert made.codes(other.id) == ["window"]


def test_scopes_without_a_common_window_do_not_share_a_wave() -> None:
    """Each joins the first part of the wave with which it has a window in common."""
    scopes = [
        scope("a", windows=("afternoon",)),
        scope("b", windows=("weekend",)),
        scope("c"),
        scope("d", windows=("weekend",)),
    ]
    made = World(*scopes, machines=[machine(f"{each.name}/m") for each in scopes])
    made.save(Change(at=START, fleet_rules=FleetRules(windows={"afternoon": AFTERNOON, "weekend": WEEKEND})))
    events = made.submit(targets=Targets(scopes=("a", "b", "c", "d")))
    assert [(e.wave, e.scope) for e in events] == [(1, "a"), (1, "c"), (2, "b"), (2, "d")]


def test_an_approval_lets_a_wave_start_outside_its_window_if_the_scope_says_so() -> None:
    made = world(AFTERNOON, windows=("afternoon",), approval_opens_window=True)
    (planned,) = made.submit("shop/web-0")
    made.tick_at(45)
    made.approve("shop/web-0", planned.id)
    made.tick_at(50)
    assert made.event(planned.id).status is Status.STARTED


def test_a_no_go_time_that_begins_in_the_notice_cancels_a_wave_when_it_begins() -> None:
    made = world(FAIR)
    made.now = at(20)
    (planned,) = made.submit("shop/web-0")
    (reason,) = made.waiting_for(planned.id)
    message = f"nothing may start during a no-go time: fair (the fair) until {full_time(at(90))}; it is not announced"
    assert (reason.code, reason.message) == ("no-go", message)
    made = world(FAIR)
    (announced,) = made.submit("shop/web-0", not_before=at(29))
    assert announced.not_before == at(29)
    made.pause(announced.maintenance_id)
    made.tick_at(30)
    assert made.event(announced.id).reason == "it cannot start in a no-go time"


@pytest.mark.parametrize("settings", [{"windows": ()}, {"approval_opens_window": True}])
def test_other_windows_of_a_scope_wake_its_maintenances(settings: dict[str, object]) -> None:
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0")
    made.tick_at(45)
    snapshot = made.snapshot()

    def changed(wanted: Scope) -> Change:
        fleet = Fleet(snapshot.scopes, snapshot.machines)
        found = difference(fleet, Fleet({"shop": wanted}, {}))
        return apply_difference(snapshot, found, versions={}, now=made.now, actor=OPERATOR)

    assert changed(replace(snapshot.scopes["shop"], **settings)).wakes == (planned.maintenance_id,)  # type: ignore[arg-type]
    assert changed(replace(snapshot.scopes["shop"], approve_user_events=True)).wakes == ()


# -- no-go times by labels

RACK = NoGoTime(name="rack", reason="wiring", start=at(0), end=at(90), labels="rack=a3")


def labelled(**labels: str) -> World:
    """Return a world with a no-go time of a rack, in which shop/web-0 has these labels; shop/web-1 inherits those of its host."""
    made = World(
        scope(),
        scope("desk"),
        machines=[
            replace(machine("shop/web-0"), labels=labels),
            machine("shop/web-1", host="kvm-1"),
            machine("desk/d-0"),
        ],
    )
    made.save(Change(at=START, hosts=(Host(name="kvm-1", labels={"rack": "a3"}),)))
    made.save(Change(at=START, fleet_rules=FleetRules(no_go_times={"rack": RACK})))
    return made


def test_a_no_go_time_binds_machines_by_their_labels() -> None:
    """A machine has the labels of its host; one machine of an event is enough."""
    made = labelled(rack="b1")
    (free,) = made.submit("shop/web-0")
    assert made.status(free.id) is Status.SCHEDULED
    (bound,) = made.submit("shop/web-0", "shop/web-1")
    (reason,) = made.waiting_for(bound.id)
    assert (reason.code, reason.until, reason.rules_of) == ("no-go", at(75), (("shop",),))
    assert made.snapshot().no_go_machines == {"rack": frozenset({("shop", "web-1")})}
    made.tick_at(75)
    assert made.event(bound.id).not_before == at(90)


def test_an_owner_of_another_scope_does_not_learn_a_no_go_time_by_labels() -> None:
    """The wave has events of two scopes, and the no-go time binds a machine of one."""
    made = labelled(rack="a3")
    (desk, shop) = made.submit("desk/d-0", "shop/web-0")
    assert {reason.rules_of for each in (desk, shop) for reason in made.waiting_for(each.id)} == {(("shop",),)}


def test_a_no_go_time_may_have_scopes_and_labels() -> None:
    """Both must fit."""
    made = labelled(rack="a3")
    rules = replace(made.snapshot().fleet_rules, no_go_times={"rack": replace(RACK, scopes=("desk",))})
    made.save(Change(at=START, fleet_rules=rules))
    (free,) = made.submit("shop/web-0")
    assert made.status(free.id) is Status.SCHEDULED


def test_labels_that_change_are_noticed() -> None:
    """Of machines that exist, of the host that carries them, and of hosts that leave the fleet."""
    web = replace(machine("shop/web-0", host="kvm-1"), labels={"rack": "a3"})
    host = Host(name="kvm-1", listed=True, labels={"rack": "a3"})
    current = Fleet({"shop": scope()}, {web.key: web}, {"kvm-1": host})

    def changed(**parts: Any) -> bool:
        return changes_labels(current, Difference(**parts))

    assert changed(machines=(replace(web, labels={}),))
    assert changed(machines=(replace(web, host="kvm-2"),))
    assert not changed(machines=(replace(web, fault_domain=2), machine("shop/new")))
    assert changed(hosts=(replace(host, labels={}),))
    assert changed(hosts=(Host(name="kvm-2", labels={"rack": "b"}),))
    assert not changed(hosts=(replace(host, fault_domain=2), Host(name="kvm-2")))
    assert changed(removed_hosts=(host,))
    assert not changed(removed_hosts=(Host(name="kvm-2"),))


# -- the invariant


def start_at(moment: datetime, made: World, **facts: Any) -> None:
    """Check the invariants of a step in which an approved event of the scope shop starts at this moment."""
    snapshot = made.snapshot()
    known = event(needs_approval=False, **facts)
    owner = maintenance(strategy=Strategy(windows=("afternoon",)) if facts.get("wave") == 2 else Strategy())
    before = replace(snapshot, maintenances={owner.id: owner}, events={known.id: known})
    started = replace(known, status=Status.STARTED, started=moment)
    order = Order(id=started.id, issued=moment)
    shop = snapshot.scopes["shop"]
    after = replace(
        before,
        events={known.id: started},
        orders={known.id: order},
        scopes={**snapshot.scopes, "shop": replace(shop, incarnation=shop.incarnation + 1, changed=moment)},
    )
    check_invariants(before, after, moment)


def test_the_invariant_refuses_a_start_outside_a_window() -> None:
    made = world(AFTERNOON, FAIR)
    start_at(at(20), made)
    with pytest.raises(InvariantBroken, match=r"invariant 1: event .* outside its window or in a no-go time"):
        start_at(at(31), made)
    with pytest.raises(InvariantBroken, match="outside its window"):
        start_at(at(20), made, wave=2)
    start_at(at(100), made, wave=2)
    made = world(AFTERNOON, windows=("afternoon",))
    with pytest.raises(InvariantBroken, match="outside its window"):
        start_at(at(20), made)
    start_at(at(20), made, source=Source.USER)
    with pytest.raises(InvariantBroken, match="in a no-go time"):
        start_at(at(20), labelled(rack="a3"))
    start_at(at(20), labelled(rack="b1"))


def test_in_place_work_on_machines_without_a_common_window_is_refused() -> None:
    """They would be shut down one after another and wait for each other; an emergency waits for no window."""
    made = World(
        scope(windows=("afternoon",)),
        scope("desk", windows=("weekend",)),
        machines=[machine("shop/web-0", host="kvm-1"), machine("desk/d-0", host="kvm-1")],
    )
    rules = FleetRules(windows={"afternoon": AFTERNOON, "weekend": WEEKEND})
    made.save(Change(at=START, fleet_rules=rules))
    in_place: dict[str, Any] = {"targets": Targets(hosts=("kvm-1",)), "host_mode": HostMode.IN_PLACE}
    with pytest.raises(Refused, match=r"the machines on host kvm-1 have no common window \(desk, shop\)"):
        made.submit(**in_place)
    assert {e.status for e in made.submit(**in_place, emergency=True)} == {Status.STARTED}


def test_a_held_clock_announces_nothing() -> None:
    """By the trusted clock, the window is far away: the jump may be false."""
    made = world(AFTERNOON, windows=("afternoon",))
    (planned,) = made.submit("shop/web-0")
    hold = ClockHold(trusted=at(10), noticed=at(50), jumped_s=2_400)
    made.save(Change(at=at(50), hold=hold))
    made.tick_at(50)
    assert (made.status(planned.id), made.codes(planned.id)) == (Status.PLANNED, ["window", "clock"])
    assert made.maintenance(planned.id).wake_at is None
    (reason,) = needs_operator(made.snapshot(), planned.maintenance_id, made.now)
    assert reason.code == "clock"
    made.save(Change(at=at(50), releases_hold=hold))
    made.tick()
    assert made.event(planned.id).not_before == at(65)


def test_what_windows_and_no_go_times_may_limit() -> None:
    """Known scopes are examined; for unknown ones any rule may count, unless it is over."""
    desk, shop = scope("desk"), scope(windows=("afternoon",))
    none, fair = FleetRules(windows={"afternoon": AFTERNOON}), FleetRules(no_go_times={"fair": FAIR})
    reboot = maintenance()
    assert may_limit(none, reboot, [desk, shop], START)
    assert not may_limit(none, reboot, [desk], START)
    assert may_limit(none, replace(reboot, strategy=Strategy(windows=("afternoon",))), [desk], START)
    assert may_limit(none, reboot, None, START)
    assert not may_limit(FleetRules(), reboot, None, START)
    assert [may_limit(fair, reboot, [scope(name)], START) for name in ("shop", "desk")] == [True, False]
    assert not may_limit(fair, reboot, None, at(90))
    assert may_limit(FleetRules(no_go_times={"fair": replace(FAIR, scopes=())}), reboot, [desk], START)
    for unbound in ({"emergency": True}, {"source": Source.USER}, {"type": EventType.PREEMPT}):
        assert not may_limit(none, replace(reboot, **unbound), [shop], START)
        assert not may_limit(none, replace(reboot, **unbound), None, START)


def test_when_each_wave_may_start() -> None:
    """In its window, or at the wanted moment if nothing limits the wave; never, if its window was removed."""
    made = world(AFTERNOON, windows=("afternoon",))
    waves = made.submit("shop/web-0", "shop/web-1") + made.submit("desk/d-0")

    def starts(events: list[Event], number: int) -> list[datetime | None]:
        known = made.snapshot()
        start_of = starts_of_waves(known, known.maintenances[events[0].maintenance_id], known.events.values(), made.now)
        return [start_of(number, at(minutes)) for minutes in (30, 90, 200)]

    next_week = at(7 * 24 * 60 + 60)
    assert starts(waves[:1], 2) == [at(60), at(90), next_week]
    assert starts(waves[2:], 3) == [at(30), at(90), at(200)]
    made.save(Change(at=START, fleet_rules=FleetRules(version=made.snapshot().fleet_rules.version)))
    assert starts(waves[:1], 2) == [None, None, None]


def test_a_wave_that_can_never_start_needs_an_operator() -> None:
    """The windows of its scopes met when it was planned, and no longer do."""
    made = World(
        scope(windows=("afternoon",)),
        scope("desk", windows=("afternoon",)),
        machines=[machine("shop/web-0"), machine("desk/d-0")],
    )
    made.save(Change(at=START, fleet_rules=FleetRules(windows={"afternoon": AFTERNOON, "weekend": WEEKEND})))
    planned, _ = made.submit("shop/web-0", "desk/d-0")
    assert needs_operator(made.snapshot(), planned.maintenance_id, made.now) == ()
    made.save(Change(at=made.now, scopes=(replace(made.snapshot().scopes["desk"], windows=("weekend",)),)))
    (reason,) = needs_operator(made.snapshot(), planned.maintenance_id, made.now)
    assert (reason.code, reason.message) == (
        "window",
        "it waits for its window (weekend and afternoon), and its windows and no-go times leave no other time",
    )


def test_a_maintenance_that_other_windows_of_its_scope_leave_no_time_is_named() -> None:
    """Because of its own windows or its deadline. Nothing else is examined: other scopes, and events that no window binds."""
    made = world(AFTERNOON, WEEKEND)
    (first,) = made.submit("shop/web-0", strategy=Strategy(windows=("weekend",)))
    (second,) = made.submit("shop/web-1", not_after=at(600))
    made.submit("shop/web-1", source=Source.USER)
    made.submit("desk/d-0", strategy=Strategy(windows=("weekend",)))
    before = made.snapshot()

    def warnings(**settings: Any) -> tuple[str, ...]:
        return missed_windows(before, before.fleet_rules, [replace(before.scopes["shop"], **settings)], made.now)

    ending = "cannot start in scope shop with these windows: windows and no-go times leave it no time"
    assert warnings(windows=("afternoon",)) == (f"maintenance {first.maintenance_id} {ending}",)
    late = f"maintenance {second.maintenance_id} {ending} before not_after ({full_time(at(600))})"
    assert warnings(windows=("weekend",)) == (late,)
    assert warnings(windows=("afternoon", "weekend")) == ()
    assert warnings(windows=()) == warnings(max_unavailable="1") == ()
    new = replace(before.scopes["shop"], name="new", windows=("afternoon",))
    assert missed_windows(before, before.fleet_rules, [new], made.now) == ()
