"""The document as a guest reads it: typed, tolerant of unknown fields and of every version's format.

Defines what an event means to a guest: names without the preview's underscore, NotBefore in either format, the time left.
Incarnations are compared for difference, never for order: they start again when a scope is re-enabled. Knows nothing of HTTP
except two headers that it is given.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from forewarn.guest.errors import BadDocument

SCHEDULED, STARTED = "Scheduled", "Started"
# The Date header has whole seconds: the service's clock may be up to this much ahead of it.
DATE_RESOLUTION_S = 1.0
MAX_EVENTS = 10_000
# Longer texts and lists are cut: they end up in the journal, in variables of programs and on terminals.
MAX_WORD_CHARS = 64
MAX_TEXT_CHARS = 1_024
MAX_NAME_CHARS = 128
MAX_RESOURCES = 1_000
# An event with a longer id is left out, because a part of an id approves nothing.
MAX_ID_CHARS = 128
# A longer ETag is not sent back.
MAX_ETAG_CHARS = 256
MAX_DURATION_S = 10**9
_MAX_DIGITS = 20
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d*)?(Z|[+-]\d\d:?\d\d)?")

log = logging.getLogger("forewarn.guest.document")


@dataclass(frozen=True)
class Event:
    """One event; `id` is as received, and `raw` is the entry as received, with unknown fields."""

    id: str
    status: str
    type: str
    resources: Tuple[str, ...] = ()
    not_before: Optional[datetime] = None
    resource_type: str = "VirtualMachine"
    description: str = ""
    source: str = ""
    # -1 means unknown, as in the protocol; a version without the field gives -1 too.
    duration_s: int = -1
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The id in upper case, by which events are compared and the journal names them."""
        return self.id.upper()

    @property
    def started(self) -> bool:
        return self.status == STARTED


@dataclass(frozen=True)
class Document:
    """The endpoint's document, and when it came by the endpoint's clock (`date`) and by ours (`received_s`, monotonic)."""

    incarnation: str
    events: Tuple[Event, ...] = ()
    etag: str = ""
    date: Optional[datetime] = None
    received_s: float = 0.0

    def event(self, event_id: str) -> Optional[Event]:
        wanted = event_id.upper()
        return next((event for event in self.events if event.key == wanted), None)

    def differs(self, other: Optional[Document]) -> bool:
        """Return whether incarnation or content differ: in a new epoch the same number may have other content."""
        return other is None or (self.incarnation, self.events) != (other.incarnation, other.events)

    def confirmed(self, date: Optional[datetime], received_s: float) -> Document:
        """Return the same content with the time of a later response (304)."""
        return replace(self, date=date or self.date, received_s=received_s if date else self.received_s)

    def time_left_s(self, event: Event, now_s: float) -> Optional[float]:
        """Return the seconds to NotBefore by the service's clock, rounded down; 0 once Started; None when not known.

        `now_s` is this machine's monotonic clock. Its wall clock may be wrong and does not matter.
        """
        if event.started:
            return 0.0
        if event.not_before is None or self.date is None:
            return None
        at_response_s = (event.not_before - self.date).total_seconds() - DATE_RESOLUTION_S
        return max(0.0, at_response_s - max(0.0, now_s - self.received_s))


