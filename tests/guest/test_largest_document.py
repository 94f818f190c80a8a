"""The largest document that the service can render is within the limits of our own clients."""

from forewarn.core.document import NEWEST, api_version, render
from forewarn.core.model import MAX_MACHINES_PER_SCOPE, MAX_OPEN_USER_EVENTS, MAX_TEXT_CHARS, EventType, Source
from forewarn.guest.document import MAX_EVENTS, parse_document
from forewarn.guest.transport import MAX_BODY_BYTES
from tests.support.builders import event, scope


def test_the_largest_document_of_a_scope_is_read() -> None:
    """All user events that a scope may have, and a Preempt and a Terminate of every machine, with long descriptions."""
    types = [(EventType.REBOOT, Source.USER, MAX_OPEN_USER_EVENTS)]
    types += [(each, Source.PLATFORM, MAX_MACHINES_PER_SCOPE) for each in (EventType.PREEMPT, EventType.TERMINATE)]
    events = [
        event(number, type=type_, source=source, resources=("m" * 64,), description="x" * MAX_TEXT_CHARS)
        for number, (type_, source) in enumerate((t, s) for t, s, count in types for _ in range(count))
    ]
    body = render(scope(), events, api_version(NEWEST))
    assert len(body) < MAX_BODY_BYTES / 2
    assert len(parse_document(body).events) == len(events) == MAX_OPEN_USER_EVENTS + 2 * MAX_MACHINES_PER_SCOPE
    assert 2 * len(events) < MAX_EVENTS
