"""The document as a guest reads it: typed, tolerant of unknown fields and of every version's shape.

Owns what an event means to a guest: its names without the preview's underscore, its NotBefore in either format, the
time left to it. Incarnations are compared for difference, never for order: they start again when a scope is re-enabled.
Knows nothing of HTTP beyond the two headers it is handed.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Dict, Mapping, Optional, Tuple

from forewarn.guest.errors import BadDocument

SCHEDULED, STARTED = "Scheduled", "Started"
# The Date header is cut to whole seconds: the service may be up to this much further on.
DATE_RESOLUTION_S = 1.0
MAX_EVENTS = 1_000
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d*)?(Z|[+-]\d\d:?\d\d)?")

log = logging.getLogger("forewarn.guest.document")


@dataclass(frozen=True)
class Event:
    """One event; `raw` is as it came, unknown fields included."""

    id: str
    status: str
    type: str
    resources: Tuple[str, ...] = ()
    not_before: Optional[datetime] = None
    resource_type: str = "VirtualMachine"
    description: str = ""
    source: str = ""
    # -1 is "unknown" on the wire; a version without the field knows it no better.
    duration_s: int = -1
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def started(self) -> bool:
        return self.status == STARTED


@dataclass(frozen=True)
class Document:
    """What the endpoint said, and when it said so on its clock (`date`) and on ours (`received_s`, monotonic)."""

    incarnation: str
    events: Tuple[Event, ...] = ()
    etag: str = ""
    date: Optional[datetime] = None
    received_s: float = 0.0

    def event(self, event_id: str) -> Optional[Event]:
        wanted = event_id.upper()
        return next((event for event in self.events if event.id == wanted), None)

    def differs(self, other: Optional[Document]) -> bool:
        """Another incarnation, or the same number with other content: a new epoch starts at 1 again."""
        return other is None or (self.incarnation, self.events) != (other.incarnation, other.events)

    def confirmed(self, date: Optional[datetime], received_s: float) -> Document:
        """The same content, said again later (304)."""
        return replace(self, date=date or self.date, received_s=received_s if date else self.received_s)

    def time_left_s(self, event: Event, now_s: float) -> Optional[float]:
        """Seconds to NotBefore by the service's clock, never more than there are; 0 once Started; None: not known.

        `now_s` is this machine's monotonic clock: its wall clock may be wrong and does not matter.
        """
        if event.started:
            return 0.0
        if event.not_before is None or self.date is None:
            return None
        at_answer_s = (event.not_before - self.date).total_seconds() - DATE_RESOLUTION_S
        return max(0.0, at_answer_s - max(0.0, now_s - self.received_s))


def parse_document(body: bytes, *, etag: str = "", date: str = "", received_s: float = 0.0) -> Document:
    """The document in an answer of any version, or BadDocument; an event in it that cannot be read is left out."""
    try:
        said = json.loads(body.decode("utf-8-sig"))
    except Exception as error:  # RecursionError, ValueError and whatever else somebody finds
        raise BadDocument(f"the document is not JSON: {error}") from None
    if not isinstance(said, dict) or not isinstance(said.get("Events", []), list):
        raise BadDocument("the document is not an object with a list of Events")
    incarnation = said.get("DocumentIncarnation")
    if incarnation is None or isinstance(incarnation, (dict, list, bool)):
        raise BadDocument("the document has no DocumentIncarnation")
    events = said.get("Events", [])
    if len(events) > MAX_EVENTS:
        raise BadDocument(f"the document lists more than {MAX_EVENTS} events")
    return Document(
        incarnation=str(incarnation),
        events=tuple(event for event in map(_event_or_none, events) if event is not None),
        etag=etag,
        date=parse_moment(date),
        received_s=received_s,
    )


def _event_or_none(said: Any) -> Optional[Event]:
    """One event that makes no sense must not hide the others."""
    try:
        return parse_event(said)
    except Exception as error:  # whatever it is: an endpoint must not be able to stop the agent
        log.warning("an event is passed over: %s", ascii(str(error) or type(error).__name__)[1:-1])
        return None


def parse_event(said: Any) -> Event:
    """One entry of Events; only EventId and EventStatus must be there."""
    if not isinstance(said, dict) or not all(isinstance(said.get(key), str) for key in ("EventId", "EventStatus")):
        raise BadDocument("an event has no EventId or no EventStatus")
    resources = said.get("Resources")
    return Event(
        id=_text(said, "EventId").upper(),
        status=_text(said, "EventStatus"),
        type=_text(said, "EventType"),
        resources=tuple(bare_name(writable(str(each))) for each in resources) if isinstance(resources, list) else (),
        not_before=parse_moment(_text(said, "NotBefore")),
        resource_type=_text(said, "ResourceType"),
        description=_text(said, "Description"),
        source=_text(said, "EventSource"),
        duration_s=_seconds(said.get("DurationInSeconds")),
        raw=said,
    )


def bare_name(resource: str) -> str:
    """2017-03-01 puts one underscore before the names of IaaS machines; no machine's own name begins with one."""
    return resource[1:] if resource.startswith("_") else resource


def parse_moment(text: str) -> Optional[datetime]:
    """RFC 1123 or ISO 8601, in UTC; None for "" and for what is neither."""
    found = _ISO.fullmatch(text.strip())
    try:
        if found is not None:
            zone = (found[3] or "Z").replace("Z", "+00:00")
            zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
            moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
        elif text.strip():
            moment = parsedate_to_datetime(text)
        else:
            return None
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def event_json(event: Event) -> Dict[str, Any]:
    """The event as the newest version would write it: what commands get on stdin and journals keep."""
    not_before = event.not_before.strftime("%Y-%m-%dT%H:%M:%SZ") if event.not_before else ""
    return {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.type,
        "ResourceType": event.resource_type,
        "Resources": list(event.resources),
        "NotBefore": not_before,
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_s,
    }


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    return writable(value) if isinstance(value, str) else ""


def writable(text: str) -> str:
    """Without what JSON can hold and no file, variable or terminal can: half a character, and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _seconds(value: Any) -> int:
    try:
        return -1 if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