def parse_document(body: bytes, *, etag: str = "", date: str = "", received_s: float = 0.0) -> Document:
    """Parse a response body of any version, or raise BadDocument; leave out events that cannot be read."""
    try:
        data = json.loads(body.decode("utf-8-sig"), parse_int=whole_number)
    except Exception as error:  # RecursionError, ValueError or any other error of the parser
        raise BadDocument(f"the document is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("Events", []), list):
        raise BadDocument("the document is not an object with a list of Events")
    incarnation = data.get("DocumentIncarnation")
    if incarnation is None or isinstance(incarnation, (dict, list, bool)):
        raise BadDocument("the document has no DocumentIncarnation")
    events = data.get("Events", [])
    if len(events) > MAX_EVENTS:
        raise BadDocument(f"the document lists more than {MAX_EVENTS} events")
    return Document(
        incarnation=writable(str(incarnation))[:MAX_WORD_CHARS],
        events=_readable_events(events),
        etag=etag if len(etag) <= MAX_ETAG_CHARS else "",
        date=parse_moment(date),
        received_s=received_s,
    )


def whole_number(digits: str) -> Union[int, str]:
    """Return the number, or its text if it is too long: turning many digits into a number takes very long."""
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _readable_events(entries: List[Any]) -> Tuple[Event, ...]:
    """Return the events that can be read, the first of each id: one bad event must not hide the others."""
    events: Dict[str, Event] = {}
    errors: List[str] = []
    for entry in entries:
        try:
            event = parse_event(entry)
            if event.key in events:
                raise BadDocument("two events have the same EventId")
            events[event.key] = event
        except Exception as error:  # no content of the endpoint may stop the agent
            errors.append(str(error) or type(error).__name__)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        log.warning("an event cannot be read and is ignored: %s%s", ascii(errors[0])[1:-1], more)
    return tuple(events.values())


def parse_event(data: Any) -> Event:
    """Parse one entry of Events; only EventId and EventStatus are required."""
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in ("EventId", "EventStatus")):
        raise BadDocument("an event has no EventId or no EventStatus")
    event_id = writable(data["EventId"])
    if len(event_id.upper()) > MAX_ID_CHARS:
        raise BadDocument(f"an EventId has more than {MAX_ID_CHARS} characters")
    return Event(
        id=event_id,
        status=_text(data, "EventStatus"),
        type=_text(data, "EventType"),
        resources=_names(data.get("Resources")),
        not_before=parse_moment(_text(data, "NotBefore")),
        resource_type=_text(data, "ResourceType"),
        description=_text(data, "Description", MAX_TEXT_CHARS),
        source=_text(data, "EventSource"),
        duration_s=_seconds(data.get("DurationInSeconds")),
        raw=data,
    )


def _names(resources: Any) -> Tuple[str, ...]:
    if not isinstance(resources, list):
        return ()
    return tuple(bare_name(writable(str(each))[:MAX_NAME_CHARS]) for each in resources[:MAX_RESOURCES])


def bare_name(resource: str) -> str:
    """Remove the underscore that 2017-03-01 puts before names of IaaS machines; no machine's own name begins with one."""
    return resource.lstrip("_")


def parse_moment(text: str) -> Optional[datetime]:
    """Parse RFC 1123 or ISO 8601 into UTC; return None for "" and for any other text."""
    if len(text) > MAX_WORD_CHARS:
        return None
    match = _ISO.fullmatch(text.strip())
    try:
        if match is not None:
            zone = (match[3] or "Z").replace("Z", "+00:00")
            zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
            moment = datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}")
        elif text.strip():
            moment = parsedate_to_datetime(text)
        else:
            return None
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def moment_text(moment: Optional[datetime]) -> str:
    """Return the moment to the second so that `parse_moment` reads the same, or "" for None; the year has four digits."""
    return moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z" if moment is not None else ""


def event_json(event: Event) -> Dict[str, Any]:
    """Return the event in the newest version's format, which commands get on stdin and the journal stores."""
    return {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.type,
        "ResourceType": event.resource_type,
        "Resources": list(event.resources),
        "NotBefore": moment_text(event.not_before),
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_s,
    }


def _text(data: Mapping[str, Any], key: str, max_chars: int = MAX_WORD_CHARS) -> str:
    value = data.get(key)
    return writable(value[:max_chars]) if isinstance(value, str) else ""


def writable(text: str) -> str:
    """Replace what JSON can hold but no file, variable or terminal can: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _seconds(value: Any) -> int:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and len(value) > _MAX_DIGITS):
        return -1
    try:
        duration_s = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return duration_s if abs(duration_s) <= MAX_DURATION_S else -1
