"""The sentence about a key, field or parameter that does not exist."""

import difflib
from collections.abc import Iterable


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return, for example, `unknown key; did you mean host? The keys here are name, host`."""
    names = list(known)
    if not names:
        return f"unknown {kind}; there are no {kind}s here"
    nearest = difflib.get_close_matches(name, names, n=1)
    article = f"did you mean {nearest[0]}? The" if nearest else "the"
    return f"unknown {kind}; {article} {kind}s here are {', '.join(names)}"
