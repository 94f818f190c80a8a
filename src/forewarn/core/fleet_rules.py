"""Rules for the whole fleet that operators set: maintenance windows, no-go times, and how much may be down at once.

Owns what these rules may be. `constraints` decides what they hold back. All of them are one value with a version, because a
decision reads all of them, and there are few.
"""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from forewarn.core.fast_init import fast_init
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import check_name, check_text, require
from forewarn.core.selectors import parse_selector
from forewarn.core.weekly_times import parse_span, zone_named

MAX_WINDOWS = 200
MAX_NO_GO_TIMES = 1_000
MAX_SPANS = 32
MAX_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Times of the week at which maintenance may start. `spans` are like "Mon-Fri 22:00-05:00", on the clocks of `zone`.

    An operator may extend a window while it is open: it then stays open until `extended_until`.
    """

    name: str
    spans: tuple[str, ...]
    zone: str = "UTC"
    extended_until: datetime | None = None

    def __post_init__(self) -> None:
        check_name("window", self.name)
        require(
            1 <= len(self.spans) <= MAX_SPANS, f"window {self.name} has {len(self.spans)} spans: use 1 to {MAX_SPANS}"
        )
        _check_times(self.spans, self.zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGoTime:
    """A time at which no maintenance starts: once, from `start` to `end`, or every week in `spans` on the clocks of `zone`.

    It binds the machines of `scopes` that the selector `labels` chooses. Without scopes it binds machines of every scope, and
    without labels all of them.
    """

    name: str
    reason: str
    start: datetime | None = None
    end: datetime | None = None
    spans: tuple[str, ...] = ()
    zone: str = "UTC"
    scopes: tuple[str, ...] = ()
    labels: str = ""

    def __post_init__(self) -> None:
        check_name("no-go time", self.name)
        check_text("reason", self.reason)
        require(bool(self.reason), f"no-go time {self.name} has no reason: say why nothing may start")
        once = self.start is not None and self.end is not None
        ordered = self.start is None or self.end is None or self.start < self.end
        require(ordered, f"no-go time {self.name} ends before it begins: write a later end")
        weekly = self.start is None and self.end is None and bool(self.spans)
        require(
            weekly or (once and not self.spans),
            f"no-go time {self.name} needs a start and an end, or times of the week: not both",
        )
        require(
            len(self.spans) <= MAX_SPANS, f"no-go time {self.name} has {len(self.spans)} spans: use at most {MAX_SPANS}"
        )
        _check_times(self.spans, self.zone)
        parse_selector(self.labels)


def _check_times(spans: tuple[str, ...], zone: str) -> None:
    """Raise Invalid for a span or a zone that does not exist."""
    zone_named(zone)
    for span in spans:
        parse_span(span)


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUse:
    """What is down in the fleet: the number of machines, and the hosts, each with the maintenance that takes it down.

    A machine is down in an event that is published or Started. `events` are some of these events.
    """

    machines: int = 0
    hosts: frozenset[tuple[str, str]] = frozenset()
    events: tuple[str, ...] = ()


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    """All rules. A limit of 0 limits nothing.

    `version` grows when an operator changes a rule. While the fleet has a budget, `reservations` grows when an event is
    published, when a wave begins to wait for the budget, and when something is up again. Two nodes that publish at once cannot
    both find room, and no wave begins to wait for what another node frees at the same time.
    """

    windows: Mapping[str, Window] = field(default_factory=dict)
    no_go_times: Mapping[str, NoGoTime] = field(default_factory=dict)
    max_hosts_down: int = 0
    max_machines_down: int = 0
    version: int = 0
    reservations: int = 0

    def __post_init__(self) -> None:
        require(
            len(self.windows) <= MAX_WINDOWS,
            f"there are {len(self.windows)} windows: at most {MAX_WINDOWS} are allowed",
        )
        require(
            len(self.no_go_times) <= MAX_NO_GO_TIMES,
            f"there are {len(self.no_go_times)} no-go times: at most {MAX_NO_GO_TIMES} are allowed",
        )
        for key, limit in (("max_hosts_down", self.max_hosts_down), ("max_machines_down", self.max_machines_down)):
            require(0 <= limit <= MAX_LIMIT, f"{key} is {limit}: use 0 (no limit) or a positive number")

    @property
    def has_budget(self) -> bool:
        """Whether the number of machines or hosts that are down at once is limited."""
        return bool(self.max_hosts_down or self.max_machines_down)


NO_RULES = FleetRules()
NOTHING_DOWN = FleetUse()
