"""What a page function gets, a `PageRequest`, and what it returns: a `RenderedPage` or a `Redirect`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from forewarn.operator.api.bodies import StoreHoldOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal.sessions import Login


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteInfo:
    """Facts about the service that pages show; `free` needs no login, `guest_url` is the guests' endpoint.

    `takes_orders`: this node's executor does the work itself. `touches_no_machine`: the work is only simulated.
    """

    takes_orders: bool
    touches_no_machine: bool
    clock: str
    demo: bool
    free: bool
    guest_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One request of a browser. `api` makes calls as its caller, `url` is the address of the page, `now` the service's time.

    `origin` is what the browser calls this site, if it says so. `store_hold` is the hold of the store, if it is held.
    `path_names` are the variable parts of the path, such as an event's id.
    """

    login: Login
    api: ApiClient
    site: SiteInfo
    url: str
    now: datetime
    origin: str = ""
    store_hold: StoreHoldOut | None = None
    path_names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    def other_pages(self, cursor: str | None) -> dict[str, str]:
        """Return the addresses of the next page of a list and of its first page; "" where this is the last or the first."""
        search = {key: value for key, value in self.query.items() if value and key not in ("done", "cursor")}
        first = self.url.partition("?")[0] + (f"?{urlencode(search)}" if search else "")
        return {
            "older": f"?{urlencode({**search, 'cursor': cursor})}" if cursor is not None else "",
            "first": first if self.query.get("cursor") else "",
        }


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page: its template and the template's variables."""

    template: str
    variables: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the browser to another page of the portal."""

    to: str
