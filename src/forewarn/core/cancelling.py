"""Cancelling one event, for every rule that does it."""

from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.model import Event
from forewarn.core.transitions import Verb, status_after


def cancel(draft: Draft, event: Event, reason: str, *, replaced_by: str = "") -> None:
    status, now = status_after(event, Verb.CANCEL), draft.now_in(event.scope)
    draft.put(replace(event, status=status, ended=now, reason=reason, replaced_by=replaced_by))
    draft.note("event cancelled", event=event, detail=reason)
