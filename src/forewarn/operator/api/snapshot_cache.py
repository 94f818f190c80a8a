"""Cache of snapshots for reading: a page of a large maintenance is requested more often than it changes.

Every change of an event or an order adds an audit entry, whichever node made it. So the audit entries since a snapshot was read
name what has changed, and only that is read again: the cost of a page after a change does not grow with the maintenance. An
entry that names no object may have changed anything, unless its action is in UNRELATED: then everything is read again. A
maintenance may change without an entry, so the cached maintenances are read again. What depends on the time, such as what an
event waits for, is not cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from forewarn.core.change import Snapshot
from forewarn.core.model import OPEN, AuditEntry, Event, Status
from forewarn.store import AuditQuery, Focus, Store

MAX_SNAPSHOTS = 64
MAX_EVENTS = 50_000  # in all snapshots together
SUBMITTED = "maintenance submitted"
# Actions whose changes save nothing that a snapshot holds. Entries of every other action are examined.
UNRELATED = frozenset(
    {
        "token created",
        "token revoked",
        "authentication failed",
        "hook deleted",
        "hook secret rotated",
        "hook enabled",
        "hook disabled",
        "hook replayed",
        "hook gap",
    }
)
MAX_ENTRIES = 200  # after more changes than these the whole snapshot is read again


class SnapshotCache:
    def __init__(self, store: Store, *, max_snapshots: int = MAX_SNAPSHOTS, max_events: int = MAX_EVENTS) -> None:
        self._store = store
        self._max_snapshots = max_snapshots
        self._max_events = max_events
        self._lock = threading.Lock()
        # Each snapshot with the id of an audit entry: it contains at least everything up to that entry.
        self._cached: OrderedDict[Focus, tuple[int, Snapshot]] = OrderedDict()

    def around(self, *, events: Sequence[Event] = (), maintenances: Iterable[str] = ()) -> Snapshot:
        """Return these events and maintenances, and everything that those still open may wait for.

        All lists of open events of a maintenance share its snapshot. An event that has ended waits for nothing, so it is read
        without its maintenance.
        """
        compared = tuple(maintenances)
        ids = {event.maintenance_id for event in events if event.status in OPEN} | set(compared)
        snapshot = self._read(Focus(maintenances=tuple(sorted(ids))), compared) if ids else Snapshot()
        rest = tuple(event.id for event in events if event.id not in snapshot.events)
        if not rest:
            return snapshot
        alone = self._store.snapshot(Focus(events=rest, whole_maintenances=False, open_events=False))
        return replace(snapshot, events={**snapshot.events, **alone.events}, orders={**snapshot.orders, **alone.orders})

    def of(self, focus: Focus) -> Snapshot:
        """Return what `Store.snapshot` returns for this focus. Only plans use it: nothing of a plan is saved."""
        return self._read(focus, None)

    def _read(self, focus: Focus, compared: Sequence[str] | None) -> Snapshot:
        """Read a snapshot. `compared` are the maintenances that may have changed without an audit entry; None for all in it."""
        # Read before the snapshot: a change in between makes a fresh snapshot look stale, never a stale one fresh.
        audit_id = self._newest_audit_id()
        with self._lock:
            known_id, known = self._cached.get(focus, (0, None))
        if known is not None and known_id != audit_id:
            known = self._caught_up(focus, known, known_id, audit_id)
        if known is not None:
            known = self._with_maintenances(known, tuple(known.maintenances) if compared is None else compared)
        if known is not None and known.fleet_rules.has_budget:
            known = replace(known, fleet_use=self._store.fleet_use())
        snapshot = self._store.snapshot(focus) if known is None else known
        if _publication_observed(snapshot) and not _works_on_hosts(snapshot):
            with self._lock:
                self._cached[focus] = audit_id, snapshot
                self._cached.move_to_end(focus)
                self._evict()
        return snapshot

    def _newest_audit_id(self) -> int:
        entries = self._store.audit(AuditQuery(limit=1))
        return entries[0].id if entries else 0

    def _caught_up(self, focus: Focus, known: Snapshot, known_id: int, audit_id: int) -> Snapshot | None:
        """Return the snapshot with what the entries after `known_id` changed; None if the whole must be read again."""
        entries = self._store.audit(AuditQuery(after=known_id, limit=MAX_ENTRIES + 1)) if audit_id > known_id else []
        submitted = {entry.maintenance_id for entry in entries if entry.action == SUBMITTED}
        part = _changed_part(focus, known, entries, submitted)
        if part is None or not 0 < len(entries) <= MAX_ENTRIES:
            return None
        fresh = self._with_submitted(self._store.snapshot(part), submitted, tuple(known.scopes))
        # The part and the rest must show the same moment.
        return _merged(focus, known, part, fresh) if self._newest_audit_id() == audit_id else None

    def _with_submitted(self, fresh: Snapshot, submitted: Collection[str], scopes: tuple[str, ...]) -> Snapshot:
        """Add the submitted maintenances that have events in these scopes, with all their events."""
        ids = tuple(self._store.wave_progress(tuple(submitted), scopes)) if submitted else ()
        if not ids:
            return fresh
        added = self._store.snapshot(Focus(maintenances=ids, open_events=False))
        return replace(
            fresh,
            scopes={**fresh.scopes, **added.scopes},
            maintenances={**fresh.maintenances, **added.maintenances},
            events={**fresh.events, **added.events},
            orders={**fresh.orders, **added.orders},
        )

    def _with_maintenances(self, snapshot: Snapshot, ids: Iterable[str]) -> Snapshot | None:
        """Return the snapshot with these maintenances as they are now; None if one was removed."""
        rows = {each: self._store.maintenance(each) for each in ids}
        found = {each: row for each, row in rows.items() if row is not None}
        return replace(snapshot, maintenances={**snapshot.maintenances, **found}) if len(found) == len(rows) else None

    def _evict(self) -> None:
        while (
            len(self._cached) > self._max_snapshots
            or sum(len(snapshot.events) for _, snapshot in self._cached.values()) > self._max_events
        ):
            self._cached.popitem(last=False)


def _changed_part(
    focus: Focus, known: Snapshot, entries: Iterable[AuditEntry], submitted: Collection[str]
) -> Focus | None:
    """Return what the entries changed in the snapshot, without the submitted maintenances; None if they do not name it."""
    if not known.maintenances.keys() >= set(focus.maintenances):  # a maintenance submitted later may be among them
        return None
    # The snapshot does not have what no-go times and windows need of the submitted maintenances.
    if submitted and (known.no_go_machines or known.fleet_rules.windows):
        return None
    events: set[str] = set()
    scopes: set[str] = set()
    for entry in entries:
        # If it was a Terminate, machines are gone.
        if entry.action == "event completed" and entry.scope in known.machine_counts:
            return None
        is_read = entry.maintenance_id in submitted and entry.event_id not in known.events
        # A new hook gives its scope a new version; one for the fleet has no scope.
        if is_read or entry.action in UNRELATED or (entry.action == "hook created" and not entry.scope):
            continue
        if entry.event_id and entry.event_id in known.events:
            events.add(entry.event_id)
        elif entry.event_id:
            if entry.scope in known.scopes or entry.maintenance_id in known.maintenances:
                return None
        elif entry.maintenance_id:
            if entry.maintenance_id in known.maintenances:
                if (event_id := _any_event(known, entry.maintenance_id)) is None:
                    return None
                events.add(event_id)
            elif not entry.action.startswith("maintenance "):
                return None  # the work on a host: its turn may plan events in any scope
        elif entry.scope:
            scopes |= {entry.scope} & known.scopes.keys()
        else:
            return None
    if focus.inventory and not scopes <= set(focus.scopes):
        return None
    return replace(
        focus,
        maintenances=(),
        events=tuple(sorted(events)),
        scopes=tuple(sorted(scopes.union(focus.scopes))),
        whole_maintenances=False,
        open_events=False,
    )


def _any_event(snapshot: Snapshot, maintenance_id: str) -> str | None:
    """Return an event of the maintenance: to read the event is to read the maintenance and the orders of its hosts."""
    return next((event.id for event in snapshot.events.values() if event.maintenance_id == maintenance_id), None)


def _merged(focus: Focus, known: Snapshot, part: Focus, fresh: Snapshot) -> Snapshot | None:
    """Return the known snapshot with its changed part, reduced to what `focus` covers now; None if it covers more now."""
    if not fresh.events.keys() >= set(part.events):
        return None
    events = {**known.events, **fresh.events}
    names = {scope for scope, _ in (*focus.machines, *fresh.machines)}.union(focus.scopes)
    names |= {events[each].scope for each in focus.events if each in events}
    open_events = [event for event in events.values() if event.status in OPEN]
    of_focus = set(focus.maintenances)
    names |= {event.scope for event in open_events if event.maintenance_id in of_focus}
    covered = {event.maintenance_id for event in open_events if event.scope in names} | of_focus
    covered |= {events[each].maintenance_id for each in focus.events if each in events}
    scopes = {**known.scopes, **fresh.scopes}
    if (names & scopes.keys()) - known.scopes.keys() or set(part.scopes) & known.scopes.keys() - fresh.scopes.keys():
        return None
    events = {each: event for each, event in events.items() if event.maintenance_id in covered}
    orders = {**known.orders, **fresh.orders}
    maintenances = {**known.maintenances, **fresh.maintenances}
    return replace(
        fresh,
        scopes={name: scope for name, scope in scopes.items() if name in names},
        maintenances={each: row for each, row in maintenances.items() if each in covered},
        events=events,
        orders={each: order for each, order in orders.items() if each in events or order.maintenance_id in covered},
        fleet_rules=known.fleet_rules,
        machine_counts=known.machine_counts,
        no_go_machines=known.no_go_machines,
        other_scopes=known.other_scopes,
    )


def _works_on_hosts(snapshot: Snapshot) -> bool:
    """Whether events may be added without an audit entry that names them: those of a host are planned when its turn comes."""
    return any(each.host_mode is not None and each.ended is None for each in snapshot.maintenances.values())


def _publication_observed(snapshot: Snapshot) -> bool:
    """Whether a tick has observed the publication of every published wave. To save that adds no audit entry."""
    return all(
        snapshot.maintenances[event.maintenance_id].observed_published_at is not None
        for event in snapshot.events.values()
        if event.status is Status.SCHEDULED
    )
