"""`checkpoint`: a program saves its state to a file before the event, and is restored from that very file after it.

Asked by a signal or a command. What counts as a checkpoint is written after it was asked for, no longer grows, is on the disk
with its folder, and has its checksum in the journal. A file that is not what the journal says is never restored.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import keys_of, seconds, values, words
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers import process
from forewarn.guest.handlers.command import missing_program
from forewarn.guest.handlers.saved_file import checksum_of, mark_of, to_disk
from forewarn.guest.steps import POLL_S, Run, start_ticks

UNDOES_AGAIN = True
PLACE = "{checkpoint}"
VARIABLE = "FOREWARN_CHECKPOINT"
# How far a restore has come.
BEGUN, DONE = "begun", "done"
# A file's time is the kernel's, which ticks a little behind the clock.
TICK_NS = 20_000_000


class Spec(NamedTuple):
    file: str
    command: Tuple[str, ...] = ()
    signal: str = ""
    pid_file: str = ""
    match: str = ""
    # Unchanged for so long it is taken to be whole.
    stable_for: float = 1.0
    restore: Tuple[str, ...] = ()


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    if "file" not in table:
        raise ConfigError(f"{where}: file is missing: write where the program saves its state")
    spec = Spec(**values(table, where, command=words, restore=words, stable_for=seconds))
    if bool(spec.command) == bool(spec.signal):
        raise ConfigError(f"{where}: write either `command`, or `signal` and `pid_file`")
    if spec.signal and not spec.pid_file:
        raise ConfigError(f"{where}.signal: pid_file is missing: whose signal is it?")
    if spec.signal and not hasattr(signal, f"SIG{spec.signal}"):
        raise ConfigError(f"{where}.signal: {spec.signal!r} is no signal: write it like TERM or USR1")
    return spec


def check(spec: Spec) -> List[str]:
    wrong = [complaint for argv in (spec.command, spec.restore) if argv for complaint in missing_program(argv)]
    folder = Path(spec.file).parent
    return wrong if folder.is_dir() else [*wrong, f"{folder}, where the checkpoint should be, is no folder"]


def prepare(spec: Spec, run: Run) -> None:
    event_id = run.event.get("EventId")
    if run.kept.get("asked") != event_id or not _newer(spec, run):
        asked_ns = int(run.wall_s() * 1e9)
        was, program = mark_of(spec.file), _program(spec)
        run.keep(asked=event_id, asked_ns=asked_ns, was=was, program=program, sha256="", restored="")
        _ask(spec, run)
    why = run.until(lambda: (_newer(spec, run), f"{spec.file} was not written"), POLL_S) or _stable(spec, run)
    if why:
        raise OutOfTime(f"there is no checkpoint: {why}")
    to_disk(spec.file)
    mark = mark_of(spec.file)
    checksum = checksum_of(spec.file, run)
    if mark_of(spec.file) != mark:
        raise StepFailed(f"there is no checkpoint: {spec.file} changes while it is read")
    run.keep(sha256=checksum, mark=mark)


def verify(spec: Spec, run: Run) -> Optional[bool]:
    """By the file's size and time where they are as they were; else by its content. Nobody asked: nobody can tell."""
    if not run.kept.get("sha256"):
        return False if "asked" in run.kept else None
    if run.phase == "prepare" and run.kept.get("asked") != run.event.get("EventId"):
        return False  # it was made for another event
    mark = mark_of(spec.file)
    return bool(mark) and (mark == run.kept.get("mark") or checksum_of(spec.file, run) == run.kept["sha256"])


def recover(spec: Spec, run: Run) -> None:
    if "asked" not in run.kept or not spec.restore or _as_before(spec, run):
        return
    if run.kept.get("restored") != DONE:
        _restore(spec, run, run.kept.get("sha256", ""))
    why = run.until(lambda: (not spec.pid_file or bool(_program(spec)), "its process is not there"), POLL_S)
    if why:
        run.keep(restored="")
        raise OutOfTime(f"{spec.file} was restored, but {why}")


def _as_before(spec: Spec, run: Run) -> bool:
    """Whether there is nothing to restore: the program never ended, or was restored already, or nothing was saved and it runs.

    StepFailed when what runs is not what was saved, and when nothing was saved and nothing runs.
    """
    now, before, saved = _program(spec), run.kept.get("program", []), run.kept.get("sha256")
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


def _restore(spec: Spec, run: Run, checksum: str) -> None:
    if not mark_of(spec.file) or checksum_of(spec.file, run) != checksum:
        raise StepFailed(
            f"the checkpoint {spec.file} is damaged: it is not what was saved, and is not restored; "
            "put the right file back, or take this step out of agent.toml"
        )
    run.keep(restored=BEGUN)  # should the agent die, what runs then is what was restored
    try:
        _told(spec, spec.restore, run)
    except StepFailed:
        run.keep(restored="")
        raise
    run.keep(restored=DONE)


def _ask(spec: Spec, run: Run) -> None:
    if spec.command:
        _told(spec, spec.command, run)
        return
    pid = process.running(spec.pid_file, spec.match)
    if not pid:
        raise StepFailed(f"there is no checkpoint: {spec.pid_file} names no process that lives")
    process.send(pid, getattr(signal, f"SIG{spec.signal}"))


def _told(spec: Spec, argv: Tuple[str, ...], run: Run) -> None:
    run.command([word.replace(PLACE, spec.file) for word in argv], more={VARIABLE: spec.file})


def _program(spec: Spec) -> List[int]:
    """Which process: its pid, and when it began; [] when there is none, or nobody can tell."""
    pid = process.running(spec.pid_file, spec.match) if spec.pid_file else 0
    return [pid, start_ticks(pid)] if pid else []


def _newer(spec: Spec, run: Run) -> bool:
    """Written after it was asked for, and another than the one that was there."""
    mark = mark_of(spec.file)
    return bool(mark) and mark != run.kept["was"] and mark[1] >= run.kept["asked_ns"] - TICK_NS


def _stable(spec: Spec, run: Run) -> str:
    """ "" once nothing has changed for a while."""
    last, same_s = mark_of(spec.file), 0.0

    def look() -> Tuple[Optional[bool], str]:
        nonlocal last, same_s
        mark = mark_of(spec.file)
        same_s = same_s + POLL_S if mark == last else 0.0
        last = mark
        return bool(mark) and same_s > spec.stable_for, f"{spec.file} does not stop changing"

    return run.until(look, POLL_S)
