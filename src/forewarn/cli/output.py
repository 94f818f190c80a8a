"""How answers are shown: Rich tables on a terminal, plain uncropped text elsewhere, or the API's JSON.

Text from elsewhere is shown as text: no markup, no control characters.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forewarn.cli.formatting import plain

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
    "Abandoned": "red",
    "Failed": "red",
    "failed": "red",
}

Rows = Sequence[Sequence[object]]


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    return plain(str(value)).replace("\n", " ")


def plain_table(columns: Sequence[str], rows: Rows) -> str:
    """Columns as wide as their widest cell: nothing is cropped, nothing wraps."""
    lines = [[name.upper() for name in columns], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def rich_table(columns: Sequence[str], rows: Rows) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.upper(), overflow="fold", no_wrap=False)
    for row in rows:
        texts = [cell(value) for value in row]
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in texts))
    return table


class Output:
    """One command's output. `as_json`: the API's answer and nothing else on standard output."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.terminal = sys.stdout.isatty()
        self.console = Console(highlight=False, markup=False, emoji=False)

    def json(self, data: Any, *, line: bool = False) -> None:
        print(json.dumps(data, separators=(",", ":")) if line else json.dumps(data, indent=2), flush=True)

    def say(self, text: str) -> None:
        """A line for people; beside JSON it goes to standard error."""
        print(plain(text), file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def aside(self, text: str) -> None:
        """Something to know that is not the answer."""
        print(plain(text), file=sys.stderr, flush=True)

    def heading(self, text: str) -> None:
        if self.as_json or not self.terminal:
            self.say(f"\n{text}")
        else:
            self.console.print(Text(f"\n{plain(text)}", style="bold"))

    def table(self, columns: Sequence[str], rows: Rows, *, empty: str = "nothing") -> None:
        if not rows:
            self.say(empty)
        elif self.terminal and not self.as_json:
            self.console.print(rich_table(columns, rows))
        else:
            print(plain_table(columns, rows), file=sys.stderr if self.as_json else sys.stdout)

    def facts(self, pairs: Sequence[tuple[str, object]]) -> None:
        """One thing, a line per fact."""
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            self.say(f"{name.ljust(width)}  {cell(value)}".rstrip())
