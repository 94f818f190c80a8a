"""Committed transitions per second on PostgreSQL, beside bare commits of the same shape by as many writers at once.

Every writer is a process with one service, its documents in memory and its follower, as a node has them. Its bare peer is
one connection that inserts a row, updates a row and commits. Run as a program, this is a writer: for each line on its input
it does one step of the rounds and prints what that cost.
"""

import json
import logging
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Self

import psycopg
from tests.support.postgres_servers import Server

from bench.fleet import BEGINNING, MACHINES_PER_SCOPE, UPDATE_DOMAINS, fill, scope_name
from bench.measure import cost_of, median_ratio
from bench.report import Verdict, at_least, at_least_or_near_floor, print_table
from bench.service import OPERATOR, Moves, finish, reboot, service_at
from bench.size import Size
from forewarn.app.service import Service
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import EventType, Status, Targets
from forewarn.endpoint.documents import Documents
from forewarn.service.clock import KeptClock, ManualClock
from forewarn.service.follower import Follower
from forewarn.service.ticker import BATCH
from forewarn.store.postgres.dsn import Dsn
from forewarn.store.postgres.pool import Connection, connect
from forewarn.store.postgres.store import PostgresSession, PostgresStore

NOTICE = timedelta(seconds=EVENT_TYPES[EventType.REBOOT].minimum_notice_s)
BATCHED, SINGLE = "in batches, as the ticker does", "one event per commit"
# By the number of writers.
LEAST_RATIO = {BATCHED: {1: 0.7, 3: 0.6}, SINGLE: {1: 0.25, 3: 0.25}}
BARE, PUBLISH, START, COMPLETE, ALL = "bare", "publish", "start", "complete", "all transitions"
FLOOR = "the same statements in a bare loop"
WAIT = "wait"
STATUS = {PUBLISH: Status.SCHEDULED, START: Status.STARTED, COMPLETE: Status.COMPLETED}
MAX_STALE_S = 3_600.0
MAKE_BARE = "CREATE TABLE bare (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, writer int, status text)"
INSERT_BARE = "INSERT INTO bare (writer, status) VALUES (%s, 'Scheduled') RETURNING number"
UPDATE_BARE = "UPDATE bare SET status = 'Started' WHERE number = %s"

Sent = tuple[str, Any, Any]  # how, the statement, its values

# -- the writer


class Bare:
    def __init__(self, address: str, writer: int) -> None:
        self._connection = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        self._writer = writer

    def commit(self, count: int) -> None:
        for _ in range(count):
            self._connection.execute("BEGIN")
            number = self._connection.execute(INSERT_BARE, [self._writer]).fetchone()
            self._connection.execute(UPDATE_BARE, number)
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class Statements:
    """Records what this node sends to the store's database, to execute it again on a copy with the same values.

    That is also what its follower reads, to find the changes of other nodes and to show them. What is sent before the node waits
    for the server is sent so again. What the service costs beyond that is its own work.
    """

    def __init__(self, copy: str) -> None:
        self._transactions: list[list[Sent]] = []
        self._connection = connect(Dsn(copy))

    def record(self, store: PostgresStore) -> None:
        transactions = self._transactions
        begun: dict[int, list[Sent]] = defaultdict(list)  # by connection

        def note(connection: Connection, how: str, query: Any = None, values: Any = None) -> None:
            sent = begun[id(connection)]
            sent.append((how, query, values))
            if query == "COMMIT" or not str(sent[0][1]).startswith("BEGIN"):  # the feed opens no transaction
                transactions.append(begun.pop(id(connection)))

        class RecordingCursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, params: Any = None, **how: Any) -> Self:
                note(self.connection, "execute", query, params)
                return super().execute(query, params, **how)

            def executemany(self, query: Any, params_seq: Any, **how: Any) -> None:
                note(self.connection, "executemany", query, params_seq)
                super().executemany(query, params_seq, **how)

        def connect_recorded(dsn: Dsn) -> Connection:
            connection = connect(dsn)
            connection.cursor_factory = RecordingCursor
            return connection

        def noted_wait(session: PostgresSession) -> None:
            if session._unanswered:
                note(session._connection, WAIT)
            wait(session)

        wait = PostgresSession._wait
        PostgresSession._wait = noted_wait  # type: ignore[assignment,method-assign]
        store._pool.connect = connect_recorded
        store._pool.close_idle()

    def forget(self) -> None:
        """Forget what was recorded: the copy needs no LISTEN."""
        self._transactions.clear()

    def send_again(self) -> None:
        """Execute what was recorded since the last call, on the copy."""
        while self._transactions:
            self._send_transaction(self._transactions.pop(0))

    def _send_transaction(self, statements: Sequence[Sent]) -> None:
        with self._connection.pipeline() as pipeline:
            cursors: list[psycopg.Cursor[Any]] = []
            for how, query, values in statements:
                if how == WAIT:
                    pipeline.sync()
                    for cursor in cursors:
                        if cursor.description:
                            cursor.fetchall()
                    cursors.clear()
                else:
                    cursors.append(self._connection.cursor())
                    getattr(cursors[-1], how)(query, values)

    def close(self) -> None:
        self._connection.close()


