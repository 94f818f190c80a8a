"""Steps in real time with real programs: hanging programs, urgent events, programs that outlive the agent."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forewarn.guest import processes
from forewarn.guest.clock import Time
from forewarn.guest.errors import Interrupted, OutOfTime, StepFailed
from forewarn.guest.output import MAX_LATER_BYTES, MAX_LOGGED_BYTES, TRIM_BYTES, ProgramOutput
from forewarn.guest.processes import alive, children, start_ticks
from forewarn.guest.steps import Run, await_orphan
from forewarn.service.settings import load
from tests.support.fake_endpoint import E1, StepTime, event
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


def new_run(share_s: float = 10.0, *, clock: Time | None = None, **more: object) -> Run:
    """Return a Run whose time passes only while it pauses; hanging programs need a clock that passes by itself."""
    made = clock or StepTime()
    return Run(step="one", phase="prepare", event=event(), share_s=share_s, time=made, **more)  # type: ignore[arg-type]


def run_that_ends_once(begun: Path, clock: StepTime) -> Run:
    """Return a Run whose time is over as soon as the program has begun."""
    return new_run(clock=clock, poll=lambda: clock.move(10) if begun.exists() else None)


def test_a_command_gets_the_event_on_stdin_and_in_variables(tmp_path: Path) -> None:
    """JSON in the newest version's format, and FOREWARN_* variables."""
    new_run().command(["/bin/sh", "-c", f"cat > {tmp_path}/stdin; env | grep ^FOREWARN_ > {tmp_path}/env"])
    assert json.loads((tmp_path / "stdin").read_text()) == event()
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert variables["FOREWARN_EVENT_ID"] == E1
    assert variables["FOREWARN_EVENT_TYPE"] == "Reboot"
    assert variables["FOREWARN_RESOURCES"] == "web-0"
    assert variables["FOREWARN_PHASE"] == "prepare"
    assert variables["FOREWARN_TIME_LEFT_S"] == "10"


def outputs(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [record for record in caplog.records if record.name == "forewarn.guest.output"]
    return [(record.levelname, vars(record)["output"]) for record in records]


def test_the_output_of_a_program_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning if the program failed, and once if it writes the same again; silence is not logged."""
    caplog.set_level("INFO")
    run = new_run()
    run.command(["true"])
    run.command(["echo", "fine"])
    with pytest.raises(StepFailed):
        run.command(["/bin/sh", "-c", "printf 'a\\377b'; exit 3"])
    for _ in range(3):
        run.command(["/bin/sh", "-c", "echo unhealthy >&2; exit 1"], checked=False)
    assert outputs(caplog) == [("INFO", "fine"), ("WARNING", "a\ufffdb"), ("INFO", "unhealthy")]


def test_the_output_of_a_program_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Its end is logged, however much there was; the file is trimmed while the program runs."""
    caplog.set_level("INFO")
    # The program writes until it sees its output empty. The agent may also trim the file in the middle of a part.
    write_part = f"head -c {TRIM_BYTES + 1} /dev/zero | tr '\\0' x; sleep 0.3"
    until_empty = f"{write_part}; while [ -s /proc/$$/fd/1 ]; do {write_part}; done"
    new_run().command(["/bin/sh", "-c", f"{until_empty}; head -c 3000 /dev/zero | tr '\\0' y; echo the end"])
    ((_, logged),) = outputs(caplog)
    assert logged.endswith("x" * 1_000 + "y" * 3_000 + "the end")
    assert len(logged) <= MAX_LOGGED_BYTES


def test_reading_the_output_does_not_use_the_position_of_the_program() -> None:
    """What the program writes meanwhile moves that position, and the end of the output would be lost."""
    with contextlib.closing(ProgramOutput()) as output:
        os.write(output.fileno(), b"x" * 2 * MAX_LOGGED_BYTES)
        os.lseek(output.fileno(), 0, os.SEEK_SET)
        assert output.text() == "x" * MAX_LOGGED_BYTES
        assert os.lseek(output.fileno(), 0, os.SEEK_CUR) == 0


def test_a_program_may_open_its_output_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """Opening /dev/stderr for writing empties the file; nothing that the program writes fails."""
    caplog.set_level("INFO")
    new_run().command(["/bin/sh", "-ec", "echo one; echo two > /dev/stderr; echo three; echo four >> /dev/stdout"])
    new_run().command(["/bin/sh", "-ec", "echo five | tee /dev/stderr"])
    first, second = outputs(caplog)
    assert first == ("INFO", "two\nthree\nfour")
    assert second[1].endswith("five")


def test_a_program_that_stays_behind_may_go_on_writing(tmp_path: Path) -> None:
    """Its output is no pipe: writing neither ends nor blocks it when the agent has gone on."""
    go, done = tmp_path / "go", tmp_path / "done"
    behind = f"(while [ ! -e {go} ]; do sleep 0.02; done; echo more; touch {done}) &"
    new_run().command(["/bin/sh", "-c", behind])
    go.touch()
    until(done.exists)


def test_what_stays_behind_can_write_only_so_much(tmp_path: Path) -> None:
    """The kernel limits the output of something that a program left running."""
    go, code = tmp_path / "go", tmp_path / "code"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    part = f"head -c {MAX_LATER_BYTES - 1_000} /dev/zero"
    write = f"{part} && {part} 2> /dev/null; echo $? > {code}.new; mv {code}.new {code}"
    new_run().command(["/bin/sh", "-c", f"({wait}; {write}) &"])
    go.touch()
    until(code.exists)
    assert code.read_text() == "1\n"


def test_a_step_may_call_forewarn_itself() -> None:
    """The step's variables are not settings of the service."""
    load({"store": "memory:"}, {**new_run().variables(), "FOREWARN_AGENT_CONFIG": "/etc/forewarn/agent.toml"})


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["/bin/sh", "-c", "exit 3", "hunter2"], "sh ended with 3"),
        (["/bin/sh", "-c", "kill -9 $$"], "sh died of signal 9"),
        (["/nowhere/program"], "program cannot be run"),
        (["/etc/passwd"], "passwd cannot be run"),
    ],
)
def test_the_reason_of_a_failed_command(argv: list[str], reason: str) -> None:
    """The reason does not contain arguments, which may be secrets."""
    with pytest.raises(StepFailed) as caught:
        new_run().command(argv)
    assert str(caught.value) == reason


