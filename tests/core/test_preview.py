"""The calendar of a maintenance: when each wave may start, and that the real run keeps to it."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.change import Change
from forewarn.core.fleet_rules import FleetRules, FleetUse, Window
from forewarn.core.model import (
    Event,
    EventType,
    HostMode,
    MaintenanceStatus,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.preview import Forecast, forecast
from forewarn.core.preview_run import ASSUMED_WORK_S, PreviewRun
from forewarn.core.store_hold import hold_store
from tests.support.builders import OPERATOR, START, World, at, machine, scope, shop

# Open for an hour from the second hour of a test on, every day.
NIGHTS = FleetRules(windows={"nights": Window(name="nights", spans=("daily 13:00-14:00",))})
NAMES = ("shop/web-0", "shop/web-1", "shop/web-2")


def calendar(world: World, *names: str, **options: Any) -> Forecast:
    (first, *_) = world.submit(*names, **options)
    return forecast(world.snapshot(), first.maintenance_id, world.now)


def rows(calendar: Forecast) -> list[tuple[int, float | None, float | None]]:
    """Each wave with its earliest and latest start, in minutes."""
    return [(wave.wave, _minutes(wave.earliest), _minutes(wave.latest)) for wave in calendar.waves]


def _minutes(moment: datetime | None) -> float | None:
    return None if moment is None else (moment - START) / timedelta(minutes=1)


def test_waves_follow_each_other() -> None:
    """At the earliest everything is approved and takes no time; at the latest the notice and the work of each wave add up."""
    found = calendar(shop(3), *NAMES, duration_s=300)
    assert rows(found) == [(1, 0, 15), (2, 0, 35), (3, 0, 55)]
    assert (found.work_s, found.earliest_end, found.latest_end) == (300, START, at(60))
    assert [wave.may_wait_for for wave in found.waves] == [("approval", "notice")] * 3


def test_a_rival_that_misses_its_window_is_planned_again() -> None:
    """The work of the first wave lasts until the window closes, so the rival starts ahead of the second on the next day."""
    world = shop(3, windows=("nights",))
    world.save(Change(at=world.now, fleet_rules=NIGHTS))
    world.submit("shop/web-2", not_before=at(70), duration_s=1_200)
    found = calendar(world, "shop/web-0", "shop/web-1", duration_s=7_200)
    tomorrow = 24 * 60
    assert [wave.latest for wave in found.waves] == [at(60), at(tomorrow + 80)]


def test_a_strategy_shows_in_the_calendar() -> None:
    """Groups, hosts and machines of each wave, the bake time, and the wave that waits for an operator."""
    world = World(scope("shop"), scope("ship"), machines=[machine("shop/a", host="h1"), machine("ship/b", host="h2")])
    strategy = Strategy(group_by="host", canary=1, bake_s=1_200, pause_after=1)
    found = calendar(world, "shop/a", "ship/b", strategy=strategy)
    assert rows(found) == [(1, 0, 15), (2, 20, 15 + 5 + 20 + 15)]
    first, second = found.waves
    assert (first.groups, first.hosts, first.events, first.machines) == (("h1",), ("h1",), 1, 1)
    assert second.may_wait_for == ("approval", "bake", "continue", "notice")
    assert found.work_s == ASSUMED_WORK_S


def test_events_that_need_no_approval() -> None:
    """A disabled scope gets no notice; an emergency starts at once."""
    assert rows(calendar(shop(2, enabled=False), *NAMES[:2], duration_s=60)) == [(1, 0, 0), (2, 0, 1)]
    found = calendar(shop(2), *NAMES[:2], emergency=True)
    assert rows(found) == [(1, 0, 0)]
    assert found.waves[0].may_wait_for == ()


def test_an_event_of_a_drill_ends_its_hold_after_its_start() -> None:
    """At the earliest, too: every event takes the same time."""
    found = calendar(shop(2), *NAMES[:2], drill_hold_s=60)
    assert rows(found) == [(1, 0, 15), (2, 1, 31)]
    assert (found.work_s, found.earliest_end, found.latest_end) == (60, at(2), at(32))


def test_a_requested_start_and_a_floor() -> None:
    """NotBefore moves the latest start, `earliest` moves both."""
    assert rows(calendar(shop(1), NAMES[0], not_before=at(60))) == [(1, 0, 60)]
    assert rows(calendar(shop(1), NAMES[0], earliest=at(30))) == [(1, 30, 30)]


def test_what_the_deadline_cancels_has_no_start() -> None:
    """The second wave would start after the deadline at the latest."""
    found = calendar(shop(2), *NAMES[:2], duration_s=300, not_after=at(30))
    assert rows(found) == [(1, 0, 15), (2, 0, None)]
    assert found.latest_end == at(30)
    none = calendar(shop(1), NAMES[0], not_after=at(10))
    assert (rows(none), none.latest_end) == ([(1, 0, None)], None)


def test_other_maintenances_of_the_scopes_go_on_too() -> None:
    """A started event of another update domain ends first; a failed one leaves no latest and no earliest start."""
    world = shop(2)
    (other,) = world.submit(NAMES[0], duration_s=1_800)
    world.start(other.id)
    found = calendar(world, NAMES[1])
    assert rows(found) == [(1, 0, 30)]
    assert found.waves[0].may_wait_for == ("approval", "notice", "update-domain")
    world.fail(other.id)
    stuck = calendar(world, NAMES[1])
    assert rows(stuck) == [(1, None, None)]
    assert (stuck.earliest_end, stuck.latest_end) == (None, None)
    assert "unresolved" in stuck.waves[0].may_wait_for


def test_of_other_maintenances_what_happens_in_the_same_scopes_counts() -> None:
    """They move also if their other scopes are not known, and if they work on hosts."""
    world = World(scope("shop"), scope("ship"), machines=[machine("shop/a"), machine("ship/b", host="h1")])
    world.submit("shop/a", "ship/b")
    world.submit(targets=Targets(hosts=("h1",)), type=EventType.FREEZE, host_mode=HostMode.EVACUATE)
    (mine,) = world.submit("shop/a", not_before=at(60))
    known = world.snapshot()
    partly = replace(known, scopes={"shop": known.scopes["shop"]})
    assert rows(forecast(partly, mine.maintenance_id, world.now)) == [(1, 0, 60)]


def test_a_budget_of_the_fleet_delays_waves() -> None:
    """Room is free again when an event in these scopes ends; what is down elsewhere stays down."""
    world = World(scope("shop"), scope("ship"), machines=[machine("shop/a"), machine("shop/b"), machine("ship/c")])
    world.save(Change(at=START, fleet_rules=FleetRules(max_machines_down=2)))
    world.submit("shop/a", duration_s=3_000)
    use = world.snapshot().fleet_use
    (mine, _) = world.submit("shop/b", "ship/c", strategy=Strategy(group_by="scope"), duration_s=300)

    def with_use(machines: int) -> Forecast:
        known = replace(world.snapshot(), fleet_use=FleetUse(machines=machines))
        return forecast(known, mine.maintenance_id, world.now)

    assert use.machines == 1
    assert rows(with_use(1)) == [(1, 0, 15), (2, 0, 35)]
    assert rows(with_use(2)) == [(1, 0, 15), (2, 0, 80)]
    assert rows(with_use(3)) == [(1, 0, 15), (2, None, None)]
    assert with_use(3).waves[1].may_wait_for == ("budget",)


def test_windows_show_in_the_calendar() -> None:
    """Each wave starts in a window; one that would not fit any more comes in the next one."""
    world = shop(3)
    world.save(Change(at=START, fleet_rules=NIGHTS))
    found = calendar(world, *NAMES, duration_s=900, strategy=Strategy(windows=("nights",), bake_s=900))
    assert rows(found) == [(1, 60, 60), (2, 75, 105), (3, 90, 24 * 60 + 60)]
    assert found.waves[2].may_wait_for == ("approval", "bake", "notice", "window")


def test_a_held_store_leaves_nothing_to_expect() -> None:
    """No wave starts while the store is held."""
    world = shop(2)
    world.save(hold_store(world.snapshot(), "", now=world.now, actor=OPERATOR))
    assert rows(calendar(world, *NAMES[:2])) == [(1, None, None), (2, None, None)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_wave_that_is_examined_again_and_again_ends_the_preview(at_once: bool) -> None:
    """The wave then has no start, and the maintenance no end."""
    world = shop(1)
    events = world.submit(NAMES[0])
    snapshot = world.snapshot()
    maintenance = snapshot.maintenances[events[0].maintenance_id]
    for most, starts in ((1_000, True), (1, False)):
        run = PreviewRun(snapshot, maintenance, world.now, at_once=at_once, max_steps_per_wave=most)
        (wave,), end = run.play([events])
        assert (wave.start is not None, end is not None) == (starts, starts)


# -- the real run keeps to the preview


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_real_run_keeps_to_the_preview(data: st.DataObject) -> None:
    """Without failures and new requests, the waves are the same and every start is between the earliest and the latest."""
    places = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8)
    )
    scopes = [scope(f"s{n}", enabled=data.draw(st.booleans())) for n in range(3)]
    machines = [machine(f"s{s}/m{n}", domain, host=f"h{h}") for n, (s, domain, h) in enumerate(places)]
    world = World(*scopes, machines=machines)
    world.save(Change(at=START, fleet_rules=NIGHTS))
    work_s = data.draw(st.sampled_from([0, 60, 600]))
    options = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "not_before": st.sampled_from([at(1), at(40)]),
                "earliest": st.sampled_from([at(1), at(70)]),
                "strategy": st.builds(
                    Strategy,
                    group_by=st.sampled_from(["host", "scope"]),
                    max_parallel=st.integers(1, 2),
                    canary=st.integers(0, 2),
                    bake_s=st.sampled_from([0, 900]),
                    pause_after=st.integers(0, 2),
                    windows=st.sampled_from([(), ("nights",)]),
                ),
            },
        )
    )
    events = world.submit(*map(str, machines), duration_s=work_s, **options)
    found = forecast(world.snapshot(), events[0].maintenance_id, world.now)
    planned = [[e.id for e in events if e.wave == wave.wave] for wave in found.waves]
    _run_for_real(world, events[0], work_s, data)
    replaced = {e.replaces: e.id for e in world.snapshot().events.values() if e.replaces}
    for wave, ids in zip(found.waves, planned, strict=True):
        starts = {world.event(_last(replaced, each)).started for each in ids}
        assert len(starts) == 1
        (start,) = starts
        assert start is not None
        assert wave.earliest is not None
        assert wave.latest is not None
        assert wave.earliest <= start <= wave.latest
    end = world.maintenance(events[0].id).ended
    assert end is not None
    assert found.earliest_end is not None
    assert found.latest_end is not None
    assert found.earliest_end <= end <= found.latest_end


def _last(replaced: dict[str, str], event_id: str) -> str:
    """Return the event that took over the machines of this one in the end; a window may have closed several times."""
    while event_id in replaced:
        event_id = replaced[event_id]
    return event_id


def _run_for_real(world: World, one: Event, work_s: int, data: st.DataObject) -> None:
    """Run the maintenance to its end: guests approve now and then, work takes up to its duration."""
    while (maintenance := world.maintenance(one.id)).ended is None:
        if maintenance.status is MaintenanceStatus.PAUSED:
            world.continue_maintenance(maintenance.id)
        events = [e for e in world.snapshot().events.values() if e.maintenance_id == maintenance.id]
        for each in events:
            if each.status is Status.SCHEDULED and not each.approvals and data.draw(st.integers(0, 3)) == 0:
                world.approve_as_operator(each.id)
            if each.status is Status.STARTED and each.started is not None:
                late = world.now >= each.started + timedelta(seconds=work_s)
                if late or data.draw(st.booleans()):
                    world.finish(each.id)
        world.tick()
        maintenance = world.maintenance(one.id)
        running = [e for e in world.snapshot().events.values() if e.started is not None and e.ended is None]
        moments = [e.started + timedelta(seconds=work_s) for e in running if e.started is not None]
        moments += [maintenance.wake_at] if maintenance.wake_at is not None else []
        if moments and min(moments) > world.now:
            world.now = min(*moments, world.now + data.draw(st.sampled_from([timedelta(minutes=4), timedelta(days=1)])))
