"""How late events start when very many are due at the same moment, with the real ticker thread on a running clock."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bench.fleet import BEGINNING, scope_name
from bench.measure import Cost, cost_of, quantile
from bench.report import Verdict, milliseconds, none_of, print_table
from bench.service import reboot, service_on
from bench.size import Size
from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.model import Status, Targets
from forewarn.service.clock import ScaledClock

LATER = timedelta(days=1)  # than anything the benches before did in this database
NOTICE = timedelta(hours=2)  # far enough to submit everything before
HEAD_START = timedelta(seconds=0.5)
GIVE_UP_AFTER_S = 300.0


@dataclass(slots=True)
class Starts:
    """Each start's lateness at the moment its commit was acknowledged, in seconds."""

    clock: ScaledClock
    late_s: list[float] = field(default_factory=list)
    early: int = 0

    def hear(self, change: Change) -> None:
        now = self.clock.now()
        for event in change.events:
            if event.status is Status.STARTED and event.started is not None and event.not_before is not None:
                self.late_s.append((now - event.not_before).total_seconds())
                self.early += min(now, event.started) < event.not_before


def measure_lateness(path: Path, scopes: int, size: Size) -> list[Verdict]:
    events = min(size.burst_events, scopes)
    # The rate of the wall clock, but it can be moved over the notice.
    clock = ScaledClock(BEGINNING + LATER, 1.0)
    not_before = (clock.now() + NOTICE).replace(microsecond=0)
    with service_on(path, clock) as service:
        starts = Starts(clock)
        service.control.listen(starts.hear)
        apart = scopes // events
        targets = (Targets(scope=scope_name(index * apart), update_domain=0) for index in range(events))
        reboot(service, targets, not_before)
        service.ticker.cycle_until_idle()  # finds them published, from when their notice counts
        clock.move_to(not_before - HEAD_START)
        with ticking(service):
            cost = cost_of(lambda: _wait_for(starts, events))
    return _report(starts, scopes, cost)


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


def _report(starts: Starts, scopes: int, cost: Cost) -> list[Verdict]:
    late_s = starts.late_s
    row = [f"{len(late_s):,}", *(f"{quantile(late_s, part):.2f} s" for part in (0.5, 0.99))]
    row += [f"{max(late_s):.2f} s", str(starts.early), milliseconds(cost.cpu_s / len(late_s))]
    title = f"Commit of the start minus NotBefore, wall time, one event in each of as many scopes (of {scopes:,})"
    print_table(title, ["due at once", "p50", "p99", "max", "early starts", "CPU each"], [row])
    return [none_of("early starts", starts.early)]
