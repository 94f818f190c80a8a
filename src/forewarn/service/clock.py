"""The service clock: system, kept by a database, manual or scaled. With `server` the only place that reads the wall clock.

Notice, NotBefore, simulated work, history and every shown time use a Clock; sockets, deadlines and leases do not: they
use the machine's monotonic clock.

A wall clock may be set. Starting early is the one unforgivable error, so a clock of real time is held against the machine's
boot clock, which nobody can set: where it is suddenly ahead, it says from which moment on it cannot be trusted.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from forewarn.core.errors import Invalid, Refused, StoreUnavailable

MAX_RATE = 100_000.0
# "A wall clock that jumps forward by more than 30 s against the boot clock holds unapproved starts."
MAX_JUMP_S = 30.0
# A reading of a kept clock is carried on for so long: two machines drift apart by far less than a millisecond meanwhile.
KEPT_FOR_S = 3.0
# One that took longer to come may be as much too old: by it an event would be told of with less than its notice.
MAX_READING_S = 3.0
MAX_READINGS = 3
# Readings that arrive one sooner than the other do not make it go backwards.
MAX_STILL = timedelta(seconds=1)


def boot_clock_s() -> float:
    """Seconds since this machine came up, asleep or awake."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Jump(NamedTuple):
    """The clock is ahead by so much; `trusted` is what it would say otherwise, and `since` what it said last before."""

    trusted: datetime
    seconds: float
    since: datetime


class Clock(Protocol):
    """`steady`: it runs at the pace of real seconds. `seconds_until` is how long to wait for a moment, in real seconds; None:
    time does not pass by itself.
    """

    name: str
    steady: bool

    def now(self) -> datetime:
        """For decisions."""

    def glance(self) -> datetime:
        """For showing: asks nobody, so it never waits and never fails."""

    def jump(self) -> Jump | None:
        """The last jump forward that `now` noticed and nobody took note of yet."""

    def note_jump(self, jump: Jump) -> None:
        """It is taken note of."""

    def seconds_until(self, moment: datetime) -> float | None: ...

    def move_to(self, moment: datetime) -> None:
        """Jump forward, or raise Refused where time is not ours to move."""


class _Watched:
    """A reference: the clock's last reading, and that of the boot clock beside it.

    It moves with every step, also with one back: what was promised by a clock that was set back an hour would begin an hour
    early when that is put right.
    """

    def __init__(self, boot_s: Callable[[], float]) -> None:
        self._boot_s = boot_s
        self._lock = threading.Lock()
        self._at: datetime | None = None
        self._at_s = 0.0
        self._jump: Jump | None = None

    def look(self, reading: datetime, read_s: float | None = None) -> None:
        """What the clock said, at that reading of the boot clock; else just now."""
        with self._lock:
            if read_s is None:
                read_s = self._boot_s()
            if self._at is not None:
                expected = self._at + timedelta(seconds=read_s - self._at_s)
                ahead_s = (reading - expected).total_seconds()
                if ahead_s > MAX_JUMP_S:
                    trusted, since = expected, self._at
                    if self._jump is not None:
                        trusted, since = min(trusted, self._jump.trusted), min(since, self._jump.since)
                    self._jump = Jump(trusted, (reading - trusted).total_seconds(), since)
            self._at, self._at_s = reading, read_s

    def jump(self) -> Jump | None:
        return self._jump

    def note(self, jump: Jump) -> None:
        with self._lock:
            if self._jump == jump:
                self._jump = None


class SystemClock:
    name = "system"
    steady = True

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        boot_s: Callable[[], float] = boot_clock_s,
    ) -> None:
        self._wall = wall
        self._watched = _Watched(boot_s)
        self.now()

    def now(self) -> datetime:
        now = self._wall()
        self._watched.look(now)
        return now

    def glance(self) -> datetime:
        return self._wall()

    def jump(self) -> Jump | None:
        return self._watched.jump()

    def note_jump(self, jump: Jump) -> None:
        self._watched.note(jump)

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds())

    def move_to(self, moment: datetime) -> None:
        raise Refused(
            f"the system clock cannot be moved to {moment:%H:%M:%S}: serve with --clock manual or --clock 60x"
        )


