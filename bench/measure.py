"""How the benches measure: wall and CPU time of a piece of work, medians of rounds, the resident memory of a process.

The machine is shared: what is compared runs in turns, and a ratio is the median of the rounds' own ratios, so that a
busy moment strikes both sides of it.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def each(self, count: int) -> "Cost":
        return Cost(self.wall_s / count, self.cpu_s / count)


NOTHING = Cost(0.0, 0.0)


def cost_of(work: Callable[[], object]) -> Cost:
    """What it costs this process, the kernel's share included."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(c.wall_s for c in costs), statistics.median(c.cpu_s for c in costs))


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios; a round too short for the kernel to count CPU time makes NaN."""
    return statistics.median(a / b if b else math.nan for a, b in zip(over, under, strict=True))


def quantile(values: Sequence[float], part: float) -> float:
    """The value that `part` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * PAGE_BYTES


def exact_cpu_s(pid: int) -> float:
    """The same as `spent_cpu_s` to the nanosecond, for what lasts only a few of the kernel's ticks; Linux only.

    The number of the process's CPU clock, as clock_getcpuclockid(3) makes it. Threads that have ended count too.
    """
    return time.clock_gettime(~pid << 3 | 2)


def spent_cpu_s(pid: int) -> float:
    """The CPU time another process has used since it was started."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
