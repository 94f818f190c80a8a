"""How late events start when very many are due at the same moment, with the real ticker thread on a running clock."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bench.fleet import BEGINNING, scope_name
from bench.measure import Cost, cost_of, quantile
from bench.report import Verdict, at_most, none_of, print_table
from bench.service import reboot, service_on
from bench.size import Size
from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.model import Status, Targets
from forewarn.service.clock import ScaledClock

LATER = timedelta(days=1)  # than anything the benches before did in this database
NOTICE = timedelta(hours=2)  # far enough to submit everything before
HEAD_START = timedelta(seconds=0.5)
# A single event of another scope becomes due while the others are being started.
SINGLE_AFTER = timedelta(seconds=1)
GIVE_UP_AFTER_S = 300.0
MOST_LATE_S = 3.0
MOST_LATE_SINGLE_S = 0.5


@dataclass(slots=True)
class Starts:
    """Each start's lateness at the moment its commit was acknowledged, in seconds."""

    clock: ScaledClock
    late_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    early: int = 0

    def hear(self, change: Change) -> None:
        now = self.clock.now()
        for event in change.events:
            if event.status is Status.STARTED and event.started is not None and event.not_before is not None:
                self.late_s[event.scope].append((now - event.not_before).total_seconds())
                self.early += min(now, event.started) < event.not_before


def measure_lateness(path: Path, scopes: int, size: Size) -> list[Verdict]:
    events = min(size.burst_events, scopes - 1)
    # The rate of the wall clock, but it can be moved over the notice.
    clock = ScaledClock(BEGINNING + LATER, 1.0)
    not_before = (clock.now() + NOTICE).replace(microsecond=0)
    with service_on(path, clock) as service:
        starts = Starts(clock)
        service.control.listen(starts.hear)
        apart = scopes // events
        names = [scope_name(index * apart) for index in range(events)]
        single = scope_name(scopes - 1)
        reboot(service, (Targets(scope=name, update_domain=0) for name in names), not_before)
        reboot(service, [Targets(scope=single, update_domain=0)], not_before + SINGLE_AFTER)
        service.ticker.cycle_until_idle()  # finds them published, from when their notice counts
        clock.move_to(not_before - HEAD_START)
        with ticking(service):
            cost = cost_of(lambda: _wait_for(starts, events + 1))
    return _report(starts, single, scopes, cost)


@contextmanager
def ticking(service: Service) -> Iterator[None]:
    ticker = threading.Thread(target=service.ticker.run, name="ticker", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        service.ticker.stop()
        ticker.join()


def _wait_for(starts: Starts, events: int) -> None:
    deadline_s = time.monotonic() + GIVE_UP_AFTER_S
    while len(starts.late_s) < events and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if len(starts.late_s) != events:
        raise RuntimeError(f"{len(starts.late_s)} of {events} events started within {GIVE_UP_AFTER_S:g} s")


def _report(starts: Starts, single: str, scopes: int, cost: Cost) -> list[Verdict]:
    (single_s,) = starts.late_s.pop(single)
    late_s = [seconds for each in starts.late_s.values() for seconds in each]
    row = [f"{len(late_s):,}", *(f"{quantile(late_s, part):.2f} s" for part in (0.5, 0.99))]
    row += [f"{max(late_s):.2f} s", f"{single_s:.2f} s", str(starts.early), f"{cost.cpu_s / len(late_s) * 1e3:.2f} ms"]
    title = f"Commit of the start minus NotBefore, wall time, one event in each of as many scopes (of {scopes:,})"
    single_column = f"single event due {SINGLE_AFTER.total_seconds():g} s later"
    print_table(title, ["due at once", "p50", "p99", "max", single_column, "early starts", "CPU each"], [row])
    return [
        none_of("early starts", starts.early),
        at_most(f"seconds late, {len(late_s):,} due at once, p99,", quantile(late_s, 0.99), MOST_LATE_S),
        at_most("seconds late, a single event due meanwhile,", single_s, MOST_LATE_SINGLE_S),
    ]
