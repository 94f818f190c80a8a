"""The pages about drills: their history with the readiness, and the report on one."""

from urllib.parse import quote

from forewarn.operator.api.bodies import DrillOut
from forewarn.operator.api.resolver import Kind
from forewarn.operator.portal.buttons import CANCEL_REST
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage
from forewarn.operator.portal.pages import whole_id

ROWS = 50
MAX_MACHINES = 200
CANCEL_CALL = "/v1/drills/{id}/cancel"


def drills(request: PageRequest) -> RenderedPage:
    page = request.api.get("/v1/drills", limit=ROWS, cursor=request.query.get("cursor", ""))
    return RenderedPage("drills.html", {"items": page.items, **request.other_pages(page.next_cursor)})


def drill(request: PageRequest) -> RenderedPage | Redirect:
    typed = request.path_names["id"]
    drill_id = whole_id(request.api, Kind.MAINTENANCE, typed)
    if drill_id != typed:
        return Redirect(f"/drills/{quote(drill_id)}")
    found: DrillOut = request.api.get(f"/v1/drills/{drill_id}")
    variables = {
        "drill": found,
        "machines": found.machines[:MAX_MACHINES],
        "left_out": max(0, len(found.machines) - MAX_MACHINES),
        "buttons": [CANCEL_REST] if found.ended is None and request.api.may("POST", CANCEL_CALL) else [],
        "never_seen": sum(machine.seen is None and machine.ready is not None for machine in found.machines),
    }
    return RenderedPage("drill.html", variables)
