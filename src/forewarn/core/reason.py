"""One reason why an event or a host has not moved on, and the reason that a held clock is."""

from dataclasses import dataclass
from datetime import datetime

from forewarn.core.fast_init import fast_init, replace
from forewarn.core.formatting import iso_seconds
from forewarn.core.model import ClockHold

# A reason names at most this many machines or events, and counts the rest.
MAX_NAMED = 10


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One reason why an event or a host has not moved on: a stable code, a sentence, and what it concerns.

    `until` is when passing time alone ends the wait, if that is known. `orders` are orders of hosts that failed or are in doubt.
    `rules_of` names, for each rule in the message, the scopes that have it: an owner of none of them must not learn the rule. A
    rule of the whole fleet that owners must not learn has no scopes.
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
    """Return the wait until this time. If only a held clock shows a later time, the wait for its confirmation comes too."""
    if hold is None or until > now:
        return [replace(wait, until=until)]
    return [wait, clock_held(hold)]
