"""One reason why an event or a host has not moved on."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One reason why an event or a host has not moved on: a stable code, a sentence, and what it concerns.

    `until` is when passing time alone ends the wait, if that is known. `orders` are orders of hosts that failed or are in doubt.
    """

    code: str
    message: str
    until: datetime | None = None
    machines: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
