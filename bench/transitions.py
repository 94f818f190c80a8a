"""Committed transitions per second, beside bare one-row SQLite commits on the same file system in the same rounds.

A transition is one event's change of status (publish, start, complete), saved so that it survives power loss. Both
sides wait for the disk at every commit, so the target is judged by wall time; the CPU ratio is given beside it.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

from bench.fleet import BEGINNING, MACHINES_PER_SCOPE, UPDATE_DOMAINS, fill, scope_name
from bench.measure import NOTHING, Cost, cost_of, median, median_ratio
from bench.replay import Recorder, recording
from bench.report import Verdict, at_least, at_least_or_near_floor, print_table
from bench.service import OPERATOR, Moves, finish, reboot, service_on
from bench.size import Size
from forewarn.app.service import Service
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import EventType, Status, Targets
from forewarn.service.clock import ManualClock
from forewarn.service.ticker import BATCH
from forewarn.store.sqlite.store import SqliteStore

NOTICE = timedelta(seconds=EVENT_TYPES[EventType.REBOOT].minimum_notice_s)
BATCHED = "as the service does it"
SINGLE = "one event per commit"
LEAST_RATIO = {BATCHED: 0.5, SINGLE: 0.3}
BARE = "bare commit"
FLOOR = "the same statements in a bare loop"
ALL = "all transitions"
PUBLISH, START, COMPLETE = "publish", "start", "complete"
STATUS = {PUBLISH: Status.SCHEDULED, START: Status.STARTED, COMPLETE: Status.COMPLETED}

Tick = Callable[[Service, Sequence[str]], None]


def tick_batched(service: Service, maintenance_ids: Sequence[str]) -> None:
    """The ticker's cycle: everything due, in batches."""
    del maintenance_ids
    service.ticker.cycle_until_idle()


def tick_single(service: Service, maintenance_ids: Sequence[str]) -> None:
    for maintenance_id in maintenance_ids:
        service.control.tick([maintenance_id], OPERATOR)


def publish(tick: Tick, service: Service, maintenance_ids: Sequence[str]) -> None:
    """Publish with one tick; the next tick reads it as published and records that."""
    tick(service, maintenance_ids)
    tick(service, maintenance_ids)


