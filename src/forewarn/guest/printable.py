"""Texts from the endpoint and from programs, made safe for a terminal and a log.

A control character in such a text could clear the screen, forge a line, or reverse what is shown.
"""

from __future__ import annotations

import json
import re

MAX_LINE_CHARS = 4_000
_WORD = re.compile(r"[A-Za-z0-9._:-]+")


def printable(text: str) -> str:
    """Return one line without control characters, which are shown as escapes; a line that is too long is cut."""
    if len(text) <= MAX_LINE_CHARS and text.isprintable():
        return text
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text[:MAX_LINE_CHARS]
    )
    return shown if len(shown) <= MAX_LINE_CHARS else shown[: MAX_LINE_CHARS - 1] + "…"


def word(text: object) -> str:
    """Return a text that should be one word as it is, or in quotes where it could be mistaken for several."""
    return text if isinstance(text, str) and _WORD.fullmatch(text) else json.dumps(text)
