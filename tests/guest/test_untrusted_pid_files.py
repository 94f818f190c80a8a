"""Pid files, checkpoints and programs in folders of other users: what the agent refuses as root."""

import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.guest.config import parse
from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers import HANDLERS, checkpoint, command, process
from forewarn.guest.main import log_refused_programs
from forewarn.guest.processes import ProcessHandle, alive, start_ticks
from forewarn.guest.steps import Run
from tests.support.fake_endpoint import StepTime, event
from tests.support.waiting import PATIENCE_S, until

STRANGER = 1234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def run_of(share_s: float = PATIENCE_S) -> Run:
    return Run(step="one", phase="prepare", event=event(), share_s=share_s, time=StepTime())


@contextmanager
def sleeping(user: int = 0) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program that only waits, as this user."""
    child = subprocess.Popen(["sleep", "600"], **({"user": user} if user else {}))  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@contextmanager
def sleeping_later(first: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program that begins in a later tick of the kernel's clock than the first."""
    ticks = os.sysconf("SC_CLK_TCK")
    until(lambda: int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks) > start_ticks(first.pid) + 1)
    with sleeping() as child:
        yield child


def pid_file_of(folder: Path, pid: int, owner: int = 0) -> Path:
    path = folder / "pid"
    path.write_text(f"{pid}\n")
    os.chown(path, owner, -1)
    return path


@needs_root
def test_a_users_pid_file_cannot_name_a_process_of_root(tmp_path: Path) -> None:
    """The process is not signalled, the step fails, and `check` reports it."""
    with sleeping() as victim:
        path = pid_file_of(tmp_path, victim.pid, STRANGER)
        spec = process.parse({"pid_file": str(path), "kill_after": "1s"}, "here")
        for call in (process.prepare, process.verify):
            with pytest.raises(StepFailed, match=f"belongs to user 1234.* names process {victim.pid} of another user"):
                call(spec, run_of())
        saved = checkpoint.parse({"file": str(tmp_path / "x"), "signal": "USR1", "pid_file": str(path)}, "here")
        with pytest.raises(StepFailed, match="of another user"):
            checkpoint.prepare(saved, run_of())
        assert victim.poll() is None
        assert len(process.check(spec)) == len(checkpoint.check(saved)) == 1
        # With `match`, another program is simply not the one that the step is for.
        process.prepare(spec._replace(match="importer"), run_of())
        assert victim.poll() is None


@needs_root
@pytest.mark.parametrize(("owner", "user"), [(STRANGER, STRANGER), (0, STRANGER), (0, 0)])
def test_a_pid_file_of_root_or_of_the_processs_user_is_obeyed(tmp_path: Path, owner: int, user: int) -> None:
    """The process is stopped."""
    with sleeping(user) as child:
        spec = process.parse({"pid_file": str(pid_file_of(tmp_path, child.pid, owner))}, "here")
        process.prepare(spec, run_of())
        assert child.wait(PATIENCE_S) == -signal.SIGTERM


def as_link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to("target")


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_second_name(path: Path) -> None:
    path.with_name("target").hardlink_to(path)


@pytest.mark.parametrize("disguise", [as_link, as_pipe, as_second_name])
def test_a_pid_file_is_a_regular_file(tmp_path: Path, disguise: Callable[[Path], None]) -> None:
    """A link, a pipe and a second name of another file fail the step at once."""
    with sleeping() as child:
        path = pid_file_of(tmp_path, child.pid)
        disguise(path)
        spec = process.parse({"pid_file": str(path), "start": ["sleep", "600"]}, "here")
        for call in (process.prepare, process.verify, process.recover):
            with pytest.raises(StepFailed, match="pid cannot be used: it "):
                call(spec, run_of())
        assert child.poll() is None


@pytest.mark.parametrize("name", ["victim", "missing"])
def test_starting_a_program_writes_no_other_file(tmp_path: Path, name: str) -> None:
    """With `foreground`, a link at the place of the pid file is replaced and not followed."""
    victim, path = tmp_path / "victim", tmp_path / "pid"
    victim.write_text("root:secret\n")
    table = {"pid_file": str(path), "start": ["sleep", "600"], "foreground": True, "up_for": "0"}
    spec = process.parse(table, "here")
    starter = process._start_detached(spec)
    assert starter
    until(lambda: path.exists() and path.read_text().strip() == str(starter))
    os.kill(starter, signal.SIGKILL)
    path.unlink()
    path.symlink_to(tmp_path / name)
    pid = process._start_detached(spec)
    until(lambda: path.is_file() and not path.is_symlink() and path.read_text().strip() == str(pid))
    os.kill(pid, signal.SIGKILL)
    assert victim.read_text() == "root:secret\n"
    assert not (tmp_path / "missing").exists()


def test_a_started_program_has_no_open_file_of_the_agent(tmp_path: Path) -> None:
    """Its output goes nowhere, and its pid file is not among its descriptors."""
    spec = process.parse({"pid_file": str(tmp_path / "pid"), "start": ["sleep", "600"], "foreground": True}, "here")
    process.recover(spec, run_of())
    pid = int((tmp_path / "pid").read_text())
    # Its shell has the pid file open until it becomes the program.
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    opened = sorted(link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir())
    os.kill(pid, signal.SIGKILL)
    assert opened == ["null", "null", "null"]


