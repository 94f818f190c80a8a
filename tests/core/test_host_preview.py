"""The calendar of a maintenance of hosts: the turn of each host, its waves, and that the real run keeps to it."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.change import Change
from forewarn.core.fleet_rules import FleetRules, Window
from forewarn.core.model import (
    EventType,
    Host,
    HostMode,
    Machine,
    MaintenanceRequest,
    MaintenanceStatus,
    OrderState,
    Phase,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.placement import Hosts
from forewarn.core.preview import Forecast, HostForecast, forecast
from forewarn.core.preview_run import MAX_MISSED_WINDOWS, PreviewRun
from forewarn.core.store_hold import hold_store
from tests.support.builders import OPERATOR, START, World, at, machine, request, scope

NIGHTS = FleetRules(windows={"nights": Window(name="nights", spans=("daily 13:00-14:00",))})
AT_WORK = (OrderState.OPEN, OrderState.RUNNING)
MACHINES = [machine("shop/a", 0, host="h1"), machine("shop/b", 1, host="h1"), machine("ship/c", 0, host="h2")]


def two_hosts(*more: Machine) -> World:
    return World(scope("shop"), scope("ship"), machines=[*MACHINES, *more])


def evacuation(*hosts: str, **options: Any) -> MaintenanceRequest:
    options = {"type": EventType.FREEZE, "host_mode": HostMode.EVACUATE, "duration_s": 300, **options}
    return request(targets=Targets(hosts=hosts), **options)


def calendar(world: World, submitted: MaintenanceRequest) -> Forecast:
    _, change = world.submit_request(submitted)
    return forecast(world.snapshot(), change.maintenances[0].id, world.now)


def _minutes(moment: datetime | None) -> float | None:
    return None if moment is None else (moment - START) / timedelta(minutes=1)


def waves(found: Forecast) -> list[tuple[int | str | float | None, ...]]:
    return [(w.wave, *w.hosts, _minutes(w.earliest), _minutes(w.latest)) for w in found.waves]


def works(found: Forecast) -> list[tuple[str | float | None, ...]]:
    """Each host with the earliest and latest start of its work, and the earliest and latest end of its turn."""
    return [(h.host, *map(_minutes, (h.earliest, h.latest, h.earliest_end, h.latest_end))) for h in found.hosts]


def test_an_evacuation_shows_the_hosts_in_turn() -> None:
    """Each host has its waves, then its work; the next host follows. Machines that leave are not counted on a later host."""
    found = calendar(two_hosts(), evacuation("h1", "h2"))
    assert waves(found) == [(1, "h1", 0, 15), (2, "h1", 0, 35), (3, "h2", 0, 60)]
    assert works(found) == [("h1", 0, 40, 0, 45), ("h2", 0, 65, 0, 70)]
    assert (found.work_s, found.earliest_end, found.latest_end) == (300, START, at(70))
    assert [(h.turn, h.machines) for h in found.hosts] == [(1, 2), (2, 1)]
    assert [h.may_wait_for for h in found.hosts] == [(), ()]
    assert [w.may_wait_for for w in found.waves] == [("approval", "notice")] * 3


def test_a_wave_that_misses_every_window_is_given_up() -> None:
    """Only an operator ends the failure that it waits for: its start is unknown, and the preview stops after a month."""
    world = two_hosts(machine("shop/z", 2, host="h9"))
    world.save(Change(at=START, fleet_rules=NIGHTS, hosts=(Host(name="h1", listed=True), Host(name="h3", listed=True))))
    (failed,) = world.submit("shop/z")
    world.start(failed.id)
    world.take(failed.id)
    world.fail(failed.id)
    _, change = world.submit_request(evacuation("h1", strategy=Strategy(windows=("nights",))))
    found = forecast(world.snapshot(), change.maintenances[0].id, world.now)
    assert [(w.earliest, w.latest) for w in found.waves] == [(None, None)] * 2
    assert (found.earliest_end, found.latest_end) == (None, None)
    run = PreviewRun(world.snapshot(), change.maintenances[0], world.now, at_once=True)
    run.play_hosts([(order, [MACHINES[0], MACHINES[1]]) for order in change.orders])
    planned_again = int(run._new_id().removeprefix("preview-"))
    assert MAX_MISSED_WINDOWS < planned_again < 4 * MAX_MISSED_WINDOWS


def test_machines_come_back_in_waves_of_their_own() -> None:
    """A wave that brings machines back says so; the turn ends after it."""
    found = calendar(two_hosts(), evacuation("h2", "h1", return_machines=True, strategy=Strategy(pause_after=2)))
    assert [(w.wave, w.returns, _minutes(w.latest)) for w in found.waves] == [
        (1, False, 15),
        (2, True, 40),
        (3, False, 60),
        (4, False, 80),
        (5, True, 105),
        (6, True, 125),
    ]
    assert works(found) == [("h2", 0, 20, 0, 45), ("h1", 0, 85, 0, 130)]
    assert [w.wave for w in found.waves if "continue" in w.may_wait_for] == [3]


def test_in_place_the_machines_wait_for_the_work() -> None:
    """The work on the host takes the duration, and its machines are down for it."""
    world = World(scope("shop"), machines=[machine("shop/a", 0, host="h1"), machine("shop/b", 1, host="h2")])
    found = calendar(world, evacuation("h1", "h2", type=EventType.REBOOT, host_mode=HostMode.IN_PLACE))
    assert waves(found) == [(1, "h1", 0, 15), (2, "h2", 0, 35)]
    assert works(found) == [("h1", 0, 15, 0, 20), ("h2", 0, 35, 0, 40)]


def test_windows_and_the_bake_time_delay_later_hosts() -> None:
    """A wave that misses the window comes in the next one; an empty host needs no window."""
    world = two_hosts()
    world.save(Change(at=START, fleet_rules=NIGHTS, hosts=(Host(name="h3", listed=True),)))
    world.hosts = ("h1", "h2", "h3")
    strategy = Strategy(windows=("nights",), bake_s=900)
    found = calendar(world, evacuation("h1", "h2", "h3", strategy=strategy))
    tomorrow = 24 * 60
    assert waves(found) == [(1, "h1", 60, 60), (2, "h1", 75, 95), (3, "h2", 90, tomorrow + 60)]
    assert works(found)[2] == ("h3", 90, tomorrow + 70, 90, tomorrow + 75)
    assert found.waves[2].may_wait_for == ("approval", "bake", "notice", "window")


def test_after_the_deadline_no_host_has_a_turn() -> None:
    """The second host is dropped at the latest: it has no latest start, and no latest end."""
    found = calendar(two_hosts(), evacuation("h1", "h2", not_after=at(50)))
    assert waves(found) == [(1, "h1", 0, 15), (2, "h1", 0, 35), (3, "h2", 0, None)]
    assert works(found) == [("h1", 0, 40, 0, 45), ("h2", 0, None, 0, None)]
    assert found.latest_end == at(45)


def test_other_work_on_a_host_comes_first() -> None:
    """What another maintenance does on the host ends after the same time, but not if it failed."""
    world = two_hosts()
    ((event,), change) = world.submit_request(evacuation("h2"))
    world.start(event.id)
    world.move(event.id, "h9")
    world.tick()
    (order,) = [o for o in change.orders if o.host]
    assert world.order(order.id).state is OrderState.OPEN
    found = calendar(world, evacuation("h2"))
    assert works(found) == [("h2", 0, 5, 0, 10)]
    assert found.hosts[0].may_wait_for == ("host-busy",)
    world.take(order.id)
    world.fail(order.id)
    stuck = calendar(world, evacuation("h2", "h1"))
    assert works(stuck) == [("h2", None, None, None, None), ("h1", None, None, None, None)]
    assert (stuck.waves, stuck.earliest_end, stuck.latest_end) == ((), None, None)


def test_other_hosts_are_emptied_beside_it() -> None:
    """Another maintenance empties another host of the same scopes; its machines are not of this one."""
    world = two_hosts(machine("shop/d", 0, host="h2"))
    world.submit_request(evacuation("h1", duration_s=3_000))
    found = calendar(world, evacuation("h2"))
    assert waves(found) == [(1, "h2", 0, 15)]
    assert works(found) == [("h2", 0, 20, 0, 25)]


def test_nothing_is_known_while_the_store_is_held() -> None:
    """Nobody may take the order of an empty host, and no event starts."""
    world = two_hosts()
    world.save(Change(at=START, hosts=(Host(name="h3", listed=True),)))
    world.hosts = ("h1", "h2", "h3")
    world.save(hold_store(world.snapshot(), "", now=world.now, actor=OPERATOR))
    found = calendar(world, evacuation("h3", "h1"))
    assert works(found) == [("h3", None, None, None, None), ("h1", None, None, None, None)]


def test_machines_without_a_target_stay() -> None:
    """A host whose machines can go nowhere has no start, and says why."""
    world = two_hosts()
    world.save(Change(at=START, hosts=(Host(name="h1", listed=True),)))
    _, change = world.submit_request(evacuation("h1"))
    known = world.snapshot()
    rows = {"h1": Host(name="h1", listed=True)}
    found = forecast(replace(known, target_hosts=Hosts(rows=rows)), change.maintenances[0].id, world.now)
    assert works(found) == [("h1", None, None, None, None)]
    assert "no-target" in found.waves[0].may_wait_for


# -- the real run keeps to the preview


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_real_run_keeps_to_the_preview(data: st.DataObject) -> None:
    """Without failures and new requests, the waves are the same, and every start and end lies between the two."""
    in_place = data.draw(st.booleans())
    places = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=6))
    # In place, a host carries one update domain of a scope.
    machines = [machine(f"s{s}/m{n}", h if in_place else n % 2, host=f"h{h}") for n, (s, h) in enumerate(places)]
    world = World(*(scope(f"s{n}", enabled=data.draw(st.booleans())) for n in range(2)), machines=machines)
    world.save(Change(at=START, fleet_rules=NIGHTS))
    work_s = data.draw(st.sampled_from([0, 60, 600]))
    options: dict[str, Any] = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "earliest": st.sampled_from([at(1), at(70)]),
                "return_machines": st.just(value=not in_place),
                "strategy": st.builds(
                    Strategy,
                    bake_s=st.sampled_from([0, 900]),
                    pause_after=st.integers(0, 2),
                    windows=st.sampled_from([(), ("nights",)]),
                ),
            },
        )
    )
    kind = EventType.REBOOT if in_place else EventType.FREEZE
    mode = HostMode.IN_PLACE if in_place else HostMode.EVACUATE
    submitted = evacuation(*world.hosts, type=kind, host_mode=mode, duration_s=work_s, **options)
    _, change = world.submit_request(submitted)
    maintenance_id = change.maintenances[0].id
    found = forecast(world.snapshot(), maintenance_id, world.now)
    begun, ended = _run_for_real(world, maintenance_id, work_s, data)
    events = [e for e in world.snapshot().events.values() if e.maintenance_id == maintenance_id and not e.replaced_by]
    assert {e.wave for e in events} == {wave.wave for wave in found.waves}
    for wave in found.waves:
        mine = [e for e in events if e.wave == wave.wave]
        assert (len(mine), {e.host for e in mine}) == (wave.events, set(wave.hosts))
        for each in mine:
            _assert_between(wave.earliest, each.started, wave.latest)
    for host in found.hosts:
        _assert_between(host.earliest, begun[host.host], host.latest)
        _assert_turn_between(host, begun[host.host], ended)
    _assert_between(found.earliest_end, ended, found.latest_end)


def _assert_between(earliest: datetime | None, moment: datetime | None, latest: datetime | None) -> None:
    assert earliest is not None
    assert moment is not None
    assert latest is not None
    assert earliest <= moment <= latest


def _assert_turn_between(host: HostForecast, begun: datetime, ended: datetime) -> None:
    assert host.earliest_end is not None
    assert host.latest_end is not None
    assert host.earliest_end <= ended
    assert begun <= host.latest_end


def _run_for_real(
    world: World, maintenance_id: str, work_s: int, data: st.DataObject
) -> tuple[dict[str, datetime], datetime]:
    """Run the maintenance to its end; return when the work on each host began, and when the maintenance ended."""
    begun: dict[str, datetime] = {}
    work = timedelta(seconds=work_s)
    while (maintenance := world.snapshot().maintenances[maintenance_id]).ended is None:
        if maintenance.status is MaintenanceStatus.PAUSED:
            world.continue_maintenance(maintenance_id)
        _act(world, work, data)
        world.tick()
        known = world.snapshot()
        begun |= {o.host: o.issued for o in known.orders.values() if o.host and o.state is OrderState.OPEN}
        # To shut down machines and to start them takes no time.
        moments = [
            o.issued + (work if o.phase is Phase.NONE else timedelta())
            for o in known.orders.values()
            if o.state in AT_WORK
        ]
        moments += [m.wake_at for m in known.maintenances.values() if m.wake_at is not None]
        if min(moments, default=world.now) > world.now:
            world.now = min(moments)
    return begun, maintenance.ended


def _act(world: World, work: timedelta, data: st.DataObject) -> None:
    """Let guests approve now and then, and executors end their work in its time or earlier."""
    known = world.snapshot()
    for event in known.events.values():
        if event.status is Status.SCHEDULED and not event.approvals and data.draw(st.integers(0, 3)) == 0:
            world.approve_as_operator(event.id)
    for order in [o for o in known.orders.values() if o.state in AT_WORK]:
        if order.phase is Phase.NONE and world.now < order.issued + work and data.draw(st.booleans()):
            continue
        if order.host or order.phase is not Phase.NONE:
            world.finish(order.id)
        else:
            world.move(order.id, known.events[order.id].to_host or "spare")