class Writer:
    """Reboots its own scopes, update domain by update domain: each event is published, started and completed."""

    def __init__(self, service: Service, clock: ManualClock, bare: Bare, statements: Statements, scopes: range) -> None:
        self._service, self._clock, self._bare, self._statements = service, clock, bare, statements
        self._moved = 0
        self._targets = [Targets(scope=scope_name(number)) for number in scopes]
        self._moves = Moves(service)
        self._ids: list[str] = []
        self._started: list[str] = []

    def step(self, what: str, count: int) -> dict[str, float]:
        """`count` is how many bare commits, or how many maintenances and orders go into one change."""
        if what == BARE:
            cost = cost_of(lambda: self._bare.commit(count))
            return {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "count": count}
        if what == FLOOR:
            cost = cost_of(self._statements.send_again)
            return {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "count": self._moved}
        if what == "submit":
            self._ids = reboot(self._service, self._targets)
            self._tick(BATCH)  # records that it is published
            return {}
        if what == START:
            self._clock.move_to(self._clock.now() + NOTICE)
        work = {START: self._tick, PUBLISH: self._publish, COMPLETE: self._finish}[what]
        self._moves.take(STATUS[what])
        self._statements.send_again()  # what is not counted
        cost = cost_of(lambda: work(count))
        moved = self._moves.take(STATUS[what])
        self._moved = len(moved)
        if what == START:
            self._started = moved
        return {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "count": len(moved)}

    def _finish(self, at_once: int) -> None:
        finish(self._service, self._started, at_once)

    def _publish(self, at_once: int) -> None:
        """Publish with one tick; the next tick reads it as published and records that."""
        self._tick(at_once)
        self._tick(at_once)

    def _tick(self, at_once: int) -> None:
        """As the ticker does it, with this writer's own maintenances only."""
        for first in range(0, len(self._ids), at_once):
            self._service.control.tick(self._ids[first : first + at_once], OPERATOR)


@contextmanager
def _following(store: PostgresStore, documents: Documents) -> Iterator[None]:
    follower = Follower(store.feed(), KeptClock(store.now))
    follower.start()
    follower.listen(documents.follow)
    thread = threading.Thread(target=follower.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        follower.stop()
        thread.join()


def serve_steps(address: str, copy: str, folder: Path, writer: int, scopes: int) -> None:
    logging.disable(logging.WARNING)
    clock = ManualClock(BEGINNING)
    with (
        closing(Bare(address, writer)) as bare,
        closing(Statements(copy)) as statements,
        service_at(address, folder, clock) as (service, documents),
    ):
        if not isinstance(service.store, PostgresStore):
            raise RuntimeError(f"{address} is no PostgreSQL")
        statements.record(service.store)
        with _following(service.store, documents):
            statements.forget()
            own = Writer(service, clock, bare, statements, range(writer * scopes, (writer + 1) * scopes))
            print("ready", flush=True)
            for line in sys.stdin:
                what, count = line.strip().rsplit(" ", 1)
                print(json.dumps(own.step(what, int(count))), flush=True)


# -- all of them, seen from outside


class Writers:
    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self._processes = processes
        for process in processes:
            if _line(process) != "ready\n":
                raise RuntimeError("a writer did not become ready")

    def step(self, what: str, count: int) -> tuple[float, float, int]:
        """All at once: wall seconds until the last is done, CPU seconds of all, and how many were done."""
        for process in self._processes:
            if process.stdin is None:
                raise RuntimeError("a writer cannot be talked to")
            print(what, count, file=process.stdin, flush=True)
        replies: list[dict[str, Any]] = [json.loads(_line(process)) for process in self._processes]
        return (
            max(t.get("wall_s", 0.0) for t in replies),
            sum(t.get("cpu_s", 0.0) for t in replies),
            sum(int(t.get("count", 0)) for t in replies),
        )


def _line(process: "subprocess.Popen[str]") -> str:
    return process.stdout.readline() if process.stdout else ""


@contextmanager
def _writers(address: str, copy: str, folder: Path, count: int, scopes: int) -> Iterator[Writers]:
    with ExitStack() as stack:
        processes = []
        for writer in range(count):
            arguments = [address, copy, str(folder), str(writer), str(scopes)]
            command = [sys.executable, "-m", "bench.node_commits", *arguments]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))  # the end of its input is the end of it
        yield Writers(processes)


