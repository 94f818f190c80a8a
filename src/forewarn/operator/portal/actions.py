"""The actions: each is a call of the API, followed by a redirect to the page of the thing it changed.

A page of its own, at the action's address, first confirms an action that cannot be undone.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError, NotFound
from forewarn.core.formatting import count, names
from forewarn.operator.api.bodies import EventOut, OrderOut, TokenOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal import drill_pages, inventory_pages, order_pages, pages
from forewarn.operator.portal.buttons import RESCHEDULE, RESCHEDULE_HOST, REVOKE, SKIP, Button
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage
from forewarn.operator.portal.plan_form import rfc3339

MAX_PAGE = 500
PAGE_WITH_FAILURES = re.compile(r"/(maintenances/[0-9A-Fa-f-]{36})?")


def change_event(request: PageRequest) -> Redirect:
    event_id, verb = request.path_names["id"], request.path_names["verb"]
    if verb == RESCHEDULE.verb:
        moved: EventOut = request.api.call("POST", f"/v1/events/{event_id}/{verb}", _new_time(request))
        return Redirect(f"/events/{quote(moved.id or '')}?done={verb}")
    request.api.call("POST", f"/v1/events/{event_id}/{verb}")
    return Redirect(f"{_back(request) or f'/events/{quote(event_id)}'}?done={verb}")


def change_maintenance(request: PageRequest) -> Redirect:
    maintenance_id, verb = request.path_names["id"], request.path_names["verb"]
    request.api.call("POST", f"/v1/maintenances/{maintenance_id}/{verb}")
    return Redirect(f"{_back(request) or f'/maintenances/{quote(maintenance_id)}'}?done={verb}")


def change_drill(request: PageRequest) -> Redirect:
    drill_id, verb = request.path_names["id"], request.path_names["verb"]
    request.api.call("POST", f"/v1/drills/{drill_id}/{verb}")
    return Redirect(f"/drills/{quote(drill_id)}?done={verb}")


def _back(request: PageRequest) -> str:
    """Return the page whose list of failures has the button that was pressed, or "" for another button."""
    back = request.form.get("back", "")
    return back if PAGE_WITH_FAILURES.fullmatch(back) else ""


def change_order(request: PageRequest) -> Redirect:
    order_id, verb = request.path_names["id"], request.path_names["verb"]
    if verb in (SKIP.verb, RESCHEDULE_HOST.verb):
        of_host: OrderOut = request.api.get(f"/v1/orders/{order_id}")
        path = f"/v1/maintenances/{of_host.maintenance_id}/hosts/{of_host.host}/{verb}"
        request.api.call("POST", path, None if verb == SKIP.verb else _new_time(request))
        return Redirect(f"/orders/{quote(order_id)}?done={verb}")
    body = {"reason": request.form.get("reason", "").strip()} if verb == "fail" else None
    order: OrderOut = request.api.call("POST", f"/v1/orders/{order_id}/{verb}", body)
    if order.host:
        return Redirect(f"{_back(request) or f'/orders/{quote(order_id)}'}?done=host-{verb}")
    return Redirect(f"/events/{quote(order_id)}?done=order-{verb}")


def _new_time(request: PageRequest) -> dict[str, object]:
    return {"not_before": rfc3339(request.form.get("not_before", "").strip())}


def create_token(request: PageRequest) -> RenderedPage:
    """Show the secret in this response only. The same form submitted twice creates one token."""
    fields = {name: request.form.get(name, "").strip() for name in ("name", "role", "scopes", "valid_for", "key")}
    body: dict[str, object] = {
        "name": fields["name"],
        "role": fields["role"],
        "scopes": fields["scopes"].replace(",", " ").split(),
    }
    try:
        if fields["valid_for"]:
            body["valid_for_s"] = parse_duration(fields["valid_for"])
        token = request.api.call("POST", "/v1/tokens", body, key=fields["key"])
    except ForewarnError as error:
        return pages.tokens(request, fields=fields, error_message=str(error), status=error.status)
    return RenderedPage("token.html", {"token": token})


def revoke_token(request: PageRequest) -> Redirect:
    request.api.call("DELETE", f"/v1/tokens/{request.path_names['id']}")
    return Redirect("/tokens?done=revoked")


def change_host(request: PageRequest) -> Redirect:
    host, verb = request.path_names["host"], request.path_names["verb"]
    request.api.call("POST", f"/v1/hosts/{host}/{verb}")
    return Redirect(f"/hosts/{quote(host)}?done={verb}")


def set_budget(request: PageRequest) -> Redirect:
    typed = {key: request.form.get(key, "").strip() for key in ("max_hosts_down", "max_machines_down")}
    request.api.call(
        "POST", "/v1/budget", {key: int(text) if text.isdecimal() else text for key, text in typed.items()}
    )
    return Redirect("/budget?done=budget")


def hold_store(request: PageRequest) -> Redirect:
    request.api.call("POST", "/v1/store/hold", {"reason": request.form.get("reason", "").strip()})
    return Redirect("/store?done=store-hold")


def resume_store(request: PageRequest) -> Redirect:
    """Resume from the hold that the form showed."""
    request.api.call("POST", "/v1/store/resume", {"held": request.form.get("held", "")})
    return Redirect("/store?done=store-resume")


# -- confirmation


def confirm_event(request: PageRequest) -> RenderedPage | Redirect:
    page = pages.event(request)
    if isinstance(page, Redirect):
        return page
    event = page.variables["event"]
    subject = f"{event.type} of {names(event.resources)} in {event.scope}: {event.status}"
    return _confirmation(request, page.variables["buttons"], f"/events/{quote(event.id)}", subject)


def confirm_maintenance(request: PageRequest) -> RenderedPage | Redirect:
    page = pages.maintenance(request)
    if isinstance(page, Redirect):
        return page
    maintenance = page.variables["maintenance"]
    progress = ", ".join(f"{number} {status.lower()}" for status, number in page.variables["progress"])
    subject = (
        f"{maintenance.type} {maintenance.id[:8]}, {maintenance.description or 'without a description'}: {progress}"
    )
    return _confirmation(request, page.variables["buttons"], f"/maintenances/{quote(maintenance.id)}", subject)


def confirm_drill(request: PageRequest) -> RenderedPage | Redirect:
    page = drill_pages.drill(request)
    if isinstance(page, Redirect):
        return page
    drill = page.variables["drill"]
    subject = f"Drill of a {drill.type} in {names(drill.scopes)}: {drill.status}"
    return _confirmation(request, page.variables["buttons"], f"/drills/{quote(drill.id)}", subject)


def confirm_host(request: PageRequest) -> RenderedPage | Redirect:
    page = inventory_pages.host(request)
    host = page.variables["host"]
    subject = f"Host {host.name}, which carries {count(host.machines, 'machine')}"
    return _confirmation(request, page.variables["buttons"], f"/hosts/{quote(host.name)}", subject)


def confirm_token(request: PageRequest) -> RenderedPage | Redirect:
    token = next((each for each in _tokens(request.api) if each.id == request.path_names["id"]), None)
    if token is None:
        raise NotFound("there is no such token: it may have been revoked already")
    buttons = [] if token.id == request.api.caller.token_id else [REVOKE]
    subject = f"The token of {token.name} ({token.id[:8]}), {token.role}"
    return _confirmation(request, buttons, f"/tokens/{quote(token.id)}", subject, page="/tokens")


def _tokens(api: ApiClient) -> Iterator[TokenOut]:
    cursor: str | None = ""
    while cursor is not None:
        page = api.get("/v1/tokens", limit=MAX_PAGE, cursor=cursor)
        yield from page.items
        cursor = page.next_cursor


def confirm_order(request: PageRequest) -> RenderedPage | Redirect:
    """Ask before the order of a host is abandoned or skipped. The page of an event has the buttons of its order."""
    try:
        page = order_pages.order(request)
    except NotFound:  # the event has not started
        return Redirect(f"/events/{quote(request.path_names['id'])}")
    if isinstance(page, Redirect):
        return page
    order = page.variables["order"]
    subject = f"The work on host {order.host}: {order.state}"
    return _confirmation(request, page.variables["buttons"], f"/orders/{quote(order.id)}", subject)


def _confirmation(
    request: PageRequest, buttons: Iterable[Button], base: str, subject: str, page: str = ""
) -> RenderedPage | Redirect:
    """Ask whether to perform the action, if it is offered and needs confirmation; otherwise show the page with the buttons."""
    verb = request.path_names.get("verb", "revoke")
    for button in buttons:
        if button.verb == verb and button.asks_first:
            variables = {"button": button, "subject": subject, "base": base, "page": page or base}
            return RenderedPage("confirm.html", variables)
    return Redirect(page or base)
