"""`checkpoint` with a real program that counts: it is saved, killed and restored, or not restored."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.core.model import Status
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers import checkpoint
from forewarn.guest.handlers.pid_files import running_pid
from forewarn.guest.handlers.saved_file import file_mark
from forewarn.guest.steps import Run
from tests.integration.handlers.agent_process import Agent, cancelled_run, fast_run, new_run
from tests.integration.handlers.service_with_event import page_steps, service_with_event
from tests.support.fake_endpoint import StepTime
from tests.support.waiting import until

COUNTER = str(Path(__file__).parent / "counting_program.py")
# The example of the documentation, for a program that counts.
(PAGE_STEP,) = page_steps("checkpoint")
# Starts it and returns.
START = f"""#!/bin/sh
setsid {shlex.quote(sys.executable)} {shlex.quote(COUNTER)} {{folder}} "$@" >/dev/null 2>&1 &
"""
POWER_OFF = """
kill -KILL $(cat {agent}/agent.pid) $(cat {folder}/pid)
{damage}
touch {agent}/down; while [ -e {agent}/down ]; do sleep 0.1; done
"""


@contextmanager
def counting(folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    folder.mkdir(exist_ok=True)
    (folder / "count").unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, COUNTER, str(folder), *options])
    try:
        until(lambda: (folder / "count").exists())
        yield process
    finally:
        process.kill()
        process.wait()
        if pid := running_pid(str(folder / "pid"), "counting_program.py"):
            os.kill(pid, signal.SIGKILL)


def count(folder: Path) -> int:
    return int((folder / "count").read_text())


def saved(folder: Path) -> int:
    return int((folder / "checkpoint").read_text().split()[-1])


def table(folder: Path, **more: object) -> dict[str, object]:
    return {
        "file": str(folder / "checkpoint"),
        "signal": "USR1",
        "pid_file": str(folder / "pid"),
        "stable_for": "1s",
        **more,
    }


def spec_of(folder: Path, **more: object) -> checkpoint.Spec:
    return checkpoint.parse(table(folder, **more), "here")


def step_of(folder: Path) -> str:
    starter = folder / "start"
    starter.write_text(START.format(folder=folder))
    starter.chmod(0o755)
    step = PAGE_STEP.replace("/var/lib/simulation", str(folder)).replace("/run/simulation.pid", str(folder / "pid"))
    step = step.replace("/usr/local/bin/simulation-start", str(starter))
    return step.replace('match = "simulation"', 'match = "counting_program.py"')


@contextmanager
def machine(tmp_path: Path, damage: str = "") -> Iterator[tuple[Path, Agent]]:
    """A program that counts on a machine whose power has gone, as service_with_event, after its agent approved."""
    folder = tmp_path / "counter"
    power_off = POWER_OFF.format(agent=tmp_path / "agent-0", folder=folder, damage=damage)
    with counting(folder), service_with_event(tmp_path, command=power_off) as service:
        agent = service.agent(step_of(folder))
        agent.up()
        until(lambda: (agent.folder / "down").exists())
        (ended,) = agent.ended("prepare")
        assert ended["ok"] is True
        agent.kill()
        (agent.folder / "boot").write_text("boot-2")
        agent.up()
        (agent.folder / "down").unlink()
        yield folder, agent
        until(lambda: service.status is Status.COMPLETED)


def test_it_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    """Saved before the approval, restored after the boot from that very file, once; its checksum is in the journal."""
    with machine(tmp_path) as (folder, agent):
        until(lambda: "in-service" in agent.kinds)
        at = saved(folder)
        until(lambda: count(folder) > at)
        assert at > 0
        facts = [record["kept"] for record in agent.records if record["kind"] == "kept"]
        assert any(isinstance(kept, dict) and len(str(kept.get("sha256", ""))) == 64 for kept in facts)
        assert (folder / "asked").read_text() == "asked\n"


def test_a_truncated_checkpoint_is_not_restored(tmp_path: Path) -> None:
    """The machine stays out of service, and the log says so, until the right file is there."""
    damage = "cp {0}/checkpoint {0}/right; truncate -s 100 {0}/checkpoint".format(tmp_path / "counter")
    with machine(tmp_path, damage) as (folder, agent):
        until(lambda: "THE MACHINE IS NOT BACK IN SERVICE" in agent.log)
        assert "is damaged: it is not what was saved, and is not restored" in agent.log
        assert not running_pid(str(folder / "pid"), "counting_program.py")
        assert "in-service" not in agent.kinds
        (folder / "right").replace(folder / "checkpoint")
        until(lambda: "in-service" in agent.kinds)
        at = saved(folder)
        until(lambda: count(folder) > at)


def test_killed_between_saving_and_verifying(tmp_path: Path) -> None:
    """The next agent finds the file new, requests no second checkpoint, and approves when it is complete."""
    folder = tmp_path / "counter"
    with counting(folder, "--slowly", "--ends"), service_with_event(tmp_path) as service:
        # Longer than the program may stand still while it writes.
        agent = service.agent(step_of(folder).replace("restore =", 'stable_for = "6s"\nrestore =', 1))
        agent.up()
        until(lambda: file_mark(str(folder / "checkpoint")))  # an empty file would be no answer to the request
        agent.kill()
        assert "approving" not in agent.kinds
        agent.up()
        until(lambda: agent.kinds.count("start") == 2)
        (folder / "go").touch()
        until(lambda: "approved" in agent.kinds)
        assert (folder / "asked").read_text() == "asked\n"
        assert saved(folder) > 0
        until(lambda: service.status is Status.STARTED)


def test_a_requested_checkpoint_is_completed_after_a_cancel(tmp_path: Path) -> None:
    """The program may end after saving, and can then be restored only from the whole checkpoint."""
    with counting(tmp_path):
        run = cancelled_run()
        checkpoint.prepare(spec_of(tmp_path), run)
        assert checkpoint.verify(spec_of(tmp_path), run) is True


def test_files_that_do_not_count_as_checkpoint(tmp_path: Path) -> None:
    """Not written, older than the request, empty, still growing, or no process to signal."""
    with counting(tmp_path, "--never"):
        spec = spec_of(tmp_path)
        (tmp_path / "checkpoint").write_text("an old one")
        with pytest.raises(OutOfTime, match=r"there is no checkpoint: .*/checkpoint was not written"):
            checkpoint.prepare(spec, fast_run())
        (tmp_path / "checkpoint").unlink()
    with pytest.raises(StepFailed, match="pid names no live process"):
        checkpoint.prepare(spec_of(tmp_path), fast_run())
    by_command = {"file": str(tmp_path / "checkpoint"), "stable_for": "1s"}
    with pytest.raises(OutOfTime, match="was not written"):
        checkpoint.prepare(checkpoint.parse({**by_command, "command": ["touch", "{checkpoint}"]}, "here"), fast_run())

    def grow() -> None:
        with (tmp_path / "checkpoint").open("a") as out:
            out.write("x")

    growing = Run(step="one", phase="prepare", event={"EventId": "x"}, share_s=10, time=StepTime(rate=10), poll=grow)
    with pytest.raises(OutOfTime, match="does not stop changing"):
        checkpoint.prepare(checkpoint.parse({**by_command, "command": ["true"]}, "here"), growing)


def test_a_command_gets_the_path_of_the_checkpoint(tmp_path: Path) -> None:
    """By the placeholder and by a variable; if the command fails, the step fails."""
    words = ["/bin/sh", "-c", 'echo saved > "$FOREWARN_CHECKPOINT"; test "$0" = "$FOREWARN_CHECKPOINT"', "{checkpoint}"]
    restore = ["/bin/sh", "-c", 'cp "$1" "$FOREWARN_CHECKPOINT.restored"', "sh", "{checkpoint}"]
    where = {"file": str(tmp_path / "state"), "stable_for": "0", "command": words, "restore": restore}
    spec, run = checkpoint.parse(where, "here"), new_run()
    assert checkpoint.check(spec) == []
    assert checkpoint.verify(spec, run) is None
    checkpoint.prepare(spec, run)
    assert checkpoint.verify(spec, run) is True
    checkpoint.recover(spec, run)
    assert (tmp_path / "state.restored").read_text() == "saved\n"
    (tmp_path / "state.restored").unlink()
    checkpoint.recover(spec, run)  # it was restored: not a second time
    assert not (tmp_path / "state.restored").exists()
    failing = checkpoint.parse({**where, "command": ["false"]}, "here")
    with pytest.raises(StepFailed, match="false ended with 1"):
        checkpoint.prepare(failing, new_run())


def test_the_checkpoint_is_synced_before_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the folder that has its name are synced before the journal knows the checksum."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    kept: list[Mapping[str, object]] = []
    run = Run(
        step="one", phase="prepare", event={"EventId": "x"}, share_s=10, time=StepTime(),
        record_kept=lambda facts: kept.append({**facts, "synced": len(synced)}),
    )  # fmt: skip
    words = ["/bin/sh", "-c", "echo saved > {checkpoint}"]
    spec = checkpoint.parse({"file": str(tmp_path / "state"), "stable_for": "0", "command": words}, "here")
    checkpoint.prepare(spec, run)
    assert synced == [(tmp_path / "state").stat().st_ino, tmp_path.stat().st_ino]
    assert [facts["synced"] for facts in kept if facts["sha256"]] == [2]


def test_the_content_decides_when_the_file_was_touched(tmp_path: Path) -> None:
    """Copied back it is as good as before; another content of the same size is not."""
    words = ["/bin/sh", "-c", "echo saved > {checkpoint}"]
    spec = checkpoint.parse({"file": str(tmp_path / "state"), "stable_for": "0", "command": words}, "here")
    run = new_run()
    checkpoint.prepare(spec, run)
    (tmp_path / "copy").write_text("saved\n")
    (tmp_path / "copy").replace(tmp_path / "state")
    assert checkpoint.verify(spec, run) is True
    (tmp_path / "state").write_text("taved\n")
    assert checkpoint.verify(spec, run) is False
    (tmp_path / "state").unlink()
    assert checkpoint.verify(spec, run) is False


def test_a_program_that_still_runs_is_not_restored(tmp_path: Path) -> None:
    """As after an event that was cancelled; nor is anything where nothing was saved."""
    with counting(tmp_path):
        spec, run = spec_of(tmp_path, restore=["touch", str(tmp_path / "restored")]), new_run()
        checkpoint.prepare(spec, run)
        checkpoint.recover(spec, run)
        checkpoint.recover(spec, new_run())
        assert not (tmp_path / "restored").exists()


def test_a_program_started_without_the_checkpoint_is_reported(tmp_path: Path) -> None:
    """The checkpoint is not restored while it runs, and the reason says so."""
    start = [sys.executable, COUNTER, str(tmp_path), "--from", "{checkpoint}"]
    spec = spec_of(tmp_path, restore=["/bin/sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *start])
    with counting(tmp_path):
        run = new_run()
        checkpoint.prepare(spec, run)
    at = saved(tmp_path)
    with (
        counting(tmp_path) as afresh,
        pytest.raises(StepFailed, match=f"process {afresh.pid} was started without the ch"),
    ):
        checkpoint.recover(spec, run)
    checkpoint.recover(spec, run)
    try:
        until(lambda: count(tmp_path) > at)
        first = running_pid(str(tmp_path / "pid"), "counting_program.py")
        checkpoint.recover(spec, run)
        # Killed while it restored, an agent leaves this behind: what runs is what was restored.
        checkpoint.recover(spec, new_run(**{**run.kept, "restored": "begun"}))
        assert running_pid(str(tmp_path / "pid"), "counting_program.py") == first
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_program_that_is_gone_without_a_checkpoint_is_reported(tmp_path: Path) -> None:
    """Nothing can be restored, and the step does not count as undone."""
    spec = spec_of(tmp_path, restore=["touch", str(tmp_path / "restored")])
    with counting(tmp_path, "--never"):
        run = fast_run()
        with pytest.raises(OutOfTime, match="there is no checkpoint"):
            checkpoint.prepare(spec, run)
        checkpoint.recover(spec, new_run(**run.kept))  # it still runs: nothing is lost
    with pytest.raises(StepFailed, match=r"no checkpoint was made, and the program that .*/pid names is gone"):
        checkpoint.recover(spec, new_run(**run.kept))
    with counting(tmp_path):  # started by hand
        checkpoint.recover(spec, new_run(**run.kept))
    assert not (tmp_path / "restored").exists()


def test_a_restore_that_fails_is_tried_again(tmp_path: Path) -> None:
    """What runs after it failed was not restored."""
    spec = spec_of(tmp_path, restore=["false"])
    with counting(tmp_path):
        run = new_run()
        checkpoint.prepare(spec, run)
    with pytest.raises(StepFailed, match="false ended with 1"):
        checkpoint.recover(spec, run)
    with counting(tmp_path), pytest.raises(StepFailed, match="was started without the checkpoint"):
        checkpoint.recover(spec, run)


def test_a_file_that_is_written_while_it_is_read(tmp_path: Path) -> None:
    """Its checksum would be that of neither the old nor the new: no checkpoint."""
    file = tmp_path / "state"

    sizes = iter(range(1000, 0, -1))  # other times may be equal; and less each time, so that the reading ends

    def write() -> None:
        file.write_text("x" * next(sizes))

    run = Run(
        step="one", phase="prepare", event={"EventId": "x"}, share_s=10, time=StepTime(),
        poll=write,
    )  # fmt: skip
    words = ["/bin/sh", "-c", "echo saved > {checkpoint}"]
    spec = checkpoint.parse({"file": str(file), "stable_for": "0", "command": words}, "here")
    with pytest.raises(StepFailed, match=r"there is no checkpoint: .*/state changes while it is read"):
        checkpoint.prepare(spec, run)
    assert checkpoint.verify(spec, run) is False


def test_a_program_that_does_not_come_up_is_reported(tmp_path: Path) -> None:
    """The restore command succeeded, but no process lives; the next attempt restores again."""
    spec = spec_of(tmp_path, restore=["true"])
    with counting(tmp_path):
        run = new_run()
        checkpoint.prepare(spec, run)
    for _ in range(2):
        with pytest.raises(OutOfTime, match="was restored, but its process is not there"):
            checkpoint.recover(spec, fast_run(**run.kept))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "here: file is missing"),
        ({"file": "x"}, "here: write either `command`, or `signal` and `pid_file`"),
        ({"file": "x", "command": ["a"], "signal": "USR1"}, "here: write either `command`, or `signal` and `pid_file`"),
        ({"file": "x", "signal": "USR1"}, "here.signal: pid_file is missing"),
        ({"file": "x", "signal": "USR9", "pid_file": "p"}, "here.signal: 'USR9' is not a signal"),
        ({"file": "x", "command": ["a"], "checksum": True}, "here.checksum: unknown key"),
    ],
)
def test_what_the_file_may_not_say(table: dict[str, object], message: str) -> None:
    """Where it stands, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        checkpoint.parse(table, "here")
    assert message in str(caught.value)


def test_check_reports_a_missing_program_and_folder(tmp_path: Path) -> None:
    """`check` names a program and a folder that do not exist."""
    spec = checkpoint.parse(
        {"file": "/nowhere/at/all", "command": ["/nowhere/save"], "restore": ["/nowhere/x"]}, "here"
    )
    assert checkpoint.check(spec) == [
        "/nowhere/save is not a program on this machine",
        "/nowhere/x is not a program on this machine",
        "/nowhere/at, where the checkpoint should be, is not a folder",
    ]
