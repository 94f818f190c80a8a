"""One node on PostgreSQL beside its peers: how soon a large fleet is served, and what a poll costs.

The peer of a start reads the same rows into a list of tuples and does nothing else. The peer of a poll is a node on SQLite
with the same fleet, in turns: what is polled comes from memory, so the store must not matter.
"""

import statistics
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.support.postgres_servers import Server

from bench.fleet import MACHINES_PER_SCOPE, scopes_of
from bench.guests import build, build_at
from bench.load import Task
from bench.measure import median, median_ratio
from bench.node_house import serve_command
from bench.poll import answered_of, costs_of
from bench.processes import Start, ready_verdict, start_of
from bench.report import Verdict, at_most, print_table
from bench.size import Size
from bench.subjects import LOAD_CORE, Subject, serving_at
from forewarn.store.postgres.store import PostgresStore

MOST_POLL_RATIO = 1.15
KEEP_ALIVE, CONNECT = ("keep-alive", "keep_alive"), ("connection per request", "connect")
CONNECTIONS, PER_SCOPE = 64, 20

# By SQL in bulk: the same fleet as `bench.fleet` makes, in a fraction of the time.
FLEET = (
    """INSERT INTO scopes SELECT 'scope-' || to_char(s, 'FM000000'), 'availability-set', 'any', false, 20, 300, '{{}}', true,
        1, 1, 1, now() FROM generate_series(0, {scopes} - 1) s""",
    """INSERT INTO machines SELECT 'scope-' || to_char(s, 'FM000000'), 'vm-' || to_char(m, 'FM00'), m % 5, 0,
        'host-' || to_char(s / 5 * {each} + m, 'FM000000'), '', ''
    FROM generate_series(0, {scopes} - 1) s, generate_series(0, {each} - 1) m""",
    """INSERT INTO machine_addresses SELECT '', host(inet '10.0.0.0' + (s * {each} + m)),
        'scope-' || to_char(s, 'FM000000'), 'vm-' || to_char(m, 'FM00')
    FROM generate_series(0, {scopes} - 1) s, generate_series(0, {each} - 1) m""",
    "ANALYZE",
)
BARE = """
import psycopg
with psycopg.connect({address!r}) as connection:
    connection.execute("SET search_path = forewarn")
    scopes = connection.execute("SELECT * FROM scopes").fetchall()
    machines = connection.execute(
        "SELECT m.*, a.interface, a.address FROM machines m JOIN machine_addresses a USING (scope, name)").fetchall()
print("ready", flush=True)
input()
"""


def measure_start(server: Server, folder: Path, size: Size) -> list[Verdict]:
    """Wall and CPU until ready, memory then."""
    database = server.address(server.database())
    PostgresStore(database).close()
    for statement in FLEET:
        text = statement.format(scopes=scopes_of(size.node_machines), each=MACHINES_PER_SCOPE)
        server.execute(f"SET search_path = forewarn; {text}", database.rpartition("/")[2])
    commands = {
        "bare SELECT into tuples": [sys.executable, "-c", BARE.format(address=database)],
        f"serve, {size.node_machines:,} machines": serve_command(database, folder / "full"),
    }
    if size.judged:
        commands["serve, empty"] = serve_command(server.address(server.database()), folder / "empty")
    starts: dict[str, list[Start]] = {name: [] for name in commands}
    for _ in range(size.spawns):
        for name, command in commands.items():
            starts[name].append(start_of(command))
    bare = next(iter(starts.values()))
    rows = [
        [
            name,
            f"{median([s.ready for s in each]).wall_s:.2f} s",
            f"{median_ratio([s.ready.wall_s for s in each], [s.ready.wall_s for s in bare]):.1f}",
            f"{median([s.ready for s in each]).cpu_s:.2f} s",
            f"{statistics.median(s.memory_bytes for s in each) / 2**20:.1f} MiB",
            f"{median_ratio([float(s.memory_bytes) for s in each], [float(s.memory_bytes) for s in bare]):.1f}",
        ]
        for name, each in starts.items()
    ]
    title = f"From spawn to ready with {size.node_machines:,} machines on PostgreSQL, median of {size.spawns} in turns"
    print_table(title, ["process", "wall", "wall ratio", "CPU, without the database's", "memory", "memory ratio"], rows)
    serve, plain = starts[f"serve, {size.node_machines:,} machines"], starts["bare SELECT into tuples"]
    return [ready_verdict(size.node_machines, "PostgreSQL", serve, plain)]


def _answered(task: Task, subject: Subject) -> int:
    return answered_of(replace(task, port=subject.port))


def measure_polls(server: Server, folder: Path, size: Size) -> list[Verdict]:
    """CPU per poll on either store."""
    database, path = server.address(server.database()), folder / "polled.db"
    scopes, rounds, seconds = size.node_polls
    build_at(database, folder, scopes=scopes, per_scope=PER_SCOPE)
    build(path, scopes=scopes, per_scope=PER_SCOPE)
    rows, verdicts = [], []
    with ExitStack() as stack:
        shared = stack.enter_context(serving_at("on PostgreSQL", database, folder / "shared"))
        single = stack.enter_context(serving_at("on SQLite", f"sqlite:{path}", folder))

        for way, mode in (KEEP_ALIVE, CONNECT) if size.judged else (KEEP_ALIVE,):
            task = Task(
                mode=mode, port=0, core=LOAD_CORE, connections=CONNECTIONS, sources=scopes * PER_SCOPE, seconds=seconds
            )
            costs = costs_of([shared, single], partial(_answered, task), rounds)
            ratio = median_ratio(costs[shared.name].rounds_s, costs[single.name].rounds_s)
            for subject in (shared, single):
                each = costs[subject.name]
                figures = [statistics.median(each.rounds_s), min(each.rounds_s), each.all_in_s]
                ratio_text = f"{ratio:.2f}" if subject is shared else "1.00"
                rows.append([f"{way}, {subject.name}", *(f"{s * 1e6:.1f} us" for s in figures), ratio_text])
            verdicts.append(at_most(f"CPU per poll on PostgreSQL / on SQLite, {way},", ratio, MOST_POLL_RATIO))
    title = f"CPU per poll of a node, {CONNECTIONS} connections at once, median of {rounds} interleaved rounds"
    print_table(title, ["how, store", "median", "least", "with all it did between", "ratio"], rows)
    return verdicts
