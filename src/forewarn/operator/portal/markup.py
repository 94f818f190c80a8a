"""HTML in the middle of text."""

import re

from markupsafe import Markup, escape

from forewarn.core.formatting import SHORT_ID_CHARS

EVENT_ID = re.compile(r"event ([0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})")


def link_events(message: str) -> Markup:
    """Return the message as HTML. Each event id becomes a short id with a link to the event's page."""
    html = Markup()
    for number, part in enumerate(EVENT_ID.split(message)):
        link = Markup('event <a href="/events/{}">{}</a>').format(part, part[:SHORT_ID_CHARS])
        html += escape(part) if number % 2 == 0 else link
    return html
