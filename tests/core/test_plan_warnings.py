"""What a submitted maintenance is warned about: no notice, times that have passed, machines that are already in open events."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest

from forewarn.core import lifecycle
from forewarn.core.change import Change, Snapshot
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.model import Actor, EventType, Host, HostMode, Order, Source, Strategy, Targets
from forewarn.core.placement import Hosts
from forewarn.core.plan_warnings import MAX_ALREADY_OPEN, PlanWarning, plan_warnings, target_warnings
from forewarn.core.window_verbs import put_no_go_time, put_window
from tests.support.builders import (
    OPERATOR,
    START,
    World,
    at,
    guid,
    machine,
    maintenance,
    request,
    scope,
    shop,
    two_scopes,
)


def warned(world: World, *machines: str, **options: Any) -> tuple[PlanWarning, ...]:
    """Return the warnings about a maintenance that is decided but not saved."""
    before = world.snapshot()
    ids = (guid(number) for number in count(5_000))
    maintenance_id, change = lifecycle.submit(
        before, request(*machines, **options), now=world.now, actor=Actor("op"), new_id=ids.__next__, order_timeout_s=60
    )
    after = Snapshot(
        scopes=before.scopes,
        machines=before.machines,
        maintenances={**before.maintenances, **{m.id: m for m in change.maintenances}},
        events={**before.events, **{e.id: e for e in change.events}},
        orders={**before.orders, **{o.id: o for o in change.orders}},
        fleet_rules=before.fleet_rules,
    )
    return plan_warnings(before, after, maintenance_id, world.now)


def messages(warnings: tuple[PlanWarning, ...]) -> list[str]:
    return [f"{each.code}: {each.message}" for each in warnings]


def test_an_ordinary_plan_has_no_warnings() -> None:
    """A requested time in the future and every wave with notice."""
    world = shop(2, enabled=True)
    assert warned(world, targets=Targets(scope="shop"), not_before=at(60), earliest=at(90)) == ()
    assert warned(world, "shop/web-0", source=Source.USER) == ()


def test_waves_that_only_approvals_could_start_before_the_deadline() -> None:
    """Each wave is counted with its notice and the duration of the work."""
    world = shop(3, enabled=True)
    every = Targets(scope="shop")
    assert warned(world, targets=every, not_after=at(46)) == ()
    assert warned(world, targets=every, not_after=at(46), duration_s=60) == (
        PlanWarning(
            "misses-deadline",
            "without approvals 1 of 3 wave(s) cannot start before not_after (2030-01-01 12:46:00Z),"
            " and what has not started by then is cancelled",
        ),
    )
    assert warned(world, "shop/web-0", source=Source.USER, emergency=False, not_after=at(16)) == ()


def test_a_window_that_opens_after_the_deadline() -> None:
    """No wave can start in time, or the waves that follow the first one cannot. It is noon."""
    world = shop(2, enabled=True)
    world.save(
        put_window(world.snapshot(), Window(name="nights", spans=("daily 20:00-22:00",)), now=START, actor=OPERATOR)
    )
    plan = {"targets": Targets(scope="shop"), "strategy": Strategy(windows=("nights",))}
    assert messages(warned(world, **plan, not_after=at(60))) == [
        "misses-deadline: no wave can start before not_after (2030-01-01 13:00:00Z): windows and no-go times allow the"
        " first start at 2030-01-01 20:00:00Z, and what has not started by then is cancelled"
    ]
    (second,) = warned(world, **plan, not_after=at(8 * 60 + 10))
    assert second.message.startswith("without approvals 1 of 2 wave(s) cannot start before not_after")
    assert warned(world, **plan, not_after=at(9 * 60)) == ()
    always = NoGoTime(name="never", reason="closed", spans=("daily 00:00-24:00",))
    world.save(put_no_go_time(world.snapshot(), always, [], now=START, actor=OPERATOR))
    (never,) = warned(world, **plan, not_after=at(9 * 60))
    assert "windows and no-go times allow no start, and" in never.message


def test_a_first_wave_that_waits_for_something_else_has_no_known_start() -> None:
    """Only windows and no-go times say when a wave that is not published may start."""
    world = shop(2, enabled=True, max_unavailable="1")
    world.submit("shop/web-0")
    assert warned(world, "shop/web-1", not_after=at(1)) == ()


def test_a_pause_or_a_canary_without_effect() -> None:
    """A pause after the last wave, a pause inside the canary, and a canary that leaves no other group."""
    machines = [machine(f"shop/web-{n}", n % 2, host=f"kvm-{n // 2}") for n in range(6)]
    world = World(scope("shop", enabled=True), machines=machines)

    def found(**options: Any) -> list[str]:
        strategy = Strategy(group_by="host", **options)
        return messages(warned(world, targets=Targets(scope="shop"), strategy=strategy))

    assert found(canary=1, pause_after=2) == found(canary=2, pause_after=2) == found(pause_after=5) == []
    assert found(pause_after=6) == ["no-pause: pause_after is 6, and the plan has 6 waves: it does not pause"]
    assert found(canary=1, pause_after=1) == [
        "pause-in-canary: it pauses after wave 1, but the canary ends with wave 2"
    ]
    assert found(canary=3) == ["canary-is-all: canary is 3, and the plan has 3 groups: all of them are the canary"]
    by_domain = Strategy(canary=1, pause_after=1)
    assert warned(world, targets=Targets(scope="shop"), strategy=by_domain) == ()


def test_a_scope_that_has_never_polled_gets_no_notice() -> None:
    """A maintenance and a user's restart have the same warning."""
    world = shop(2, enabled=False)
    expected = ["no-notice: this plan gives no notice to shop: no machine there has polled for events lately"]
    assert messages(warned(world, targets=Targets(scope="shop"))) == expected
    assert messages(warned(world, "shop/web-0", source=Source.USER)) == expected


