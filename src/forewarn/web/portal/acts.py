"""What can be done: each verb is a call of the API, made as the visitor; then the way back to what it was done to."""

from urllib.parse import quote

from forewarn.core.errors import ForewarnError
from forewarn.web.portal import pages
from forewarn.web.portal.visit import Go, Shown, Visit


def event_verb(visit: Visit) -> Go:
    event_id, verb = visit.names["id"], visit.names["verb"]
    visit.desk.ask("POST", f"/v1/events/{event_id}/{verb}")
    return Go(f"/events/{quote(event_id)}?done={verb}")


def maintenance_verb(visit: Visit) -> Go:
    maintenance_id, verb = visit.names["id"], visit.names["verb"]
    visit.desk.ask("POST", f"/v1/maintenances/{maintenance_id}/{verb}")
    return Go(f"/maintenances/{quote(maintenance_id)}?done={verb}")


def order_verb(visit: Visit) -> Go:
    order_id, verb = visit.names["id"], visit.names["verb"]
    said = {"reason": visit.form.get("reason", "").strip()} if verb == "fail" else None
    visit.desk.ask("POST", f"/v1/orders/{order_id}/{verb}", said)
    return Go(f"/events/{quote(order_id)}?done=order-{verb}")


def make_token(visit: Visit) -> Shown:
    """The secret is shown on the answer alone; sent twice, it is one token."""
    typed = {name: visit.form.get(name, "").strip() for name in ("name", "role", "scopes", "key")}
    said = {"name": typed["name"], "role": typed["role"], "scopes": typed["scopes"].replace(",", " ").split()}
    try:
        made = visit.desk.ask("POST", "/v1/tokens", said, key=typed["key"])
    except ForewarnError as error:
        return pages.tokens(visit, typed=typed, wrong=str(error), status=error.status)
    return Shown("token.html", {"token": made})


def revoke_token(visit: Visit) -> Go:
    visit.desk.ask("DELETE", f"/v1/tokens/{visit.names['id']}")
    return Go("/tokens?done=revoked")