def test_a_command_need_not_read_its_stdin() -> None:
    """A closed pipe does not fail the step."""
    assert new_run().command(["true"]) == 0


def test_a_large_event_does_not_block_the_agent(tmp_path: Path) -> None:
    """The time-out holds for a program that reads late or never; FOREWARN_RESOURCES is cut after a name."""
    names = [f"machine-{number:05}" for number in range(20_000)]
    large = Run(step="one", phase="prepare", event=event(Resources=names), share_s=0.5, time=Time())
    began_s = time.monotonic()
    with pytest.raises(OutOfTime):
        large.command(["sleep", "600"])
    assert time.monotonic() - began_s < PATIENCE_S
    again = Run(step="one", phase="prepare", event=event(Resources=names), share_s=10, time=StepTime())
    again.command(["/bin/sh", "-c", f'sleep 0.1; cat > {tmp_path}/stdin; echo "$FOREWARN_RESOURCES" > {tmp_path}/env'])
    assert json.loads((tmp_path / "stdin").read_text())["Resources"] == names
    shown = (tmp_path / "env").read_text().split()
    assert 2_000 < len(shown) < 2_400
    assert shown == names[: len(shown)]


def test_a_hanging_step_is_ended_with_its_children(tmp_path: Path) -> None:
    """At the end of its share it gets SIGTERM, then SIGKILL."""
    shell = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; while :; do sleep 0.1; done"
    with pytest.raises(OutOfTime, match="sh did not end in time and was ended"):
        run_that_ends_once(tmp_path / "pid", StepTime()).command(["/bin/sh", "-c", shell])
    until(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_a_program_that_no_event_needs_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is ended with its children as at the end of its time, and has not failed; a step that is to finish goes on."""
    caplog.set_level("INFO")
    begun, go = tmp_path / "begun", tmp_path / "go"
    shell = f"echo draining; sleep 600 & echo $! > {begun}.new; mv {begun}.new {begun}; wait"
    with pytest.raises(Interrupted, match="no event needs it any more"):
        new_run(needed=lambda: not begun.exists()).command(["/bin/sh", "-c", shell])
    assert outputs(caplog) == [("INFO", "draining")]
    until(lambda: not alive(int(begun.read_text())))
    assert outputs(caplog) == [("INFO", "draining")]
    waits = f"while [ ! -e {go} ]; do sleep 0.02; done; exit 7"
    finishing = new_run(needed=lambda: False, finish=True, poll=go.touch)
    assert finishing.command(["/bin/sh", "-c", waits], checked=False) == 7
    finishing.pause(0.01)


def test_a_wait_that_no_event_needs_ends_at_once() -> None:
    """No condition is checked after the poll that showed it."""
    checks = iter(range(10))
    polls = iter([True, True, False])
    run = new_run(needed=lambda: next(polls))
    with pytest.raises(Interrupted):
        run.require(lambda: (next(checks) == 9, "not yet"), 0.01)
    assert next(checks) == 3


def test_children_of_a_program_get_the_same_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that needs a moment to end is not killed when the program itself ends."""
    monkeypatch.setattr(processes, "GRACE_S", PATIENCE_S)
    child = f"trap 'sleep 0.1; touch {tmp_path}/tidy; exit' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    clock = StepTime()
    with pytest.raises(OutOfTime):
        run_that_ends_once(tmp_path / "up", clock).command(
            ["/bin/sh", "-c", '/bin/sh -c "$1" & exec sleep 600', "sh", child]
        )
    assert (tmp_path / "tidy").exists()
    assert clock.monotonic() < 10 + PATIENCE_S


def test_a_more_urgent_event_shortens_the_current_step() -> None:
    """The endpoint is polled while a program runs, and a new limit applies at once."""
    limits: list[float] = []
    run = new_run(
        share_s=600, clock=Time(), limit_s=lambda: limits[0] if limits else None, poll=lambda: limits.append(0.0)
    )
    with pytest.raises(OutOfTime):
        run.command(["sleep", "600"])
    assert limits == [0.0]


def test_a_program_does_not_run_before_its_pid_is_recorded(tmp_path: Path) -> None:
    """If the agent dies before that, the program ends by itself and has done nothing."""
    program = (
        "import os, signal; from forewarn.guest.clock import Time; from forewarn.guest.steps import Run\n"
        "run = Run(step='s', phase='prepare', event={}, share_s=9, time=Time(),\n"
        "          record_child=lambda pid, ticks: (print(pid, flush=True), os.kill(os.getpid(), signal.SIGKILL)))\n"
        f"run.command(['touch', '{tmp_path}/done'])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    until(lambda: not alive(int(ended.stdout)))
    assert not (tmp_path / "done").exists()


def test_a_program_that_outlives_the_agent_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says so. It is ended when its time is over; another process with the same pid is left alone."""
    monkeypatch.setattr(processes, "GRACE_S", PATIENCE_S)
    caplog.set_level("INFO")
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    with subprocess.Popen(["/bin/sh", "-c", waits], start_new_session=True) as soon_over:
        glances: list[None] = []

        def glance() -> None:
            glances.append(None)
            if len(glances) == 3:
                (tmp_path / "go").touch()

        await_orphan((soon_over.pid, start_ticks(soon_over.pid)), new_run(PATIENCE_S, poll=glance), Time())
        assert len(glances) >= 3
        assert soon_over.wait() == 0
        assert caplog.messages == [f"prepare 'one' waits for process {soon_over.pid}, which an earlier agent started"]
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as hanging:
        with pytest.raises(OutOfTime):
            await_orphan((hanging.pid, start_ticks(hanging.pid)), new_run(share_s=0.2), Time())
        assert hanging.wait(PATIENCE_S) == -signal.SIGTERM
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as unneeded:
        with pytest.raises(Interrupted):
            await_orphan((unneeded.pid, start_ticks(unneeded.pid)), new_run(needed=lambda: False), Time())
        assert unneeded.wait(PATIENCE_S) == -signal.SIGTERM
    await_orphan((os.getpid(), start_ticks(os.getpid()) + 1), new_run(share_s=0.1), Time())
    await_orphan((0, 0), new_run(share_s=0.1), Time())
    assert len(caplog.messages) == 3


def test_wait_until_checks_until_the_condition_holds() -> None:
    """It returns what was last seen when the time is over; one action gets no more time than is left."""
    looks = iter([False, False, True])
    assert new_run().wait_until(lambda: (next(looks), "not yet"), 0.01) == ""
    assert next(looks, None) is None
    assert new_run(share_s=0.8).wait_until(lambda: (None, "not yet"), 0.02) == "not yet"
    assert 0 < new_run(share_s=1).time_for(5.0) <= 1
    assert new_run(share_s=10).time_for(5.0) == 5.0
    with pytest.raises(OutOfTime):
        new_run(share_s=0).time_for(5.0)


def test_wait_until_healthy(tmp_path: Path) -> None:
    """Health is checked until it passes; without `[health]` there is nothing to wait for."""
    new_run(share_s=0.2).wait_until_healthy()
    green = tmp_path / "green"
    slow = ["/bin/sh", "-c", f"[ -e {green} ] || {{ touch {green}; exit 1; }}"]
    new_run(health=slow).wait_until_healthy()
    with pytest.raises(OutOfTime, match="the machine is not healthy, as false says"):
        new_run(share_s=0.2, health=["false"]).wait_until_healthy()
    with pytest.raises(StepFailed, match="x cannot be run"):
        new_run(health=["/nowhere/x"]).wait_until_healthy()


def test_the_children_of_a_process() -> None:
    """Each child comes with its start time; a zombie does not count."""
    with subprocess.Popen(["sleep", "60"]) as child:
        assert (child.pid, start_ticks(child.pid)) in children(os.getpid())
        child.kill()
        until(lambda: (child.pid, 0) not in children(os.getpid()) and not alive(child.pid))
        assert child.pid not in [pid for pid, _ in children(os.getpid())]


def test_a_hanging_health_command_is_run_again(tmp_path: Path) -> None:
    """One run has the time-out of `[health]`, not the whole time of the step."""
    hangs_once = f"test -e {tmp_path}/asked || {{ touch {tmp_path}/asked; sleep 600; }}"
    began_s = time.monotonic()
    health = ["/bin/sh", "-c", hangs_once]
    new_run(share_s=600, clock=Time(), health=health, health_timeout_s=1.0).wait_until_healthy()
    assert time.monotonic() - began_s < PATIENCE_S