def test_each_cause_of_no_notice_is_named() -> None:
    """An emergency, and a scope that approves user events by itself."""
    world = shop(1, enabled=True, approve_user_events=True)
    (emergency,) = warned(world, "shop/web-0", emergency=True)
    assert emergency.message.endswith("gives no notice to shop: an emergency starts at once")
    (approved,) = warned(world, "shop/web-0", source=Source.USER)
    assert approved.message.endswith("user events are approved there by a setting of the scope")


def test_a_wave_gives_its_notice_to_every_scope() -> None:
    """A disabled scope in a wave with an enabled one shares the NotBefore of the wave."""
    world = World(
        scope("shop", enabled=True), scope("ship", enabled=False), machines=[machine("shop/a"), machine("ship/b")]
    )
    assert warned(world, "shop/a", "ship/b") == ()


def test_only_later_waves_without_notice_are_warned_about_too() -> None:
    """The second wave consists of a disabled scope alone."""
    world = World(
        scope("shop", enabled=True),
        scope("ship", enabled=False),
        machines=[machine("shop/a"), machine("ship/b"), machine("ship/c", 1)],
    )
    (warning,) = warned(world, "shop/a", "ship/b", "ship/c")
    assert (warning.code, "to ship" in warning.message) == ("no-notice", True)


@pytest.mark.parametrize(("field", "code"), [("not_before", "past-not-before"), ("earliest", "past-earliest")])
def test_a_time_that_has_passed_is_warned_about(field: str, code: str) -> None:
    """The time of the decision itself has not passed."""
    world = shop(1, enabled=True)
    (warning,) = warned(world, "shop/web-0", **{field: START - timedelta(hours=2)})
    assert warning.code == code
    assert "2030-01-01 10:00:00Z" in warning.message
    assert warned(world, "shop/web-0", **{field: START}) == ()


def test_machines_that_are_in_open_events_are_named() -> None:
    """The warning names the machines that both have, and the other event."""
    world = shop(3, enabled=True)
    (event,) = world.submit("shop/web-1")
    (warning,) = warned(world, targets=Targets(scope="shop"))
    assert messages((warning,)) == [f"already-open: shop/web-1: event {event.id} (Reboot) is already scheduled"]
    assert warned(world, "shop/web-0") == ()
    assert [w.code for w in warned(world, "shop/web-1", source=Source.USER)] == ["already-open"]
    world.cancel_event(event.id)
    assert warned(world, "shop/web-1") == ()


def test_a_maintenance_of_several_events_has_one_warning() -> None:
    """All machines that both maintenances have, and the maintenance: no single event has all of them."""
    world = two_scopes(enabled=True)
    events = world.submit(targets=Targets(scopes=("shop", "ship")))
    (warning,) = warned(world, "shop/web-0", "ship/web-0", "ship/web-1", type=EventType.FREEZE)
    assert warning.message == (
        f"ship/web-0, ship/web-1, shop/web-0: maintenance {events[0].maintenance_id} (Reboot) already has 3 open events"
        " of these machines"
    )


