"""What it costs to plan and preview a maintenance of very many machines, beside a bare pass over the same rows of the same file.

The bare pass reads what a selector must read of each machine, with the driver alone, and keeps nothing. Bytes are the peak of
what Python allocates meanwhile, measured apart from the time: counting them is slow.
A second table shows what a tick of the maintenance costs.
"""

import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bench.fleet import BEGINNING, fill
from bench.measure import Cost, cost_of, median, median_ratio
from bench.report import Verdict, milliseconds, print_table
from bench.service import OPERATOR, service_on
from bench.size import Size
from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.model import EventType, GroupBy, Host, HostMode, MaintenanceRequest, Strategy, Targets
from forewarn.core.preview import forecast
from forewarn.service.clock import ManualClock
from forewarn.service.selection import resolved_targets
from forewarn.store import Focus
from forewarn.store.sqlite.store import SqliteStore

SCOPES_PER_HOST = 50
HOSTS_PER_RACK = 40
EVERYTHING = Targets(everything=True)
BY_DOMAIN = MaintenanceRequest(type=EventType.REBOOT, targets=EVERYTHING)
BY_HOST = MaintenanceRequest(
    type=EventType.REBOOT, targets=EVERYTHING, strategy=Strategy(group_by=GroupBy.HOST, max_parallel=10)
)
EVACUATION = MaintenanceRequest(type=EventType.FREEZE, targets=Targets(hosts=("*",)), host_mode=HostMode.EVACUATE)
BY_LABEL = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(labels="rack=r0,!gpu"))
ROWS = "SELECT m.scope, m.name, m.update_domain, m.host, m.labels, h.labels FROM machines m LEFT JOIN hosts h ON h.name = m.host"


def run(folder: Path, size: Size) -> list[Verdict]:
    path = folder / "planning.db"
    machines, rounds = size.planned
    hosts = _fill(path, machines)
    with service_on(path, ManualClock(BEGINNING)) as service:
        store, control = service.store, service.control
        by_domain, by_host, evacuation = (control.plan(each, OPERATOR) for each in (BY_DOMAIN, BY_HOST, EVACUATION))
        subjects: dict[str, Callable[[], object]] = {
            "bare pass over the rows": lambda: _bare_pass(path),
            "choose every machine": lambda: resolved_targets(store, BY_DOMAIN),
            "choose one rack by label": lambda: resolved_targets(store, BY_LABEL),
            "plan by update domain": lambda: control.plan(BY_DOMAIN, OPERATOR),
            "plan by host": lambda: control.plan(BY_HOST, OPERATOR),
            "preview by update domain": lambda: forecast(by_domain.snapshot, by_domain.maintenance_id, BEGINNING),
            "preview by host": lambda: forecast(by_host.snapshot, by_host.maintenance_id, BEGINNING),
            "preview an evacuation": lambda: forecast(evacuation.snapshot, evacuation.maintenance_id, BEGINNING),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in subjects}
        for _ in range(rounds):
            for name, work in subjects.items():
                costs[name].append(cost_of(work))
        bare = [cost.cpu_s for cost in costs["bare pass over the rows"]]
        rows = [
            [
                name,
                f"{median(each).wall_s:.2f} s",
                f"{median(each).cpu_s:.2f} s",
                f"{median_ratio([c.cpu_s for c in each], bare):.1f}",
                f"{_peak_bytes(subjects[name]) / 2**20:.1f} MiB",
            ]
            for name, each in costs.items()
        ]
        title = f"Plan and preview {machines:,} machines on {hosts:,} hosts, median of {rounds} rounds"
        print_table(title, ["what", "wall", "CPU", "CPU ratio", "peak"], rows)
        _measure_ticks(service, machines, rounds)
    return []


def _measure_ticks(service: Service, machines: int, rounds: int) -> None:
    """Submit the maintenance by host, and compare what a tick reads with all its events."""
    submitted: list[str] = []
    scheduling = cost_of(lambda: submitted.append(service.control.submit(BY_HOST, OPERATOR)))
    (maintenance_id,) = submitted
    subjects: dict[str, Callable[[], object]] = {
        "read all its events": lambda: service.store.snapshot(Focus(maintenances=(maintenance_id,))),
        "a tick that finds nothing to do": lambda: service.control.tick([maintenance_id], OPERATOR),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, work in subjects.items():
            costs[name].append(cost_of(work))
    whole = [cost.cpu_s for cost in costs["read all its events"]]
    rows = [["schedule it, once", milliseconds(scheduling.cpu_s), f"{scheduling.cpu_s / min(whole):.3f}"]]
    rows += [
        [name, milliseconds(median(each).cpu_s), f"{median_ratio([c.cpu_s for c in each], whole):.3f}"]
        for name, each in costs.items()
    ]
    print_table(f"A tick of a maintenance of {machines:,} machines by host", ["what", "CPU", "CPU ratio"], rows)


def _fill(path: Path, machines: int) -> int:
    """Put the fleet into a new file and return the number of its hosts, each with a rack."""
    with closing(SqliteStore(path)) as store:
        fill(store, machines, SCOPES_PER_HOST)
        names = sorted({m.host for m in store.labelled_machines(None)})
        racks = ((name, f"r{number // HOSTS_PER_RACK}") for number, name in enumerate(names))
        hosts = tuple(Host(name=name, labels={"rack": rack}, listed=True) for name, rack in racks)
        store.apply(Change(at=BEGINNING, hosts=hosts))
    return len(hosts)


def _bare_pass(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for _ in connection.execute(ROWS):
            pass


def _peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
