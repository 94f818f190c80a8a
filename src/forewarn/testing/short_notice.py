"""Short notice: events that reach machines later than the protocol promises, as if the machines had not polled for a while.

The service never publishes such an event to machines that poll. So the scopes of an emulator may give less notice, for one
maintenance at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

from forewarn.core.event_types import EventType
from forewarn.core.fleet import Fleet
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import Scope


class ShortNotice:
    """The notice that a test asks for, while it schedules a maintenance."""

    def __init__(self) -> None:
        self.seconds: dict[EventType, int] = {}

    @contextmanager
    def of(self, type_: EventType, seconds: int) -> Iterator[None]:
        """Give this notice to the events of this type that are published inside the block."""
        self.seconds = {type_: seconds}
        try:
            yield
        finally:
            self.seconds = {}

    def allowed_in(self, fleet: Fleet) -> Fleet:
        """Return the fleet with scopes that give this notice."""
        scopes = {
            name: EmulatedScope(
                short_notice=self, **{field.name: getattr(scope, field.name) for field in fields(Scope)}
            )
            for name, scope in fleet.scopes.items()
        }
        return replace(fleet, scopes=scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedScope(Scope):
    """A scope whose events give the notice that the test asks for."""

    short_notice: ShortNotice

    def notice_s(self, type_: EventType) -> int:
        return self.short_notice.seconds.get(type_, Scope.notice_s(self, type_))