Round = dict[str, tuple[float, float]]  # per transition or bare commit: wall and CPU seconds


def _round(writers: Writers, at_once: int, bare_commits: int) -> Round:
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])

    def step(what: str, count: int) -> None:
        figures = writers.step(what, count)
        for kind in (what,) if what in (BARE, FLOOR) else (what, ALL):
            spent[kind] = [a + b for a, b in zip(spent[kind], figures, strict=True)]

    # Submitting plans the whole maintenance and publishes its first wave: more than a transition, so not counted.
    writers.step("submit", 1)
    for wave in range(1, UPDATE_DOMAINS + 1):
        for what in (START, COMPLETE, PUBLISH)[: 2 if wave == UPDATE_DOMAINS else 3]:
            step(BARE, bare_commits)  # so that both meet the same disk
            step(what, at_once)
            if at_once == 1:
                step(FLOOR, 1)
    writers.step(PUBLISH, BATCH)  # nothing is left to publish: each maintenance ends
    return {kind: (wall_s / count, cpu_s / count) for kind, (wall_s, cpu_s, count) in spent.items()}


def measure_commits(server: Server, folder: Path, size: Size) -> list[Verdict]:
    rows, verdicts = [], []
    for count in size.node_writers:
        address = server.address(server.database())
        with closing(PostgresStore(address)) as store:
            fill(store, count * size.transition_scopes * MACHINES_PER_SCOPE)
        name = address.rpartition("/")[2]
        server.execute(MAKE_BARE, name)
        copy = server.address(server.database(template=name))
        rounds: dict[str, list[Round]] = {BATCHED: [], SINGLE: []}
        with _writers(address, copy, folder, count, size.transition_scopes) as writers:
            for turn in range(-size.judged, size.transition_rounds):
                for name, at_once in zip(rounds, (BATCH, 1), strict=True):
                    found = _round(writers, at_once, size.bare_commits)
                    if turn >= 0:  # the one before the first only warms up
                        rounds[name].append(found)
        names = {name: f"{count} writer{'s' * (count > 1)}, {name}" for name in rounds}
        for name, each in rounds.items():
            kinds = [kind for kind in (BARE, ALL, START, COMPLETE, PUBLISH, FLOOR) if kind in each[0]]
            rows += [[names[name], kind, *_figures(each, kind)] for kind in kinds]
        verdicts += _verdicts(
            rounds, count, {name: f"transitions per bare PostgreSQL commit, {names[name]}," for name in names}
        )
    title = f"Committed transitions beside bare commits on PostgreSQL, median of {size.transition_rounds} interleaved rounds"
    print_table(title, ["how", "what", "wall each", "per second", "wall ratio", "CPU each, ours"], rows)
    return verdicts


def _verdicts(rounds: Mapping[str, Sequence[Round]], writers: int, targets: Mapping[str, str]) -> list[Verdict]:
    batched, single = rounds[BATCHED], rounds[SINGLE]
    return [
        at_least(targets[BATCHED], _wall_ratio(batched, BARE, ALL), LEAST_RATIO[BATCHED].get(writers, 0.0)),
        at_least_or_near_floor(
            targets[SINGLE],
            _wall_ratio(single, BARE, ALL),
            LEAST_RATIO[SINGLE].get(writers, 0.0),
            floor=_wall_ratio(single, BARE, FLOOR),
            over_floor=_wall_ratio(single, ALL, FLOOR),
        ),
    ]


def _wall_ratio(rounds: Sequence[Round], over: str, under: str) -> float:
    return median_ratio([each[over][0] for each in rounds], [each[under][0] for each in rounds])


def _figures(rounds: Sequence[Mapping[str, tuple[float, float]]], kind: str) -> list[str]:
    wall_s = median(r[kind][0] for r in rounds)
    ratio = median_ratio([r[BARE][0] for r in rounds], [r[kind][0] for r in rounds])
    cpu_s = median(r[kind][1] for r in rounds)
    return [f"{wall_s * 1e3:.3f} ms", f"{1 / wall_s:,.0f}", f"{ratio:.2f}", f"{cpu_s * 1e3:.3f} ms"]


if __name__ == "__main__":
    serve_steps(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