class Bare:
    """The peer: a plain table, one row per transaction, as durable as ours."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE transitions (number INTEGER PRIMARY KEY, status TEXT NOT NULL)")

    def commit(self, count: int) -> None:
        for _ in range(count):
            self._connection.execute("INSERT INTO transitions (status) VALUES ('Started')")

    def close(self) -> None:
        self._connection.close()


class Rolling:
    """A service that reboots whole scopes, update domain by update domain: each event is published, started, completed."""

    def __init__(self, service: Service, clock: ManualClock, peer: Bare, size: Size) -> None:
        self._service = service
        self._recorder: Recorder | None = None
        self._clock = clock
        self._peer = peer
        self._bare_commits = size.bare_commits
        self._targets = [Targets(scope=scope_name(number)) for number in range(size.transition_scopes)]
        self._moves = Moves(service)

    def round(self, tick: Tick, at_once: int) -> dict[str, Cost]:
        """One maintenance per scope from beginning to end; what a transition of each kind cost, and a bare commit."""
        spent: dict[str, Cost] = defaultdict(lambda: NOTHING)
        counts: dict[str, int] = defaultdict(int)
        # Submitting plans the whole maintenance and publishes its first wave: more than a transition, so not counted.
        ids = reboot(self._service, self._targets)
        tick(self._service, ids)  # records that it is published
        for wave in range(1, UPDATE_DOMAINS + 1):
            self._clock.move_to(self._clock.now() + NOTICE)
            started = self._step(START, spent, counts, lambda: tick(self._service, ids))
            self._step(COMPLETE, spent, counts, partial(finish, self._service, started, at_once))
            if wave < UPDATE_DOMAINS:
                self._step(PUBLISH, spent, counts, lambda: publish(tick, self._service, ids))
        self._service.ticker.cycle_until_idle()
        all_of_them = {ALL: _all(spent, counts)}
        if FLOOR in spent:
            counts[FLOOR] = sum(counts[kind] for kind in STATUS)
        return {kind: cost.each(counts[kind]) for kind, cost in spent.items()} | all_of_them

    def floor(self, copy: Path) -> Cost:
        """What a transition's statements cost when a copy of the database executes them again, after each step of a round.

        Recording the statements slows the service, so what the service spends in this round does not count.
        """
        with recording(self._service.store, copy) as self._recorder:
            costs = self.round(tick_single, 1)
        self._recorder = None
        return costs[FLOOR]

    def _step(self, kind: str, spent: dict[str, Cost], counts: dict[str, int], work: Callable[[], None]) -> list[str]:
        """Some bare commits and then the work, so that both meet the same disk; the events that moved."""
        spent[BARE] += cost_of(lambda: self._peer.commit(self._bare_commits))
        counts[BARE] += self._bare_commits
        self._moves.take(STATUS[kind])
        if self._recorder is not None:
            self._recorder.replay()  # what is not counted
        spent[kind] += cost_of(work)
        moved = self._moves.take(STATUS[kind])
        if self._recorder is not None:
            spent[FLOOR] += cost_of(self._recorder.replay)
        counts[kind] += len(moved)
        return moved


def _all(spent: Mapping[str, Cost], counts: Mapping[str, int]) -> Cost:
    return sum((spent[kind] for kind in STATUS), NOTHING).each(sum(counts[kind] for kind in STATUS))


def run(folder: Path, size: Size) -> list[Verdict]:
    path = folder / "transitions.db"
    with closing(SqliteStore(path)) as store:
        fill(store, size.transition_scopes * MACHINES_PER_SCOPE)
    clock = ManualClock(BEGINNING)
    rounds: dict[str, list[dict[str, Cost]]] = {BATCHED: [], SINGLE: []}
    with closing(Bare(folder / "bare.db")) as peer, service_on(path, clock) as service:
        rolling = Rolling(service, clock, peer, size)
        for turn in range(size.transition_rounds):
            rounds[BATCHED].append(rolling.round(tick_batched, BATCH))
            single = rolling.round(tick_single, 1)
            rounds[SINGLE].append({**single, FLOOR: rolling.floor(folder / f"copy-{turn}.db")})
    return _report(rounds)


def _report(rounds: Mapping[str, Sequence[dict[str, Cost]]]) -> list[Verdict]:
    rows = [
        [how, kind, *_figures([costs[kind] for costs in each], [costs[BARE] for costs in each])]
        for how, each in rounds.items()
        for kind in (BARE, ALL, *STATUS, FLOOR)
        if kind in each[0]
    ]
    title = f"Committed transitions beside bare commits, median of {len(rounds[BATCHED])} interleaved rounds"
    print_table(title, ["how", "what", "wall each", "per second", "wall ratio", "CPU each", "CPU ratio"], rows)
    target = "transitions per bare commit (wall time)"
    return [
        at_least(f"{target}, {BATCHED},", _wall_ratio(rounds[BATCHED], BARE, ALL), LEAST_RATIO[BATCHED]),
        at_least_or_near_floor(
            f"{target}, {SINGLE},",
            _wall_ratio(rounds[SINGLE], BARE, ALL),
            LEAST_RATIO[SINGLE],
            floor=_wall_ratio(rounds[SINGLE], BARE, FLOOR),
            over_floor=_wall_ratio(rounds[SINGLE], ALL, FLOOR),
        ),
    ]


def _wall_ratio(rounds: Sequence[dict[str, Cost]], over: str, under: str) -> float:
    return median_ratio([costs[over].wall_s for costs in rounds], [costs[under].wall_s for costs in rounds])


def _figures(costs: Sequence[Cost], bare: Sequence[Cost]) -> list[str]:
    typical = median(costs)
    return [
        f"{typical.wall_s * 1e3:.3f} ms",
        f"{1 / typical.wall_s:,.0f}",
        f"{median_ratio([c.wall_s for c in bare], [c.wall_s for c in costs]):.2f}",
        f"{typical.cpu_s * 1e3:.3f} ms",
        f"{median_ratio([c.cpu_s for c in bare], [c.cpu_s for c in costs]):.2f}",
    ]
