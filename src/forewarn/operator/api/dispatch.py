"""Make a call of the table: find it, check that the caller may make it, read its parameters and body, perform it.

HTTP and the portal both come through here. The caller is already identified; nothing here knows a transport.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_origin

import msgspec

from forewarn.core.errors import Forbidden, Invalid, MethodNotAllowed, NotFound, Unprocessable
from forewarn.core.fleet import parse_fleet
from forewarn.operator.api import bodies
from forewarn.operator.api.access import Identity
from forewarn.operator.api.calls import CALLS, MAX_KEY_CHARS, Call
from forewarn.operator.api.context import CONTROL, TOML, Api, CallContext, Result
from forewarn.operator.api.not_found_hints import hint
from forewarn.operator.api.validation_errors import sentence
from forewarn.service.decisions import RepeatedRequest

STREAM = "/v1/stream"
Table = Sequence[tuple["re.Pattern[str]", Call]]
PRINTABLE = re.compile(r"[\x21-\x7e]+")


# -- finding the call


def table_of(calls: Iterable[Call]) -> Table:
    return [(re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", call.path)), call) for call in calls]


TABLE = table_of(CALLS)


def find_call(method: str, path: str, caller: Identity, table: Table = TABLE) -> tuple[Call, dict[str, str]]:
    """Return the call and the names in its path. A caller whose role may not make it learns nothing else about it."""
    matches = [(call, match.groupdict()) for pattern, call in table if (match := pattern.fullmatch(path))]
    if path == STREAM and method != "GET":
        raise MethodNotAllowed("the stream is read with GET", allow="GET")
    for call, names in matches:
        if call.method == ("GET" if method == "HEAD" else method):
            if caller.role not in call.roles:
                raise Forbidden(
                    f"the role {caller.role} may not make this call: it needs {' or '.join(sorted(call.roles))}"
                )
            if "scope" in names:
                caller.require_scope(names["scope"])
            return call, names
    if not matches:
        raise NotFound(f"there is no {path}: the calls are at /v1/docs")
    allowed = ", ".join(sorted({call.method for call, _ in matches}))
    raise MethodNotAllowed(f"this takes {allowed}, not {method}", allow=allowed)


# -- reading the request


def read_key(call: Call, key: str | None) -> str:
    if key is None or not call.creates:
        return ""
    if len(key) > MAX_KEY_CHARS or not PRINTABLE.fullmatch(key):
        raise Invalid(f"Idempotency-Key: use 1 to {MAX_KEY_CHARS} printable characters without blanks")
    return key


def read_query(call: Call, items: Iterable[tuple[str, str]]) -> Any:
    values: dict[str, Any] = {}
    lists = {f.name for f in msgspec.structs.fields(call.query) if get_origin(f.type) is tuple}
    for name, value in items:
        if CONTROL.search(value.strip()):
            raise Invalid(f"{name}: it contains a control character: write plain text")
        if name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Invalid(f"{name}: given twice; once is enough")
        else:
            values[name] = value
    try:
        return msgspec.convert(values, call.query, strict=False)
    except msgspec.ValidationError as error:
        raise Unprocessable(sentence(error, call.query, whole="parameter")) from None


def read_body(call: Call, body: bytes, content_type: str) -> Any:
    """Decode the body of an HTTP request."""
    if call.takes is None:
        if body.strip() not in (b"", b"{}"):
            raise Invalid("this call takes no body: leave it out")
        return None
    if call.takes is bodies.Fleet and content_type.partition(";")[0].strip().lower() == TOML:
        try:
            return parse_fleet(body.decode(), "the fleet")
        except UnicodeDecodeError as error:
            raise Invalid(f"the fleet: this is not UTF-8 text: {error}") from None
    hint = f"; a fleet file goes with Content-Type: {TOML}" if call.takes is bodies.Fleet else ""
    try:
        if not body and not call.body_optional:
            raise Invalid("body: it is missing; see /v1/docs for what this call takes")
        return msgspec.json.decode(body or b"{}", type=call.takes)
    except msgspec.ValidationError as error:
        raise Unprocessable(sentence(error, call.takes, whole="body") + hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"body: this is not JSON: {error}{hint}") from None


def convert_body(call: Call, body: object) -> Any:
    """Check a body that is already in this process: the call's own type, or a mapping of its fields."""
    if call.takes is None:
        if body is not None:
            raise Invalid("this call takes no body: leave it out")
        return None
    if isinstance(body, call.takes):
        return body
    try:
        return msgspec.convert({} if body is None else body, call.takes)
    except msgspec.ValidationError as error:
        raise Unprocessable(sentence(error, call.takes, whole="body")) from None


# -- performing it


def why_not(api: Api, call: Call, caller: Identity, names: Mapping[str, str]) -> str:
    """Return why the caller may not make the call on the event that the path names, or ""."""
    return call.why_not(caller, api.event(caller, names["id"])) if call.why_not else ""


def perform(api: Api, call: Call, context: CallContext) -> Result:
    """Perform the call. A request that was answered before gets the saved response, whatever has changed since."""
    try:
        if not getattr(context.query, "dry_run", False):
            api.control.refuse_repetition(context.once())
        if why := why_not(api, call, context.caller, context.path):
            raise Forbidden(why)
        return call.perform(api, context)
    except NotFound as error:
        raise NotFound(f"{error}{hint(api, call.path, context, error)}", scope=error.scope) from None
    except RepeatedRequest as repeated:
        # Another node may have made the change. This node must apply it before it answers.
        api.catch_up()
        receipt = repeated.receipt
        return call.repeat(context, receipt.body) if call.repeat else Result(receipt.status, receipt.body.encode())
