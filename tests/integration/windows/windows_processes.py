"""Programs of steps on Windows: none runs unrecorded, and all that a program started ends with it."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

assert sys.platform == "win32"

from forewarn.guest.clock import Time
from forewarn.guest.errors import OutOfTime, StepFailed
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.processes import (
    alive,
    children,
    command_line,
    discard,
    end_group,
    start_held,
    start_ticks,
    users_of,
)
from forewarn.guest.steps import Run, await_orphan
from forewarn.guest.system import system
from tests.support.fake_endpoint import E1, event
from tests.support.waiting import until

CMD = "C:\\windows\\system32\\cmd.exe"
# A program that starts another one and does not end.
HANGS = (CMD, "/c", "ping -n 600 127.0.0.1 >NUL")
# Starts HANGS as an agent does, prints its pid and dies; with `release` the program runs by then.
DYING_AGENT = """
import os, sys, tempfile
sys.path.insert(0, sys.argv[1])
from forewarn.guest.processes import children, release, start_held
with tempfile.TemporaryFile() as event:
    child = start_held(sys.argv[3:], event)
if sys.argv[2] == "release":
    release(child)
    while not children(child.pid):
        pass
print(child.pid, flush=True)
os._exit(9)
"""


def new_run(share_s: float = 60.0, **more: object) -> Run:
    return Run(step="one", phase="prepare", event=event(), share_s=share_s, time=Time(), **more)  # type: ignore[arg-type]


def dying_agent(what: str) -> int:
    """Run an agent that dies, and return the pid of the program it started."""
    source = str(Path(__file__).parents[3] / "src")
    with tempfile.TemporaryFile() as printed:  # a pipe would stay open as long as the program
        code = subprocess.call(
            [sys.executable, "-c", DYING_AGENT, source, what, *HANGS], stdin=subprocess.DEVNULL, stdout=printed
        )
        printed.seek(0)
        assert code == 9, printed.read()
        return int(printed.read())


def test_a_command_gets_the_event_on_stdin_and_in_variables(tmp_path: Path) -> None:
    """JSON in the newest version's format, and FOREWARN_* variables."""
    program = "import os, sys; open(sys.argv[1], 'w').write(os.environ['FOREWARN_EVENT_ID'] + sys.stdin.read())"
    new_run().command([sys.executable, "-c", program, str(tmp_path / "seen")])
    seen = (tmp_path / "seen").read_text()
    assert seen[: len(E1)] == E1
    assert json.loads(seen[len(E1) :]) == event()


def test_a_failed_command_gives_its_exit_code() -> None:
    """So does a program that is not there."""
    with pytest.raises(StepFailed, match=r"cmd\.exe ended with 3"):
        new_run().command([CMD, "/c", "exit 3"])
    with pytest.raises(StepFailed, match=r"nowhere\.exe cannot be run"):
        new_run().command(["C:\\nowhere.exe"])


def test_a_program_does_not_run_before_it_is_recorded(tmp_path: Path) -> None:
    """If it cannot be recorded, it never runs."""
    pids = []

    def record(pid: int, ticks: int) -> None:
        assert ticks == start_ticks(pid)
        pids.append(pid)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        new_run(record_child=record).command([CMD, "/c", f"echo ran>{tmp_path / 'ran'}"])
    assert not alive(pids[0])
    assert not (tmp_path / "ran").exists()


def test_all_that_a_program_started_ends_with_it() -> None:
    """Its time is over as soon as it has started another program."""
    pids: list[int] = []
    seen: list[int] = []

    def record(pid: int, _: int) -> None:
        pids.append(pid)

    class Clock(Time):
        def monotonic(self) -> float:
            return time.monotonic() + (1_000 if seen else 0)

    def poll() -> None:
        seen.extend(pid for pid, _ in children(pids[0]))

    run = Run(step="one", phase="prepare", event=event(), share_s=900.0, time=Clock(), poll=poll, record_child=record)
    with pytest.raises(OutOfTime, match=r"cmd\.exe did not end in time and was ended"):
        run.command(HANGS)
    assert seen
    until(lambda: not any(alive(pid) for pid in (*pids, *seen)))


def test_a_program_of_a_dead_agent_that_was_not_recorded_is_gone() -> None:
    """Windows ends it with the agent."""
    pid = dying_agent("hold")
    until(lambda: not alive(pid))


def test_a_program_of_a_dead_agent_is_awaited_and_ended() -> None:
    """The next agent waits for it, and ends it with all that it started when the time is over."""
    pid = dying_agent("release")
    started = [child for child, _ in children(pid)]
    assert started
    with pytest.raises(OutOfTime):
        await_orphan((pid, start_ticks(pid)), new_run(0.2), Time())
    until(lambda: not any(alive(each) for each in (pid, *started)))
    end_group(pid, Time())  # it is harmless when there is nothing to end


def test_a_process_is_known_by_its_program_and_user() -> None:
    """A process that has ended has no ticks."""
    with tempfile.TemporaryFile() as file:
        child = start_held(HANGS, file)
    assert "cmd.exe" in command_line(child.pid).lower()
    assert users_of(child.pid) == (system.trusted_users()[-1],)
    discard(child)
    assert start_ticks(child.pid) == 0


def test_the_process_handler_stops_and_starts_a_program(tmp_path: Path) -> None:
    """Gone means gone, and the agent writes the pid file of a program that writes none."""
    handler = HANDLERS["process"]
    table = {"pid_file": str(tmp_path / "pid"), "start": list(HANGS), "foreground": True, "up_for": "0", "match": "cmd"}
    spec = handler.parse(table, "here")
    assert handler.check(spec) == []
    handler.recover(spec, new_run())
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    assert handler.verify(spec, new_run()) is False
    handler.recover(spec, new_run())
    assert int((tmp_path / "pid").read_text()) == pid
    handler.prepare(spec, new_run())
    assert handler.verify(spec, new_run()) is True
    assert not alive(pid)
