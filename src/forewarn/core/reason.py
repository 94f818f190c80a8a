"""One reason why an event or a host has not moved on, and the reason for a held clock."""

from datetime import datetime

from forewarn.core.fast_init import fast_init, replace
from forewarn.core.formatting import iso_seconds
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import ClockHold

# A reason names at most this many machines or events, and counts the rest.
MAX_NAMED = 10


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One reason why an event or a host has not moved on: a stable code, a sentence, and what it concerns.

    `until` is when passing time alone ends the wait, if that is known. `orders` are orders of hosts that failed or are in doubt.
    `rules_of` has an entry for each rule in the message: the scopes that have the rule. Only owners of one of them may learn it.
    An empty entry is a rule of the fleet that no owner may learn.
    """

    code: str
    message: str
    until: datetime | None = None
    machines: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    rules_of: tuple[tuple[str, ...], ...] = ()


def clock_held(hold: ClockHold) -> Waiting:
    return Waiting(
        code="clock",
        message=f"the clock jumped forward by {hold.jumped_s} s after {iso_seconds(hold.trusted)},"
        " and no operator has confirmed it",
    )


def wait_until(wait: Waiting, until: datetime, now: datetime, hold: ClockHold | None) -> list[Waiting]:
    """Return the wait until this time. If only a held clock shows that it has passed, return the wait for the clock as well."""
    if hold is None or until > now:
        return [replace(wait, until=until)]
    return [wait, clock_held(hold)]
