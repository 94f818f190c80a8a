"""Carrying out one phase of one step: its time, its variables, its programs, and what it must not forget.

A program is started held back: it waits for a line on its stdin until its pid is in the journal, and ends by itself when the
agent dies before that. So a program that outlives the agent is always known to the next one, which waits for it instead of
starting a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from forewarn.guest.clock import Time
from forewarn.guest.errors import OutOfTime, StepFailed

# While a program runs the endpoint is still asked: a more urgent event may come.
GLANCE_S = 1.0
# Between asking a program to end and ending it.
GRACE_S = 2.0
POLL_S = 0.05
# With less time than this one would look and see nothing.
LOOK_NEEDS_S = 0.5
# Between two looks at the machine's health.
HEALTH_EVERY_S = 0.5
HEALTH_TIMEOUT_S = 60.0
# A quarter of the time for draining, within these, is kept for what comes after it.
FINISH_S = (1.0, 5.0)
MAX_RESOURCES_BYTES = 32 * 1024
# The event is a file, not a pipe: a pipe that is full and that nobody reads would hold up the agent.
_GATE = 'read -r go || exit 125; exec <"/dev/fd/$1"; shift; exec "$@"'


class Run:
    """What a handler may use: the event, the time it has, and a way to run programs, to pause and to remember.

    `kept` is what earlier phases of this step have kept: also those of an agent before us, until the step is undone.
    """

    def __init__(
        self,
        *,
        step: str,
        phase: str,
        event: Mapping[str, Any],
        share_s: float,
        time: Time,
        limit_s: Callable[[], Optional[float]] = lambda: None,
        glance: Callable[[], None] = lambda: None,
        note_child: Callable[[int, int], None] = lambda _pid, _ticks: None,
        kept: Optional[Mapping[str, Any]] = None,
        note_kept: Callable[[Mapping[str, Any]], None] = lambda _kept: None,
        health: Sequence[str] = (),
        health_timeout_s: float = HEALTH_TIMEOUT_S,
    ) -> None:
        self.step, self.phase, self.event = step, phase, event
        self.change = ""
        self._time = time
        self._deadline_s = time.monotonic() + share_s
        self._limit_s = limit_s
        self._glance = glance
        self._note_child = note_child
        self.kept: Dict[str, Any] = dict(kept or {})
        self._note_kept = note_kept
        self._health, self._health_timeout_s = health, health_timeout_s

    def wall_s(self) -> float:
        """By the calendar, as files have it."""
        return self._time.wall()

    def left_s(self) -> float:
        """Until the share ends, or until a more urgent event's budget does."""
        left_s = self._deadline_s - self._time.monotonic()
        limit_s = self._limit_s()
        return left_s if limit_s is None else min(left_s, limit_s)

    def time_for(self, most_s: float) -> float:
        """For one thing: so long at most, and no longer than is left. OutOfTime when nothing is."""
        left_s = self.left_s()
        if left_s <= 0:
            raise OutOfTime("its time was over")
        return min(most_s, left_s)

    def pause(self, seconds: float) -> None:
        """Sleep, or raise OutOfTime."""
        self._time.sleep(self.time_for(seconds))
        self._glance()

    def until(self, look: Callable[[], Tuple[Optional[bool], str]], every_s: float) -> str:
        """Look until it is so: "". At the end of the time: what was seen instead, which must be something."""
        while True:
            good, seen = look()
            if good:
                return ""
            if self.left_s() <= max(every_s, LOOK_NEEDS_S):
                return seen
            self.pause(every_s)

    def must(self, look: Callable[[], Tuple[Optional[bool], str]], every_s: float) -> None:
        """Look until it is so; OutOfTime with what was seen instead."""
        why = self.until(look, every_s)
        if why:
            raise OutOfTime(why)

    def command(
        self,
        argv: Sequence[str],
        *,
        checked: bool = True,
        more: Optional[Mapping[str, str]] = None,
        within_s: float = float("inf"),
    ) -> int:
        """Run it to its end with the event on stdin and in variables, and `more` of these; its exit code.

        Raises StepFailed, or OutOfTime after ending it: at the end of the time, and after `within_s`.
        """
        code = self._awaited(self._spawn(argv, more or {}), argv, self._time.monotonic() + within_s)
        if code in (126, 127):
            raise StepFailed(f"{_named(argv)} cannot be run")
        if checked and code != 0:
            raise StepFailed(
                f"{_named(argv)} ended with {code}" if code > 0 else f"{_named(argv)} died of signal {-code}"
            )
        return code

    def _awaited(self, child: subprocess.Popen[bytes], argv: Sequence[str], until_s: float) -> int:
        """Its exit code; meanwhile the endpoint is looked at now and then."""
        with _ending(child) as ended_within:
            while True:
                left_s = min(self.left_s(), until_s - self._time.monotonic())
                if left_s <= 0:
                    end_group(child.pid, self._time, reap=child)
                    raise OutOfTime(f"{_named(argv)} did not end in time and was ended")
                code = ended_within(min(left_s, GLANCE_S))
                if code is not None:
                    return code
                self._glance()

    def keep(self, **values: Any) -> None:
        """On the disk when this returns, and in `kept` until the step is undone; no secrets."""
        self._note_kept(values)
        self.kept.update(values)

    def until_healthy(self) -> None:
        """For what lets work in again: not before `[health]` is green, where there is one."""
        health = self._health
        if health:
            said = f"the machine is not healthy, as {_named(health)} says"
            self.must(lambda: (self._is_healthy(health), said), HEALTH_EVERY_S)

    def _is_healthy(self, health: Sequence[str]) -> bool:
        """Who hangs is not well, and asked anew."""
        try:
            return self.command(health, checked=False, within_s=self._health_timeout_s) == 0
        except OutOfTime:
            return False

    def check(self, argv: Sequence[str]) -> None:
        """Run it; anything but 0 is a failure."""
        self.command(argv)

    def _spawn(self, argv: Sequence[str], more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        held_back = os.name == "posix"
        try:
            with _unnamed_file() as file:
                file.write(json.dumps(self.event).encode() + b"\n")
                file.seek(0)
                number = file.fileno()
                child = subprocess.Popen(
                    ["/bin/sh", "-c", _GATE, "sh", str(number), *argv] if held_back else list(argv),
                    stdin=subprocess.PIPE if held_back else file,
                    env={**os.environ, **self.variables(), **more},
                    start_new_session=held_back,
                    pass_fds=(number,) if held_back else (),
                )
        except OSError as error:
            raise StepFailed(f"{_named(argv)} cannot be run: {error.strerror}") from None
        try:
            self._note_child(child.pid, start_ticks(child.pid))
        except BaseException:  # unknown to the journal it must not run: without its line it ends
            child.communicate()
            raise
        # Broken when it is gone already: then its exit code tells.
        with contextlib.suppress(OSError), child.stdin or contextlib.nullcontext() as stdin:
            if stdin is not None:
                stdin.write(b"go\n")
        return child

    def variables(self) -> Dict[str, str]:
        event = self.event
        return {
            "FOREWARN_STEP": self.step,
            "FOREWARN_PHASE": self.phase,
            "FOREWARN_EVENT_ID": str(event.get("EventId", "")),
            "FOREWARN_EVENT_TYPE": str(event.get("EventType", "")),
            "FOREWARN_EVENT_STATUS": str(event.get("EventStatus", "")),
            "FOREWARN_EVENT_SOURCE": str(event.get("EventSource", "")),
            "FOREWARN_RESOURCES": _shortened(" ".join(event.get("Resources", ()))),
            "FOREWARN_NOT_BEFORE": str(event.get("NotBefore", "")),
            "FOREWARN_DURATION_S": str(event.get("DurationInSeconds", -1)),
            "FOREWARN_TIME_LEFT_S": str(max(0, int(self.left_s()))),
        }


def drain_end_s(left_s: float, drain_for_s: float) -> float:
    """How much time is left when draining, begun with so much, is to be given up: with enough to finish and to verify."""
    return max(left_s - drain_for_s, min(max(FINISH_S[0], left_s / 4), FINISH_S[1]))


def _unnamed_file() -> IO[bytes]:
    """In memory where the system has that: a full disk is no reason not to run a step."""
    return os.fdopen(os.memfd_create("event"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def _shortened(names: str) -> str:
    """Whole names only; all of them are in the event on stdin."""
    if len(names.encode()) <= MAX_RESOURCES_BYTES:
        return names
    return names.encode()[: MAX_RESOURCES_BYTES + 1].rpartition(b" ")[0].decode("utf-8", "ignore")


def _named(argv: Sequence[str]) -> str:
    """The program alone: an argument may be a secret."""
    return Path(argv[0]).name


@contextlib.contextmanager
def _ending(child: subprocess.Popen[bytes]) -> Iterator[Callable[[float], Optional[int]]]:
    """A way to wait for its end: without waking up meanwhile, where the system has one."""
    try:
        watched = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        yield lambda seconds: _polled(child, seconds)
        return
    try:
        yield lambda seconds: child.poll() if select.select([watched], [], [], seconds)[0] else None
    finally:
        os.close(watched)


def _polled(child: subprocess.Popen[bytes], seconds: float) -> Optional[int]:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def end_group(pid: int, time: Time, *, reap: Optional[subprocess.Popen[bytes]] = None) -> None:
    """Ask the program and all it started to end; those still there after a grace are ended."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        _signal_group(pid, number)
        give_up_s = time.monotonic() + GRACE_S
        while time.monotonic() < give_up_s:
            over = not _group_lives(pid)
            if reap is not None:
                reap.poll()
            if over:
                return
            time.sleep(POLL_S)


def _group_lives(group: int) -> bool:
    """Whether anybody is left in it who is no zombie."""
    if os.name != "posix":
        return alive(group)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    found = [_fields(path.name) for path in Path("/proc").glob("[0-9]*")]
    return not found or any(fields[0] not in ("Z", "X") and int(fields[2]) == group for fields in found if fields)


def _signal_group(pid: int, number: int) -> None:
    try:
        if os.name == "posix":
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except OSError:
        pass


def start_ticks(pid: int) -> int:
    """When the process began, in the kernel's ticks: with the pid it names one process for ever. 0: not known."""
    fields = _fields(str(pid))
    return 0 if not fields or fields[0] in ("Z", "X") else int(fields[19])


def _fields(pid: str) -> List[str]:
    """The kernel's account of a process from its state on: state, parent, group, …; [] if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []
    return fields if len(fields) > 19 else []


def children(pid: int) -> List[Tuple[int, int]]:
    """The processes it has started and that live, each with when it began."""
    found = [(path.name, _fields(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [(int(name), int(of[19])) for name, of in found if of and of[0] not in ("Z", "X") and int(of[1]) == pid]


def alive(pid: int) -> bool:
    """Whether there is such a process and it is no zombie."""
    if Path("/proc/self").exists():
        return start_ticks(pid) != 0
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def await_orphan(child: Tuple[int, int], run: Run, time: Time) -> None:
    """Wait for a program that an agent before us started; end it when the time for it is over."""
    pid, ticks = child
    try:
        while pid and ticks and start_ticks(pid) == ticks:
            run.pause(POLL_S)
    except OutOfTime:
        end_group(pid, time)
        raise
