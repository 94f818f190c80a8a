"""Plain TOML is read as `tomllib` reads it, and everything else is left to `tomllib`."""

import tomllib
from typing import Any

import pytest

from forewarn.core.plain_toml import CHUNK_CHARS, MAX_SHAPES, Make, NotPlain, PlainTables, filled


def read(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables as `PlainTables` reads them."""

    def learn(name: str, marked: dict[str, Any]) -> Make[tuple[str, dict[str, Any]]]:
        return lambda parts: (name, filled(marked, parts))

    return list(PlainTables(learn).read(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        '[[a]]\nx = "1"\n[[a]]\nx = "2"\n\n[[b]]\ny = 3\nz = true\n',
        '[[a]]\r\nx = "1"\r\n[[a]]\r\nx = "2"',
        '# it\'s "quoted" \\ text\n[[a]]\n  # [[b]]\nx = "#no comment"',
        '[[a]]\nx = ["1", "2"]\ny = { k = "v", l = ["w"] }\nz = []\n',
        '[[a]]\nx = [\n  "1",\n  "2",\n]\n[[a]]\nx = ["\té"]',
        "[[a]]\n[[a]]\nx = 1.5\nday = 2030-01-01\n",
    ],
)
def test_plain_text_is_read_as_tomllib_reads_it(text: str) -> None:
    """The tables have the same names, keys and values, in the same order."""
    tables = [(name, table) for name, found in tomllib.loads(text).items() for table in found]
    assert read(text) == tables


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_long_text_is_read_as_tomllib_reads_it(line_end: str) -> None:
    """A text is read in chunks, and no table is lost, cut or doubled between two of them."""
    text = "".join(f'[[a]]\nx = "{number}"\n# comment\n' for number in range(CHUNK_CHARS // 10)).replace("\n", line_end)
    assert [table for _, table in read(text)] == tomllib.loads(text)["a"]


@pytest.mark.parametrize("end", ['[[a]]\nx = """1"""\n', "[[a]]\nx = '1'\n", '[[a]]\nx = "1\ny = "\n'])
def test_a_long_text_with_an_end_that_is_not_plain_is_not_plain(end: str) -> None:
    """Each chunk is checked."""
    with pytest.raises(NotPlain):
        read('[[a]]\nx = "1"\n' * (CHUNK_CHARS // 10) + end)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n[[a]]\n",
        "text",
        "[a]\nx = 1\n",
        '[[a]]\nx = """1"""\n',
        "[[a]]\nx = '1'\n",
        '[[a]]\nx = "\\t"\n',
        '[[a]]\nx = "1" # "comment"\n',
        '[[a]]\n"x" = 1\n"y" = 2\n',
        '[[a]]\nx = { "k" = "v", "k" = "w" }\n',
        '[[a]]\nx = { "k"."l" = "v" }\n',
        '[[a]]\nx = 1\n[a.b]\ny = "2"\n',
        "[[a]]\nx = 1\n  [[a]]\nx = 2\n",
        "[[a]]\nx = 1\n  [[b]]\nx = 2\n",
        "[[a.b]]\nx = 1\n",
        '[[a]]\nx = "1\ny = "\n',
        '[[a]]\nx = "1"\nx = "2"\n',
        "[[a]]\nx = \n",
        '[[a]]\nx = "\x01"\n',
        "[[a]]\n# \x01\nx = 1\n",
        "\u00a0\n[[a]]\nx = 1\n",
        '[[a]]\nx = "1"\n"y',
        '[["a"]]\nx = 1\n',
        '[[a]]\nx = "\ue0001"\n',
        "[[a]]\nx = " + "[" * 2_000 + "]" * 2_000,
    ],
)
def test_every_other_text_is_not_plain(text: str) -> None:
    """It is TOML in another form, or it is wrong: `tomllib` decides."""
    with pytest.raises(NotPlain):
        read(text)


def test_a_text_with_very_many_shapes_is_not_plain() -> None:
    """To learn each of them would take longer than to read the text with `tomllib`."""
    shapes = "\n".join(f"[[a]]\nx = {number}" for number in range(MAX_SHAPES))
    assert len(read(f"{shapes}\n{shapes}")) == 2 * MAX_SHAPES
    with pytest.raises(NotPlain):
        read(f"{shapes}\n[[a]]\nx = {MAX_SHAPES}")
