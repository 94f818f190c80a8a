"""HTML in the middle of text."""

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from forewarn.core.formatting import MAX_NAMES, SHORT_ID_CHARS

MAX_UNBROKEN_CHARS = 32  # a phone shows so many characters in one line

EVENT_ID = re.compile(r"event ([0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})")


def link_events(message: str) -> Markup:
    """Return the message as HTML. Each event id becomes a short id with a link to the event's page."""
    html = Markup()
    for number, part in enumerate(EVENT_ID.split(message)):
        link = Markup('event <a href="/events/{}">{}</a>').format(part, part[:SHORT_ID_CHARS])
        html += escape(part) if number % 2 == 0 else link
    return html


def name_list(every: Sequence[str], most: int = MAX_NAMES) -> Markup:
    """Return `web-0, web-1 and 3 more` as HTML. Browsers would break `web-0` after its hyphen; only long names may break."""
    shown = every[:most]
    html = Markup(" ").join(
        _unbroken(f"{name}," if number < len(shown) else name) for number, name in enumerate(shown, 1)
    )
    return html if len(every) <= most else html + f" and {len(every) - most:,} more"


def _unbroken(name: str) -> Markup:
    return Markup('<span class="name">{}</span>').format(name) if len(name) <= MAX_UNBROKEN_CHARS else escape(name)
