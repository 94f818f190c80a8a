"""The service clock: system, kept by a database, manual or scaled. Only this module and `app.server` read the wall clock.

Notice, NotBefore, simulated work, history and every time shown use a Clock. Sockets, deadlines and leases use the machine's
monotonic clock.

A wall clock may be set. To start an event early is the worst error of this service. So a clock of real time is compared with
the machine's boot clock, which nobody can set: if the clock is suddenly ahead, it reports from which moment on it cannot be
trusted. A reading is saved for the next start, so that a jump while no node ran is noticed too.
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
# A reading of the database's clock is used for this long: two machines drift apart by far less than a millisecond meanwhile.
KEPT_FOR_S = 3.0
# A reading that took longer to arrive may be that much too old: events would be published with less than their notice.
MAX_READING_S = 3.0
MAX_READINGS = 3
# The clock stands still, and does not go back, where a reading took longer to arrive than the one before.
MAX_STILL = timedelta(seconds=1)
# A saved reading is replaced when the clock has moved against the boot clock by more than this.
MAX_UNSAVED_S = 1.0


def boot_clock_s() -> float:
    """Return the seconds since this machine started, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Jump(NamedTuple):
    """The clock is `seconds` ahead of `trusted`, the expected time; `since` is its last reading before the jump.

    `since_s` is what the boot clock showed at that reading.
    """

    trusted: datetime
    seconds: float
    since: datetime
    since_s: float


class Reading(NamedTuple):
    """A reading of a wall clock, and what the boot clock showed then."""

    at: datetime
    boot_s: float

    @property
    def booted(self) -> datetime:
        """What the wall clock would have shown at boot: it moves only when the clock is set or drifts."""
        return self.at - timedelta(seconds=self.boot_s)

    def set_since_s(self, at: datetime, boot_s: float) -> float:
        """Return by how much the wall clock was set or drifted until a later reading, up to rounding."""
        return (at - self.at).total_seconds() - (boot_s - self.boot_s)


class SavedReading(Protocol):
    """A reading that outlives the process, though not the boot of the machine."""

    def load(self) -> Reading | None:
        """Return the reading that was saved last, if it was saved since this machine started."""

    def save(self, reading: Reading) -> bool:
        """Replace the saved reading; return False if that failed."""


class Clock(Protocol):
    """A source of time. Until it is moved, `rate` of its seconds pass in a real second: 0 if it stands still."""

    name: str
    rate: float

    def now(self) -> datetime:
        """Return the time for a decision."""

    def display_time(self) -> datetime:
        """Return the time to show: from memory, so it never waits and never fails."""

    def jump(self) -> Jump | None:
        """Return the last jump forward that `now` noticed and that `note_jump` has not acknowledged."""

    def note_jump(self, jump: Jump) -> None:
        """Acknowledge a jump: it has been saved."""

    def seconds_since(self, jump: Jump) -> float:
        """Return the real seconds since the last reading before the jump."""

    def save_reading(self) -> None:
        """Save the last reading for the next start, unless a jump is not acknowledged yet.

        Called at the start of the node and before every decision.
        """

    def seconds_until(self, moment: datetime) -> float | None:
        """Return how many real seconds to wait for a moment; None if time does not pass by itself."""

    def move_to(self, moment: datetime) -> None:
        """Move the clock forward, or raise Refused if it cannot be moved."""

    def listen(self, moved: Callable[[], None]) -> None:
        """Call `moved` after each `move_to`."""


