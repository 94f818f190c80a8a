"""When guests were last seen: times written in batches, and scopes disabled when their guests fall silent.

"A scope without such a request for 24 h is disabled. An open long poll counts as seen. Idle time counts only while a
guest listener was up."
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from forewarn.core.errors import NotFound
from forewarn.core.model import Actor
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.documents import Documents
from forewarn.service.control import Control
from forewarn.store import EventFirstSeen, MachineLastSeen, Store

IDLE_WATCH = Actor("idle watch")
HELD_CLOCK_WAIT = timedelta(minutes=1)


class LastSeen:
    """Disables silent scopes, called by the ticker. A poll only postpones when a scope is due, so it is checked only then."""

    def __init__(self, documents: Documents, control: Control, store: Store, *, disable_after_s: int) -> None:
        self._documents = documents
        self._control = control
        self._store = store
        self._after = timedelta(seconds=disable_after_s) if disable_after_s else None
        self._next_due: datetime | None = None
        self._enabled_scopes = -1

    def next_due(self) -> datetime | None:
        """Return the earliest time at which a scope may be due; None while no scope is enabled."""
        if self._after is not None and self._enabled_scopes != self._documents.enablements:
            self._enabled_scopes = self._documents.enablements
            self._next_due = self._documents.next_idle(self._after)
        return self._next_due

    def do(self, now: datetime) -> int:
        """Disable the scopes that have been silent for too long; return how many."""
        due = self.next_due()
        if due is None or self._after is None or now < due:
            return 0
        idle = self._silent_everywhere(now, self._after)
        wait_until = self._silence_unknown_until(now, self._after) if idle else None
        if wait_until is not None:
            self._next_due = wait_until
            return 0
        for scope in idle:
            try:
                self._control.disable(scope, IDLE_WATCH)
            except NotFound:  # another node removed it: without a refresh we would try again at once
                self._documents.refresh([scope])
        self._next_due = self._documents.next_idle(self._after)
        return len(idle)

    def _silence_unknown_until(self, now: datetime, after: timedelta) -> datetime | None:
        """Return until when no scope may be disabled, because the clock jumped during the silence; None if it did not.

        A confirmed jump says that the clock is right now. It does not say how long before it a guest was seen.
        """
        hold = self._control.last_clock_hold()
        if hold is None:
            return None
        if hold.confirmed is None:
            return now + HELD_CLOCK_WAIT
        return hold.confirmed + after if now - hold.confirmed < after else None

    def _silent_everywhere(self, now: datetime, after: timedelta) -> list[str]:
        """Return the silent scopes of which the store knows no later request to another node."""
        silent = self._documents.idle(now, after)
        for scope, at in self._store.last_seen_by_scope(silent).items() if silent else ():
            self._documents.seen_elsewhere(scope, at)
        return [scope for scope in self._documents.idle(now, after) if scope in silent]

    def write(self, callers: Iterable[Caller]) -> None:
        """Save when these machines were last seen; runs in the writer's thread."""
        seen = [
            MachineLastSeen(c.scope, c.name, c.seen.at) for c in callers if c.seen is not None and c.view is not None
        ]
        if seen:
            self._store.record_last_seen(seen)

    def write_first_seen(self, sightings: Collection[EventFirstSeen]) -> None:
        """Save which machine first saw which event, and when; runs in the writer's thread."""
        self._store.record_first_seen(sightings)
