"""What was looked at is kept until something changes: a page of a large maintenance is asked for more often than it changes.

Every change of an event or an order is in the audit, so its newest entry tells whether a look still holds, whichever node made
the change; that a maintenance has ended is not, so the maintenance itself is compared. What depends on the time, such as what
an event waits for, is worked out anew each time and not kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from forewarn.core.change import Snapshot
from forewarn.core.model import Event, Status
from forewarn.service.control import Control
from forewarn.store import AuditQuery, Focus, Store

MAX_LOOKS = 64
MAX_EVENTS = 50_000  # in all looks together

Key = tuple[tuple[str, ...], tuple[str, ...]] | Focus


def _told(snapshot: Snapshot) -> bool:
    """Whether every wave in it is known to be seen: that it is, is noted without an entry in the audit."""
    return all(
        snapshot.maintenances[event.maintenance_id].observed_published_at is not None
        for event in snapshot.events.values()
        if event.status is Status.SCHEDULED
    )


class Looks:
    def __init__(self, control: Control, store: Store) -> None:
        self._control = control
        self._store = store
        self._lock = threading.Lock()
        self._mark = 0
        self._kept: OrderedDict[Key, Snapshot] = OrderedDict()

    def told(self, *, events: Sequence[Event] = (), maintenances: Iterable[str] = ()) -> Snapshot:
        """As `Control.told`: what is known of these and of what they may wait for."""
        wanted = tuple(maintenances)
        key = (tuple(event.id for event in events), wanted)
        return self._look(key, wanted, lambda: self._control.told(events=events, maintenances=wanted))

    def at(self, focus: Focus) -> Snapshot:
        """As the store has it: for plans, of which nothing is saved."""
        return self._look(focus, None, lambda: self._store.snapshot(focus))

    def _look(self, key: Key, wanted: Iterable[str] | None, look: Callable[[], Snapshot]) -> Snapshot:
        """`wanted` are the maintenances that must not have ended since; None for all that are in it."""
        # The mark is read first: a change that comes now makes this look an old one, never an old look a new one.
        mark = self._newest()
        with self._lock:
            if mark != self._mark:
                self._kept.clear()
                self._mark = mark
            kept = self._kept.get(key)
        if kept is not None:
            watched = kept.maintenances if wanted is None else wanted
            if all(self._store.maintenance(i) == kept.maintenances.get(i) for i in watched):
                return kept
        snapshot = look()
        with self._lock:
            if mark == self._mark and _told(snapshot):
                self._kept[key] = snapshot
                self._kept.move_to_end(key)
                self._forget()
        return snapshot

    def _newest(self) -> int:
        newest = self._store.audit(AuditQuery(limit=1))
        return newest[0].id if newest else 0

    def _forget(self) -> None:
        while len(self._kept) > MAX_LOOKS or sum(len(kept.events) for kept in self._kept.values()) > MAX_EVENTS:
            self._kept.popitem(last=False)
