"""A call of the table, made: found, allowed to whoever asks, read and done. The same for HTTP and for the portal.

Who asks is known already; nothing here knows where the words came from.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, get_args, get_origin

import msgspec

from forewarn.core.errors import Forbidden, Invalid, MethodNotAllowed, NotFound, Unprocessable
from forewarn.core.fleet import parse_fleet
from forewarn.operator.api import bodies
from forewarn.operator.api.access import Identity
from forewarn.operator.api.calls import CALLS, MAX_KEY_CHARS, Call
from forewarn.operator.api.context import TOML, Api, CallContext, Result
from forewarn.service.control import Answered

STREAM = "/v1/stream"
Table = Sequence[tuple["re.Pattern[str]", Call]]
PRINTABLE = re.compile(r"[\x21-\x7e]+")


# -- which call


def _pattern(path: str) -> "re.Pattern[str]":
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


def table_of(calls: Iterable[Call]) -> Table:
    return [(_pattern(call.path), call) for call in calls]


TABLE = table_of(CALLS)


def find(method: str, path: str, who: Identity, table: Table = TABLE) -> tuple[Call, dict[str, str]]:
    """The call, if the caller's role may make it: 403 comes before 404 and 405 tell more."""
    found = [(call, match.groupdict()) for pattern, call in table if (match := pattern.fullmatch(path))]
    if path == STREAM and method != "GET":
        raise MethodNotAllowed("the stream is read with GET", allow="GET")
    for call, names in found:
        if call.method == ("GET" if method == "HEAD" else method):
            if who.role not in call.roles:
                raise Forbidden(f"a token with the role {who.role} may not do this: it takes {_either(call.roles)}")
            if "scope" in names:
                who.require_scope(names["scope"])
            return call, names
    if not found:
        raise NotFound(f"there is no {path}: the calls are at /v1/docs")
    allowed = ", ".join(sorted({call.method for call, _ in found}))
    raise MethodNotAllowed(f"this takes {allowed}, not {method}", allow=allowed)


def _either(roles: Any) -> str:
    return " or ".join(sorted(roles))


# -- what it says


def read_key(call: Call, key: str | None) -> str:
    if key is None or not call.creates:
        return ""
    if len(key) > MAX_KEY_CHARS or not PRINTABLE.fullmatch(key):
        raise Invalid(f"Idempotency-Key: use 1 to {MAX_KEY_CHARS} printable characters without blanks")
    return key


def read_query(call: Call, items: Iterable[tuple[str, str]]) -> Any:
    said: dict[str, Any] = {}
    lists = {f.name for f in msgspec.structs.fields(call.query) if get_origin(f.type) is tuple}
    for name, value in items:
        if name in lists:
            said.setdefault(name, []).append(value)
        elif name in said:
            raise Invalid(f"{name}: given twice; once is enough")
        else:
            said[name] = value
    try:
        return msgspec.convert(said, call.query, strict=False)
    except msgspec.ValidationError as error:
        raise Unprocessable(_sentence(error, "parameter", call.query)) from None


def read_body(call: Call, body: bytes, content_type: str) -> Any:
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
        if not body and not call.takes_nothing_too:
            raise Invalid("body: it is missing; see /v1/docs for what this call takes")
        return msgspec.json.decode(body or b"{}", type=call.takes)
    except msgspec.ValidationError as error:
        raise Unprocessable(_sentence(error, "body", call.takes) + hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"body: this is not JSON: {error}{hint}") from None


def _sentence(error: msgspec.ValidationError, what: str, shape: Any) -> str:
    """msgspec says `Expected `int`, got `str` - at `$.duration_s``: the place first, for people, and what it may be."""
    message, _, place = str(error).partition(" - at ")
    place = place.replace("`", "").replace("$.", "").removeprefix("$")
    hint = "see /v1/docs for what it takes"
    if "enum value" in message:
        types = {field.name: field.type for field in msgspec.structs.fields(shape)}
        hint = f"use one of {', '.join(choices)}" if (choices := _choices(types.get(place.partition("[")[0]))) else hint
    return f"{place or what}: {message[:1].lower()}{message[1:]}; {hint}"


def _choices(type_: Any) -> list[str]:
    if isinstance(type_, type) and issubclass(type_, Enum):
        return [str(each.value) for each in type_]
    return next((found for each in get_args(type_) if (found := _choices(each))), [])


# -- doing it


def do(api: Api, call: Call, context: CallContext) -> Result:
    """Done, or told again what was answered before: that comes before anything that may have changed since."""
    try:
        if not getattr(context.query, "dry_run", False):
            api.control.refuse_repetition(context.once)
        return call.do(api, context)
    except Answered as before:
        # Another node may have done it: "a node that answered a write has applied it first".
        api.catch_up()
        receipt = before.receipt
        return call.repeat(context, receipt.body) if call.repeat else Result(receipt.status, receipt.body.encode())
