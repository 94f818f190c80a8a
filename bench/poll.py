"""The poll: a real `forewarn serve` beside nginx returning a static string, each on the first core, the load on the second.

What is compared is CPU time per answered request: on a shared machine requests per second say nothing. At toy size every
path runs once, with our own load and, by design, without the peer.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import crowds
from bench.clients import load, wrk
from bench.guests import DOCUMENT_BYTES, build
from bench.load import Task, ask, connected
from bench.measure import median_ratio, quantile
from bench.plot import draw
from bench.report import MOST_OVER_FLOOR, Verdict, at_least_or_near_floor, at_most, milliseconds, print_table
from bench.size import Size
from bench.subjects import LOAD_CORE, Subject, bare_loop, missing_tools, nginx, serving, serving_at

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "poll.svg"
FORE, PEER, FLOOR = "forewarn", "nginx", "bare loop"
KEEP_ALIVE, CONNECT = "keep-alive", "connection per request"
GOALS = {KEEP_ALIVE: 1.0, CONNECT: 0.9}
MOST_PACED_RATIO = 1.0
MOST_IDLE_BYTES = 4_096
MOST_FAN_OUT_RATIO = 2.0
MOST_BATCHES = 1
MOST_FRESH_S = 0.010
MOST_CLOCK_RATIO = 1.05
ONE_MACHINE = """
[[scopes]]
name = "alone"
kind = "standalone"
[[machines]]
scope = "alone"
name = "vm"
addresses = ["127.0.0.1"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    scopes: int
    connections: int
    rounds: int
    seconds: float
    crowd: int
    crowd_rounds: int
    crowd_seconds: float
    fan_outs: int
    documents: int
    changes: int


FULL = Amounts(
    scopes=500, connections=64, rounds=9, seconds=2.0, crowd=10_000, crowd_rounds=9, crowd_seconds=5.0, fan_outs=5,
    documents=10_000, changes=300,
)  # fmt: skip
TOY = Amounts(
    scopes=5, connections=8, rounds=1, seconds=0.05, crowd=100, crowd_rounds=1, crowd_seconds=0.2, fan_outs=1,
    documents=50, changes=5,
)  # fmt: skip


def run(folder: Path, size: Size) -> list[Verdict]:
    amounts = FULL if size.judged else TOY
    if size.judged and missing_tools():
        raise SystemExit("\n".join(missing_tools()))
    database = folder / "guests.db"
    build(database, scopes=amounts.scopes, per_scope=crowds.PER_SCOPE)
    ratios: dict[str, float] = {}
    verdicts: list[Verdict] = []
    with ExitStack() as stack:
        subjects = [stack.enter_context(serving(database))]
        answer = _answer(subjects[0])
        floor = stack.enter_context(bare_loop(folder, answer))
        if size.judged:
            subjects.append(stack.enter_context(nginx(folder / "nginx", answer.partition(b"\r\n\r\n")[2])))
        verdicts += _requests([*subjects, floor], amounts, ratios, with_wrk=size.judged)
        verdicts += _crowd(subjects, amounts, ratios)
    verdicts += clocks(folder, amounts)
    verdicts += _fan_out(database, amounts)
    verdicts += _changes(folder, database, amounts)
    _storm(database, amounts)
    if size.judged:
        draw(
            PICTURE,
            "CPU of nginx / CPU of forewarn, the same requests",
            list(ratios.items()),
            goal=1.0,
            goal_name="nginx, static string",
        )
    return verdicts


def _answer(subject: Subject) -> bytes:
    with connected(Task(mode="", port=subject.port, core=0, connections=1), 0) as connection:
        answer = ask(connection)
    size = len(answer.partition(b"\r\n\r\n")[2])
    if size != DOCUMENT_BYTES:
        raise RuntimeError(f"the document has {size} bytes instead of {DOCUMENT_BYTES}")
    return answer


# -- requests, one after the other


def _requests(
    subjects: Sequence[Subject], amounts: Amounts, ratios: dict[str, float], *, with_wrk: bool
) -> list[Verdict]:
    machines = amounts.scopes * crowds.PER_SCOPE

    def keep_alive(subject: Subject) -> int:
        if with_wrk:
            return wrk(subject.port, connections=amounts.connections, seconds=amounts.seconds)
        return answered_of(_task("keep_alive", subject, amounts))

    def connect(subject: Subject) -> int:
        return answered_of(_task("connect", subject, amounts, sources=machines))

    rows, verdicts = [], []
    ways: dict[str, Callable[[Subject], int]] = {KEEP_ALIVE: keep_alive, CONNECT: connect}
    for way, ask_all in ways.items():
        costs = costs_of(subjects, ask_all, amounts.rounds)
        for name, each in costs.items():
            shown = f"{median_ratio(costs[PEER].rounds_s, each.rounds_s):.2f}" if PEER in costs else ""
            figures = [statistics.median(each.rounds_s), min(each.rounds_s), each.all_in_s]
            rows.append([f"{way}, {name}", *map(_micro, figures), shown])
        if PEER in costs:
            ratio = median_ratio(costs[PEER].rounds_s, costs[FORE].rounds_s)
            over_floor = median_ratio(costs[FORE].rounds_s, costs[FLOOR].rounds_s)
            ratios[f"{way}, {amounts.connections} at once"] = ratio
            floor = median_ratio(costs[PEER].rounds_s, costs[FLOOR].rounds_s)
            target = f"nginx CPU / forewarn CPU, {way},"
            verdicts.append(at_least_or_near_floor(target, ratio, GOALS[way], floor=floor, over_floor=over_floor))
            verdicts.append(at_most(f"forewarn CPU / that of a bare loop, {way},", over_floor, MOST_OVER_FLOOR))
    title = (
        f"A poll of {DOCUMENT_BYTES} bytes among {machines:,} machines, {amounts.connections} connections at once:"
        f" CPU per request, median of {amounts.rounds} interleaved rounds"
    )
    print_table(title, ["how, server", "median", "least", "with all it did between", "nginx CPU / its CPU"], rows)
    return verdicts


def _task(mode: str, subject: Subject, amounts: Amounts, sources: int = 1) -> Task:
    return Task(
        mode=mode,
        port=subject.port,
        core=LOAD_CORE,
        connections=amounts.connections,
        sources=sources,
        seconds=amounts.seconds,
    )


def answered_of(task: Task) -> int:
    with load(task) as client:
        return int(client.run()["answered"])


@dataclass(slots=True)
class Spent:
    """CPU seconds per request: of each round, and of all it did from the first to the last, also between its rounds."""

    rounds_s: list[float]
    all_in_s: float = 0.0


def costs_of(subjects: Sequence[Subject], ask_all: Callable[[Subject], int], rounds: int) -> dict[str, Spent]:
    """The first round only warms up."""
    costs = {subject.name: Spent([]) for subject in subjects}
    began_s, answered = dict.fromkeys(costs, 0.0), dict.fromkeys(costs, 0)
    for turn in range(rounds + 1):
        for subject in subjects[:: 1 if turn % 2 else -1]:
            before_s = subject.cpu_s()
            count = ask_all(subject)
            if turn == 0:
                began_s[subject.name] = subject.cpu_s()
            else:
                costs[subject.name].rounds_s.append((subject.cpu_s() - before_s) / count)
                answered[subject.name] += count
    for subject in subjects:
        costs[subject.name].all_in_s = (subject.cpu_s() - began_s[subject.name]) / answered[subject.name]
    return costs


def clocks(folder: Path, amounts: Amounts) -> list[Verdict]:
    """The poll of a service as an emulator has it, with a manual clock and in memory, beside one with the system clock."""
    fleet = folder / "fleet.toml"
    fleet.write_text(ONE_MACHINE)
    with ExitStack() as stack:
        subjects = [
            stack.enter_context(
                serving_at(name, "memory:", folder / name, options=("--clock", name, "--fleet", str(fleet)))
            )
            for name in ("manual", "system")
        ]
        costs = costs_of(subjects, lambda subject: answered_of(_task("keep_alive", subject, amounts)), amounts.rounds)
    ratio = median_ratio(costs["manual"].rounds_s, costs["system"].rounds_s)
    rows = [
        [name, _micro(statistics.median(each.rounds_s)), _micro(min(each.rounds_s))] for name, each in costs.items()
    ]
    title = f"A poll by the clock of the service, store in memory: CPU per request, median of {amounts.rounds} rounds"
    print_table(title, ["clock", "median", "least"], rows)
    return [at_most("CPU of a poll with a manual clock / with the system clock", ratio, MOST_CLOCK_RATIO)]


# -- crowds


def _crowd(subjects: Sequence[Subject], amounts: Amounts, ratios: dict[str, float]) -> list[Verdict]:
    idle = {subject.name: crowds.idle_bytes(subject, amounts.crowd) for subject in subjects}
    spent = crowds.paced_cpu(subjects, amounts.crowd, amounts.crowd_seconds, amounts.crowd_rounds)
    rows = []
    for subject in subjects:
        cpu = spent[subject.name]
        ratio = f"{median_ratio(cpu, spent[PEER]):.2f}" if PEER in spent else ""
        rows.append(
            [subject.name, f"{statistics.median(cpu) * 100:.1f} %", ratio, f"{idle[subject.name] / 1024:.2f} KB"]
        )
    title = f"{amounts.crowd:,} keep-alive connections, each polling once a second (CPU of one core) or silent (memory)"
    print_table(title, ["server", "CPU, polling", "CPU ratio", "memory per idle connection"], rows)
    verdicts = [at_most("bytes per idle connection", idle[FORE], MOST_IDLE_BYTES)]
    if PEER in spent:
        ratio_paced = median_ratio(spent[FORE], spent[PEER])
        ratios[f"{amounts.crowd:,} polling once a second"] = 1 / ratio_paced
        verdicts.append(at_most(f"CPU of {amounts.crowd:,} polling / nginx's", ratio_paced, MOST_PACED_RATIO))
    return verdicts


def _fan_out(database: Path, amounts: Amounts) -> list[Verdict]:
    ours, peers = [], []
    with crowds.inside(str(database)) as server, crowds.inside("bare", DOCUMENT_BYTES + 160) as bare:
        for _ in range(amounts.fan_outs):
            ours.append(crowds.fan_out(server, amounts.crowd, probed=True))
            peers.append(crowds.fan_out(bare, amounts.crowd, probed=False))
    ratio = median_ratio([o.last_s for o in ours], [p.last_s for p in peers])
    row = [
        milliseconds(statistics.median(o.last_s for o in ours)),
        milliseconds(statistics.median(p.last_s for p in peers)),
        f"{ratio:.2f}",
        milliseconds(statistics.median(o.asked_s for o in ours)),
        milliseconds(statistics.median(o.batch_s for o in ours)),
        milliseconds(statistics.median(o.probe_s for o in ours)),
        str(max(o.waited_batches for o in ours)),
    ]
    title = f"One change to the last of {amounts.crowd:,} waiting long polls, median of {amounts.fan_outs}"
    head = [
        "forewarn",
        "bare uvloop loop",
        "ratio",
        "with the commit",
        "longest batch",
        "longest poll meanwhile",
        "most batches before it",
    ]
    print_table(title, head, [row])
    waited = max(o.waited_batches for o in ours)
    return [
        at_most(f"fan-out to {amounts.crowd:,} / a bare loop's", ratio, MOST_FAN_OUT_RATIO),
        at_most("batches a poll waits for during the fan-out", waited, MOST_BATCHES),
    ]


def _changes(folder: Path, database: Path, amounts: Amounts) -> list[Verdict]:
    many = folder / "many.db"
    build(many, scopes=amounts.documents, per_scope=1, announced=False)
    with crowds.inside(str(many)) as server, load(crowds.crowd("probe", server.port, 1)) as client:
        client.begin()
        reply = server.order("change all")
        client.end()
        probes_s = client.result()["probes_s"]
    if reply["changed"] != amounts.documents:
        raise RuntimeError(f"{reply['changed']} documents changed instead of {amounts.documents}")
    title = f"{amounts.documents:,} documents changed by one transaction"
    row = [f"{reply['took_s']:.2f} s", milliseconds(reply["stall_s"]), milliseconds(max(probes_s))]
    print_table(title, ["the change took", "longest stall of the event loop", "longest poll meanwhile"], [row])
    with (
        crowds.inside(str(database), amounts.changes) as server,
        load(crowds.crowd("paced", server.port, amounts.crowd, amounts.changes * 0.02)) as client,
    ):
        client.begin()
        took_s = server.order("fresh")["took_s"]
    row = [milliseconds(quantile(took_s, part)) for part in (0.5, 0.99, 1.0)]
    title = f"From the acknowledged change to a poll that shows it, {amounts.crowd:,} others polling once a second"
    print_table(title, ["p50", "p99", "max"], [row])
    return [at_most("ms to a fresh document, p99,", quantile(took_s, 0.99) * 1e3, MOST_FRESH_S * 1e3)]


def _storm(database: Path, amounts: Amounts) -> None:
    seen = crowds.storm(database, amounts.crowd)
    row = [f"{seen.most_s:.2f} s", f"{seen.all_s:.2f} s", f"{seen.down_s:.2f} s"]
    title = f"{amounts.crowd:,} guests come back at once after a restart; since the listener accepts again"
    print_table(title, ["99.9 % answered", "all answered", "restart until it accepts"], [row])


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
