"""The pages that show something. Each reads through the API's calls, a bounded part at a time, and decides nothing."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from forewarn.core.document import NEWEST, VERSIONS
from forewarn.core.errors import ForewarnError, Invalid, Refused
from forewarn.core.fleet_rules import MAX_LIMIT
from forewarn.core.formatting import cut
from forewarn.core.model import OPEN, EventType, MaintenanceStatus, OrderState, Status
from forewarn.core.operator_model import Role
from forewarn.operator.api.bodies import EventOut, MaintenanceOut, TimelineEntry, WaveOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.api.resolver import Kind
from forewarn.operator.portal.buttons import bulk_buttons, event_buttons, maintenance_buttons, order_buttons
from forewarn.operator.portal.chart import chart_of
from forewarn.operator.portal.failures import failures_of
from forewarn.operator.portal.now import OPEN_FIRST, other_reasons, shared_reasons
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage

ROWS = 25
MACHINE_ROWS = 50
HISTORY_ROWS = 8
ID_CHARS = 36
MAX_TIMELINE = 150
MAX_TIMELINE_START = MAX_TIMELINE // 3
MAX_NAMES = 200
MAX_DETAIL_CHARS = 200
MAX_OUTPUT_CHARS = 20_000
MAX_DOCUMENT_CHARS = 40_000
ENDED_FIRST = (Status.COMPLETED, Status.CANCELLED, Status.ABANDONED)


# -- lists and searches


def typed_text(request: PageRequest) -> str:
    """Return the text that a list or the search for everything should contain."""
    return request.query.get("q", "").strip()


def scopes(request: PageRequest) -> RenderedPage:
    return _list(request, "scopes.html", "/v1/scopes", ROWS, q=typed_text(request))


def hosts(request: PageRequest) -> RenderedPage:
    return _list(request, "hosts.html", "/v1/hosts", MACHINE_ROWS, q=typed_text(request))


def machines(request: PageRequest) -> RenderedPage:
    search = {key: request.query.get(key, "").strip() for key in ("q", "scope", "host", "labels")}
    page = _search_page(
        "machines.html", search, lambda: _list(request, "machines.html", "/v1/machines", MACHINE_ROWS, **search), {}
    )
    restart = {m.scope: _may_restart(request.api, m.scope) for m in page.variables["items"]}
    return RenderedPage("machines.html", {**page.variables, "may_restart": restart}, page.status)


def _may_restart(api: ApiClient, scope: str) -> bool:
    return api.may("POST", f"/v1/scopes/{scope}/machines/any/restart")


def maintenances(request: PageRequest) -> RenderedPage:
    search = {"status": request.query.get("status", ""), "q": typed_text(request)}
    page = _list(request, "maintenances.html", "/v1/maintenances", ROWS, **search)
    return RenderedPage(page.template, {**page.variables, "statuses": list(MaintenanceStatus)})


def history(request: PageRequest) -> RenderedPage:
    search = {key: request.query.get(key, "").strip() for key in ("q", "scope", "machine", "type", "status", "since")}

    def read() -> RenderedPage:
        query = {**search, "status": search["status"] or list(ENDED_FIRST)}
        if search["machine"]:
            query["scope"], query["machine"] = _machine_key(request.api, search["scope"], search["machine"])
        if search["since"]:
            query["since"] = f"{search['since']}T00:00:00Z" if len(search["since"]) == 10 else search["since"]
        return _list(request, "history.html", "/v1/events", ROWS, **query)

    choices = {"statuses": [*ENDED_FIRST, *OPEN_FIRST], "types": list(EventType)}
    return _search_page("history.html", search, read, choices)


def _machine_key(api: ApiClient, scope: str, name: str) -> tuple[str, str]:
    """Return the scope and name of the machine that was typed. A machine that was removed is found only with its scope."""
    its_scope, slash, its_name = name.partition("/")
    if slash and scope in ("", its_scope):
        return its_scope, its_name
    if scope:
        return scope, name
    ids = [match.id for match in api.get("/v1/resolve", text=name, kind=Kind.MACHINE).matches]
    if not ids:
        raise Invalid(f"machine: there is no machine {name[:64]}: if it was removed, write it as scope/name")
    if len(ids) > 1:
        raise Invalid(f"machine: several machines are called {name[:64]}: write {' or '.join(ids[:3])}")
    found_scope, _, found_name = ids[0].partition("/")
    return found_scope, found_name


def audit(request: PageRequest) -> RenderedPage:
    search = {key: request.query.get(key, "").strip() for key in ("q", "scope", "maintenance", "event")}

    def read() -> RenderedPage:
        ids = {name: whole_id(request.api, Kind(name), search[name]) for name in ("event", "maintenance")}
        return _list(request, "audit.html", "/v1/audit", MACHINE_ROWS, **{**search, **ids})

    return _search_page("audit.html", search, read, {"max_chars": MAX_DETAIL_CHARS})


def _search_page(
    template: str, search: Mapping[str, str], read: Callable[[], RenderedPage], more: Mapping[str, Any]
) -> RenderedPage:
    """Return a page with a search form. If the search is refused, the page says why and the form keeps what was typed."""
    try:
        page, error_message = read(), ""
    except ForewarnError as error:
        if error.status >= 500:
            raise
        page = RenderedPage(template, {"items": [], "older": "", "first": ""}, error.status)
        error_message = str(error)
    variables = {**page.variables, **more, "search": search, "error_message": error_message}
    return RenderedPage(template, variables, page.status)


def orders(request: PageRequest) -> RenderedPage:
    search = {key: request.query.get(key, "").strip() for key in ("q", "state", "maintenance")}

    def read() -> RenderedPage:
        maintenance_id = whole_id(request.api, Kind.MAINTENANCE, search["maintenance"])
        return _list(request, "orders.html", "/v1/orders", ROWS, **{**search, "maintenance": maintenance_id})

    more = {
        "states": list(OrderState),
        "max_chars": MAX_DETAIL_CHARS,
        "bulk_buttons": bulk_buttons(request.api, ["retry"]),
    }
    return _search_page("orders.html", search, read, more)


def tokens(
    request: PageRequest, *, fields: Mapping[str, str] | None = None, error_message: str = "", status: int = 200
) -> RenderedPage:
    """Return the tokens, and the form for a new one, empty or with these fields."""
    page = _list(request, "tokens.html", "/v1/tokens", ROWS, q=typed_text(request))
    roles = [Role.CALENDAR] if request.api.caller.role is Role.OWNER else list(Role)
    form = {
        "name": "",
        "role": roles[0],
        "scopes": " ".join(request.api.caller.within or ()),
        "valid_for": "",
        "key": request.api.new_key(),
        **(fields or {}),
    }
    variables = {**page.variables, "roles": roles, "fields": form, "error_message": error_message}
    return RenderedPage(page.template, variables, status)


def store(request: PageRequest) -> RenderedPage:
    """Return whether the store is held, and for an operator what resuming it would do."""
    hold = request.store_hold
    may_resume = hold is not None and request.api.may("GET", "/v1/store/resume")
    effects = request.api.get("/v1/store/resume") if may_resume else None
    variables = {
        "hold": hold,
        "effects": effects,
        "held_at": effects.held.held.isoformat() if effects is not None and effects.held is not None else "",
        "may_hold": request.api.may("POST", "/v1/store/hold"),
    }
    return RenderedPage("store.html", variables)


def budget(request: PageRequest) -> RenderedPage:
    variables = {
        "budget": request.api.get("/v1/budget"),
        "may_change": request.api.may("POST", "/v1/budget"),
        "max_limit": MAX_LIMIT,
    }
    return RenderedPage("budget.html", variables)


def _list(request: PageRequest, template: str, path: str, limit: int, **query: Any) -> RenderedPage:
    page = request.api.get(path, limit=limit, cursor=request.query.get("cursor"), **query)
    return RenderedPage(template, {"items": page.items, "search": query, **request.other_pages(page.next_cursor)})


# -- one scope, one event, one maintenance


def scope(request: PageRequest) -> RenderedPage:
    api, name = request.api, request.path_names["scope"]
    api_version = request.query.get("api-version", NEWEST)
    page = api.get("/v1/machines", scope=name, limit=MACHINE_ROWS, cursor=request.query.get("cursor"))
    by_domain = sorted(page.items, key=lambda m: (m.update_domain, m.name))
    variables = {
        "scope": api.get(f"/v1/scopes/{name}"),
        "domains": [(domain, list(group)) for domain, group in groupby(by_domain, key=lambda m: m.update_domain)],
        "api_version": api_version,
        "versions": list(VERSIONS),
        "document": _document(api, name, api_version),
        "events": _open_first(api, name),
        **request.other_pages(page.next_cursor),
        "may_restart": _may_restart(api, name),
        "may_plan": api.may("POST", "/v1/maintenances"),
    }
    return RenderedPage("scope.html", variables)


def _open_first(api: ApiClient, scope: str) -> list[EventOut]:
    """Return the newest started events of the scope, then the scheduled, the planned and the ended ones, up to a limit."""
    events: list[EventOut] = []
    for statuses in (*OPEN_FIRST, ENDED_FIRST):
        if len(events) < HISTORY_ROWS:
            events += api.get("/v1/events", scope=scope, status=statuses, limit=HISTORY_ROWS - len(events)).items
    return events


def _document(api: ApiClient, scope: str, version: str) -> tuple[str, int]:
    """Return the document that guests see in this version, indented, and the number of characters left out."""
    document = api.get(f"/v1/scopes/{scope}/document", api_version=version)
    text = json.dumps(json.loads(document), indent=2, ensure_ascii=False)
    return text[:MAX_DOCUMENT_CHARS], max(0, len(text) - MAX_DOCUMENT_CHARS)


def whole_id(api: ApiClient, kind: Kind, text: str) -> str:
    """Return the only id that begins with the text; without a match the text itself, for the API to refuse."""
    if not 0 < len(text) < ID_CHARS:
        return text.upper() if len(text) == ID_CHARS else text
    ids = [match.id for match in api.get("/v1/resolve", text=text, kind=kind).matches]
    if len(ids) > 1:
        raise Refused(f"{text!r} is the beginning of {len(ids)} ids: type more characters")
    return ids[0] if ids else text


def event(request: PageRequest) -> RenderedPage | Redirect:
    api, typed = request.api, request.path_names["id"]
    event_id = whole_id(api, Kind.EVENT, typed)
    if event_id != typed:
        return Redirect(f"/events/{quote(event_id)}")
    event: EventOut = api.get(f"/v1/events/{event_id}")
    order = api.get(f"/v1/orders/{event_id}") if event.started is not None else None
    variables = {
        "event": event,
        "order": order,
        "buttons": event_buttons(api, event, order),
        "order_buttons": order_buttons(api, event, order, taken_here=request.site.takes_orders),
        "chart": chart_of([event], request.now) if event.status in OPEN else None,
        "timeline": _shortened(event.timeline),
        "timeline_start": MAX_TIMELINE_START,
        "left_out": max(0, len(event.timeline) - MAX_TIMELINE),
        "max_names": MAX_NAMES,
        "max_output_chars": MAX_OUTPUT_CHARS,
    }
    return RenderedPage("event.html", variables)


def _shortened(timeline: Sequence[TimelineEntry]) -> list[TimelineEntry]:
    """Return the start and the end of a long timeline, with shortened details."""
    if len(timeline) > MAX_TIMELINE:
        timeline = [*timeline[:MAX_TIMELINE_START], *timeline[MAX_TIMELINE_START - MAX_TIMELINE :]]
    for entry in timeline:
        entry.detail = cut(entry.detail, MAX_DETAIL_CHARS)
    return list(timeline)


def maintenance(request: PageRequest) -> RenderedPage | Redirect:
    api, typed = request.api, request.path_names["id"]
    maintenance_id = whole_id(api, Kind.MAINTENANCE, typed)
    if maintenance_id != typed:
        return Redirect(f"/maintenances/{quote(maintenance_id)}")
    begin = _number(request.query.get("from", ""))
    maintenance: MaintenanceOut = api.get(f"/v1/maintenances/{maintenance_id}", skip=begin, limit=ROWS)
    counts = maintenance.event_counts
    event_count = sum(counts.values())
    variables = {
        "maintenance": maintenance,
        "buttons": maintenance_buttons(api, maintenance),
        "failures": failures_of(request, maintenance),
        "bulk_buttons": [] if maintenance.ended else bulk_buttons(api, ("approve", "cancel", "retry")),
        "waves": [_shown_wave(wave) for wave in maintenance.waves],
        "max_targets": MAX_NAMES,
        "progress": [(status, counts[status]) for status in Status if status in counts],
        "begin": begin,
        "shown": sum(len(wave.events) for wave in maintenance.waves),
        "event_count": event_count,
        "older": f"?from={begin + ROWS}" if begin + ROWS < event_count else "",
        "first": request.url.partition("?")[0] if begin else "",
    }
    return RenderedPage("maintenance.html", variables)


def _shown_wave(wave: WaveOut) -> dict[str, Any]:
    """Return a wave with the reasons that all its events on the page share, and each event with its other reasons."""
    shared = shared_reasons(wave.events) if len(wave.events) > 1 else []
    # "The events of a wave start together" is in the heading of the wave.
    return {
        "number": wave.number,
        "shared": [reason for reason in shared if reason.code != "wave"],
        "rows": [(event, other_reasons(event.waiting_for, shared)) for event in wave.events],
    }


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0
