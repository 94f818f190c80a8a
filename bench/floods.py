"""Floods: how much longer the polls of other machines take while one caller sends as fast as it can.

A real `forewarn serve` with its default limits runs on the first core; the flood and the polls share the second. Rounds with
and without a flood alternate, and a ratio is the median of the rounds' own ratios.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.clients import load
from bench.guests import build
from bench.load import Task
from bench.measure import median_ratio, quantile
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.size import Size
from bench.subjects import LOAD_CORE, Subject, serving

MOST_RATIO = 5.0
PER_SCOPE = 20
FLOODER = 0  # the number of the known machine that floods
FIRST_PROBED = PER_SCOPE  # of another scope than the flooder
UNKNOWN = 100_000  # the number of no machine
# A machine may send as many requests at once as in this time: after it, whatever it sent before does not count.
RATE_FORGETS_S = 1.0
KEPT, NEW = "open connection", "new connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    scopes: int
    rounds: int
    round_s: float
    known_connections: int
    unknown_connections: int

    @property
    def probed(self) -> int:
        return self.scopes * PER_SCOPE - FIRST_PROBED


FULL = Amounts(scopes=11, rounds=9, round_s=2.0, known_connections=16, unknown_connections=250)
TOY = Amounts(scopes=3, rounds=1, round_s=0.1, known_connections=2, unknown_connections=5)


@dataclass(frozen=True, slots=True)
class Round:
    """How long the polls of one round took, by kind of connection."""

    kept_s: list[float]
    new_s: list[float]

    def of(self, kind: str) -> list[float]:
        return self.kept_s if kind == KEPT else self.new_s


@dataclass(frozen=True, slots=True)
class Flood:
    """The rounds of one flood, each beside a round without it, and what the flood itself got."""

    name: str
    without: list[Round]
    during: list[Round]
    answers_per_s: float
    connections_per_s: float


def run(folder: Path, size: Size) -> list[Verdict]:
    amounts = FULL if size.judged else TOY
    database = folder / "guests.db"
    build(database, scopes=amounts.scopes, per_scope=PER_SCOPE)
    with serving(database, limits={}) as subject:
        floods = [
            _measure(f"{amounts.known_connections} connections of a machine", subject, amounts, FLOODER),
            _measure(f"{amounts.unknown_connections} connections of an unknown address", subject, amounts, UNKNOWN),
        ]
    return _report(floods, amounts)


def _measure(name: str, subject: Subject, amounts: Amounts, source: int) -> Flood:
    connections = amounts.known_connections if source == FLOODER else amounts.unknown_connections
    task = Task(mode="flood", port=subject.port, core=LOAD_CORE, connections=connections, first_source=source)
    without: list[Round] = []
    during: list[Round] = []
    seen = {"answers": 0, "connections": 0}
    for _ in range(amounts.rounds):
        time.sleep(RATE_FORGETS_S)
        without.append(_probed(subject, amounts))
        with load(task) as flooder:
            time.sleep(RATE_FORGETS_S)
            flooder.begin()
            during.append(_probed(subject, amounts))
            flooder.end()
            for key, count in flooder.result().items():
                seen[key] += count
    seconds = amounts.rounds * amounts.round_s
    return Flood(name, without, during, seen["answers"] / seconds, seen["connections"] / seconds)


def _probed(subject: Subject, amounts: Amounts) -> Round:
    task = Task(
        mode="probe_machines",
        port=subject.port,
        core=LOAD_CORE,
        connections=1,
        sources=amounts.probed,
        first_source=FIRST_PROBED,
        seconds=amounts.round_s,
    )
    with load(task) as client:
        seen = client.run()
    return Round(seen["kept_s"], seen["new_s"])


def _report(floods: list[Flood], amounts: Amounts) -> list[Verdict]:
    rows, verdicts = [], []
    for flood in floods:
        for kind in (KEPT, NEW):
            cells = [f"{flood.name}; {kind}"]
            for name, part in (("median", 0.5), ("p99", 0.99)):
                without_s = [quantile(each.of(kind), part) for each in flood.without]
                during_s = [quantile(each.of(kind), part) for each in flood.during]
                ratio = median_ratio(during_s, without_s)
                cells += [milliseconds(statistics.median(each)) for each in (without_s, during_s)]
                cells.append(f"{ratio:.2f}")
                verdicts.append(
                    at_most(f"{name} of a poll, {kind}, flood of {flood.name} / without", ratio, MOST_RATIO)
                )
            rows.append(cells)
    head = ["flood; polls on an", "median without", "with", "ratio", "p99 without", "with", "ratio"]
    title = f"Polls of {amounts.probed} other machines during a flood, median of {amounts.rounds} interleaved rounds"
    print_table(title, head, rows)
    got = [[flood.name, f"{flood.answers_per_s:,.0f}", f"{flood.connections_per_s:,.0f}"] for flood in floods]
    print_table("What the flood got", ["flood", "responses per second", "connections per second"], got)
    return verdicts
