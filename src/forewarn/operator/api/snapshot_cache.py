"""Cache of snapshots for reading: a page of a large maintenance is requested more often than it changes.

Every change of an event or an order adds an audit entry, whichever node made it, so a new entry makes every cached snapshot
stale. The end of a maintenance adds none, so the maintenances themselves are compared. What depends on the time, such as what
an event waits for, is not cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from forewarn.core.change import Snapshot
from forewarn.core.model import Event, Status
from forewarn.service.control import Control
from forewarn.store import AuditQuery, Focus, Store

MAX_SNAPSHOTS = 64
MAX_EVENTS = 50_000  # in all snapshots together

Key = tuple[tuple[str, ...], tuple[str, ...]] | Focus


class SnapshotCache:
    def __init__(
        self, control: Control, store: Store, *, max_snapshots: int = MAX_SNAPSHOTS, max_events: int = MAX_EVENTS
    ) -> None:
        self._control = control
        self._store = store
        self._max_snapshots = max_snapshots
        self._max_events = max_events
        self._lock = threading.Lock()
        self._audit_id = 0
        self._cached: OrderedDict[Key, Snapshot] = OrderedDict()

    def around(self, *, events: Sequence[Event] = (), maintenances: Iterable[str] = ()) -> Snapshot:
        """Return what `Control.snapshot_around` returns."""
        ids = tuple(maintenances)
        key = (tuple(event.id for event in events), ids)
        return self._snapshot(key, ids, lambda: self._control.snapshot_around(events=events, maintenances=ids))

    def of(self, focus: Focus) -> Snapshot:
        """Return what `Store.snapshot` returns; for plans, of which nothing is saved."""
        return self._snapshot(focus, None, lambda: self._store.snapshot(focus))

    def _snapshot(self, key: Key, compared: Iterable[str] | None, read: Callable[[], Snapshot]) -> Snapshot:
        """`compared` are the maintenances that must not have changed since; None for all in the snapshot."""
        # Read before the snapshot: a change in between makes a fresh snapshot look stale, never a stale one fresh.
        audit_id = self._newest_audit_id()
        with self._lock:
            if audit_id != self._audit_id:
                self._cached.clear()
                self._audit_id = audit_id
            cached = self._cached.get(key)
        if cached is not None:
            ids = cached.maintenances if compared is None else compared
            if all(self._store.maintenance(i) == cached.maintenances.get(i) for i in ids):
                return cached
        snapshot = read()
        with self._lock:
            if audit_id == self._audit_id and _publication_observed(snapshot):
                self._cached[key] = snapshot
                self._cached.move_to_end(key)
                self._evict()
        return snapshot

    def _newest_audit_id(self) -> int:
        entries = self._store.audit(AuditQuery(limit=1))
        return entries[0].id if entries else 0

    def _evict(self) -> None:
        while (
            len(self._cached) > self._max_snapshots
            or sum(len(snapshot.events) for snapshot in self._cached.values()) > self._max_events
        ):
            self._cached.popitem(last=False)


def _publication_observed(snapshot: Snapshot) -> bool:
    """Whether a tick has found every published wave saved: noting that adds no audit entry."""
    return all(
        snapshot.maintenances[event.maintenance_id].observed_published_at is not None
        for event in snapshot.events.values()
        if event.status is Status.SCHEDULED
    )
