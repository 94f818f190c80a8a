"""The pages about one machine and about one host: what comes to it first, then what happened to it."""

from collections.abc import Iterable
from datetime import datetime

from forewarn.operator.api.bodies import EventOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal.buttons import host_buttons
from forewarn.operator.portal.now import OPEN_FIRST
from forewarn.operator.portal.page_request import PageRequest, RenderedPage
from forewarn.operator.portal.pages import ENDED_FIRST, MACHINE_ROWS, ROWS

READ = 100


def machine(request: PageRequest) -> RenderedPage:
    api, scope, name = request.api, request.path_names["scope"], request.path_names["name"]
    found = api.get(f"/v1/scopes/{scope}/machines/{name}")
    coming, more = coming_events(api, scope=scope, machine=name)
    cursor = request.query.get("cursor")
    history = api.get("/v1/events", scope=scope, machine=name, status=ENDED_FIRST, limit=ROWS, cursor=cursor)
    variables = {
        "machine": found,
        "scope": api.get(f"/v1/scopes/{scope}"),
        "last_approval": _last_approval(f"{scope}/{name}", (*coming, *history.items)),
        "coming": coming,
        "more": more,
        "events": history.items,
        **request.other_pages(history.next_cursor),
        "may_restart": api.may("POST", f"/v1/scopes/{scope}/machines/{name}/restart"),
        "may_schedule": api.may("POST", "/v1/maintenances"),
    }
    return RenderedPage("machine.html", variables)


def host(request: PageRequest) -> RenderedPage:
    api, name, cursor = request.api, request.path_names["host"], request.query.get("cursor")
    found = api.get(f"/v1/hosts/{name}")
    page = api.get("/v1/machines", host=name, limit=MACHINE_ROWS, cursor=cursor)
    coming, more = coming_events(api, host=name)
    variables = {
        "host": found,
        "buttons": host_buttons(api, found),
        "machines": page.items,
        "coming": coming,
        "more": more,
        **request.other_pages(page.next_cursor),
        "may_schedule": api.may("POST", "/v1/maintenances"),
    }
    return RenderedPage("host.html", variables)


def coming_events(api: ApiClient, **selected: str) -> tuple[list[EventOut], bool]:
    """Return open events, started ones first and each status by NotBefore, and whether there are more.

    The API lists the newest first, so more are read than shown: the next to start may be an old one.
    """
    events: list[EventOut] = []
    for status in OPEN_FIRST:
        page = api.get("/v1/events", status=status, limit=READ, **selected)
        events += sorted(page.items, key=lambda event: (str(event.not_before or ""), event.wave))
        if page.next_cursor is not None or len(events) > ROWS:
            return events[:ROWS], True
    return events, False


def _last_approval(machine: str, events: Iterable[EventOut]) -> datetime | None:
    """Return when the machine last approved one of these events."""
    return max((a.when for event in events for a in event.approved_by if a.who == machine), default=None)
