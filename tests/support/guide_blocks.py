"""Read the blocks that the networking pages of docs/guide print, so that tests can run them.

A block is found by its heading and its first line, a comment.
"""

import re
import shlex
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = ("networking.md", "openstack.md", "anti-spoofing.md")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def block(heading: str, first_line: str) -> str:
    """The one block under this heading whose first line, a comment, begins like this."""
    found = [text for text in _BLOCK.findall(_section(heading)) if text.startswith(f"# {first_line}")]
    assert len(found) == 1, f"{len(found)} blocks under {heading!r} begin with {first_line!r}"
    return str(found[0])


def command(heading: str, first_line: str) -> list[str]:
    """A block that ends with one command, as its words; assignments before it are for `env`."""
    words = shlex.split(block(heading, first_line).replace("\\\n", " "), comments=True)
    return ["env", *words[words.index("forewarn") - _assignments(words) :]]


def _assignments(words: list[str]) -> int:
    before = words[: words.index("forewarn")]
    return sum(1 for word in before if re.fullmatch(r"[A-Z_]+=.*", word))


def _section(heading: str) -> str:
    """Return the text under the one heading of this name, up to the next heading of its level."""
    texts = [(GUIDE / page).read_text("utf-8") for page in PAGES]
    found = [text.partition(f"\n## {heading}\n")[2] for text in texts if f"\n## {heading}\n" in text]
    assert len(found) == 1, f"{len(found)} pages have the heading {heading!r}"
    return re.split(r"^## ", found[0], maxsplit=1, flags=re.MULTILINE)[0]
