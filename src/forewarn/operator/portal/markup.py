"""HTML in the middle of text."""

import re
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup, escape

from forewarn.core import formatting
from forewarn.core.formatting import MAX_NAMES, SHORT_ID_CHARS, distance, full_time, iso, short_time
from forewarn.operator.api.bodies import EventOut

MAX_UNBROKEN_CHARS = 32  # a phone shows so many characters in one line

EVENT_ID = re.compile(r"event ([0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})")


def link_events(message: str) -> Markup:
    """Return the message as HTML. Each event id becomes a short id with a link to the event's page."""
    parts = [str(escape(part)) for part in EVENT_ID.split(message)]
    parts[1::2] = [f"event {_link(part, part[:SHORT_ID_CHARS])}" for part in parts[1::2]]
    return _html("".join(parts))


def event_link(event: EventOut) -> Markup:
    """Return a link to the event's page: its type and its machines."""
    return _html(_link(str(event.id), f"<bdi>{escape(event.type)} of {name_list(event.resources)}</bdi>"))


def scope_link(event: EventOut) -> Markup:
    """Return a link to the event's scope, and its update domain."""
    link = f'<a href="/scopes/{quote(event.scope)}"><bdi>{name_list([event.scope])}</bdi></a>'
    return _html(f'{link}, <span class="far">update domain {event.update_domain}</span>')


def event_state(event: EventOut) -> str:
    """Return the event's status, and whether only an operator can end it."""
    return formatting.event_state(event.status, (reason.code for reason in event.waiting_for))


def _link(event_id: str, text: str) -> str:
    """Return a link; the text is HTML."""
    return f'<a href="/events/{quote(event_id)}">{text}</a>'


def time_tag(moment: datetime | None, now: datetime) -> Markup:
    """Return a moment and its distance from now as HTML; a dash for None. A time has no characters to escape."""
    if moment is None:
        return Markup('<span class="quiet">—</span>')
    shown = f'<time datetime="{iso(moment)}" title="{full_time(moment)}">{short_time(moment, now)}</time>'
    return _html(f'{shown} <span class="quiet far">{distance(moment, now)}</span>')


def name_list(every: Sequence[str], most: int = MAX_NAMES) -> Markup:
    """Return `web-0, web-1 and 3 more` as HTML. Browsers would break `web-0` after its hyphen; only long names may break."""
    shown = every[:most]
    html = " ".join([_unbroken(f"{name}," if number < len(shown) else name) for number, name in enumerate(shown, 1)])
    return _html(html if len(every) <= most else f"{html} and {len(every) - most:,} more")


def _unbroken(name: str) -> str:
    return f'<span class="name">{escape(name)}</span>' if len(name) <= MAX_UNBROKEN_CHARS else str(escape(name))


def _html(text: str) -> Markup:
    """Mark a text as HTML: the callers above escape what they insert. Markup's own formatting takes several times as long."""
    return Markup(text)  # noqa: S704 - its callers escape
