"""The cost of one tick with many due events, on fleets of different sizes in turns: it must not grow with the fleet.

Each fleet is served by a process of its own, so that none pays for the memory of another. Run as a program, this is that
process: for every line on its input it lets events come due, ticks, and prints what the tick cost.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from bench.fleet import BEGINNING, UPDATE_DOMAINS, scope_name, scopes_of
from bench.measure import Cost, cost_of, median, median_ratio
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.service import Moves, finish, reboot, service_on
from bench.size import Size
from forewarn.app.service import Service
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import EventType, Status, Targets
from forewarn.service.clock import ManualClock
from forewarn.service.ticker import BATCH

NOTICE = timedelta(seconds=EVENT_TYPES[EventType.REBOOT].minimum_notice_s)
LARGEST_RATIO = 1.5


class Subject:
    """A process with a service on a fleet, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def one_tick(self, turn: int) -> Cost:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process cannot be talked to")
        print(turn, file=self._process.stdin, flush=True)
        wall_s, cpu_s = map(float, self._process.stdout.readline().split())
        return Cost(wall_s, cpu_s)


@contextmanager
def _subject(path: Path, machines: int, events: int) -> Iterator[Subject]:
    command = [sys.executable, "-m", "bench.ticking", str(path), str(machines), str(events)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Subject(process)  # the end of its input is the end of it


def measure_ticks(databases: Mapping[int, Path], size: Size) -> list[Verdict]:
    costs: dict[int, list[Cost]] = {machines: [] for machines in databases}
    with ExitStack() as stack:
        subjects = {n: stack.enter_context(_subject(path, n, size.due_events)) for n, path in databases.items()}
        for turn in range(size.tick_rounds + 1):
            # Who goes first finds colder caches: they take turns at that too.
            for machines, subject in list(subjects.items())[:: 1 if turn % 2 else -1]:
                cost = subject.one_tick(turn)
                if turn:  # the first only warms up
                    costs[machines].append(cost)
    return _report(costs, size)


def _report(costs: Mapping[int, Sequence[Cost]], size: Size) -> list[Verdict]:
    least = costs[min(costs)]
    ratios = {n: median_ratio([c.cpu_s for c in each], [c.cpu_s for c in least]) for n, each in costs.items()}
    rows = [
        [
            f"{machines:,}",
            milliseconds(median(each).cpu_s),
            milliseconds(min(c.cpu_s for c in each)),
            milliseconds(median(each).wall_s),
            f"{ratios[machines]:.2f}",
        ]
        for machines, each in costs.items()
    ]
    title = f"One tick that starts {size.due_events} due events in as many scopes, median of {size.tick_rounds} rounds"
    print_table(title, ["machines", "CPU", "least CPU", "wall", "CPU ratio"], rows)
    largest = ratios[max(ratios)]
    return [at_most(f"tick CPU, {max(costs):,} over {min(costs):,} machines,", largest, LARGEST_RATIO)]


# -- the process


def serve_turns(path: Path, machines: int, events: int) -> None:
    logging.disable(logging.WARNING)
    clock = ManualClock(BEGINNING)
    with service_on(path, clock) as service:
        moves = Moves(service)
        for line in sys.stdin:
            cost = _one_tick(service, clock, moves, _targets(machines, events, int(line)))
            print(cost.wall_s, cost.cpu_s, flush=True)


def _targets(machines: int, events: int, turn: int) -> list[Targets]:
    """One update domain of as many scopes, spread over the fleet, others in every turn."""
    apart = scopes_of(machines) // events
    numbers = [index * apart + turn % apart for index in range(events)]
    return [Targets(scope=scope_name(number), update_domain=turn % UPDATE_DOMAINS) for number in numbers]


def _one_tick(service: Service, clock: ManualClock, moves: Moves, targets: Sequence[Targets]) -> Cost:
    reboot(service, targets)
    service.ticker.cycle_until_idle()  # finds them published, from when their notice counts
    clock.move_to(clock.now() + NOTICE)
    moves.take(Status.STARTED)
    cost = cost_of(service.ticker.cycle)
    started = moves.take(Status.STARTED)
    if len(started) != len(targets):
        raise RuntimeError(f"the tick started {len(started)} events instead of {len(targets)}")
    finish(service, started, BATCH)
    service.ticker.cycle_until_idle()
    return cost


if __name__ == "__main__":
    serve_turns(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
