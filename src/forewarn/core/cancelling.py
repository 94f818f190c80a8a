"""Cancelling one event, for every rule that does it."""

from dataclasses import replace

from forewarn.core.draft import Draft
from forewarn.core.model import Event
from forewarn.core.transitions import Verb, status_after


def cancel(draft: Draft, event: Event, reason: str) -> None:
    draft.put(replace(event, status=status_after(event, Verb.CANCEL), ended=draft.now_in(event.scope), reason=reason))
    draft.note("event cancelled", event=event, detail=reason)
