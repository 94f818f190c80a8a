"""Holding the store when its state may be old, and resuming it when an operator has seen what would happen.

While the store is held, no event starts and no order is handed out. Everything else goes on: guests poll and approve,
operators plan, executors report.
"""

from datetime import datetime

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Refused
from forewarn.core.fast_init import replace
from forewarn.core.formatting import iso_seconds
from forewarn.core.lifecycle import tick
from forewarn.core.model import Actor, AuditEntry, Event, HoldCause, Status, StoreHold


def held_entry(hold: StoreHold, origin: str = "") -> AuditEntry:
    """Return the audit entry of a hold."""
    return AuditEntry(at=hold.held, who=hold.who, origin=origin, action="store held", detail=hold.detail)


def hold_store(snapshot: Snapshot, reason: str, *, now: datetime, actor: Actor) -> Change:
    """Hold the store because an operator requests it."""
    if snapshot.store_hold is not None:
        raise Refused(f"the store is already held: {snapshot.store_hold.detail}")
    detail = f"{actor.name} requested it" + (f": {reason}" if reason else "")
    hold = StoreHold(cause=HoldCause.REQUESTED, detail=detail, who=actor.name, held=now)
    return Change(at=now, store_hold=hold, audit=(held_entry(hold, actor.origin),))


def restored(source: object, *, now: datetime, actor: Actor) -> Change:
    """Return the hold of a database that an operator restored from the backup `source`."""
    detail = "a backup was restored: work that it shows as open may be done already"
    entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="database restored", detail=f"from {source}")
    return _automatic(HoldCause.RESTORED, detail, entry)


def replaced(difference: str, *, now: datetime, actor: Actor) -> Change:
    """Return the hold of a database that is not the one the node remembers."""
    entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="database replaced", detail=difference)
    return _automatic(HoldCause.REPLACED, f"{difference}: work that it shows as open may be done already", entry)


def _automatic(cause: HoldCause, detail: str, entry: AuditEntry) -> Change:
    hold = StoreHold(cause=cause, detail=detail, who=entry.who, held=entry.at)
    return Change(at=entry.at, store_hold=hold, audit=(entry, held_entry(hold, entry.origin)))


def resume_store(snapshot: Snapshot, seen: datetime | None, *, now: datetime, actor: Actor) -> Change:
    """Resume the store. `seen` is the time of the hold that the operator was shown."""
    hold = snapshot.store_hold
    if hold is None:
        raise Refused("the store is not held: there is nothing to resume")
    if hold.held != seen:
        raise Refused(
            f"the store is held since {iso_seconds(hold.held)}, which is not the hold that you saw:"
            " see again what would happen"
        )
    entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="store resumed", detail=hold.detail)
    return Change(at=now, resumes_store=hold, audit=(entry,))


def starts_after_resuming(snapshot: Snapshot, *, now: datetime, order_timeout_s: int) -> list[Event]:
    """Return the events of the snapshot that would start at once if the store were resumed now."""
    hold = snapshot.store_hold
    resumed = replace(hold, resumed=now) if hold is not None else snapshot.resumed
    free = replace(snapshot, store_hold=None, resumed=resumed)
    # The snapshot has no hosts, so no events are planned and no ids are needed.
    change = tick(free, now=now, actor=Actor("reader"), order_timeout_s=order_timeout_s, new_id=str)
    known = {i for i, event in snapshot.events.items() if event.status is Status.STARTED}
    return [event for event in change.events if event.status is Status.STARTED and event.id not in known]
