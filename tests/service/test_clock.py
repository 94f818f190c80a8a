"""Clocks: compared with the boot clock, kept by a database, manual or scaled; and what a jump does to a service."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import Invalid, Refused, StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.model import Actor, EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Status, Targets
from forewarn.endpoint.documents import Documents
from forewarn.service.clock import (
    KEPT_FOR_S,
    MAX_READING_S,
    MAX_READINGS,
    KeptClock,
    ManualClock,
    ScaledClock,
    SystemClock,
    clock_for,
)
from forewarn.service.settings import Settings
from forewarn.store import AuditQuery, Store
from forewarn.testing.stories import START

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
    """A clock that is corrected in small steps, or set back, starts nothing early by more than a small step."""
    times = Times()
    clock = times.clock()
    for step in steps:
        times.pass_by(60)
        times.set_by(step)
        assert clock.now() == times.wall
    assert clock.jump() is None


def test_a_clock_set_back_and_forth_has_jumped() -> None:
    """Events planned while it was behind would start an hour early when it is corrected."""
    times = Times()
    clock = times.clock()
    times.set_by(-3_600)
    clock.now()
    times.pass_by(60)
    trusted = times.wall
    times.set_by(3_600)
    clock.now()
    assert clock.jump() == (trusted, 3_600.0, trusted - timedelta(seconds=60), times.boot - 60)


def test_a_jump_has_the_last_trusted_time() -> None:
    """That is the time the clock would show had it not been set; a second jump before the first is noted keeps it."""
    times = Times()
    clock = times.clock()
    times.pass_by(600)
    trusted = times.wall
    times.set_by(3_600)
    clock.now()
    first = clock.jump()
    assert first == (trusted, 3_600.0, trusted - timedelta(minutes=10), times.boot - 600)
    times.set_by(60)
    clock.now()
    second = clock.jump()
    assert second == (trusted, 3_660.0, trusted - timedelta(minutes=10), times.boot - 600)
    assert clock.seconds_since(second) == 600
    times.pass_by(5)
    assert clock.seconds_since(second) == 605
    clock.note_jump(first)
    assert clock.jump() == second
    clock.note_jump(second)
    times.pass_by(3_600)
    clock.now()
    assert clock.jump() is None


def test_a_kept_clock_continues_and_is_never_ahead_of_the_database() -> None:
    """Between readings the boot clock moves it; a reading counts from its arrival."""
    times = Times()
    clock = KeptClock(lambda: times.wall, lambda: times.boot, monotonic=lambda: times.boot)
    clock.keep(times.wall, times.boot - 2.0)
    assert clock.now() - times.wall == timedelta(seconds=2)
    clock = KeptClock(lambda: times.wall, lambda: times.boot)
    clock.keep(times.wall)
    start = times.wall
    times.boot += 1.5
    assert clock.now() == clock.display_time() == start + timedelta(seconds=1.5)


def test_a_late_reading_does_not_set_a_kept_clock_back() -> None:
    """The clock stands still for as long as the reading was late."""
    times = Times()
    clock = KeptClock(lambda: times.wall, lambda: times.boot)
    clock.keep(times.wall)
    before = clock.now()
    clock.keep(before - timedelta(seconds=0.9))
    assert clock.now() == before
    times.boot += 0.8
    assert clock.display_time() == before
    times.boot += 0.2
    assert clock.display_time() > before


def test_a_kept_clock_is_set_back_with_the_database() -> None:
    """An old and a new node have the same time: one must not start early what the other published."""
    times = Times()
    old, young = (KeptClock(lambda: times.wall, lambda: times.boot) for _ in range(2))
    old.keep(times.wall)
    old.now()
    times.set_by(-3_600)
    for clock in (old, young):
        clock.keep(times.wall)
    assert old.now() == young.now() == times.wall


def test_a_kept_clock_reads_again_when_its_reading_is_old() -> None:
    """A decision never uses an old reading, and fails if the database is away; showing the time never fails."""
    times = Times()
    readings = []

    def read() -> datetime:
        readings.append(times.wall)
        if len(readings) > 2:
            raise StoreUnavailable("away")
        return times.wall

    clock = KeptClock(read, lambda: times.boot)
    clock.now()
    times.pass_by(KEPT_FOR_S)
    clock.now()
    assert len(readings) == 1
    times.pass_by(1)
    assert clock.now() == times.wall
    assert len(readings) == 2
    times.pass_by(KEPT_FOR_S + 1)
    assert clock.display_time() == times.wall
    with pytest.raises(StoreUnavailable):
        clock.now()


def test_a_reading_that_took_long_is_read_again() -> None:
    """A process that was stopped during a reading would otherwise use an old time and publish an event too late."""
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


def test_a_jump_of_the_databases_clock_is_noticed() -> None:
    """The database's clock is compared with this machine's boot clock."""
    times = Times()
    clock = KeptClock(lambda: times.wall, lambda: times.boot)
    clock.keep(times.wall)
    times.pass_by(1)
    trusted = times.wall
    times.set_by(31)
    clock.keep(times.wall)
    assert clock.jump() == (trusted, 31.0, trusted - timedelta(seconds=1), times.boot - 1)


def test_no_event_starts_early_because_the_clock_was_set(store: Store) -> None:
    """On a clock set two hours ahead nothing starts unapproved, also after a restart, until an operator confirms the clock."""
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
    actions = [entry.action for entry in store.audit(AuditQuery()) if "clock" in entry.action]
    assert actions == ["clock confirmed", "clock jumped forward"]


def test_a_scaled_clock_runs_fast_and_moves_forward_only() -> None:
    """An hour at 3600x passes in a second; moving to the past changes nothing."""
    now_s = 1_000.0
    clock = ScaledClock(START, 3_600, monotonic=lambda: now_s)
    assert clock.seconds_until(START + timedelta(hours=1)) == 1.0
    now_s += 0.25
    assert clock.now() == START + timedelta(minutes=15)
    assert clock.seconds_until(START + timedelta(hours=1)) == 0.75
    clock.move_to(START + timedelta(days=1))
    clock.move_to(START)
    assert clock.now() == START + timedelta(days=1)
    now_s += 1.0
    assert clock.now() == START + timedelta(days=1, hours=1)


def test_a_manual_clock_stands_still() -> None:
    """Time does not pass by itself, and never backwards."""
    clock = ManualClock(START)
    assert clock.seconds_until(START) == 0
    assert clock.seconds_until(START + timedelta(seconds=1)) is None
    with pytest.raises(Refused, match="never goes backwards"):
        clock.move_to(START - timedelta(seconds=1))


@pytest.mark.parametrize("text", ["", "sixty", "x", "-3x", "0x", "1e9x", "nanx", "60"])
def test_an_unknown_clock_is_refused(text: str) -> None:
    """The error says what a clock may be."""
    with pytest.raises(Invalid, match=r"60x"):
        clock_for(text)


def test_a_manual_or_scaled_clock_continues_after_a_restart(tmp_path: Path) -> None:
    """A restart does not set the clock back before a change that is already saved."""
    settings = Settings(store=f"sqlite:{tmp_path}/f.db", state_dir=tmp_path, clock="manual")
    first = Service(settings)
    first.control.apply_fleet(Fleet({"a": Scope(name="a", kind=ScopeKind.AVAILABILITY_SET)}, {}), OPERATOR)
    first.ticker.advance(5 * 86_400)
    first.control.enable("a", Actor("guest"))
    lived = first.clock.now()
    first.close()
    for clock in ("manual", "60x"):
        again = Service(replace(settings, clock=clock))
        assert again.clock.now() >= lived
        again.close()


def test_clocks_are_found_by_name() -> None:
    """`system`, `manual` and a rate."""
    assert [clock_for(text).name for text in ("system", "manual", "60x")] == ["system", "manual", "60x"]
