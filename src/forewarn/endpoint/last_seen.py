"""Who asked lately: last-seen times, written in batches, and the scopes whose guests fell silent.

"A scope without such a request for 24 h is disabled. An open long poll counts as seen. Idle time counts only while a
guest listener was up."
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from forewarn.core.errors import NotFound
from forewarn.core.model import Actor
from forewarn.endpoint.documents import Caller, Documents
from forewarn.service.control import Control
from forewarn.store import EventFirstSeen, MachineLastSeen, Store

IDLE_WATCH = Actor("idle watch")
LOOK_AGAIN = timedelta(minutes=1)


class LastSeen:
    """A chore of the ticker. Silence can only end later than last computed, so the scopes are walked only when it may."""

    def __init__(self, documents: Documents, control: Control, store: Store, *, disable_after_s: int) -> None:
        self._documents = documents
        self._control = control
        self._store = store
        self._after = timedelta(seconds=disable_after_s) if disable_after_s else None
        self._bound: datetime | None = None
        self._enabled_scopes = -1

    def next_due(self) -> datetime | None:
        """No scope falls silent before this; None while there is none that could."""
        if self._after is not None and self._enabled_scopes != self._documents.enablements:
            self._enabled_scopes = self._documents.enablements
            self._bound = self._documents.next_idle(self._after)
        return self._bound

    def do(self, now: datetime) -> int:
        """Disable the scopes that have been silent for too long; how many."""
        due = self.next_due()
        if due is None or self._after is None or now < due:
            return 0
        idle = self._silent_everywhere(now, self._after)
        if idle and self._control.clock_hold() is not None:
            self._bound = now + LOOK_AGAIN  # on a clock that jumped nobody can say how long they were silent
            return 0
        for scope in idle:
            try:
                self._control.disable(scope, IDLE_WATCH)
            except NotFound:  # removed meanwhile by another node: without a look we would try again at once
                self._documents.refresh([scope])
        self._bound = self._documents.next_idle(self._after)
        return len(idle)

    def _silent_everywhere(self, now: datetime, after: timedelta) -> list[str]:
        """Those whose guests asked no other node either, as far as the store knows."""
        silent = self._documents.idle(now, after)
        for scope, at in self._store.last_seen_by_scope(silent).items() if silent else ():
            self._documents.seen_elsewhere(scope, at)
        return [scope for scope in self._documents.idle(now, after) if scope in silent]

    def write(self, callers: Iterable[Caller]) -> None:
        """Save when these were last seen; in the writer's thread."""
        seen = [
            MachineLastSeen(c.scope, c.name, c.seen.at) for c in callers if c.seen is not None and c.view is not None
        ]
        if seen:
            self._store.record_last_seen(seen)

    def write_sightings(self, sightings: Collection[EventFirstSeen]) -> None:
        """Save who saw which event for the first time, and when; in the writer's thread."""
        self._store.record_first_seen(sightings)
