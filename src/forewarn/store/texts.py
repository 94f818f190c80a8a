"""How times and texts are written into every SQL database, and hashed into the audit."""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

# PostgreSQL's text cannot hold NUL, but a command's output can. NUL and the escape character are each written as two characters.
_ESCAPE = "\x1a"


@lru_cache(maxsize=4_096)
def time_text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def is_plain(text: str) -> bool:
    """Whether the text is ASCII and `without_nul` leaves it as it is."""
    return text.isascii() and "\0" not in text and _ESCAPE not in text


def without_nul(text: str) -> str:
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def with_nul(text: str) -> str:
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE) if _ESCAPE in text else text


def array_text(values: Iterable[object]) -> str:
    """Return an array in the notation of PostgreSQL. The driver takes much longer to convert a list."""
    elements = [_quoted(each) if isinstance(each, str) else str(each) for each in values]
    return f"{{{','.join(elements)}}}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
