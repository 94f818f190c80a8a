"""Read the blocks that the networking pages of docs/guide print, so that tests can run them.

A block is found by its heading and its first line, a comment. In a program, that line follows `#!/bin/sh`.
"""

import re
import shlex
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = ("networking.md", "openstack.md", "anti-spoofing.md", "libvirt-network.md", "libvirt-tls.md", "kvm.md")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def block(heading: str, first_line: str) -> str:
    """Return the one block under a heading whose first line, a comment, begins with `first_line`."""
    blocks = [
        text
        for text in _BLOCK.findall(_section(heading))
        if text.removeprefix("#!/bin/sh\n").startswith((f"# {first_line}", f"<!-- {first_line}", f"// {first_line}"))
    ]
    assert len(blocks) == 1, f"{len(blocks)} blocks under {heading!r} begin with {first_line!r}"
    return str(blocks[0])


def command(heading: str, first_line: str) -> list[str]:
    """Return the arguments of the command that ends a block; assignments before it are for `env`."""
    arguments = shlex.split(block(heading, first_line).replace("\\\n", " "), comments=True)
    return ["env", *arguments[arguments.index("forewarn") - _assignments(arguments) :]]


def _assignments(arguments: list[str]) -> int:
    before = arguments[: arguments.index("forewarn")]
    return sum(1 for each in before if re.fullmatch(r"[A-Z_]+=.*", each))


def _section(heading: str) -> str:
    """Return the text under the one heading of this name, up to the next heading of its level."""
    texts = [(GUIDE / page).read_text("utf-8") for page in PAGES]
    sections = [text.partition(f"\n## {heading}\n")[2] for text in texts if f"\n## {heading}\n" in text]
    assert len(sections) == 1, f"{len(sections)} pages have the heading {heading!r}"
    return re.split(r"^## ", sections[0], maxsplit=1, flags=re.MULTILINE)[0]
