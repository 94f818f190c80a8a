"""The demo's parts by themselves: what is played, and what its helpers hang on."""

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings
from forewarn.core.model import Actor, Maintenance
from forewarn.demo.director import ACTS, Director
from forewarn.demo.guests import SILENT, UNWILLING, YOURS
from forewarn.demo.lifeline import hold, remove, wait_for_end
from forewarn.demo.run import FLEET, rate_of, settings_of
from forewarn.service.clock import ManualClock
from forewarn.store import MaintenanceQuery
from forewarn.store.memory import MemoryStore

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOMEBODY = Actor("somebody")
HOUR_S = 3_600


def playing(folder: Path) -> tuple[Service, Director]:
    """A demo without guests or listeners, on a clock that a test moves."""
    ids = count(1)
    service = Service(
        settings_of(0, 60, folder),
        clock=ManualClock(START),
        store=MemoryStore(),
        new_id=lambda: f"{next(ids):08}-0000-0000-0000-000000000000",
    )
    service.apply_fleet_file(FLEET)
    director = Director(service.control, service.store)
    service.ticker.add_chore(director)
    return service, director


@pytest.fixture
def played(tmp_path: Path) -> Iterator[tuple[Service, Director]]:
    service, director = playing(tmp_path)
    yield service, director
    service.close()


def enable(service: Service) -> None:
    for scope in ("shop", "db", "workers"):
        service.control.enable(scope, SOMEBODY)


def maintenances(service: Service) -> list[Maintenance]:
    return list(reversed(service.store.maintenances(MaintenanceQuery(limit=500))))


def test_it_waits_for_the_guests(played: tuple[Service, Director]) -> None:
    """A scope nobody has asked for gets no maintenance, or it would be without notice; the one that never asks does."""
    service, director = played
    service.ticker.advance(60)
    assert [each.description for each in maintenances(service)] == ["New power supply"]
    assert not director.begun.is_set()
    enable(service)
    service.ticker.advance(60)
    assert len(maintenances(service)) == len(ACTS)
    assert director.begun.is_set()


def test_it_never_ends_and_never_piles_up(played: tuple[Service, Director]) -> None:
    """Hour after hour every act comes again, with at most one maintenance open per lane, and old history is dropped."""
    service, _ = played
    enable(service)
    for _ in range(30):
        service.ticker.advance(HOUR_S)
        assert sum(each.ended is None for each in maintenances(service)) <= len(ACTS)
    told = [each.description for each in maintenances(service)]
    for acts in ACTS.values():
        for act in acts:
            assert told.count(act.request.description) > 1
    assert maintenances(service)[0].created > START  # the first hours are forgotten
    assert len(told) < 300


def test_it_plays_the_same_every_time(tmp_path: Path) -> None:
    """What is asked for, and when, is a table: two demos on the same clock do the same."""
    seen = []
    for _ in range(2):
        service, _ = playing(tmp_path)
        enable(service)
        service.ticker.advance(6 * HOUR_S)
        seen.append([(each.id, each.created, each.ended, each.status) for each in maintenances(service)])
        service.close()
    assert len(seen[0]) > 20
    assert seen[0] == seen[1]


def test_a_changed_fleet_does_not_stop_it(played: tuple[Service, Director]) -> None:
    """Somebody removes a machine that an act is aimed at: that act is left out, the others go on."""
    service, _ = played
    service.control.remove_machine(("shop", "web-2"), SOMEBODY)
    enable(service)
    service.ticker.advance(12 * HOUR_S)
    told = {each.description for each in maintenances(service)}
    assert "Its owner moves it to another host" not in told
    assert "Live migration off ageing hosts" in told


def test_the_fleet_has_the_machines_that_are_told_of(played: tuple[Service, Director]) -> None:
    """Yours has 127.0.0.1; every machine has one loopback address; four scopes, several hosts."""
    machines = played[0].store.inventory().machines
    assert len(machines) == 12
    assert machines[YOURS].addresses == ("127.0.0.1",)
    assert {SILENT, UNWILLING} <= set(machines)
    assert len({machine.host for machine in machines.values()}) == 4
    assert all(machine.addresses[0].startswith("127.0.0.") for machine in machines.values())


@pytest.mark.parametrize("speed", ["0x", "601x", "nan", "-3x", "", "x"])
def test_a_speed_beyond_all_use_is_refused(speed: str) -> None:
    """From real time to six hundred times that; `60` will do for `60x`."""
    assert (rate_of("1x"), rate_of("60"), rate_of("600x")) == (1, 60, 600)
    with pytest.raises(InvalidSettings, match="is no rate"):
        rate_of(speed)


def test_the_lifeline_tells_of_the_end(tmp_path: Path) -> None:
    """Whoever waits on it goes on when it is let go, also if it was let go before, or is not there any more."""
    line = tmp_path / "lifeline"
    held = hold(line)
    waiting = threading.Thread(target=wait_for_end, args=(line,), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(held)
    waiting.join(10)
    assert not waiting.is_alive()
    wait_for_end(line)
    line.unlink()
    wait_for_end(line)


def test_the_lifeline_can_be_waited_on_for_a_while(tmp_path: Path) -> None:
    """A guest's pretended work is over after its time, the demo still running."""
    held = hold(tmp_path / "lifeline")
    wait_for_end(tmp_path / "lifeline", 0.01)
    os.close(held)


def test_a_folder_is_removed_however_full(tmp_path: Path) -> None:
    """And one that is gone already is no trouble."""
    (tmp_path / "one" / "two").mkdir(parents=True)
    remove(tmp_path / "one")
    assert not (tmp_path / "one").exists()
    remove(tmp_path / "one")