def test_warnings_of_many_open_events_are_cut() -> None:
    """At most a fixed number of maintenances are named, and the number of the others."""
    world = shop(1, enabled=True)
    for _ in range(MAX_ALREADY_OPEN + 3):
        world.submit("shop/web-0")
    warnings = warned(world, "shop/web-0")
    assert len(warnings) == MAX_ALREADY_OPEN + 1
    assert warnings[-1].message == "and 3 more maintenances already have open events of these machines"


def test_machines_that_can_go_nowhere_are_named() -> None:
    """The named host is cordoned, or every other host is; a machine with a target is not named."""
    hosts = Hosts(rows={"b": Host(name="b", cordoned=START)})
    (named,) = target_warnings({"shop/web-0": (), "shop/web-1": ("c",)}, hosts, host="a", to_host="b")
    assert (named.code, named.message) == ("no-target", "shop/web-0 on host a cannot go to b: host b is cordoned")
    (none,) = target_warnings({"shop/web-0": ()}, hosts, host="a", to_host="")
    assert none.message.endswith("cannot go to any host: every other host is cordoned or in maintenance")
    assert target_warnings({"shop/web-1": ("c",)}, hosts, host="a", to_host="") == []


@pytest.mark.parametrize(("cordoned", "warnings"), [(None, 0), (START, 1)])
def test_machines_cannot_return_to_a_host_that_is_cordoned_already(cordoned: datetime | None, warnings: int) -> None:
    """The maintenance uncordons only what it cordoned."""
    planned = maintenance(targets=Targets(hosts=("?",)), host_mode=HostMode.EVACUATE, return_machines=True)
    before = Snapshot(hosts={"a": Host(name="a", cordoned=cordoned)})
    orders = {host: Order(id=host, issued=START, host=host, maintenance_id=planned.id) for host in ("a", "b")}
    found = plan_warnings(before, Snapshot(maintenances={planned.id: planned}, orders=orders), planned.id, START)
    assert [each.code for each in found] == ["no-return"] * warnings


def test_a_host_that_is_already_in_maintenance_is_named() -> None:
    """Submitted twice by mistake, or on purpose: the work on the host waits for the other maintenance."""
    world = World(scope("shop"), machines=[machine("shop/web-0", host="a")])
    _, change = world.submit_request(
        request(type=EventType.FREEZE, targets=Targets(hosts=("a",)), host_mode=HostMode.EVACUATE)
    )
    first = change.maintenances[0].id
    found = warned(world, type=EventType.FREEZE, targets=Targets(hosts=("a",)), host_mode=HostMode.EVACUATE)
    assert [w.code for w in found] == ["already-open", "host-busy"]
    assert f"host a is already in maintenance {first}: the work on it waits for that" in found[1].message
    world.cancel_maintenance(first)
    assert warned(world, type=EventType.FREEZE, targets=Targets(hosts=("a",)), host_mode=HostMode.EVACUATE) == ()


def test_a_host_with_more_machines_than_a_budget_is_named() -> None:
    """They are shut down together in place, so they never find room; evacuations are split, and emergencies do not wait."""
    machines = [machine(f"shop/web-{n}", host="a") for n in range(3)]
    world = World(
        scope("shop", max_unavailable="50%"), scope("ship"), machines=[*machines, machine("ship/db", host="a")]
    )
    world.save(Change(at=START, fleet_rules=FleetRules(max_machines_down=3)))
    on_host: dict[str, Any] = {"targets": Targets(hosts=("a",)), "host_mode": HostMode.IN_PLACE}
    assert messages(warned(world, **on_host)) == [
        "over-budget: host a carries 3 machines to be shut down together, and max_unavailable of shop allows 1:"
        " they are not announced before the budget is raised",
        "over-budget: host a carries 4 machines to be shut down together, and max_machines_down of the fleet allows 3:"
        " they are not announced before the budget is raised",
    ]
    assert "over-budget" not in [each.code for each in warned(world, **on_host, emergency=True)]
    evacuation = {**on_host, "type": EventType.FREEZE, "host_mode": HostMode.EVACUATE}
    assert warned(world, **evacuation) == ()
    world.save(Change(at=START, fleet_rules=FleetRules(version=1)))
    world.save(Change(at=START, scopes=(replace(world.scope(), max_unavailable="3"),)))
    assert warned(world, **on_host) == ()