def test_a_later_process_with_the_same_pid_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pidfd, the time at which the process began tells the two apart."""
    for without_pidfd in (False, True):
        if without_pidfd:
            monkeypatch.delattr(os, "pidfd_open")
        with sleeping() as child, sleeping_later(child) as other:
            handle = ProcessHandle.open(child.pid)
            assert handle is not None
            with handle:
                assert handle.alive()
                child.kill()
                until(lambda: not alive(child.pid))
                child.wait()
                assert not handle.alive()
                handle.pid = other.pid  # as if the kernel had used the number again
                handle.send_signal(signal.SIGKILL)
                assert not handle.alive()
                assert other.poll() is None


@pytest.mark.parametrize("disguise", [as_link, as_pipe])
def test_a_checkpoint_is_a_regular_file(tmp_path: Path, disguise: Callable[[Path], None]) -> None:
    """A link or a pipe is no checkpoint, and does not block the step."""
    path = tmp_path / "checkpoint"
    path.write_text("state")
    spec = checkpoint.parse({"file": str(path), "command": ["true"], "stable_for": "0"}, "here")
    run = run_of()
    run.keep(asked="x", sha256="0" * 64, mark=[])
    disguise(path)
    assert checkpoint.verify(spec, run) is False
    with pytest.raises(StepFailed, match="there is no checkpoint"):
        checkpoint.prepare(spec, run_of(1.0))


def test_a_pipe_that_replaces_the_checkpoint_does_not_block(tmp_path: Path) -> None:
    """The file that is synced and summed is the file that was opened, whatever its name leads to by then."""
    from forewarn.guest.handlers import saved_file

    path = tmp_path / "checkpoint"
    os.mkfifo(path)
    for call in (lambda: saved_file.sync_to_disk(str(path)), lambda: saved_file.checksum(str(path), run_of())):
        with pytest.raises(StepFailed, match="checkpoint cannot be used: it is not a regular file"):
            call()


# -- programs


def program_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "drain"
    path.write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    path.chmod(0o755)
    return path


def loosen_file(path: Path) -> None:
    path.chmod(0o777)


def loosen_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, -1)


def give_folder_away(path: Path) -> None:
    os.chown(path.parent, STRANGER, -1)


@needs_root
@pytest.mark.parametrize("loosen", [loosen_file, loosen_folder, give_away, give_folder_away])
def test_a_program_that_others_may_write_does_not_run(
    tmp_path: Path, loosen: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for the configuration file, its folders count; it does not matter how the step names the program."""
    path = program_in(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(path.parent)
    loosen(path)
    for name in (str(path), "drain", "./drain"):
        spec = command.parse({"prepare": [name]}, "here")
        with pytest.raises(StepFailed, match=r"drain is refused: it runs with the rights of this agent, and .*bin"):
            command.prepare(spec, run_of())
        assert "is refused" in command.check(spec)[0]
        foreground = process.Spec(pid_file=str(tmp_path / "pid"), start=(name,), foreground=True)
        with pytest.raises(StepFailed, match="drain is refused"):
            process.recover(foreground, run_of())
    assert not (path.parent / "ran").exists()


def test_the_program_that_was_checked_is_the_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program found by PATH runs by its whole path; one with a slash runs as named."""
    path = program_in(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    run_of().command(["drain"])
    assert (path.parent / "ran").exists()
    shown = tmp_path / "shown"
    run_of().command(["/bin/sh", "-c", f'echo "$1" > {shown}', "sh", "one"])
    assert shown.read_text() == "one\n"


def test_refused_programs_are_logged_when_the_agent_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every program of every handler and of `[health]`, once each; a missing program may be installed later."""
    path = program_in(tmp_path / "bin")
    loosen_file(path)
    lines = ["[health]", f'command = ["{path}"]']
    keys = []
    more = {"process": 'pid_file = "x"', "checkpoint": 'file = "x"', "nginx": 'file = "x"\nservers = ["a"]'}
    for handler, module in HANDLERS.items():
        for key in getattr(module, "PROGRAMS", ()):
            needed = 'command = ["/nowhere/x"]' if (handler, key) == ("checkpoint", "restore") else ""
            needed = 'prepare = ["/nowhere/x"]' if (handler, key) == ("command", "verify") else needed
            lines += ["[[steps]]", f'name = "{handler} {key}"', f"[steps.{handler}]", more.get(handler, ""), needed]
            lines.append(f'{key} = ["{path}"]')
            keys.append(f"step '{handler} {key}'")
    log_refused_programs(parse(tomllib.loads("\n".join(lines)), {}).plan)
    assert len(keys) == 8
    logged = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[0] for line in logged] == [*keys, "health"]
    assert all("is refused" in line for line in logged)


def test_every_command_of_a_handler_is_named() -> None:
    """`PROGRAMS` has each field of the specification that is a list of texts, except names of servers, units and services."""
    for name, module in HANDLERS.items():
        types = getattr(module, "Spec").__annotations__  # noqa: B009 (a module has no type for it)
        commands = {field for field, kind in types.items() if "Tuple[str, ...]" in str(kind)}
        others = {"servers", "units", "services", "proxies", "sentinels"}
        assert set(getattr(module, "PROGRAMS", ())) == commands - others, name
