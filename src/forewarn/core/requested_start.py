"""The requested start of a rescheduled event: guests see it when its notice begins, and it never starts before that time.

Agents prepare when they first see an event. An announcement long before the start would keep machines out of service.
"""

from datetime import datetime, timedelta

from forewarn.core.draft import Draft
from forewarn.core.formatting import iso_seconds
from forewarn.core.model import Event, EventType, Maintenance, Scope
from forewarn.core.reason import Waiting, wait_until


def announcement(requested: datetime, type_: EventType, scopes: list[Scope]) -> datetime:
    """Return when an event with this requested start is announced: earlier by the longest notice of these scopes."""
    notices = [scope.notice_s(type_) for scope in scopes if scope.enabled]
    return requested - timedelta(seconds=max(notices, default=0))


def requested_start(wave: list[Event]) -> datetime | None:
    return max([e.requested_not_before for e in wave if e.requested_not_before is not None], default=None)


def requested_publication_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return the wait of a rescheduled wave until it is announced."""
    requested = requested_start(wave)
    if requested is None:
        return []
    scopes = [draft.scopes[event.scope] for event in wave if not event.born_approved]
    moment = announcement(requested, maintenance.type, scopes)
    if all(draft.trusted_in(event.scope) >= moment for event in wave):
        return []
    message = f"it was rescheduled to {iso_seconds(requested)}, and is not announced"
    return wait_until(Waiting(code="requested-start", message=message), moment, draft.now, draft.before.hold)


def requested_start_waits(draft: Draft, _: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return the wait of a rescheduled wave until its requested start, approved or not."""
    requested = requested_start(wave)
    if requested is None or all(draft.trusted_in(event.scope) >= requested for event in wave):
        return []
    message = "it was rescheduled: it does not start before the requested time, approved or not"
    return wait_until(Waiting(code="requested-start", message=message), requested, draft.now, draft.before.hold)
