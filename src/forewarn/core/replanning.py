"""Planning an announced event again: the event is cancelled, and another one takes over its machines under a new id."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from forewarn.core.cancelling import cancel
from forewarn.core.draft import Draft
from forewarn.core.model import Event, Status


def plan_again(draft: Draft, event: Event, reason: str, new_id: Callable[[], str], **changes: Any) -> Event:
    """Cancel the event, and plan another for the same machines, in the same wave unless `changes` say otherwise.

    Approvals are not carried over.
    """
    event_id = new_id()
    cancel(draft, event, reason, replaced_by=event_id)
    planned = replace(
        event,
        id=event_id,
        position=draft.next_position(event.maintenance_id),
        status=Status.PLANNED,
        needs_approval=True,
        sequence=0,
        published=None,
        not_before=None,
        minimum_notice_s=0,
        ended=None,
        reason="",
        approvals=(),
        replaces=event.id,
        **changes,
    )
    draft.put(planned)
    draft.note("event planned again", event=planned, detail=f"it replaces event {event.id}: {reason}")
    return planned