class _JumpDetector:
    """Compares each reading of a clock with the boot clock.

    The reference is the last reading, also after a step back: events planned on a clock that was set back by an hour would
    start an hour early when the clock is corrected.
    """

    def __init__(self, boot_s: Callable[[], float], saved: SavedReading | None = None) -> None:
        """`saved` holds the last reading of the process before this one, which is the first reference."""
        self._boot_s = boot_s
        self._saved = saved
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._last = self._last_saved = saved.load() if saved is not None else None
        self._jump: Jump | None = None

    def observe(self, reading: datetime, read_s: float | None = None) -> None:
        """Take a reading of the clock, read when the boot clock showed `read_s`; by default now."""
        with self._lock:
            if read_s is None:
                read_s = self._boot_s()
            if self._last is not None and self._last.set_since_s(reading, read_s) > MAX_JUMP_S / 2:
                expected = self._last.booted + timedelta(seconds=read_s)
                ahead_s = (reading - expected).total_seconds()
                if ahead_s > MAX_JUMP_S:
                    trusted, since = expected, self._last
                    if self._jump is not None:
                        trusted = min(trusted, self._jump.trusted)
                        since = Reading(min(since.at, self._jump.since), self._jump.since_s)
                    self._jump = Jump(trusted, (reading - trusted).total_seconds(), since.at, since.boot_s)
            self._last = Reading(reading, read_s)

    def jump(self) -> Jump | None:
        return self._jump

    def seconds_since(self, jump: Jump) -> float:
        return self._boot_s() - jump.since_s

    def acknowledge(self, jump: Jump) -> None:
        with self._lock:
            if self._jump == jump:
                self._jump = None

    def save_reading(self) -> None:
        """Save the last reading if the saved one no longer shows where the clock stands."""
        with self._saving:
            with self._lock:
                # Before a jump is acknowledged, only the reading before it shows the jump to the next process.
                last = self._last if self._jump is None else None
            if self._saved is None or last is None:
                return
            if self._last_saved is not None and abs(self._last_saved.set_since_s(*last)) <= MAX_UNSAVED_S:
                return
            if self._saved.save(last):
                self._last_saved = last


class SystemClock:
    name = "system"
    rate = 1.0

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        boot_s: Callable[[], float] = boot_clock_s,
        saved: SavedReading | None = None,
    ) -> None:
        self._wall = wall
        self._jumps = _JumpDetector(boot_s, saved)
        self.now()

    def now(self) -> datetime:
        now = self._wall()
        self._jumps.observe(now)
        return now

    def display_time(self) -> datetime:
        return self._wall()

    def jump(self) -> Jump | None:
        return self._jumps.jump()

    def note_jump(self, jump: Jump) -> None:
        self._jumps.acknowledge(jump)

    def seconds_since(self, jump: Jump) -> float:
        return self._jumps.seconds_since(jump)

    def save_reading(self) -> None:
        self._jumps.save_reading()

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds())

    def move_to(self, moment: datetime) -> None:
        raise Refused(
            f"the system clock cannot be moved to {moment:%H:%M:%S}: serve with --clock manual or --clock 60x"
        )

    def listen(self, moved: Callable[[], None]) -> None:
        """Do nothing: this clock is not moved."""


class KeptClock(SystemClock):
    """The clock of a database: read now and then, and continued with this machine's boot clock for a short while.

    A reading counts from its arrival. So this clock is behind the database's by the time the reading took, and never ahead.
    If a reading took longer than the one before, this clock stands still for that moment. If the database's clock is set back,
    this clock follows: a node that reads it for the first time does so too, and all nodes must have the same time.
    """

    def __init__(
        self,
        read: Callable[[], datetime],
        boot_s: Callable[[], float] = boot_clock_s,
        monotonic: Callable[[], float] = time.monotonic,
        saved: SavedReading | None = None,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._boot_s = boot_s
        self._jumps = _JumpDetector(boot_s, saved)
        self._reading_lock = threading.Lock()
        self._kept: tuple[datetime, float] | None = None
        self._latest = datetime.min.replace(tzinfo=UTC)

    def keep(self, reading: datetime, arrived_s: float | None = None) -> None:
        """Use a reading that arrived when the monotonic clock showed `arrived_s`; by default now."""
        ago_s = 0.0 if arrived_s is None else self._monotonic() - arrived_s
        self._keep(reading, self._boot_s() - ago_s)

    def _keep(self, reading: datetime, read_s: float) -> None:
        self._jumps.observe(reading, read_s)
        with self._reading_lock:
            self._kept = (reading, read_s)

    def now(self) -> datetime:
        """Return the time; read the database's clock if the last reading is too old, which may fail."""
        kept = self._kept
        if kept is None or self._boot_s() - kept[1] > KEPT_FOR_S:
            self._read_anew()
        return self.display_time()

    def _read_anew(self) -> None:
        for _ in range(MAX_READINGS):
            requested_s = self._boot_s()
            reading, arrived_s = self._read(), self._boot_s()
            if arrived_s - requested_s <= MAX_READING_S:
                self._keep(reading, arrived_s)
                return
        raise StoreUnavailable(
            f"reading the database's clock took longer than {MAX_READING_S:g} s, {MAX_READINGS} times"
        )

    def display_time(self) -> datetime:
        with self._reading_lock:
            if self._kept is not None:
                reading, read_s = self._kept
                now = reading + timedelta(seconds=self._boot_s() - read_s)
                if now > self._latest or self._latest - now > MAX_STILL:
                    self._latest = now
            return self._latest

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.display_time()).total_seconds())


