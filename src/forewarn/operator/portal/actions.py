"""What can be done: each verb is a call of the API, made as the visitor; then the way back to what it was done to.

What cannot be taken back is confirmed on a page of its own first, under the verb's own address.
"""

from collections.abc import Iterable
from urllib.parse import quote

from forewarn.core.errors import ForewarnError, NotFound
from forewarn.operator.portal import offers, pages
from forewarn.operator.portal.formatting import some
from forewarn.operator.portal.visit import PageRequest, Redirect, RenderedPage


def event_verb(visit: PageRequest) -> Redirect:
    event_id, verb = visit.names["id"], visit.names["verb"]
    visit.desk.call("POST", f"/v1/events/{event_id}/{verb}")
    return Redirect(f"/events/{quote(event_id)}?done={verb}")


def maintenance_verb(visit: PageRequest) -> Redirect:
    maintenance_id, verb = visit.names["id"], visit.names["verb"]
    visit.desk.call("POST", f"/v1/maintenances/{maintenance_id}/{verb}")
    return Redirect(f"/maintenances/{quote(maintenance_id)}?done={verb}")


def order_verb(visit: PageRequest) -> Redirect:
    order_id, verb = visit.names["id"], visit.names["verb"]
    said = {"reason": visit.form.get("reason", "").strip()} if verb == "fail" else None
    visit.desk.call("POST", f"/v1/orders/{order_id}/{verb}", said)
    return Redirect(f"/events/{quote(order_id)}?done=order-{verb}")


def make_token(visit: PageRequest) -> RenderedPage:
    """The secret is shown on the answer alone; sent twice, it is one token."""
    typed = {name: visit.form.get(name, "").strip() for name in ("name", "role", "scopes", "key")}
    said = {"name": typed["name"], "role": typed["role"], "scopes": typed["scopes"].replace(",", " ").split()}
    try:
        made = visit.desk.call("POST", "/v1/tokens", said, key=typed["key"])
    except ForewarnError as error:
        return pages.tokens(visit, typed=typed, wrong=str(error), status=error.status)
    return RenderedPage("token.html", {"token": made})


def revoke_token(visit: PageRequest) -> Redirect:
    visit.desk.call("DELETE", f"/v1/tokens/{visit.names['id']}")
    return Redirect("/tokens?done=revoked")


# -- asked before it is done


def sure_event(visit: PageRequest) -> RenderedPage | Redirect:
    shown = pages.event(visit)
    if isinstance(shown, Redirect):
        return shown
    event = shown.filled["event"]
    what = f"{event.type} of {some(event.resources)} in {event.scope}: {event.status}"
    return _sure(visit, shown.filled["offers"], f"/events/{quote(event.id)}", what)


def sure_maintenance(visit: PageRequest) -> RenderedPage | Redirect:
    shown = pages.maintenance(visit)
    if isinstance(shown, Redirect):
        return shown
    told = shown.filled["maintenance"]
    counted = ", ".join(f"{number} {status.lower()}" for status, number in shown.filled["progress"])
    what = f"{told.type} {told.id[:8]}, {told.description or 'without a description'}: {counted}"
    return _sure(visit, shown.filled["offers"], f"/maintenances/{quote(told.id)}", what)


def sure_token(visit: PageRequest) -> RenderedPage | Redirect:
    visit.desk.get("/v1/tokens", limit=1)  # whoever may not see tokens is told nothing of them
    found = {token.id: token for token in visit.desk.api.store.tokens()}.get(visit.names["id"])
    if found is None:
        raise NotFound("there is no such token: it may have been revoked already")
    offered = [] if found.id == visit.desk.caller.token_id else [offers.REVOKE]
    what = f"The token of {found.name} ({found.id[:8]}), {found.role}"
    return _sure(visit, offered, f"/tokens/{quote(found.id)}", what, page="/tokens")


def to_event(visit: PageRequest) -> Redirect:
    """An order's verbs are on its event's page."""
    return Redirect(f"/events/{quote(visit.names['id'])}")


def _sure(
    visit: PageRequest, offered: Iterable[offers.Offer], back: str, what: str, page: str = ""
) -> RenderedPage | Redirect:
    """The question, where the verb is offered and asks first; else the page on which every verb is."""
    verb = visit.names.get("verb", "revoke")
    for offer in offered:
        if offer.verb == verb and offer.asks_first:
            return RenderedPage("confirm.html", {"offer": offer, "what": what, "back": back, "page": page or back})
    return Redirect(page or back)
