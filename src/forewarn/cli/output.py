"""Print results: Rich tables on a terminal, plain text that is never cut elsewhere, or the API's JSON.

Text from the server is printed as text: without markup and without control characters.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forewarn.core.formatting import printable, short_ids

if TYPE_CHECKING:  # only a terminal needs rich, which takes longer to import than a command takes to run
    from rich.console import Console
    from rich.table import Table

STYLES: Mapping[str, str] = {
    "Planned": "dim",
    "Scheduled": "yellow",
    "Started": "cyan",
    "Running": "cyan",
    "running": "cyan",
    "open": "yellow",
    "Completed": "green",
    "done": "green",
    "Cancelled": "dim",
    "Paused": "magenta",
    "Held": "red",
    "Abandoned": "red",
    "Failed": "red",
    "failed": "red",
    "in-doubt": "red",
    "active": "green",
    "failing": "red",
    "disabled": "red",
    "up": "green",
    "cordoned": "magenta",
    "in-maintenance": "cyan",
    "planned": "dim",
    "cancelled": "dim",
    "abandoned": "red",
}

Rows = Sequence[Sequence[object]]


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    return printable(str(value)).replace("\n", " ")


def plain_table(columns: Sequence[str], rows: Rows) -> str:
    """Return a table whose columns are as wide as their widest cell: it cuts nothing and wraps nothing."""
    lines = [[name.upper() for name in columns], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def rich_table(columns: Sequence[str], rows: Rows, style: str = "") -> "Table":
    """Return a table for a terminal; `style` is that of cells without a style of their own."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.upper(), overflow="fold", no_wrap=False)
    for row in rows:
        texts = [cell(value) for value in row]
        table.add_row(*(Text(text, style=STYLES.get(text.partition(":")[0], style)) for text in texts))
    return table


class Output:
    """The output of one command. With `as_json`, standard output holds the API's JSON and nothing else."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.terminal = sys.stdout.isatty()

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False)

    def json(self, data: Any, *, line: bool = False) -> None:
        print(json.dumps(data, separators=(",", ":")) if line else json.dumps(data, indent=2), flush=True)

    def result(self, data: Any, *lines: str) -> None:
        """Print the result of the command: `data` with `as_json`, otherwise these lines."""
        if self.as_json:
            self.json(data)
        else:
            for line in lines:
                self.say(line)

    def say(self, text: str) -> None:
        """Print a line for people; with `as_json` it goes to standard error."""
        print(printable(text), file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def aside(self, text: str) -> None:
        """Print a remark, which is not part of the result, to standard error."""
        print(printable(text), file=sys.stderr, flush=True)

    def id_texts(self, ids: Iterable[str]) -> dict[str, str]:
        """Return how to print each id: shortened on a terminal, whole elsewhere."""
        return short_ids(ids) if self.terminal else {each: each for each in ids}

    def heading(self, text: str) -> None:
        if self.as_json or not self.terminal:
            self.say(f"\n{text}")
        else:
            self.console.print(f"\n{printable(text)}", style="bold")

    def table(self, columns: Sequence[str], rows: Rows, *, empty: str = "nothing", style: str = "") -> None:
        if not rows:
            self.say(empty)
        elif self.terminal and not self.as_json:
            self.console.print(rich_table(columns, rows, style))
        else:
            print(plain_table(columns, rows), file=sys.stderr if self.as_json else sys.stdout)

    def facts(self, data: Any, pairs: Sequence[tuple[str, object]]) -> None:
        """Print one object: `data` with `as_json`, otherwise a line per fact."""
        width = max(len(name) for name, _ in pairs)
        self.result(data, *(f"{name.ljust(width)}  {cell(value)}".rstrip() for name, value in pairs))