class _Trusted:
    """A clock that no one can set from outside: it has no unexpected jumps."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def listen(self, moved: Callable[[], None]) -> None:
        self._listeners.append(moved)

    def _tell_listeners(self) -> None:
        for moved in self._listeners:
            moved()

    def jump(self) -> Jump | None:
        return None

    def note_jump(self, jump: Jump) -> None:
        """Do nothing: there is no jump."""

    def seconds_since(self, _: Jump) -> float:
        """Return 0: there is no jump."""
        return 0.0

    def save_reading(self) -> None:
        """Do nothing: the next process cannot compare this clock with the boot clock."""


class ManualClock(_Trusted):
    """Stands still until `move_to` moves it forward."""

    name = "manual"
    rate = 0.0

    def __init__(self, start: datetime) -> None:
        super().__init__()
        self._now = start

    def now(self) -> datetime:
        return self._now

    display_time = now

    def seconds_until(self, moment: datetime) -> float | None:
        return 0.0 if moment <= self._now else None

    def move_to(self, moment: datetime) -> None:
        self._now = _forward(self._now, moment)
        self._tell_listeners()


class ScaledClock(_Trusted):
    """Runs `rate` times as fast as the machine's monotonic clock, and can be moved forward."""

    def __init__(self, start: datetime, rate: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not 0 < rate <= MAX_RATE:
            raise Invalid(
                f"a clock rate of {rate:g} makes no sense: use a number above 0 and up to {MAX_RATE:g}, like 60x"
            )
        super().__init__()
        self.name = f"{rate:g}x"
        self.rate = rate
        self._lock = threading.Lock()
        self._monotonic = monotonic
        self._start, self._origin = start, monotonic()

    def now(self) -> datetime:
        with self._lock:
            return self._read()

    display_time = now

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds() / self.rate)

    def move_to(self, moment: datetime) -> None:
        with self._lock:
            # Time went on while the caller was busy: a moment that has just passed is no step back.
            self._start, self._origin = max(self._read(), moment), self._monotonic()
        self._tell_listeners()

    def _read(self) -> datetime:
        return self._start + timedelta(seconds=(self._monotonic() - self._origin) * self.rate)


def _forward(now: datetime, moment: datetime) -> datetime:
    if moment < now:
        raise Refused(f"a clock never goes backwards: it is {now.isoformat()}, requested {moment.isoformat()}")
    return moment


def clock_for(text: str, *, floor: datetime | None = None, saved: SavedReading | None = None) -> Clock:
    """Return the clock that a setting names: `system`, `manual` or a rate like `60x`.

    `floor` is the last moment in the store: a clock that is not the system's continues from there. `saved` keeps a reading of
    the system's clock for the next start.
    """
    if text == "system":
        return SystemClock(saved=saved)
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
