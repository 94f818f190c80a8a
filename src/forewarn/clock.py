"""The service clock: system, manual or scaled. With `server` the only place that reads the wall clock.

Notice, NotBefore, simulated work, history and every shown time use a Clock; sockets, deadlines and leases do not: they
use the machine's monotonic clock.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from forewarn.core.errors import Invalid, Refused

MAX_RATE = 100_000.0


class Clock(Protocol):
    """`seconds_until` is how long to wait for a moment, in real seconds; None: time does not pass by itself."""

    name: str

    def now(self) -> datetime: ...

    def seconds_until(self, moment: datetime) -> float | None: ...

    def move_to(self, moment: datetime) -> None:
        """Jump forward, or raise Refused where time is not ours to move."""


class SystemClock:
    name = "system"

    def now(self) -> datetime:
        return datetime.now(UTC)

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds())

    def move_to(self, moment: datetime) -> None:
        raise Refused(
            f"the system clock cannot be moved to {moment:%H:%M:%S}: serve with --clock manual or --clock 60x"
        )


class ManualClock:
    """Stands still until it is moved; never backwards."""

    name = "manual"

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def seconds_until(self, moment: datetime) -> float | None:
        return 0.0 if moment <= self._now else None

    def move_to(self, moment: datetime) -> None:
        self._now = _forward(self._now, moment)


class ScaledClock:
    """Runs `rate` times as fast as the machine's monotonic clock, and can be moved forward."""

    def __init__(self, start: datetime, rate: float) -> None:
        if not 0 < rate <= MAX_RATE:
            raise Invalid(
                f"a clock rate of {rate:g} makes no sense: use a number above 0 and up to {MAX_RATE:g}, like 60x"
            )
        self.name = f"{rate:g}x"
        self._lock = threading.Lock()
        self._rate = rate
        self._start, self._origin = start, time.monotonic()

    def now(self) -> datetime:
        with self._lock:
            return self._read()

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds() / self._rate)

    def move_to(self, moment: datetime) -> None:
        with self._lock:
            # Time went on while the caller was busy: a moment just passed is no step back.
            self._start, self._origin = max(self._read(), moment), time.monotonic()

    def _read(self) -> datetime:
        return self._start + timedelta(seconds=(time.monotonic() - self._origin) * self._rate)


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
