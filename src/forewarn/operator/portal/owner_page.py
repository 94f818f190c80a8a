"""The front page of an owner: what is coming for its machines, what the owner can do about it, and the machines.

Everyone else gets the page Now, and so does an owner who has chosen a status there.
"""

from datetime import UTC, datetime

from forewarn.core.model import Role
from forewarn.operator.api.bodies import EventOut
from forewarn.operator.portal import pages
from forewarn.operator.portal.buttons import event_buttons
from forewarn.operator.portal.page_request import PageRequest, RenderedPage

MAX_EVENTS = 20
MAX_MACHINES = 25
# Of each status so many are read, and the first of them by their start are shown.
EVENTS_READ = 50


def front_page(request: PageRequest) -> RenderedPage:
    if request.api.caller.role is not Role.OWNER or request.query.keys() & {"status", "cursor"}:
        return pages.now(request)
    api = request.api
    events = _coming_events(request)
    machines = api.get("/v1/machines", limit=MAX_MACHINES)
    variables = {
        "counts": api.get("/v1/counts"),
        "events": [(event, event_buttons(api, event, None)) for event in events],
        "machines": machines.items,
        "more_machines": machines.next_cursor is not None,
    }
    return RenderedPage("owner.html", variables)


def _coming_events(request: PageRequest) -> list[EventOut]:
    """Return the open events: started ones, then scheduled ones by NotBefore, then those that are not announced."""
    events: list[EventOut] = []
    for status in pages.OPEN_FIRST:
        found: list[EventOut] = request.api.get("/v1/events", status=status, limit=EVENTS_READ).items
        events += sorted(found, key=lambda e: (_start(e), e.wave))
    return events[:MAX_EVENTS]


def _start(event: EventOut) -> datetime:
    return event.started or event.not_before or datetime.max.replace(tzinfo=UTC)
