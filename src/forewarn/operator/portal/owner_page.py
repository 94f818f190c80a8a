"""The front page of an owner: what is coming for its machines, what the owner can do about it, and the machines.

Everyone else gets the page Now, and so does an owner who has chosen something there.
"""

from forewarn.core.operator_model import Role
from forewarn.operator.portal import pages
from forewarn.operator.portal.buttons import event_buttons
from forewarn.operator.portal.failures import failures_now
from forewarn.operator.portal.inventory_pages import coming_events
from forewarn.operator.portal.now import now
from forewarn.operator.portal.page_request import PageRequest, RenderedPage


def front_page(request: PageRequest) -> RenderedPage:
    api = request.api
    if api.caller.role is not Role.OWNER or request.query.keys() - {"done"}:
        return now(request)
    events, _ = coming_events(api)
    machines = api.get("/v1/machines", limit=pages.ROWS)
    counts = api.get("/v1/counts")
    variables = {
        "counts": counts,
        "failures": failures_now(request, counts),
        "events": [(event, event_buttons(api, event, None)) for event in events],
        "machines": machines.items,
        "more_machines": machines.next_cursor is not None,
    }
    return RenderedPage("owner.html", variables)
