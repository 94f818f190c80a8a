"""The schedule of the demo's maintenance, without agents or listeners, on a clock that the test moves."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.model import Actor, Maintenance
from forewarn.demo.run import FLEET, demo_settings
from forewarn.demo.schedule import MAINTENANCES, DemoSchedule
from forewarn.service.clock import ManualClock
from forewarn.store import MaintenanceQuery
from forewarn.store.memory import MemoryStore

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
USER = Actor("user")
HOUR_S = 3_600


def make_demo(folder: Path) -> tuple[Service, DemoSchedule]:
    ids = count(1)
    service = Service(
        demo_settings(0, 60, folder),
        clock=ManualClock(START),
        store=MemoryStore(),
        new_id=lambda: f"{next(ids):08}-0000-0000-0000-000000000000",
    )
    service.apply_fleet_file(FLEET)
    schedule = DemoSchedule(service.control, service.store)
    service.ticker.call_periodically(schedule)
    return service, schedule


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[Service, DemoSchedule]]:
    service, schedule = make_demo(tmp_path)
    yield service, schedule
    service.close()


def enable_scopes(service: Service) -> None:
    for scope in ("shop", "db", "workers"):
        service.control.enable(scope, USER)


def maintenances(service: Service) -> list[Maintenance]:
    """Return the maintenances, oldest first."""
    return list(reversed(service.store.maintenances(MaintenanceQuery(limit=500))))


def test_a_scope_gets_maintenance_after_its_first_poll(demo: tuple[Service, DemoSchedule]) -> None:
    """Otherwise it would get no notice. Only the scope whose machine never polls does not wait."""
    service, schedule = demo
    service.ticker.advance(60)
    assert [each.description for each in maintenances(service)] == ["New power supply"]
    assert not schedule.begun.is_set()
    enable_scopes(service)
    service.ticker.advance(60)
    assert len(maintenances(service)) == len(MAINTENANCES)
    assert schedule.begun.is_set()


def test_maintenance_repeats_and_does_not_pile_up(demo: tuple[Service, DemoSchedule]) -> None:
    """Every maintenance comes again, each scope has at most one open, and old history is removed."""
    service, _ = demo
    enable_scopes(service)
    for _ in range(30):
        service.ticker.advance(HOUR_S)
        assert sum(each.ended is None for each in maintenances(service)) <= len(MAINTENANCES)
    descriptions = [each.description for each in maintenances(service)]
    for scope_maintenances in MAINTENANCES.values():
        for each in scope_maintenances:
            assert descriptions.count(each.request.description) > 1
    assert maintenances(service)[0].created > START, "the first hours are removed"
    assert len(descriptions) < 300


def test_every_demo_runs_the_same(tmp_path: Path) -> None:
    """Two demos on the same clock have the same maintenances at the same times."""
    runs = []
    for _ in range(2):
        service, _ = make_demo(tmp_path)
        enable_scopes(service)
        service.ticker.advance(6 * HOUR_S)
        runs.append([(each.id, each.created, each.ended, each.status) for each in maintenances(service)])
        service.close()
    assert len(runs[0]) > 20
    assert runs[0] == runs[1]


def test_a_removed_machine_does_not_stop_the_schedule(demo: tuple[Service, DemoSchedule]) -> None:
    """The maintenance of the removed machine is left out, and the others continue."""
    service, _ = demo
    service.control.remove_machine(("shop", "web-2"), USER)
    enable_scopes(service)
    service.ticker.advance(12 * HOUR_S)
    descriptions = {each.description for each in maintenances(service)}
    assert "Move to another host, on the owner's request" not in descriptions
    assert "Live migration from old hosts" in descriptions
