"""`process`: a program without a manager of its own: stopped by signal and confirmed gone, started and confirmed up.

Which process it is stands in its pid file. A program that writes none is started with `foreground = true`: then it is
written for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import flag, keys_of, seconds, text, words
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers.command import missing_program
from forewarn.guest.steps import POLL_S, Run, alive


class Spec(NamedTuple):
    pid_file: str
    signal: str = "TERM"
    # Still there after so long: it is killed. 0: never; then the step fails at the end of its time.
    kill_after: float = 0.0
    start: Tuple[str, ...] = ()
    foreground: bool = False
    # How long it must live to count as up.
    up_for: float = 1.0
    # Must occur in its command line: a pid file left from before a reboot may name somebody else by now.
    match: str = ""


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    if "pid_file" not in table:
        raise ConfigError(f"{where}: pid_file is missing: write where the program keeps its pid")
    readers: Mapping[str, Callable[[Any, str], Any]] = {
        "pid_file": text,
        "signal": text,
        "kill_after": seconds,
        "start": words,
        "foreground": flag,
        "up_for": seconds,
        "match": text,
    }
    spec = Spec(**{key: readers[key](value, f"{where}.{key}") for key, value in table.items()})
    if not hasattr(signal, f"SIG{spec.signal}"):
        raise ConfigError(f"{where}.signal: {spec.signal!r} is no signal: write it like TERM or USR1")
    return spec


def check(spec: Spec) -> List[str]:
    return missing_program(spec.start) if spec.start else []


def prepare(spec: Spec, run: Run) -> None:
    pid = _running(spec)
    if not pid:
        return
    send(pid, getattr(signal, f"SIG{spec.signal}"))
    kill_at_s = run.left_s() - spec.kill_after if spec.kill_after else 0.0
    try:
        while alive(pid):
            if spec.kill_after and run.left_s() <= kill_at_s:
                send(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            run.pause(POLL_S)
    except OutOfTime:
        raise OutOfTime(f"process {pid} did not end of SIG{spec.signal} in time") from None


def verify(spec: Spec, run: Run) -> Optional[bool]:
    del run
    return not _running(spec)


def recover(spec: Spec, run: Run) -> None:
    if not spec.start or _running(spec):
        return
    if spec.foreground:
        pid = _detached(spec)
        while pid_of(spec.pid_file) != pid and alive(pid):
            run.pause(POLL_S)
    else:
        run.command(spec.start)
    up_s = 0.0
    while up_s < spec.up_for or not _running(spec):
        if spec.foreground and not _running(spec):
            raise StepFailed(f"{Path(spec.start[0]).name} ended at once")
        run.pause(POLL_S)
        up_s = up_s + POLL_S if _running(spec) else 0.0


def _detached(spec: Spec) -> int:
    """Start it so that it outlives the agent; its pid. It writes that down itself, so the agent may die meanwhile.

    Not by the shell's `&`, which has SIGINT and SIGQUIT ignored.
    """
    child = subprocess.Popen(
        ["/bin/sh", "-c", 'echo $$ >"$1" || exit 1; shift; exec "$@"', "sh", spec.pid_file, *spec.start],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=child.wait, daemon=True).start()  # or it would stay as a zombie
    return child.pid


def _running(spec: Spec) -> int:
    return running(spec.pid_file, spec.match)


def running(pid_file: str, match: str) -> int:
    """The pid of the process that lives, or 0."""
    pid = pid_of(pid_file)
    return pid if pid > 0 and alive(pid) and match in command_line(pid) else 0


def pid_of(pid_file: str) -> int:
    """What the file says; 0 when it says nothing."""
    try:
        return int(Path(pid_file).read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except OSError as error:
        raise StepFailed(f"process {pid} cannot be signalled: {error.strerror}") from None
