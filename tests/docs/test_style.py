"""The pages keep the rules of style that a program can check."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("guide", "contributing", "decisions")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / "docs" / folder).rglob("*.md"))
MAX_COLUMNS = 120
MAX_GUIDE_WORDS = 1_500


def prose(text: str) -> list[tuple[int, str]]:
    """Return the numbered lines outside tables and code blocks."""
    lines = []
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("|"):
            lines.append((number, line))
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_is_too_long(page: Path) -> None:
    """A line of prose has at most 120 columns."""
    too_long = [number for number, line in prose(page.read_text("utf-8")) if len(line) > MAX_COLUMNS]
    assert too_long == []


@pytest.mark.parametrize("page", [p for p in PAGES if "guide" in p.parts], ids=lambda page: page.name)
def test_no_page_of_the_guide_is_too_long(page: Path) -> None:
    """A longer page answers more than one question: split it."""
    assert len(page.read_text("utf-8").split()) <= MAX_GUIDE_WORDS


def test_tables_and_code_are_not_prose() -> None:
    """The checks read sentences only."""
    assert prose("one\n```sh\ntwo\n```\n| three |\nfour") == [(1, "one"), (6, "four")]
