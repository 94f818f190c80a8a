"""What a bench says: plain tables, and a verdict for each figure that has a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

# Pages quote what is printed, and their lines end here.
MAX_COLUMNS = 120
# How far we may be from the floor where the floor itself misses the goal.
MOST_OVER_FLOOR = 1.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured; a missed one is said aloud, a broken one is an error of the service."""

    target: str
    measured: str
    met: bool
    broken: bool = False

    def __str__(self) -> str:
        text = f"target {self.target}: {'met' if self.met else 'MISSED'} (measured {self.measured})"
        return fill(text, MAX_COLUMNS, subsequent_indent="  ")


def at_most(name: str, measured: float, limit: float) -> Verdict:
    return Verdict(f"{name} at most {limit:g}", f"{measured:.2f}", met=measured <= limit)


def at_least(name: str, measured: float, limit: float) -> Verdict:
    return Verdict(f"{name} at least {limit:g}", f"{measured:.2f}", met=measured >= limit)


def at_least_or_near_floor(name: str, measured: float, limit: float, *, floor: float, over_floor: float) -> Verdict:
    """Judge by the limit, or by the distance from the floor if the floor, a bare loop of the same statements, misses it.

    `floor` is what the floor measures beside the same peer; `over_floor` is how many times its time we take.
    """
    figures = f"{measured:.2f}, the floor {floor:.2f}, {over_floor:.2f} times of its time"
    if floor >= limit:
        return Verdict(f"{name} at least {limit:g}", figures, met=measured >= limit)
    goal = f"at least {limit:g}, which the floor misses: within {MOST_OVER_FLOOR:g} times of the floor"
    return Verdict(f"{name} {goal}", figures, met=over_floor <= MOST_OVER_FLOOR)


def none_of(name: str, count: int) -> Verdict:
    return Verdict(f"no {name}", str(count), met=count == 0, broken=count > 0)


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Markdown, so that it can be copied into a page as it is; the first column names, the others are figures."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    print(f"\n{title}\n")
    print(_line(head, widths))
    print("| " + " | ".join("-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)) + " |")
    for row in rows:
        print(_line(row, widths))
    print(flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "| " + " | ".join(padded) + " |"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
