"""The agent's document as clients get it: rendered for each api-version, with a tag and the service's time."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from email.utils import format_datetime
from typing import Any, Dict, List, Mapping, Union

from forewarn.guest.document import Document, Event, bare_name, whole_number
from forewarn.guest.names import Me

_TYPES_SINCE: Mapping[str, str] = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
_NEWEST = "2020-07-01"


class Published:
    """One document and this machine's name in it."""

    def __init__(self, document: Document, me: Me) -> None:
        self.document, self.me = document, me
        self._bodies: Dict[str, bytes] = {}
        # Only the content counts: the endpoint may have no tags, or use one twice.
        self.etag = f'"{hashlib.sha256(self.body(_NEWEST)).hexdigest()[:32]}"'

    def body(self, version: str) -> bytes:
        """Return the document in this version; two threads may render it at once, with the same result."""
        body = self._bodies.get(version)
        if body is None:
            events = [_render(each, version) for each in self.document.events if _is_shown(each, version)]
            incarnation = _incarnation(self.document.incarnation)
            data = {"DocumentIncarnation": incarnation, "Events": events}
            body = self._bodies[version] = json.dumps(data, separators=(",", ":")).encode()
        return body

    def date(self, now_s: float) -> str:
        """Return the time of the service's clock as far as it is known, or ""."""
        date = self.document.date
        if date is None:
            return ""
        return format_datetime(date + timedelta(seconds=max(0.0, now_s - self.document.received_s)), usegmt=True)

    def updated(self, document: Document, me: Me) -> Published:
        """Return the published form of a later document; unchanged content is not rendered again."""
        if document.differs(self.document):
            return Published(document, me)
        same = object.__new__(Published)
        same.document, same.me, same._bodies, same.etag = document, me, self._bodies, self.etag
        return same


def _is_shown(event: Event, version: str) -> bool:
    return _TYPES_SINCE.get(event.type, "") <= version


def _incarnation(text: str) -> Union[int, str]:
    return whole_number(text) if text.isdecimal() and text.isascii() else text


def _render(event: Event, version: str) -> Dict[str, Any]:
    """Return the event in the key order of the protocol; the id as received, names and NotBefore in the form since 2017-08-01."""
    fields: Dict[str, Any] = {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.type,
        "ResourceType": event.resource_type,
        "Resources": _resources(event),
        "NotBefore": _not_before(event),
    }
    if version >= "2019-04-01":
        fields["Description"] = event.description
    if version >= "2019-08-01":
        fields["EventSource"] = event.source
    if version >= "2020-07-01":
        fields["DurationInSeconds"] = event.duration_s
    return fields


def _not_before(event: Event) -> str:
    """Return NotBefore, or "" once the event is Started."""
    return "" if event.started or event.not_before is None else format_datetime(event.not_before, usegmt=True)


def _resources(event: Event) -> List[str]:
    """Return every name, also of an event with more machines than the agent reads."""
    return [bare_name(each) for each in event.raw.get("Resources") or () if isinstance(each, str)]
