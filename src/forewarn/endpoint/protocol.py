"""The guest contract as a function: a parsed request and who sent it in, what to answer out. No sockets, no waiting.

Owns every row of the contract's error table and the order in which they are checked: caller, rate, path, method, relay,
duplicate parameter, header, version, body. The caller and its rate are the connection's business and come before.
"""

import ipaddress
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

import msgspec

from forewarn.core.document import VERSIONS, api_version, parse_start_requests
from forewarn.core.errors import Invalid, NotFound

SCHEDULED_EVENTS = "/metadata/scheduledevents"
NEWEST_VERSIONS = list(VERSIONS)[:-4:-1]
MAX_QUERY_PARAMETERS = 32
MAX_WAIT_S = 60
MAX_WAIT_DIGITS = 9
_DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_WAIT = re.compile(r"wait=0*([1-9][0-9]*)")
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]{0,5})?")
ANY_HOST = "*"  # for emulators: a configuration cannot say it
_TAG = re.compile(r'(?:W/)?("[^"]*")|([^"]+)')
VERSION_INDEX = {name: index for index, name in enumerate(VERSIONS)}


@dataclass(slots=True)
class Request:
    """One request as it came over the wire; header names are lower-case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    http_1_0: bool = False
    keep_alive: bool = True
    too_large: bool = False
    proxied: bool = False

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass(frozen=True, slots=True)
class Response:
    """Ready to send; `extra` are header lines. `enables`: every check before the body was passed."""

    status: int
    body: bytes = b""
    extra: tuple[bytes, ...] = ()
    content_type: bytes = b"application/json; charset=utf-8"
    enables: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """A GET or HEAD of the document; `version` is an index into the version table."""

    version: int
    if_none_match: str | None
    wait_s: int


@dataclass(frozen=True, slots=True)
class Approve:
    """StartRequests, well-formed; the ids are still to be judged by the core."""

    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """What a machine is told about itself."""

    name: str
    scope: str
    placement_group: bool
    update_domain: int
    fault_domain: int


def error(status: int, message: str, *extra: bytes, **more: object) -> Response:
    return Response(status, msgspec.json.encode({"error": message, **more}), extra)


NOT_FOUND = error(404, "Not found")
TOO_MANY = error(429, "Too many requests", b"Retry-After: 1")
TOO_LARGE = error(413, "Payload too large")
HEADERS_TOO_LARGE = error(431, "Request header fields too large")
MALFORMED = error(400, "Bad request")
UNAVAILABLE = error(503, "Service unavailable", b"Retry-After: 1")
RELAYED = error(400, "Bad request. The request was relayed")
_NOT_ALLOWED = error(405, "Method not allowed", b"Allow: GET, HEAD, POST")
_READ_ONLY = error(405, "Method not allowed", b"Allow: GET, HEAD")
_DUPLICATE = error(400, "Bad request. Duplicate query parameter")
_NO_METADATA = error(400, "Bad request. Required metadata header not specified")
_NO_VERSION = error(
    400,
    "Bad request. api-version is invalid or was not specified in the request.",
    **{"newest-versions": NEWEST_VERSIONS},
)
_LATER_VERSION = error(404, "Not found. api-version is not available")
_VERSIONS = Response(200, msgspec.json.encode({"apiVersions": list(VERSIONS)}))


def decide(
    request: Request, instance: Callable[[], Instance], allowed_hosts: Collection[str]
) -> Response | Poll | Approve:
    """What a known machine, within its rate, is answered."""
    path, _, query = request.target.partition("?")
    path = path.lower()
    if path != SCHEDULED_EVENTS and path != "/metadata/versions" and path.rstrip("/") not in _INSTANCE:
        return NOT_FOUND
    methods = ("GET", "HEAD", "POST") if path == SCHEDULED_EVENTS else ("GET", "HEAD")
    if request.method not in methods:
        return _NOT_ALLOWED if path == SCHEDULED_EVENTS else _READ_ONLY
    refused = _relayed(request, allowed_hosts)
    if refused is not None:
        return refused
    parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=None)
    names = [name.lower() for name, _ in parameters]
    if len(names) > MAX_QUERY_PARAMETERS:
        return MALFORMED
    if len(names) != len(set(names)):
        return _DUPLICATE
    asked = dict(zip(names, (value for _, value in parameters), strict=True))
    if not _told_metadata(request, path, asked):
        return _NO_METADATA
    if request.too_large and path != SCHEDULED_EVENTS:
        return TOO_LARGE
    if path == "/metadata/versions":
        return _VERSIONS
    if path != SCHEDULED_EVENTS:
        return _instance(path.rstrip("/"), asked, instance())
    return _scheduled_events(request, asked)


def _relayed(request: Request, allowed_hosts: Collection[str]) -> Response | None:
    """Whoever was tricked into passing a request on leaves traces of it."""
    names = {name for name, _ in request.headers}
    if not request.proxied and ("x-forwarded-for" in names or any(n.startswith("x-instance-id") for n in names)):
        return RELAYED
    if "origin" in names or "sec-fetch-site" in names:
        return RELAYED
    hosts = request.values("host")
    if len(hosts) > 1 or not (hosts or request.http_1_0):
        return MALFORMED
    return None if not hosts or _own_host(hosts[0], allowed_hosts) else RELAYED


def _own_host(host: str, allowed_hosts: Collection[str]) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name, six = found["name"] or "", found["six"] or ""
    if name.lower() == "localhost" or name.lower() in allowed_hosts or ANY_HOST in allowed_hosts:
        return True
    try:
        return bool(ipaddress.IPv6Address(six) if six else ipaddress.IPv4Address(name))
    except ValueError:
        return False


def _told_metadata(request: Request, path: str, asked: dict[str, str]) -> bool:
    # "Metadata header requirement enforced for all requests" came with 2017-08-01: older POSTs go without.
    if request.method == "POST" and path == SCHEDULED_EVENTS and asked.get("api-version") == "2017-03-01":
        return True
    values = {value.lower() for value in request.values("metadata")}
    return values == {"true"}


def _scheduled_events(request: Request, asked: dict[str, str]) -> Response | Poll | Approve:
    try:
        version = VERSION_INDEX[api_version(asked.get("api-version")).name]
    except NotFound:
        return _LATER_VERSION
    except Invalid:
        return _NO_VERSION
    if request.too_large:
        return replace(TOO_LARGE, enables=True)
    if request.method == "POST":
        try:
            return Approve(parse_start_requests(request.body))
        except Invalid as wrong:
            return replace(error(400, str(wrong)), enables=True)
    tags = request.values("if-none-match")
    wait_s = 0 if request.method == "HEAD" else _asked_wait_s(request)
    return Poll(version, tags[0] if len(tags) == 1 else None, wait_s)


def _asked_wait_s(request: Request) -> int:
    """`Prefer: wait=N` (RFC 7240): "N clamped to 1..60, 0 or unparsable ignored"."""
    for value in request.values("prefer"):
        for preference in value.split(","):
            found = _WAIT.fullmatch(preference.strip().lower())
            if found:
                return min(int(found[1][:MAX_WAIT_DIGITS]), MAX_WAIT_S)
    return 0


def plain_tag(if_none_match: str | None) -> str | None:
    """As our tags are written, given "quoted, weak or bare"; None for what can be none of them."""
    found = None if if_none_match is None else _TAG.fullmatch(if_none_match)
    return found and (found[1] or f'"{found[2]}"')


def matches(if_none_match: str | None, etag: str) -> bool:
    return plain_tag(if_none_match) == etag


_INSTANCE = ("/metadata/instance", "/metadata/instance/compute", "/metadata/instance/compute/name")


def _instance(path: str, asked: dict[str, str], me: Instance) -> Response:
    if not _DATE.fullmatch(asked.get("api-version", "")):
        return _NO_VERSION
    group = me.scope if me.placement_group else ""
    compute = {
        "name": me.name,
        "resourceGroupName": me.scope,
        "vmScaleSetName": group,
        "placementGroupId": group,
        "platformUpdateDomain": str(me.update_domain),
        "platformFaultDomain": str(me.fault_domain),
    }
    if path == _INSTANCE[0]:
        return Response(200, msgspec.json.encode({"compute": compute}))
    if path == _INSTANCE[1]:
        return Response(200, msgspec.json.encode(compute))
    if asked.get("format", "").lower() == "text":
        return Response(200, me.name.encode(), content_type=b"text/plain; charset=utf-8")
    return Response(200, msgspec.json.encode(me.name))
