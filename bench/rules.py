"""The cost of ticks with a window and a budget on every scope, beside the same ticks without: both services take turns."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from bench.fleet import BEGINNING, fill, scope_name, scopes_of
from bench.measure import Cost, cost_of, median, median_ratio
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.service import OPERATOR, Moves, finish, reboot, service_on
from bench.size import Size
from bench.ticking import NOTICE
from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.fleet_rules import FleetRules, Window
from forewarn.core.model import Status, Targets
from forewarn.service.clock import ManualClock
from forewarn.service.ticker import BATCH
from forewarn.store.sqlite.store import SqliteStore

LARGEST_RATIO = 1.2
ALWAYS = Window(name="always", spans=("Mon-Sun 00:00-24:00",))


def measure_rules(folder: Path, size: Size) -> list[Verdict]:
    """Tick maintenances of whole scopes: one tick starts a wave in each, another publishes the next wave in each."""
    machines = min(size.machines)
    paths = {name: folder / f"rules-{name}.db" for name in ("without", "with")}
    for name, path in paths.items():
        store = SqliteStore(path)
        fill(store, machines)
        if name == "with":
            _add_rules(store)
        store.close()
    logging.disable(logging.WARNING)
    costs: dict[str, list[Cost]] = {name: [] for name in paths}
    clocks = {name: ManualClock(BEGINNING + timedelta(days=1)) for name in paths}
    with service_on(paths["without"], clocks["without"]) as plain, service_on(paths["with"], clocks["with"]) as ruled:
        services = {"without": plain, "with": ruled}
        for turn in range(size.tick_rounds + 1):
            for name in list(services)[:: 1 if turn % 2 else -1]:
                cost = _two_ticks(services[name], clocks[name], _targets(machines, size.due_events, turn))
                if turn:  # the first only warms up
                    costs[name].append(cost)
    logging.disable(logging.NOTSET)
    return _report(costs, size)


def _add_rules(store: SqliteStore) -> None:
    """Put the window and a budget on every scope, and a budget on the fleet that leaves room."""
    rules = FleetRules(windows={ALWAYS.name: ALWAYS}, max_machines_down=1_000_000)
    store.apply(Change(at=BEGINNING, fleet_rules=rules))
    limited = [replace(s, windows=(ALWAYS.name,), max_unavailable="50%") for s in store.scopes().values()]
    expect = tuple((scope.name, scope.version) for scope in limited)
    store.apply(Change(at=BEGINNING, expect=expect, scopes=tuple(limited)))


def _targets(machines: int, events: int, turn: int) -> list[Targets]:
    apart = max(1, scopes_of(machines) // events)
    return [Targets(scope=scope_name(index * apart + turn % apart)) for index in range(events)]


def _two_ticks(service: Service, clock: ManualClock, targets: Sequence[Targets]) -> Cost:
    moves, submitted = Moves(service), reboot(service, targets)
    service.ticker.cycle_until_idle()  # finds them published, from when their notice counts
    clock.move_to(clock.now() + NOTICE)
    moves.take(Status.STARTED)
    starting = cost_of(service.ticker.cycle)
    started = moves.take(Status.STARTED)
    finish(service, started, BATCH)
    moves.take(Status.SCHEDULED)
    publishing = cost_of(service.ticker.cycle)
    published = moves.take(Status.SCHEDULED)
    if not len(started) == len(published) == len(targets):
        raise RuntimeError(f"the ticks started {len(started)} events and published {len(published)} of {len(targets)}")
    for maintenance_id in submitted:
        service.control.cancel_maintenance(maintenance_id, OPERATOR)
    service.ticker.cycle_until_idle()
    return Cost(starting.wall_s + publishing.wall_s, starting.cpu_s + publishing.cpu_s)


def _report(costs: dict[str, list[Cost]], size: Size) -> list[Verdict]:
    ratio = median_ratio([c.cpu_s for c in costs["with"]], [c.cpu_s for c in costs["without"]])
    rows = [
        [f"{name} rules", milliseconds(median(each).cpu_s), milliseconds(min(c.cpu_s for c in each))]
        for name, each in costs.items()
    ]
    title = f"Two ticks that start and publish {size.due_events} events, with a window and a budget on every scope"
    print_table(f"{title}: CPU ratio {ratio:.2f}", ["service", "CPU", "least CPU"], rows)
    return [at_most("tick CPU, with a window and budgets over without,", ratio, LARGEST_RATIO)]
