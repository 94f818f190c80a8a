"""Carries out one phase of one step: its time, its variables, its programs, and what it must remember.

A program starts held back: it does not run until its pid is in the journal. If the agent dies before that, the program ends.
So the next agent knows every program that outlived this one, and waits for it instead of starting a second one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
from pathlib import Path
from typing import IO, Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from forewarn.guest.clock import Time
from forewarn.guest.errors import Interrupted, OutOfTime, StepFailed
from forewarn.guest.output import ProgramOutput
from forewarn.guest.processes import POLL_S, discard, end_group, exit_waiter, release, start_held, start_ticks
from forewarn.guest.programs import checked_program

log = logging.getLogger("forewarn.guest.steps")
output_log = logging.getLogger("forewarn.guest.output")

# How often the output of a program is trimmed. The endpoint is polled as often as the client allows: an event may change.
TRIM_OUTPUT_S = 0.2
# With less time than this a check is not worth starting.
CHECK_NEEDS_S = 0.5
# The pause between two health checks.
HEALTH_EVERY_S = 0.5
HEALTH_TIMEOUT_S = 60.0
# A quarter of the time for draining, but at least and at most this much, is kept for the work after it.
FINISH_S = (1.0, 5.0)
MAX_RESOURCES_BYTES = 32 * 1024
# Returns whether the condition holds (None: unknown), and what was seen instead.
Condition = Callable[[], Tuple[Optional[bool], str]]


class Run:
    """What a handler may use: the event, the time left, and ways to run programs, to pause and to remember.

    `kept` holds what earlier phases of this step remembered, also in earlier agents, until the step is undone.

    When no event needs the step any more, the next pause raises Interrupted, and a program is ended first. With `finish` the
    step goes on to its end. A handler sets it after something that it can neither take back nor leave half done.
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
        poll: Callable[[], None] = lambda: None,
        needed: Callable[[], bool] = lambda: True,
        finish: bool = False,
        record_child: Callable[[int, int], None] = lambda _pid, _ticks: None,
        kept: Optional[Mapping[str, Any]] = None,
        record_kept: Callable[[Mapping[str, Any]], None] = lambda _kept: None,
        health: Sequence[str] = (),
        health_timeout_s: float = HEALTH_TIMEOUT_S,
    ) -> None:
        self.step, self.phase, self.event = step, phase, event
        self.change = ""
        self._time = time
        self._deadline_s = time.monotonic() + share_s
        self._limit_s = limit_s
        self._poll, self._needed = poll, needed
        self.finish = finish
        self._record_child = record_child
        self.kept: Dict[str, Any] = dict(kept or {})
        self._record_kept = record_kept
        self._health, self._health_timeout_s = health, health_timeout_s
        self._logged_output = ""

    @property
    def event_key(self) -> str:
        """The id of the event in upper case, for comparing."""
        return str(self.event.get("EventId", "")).upper()

    def wall_s(self) -> float:
        """Return the wall-clock time, which file times use."""
        return self._time.wall()

    def left_s(self) -> float:
        """Return the time until the step's share ends, or until the budget of a more urgent event does."""
        left_s = self._deadline_s - self._time.monotonic()
        limit_s = self._limit_s()
        return left_s if limit_s is None else min(left_s, limit_s)

    def time_for(self, most_s: float) -> float:
        """Return `most_s`, or what is left if that is less; raise OutOfTime when nothing is left."""
        left_s = self.left_s()
        if left_s <= 0:
            raise OutOfTime("it ran out of time")
        return min(most_s, left_s)

    def timeout_s(self, most_s: float) -> float:
        """Return `most_s`, or what is left if that is less, but never nothing: for a request that must be made."""
        return max(0.1, min(most_s, self.left_s()))

    def last_timeout_s(self, most_s: float) -> float:
        """Return `most_s`, also if nothing is left: for a last request that ends what the step has begun."""
        return most_s

    def pause(self, seconds: float) -> None:
        """Sleep; raise OutOfTime, or Interrupted when no event needs the step any more."""
        self._time.sleep(self.time_for(seconds))
        self._poll_and_check()

    def _poll_and_check(self) -> None:
        self._poll()
        if not self.finish and not self._needed():
            raise Interrupted("no event needs it any more")

    def wait_until(self, condition: Condition, every_s: float) -> str:
        """Check until the condition holds and return ""; at the end of the time return what was seen instead."""
        return self._check_until(max(every_s, CHECK_NEEDS_S), every_s, condition)

    def wait_at_most(self, most_s: float, every_s: float, condition: Condition) -> str:
        """Check until the condition holds and return ""; after `most_s`, or half of the time left, return what was seen."""
        return self._check_until(self.left_s() - min(most_s, self.left_s() / 2), every_s, condition)

    def _check_until(self, end_s: float, every_s: float, condition: Condition) -> str:
        """Check until the condition holds and return ""; when `end_s` of the time are left, return what was seen instead."""
        while True:
            holds, seen = condition()
            if holds:
                return ""
            if self.left_s() <= end_s:
                return seen
            self.pause(every_s)

    def require(self, condition: Condition, every_s: float, failure: str = "") -> None:
        """Check until the condition holds; raise OutOfTime with `failure` and what was seen instead."""
        why = self.wait_until(condition, every_s)
        if why:
            raise OutOfTime(f"{failure}: {why}" if failure else why)

    def command(
        self,
        argv: Sequence[str],
        *,
        checked: bool = True,
        more: Optional[Mapping[str, str]] = None,
        within_s: float = float("inf"),
    ) -> int:
        """Run the program to its end with the event on stdin and in variables, and return its exit code.

        `more` adds variables. Raises StepFailed, or OutOfTime after ending the program when its time or `within_s` is over, or
        Interrupted after ending it when no event needs the step any more.
        """
        failed = checked
        with contextlib.closing(ProgramOutput()) as output:
            try:
                child = self._spawn(argv, more or {}, output)
                code = self._wait_for(child, argv, self._time.monotonic() + within_s, output)
                failed = checked and code != 0
            except (Interrupted, SystemExit):  # the program did not fail: it was ended, or it goes on without the agent
                failed = False
                raise
            finally:
                self._log_output(argv, output.text(), failed=failed)
        if code in (126, 127):
            raise StepFailed(f"{_program_name(argv)} cannot be run")
        if failed:
            raise StepFailed(
                f"{_program_name(argv)} ended with {code}"
                if code > 0
                else f"{_program_name(argv)} died of signal {-code}"
            )
        return code

    def _log_output(self, argv: Sequence[str], text: str, *, failed: bool) -> None:
        """Log the output of a program, unless the program has just written the same."""
        if text and self._logged_output != text:
            self._logged_output = text
            level = logging.WARNING if failed else logging.INFO
            output_log.log(
                level, "output of %s (%s %r)", _program_name(argv), self.phase, self.step, extra={"output": text}
            )

    def _wait_for(
        self, child: subprocess.Popen[bytes], argv: Sequence[str], until_s: float, output: ProgramOutput
    ) -> int:
        """Return the exit code; poll the endpoint meanwhile. End the program before raising OutOfTime or Interrupted."""
        with exit_waiter(child) as wait_for_exit:
            try:
                while True:
                    left_s = min(self.left_s(), until_s - self._time.monotonic())
                    if left_s <= 0:
                        raise OutOfTime(f"{_program_name(argv)} did not end in time and was ended")
                    code = wait_for_exit(min(left_s, TRIM_OUTPUT_S))
                    if code is not None:
                        return code
                    output.trim()
                    self._poll_and_check()
            except (OutOfTime, Interrupted):
                end_group(child.pid, self._time, child=child)
                raise

    def keep(self, **values: Any) -> None:
        """Store values in the journal and in `kept` until the step is undone; never secrets."""
        self._record_kept(values)
        self.kept.update(values)

    def wait_until_healthy(self) -> None:
        """Wait until `[health]` passes, where there is one; call it before work is let in again."""
        health = self._health
        if health:
            why = f"the machine is not healthy, as {_program_name(health)} says"
            self.require(lambda: (self._is_healthy(health), why), HEALTH_EVERY_S)

    def _is_healthy(self, health: Sequence[str]) -> bool:
        """Run the health command once; one that does not end in time counts as unhealthy."""
        try:
            return self.command(health, checked=False, within_s=self._health_timeout_s) == 0
        except OutOfTime:
            return False

    def _spawn(self, argv: Sequence[str], more: Mapping[str, str], output: ProgramOutput) -> subprocess.Popen[bytes]:
        argv = checked_program(argv)
        try:
            with _anonymous_file() as file:
                file.write(json.dumps(self.event).encode() + b"\n")
                file.seek(0)
                environment = {**os.environ, **self.variables(), **more}
                child = start_held(argv, file, env=environment, stdout=output.fileno(), stderr=subprocess.STDOUT)
        except OSError as error:
            raise StepFailed(f"{_program_name(argv)} cannot be run: {error.strerror}") from None
        try:
            self._record_child(child.pid, start_ticks(child.pid))
        except BaseException:  # a program that is not in the journal must not run
            discard(child)
            raise
        release(child)
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
            "FOREWARN_RESOURCES": _shorten(" ".join(event.get("Resources", ()))),
            "FOREWARN_NOT_BEFORE": str(event.get("NotBefore", "")),
            "FOREWARN_DURATION_S": str(event.get("DurationInSeconds", -1)),
            "FOREWARN_TIME_LEFT_S": str(max(0, int(self.left_s()))),
        }


