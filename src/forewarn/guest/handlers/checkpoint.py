"""`checkpoint`: has a program save its state to a file before the event, and restores the program from that file after it.

A signal or a command requests the checkpoint. A file counts as the checkpoint if it was written after the request, no longer
grows, is synced to the disk with its folder, and has its checksum in the journal. A file with another checksum is never restored.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import check_keys, read_values, seconds, strings
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers.pid_files import named_process, pid_file_problems, send_signal
from forewarn.guest.handlers.saved_file import checksum, file_mark, sync_to_disk
from forewarn.guest.processes import POLL_S
from forewarn.guest.programs import program_problems
from forewarn.guest.steps import Run
from forewarn.guest.system import system

UNDOES_AGAIN = True
PROGRAMS = ("command", "restore")
PLACEHOLDER = "{checkpoint}"
VARIABLE = "FOREWARN_CHECKPOINT"
# How far a restore has come.
BEGUN, DONE = "begun", "done"
# A file's modification time may lag behind the clock by one kernel tick.
TICK_NS = 20_000_000


class Spec(NamedTuple):
    file: str
    command: Tuple[str, ...] = ()
    signal: str = ""
    pid_file: str = ""
    match: str = ""
    # A file that has not changed for so long is taken to be complete.
    stable_for: float = 1.0
    restore: Tuple[str, ...] = ()


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, Spec._fields, where, file="write where the program saves its state")
    spec = Spec(**read_values(table, where, command=strings, restore=strings, stable_for=seconds))
    if bool(spec.command) == bool(spec.signal):
        raise ConfigError(f"{where}: write either `command`, or `signal` and `pid_file`")
    if spec.signal and not spec.pid_file:
        raise ConfigError(f"{where}.signal: pid_file is missing: write which process gets the signal")
    if spec.signal and spec.signal not in system.SIGNALS:
        raise ConfigError(f"{where}.signal: {spec.signal!r} is not a signal of this system: write it like TERM")
    return spec


def check(spec: Spec) -> List[str]:
    problems = [problem for argv in (spec.command, spec.restore) if argv for problem in program_problems(argv)]
    problems += pid_file_problems(spec.pid_file, spec.match) if spec.pid_file else []
    folder = Path(spec.file).parent
    return problems if folder.is_dir() else [*problems, f"{folder}, where the checkpoint should be, is not a folder"]


def prepare(spec: Spec, run: Run) -> None:
    event_id = run.event_key
    if run.kept.get("asked") != event_id or not _is_newer(spec, run):
        requested_ns = int(run.wall_s() * 1e9)
        mark_before, process_id = file_mark(spec.file), _process_id(spec)
        run.keep(asked=event_id, asked_ns=requested_ns, was=mark_before, program=process_id, sha256="", restored="")
        _request_checkpoint(spec, run)
    run.finish = True  # the program may end after saving: `recover` needs the whole checkpoint then
    why = run.wait_until(lambda: (_is_newer(spec, run), f"{spec.file} was not written"), POLL_S) or _wait_until_stable(
        spec, run
    )
    if why:
        raise OutOfTime(f"there is no checkpoint: {why}")
    sync_to_disk(spec.file)
    mark = file_mark(spec.file)
    sha256 = checksum(spec.file, run)
    if file_mark(spec.file) != mark:
        raise StepFailed(f"there is no checkpoint: {spec.file} changes while it is read")
    run.keep(sha256=sha256, mark=mark)


def verify(spec: Spec, run: Run) -> Optional[bool]:
    """Compare the file's mark, or its checksum if the mark differs. Without a request it is unknown."""
    if not run.kept.get("sha256"):
        return False if "asked" in run.kept else None
    if run.phase == "prepare" and run.kept.get("asked") != run.event_key:
        return False  # this checkpoint was made for another event
    mark = file_mark(spec.file)
    return bool(mark) and (mark == run.kept.get("mark") or checksum(spec.file, run) == run.kept["sha256"])


def recover(spec: Spec, run: Run) -> None:
    if "asked" not in run.kept or not spec.restore or _nothing_to_restore(spec, run):
        return
    if run.kept.get("restored") != DONE:
        _restore(spec, run, run.kept.get("sha256", ""))
    why = run.wait_until(lambda: (not spec.pid_file or bool(_process_id(spec)), "its process is not there"), POLL_S)
    if why:
        run.keep(restored="")
        raise OutOfTime(f"{spec.file} was restored, but {why}")


def _nothing_to_restore(spec: Spec, run: Run) -> bool:
    """Return whether the program never ended, was restored already, or runs and saved nothing.

    Raise StepFailed when another process runs than the one that was saved, and when nothing was saved and nothing runs.
    """
    now, before, saved = _process_id(spec), run.kept.get("program", []), run.kept.get("sha256")
    if not saved:
        if before and not now:
            raise StepFailed(
                f"no checkpoint was made, and the program that {spec.pid_file} names is gone: start it by hand"
            )
        return True
    if now and now != before and not run.kept.get("restored"):
        raise StepFailed(
            f"process {now[0]} was started without the checkpoint {spec.file}, which is not restored while it runs: "
            "end it, or take this step out of agent.toml"
        )
    return bool(now)


def _restore(spec: Spec, run: Run, sha256: str) -> None:
    if not file_mark(spec.file) or checksum(spec.file, run) != sha256:
        raise StepFailed(
            f"the checkpoint {spec.file} is damaged: it is not what was saved, and is not restored; "
            "put the right file back, or take this step out of agent.toml"
        )
    run.keep(restored=BEGUN)  # if the agent dies now, the process that runs then was restored
    try:
        _run_program(spec, spec.restore, run)
    except StepFailed:
        run.keep(restored="")
        raise
    run.keep(restored=DONE)


def _request_checkpoint(spec: Spec, run: Run) -> None:
    if spec.command:
        _run_program(spec, spec.command, run)
        return
    target = named_process(spec.pid_file, spec.match)
    if target is None:
        raise StepFailed(f"there is no checkpoint: {spec.pid_file} names no live process")
    with target:
        send_signal(target, getattr(signal, f"SIG{spec.signal}"))


def _run_program(spec: Spec, argv: Tuple[str, ...], run: Run) -> None:
    run.command([argument.replace(PLACEHOLDER, spec.file) for argument in argv], more={VARIABLE: spec.file})


def _process_id(spec: Spec) -> List[int]:
    """Return the pid of the program's process and when it began, or [] when there is none or it is not known."""
    process = named_process(spec.pid_file, spec.match) if spec.pid_file else None
    if process is None:
        return []
    process.close()
    return [process.pid, process.ticks]


def _is_newer(spec: Spec, run: Run) -> bool:
    """Return whether the file was written after the request and is not the one that was there before."""
    mark = file_mark(spec.file)
    return bool(mark) and mark != run.kept["was"] and mark[1] >= run.kept["asked_ns"] - TICK_NS


def _wait_until_stable(spec: Spec, run: Run) -> str:
    """Return "" once the file has not changed for `stable_for`, else why not."""
    last, same_s = file_mark(spec.file), 0.0

    def unchanged() -> Tuple[Optional[bool], str]:
        nonlocal last, same_s
        mark = file_mark(spec.file)
        same_s = same_s + POLL_S if mark == last else 0.0
        last = mark
        return bool(mark) and same_s > spec.stable_for, f"{spec.file} does not stop changing"

    return run.wait_until(unchanged, POLL_S)
