"""Clocks of real time: held against the boot clock, kept for somebody else, and what a jump does to a service."""

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.model import Actor, EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Status, Targets
from forewarn.endpoint.documents import Documents
from forewarn.service.clock import KEPT_FOR_S, MAX_READING_S, MAX_READINGS, KeptClock, SystemClock
from forewarn.service.settings import Settings
from forewarn.store import AuditQuery, Store

OPERATOR = Actor("operator")


class Times:
    """A wall clock that can be set, and a boot clock that cannot."""

    def __init__(self) -> None:
        self.wall = datetime(2030, 1, 1, tzinfo=UTC)
        self.boot = 1_000.0

    def pass_by(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.boot += seconds

    def set_by(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)

    def clock(self) -> SystemClock:
        return SystemClock(lambda: self.wall, lambda: self.boot)


@pytest.mark.parametrize("steps", [(29.0,), (20.0, 20.0), (-3_600.0,), (-20.0, 29.0)])
def test_small_steps_and_steps_back_are_no_jump(steps: tuple[float, ...]) -> None:
    """Whoever mends a clock a little at a time, or takes it back, starts nothing early by more than that little."""
    times = Times()
    clock = times.clock()
    for step in steps:
        times.pass_by(60)
        times.set_by(step)
        assert clock.now() == times.wall
    assert clock.jump() is None


def test_a_clock_set_back_and_forth_has_jumped() -> None:
    """What was promised while it was behind would begin an hour early when it is put right."""
    times = Times()
    clock = times.clock()
    times.set_by(-3_600)
    clock.now()
    times.pass_by(60)
    trusted = times.wall
    times.set_by(3_600)
    clock.now()
    assert clock.jump() == (trusted, 3_600.0, trusted - timedelta(seconds=60))


def test_a_jump_says_what_was_last_trusted() -> None:
    """The moment the clock would show had nobody set it; a second jump before anybody took note leaves that moment."""
    times = Times()
    clock = times.clock()
    times.pass_by(600)
    trusted = times.wall
    times.set_by(3_600)
    clock.now()
    first = clock.jump()
    assert first == (trusted, 3_600.0, trusted - timedelta(minutes=10))
    times.set_by(60)
    clock.now()
    second = clock.jump()
    assert second == (trusted, 3_660.0, trusted - timedelta(minutes=10))
    clock.note_jump(first)
    assert clock.jump() == second
    clock.note_jump(second)
    times.pass_by(3_600)
    clock.now()
    assert clock.jump() is None


def test_a_kept_clock_is_carried_on_and_never_ahead_of_its_keeper() -> None:
    """Between readings the boot clock moves it; a reading counts from when it came, however long it was on its way."""
    times = Times()
    clock = KeptClock(lambda: times.wall, lambda: times.boot, monotonic=lambda: times.boot)
    clock.keep(times.wall, times.boot - 2.0)
    assert clock.now() - times.wall == timedelta(seconds=2)
    clock = KeptClock(lambda: times.wall, lambda: times.boot)
    clock.keep(times.wall)
    begun = times.wall
    times.boot += 1.5
    assert clock.now() == clock.glance() == begun + timedelta(seconds=1.5)


def test_a_reading_that_came_late_does_not_turn_a_kept_clock_back() -> None:
    """It stands still for the moment that the reading was on its way for longer."""
    times = Times()
    clock = KeptClock(lambda: times.wall, lambda: times.boot)
    clock.keep(times.wall)
    before = clock.now()
    clock.keep(before - timedelta(seconds=0.9))
    assert clock.now() == before
    times.boot += 0.8
    assert clock.glance() == before
    times.boot += 0.2
    assert clock.glance() > before


def test_a_kept_clock_is_set_back_with_its_keeper() -> None:
    """Two nodes have one time, whichever was there before: what one promises by it, the other must not start by a later one."""
    times = Times()
    old, young = (KeptClock(lambda: times.wall, lambda: times.boot) for _ in range(2))
    old.keep(times.wall)
    old.now()
    times.set_by(-3_600)
    for clock in (old, young):
        clock.keep(times.wall)
    assert old.now() == young.now() == times.wall


def test_a_kept_clock_asks_again_when_its_reading_is_old() -> None:
    """A decision never goes by an old reading, and fails where the keeper cannot be asked; showing the time never does."""
    times = Times()
    asked = []

    def read() -> datetime:
        asked.append(times.wall)
        if len(asked) > 2:
            raise StoreUnavailable("away")
        return times.wall

    clock = KeptClock(read, lambda: times.boot)
    clock.now()
    times.pass_by(KEPT_FOR_S)
    clock.now()
    assert len(asked) == 1
    times.pass_by(1)
    assert clock.now() == times.wall
    assert len(asked) == 2
    times.pass_by(KEPT_FOR_S + 1)
    assert clock.glance() == times.wall
    with pytest.raises(StoreUnavailable):
        clock.now()


def test_a_reading_that_took_long_is_read_again() -> None:
    """A process that was stopped while it asked for the time would else go by the time before, and tell of an event too late."""
    times = Times()
    waits = [MAX_READING_S + 60.0, 0.0]

    def read() -> datetime:
        reading = times.wall
        times.pass_by(waits.pop(0))
        return reading

    clock = KeptClock(read, lambda: times.boot)
    assert clock.now() == times.wall
    waits += [MAX_READING_S + 1] * MAX_READINGS
    times.pass_by(KEPT_FOR_S + 1)
    with pytest.raises(StoreUnavailable, match="took longer than 3 s"):
        clock.now()


def test_a_keeper_that_jumps_is_noticed() -> None:
    """A database whose clock is set ahead is held against this machine's boot clock."""
    times = Times()
    clock = KeptClock(lambda: times.wall, lambda: times.boot)
    clock.keep(times.wall)
    times.pass_by(1)
    trusted = times.wall
    times.set_by(31)
    clock.keep(times.wall)
    assert clock.jump() == (trusted, 31.0, trusted - timedelta(seconds=1))


def test_no_event_starts_early_because_the_clock_was_set(store: Store) -> None:
    """Set two hours ahead, the service starts nothing by time alone, also after a restart, until somebody confirms."""
    times = Times()
    settings = Settings(store="memory:", executor="external")
    service = Service(settings, clock=times.clock(), store=store, node="here")
    fleet = Fleet(
        {"shop": Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)},
        {("shop", "web-0"): Machine(scope="shop", name="web-0")},
    )
    service.control.apply_fleet(fleet, OPERATOR)
    service.control.enable("shop", Actor("guest"))
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("shop", "web-0"),)))
    maintenance_id = service.control.submit(request, OPERATOR)
    (event,) = service.control.maintenance(maintenance_id)[1]
    times.pass_by(60)
    service.ticker.cycle_until_idle()
    times.set_by(7_200)

    service.ticker.cycle_until_idle()
    assert service.control.event(event.id)[0].status is Status.SCHEDULED
    assert "clock" in [reason.code for reason in service.control.why(event.id)]
    assert "jumped forward by 7200 s" in service.health.warnings()["clock"]
    facts = service.health.facts(Documents(store, service.clock))
    assert facts.clock_held
    assert facts.overdue_s == 7_260 - 900

    service = Service(settings, clock=times.clock(), store=store, node="here")
    service.ticker.cycle_until_idle()
    assert service.control.event(event.id)[0].status is Status.SCHEDULED

    service.control.confirm_clock(OPERATOR)
    service.ticker.cycle_until_idle()
    assert service.control.event(event.id)[0].status is Status.STARTED
    assert not service.health.warnings()
    facts = service.health.facts(Documents(store, service.clock))
    assert (facts.clock_held, facts.overdue_s, facts.backlog.started if facts.backlog else 0) == (False, 0, 1)
    told = [entry.action for entry in store.audit(AuditQuery()) if "clock" in entry.action]
    assert told == ["clock confirmed", "clock jumped forward"]