def drain_end_s(left_s: float, drain_for_s: float) -> float:
    """Return how much of the step's time must be left when draining is given up: enough to finish and to verify."""
    return max(left_s - drain_for_s, min(max(FINISH_S[0], left_s / 4), FINISH_S[1]))


def _anonymous_file() -> IO[bytes]:
    """Return a file in memory where the system has that: a full disk must not keep a step from running."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("event"), "w+b")
    import tempfile  # only systems without files in memory need it

    return tempfile.TemporaryFile()


def _shorten(names: str) -> str:
    """Return as many whole names as fit; the event on stdin has all of them."""
    if len(names.encode()) <= MAX_RESOURCES_BYTES:
        return names
    return names.encode()[: MAX_RESOURCES_BYTES + 1].rpartition(b" ")[0].decode("utf-8", "ignore")


def _program_name(argv: Sequence[str]) -> str:
    """Return the program without arguments, which may hold secrets."""
    return Path(argv[0]).name


def await_orphan(child: Tuple[int, int], run: Run, time: Time) -> None:
    """Wait for a program that an earlier agent started; end it when its time is over, or when no event needs it any more."""
    if _lives(child):
        log.info("%s %r waits for process %d, which an earlier agent started", run.phase, run.step, child[0])
    try:
        while _lives(child):
            run.pause(POLL_S)
    except (OutOfTime, Interrupted):
        end_group(child[0], time)
        raise


def end_orphan(child: Tuple[int, int], time: Time) -> None:
    """End a program that an earlier agent started."""
    if _lives(child):
        end_group(child[0], time)


def _lives(child: Tuple[int, int]) -> bool:
    pid, ticks = child
    return bool(pid and ticks) and start_ticks(pid) == ticks
