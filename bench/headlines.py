"""The headline rows: what was slow, its figure before, its goal, and the verdicts of the benches that answer it.

`python -m bench` prints them last, and the page of measurements begins with them. Ratios are against the peer in the row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.report import Verdict

COMMIT, POSTGRES_COMMIT = "transitions per bare commit (wall time)", "transitions per bare PostgreSQL commit"


@dataclass(frozen=True, slots=True)
class Headline:
    """`targets` are the beginnings of the targets whose verdicts answer the row; it is met if all of them are."""

    what: str
    peer: str
    before: str
    goal: str
    targets: tuple[str, ...]


HEADLINES = (
    Headline(
        "one event per commit, SQLite",
        "bare commits",
        "0.08 to 0.11",
        "at least 0.30, or within 1.5 times of the floor",
        (f"{COMMIT}, one event per commit",),
    ),
    Headline(
        "one event per commit, PostgreSQL, 1 and 3 writers",
        "bare commits",
        "0.07, 0.05",
        "at least 0.25, or within 1.5 times of the floor",
        (f"{POSTGRES_COMMIT}, 1 writer, one event", f"{POSTGRES_COMMIT}, 3 writers, one event"),
    ),
    Headline("in batches, SQLite", "bare commits", "0.24", "at least 0.50", (f"{COMMIT}, as the service does it",)),
    Headline(
        "in batches, PostgreSQL, 1 and 3 writers",
        "bare commits",
        "0.69, 0.48",
        "at least 0.70, 0.60",
        (f"{POSTGRES_COMMIT}, 1 writer, in batches", f"{POSTGRES_COMMIT}, 3 writers, in batches"),
    ),
    Headline(
        "500 approvals of a scope at once; 2,000 over 500",
        "as many bare commits",
        "0.02",
        "at least 0.2; at most 4.5",
        ("500 bare commits / 500 approvals", "2000 approvals at once / 500"),
    ),
    Headline(
        "seconds late: 10,000 due at once, p99; early starts; a single one beside them",
        "",
        "10.4",
        "at most 3; none; at most 0.5",
        ("seconds late, 10,000", "no early starts", "seconds late, a single event"),
    ),
    Headline(
        "resident bytes per machine, memory store and service",
        "",
        "842, 629",
        "at most 400",
        ("bytes per machine, memory store with 1,000,000", "bytes per machine, service with 1,000,000"),
    ),
    Headline(
        "ready with 1,000,000 machines; answers meanwhile",
        "bare SELECT of the rows",
        "about 7",
        "at most 2.5",
        ("ready with 1,000,000 machines", "answers to a guest of a loaded scope"),
    ),
    Headline(
        "seconds to apply a fleet file of 1,000,000 machines; of CPU",
        "",
        "about 50",
        "at most 15; at most 15",
        ("seconds to apply a fleet", "seconds of CPU to apply a fleet"),
    ),
    Headline(
        "CPU of a poll: kept alive, new connections; 10,000 polling",
        "nginx",
        "0.98, 0.83, 0.94 to 1.21",
        "at least 1.0, 0.90; at most 1.0",
        (
            "nginx CPU / forewarn CPU, keep-alive",
            "nginx CPU / forewarn CPU, connection per request",
            "CPU of 10,000 polling",
        ),
    ),
    Headline(
        "CPU of a poll with a manual clock",
        "the system clock",
        "0.65",
        "at most 1.05",
        ("CPU of a poll with a manual clock",),
    ),
    Headline(
        "`forewarn emulate` to an answer; `forewarn --version`",
        "bare server; bare interpreter",
        "7",
        "at most 4; at most 2",
        ("CPU from starting the emulator", "CPU of `forewarn --version`"),
    ),
    Headline(
        "idle memory of the agent", "bare interpreter", "1.46", "at most 1.3", ("idle memory of the agent over a bare",)
    ),
    Headline(
        "simulation seeds per second",
        "bare loop on one core",
        "1.2",
        "at least 2.4",
        ("simulation seeds in the time of a bare loop",),
    ),
)


def print_headlines(verdicts: Sequence[Verdict]) -> None:
    """Print the rows that these verdicts answer, whole or in part, as the page of measurements has them."""
    rows = [_row(each, verdicts) for each in HEADLINES if any(_verdicts(each, verdicts))]
    for cells in (("what", "peer", "before", "goal", "measured", "verdict"), ("---",) * 6, *rows):
        print(f"| {' | '.join(cells)} |")


def _row(headline: Headline, verdicts: Sequence[Verdict]) -> list[str]:
    found = list(_verdicts(headline, verdicts))
    measured = "; ".join(verdict.measured if verdict is not None else "not measured" for verdict in found)
    met = all(verdict is not None and verdict.met for verdict in found)
    missed = any(verdict is not None and not verdict.met for verdict in found)
    verdict = "met" if met else "MISSED" if missed else "in part"
    return [headline.what, headline.peer, headline.before, headline.goal, measured, verdict]


def _verdicts(headline: Headline, verdicts: Sequence[Verdict]) -> Iterable[Verdict | None]:
    """Yield the verdict of each target, or None if its bench did not run."""
    for beginning in headline.targets:
        yield next((verdict for verdict in verdicts if verdict.target.startswith(beginning)), None)
