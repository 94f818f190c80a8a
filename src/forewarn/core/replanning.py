"""Planning an event again: it is cancelled, and another one takes over its machines under a new id."""

from collections.abc import Callable

from forewarn.core.cancelling import cancel
from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.model import Event, Status


def plan_again(draft: Draft, event: Event, reason: str, new_id: Callable[[], str]) -> None:
    """Cancel the event, and plan another for the same machines in the same wave."""
    planned = planned_again(draft, event, new_id())
    cancel(draft, event, reason, replaced_by=planned.id)
    draft.put(planned)
    draft.note("event planned again", event=planned, detail=f"it replaces event {event.id}: {reason}")


def planned_again(draft: Draft, event: Event, event_id: str) -> Event:
    """Return the event as it is planned again. Its approvals belong to the event that it replaces."""
    return replace(
        event,
        id=event_id,
        position=draft.next_position(event.maintenance_id),
        status=Status.PLANNED,
        needs_approval=True,
        sequence=0,
        published=None,
        not_before=None,
        minimum_notice_s=0,
        approvals=(),
        replaces=event.id,
    )
