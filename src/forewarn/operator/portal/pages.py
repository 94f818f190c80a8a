"""What can be looked at. Every page is read through the API's calls, bounded and paged; nothing is decided here."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import quote, urlencode

from forewarn.core.document import NEWEST, VERSIONS
from forewarn.core.errors import ForewarnError, Invalid, NotFound
from forewarn.core.model import OPEN, EventType, MaintenanceStatus, OrderState, Role, Status
from forewarn.operator.api.bodies import CountsOut, EventOut, MachineOut, TimelineEntry
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal import offers, resolver
from forewarn.operator.portal.formatting import cut
from forewarn.operator.portal.timeline import picture
from forewarn.operator.portal.visit import PageRequest, Redirect, RenderedPage

NOW_ROWS = 20
ROWS = 25
MACHINE_ROWS = 50
HISTORY_ROWS = 8
MAX_TIMELINE = 150
MAX_NAMES = 200
MAX_DETAIL_CHARS = 200
MAX_OUTPUT_CHARS = 20_000
MAX_DOCUMENT_CHARS = 40_000
OPEN_FIRST = (Status.STARTED, Status.SCHEDULED, Status.PLANNED)
ENDED_FIRST = (Status.COMPLETED, Status.CANCELLED, Status.ABANDONED)


def now(visit: PageRequest) -> RenderedPage:
    asked = visit.query.get("status", "")
    counts = visit.desk.get("/v1/counts")
    statuses = [status for status in OPEN_FIRST if asked not in OPEN or status == asked]
    found, cursor = _open_events(visit, statuses, counts)
    events = sorted(found, key=lambda e: (e.scope, e.update_domain, e.wave))
    drawn = picture(events, visit.now)
    rows = list(zip(events, drawn.strips, strict=True))
    groups = [
        (place, list(found)) for place, found in groupby(rows, key=lambda row: (row[0].scope, row[0].update_domain))
    ]
    filled = {
        "counts": counts,
        "status": asked if asked in OPEN else "",
        "picture": drawn,
        "groups": groups,
        "planned": _planned(visit, events),
        "events": events,
        "older": older(visit, cursor),
        "first": first(visit),
    }
    return RenderedPage("now.html", filled)


def _open_events(
    visit: PageRequest, statuses: Sequence[Status], counts: CountsOut
) -> tuple[list[EventOut], str | None]:
    """A page, one status after the other, and where the next begins: what is planned does not push off what is under way."""
    begin, _, cursor = visit.query.get("cursor", "").partition(".")
    if begin and begin not in statuses:
        raise Invalid("cursor: this is not one of ours: follow the link to the next page, unchanged")
    found: list[EventOut] = []
    for status in statuses[statuses.index(Status(begin)) if begin else 0 :]:
        if not getattr(counts, status.lower()):
            continue
        if len(found) == NOW_ROWS:
            return found, f"{status}."
        after = cursor if status == begin else ""
        page = visit.desk.get("/v1/events", status=status, limit=NOW_ROWS - len(found), cursor=after)
        found += page.items
        if page.next_cursor is not None:
            return found, f"{status}.{page.next_cursor}"
    return found, None


def _planned(visit: PageRequest, events: Sequence[EventOut]) -> dict[str, datetime]:
    """When the maintenances of those that only are planned were planned."""
    ids = {event.maintenance_id for event in events if event.status == Status.PLANNED}
    found = [visit.desk.api.store.maintenance(each) for each in ids if each]
    return {each.id: each.created for each in found if each is not None}


def scopes(visit: PageRequest) -> RenderedPage:
    return _list(visit, "scopes.html", "/v1/scopes", ROWS)


def scope(visit: PageRequest) -> RenderedPage:
    name = visit.names["scope"]
    version = visit.query.get("api-version", NEWEST)
    machines = visit.desk.get("/v1/machines", scope=name, limit=MACHINE_ROWS, cursor=visit.query.get("cursor"))
    by_domain = sorted(machines.items, key=lambda m: (m.update_domain, m.name))
    filled = {
        "scope": visit.desk.get(f"/v1/scopes/{name}"),
        "domains": [(domain, list(found)) for domain, found in groupby(by_domain, key=lambda m: m.update_domain)],
        "version": version,
        "versions": list(VERSIONS),
        "document": _document(visit, name, version),
        "events": visit.desk.get("/v1/events", scope=name, limit=HISTORY_ROWS).items,
        "older": older(visit, machines.next_cursor),
        "first": first(visit),
        "may_restart": visit.desk.may("POST", f"/v1/scopes/{name}/machines/any/restart"),
        "may_plan": visit.desk.may("POST", "/v1/maintenances"),
    }
    return RenderedPage("scope.html", filled)


def _document(visit: PageRequest, scope: str, version: str) -> tuple[str, int]:
    """As guests of this version see it, indented for reading; and how many characters were left out."""
    said = visit.desk.get(f"/v1/scopes/{scope}/document", api_version=version)
    text = json.dumps(json.loads(said), indent=2, ensure_ascii=False)
    return text[:MAX_DOCUMENT_CHARS], max(0, len(text) - MAX_DOCUMENT_CHARS)


def machines(visit: PageRequest) -> RenderedPage:
    asked = {key: visit.query.get(key, "").strip() for key in ("name", "scope", "host")}
    if asked["name"]:
        filled: dict[str, Any] = {"items": _machines_named(visit.desk, **asked), "older": "", "first": ""}
    else:
        filled = dict(_list(visit, "machines.html", "/v1/machines", MACHINE_ROWS, **asked).filled)
    restart = {m.scope: visit.desk.may("POST", f"/v1/scopes/{m.scope}/machines/any/restart") for m in filled["items"]}
    return RenderedPage("machines.html", {**filled, "asked": asked, "may_restart": restart})


def _machines_named(desk: ApiClient, *, name: str, scope: str, host: str) -> list[MachineOut]:
    found = []
    for its_scope, its_name in resolver.machine_keys(desk, scope, name):
        with suppress(NotFound):
            found.append(desk.get(f"/v1/scopes/{its_scope}/machines/{its_name}"))
    return [machine for machine in found if host in ("", machine.host)]


def maintenances(visit: PageRequest) -> RenderedPage:
    status = visit.query.get("status", "")
    shown = _list(visit, "maintenances.html", "/v1/maintenances", ROWS, status=status)
    return RenderedPage(shown.template, {**shown.filled, "statuses": list(MaintenanceStatus)})


def history(visit: PageRequest) -> RenderedPage:
    asked = {key: visit.query.get(key, "").strip() for key in ("scope", "machine", "type", "status", "since")}

    def look() -> RenderedPage:
        said = {**asked, "status": asked["status"] or list(ENDED_FIRST)}
        if asked["machine"]:
            said["scope"], said["machine"] = resolver.machine_key(visit.desk, asked["scope"], asked["machine"])
        if asked["since"]:
            said["since"] = f"{asked['since']}T00:00:00Z" if len(asked["since"]) == 10 else asked["since"]
        return _list(visit, "history.html", "/v1/events", ROWS, **said)

    choices = {"statuses": [*ENDED_FIRST, *OPEN_FIRST], "types": list(EventType)}
    return _searched("history.html", asked, look, choices)


def _searched(
    template: str, asked: Mapping[str, str], look: Callable[[], RenderedPage], more: Mapping[str, Any]
) -> RenderedPage:
    """A search; one that is refused is told so above its form, which keeps what was typed."""
    try:
        shown, wrong = look(), ""
    except ForewarnError as error:
        if error.status >= 500:
            raise
        shown, wrong = RenderedPage(template, {"items": [], "older": "", "first": ""}, error.status), str(error)
    return RenderedPage(template, {**shown.filled, **more, "asked": asked, "wrong": wrong}, shown.status)


def orders(visit: PageRequest) -> RenderedPage:
    shown = _list(visit, "orders.html", "/v1/orders", ROWS, state=visit.query.get("state", ""))
    return RenderedPage(shown.template, {**shown.filled, "states": list(OrderState), "most": MAX_DETAIL_CHARS})


def audit(visit: PageRequest) -> RenderedPage:
    asked = {key: visit.query.get(key, "").strip() for key in ("scope", "maintenance", "event")}

    def look() -> RenderedPage:
        event, maintenance = asked["event"], asked["maintenance"]
        ids = {
            "event": resolver.event_id(visit.desk, event),
            "maintenance": resolver.maintenance_id(visit.desk, maintenance),
        }
        return _list(visit, "audit.html", "/v1/audit", MACHINE_ROWS, **{**asked, **ids})

    return _searched("audit.html", asked, look, {"most": MAX_DETAIL_CHARS})


def tokens(
    visit: PageRequest, *, typed: dict[str, str] | None = None, wrong: str = "", status: int = 200
) -> RenderedPage:
    shown = _list(visit, "tokens.html", "/v1/tokens", ROWS)
    form = {"name": "", "role": Role.VIEWER, "scopes": "", "key": visit.desk.api.new_id(), **(typed or {})}
    return RenderedPage(shown.template, {**shown.filled, "roles": list(Role), "typed": form, "wrong": wrong}, status)


def _list(visit: PageRequest, template: str, path: str, limit: int, **asked: Any) -> RenderedPage:
    page = visit.desk.get(path, limit=limit, cursor=visit.query.get("cursor"), **asked)
    filled = {"items": page.items, "asked": asked, "older": older(visit, page.next_cursor)}
    return RenderedPage(template, {**filled, "first": first(visit)})


def older(visit: PageRequest, cursor: str | None) -> str:
    """Where the next page is, or ""; what was searched for stays."""
    return f"?{urlencode({**_kept(visit), 'cursor': cursor})}" if cursor is not None else ""


def first(visit: PageRequest) -> str:
    """Where the first page is, or "" on it."""
    kept = f"?{urlencode(_kept(visit))}" if _kept(visit) else ""
    return visit.url.partition("?")[0] + kept if visit.query.get("cursor") else ""


def _kept(visit: PageRequest) -> dict[str, str]:
    return {key: value for key, value in visit.query.items() if value and key not in ("done", "cursor")}


# -- one event, one maintenance


def event(visit: PageRequest) -> RenderedPage | Redirect:
    whole = resolver.event_id(visit.desk, visit.names["id"])
    if whole != visit.names["id"]:
        return Redirect(f"/events/{quote(whole)}")
    told: EventOut = visit.desk.get(f"/v1/events/{visit.names['id']}")
    found, order = visit.desk.api.control.event(visit.names["id"])
    filled = {
        "event": told,
        "order": visit.desk.get(f"/v1/orders/{found.id}") if order is not None else None,
        "offers": offers.of_event(visit.desk, found, order),
        "order_offers": offers.of_order(visit.desk, found, order, taken_here=visit.house.takes_orders),
        "picture": picture([told], visit.now) if told.status in OPEN else None,
        "timeline": _bounded(told.timeline),
        "left_out": max(0, len(told.timeline) - MAX_TIMELINE),
        "most_names": MAX_NAMES,
        "most_output": MAX_OUTPUT_CHARS,
    }
    return RenderedPage("event.html", filled)


def _bounded(timeline: Sequence[TimelineEntry]) -> list[TimelineEntry]:
    """How it began and how it stands; a detail at a glance."""
    if len(timeline) > MAX_TIMELINE:
        timeline = [*timeline[: MAX_TIMELINE // 3], *timeline[-MAX_TIMELINE * 2 // 3 :]]
    for entry in timeline:
        entry.detail = cut(entry.detail, MAX_DETAIL_CHARS)
    return list(timeline)


def maintenance(visit: PageRequest) -> RenderedPage | Redirect:
    whole = resolver.maintenance_id(visit.desk, visit.names["id"])
    if whole != visit.names["id"]:
        return Redirect(f"/maintenances/{quote(whole)}")
    begin = _whole(visit.query.get("from", ""))
    told = visit.desk.get(f"/v1/maintenances/{visit.names['id']}", skip=begin, limit=ROWS)
    known = visit.desk.api.store.maintenance(visit.names["id"])
    count = sum(told.event_counts.values())
    filled = {
        "maintenance": told,
        "offers": offers.of_maintenance(visit.desk, known) if known is not None else [],
        "progress": [(status, told.event_counts[status]) for status in Status if status in told.event_counts],
        "waves": [(wave.number, wave.events) for wave in told.waves],
        "begin": begin,
        "shown": sum(len(wave.events) for wave in told.waves),
        "event_count": count,
        "older": f"?from={begin + ROWS}" if begin + ROWS < count else "",
        "first": visit.url.partition("?")[0] if begin else "",
    }
    return RenderedPage("maintenance.html", filled)


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0
