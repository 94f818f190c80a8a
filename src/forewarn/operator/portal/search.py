"""The search for everything: names and descriptions that contain a text, and ids that begin with it, by kind.

Each kind is searched by the API's list of that kind, which bounds what a search may cost.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from forewarn.core.formatting import SHORT_ID_CHARS, names
from forewarn.operator.api.bodies import EventOut, MachineOut, MaintenanceOut, MaintenanceRow
from forewarn.operator.api.client import ApiClient
from forewarn.operator.api.resolver import Kind
from forewarn.operator.portal.markup import event_state
from forewarn.operator.portal.now import OPEN_FIRST
from forewarn.operator.portal.page_request import PageRequest, RenderedPage
from forewarn.operator.portal.pages import typed_text

ROWS = 10


@dataclass(frozen=True, slots=True)
class Found:
    """One result: its address, its name, and a few words about it."""

    href: str
    name: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class FoundKind:
    """The results of one kind; `rest` is the address of a list that has more of them, "" if these are all."""

    title: str
    items: list[Found]
    rest: str = ""

    @property
    def rest_label(self) -> str:
        return "Search the history" if self.title == "Events" else f"All {self.title.lower()} that match"


def search(request: PageRequest) -> RenderedPage:
    text = typed_text(request)
    found = [kind for kind in _found(request.api, text) if kind.items] if text else []
    return RenderedPage("search.html", {"search_text": text, "found": found})


def _found(api: ApiClient, text: str) -> list[FoundKind]:
    query = urlencode({"q": text})
    ids: dict[Kind, list[str]] = {Kind.EVENT: [], Kind.MAINTENANCE: []}
    for match in api.get("/v1/resolve", text=text, kind=list(ids)).matches:
        ids[match.kind].append(match.id)

    def listed(title: str, path: str, make: Callable[[Any], Found]) -> FoundKind:
        page = api.get(f"/v1{path}", q=text, limit=ROWS)
        rest = f"{path}?{query}" if page.next_cursor is not None else ""
        return FoundKind(title, [make(each) for each in page.items], rest)

    maintenances = listed("Maintenances", "/maintenances", _maintenance)
    named = [_maintenance(api.get(f"/v1/maintenances/{each}", limit=0)) for each in ids[Kind.MAINTENANCE][:ROWS]]
    open_events = api.get("/v1/events", q=text, status=OPEN_FIRST, limit=ROWS).items
    known = {event.id for event in open_events}
    events = [*open_events, *(api.get(f"/v1/events/{each}") for each in ids[Kind.EVENT][:ROWS] if each not in known)]
    kinds = [
        listed("Machines", "/machines", _machine),
        listed("Scopes", "/scopes", lambda scope: Found(f"/scopes/{quote(scope.name)}", scope.name, scope.kind)),
        listed("Hosts", "/hosts", lambda host: Found(f"/hosts/{quote(host.name)}", host.name)),
        replace(maintenances, items=list(dict.fromkeys([*named, *maintenances.items]))),
        FoundKind("Events", [_event(event) for event in events], f"/history?{query}"),
    ]
    if api.may("GET", "/v1/hooks"):
        kinds.append(listed("Hooks", "/hooks", lambda hook: Found(f"/hooks/{quote(hook.id)}", hook.id[:8], hook.url)))
    if api.may("GET", "/v1/tokens"):
        kinds.append(listed("Tokens", "/tokens", lambda token: Found(f"/tokens?{query}", token.name, token.role)))
    return kinds


def _machine(machine: MachineOut) -> Found:
    name = f"{machine.scope}/{machine.name}"
    return Found(f"/machines/{quote(name)}", name, f"on host {machine.host}" if machine.host else "")


def _maintenance(row: MaintenanceRow | MaintenanceOut) -> Found:
    name = f"{row.type} {(row.id or '')[:SHORT_ID_CHARS]}"
    return Found(f"/maintenances/{row.id}", name, ": ".join(filter(None, (row.status, row.description))))


def _event(event: EventOut) -> Found:
    return Found(
        f"/events/{event.id}", f"{event.type} of {names(event.resources)} in {event.scope}", event_state(event)
    )
