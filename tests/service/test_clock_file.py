"""The reading of the clock in a state folder: it reveals a jump to the next process, on the same boot only."""

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.model import ClockHold
from forewarn.service.clock import Reading, SystemClock
from forewarn.service.clock_file import ClockFile, boot_id, clock_path
from forewarn.service.settings import Settings
from tests.support.several_nodes import LeasedMemoryStore, ScriptedFeed

URL = "postgresql://me:secret@db/forewarn"
READING = Reading(datetime(2030, 1, 1, 12, 30, 1, 250_000, tzinfo=UTC), 1_000.125)
HOUR = timedelta(hours=1)


def test_a_reading_is_found_again_on_the_same_boot(tmp_path: Path) -> None:
    """Another boot has another boot clock; a file that names no boot is not used either."""
    path = tmp_path / "clock"
    assert ClockFile(path, "boot 1").load() is None
    assert ClockFile(path, "boot 1").save(READING)
    assert ClockFile(path, "boot 1").load() == READING
    assert ClockFile(path, "boot 2").load() is None
    assert ClockFile(path, "").save(READING)
    assert ClockFile(path, "").load() is None


def test_each_store_has_its_own_reading(tmp_path: Path) -> None:
    """A jump that one service has saved in its store is still to be noticed by a service with another store."""
    path = clock_path(URL, tmp_path)
    assert path is not None
    assert (path.parent, path.name[:6], len(path.name)) == (tmp_path, "clock-", 18)
    assert clock_path("postgresql://you:changed@db/forewarn?sslmode=require", tmp_path) == path
    assert clock_path("postgresql://me:secret@db/another", tmp_path) != path
    assert clock_path("sqlite:/srv/a.db", tmp_path) == Path("/srv/a.db.clock")
    assert clock_path("memory:", tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot"}', '{"boot_id": "boot", "boot_s": 1, "time": "x"}']
)
def test_a_damaged_file_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    """A power failure may leave anything; the next reading replaces it."""
    path = tmp_path / "clock"
    file = ClockFile(path, "boot")
    path.write_text(text)
    path.chmod(0o600)
    assert file.load() is None
    assert "is damaged: a jump of the clock before this start goes unnoticed" in caplog.text
    file.save(READING)
    assert file.load() == READING


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node works on; only the protection across a restart is missing."""
    file = ClockFile(tmp_path / "gone" / "clock", "boot")
    assert [file.save(READING) for _ in range(3)] == [False] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a jump of the clock while no node runs may go unnoticed" in caplog.text


class Memory:
    """A saved reading that counts its writes."""

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading
        self.writes = 0
        self.full = False

    def load(self) -> Reading | None:
        return self.reading

    def save(self, reading: Reading) -> bool:
        self.writes += 1
        if not self.full:
            self.reading = reading
        return not self.full


class Machine:
    """A machine with a wall clock that can be set, and a boot clock that cannot."""

    def __init__(self) -> None:
        self.wall, self.boot_s = READING

    def pass_by(self, seconds: float, *, set_by: float = 0.0) -> None:
        self.boot_s += seconds
        self.wall += timedelta(seconds=seconds + set_by)

    def clock(self, saved: Memory) -> SystemClock:
        return SystemClock(lambda: self.wall, lambda: self.boot_s, saved)


def test_a_reading_is_written_only_when_the_clock_has_moved() -> None:
    """Days of decisions cost one write; a small step of the clock costs another."""
    machine, saved = Machine(), Memory()
    clock = machine.clock(saved)
    for _ in range(100):
        clock.save_reading()
        machine.pass_by(3_600)
        clock.now()
    assert saved.writes == 1
    for by in (-2, 2, -3_600):
        machine.pass_by(1, set_by=by)
        clock.now()
        clock.save_reading()
    assert saved.writes == 4
    assert machine.clock(saved).jump() is None


def test_a_write_that_failed_is_repeated() -> None:
    """The reading counts as saved only when it is."""
    machine, saved = Machine(), Memory()
    saved.full = True
    clock = machine.clock(saved)
    clock.save_reading()
    saved.full = False
    clock.save_reading()
    clock.save_reading()
    assert (saved.writes, saved.reading) == (2, READING)


def test_the_next_process_notices_a_jump() -> None:
    """The jump is measured from the saved reading."""
    machine, saved = Machine(), Memory()
    machine.clock(saved).save_reading()
    machine.pass_by(60, set_by=31)
    assert machine.clock(saved).jump() == (READING.at + timedelta(seconds=60), 31.0, READING.at, READING.boot_s)
    machine.pass_by(60, set_by=-2)
    assert machine.clock(saved).jump() is None


def test_a_jump_that_is_not_acknowledged_is_left_for_the_next_process() -> None:
    """A process that dies before it has saved the hold must not hide the jump."""
    machine, saved = Machine(), Memory()
    clock = machine.clock(saved)
    clock.save_reading()
    machine.pass_by(1, set_by=3_600)
    clock.now()
    clock.save_reading()
    assert saved.reading == READING
    jump = machine.clock(saved).jump()
    assert jump is not None
    assert jump == clock.jump()
    clock.note_jump(jump)
    clock.save_reading()
    assert machine.clock(saved).jump() is None


def test_a_service_holds_a_jump_from_before_its_start(tmp_path: Path) -> None:
    """A service on SQLite keeps a reading beside its file, though it decided nothing; a clock that gained an hour is held."""
    settings = Settings(store=f"sqlite:{tmp_path / 'a.db'}", state_dir=tmp_path / "state", executor="external")
    Service(settings).close()
    set_back(tmp_path / "a.db.clock")
    service = Service(settings)
    service.ticker.cycle()
    hold = service.control.clock_hold()
    service.close()
    assert hold is not None
    assert 3_590 < hold.jumped_s < 3_610


@pytest.mark.parametrize("role", ["all", "guest"])
def test_a_node_holds_a_jump_of_the_databases_clock_from_before_its_start(tmp_path: Path, role: str) -> None:
    """A node keeps the reading in its state folder; a node for guests starts nothing, and keeps none."""
    settings = Settings(store=URL, state_dir=tmp_path, executor="external", role=role)
    path = clock_path(URL, tmp_path)
    assert path is not None

    def clock_hold_after_start() -> ClockHold | None:
        store = LeasedMemoryStore()
        store.feed = ScriptedFeed  # type: ignore[method-assign]
        service = Service(settings, store=store)
        service.ticker.cycle()
        service.close()
        return service.control.clock_hold()

    assert clock_hold_after_start() is None
    assert path.exists() == (role == "all")
    if role == "all":
        set_back(path)
    assert (clock_hold_after_start() is not None) == (role == "all")


def set_back(path: Path) -> None:
    """Change the saved reading as if the clock had gained an hour since."""
    known = json.loads(path.read_text())
    assert known["boot_id"] == boot_id()
    path.write_text(json.dumps({**known, "time": (datetime.fromisoformat(known["time"]) - HOUR).isoformat()}))


def test_a_service_in_memory_keeps_no_reading(tmp_path: Path) -> None:
    """Nothing outlives it that could start early; a clock that is not the system's is not compared either."""
    for settings in (
        Settings(store="memory:", state_dir=tmp_path / "state", executor="external"),
        Settings(
            store=f"sqlite:{tmp_path / 'a.db'}", state_dir=tmp_path / "state", executor="external", clock="manual"
        ),
    ):
        service = Service(settings)
        service.ticker.cycle()
        service.close()
    assert not list(tmp_path.rglob("*clock*"))