class KeptClock(SystemClock):
    """Somebody else's clock, a database's: read now and then, carried on by this machine's boot clock for a short while.

    A reading counts from when it arrived, so this clock is behind the one it follows by the way it took, and never ahead.
    Where a reading was on its way for longer than the one before, it stands still for that moment; where the other was set
    back it follows, for whoever looks at it for the first time does so too, and all nodes must have one time.
    """

    def __init__(
        self,
        read: Callable[[], datetime],
        boot_s: Callable[[], float] = boot_clock_s,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._boot_s = boot_s
        self._watched = _Watched(boot_s)
        self._reading_lock = threading.Lock()
        self._kept: tuple[datetime, float] | None = None
        self._latest = datetime.min.replace(tzinfo=UTC)

    def keep(self, reading: datetime, told_s: float | None = None) -> None:
        """What the other clock said, at that reading of the monotonic clock; else just now."""
        ago_s = 0.0 if told_s is None else self._monotonic() - told_s
        self._keep(reading, self._boot_s() - ago_s)

    def _keep(self, reading: datetime, read_s: float) -> None:
        self._watched.look(reading, read_s)
        with self._reading_lock:
            self._kept = (reading, read_s)

    def now(self) -> datetime:
        """Reads the other clock itself, and may fail like whoever keeps it, when the last reading is too old."""
        kept = self._kept
        if kept is None or self._boot_s() - kept[1] > KEPT_FOR_S:
            self._ask()
        return self.glance()

    def _ask(self) -> None:
        for _ in range(MAX_READINGS):
            asked_s = self._boot_s()
            reading, told_s = self._read(), self._boot_s()
            if told_s - asked_s <= MAX_READING_S:
                self._keep(reading, told_s)
                return
        raise StoreUnavailable(f"what time it is took longer than {MAX_READING_S:g} s to come, {MAX_READINGS} times")

    def glance(self) -> datetime:
        with self._reading_lock:
            if self._kept is not None:
                reading, read_s = self._kept
                now = reading + timedelta(seconds=self._boot_s() - read_s)
                if now > self._latest or self._latest - now > MAX_STILL:
                    self._latest = now
            return self._latest

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.glance()).total_seconds())


class _Trusted:
    """A clock of our own making, which jumps only when it is told to."""

    def jump(self) -> Jump | None:
        return None

    def note_jump(self, jump: Jump) -> None:
        """There is none."""


class ManualClock(_Trusted):
    """Stands still until it is moved; never backwards."""

    name = "manual"
    steady = False

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    glance = now

    def seconds_until(self, moment: datetime) -> float | None:
        return 0.0 if moment <= self._now else None

    def move_to(self, moment: datetime) -> None:
        self._now = _forward(self._now, moment)


class ScaledClock(_Trusted):
    """Runs `rate` times as fast as the machine's monotonic clock, and can be moved forward."""

    steady = False

    def __init__(self, start: datetime, rate: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not 0 < rate <= MAX_RATE:
            raise Invalid(
                f"a clock rate of {rate:g} makes no sense: use a number above 0 and up to {MAX_RATE:g}, like 60x"
            )
        self.name = f"{rate:g}x"
        self._lock = threading.Lock()
        self._rate = rate
        self._monotonic = monotonic
        self._start, self._origin = start, monotonic()

    def now(self) -> datetime:
        with self._lock:
            return self._read()

    glance = now

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds() / self._rate)

    def move_to(self, moment: datetime) -> None:
        with self._lock:
            # Time went on while the caller was busy: a moment just passed is no step back.
            self._start, self._origin = max(self._read(), moment), self._monotonic()

    def _read(self) -> datetime:
        return self._start + timedelta(seconds=(self._monotonic() - self._origin) * self._rate)


def _forward(now: datetime, moment: datetime) -> datetime:
    if moment < now:
        raise Refused(f"a clock never goes backwards: it is {now.isoformat()}, asked for {moment.isoformat()}")
    return moment


def clock_for(text: str, *, floor: datetime | None = None) -> Clock:
    """The clock a setting names: `system`, `manual` or a rate like `60x`.

    `floor` is the last moment that was lived through: a clock that is not the system's goes on from there.
    """
    if text == "system":
        return SystemClock()
    now = datetime.now(UTC)
    start = now if floor is None else max(now, floor)
    if text == "manual":
        return ManualClock(start.replace(microsecond=0) + timedelta(seconds=bool(start.microsecond)))
    try:
        rate = float(text.removesuffix("x")) if text.endswith("x") else 0.0
    except ValueError:
        rate = 0.0
    if not rate:
        raise Invalid(f"clock {text!r} is unknown: use system, manual, or a rate like 60x")
    return ScaledClock(start, rate)
