"""Time, chance and the agenda of a simulated run, all decided by the seed.

The agenda holds every future action with its moment. While a call of a node takes long, the agenda goes on inside the call:
other nodes act meanwhile, in one thread and always in the same order. `log` describes the whole run, line by line.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

START = datetime(2030, 1, 1, tzinfo=UTC)
MAX_TURNS = 20_000
# Setting the wall clock forward by at most this much does not count as a jump.
MAX_STEP_MS = 30_000
# The most calls that hang at once: the first to hang is the last to go on, and must not wait for ever.
MAX_HANGING = 2


@lru_cache(maxsize=1_000)
def wall_at(milliseconds: int) -> datetime:
    """Return the moment this long after the start of the run, by a wall clock that is not set."""
    return START + timedelta(milliseconds=milliseconds)


class Line(NamedTuple):
    """A line of the trace. A function makes its text when someone reads it, which for most runs nobody does."""

    at_ms: int
    text: str | Callable[[], str]

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:10.3f} {self.text if isinstance(self.text, str) else self.text()}"


class Crash(BaseException):
    """A node dies: it stops and loses its memory."""


@dataclass(slots=True, kw_only=True)
class Faults:
    """The faults of a run, each as a probability per call or a typical number of seconds between two; 0 means never.

    `host_work` is no fault: it is the number of requests to work on hosts for every 17 other requests.
    """

    on: bool = True
    fail_before: float = 0.0
    fail_after: float = 0.0
    conflict: float = 0.0
    slow: float = 0.0
    slow_commit: float = 0.0
    crash: float = 0.0
    slow_s: int = 20
    notification_lost: float = 0.0
    notification_late_s: int = 0
    crash_every_s: int = 0
    blackout_every_s: int = 0
    away_every_s: int = 0
    stop_every_s: int = 0
    clock_every_s: int = 0
    jump_s: int = 0
    too_large: float = 0.0
    foreign_every_s: int = 0
    failover_every_s: int = 0
    standby: bool = False
    all_tick: bool = False
    same_name: float = 0.0
    reboot: float = 0.0
    work_fails: float = 0.0
    cannot_begin: float = 0.0
    report_twice: float = 0.0
    forget_every_s: int = 0
    host_work: int = 2

    @staticmethod
    def drawn(choose: random.Random) -> "Faults":
        """Draw some faults, each rare: a run in which everything fails all the time never reaches rare states."""

        some = choose.choice

        return Faults(
            fail_before=some([0.0, 0.0, 0.01, 0.05]),
            fail_after=some([0.0, 0.0, 0.02, 0.10]),
            conflict=some([0.0, 0.0, 0.03]),
            slow=some([0.0, 0.01, 0.03]),
            slow_s=some([1, 5, 60]),
            crash=some([0.0, 0.0, 0.004, 0.012]),
            notification_lost=some([0.0, 0.1, 0.5, 1.0]),
            notification_late_s=some([0, 1, 10]),
            crash_every_s=some([0, 0, 900, 400]),
            blackout_every_s=some([0, 0, 0, 900]),
            away_every_s=some([0, 0, 600]),
            stop_every_s=some([0, 0, 600]),
            clock_every_s=some([0, 300]),
            jump_s=some([0, 3_600, 600, 40]),
            too_large=some([0.0, 0.0, 0.05]),
            foreign_every_s=some([0, 300]),
            failover_every_s=some([0, 0, 0, 600]),
            standby=some([False, False, True]),
            all_tick=some([False, False, True]),
            same_name=some([0.0, 0.5]),
            reboot=some([0.0, 0.0, 0.2]),
            work_fails=some([0.0, 0.1, 0.4]),
            cannot_begin=some([0.0, 0.0, 0.1]),
            report_twice=some([0.0, 0.2]),
            forget_every_s=some([0, 0, 500]),
            host_work=some([0, 2, 4]),
        )


class Universe:
    def __init__(self, seed: int, *, faults: Faults | None = None) -> None:
        self.seed = seed
        self.choose = random.Random(seed)
        self.random = self.choose.random
        self.faults = faults if faults is not None else Faults.drawn(self.choose)
        # Whether work may be repeated. Otherwise only the state folder of the node that began it knows of it.
        self.repeatable = seed % 2 == 0
        self.lines: list[Line] = []
        self.now_ms = 0
        # When the wall clock was set, and by how much. The monotonic clock is never set.
        self._moves: list[tuple[int, int]] = []
        self._off_ms = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._ids = 0
        self._turns = 0
        self.hanging = -1

    def log(self, text: str | Callable[[], str]) -> None:
        self.lines.append(Line(self.now_ms, text))

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:08X}-0000-4000-8000-000000000000"

    def seconds(self) -> float:
        """Return the monotonic clock's time."""
        return self.now_ms / 1_000

    @property
    def wall_ms(self) -> int:
        """The milliseconds by the wall clock since the start of the run."""
        return self.now_ms + self._off_ms

    def wall(self, at_ms: int | None = None) -> datetime:
        """Return the wall clock's time, now or at an earlier moment."""
        if at_ms is None:
            return wall_at(self.wall_ms)
        off_ms = self._off_ms
        if self._moves and at_ms < self._moves[-1][0]:
            off_ms = sum(by_ms for moved_ms, by_ms in self._moves if moved_ms <= at_ms)
        return wall_at(at_ms + off_ms)

    def set_wall(self, by_ms: int) -> None:
        self._moves.append((self.now_ms, by_ms))
        self._off_ms += by_ms
        self.log(f"the wall clock jumps by {by_ms / 1000:g} s")

    def chance(self, probability: float) -> bool:
        """Return True with this probability while faults are on; a probability of 0 draws no random number."""
        return bool(probability) and self.faults.on and self.random() < probability

    def about_ms(self, seconds: float) -> int:
        """Return a random duration of about this many seconds."""
        return int(seconds * 1000 * self.choose.uniform(0.2, 1.8))

    def later(self, in_ms: int, act: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._agenda, (self.now_ms + in_ms, self._numbers, act))

    def every(self, seconds: int, act: Callable[[], None]) -> None:
        """Repeat the action at irregular times; never if `seconds` is 0."""
        if not seconds:
            return

        def again() -> None:
            act()
            self.later(self.about_ms(seconds), again)

        self.later(self.about_ms(seconds), again)

    def pass_time(self, milliseconds: int) -> None:
        """Run everything on the agenda until then, in order, each at its moment."""
        end_ms = self.now_ms + milliseconds
        self.hanging += 1
        while self._agenda and self._agenda[0][0] <= end_ms:
            self._turns += 1
            if self._turns > MAX_TURNS:
                raise RuntimeError("this run does not come to an end")
            at_ms, _, act = heapq.heappop(self._agenda)
            self.now_ms = max(self.now_ms, at_ms)
            act()
        self.now_ms = max(self.now_ms, end_ms)
        self.hanging -= 1

    def calm(self) -> None:
        """Stop all faults and clear the agenda."""
        self.faults.on = False
        self._agenda.clear()
        self.log("-- calm")
