"""The codes of all reasons to wait, as they stand in the source of the core."""

import re
from pathlib import Path

import forewarn.core

CODES = frozenset(
    code
    for path in Path(forewarn.core.__path__[0]).glob("*.py")
    for code in re.findall(r'code="([a-z-]+)"', path.read_text("utf-8"))
)
