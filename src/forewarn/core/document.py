"""What guests see and send: the api-version table, the bytes of a document, and the body of an approval.

The table lists the protocol's versions: a version is a row, not a branch in the code.
"""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Never

from forewarn.core.errors import Invalid, NotFound
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.formatting import iso_seconds
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import VISIBLE, Event, EventType, Scope, ScopeKind, Status

MAX_START_REQUESTS = 100
MAX_BODY_BYTES = 64 * 1024

_DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_GUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """One row of the version table: what a document of this version contains."""

    name: str
    leading_underscore: bool = False
    iso_times: bool = False
    description: bool = False
    source: bool = False
    duration: bool = False

    def shows(self, type_: EventType) -> bool:
        return EVENT_TYPES[type_].first_api_version <= self.name


VERSIONS: dict[str, ApiVersion] = {
    row.name: row
    for row in (
        ApiVersion(name="2017-03-01", leading_underscore=True, iso_times=True),
        ApiVersion(name="2017-08-01"),
        ApiVersion(name="2017-11-01"),
        ApiVersion(name="2019-01-01"),
        ApiVersion(name="2019-04-01", description=True),
        ApiVersion(name="2019-08-01", description=True, source=True),
        ApiVersion(name="2020-07-01", description=True, source=True, duration=True),
    )
}
NEWEST = list(VERSIONS)[-1]


def api_version(text: str | None) -> ApiVersion:
    """Return the row of a version; raise Invalid, or NotFound for a newer one ("clients fall back on 404")."""
    if text is not None and text in VERSIONS:
        return VERSIONS[text]
    if text is not None and _DATE.fullmatch(text) and text > NEWEST:
        raise NotFound("Not found. api-version is not available")
    raise Invalid("Bad request. api-version is invalid or was not specified in the request.")


def visible(events: Iterable[Event]) -> list[Event]:
    """Return the events that guests see, in order of publication."""
    return sorted((e for e in events if e.status in VISIBLE), key=lambda e: (e.sequence, e.position))


def render(scope: Scope, events: Iterable[Event], version: ApiVersion) -> bytes:
    """Return the bytes of the scope's document in one version."""
    rendered = [_render_event(scope, e, version) for e in visible(events) if version.shows(e.type)]
    document = {"DocumentIncarnation": scope.incarnation, "Events": rendered}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _render_event(scope: Scope, event: Event, version: ApiVersion) -> dict[str, object]:
    # "Removed prepended underscore from resource names for IaaS VMs": role instances of a cloud service never had it.
    prefix = "_" if version.leading_underscore and scope.kind is not ScopeKind.CLOUD_SERVICE else ""
    fields: dict[str, object] = {
        "EventId": event.id,
        "EventStatus": str(event.status),
        "EventType": str(event.type),
        "ResourceType": "VirtualMachine",
        "Resources": [prefix + name for name in event.resources],
        "NotBefore": _render_not_before(event, version),
    }
    if version.description:
        fields["Description"] = event.description
    if version.source:
        fields["EventSource"] = str(event.source)
    if version.duration:
        fields["DurationInSeconds"] = event.duration_s
    return fields


def _render_not_before(event: Event, version: ApiVersion) -> str:
    if event.status is Status.STARTED or event.not_before is None:
        return ""
    return iso_seconds(event.not_before) if version.iso_times else rfc1123(event.not_before)


def rfc1123(moment: datetime) -> str:
    """Format a time like `Mon, 19 Sep 2016 18:29:47 GMT`, independent of the locale."""
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    time = f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}"
    return f"{day}, {moment.day:02d} {month} {moment.year:04d} {time} GMT"


def parse_start_requests(body: bytes) -> tuple[str, ...]:
    """Return the event ids a guest approves, in upper case, each once, in their order; raise Invalid for a bad body."""
    try:
        # `json.loads` would also accept UTF-16 and UTF-32. JSON between systems is UTF-8; a byte order mark is tolerated.
        document = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Invalid("Bad request. The body is not JSON") from None
    if not isinstance(document, dict):
        raise Invalid("Bad request. The body is not a JSON object")
    requests = document.get("StartRequests")
    if not isinstance(requests, list) or not requests:
        raise Invalid("Bad request. StartRequests must be a non-empty list")
    if len(requests) > MAX_START_REQUESTS:
        raise Invalid(f"Bad request. StartRequests holds more than {MAX_START_REQUESTS} entries")
    return tuple(dict.fromkeys(_event_id(index, entry) for index, entry in enumerate(requests)))


def _refuse_constant(name: str) -> Never:
    """Refuse NaN and Infinity, which Python accepts and JSON does not have."""
    raise ValueError(name)


def _event_id(index: int, entry: object) -> str:
    event_id = entry.get("EventId") if isinstance(entry, dict) else None
    if not isinstance(event_id, str) or not _GUID.fullmatch(event_id):
        raise Invalid(f"Bad request. StartRequests[{index}] has no EventId that is a GUID")
    return event_id.upper()
