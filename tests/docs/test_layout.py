"""Check the layout of the documentation: folders, length of pages and lines, the index, and the README's links."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
GUIDE = sorted((DOCS / "guide").rglob("*.md"))
PAGES = [INDEX, *GUIDE, *sorted((DOCS / "reference").glob("*.md")), *sorted((DOCS / "contributing").glob("*.md"))]
# The pages that a reader of the repository opens first follow the same rule for lines.
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
FRONT = [*DECISIONS, ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
READERS = ["Operators", "Application owners", "Testers"]
MAX_GUIDE_WORDS = 1_500
MAX_COLUMNS = 120
MAX_README_LINKS = 10
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    return FENCED.sub("", page.read_text("utf-8"))


def linked(page: Path) -> list[Path]:
    """Return the pages of the documentation that a page links to."""
    targets = (Path(os.path.normpath(page.parent / target)) for target in LINK.findall(prose(page)))
    return [target for target in targets if target.suffix == ".md" and target.is_file()]


@pytest.mark.parametrize("page", GUIDE, ids=name)
def test_a_guide_page_is_short(page: Path) -> None:
    """A page of the guide has at most 1,500 words, its code included."""
    assert len(page.read_text("utf-8").split()) <= MAX_GUIDE_WORDS


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name)
def test_no_line_is_too_long(page: Path) -> None:
    """A line has at most 120 columns, unless it is code or a row of a table."""
    lines = [line for line in prose(page).splitlines() if not line.lstrip().startswith("|")]
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != INDEX], ids=name)
def test_a_page_says_whom_it_is_for(page: Path) -> None:
    """Below its title, before the first section, a page names its readers."""
    title, _, rest = prose(page).partition("\n")
    assert title.startswith("# ")
    assert rest.startswith("\nFor ")


def test_the_index_has_an_entry_for_each_reader() -> None:
    """Each of the three entries is a list of links."""
    entries = re.split(r"^## ", INDEX.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert [entry.partition("\n")[0] for entry in entries] == READERS
    for entry in entries:
        items = re.findall(r"^- (.*(?:\n  .*)*)", entry, re.MULTILINE)
        assert 0 < len(items) <= 10
        assert all(LINK.search(item) for item in items)


def test_every_page_is_reachable_from_the_index() -> None:
    """A reader who follows links from the index finds every page."""
    found = {INDEX}
    pages = [INDEX]
    while pages:
        new = set(linked(pages.pop())) - found
        found |= new
        pages += new
    assert {name(page) for page in PAGES} - {name(page) for page in found} == set()


def test_the_readme_has_few_links_after_its_first_screen() -> None:
    """The list of pages is in the index: after the first event, the README has at most ten links."""
    readme = (ROOT / "README.md").read_text("utf-8")
    _, first, rest = readme.partition("\n## Your first event, in five minutes\n")
    _, second, rest = rest.partition("\n## ")
    assert first
    assert second
    links = LINK.findall(rest)
    assert len(links) <= MAX_README_LINKS
    assert "docs/index.md" in links
