"""What a request of a client means: the endpoint's rules, in the endpoint's order. Pure: no sockets, no clock, no state.

The order of the checks: path, method, relay, duplicate parameter, header, version, body. docs/reference/protocol.md describes
every error.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple, Union
from urllib.parse import parse_qsl

from forewarn.guest.document import MAX_ID_CHARS
from forewarn.guest.serving.requests import Request

SCHEDULED_EVENTS = "/metadata/scheduledevents"
# 2017-03-01, the preview, is not served.
VERSIONS = ("2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
MAX_QUERY_PARAMETERS = 32
MAX_START_REQUESTS = 100
MAX_WAIT_S = 60
_DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_WAIT = re.compile(r"wait=0*([1-9][0-9]{0,8})[0-9]*")
_TAG = re.compile(r'(?:W/)?("[^"]*")|([^"]+)')
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]{0,5})?")
# Plain names only: what an endpoint may decode, such as %2e, could lead to another path than the one that was checked.
_INSTANCE = re.compile(r"/metadata/instance(?:/[a-z0-9_-]+)*/?", re.IGNORECASE)
_RELAYS = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip", "origin", "sec-fetch-site"})


@dataclass(frozen=True)
class Answer:
    """A response to a client."""

    status: int
    body: bytes = b""
    headers: Tuple[Tuple[str, str], ...] = ()
    content_type: str = "application/json; charset=utf-8"


@dataclass(frozen=True)
class Poll:
    """A GET or HEAD of the document."""

    version: str
    if_none_match: str = ""
    wait_s: int = 0


@dataclass(frozen=True)
class StartRequests:
    """A well-formed POST: the ids as the client wrote them."""

    event_ids: Tuple[str, ...]


@dataclass(frozen=True)
class AboutInstance:
    """A GET below /metadata/instance, which only the endpoint can answer."""

    target: str


Meaning = Union[Answer, Poll, StartRequests, AboutInstance]


def error(status: int, message: str, *headers: Tuple[str, str], **more: Any) -> Answer:
    return Answer(status, json.dumps({"error": message, **more}, separators=(",", ":")).encode(), headers)


NOT_FOUND = error(404, "Not found")
TOO_MANY = error(429, "Too many requests", ("Retry-After", "1"))
TOO_LARGE = error(413, "Payload too large")
UNAVAILABLE = error(503, "Service unavailable", ("Retry-After", "1"))
UNREADABLE: Mapping[int, Answer] = {
    400: error(400, "Bad request"),
    431: error(431, "Request header fields too large"),
}
_MALFORMED = UNREADABLE[400]
_RELAYED = error(400, "Bad request. The request was relayed")
_DUPLICATE = error(400, "Bad request. Duplicate query parameter")
_NO_METADATA = error(400, "Bad request. Required metadata header not specified")
_LATER_VERSION = error(404, "Not found. api-version is not available")


def served_versions(api_version: str) -> Tuple[str, ...]:
    """Return the versions that can be served with documents of this version: a later one has fields that are not known."""
    return tuple(each for each in VERSIONS if each <= max(api_version, VERSIONS[0]))


def meaning(request: Request, *, versions: Tuple[str, ...], approves: bool, any_host: bool) -> Meaning:
    """Return what the request asks for, or the answer to a wrong one. A client that does not approve may only read."""
    path, _, query = request.target.partition("?")
    about_instance = _INSTANCE.fullmatch(path)
    path = path.lower()
    if path not in (SCHEDULED_EVENTS, "/metadata/versions") and not about_instance:
        return NOT_FOUND
    methods = ("GET", "HEAD", "POST") if path == SCHEDULED_EVENTS and approves else ("GET", "HEAD")
    if request.method not in methods:
        return error(405, "Method not allowed", ("Allow", ", ".join(methods)))
    hosts = request.values("host")
    if len(hosts) > 1 or not (hosts or request.http_1_0):
        return _MALFORMED
    if _is_relayed(request) or not (any_host or not hosts or _is_own_host(hosts[0])):
        return _RELAYED
    pairs = parse_qsl(query, keep_blank_values=True)
    parameters = {name.lower(): value for name, value in pairs}
    if len(pairs) > MAX_QUERY_PARAMETERS:
        return _MALFORMED
    if len(pairs) != len(parameters):
        return _DUPLICATE
    if {value.lower() for value in request.values("metadata")} != {"true"}:
        return _NO_METADATA
    version = parameters.get("api-version", "")
    if path == "/metadata/versions":
        return Answer(200, json.dumps({"apiVersions": versions}, separators=(",", ":")).encode())
    if about_instance:
        return AboutInstance(request.target) if _DATE.fullmatch(version) else _no_version(versions)
    if version not in versions:
        later = _DATE.fullmatch(version) and version > versions[-1]
        return _LATER_VERSION if later else _no_version(versions)
    if request.body is None:
        return TOO_LARGE
    if request.method == "POST":
        return _start_requests(request.body)
    tags = request.values("if-none-match")
    wait_s = _preferred_wait_s(request) if request.method == "GET" else 0
    return Poll(version, _plain_tag(tags[0]) if len(tags) == 1 else "", wait_s)


def _no_version(versions: Tuple[str, ...]) -> Answer:
    message = "Bad request. api-version is invalid or was not specified in the request."
    return error(400, message, **{"newest-versions": versions[:-4:-1]})


def _is_relayed(request: Request) -> bool:
    """Return whether a proxy or a browser sent the request for another program."""
    return any(name in _RELAYS or name.startswith("x-instance-id") for name, _ in request.headers)


def _is_own_host(host: str) -> bool:
    """Return whether Host is an address or localhost: a name may be of a web page that leads a browser here."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    try:
        return (match[2] or "").lower() == "localhost" or bool(ipaddress.ip_address(match[1] or match[2]))
    except ValueError:
        return False


def _preferred_wait_s(request: Request) -> int:
    """Return N of `Prefer: wait=N`, at most MAX_WAIT_S, or 0."""
    for value in request.values("prefer"):
        for preference in value.split(","):
            match = _WAIT.fullmatch(preference.strip().lower())
            if match:
                return min(int(match[1]), MAX_WAIT_S)
    return 0


def _plain_tag(tag: str) -> str:
    """Return a tag, which may be quoted, weak or bare, in quotes; "" if it is none of these."""
    match = _TAG.fullmatch(tag)
    return "" if match is None else match[1] or f'"{match[2]}"'


def _start_requests(body: bytes) -> Union[Answer, StartRequests]:
    try:
        data = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return error(400, "Bad request. The body is not JSON")
    if not isinstance(data, dict):
        return error(400, "Bad request. The body is not a JSON object")
    entries = data.get("StartRequests")
    if not isinstance(entries, list) or not entries:
        return error(400, "Bad request. StartRequests must be a non-empty list")
    if len(entries) > MAX_START_REQUESTS:
        return error(400, f"Bad request. StartRequests holds more than {MAX_START_REQUESTS} entries")
    event_ids = []
    for index, entry in enumerate(entries):
        event_id = entry.get("EventId") if isinstance(entry, dict) else None
        if not isinstance(event_id, str) or not 0 < len(event_id) <= MAX_ID_CHARS:
            return error(400, f"Bad request. StartRequests[{index}] has no EventId")
        event_ids.append(event_id)
    return StartRequests(tuple(event_ids))


def _refuse(constant: str) -> Optional[str]:
    """Refuse NaN and Infinity, which Python accepts and JSON does not have."""
    raise ValueError(constant)
