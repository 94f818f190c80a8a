"""One visit: who came, what they look at or sent, and what they get: a page, or the way to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal.sessions import Visitor


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteInfo:
    """What the pages say of the service and its executor; `free` where nobody logs in, `guest_url` is where guests ask."""

    takes_orders: bool
    touches_no_machine: bool
    clock: str
    demo: bool
    free: bool
    guest_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """`names` are those in the path; `url` is where this page can be had again."""

    visitor: Visitor
    desk: ApiClient
    house: SiteInfo
    url: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return self.desk.api.clock.now()


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page: its template and what stands in it."""

    template: str
    filled: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """Look there next."""

    to: str
