"""Tables and JSON on standard output."""

import pytest
from rich.text import Text

from forewarn.cli.output import Output, plain_table, rich_table
from tests.cli.rendering import render


def test_a_plain_table_cuts_nothing() -> None:
    """A column is as wide as its widest cell; a cell is one line without control characters."""
    wide = "x" * 500
    assert plain_table(("a", "b c"), [(1, wide), ("two\nlines\x1b", None)]) == (
        f"A           B C\n1           {wide}\ntwo lines\ufffd"
    )


def test_a_table_on_a_terminal_wraps_and_cuts_nothing() -> None:
    """Every character of a cell is printed, on several lines if necessary; brackets are not markup."""
    text = render(rich_table(("a", "b"), [("[bold]x[/bold]", "y" * 100)]), columns=40)
    assert "…" not in text
    assert text.count("y") == 100
    assert "".join(text.split()).count("[bold]") == 1


def test_json_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json, text for people goes to standard error."""
    out = Output(as_json=True)
    out.say("for people")
    out.table(("a",), [("also",)])
    out.json({"a": "ü"})
    printed = capsys.readouterr()
    assert printed.out == '{\n  "a": "\\u00fc"\n}\n'
    assert "for people" in printed.err
    assert "also" in printed.err


def test_cells_have_the_colour_of_their_status() -> None:
    """A status may be followed by its details; cells without a status have the style of the table."""
    table = rich_table(("status", "why"), [("Held: 2 orders failed", "no power")], "italic")
    styles = [cell.style for column in table.columns for cell in column.cells if isinstance(cell, Text)]
    assert styles == ["red", "italic"]
