"""`process`: stops a program by signal and confirms that it is gone; starts it and confirms that it is up.

For programs without a service manager. The pid file names the process (`pid_files` says which files count). With
`foreground = true` the agent writes the pid file for a program that writes none.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import check_keys, flag, read_values, seconds, strings
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers.pid_files import (
    named_process,
    new_pid_file,
    pid_file_problems,
    running_pid,
    send_signal,
)
from forewarn.guest.processes import POLL_S, alive, start_detached, start_ticks
from forewarn.guest.programs import checked_program, program_problems
from forewarn.guest.steps import Run
from forewarn.guest.system import system

PROGRAMS = ("start",)


class Spec(NamedTuple):
    pid_file: str
    signal: str = "TERM"
    # If it is still there after so long, it is killed. 0: never; then the step fails at the end of its time.
    kill_after: float = 0.0
    start: Tuple[str, ...] = ()
    foreground: bool = False
    # How long it must live to count as up.
    up_for: float = 1.0
    # Must occur in its command line: after a reboot an old pid file may name another process.
    match: str = ""


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, Spec._fields, where, pid_file="write where the program keeps its pid")
    spec = Spec(**read_values(table, where, kill_after=seconds, start=strings, foreground=flag, up_for=seconds))
    if spec.signal not in system.SIGNALS:
        raise ConfigError(f"{where}.signal: {spec.signal!r} is not a signal of this system: write it like TERM")
    return spec


def check(spec: Spec) -> List[str]:
    return (program_problems(spec.start) if spec.start else []) + pid_file_problems(spec.pid_file, spec.match)


def prepare(spec: Spec, run: Run) -> None:
    target = named_process(spec.pid_file, spec.match)
    if target is None:
        return
    with target:
        run.keep(signalled=[target.pid, target.ticks])
        send_signal(target, getattr(signal, f"SIG{spec.signal}"))
        run.finish = True  # the signal cannot be taken back
        kill_at_s = run.left_s() - spec.kill_after if spec.kill_after else 0.0
        try:
            while target.alive():
                if spec.kill_after and run.left_s() <= kill_at_s:
                    send_signal(target, getattr(signal, "SIGKILL", signal.SIGTERM))
                run.pause(POLL_S)
        except OutOfTime:
            raise OutOfTime(f"process {target.pid} did not end in time after SIG{spec.signal}") from None


def verify(spec: Spec, _: Run) -> Optional[bool]:
    return not _running_pid(spec)


def recover(spec: Spec, run: Run) -> None:
    pid, ticks = run.kept.get("signalled", (0, 0))
    # The process may still be ending, if the agent was killed or its time was over. A process that ignores the signal stays.
    run.wait_at_most(float("inf"), POLL_S, lambda: (not pid or start_ticks(pid) != ticks, ""))
    if not spec.start or _running_pid(spec):
        return
    if spec.foreground:
        pid = _start_detached(spec)
    else:
        run.command(spec.start)
    up_s = 0.0
    try:
        while spec.foreground and running_pid(spec.pid_file, "") != pid and alive(pid):
            run.pause(POLL_S)
        while up_s < spec.up_for or not _running_pid(spec):
            if spec.foreground and not alive(pid):
                raise StepFailed(f"{Path(spec.start[0]).name} ended at once")
            run.pause(POLL_S)
            up_s = up_s + POLL_S if _running_pid(spec) else 0.0
    except OutOfTime:
        other = running_pid(spec.pid_file, "")
        if other and not _running_pid(spec):
            raise OutOfTime(f"process {other} runs, but {spec.match!r} is not in its command line") from None
        raise


def _start_detached(spec: Spec) -> int:
    """Start the program so that it outlives the agent, and return its pid, which is in the pid file even if the agent dies."""
    argv = checked_program(spec.start)
    with new_pid_file(spec.pid_file) as file:
        child = start_detached(argv, file)
    with system.no_signals_for_new_threads():
        threading.Thread(target=child.wait, name="reaper", daemon=True).start()  # reaps the child when it ends
    return child.pid


def _running_pid(spec: Spec) -> int:
    return running_pid(spec.pid_file, spec.match)
