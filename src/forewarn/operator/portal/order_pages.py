"""The page about the order of a host. The order of an event is on the page of its event."""

from urllib.parse import quote

from forewarn.core.errors import NotFound
from forewarn.operator.api.bodies import HostWorkOut, MaintenanceOut, OrderOut
from forewarn.operator.api.resolver import Kind
from forewarn.operator.portal import pages
from forewarn.operator.portal.buttons import host_order_buttons
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage


def order(request: PageRequest) -> RenderedPage | Redirect:
    api, typed = request.api, request.path_names["id"]
    order_id = pages.whole_id(api, Kind.ORDER, typed)
    if order_id != typed:
        return Redirect(f"/orders/{quote(order_id)}")
    found: OrderOut = api.get(f"/v1/orders/{order_id}")
    if not found.host:
        return Redirect(f"/events/{quote(order_id)}")
    maintenance: MaintenanceOut = api.get(f"/v1/maintenances/{found.maintenance_id}", limit=0)
    variables = {
        "order": found,
        "maintenance": maintenance,
        "work": _work(maintenance, found),
        "buttons": host_order_buttons(api, found),
        "max_names": pages.MAX_NAMES,
        "max_output_chars": pages.MAX_OUTPUT_CHARS,
    }
    return RenderedPage("order.html", variables)


def _work(maintenance: MaintenanceOut, order: OrderOut) -> HostWorkOut:
    for work in maintenance.hosts:
        if work.host == order.host:
            return work
    raise NotFound(f"maintenance {maintenance.id} has no host {order.host}")


def event_or_order(request: PageRequest) -> RenderedPage | Redirect:
    """Return the page of an event, or of the order of a host that has this id."""
    try:
        return pages.event(request)
    except NotFound as no_event:
        try:
            page = order(request)
        except NotFound:
            raise no_event from None
        if isinstance(page, Redirect):
            raise
        return page
