"""The guest contract as a function from a parsed request and its sender to a decision. No sockets, no waiting.

Owns every error in docs/reference/protocol.md and the order of the checks: caller, rate, path, method, relay, duplicate
parameter, header, version, body. The exchange checks the caller and its rate, before it calls `decide`.
"""

import ipaddress
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from urllib.parse import parse_qsl

import msgspec

from forewarn.core.document import VERSIONS, api_version, parse_start_requests
from forewarn.core.errors import Invalid, NotFound
from forewarn.core.fast_init import fast_init
from forewarn.core.lazy_dataclass import dataclass

SCHEDULED_EVENTS = "/metadata/scheduledevents"
NEWEST_VERSIONS = list(VERSIONS)[:-4:-1]
MAX_QUERY_PARAMETERS = 32
MAX_WAIT_S = 60
MAX_WAIT_DIGITS = 9
_DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_WAIT = re.compile(r"wait=0*([1-9][0-9]*)")
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]{0,5})?")
# Headers of proxies. Only a trusted proxy may add them, to a request that it signs.
_PROXY_HEADERS = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
ANY_HOST = "*"  # for emulators: no configuration may contain it
_TAG = re.compile(r'(?:W/)?("[^"]*")|([^"]+)')
VERSION_INDEX = {name: index for index, name in enumerate(VERSIONS)}


@dataclass(slots=True)
class Request:
    """One request as it was received; header names are lower-case."""

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


@fast_init
@dataclass(frozen=True, slots=True)
class Response:
    """A response; `extra` are header lines. `enables`: only the body is wrong, so the request still enables the scope."""

    status: int
    body: bytes = b""
    extra: tuple[bytes, ...] = ()
    content_type: bytes = b"application/json; charset=utf-8"
    enables: bool = False


@fast_init
@dataclass(frozen=True, slots=True)
class Poll:
    """A GET or HEAD of the document; `version` is an index into the version table."""

    version: int
    if_none_match: str | None
    wait_s: int


@dataclass(frozen=True, slots=True)
class Approve:
    """Well-formed StartRequests; the core has still to check the ids."""

    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """What a machine may learn about itself."""

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
    """Decide how to answer a known machine that is within its rate."""
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
    pairs = _query_pairs(query)
    if len(pairs) > MAX_QUERY_PARAMETERS:
        return MALFORMED
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        return _DUPLICATE
    if not _has_metadata_header(request, path, parameters):
        return _NO_METADATA
    if request.too_large and path != SCHEDULED_EVENTS:
        return TOO_LARGE
    if path == "/metadata/versions":
        return _VERSIONS
    if path != SCHEDULED_EVENTS:
        return _instance_response(path.rstrip("/"), parameters, instance())
    return _scheduled_events(request, parameters)


@lru_cache(maxsize=16)  # all guests send the same few
def _query_pairs(query: str) -> list[tuple[str, str]]:
    """Return the names of a query's parameters, in lower case, and their values."""
    return [(name.lower(), value) for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=None)]


def _relayed(request: Request, allowed_hosts: Collection[str]) -> Response | None:
    """Return the response to a request that shows traces of a relay, or has no valid Host; else None."""
    names = {name for name, _ in request.headers}
    if not request.proxied and (names & _PROXY_HEADERS or any(n.startswith("x-instance-id") for n in names)):
        return RELAYED
    if "origin" in names or "sec-fetch-site" in names:
        return RELAYED
    hosts = request.values("host")
    if len(hosts) > 1 or not (hosts or request.http_1_0):
        return MALFORMED
    return None if not hosts or _own_host(hosts[0], allowed_hosts) else RELAYED


def _own_host(host: str, allowed_hosts: Collection[str]) -> bool:
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name, ipv6 = match["name"] or "", match["ipv6"] or ""
    if name.lower() == "localhost" or name.lower() in allowed_hosts or ANY_HOST in allowed_hosts:
        return True
    try:
        return bool(ipaddress.IPv6Address(ipv6) if ipv6 else ipaddress.IPv4Address(name))
    except ValueError:
        return False


def _has_metadata_header(request: Request, path: str, parameters: dict[str, str]) -> bool:
    # "Metadata header requirement enforced for all requests" came with 2017-08-01: older POSTs may omit it.
    if request.method == "POST" and path == SCHEDULED_EVENTS and parameters.get("api-version") == "2017-03-01":
        return True
    values = {value.lower() for value in request.values("metadata")}
    return values == {"true"}


def _scheduled_events(request: Request, parameters: dict[str, str]) -> Response | Poll | Approve:
    try:
        version = VERSION_INDEX[api_version(parameters.get("api-version")).name]
    except NotFound:
        return _LATER_VERSION
    except Invalid:
        return _NO_VERSION
    if request.too_large:
        return replace(TOO_LARGE, enables=True)
    if request.method == "POST":
        try:
            return Approve(parse_start_requests(request.body))
        except Invalid as invalid:
            return replace(error(400, str(invalid)), enables=True)
    tags = request.values("if-none-match")
    wait_s = 0 if request.method == "HEAD" else _preferred_wait_s(request)
    return Poll(version, tags[0] if len(tags) == 1 else None, wait_s)


def _preferred_wait_s(request: Request) -> int:
    """Return N of `Prefer: wait=N` (RFC 7240): "N clamped to 1..60, 0 or unparsable ignored"."""
    for value in request.values("prefer"):
        for preference in value.split(","):
            match = _WAIT.fullmatch(preference.strip().lower())
            if match:
                return min(int(match[1][:MAX_WAIT_DIGITS]), MAX_WAIT_S)
    return 0


def plain_tag(if_none_match: str | None) -> str | None:
    """Return a tag, given "quoted, weak or bare", as we write tags; None if it is none of these."""
    match = None if if_none_match is None else _TAG.fullmatch(if_none_match)
    return match and (match[1] or f'"{match[2]}"')


def matches(if_none_match: str | None, etag: str) -> bool:
    return plain_tag(if_none_match) == etag


_INSTANCE = ("/metadata/instance", "/metadata/instance/compute", "/metadata/instance/compute/name")


def _instance_response(path: str, parameters: dict[str, str], instance: Instance) -> Response:
    if not _DATE.fullmatch(parameters.get("api-version", "")):
        return _NO_VERSION
    group = instance.scope if instance.placement_group else ""
    compute = {
        "name": instance.name,
        "resourceGroupName": instance.scope,
        "vmScaleSetName": group,
        "placementGroupId": group,
        "platformUpdateDomain": str(instance.update_domain),
        "platformFaultDomain": str(instance.fault_domain),
    }
    if path == _INSTANCE[0]:
        return Response(200, msgspec.json.encode({"compute": compute}))
    if path == _INSTANCE[1]:
        return Response(200, msgspec.json.encode(compute))
    if parameters.get("format", "").lower() == "text":
        return Response(200, instance.name.encode(), content_type=b"text/plain; charset=utf-8")
    return Response(200, msgspec.json.encode(instance.name))
