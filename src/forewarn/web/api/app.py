"""The API on HTTP: who asks comes first, then where, then what; every answer and every error has one shape.

The work itself runs in threads: the event loop only reads, writes and waits.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, get_args, get_origin

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.control import Answered
from forewarn.core.errors import (
    Forbidden,
    ForewarnError,
    Invalid,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    TooSlow,
    Unauthorized,
    Unprocessable,
)
from forewarn.core.fleet import parse_fleet
from forewarn.web.api import shapes
from forewarn.web.api.access import Access, Asking
from forewarn.web.api.asked import JSON, TOML, Answer, Api, Ask, request_digest
from forewarn.web.api.calls import CALLS, MAX_KEY_CHARS, Call
from forewarn.web.api.openapi import openapi
from forewarn.web.api.stream import Streams

READ_WITHIN_S = 60.0
WRITE_WITHIN_S = 60.0
STREAM = "/v1/stream"
PRINTABLE = re.compile(r"[\x21-\x7e]+")
DOCS_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'"
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
DOCS = {
    "/v1/docs": ("docs.html", "text/html; charset=utf-8"),
    "/v1/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/v1/docs.css": ("docs.css", "text/css; charset=utf-8"),
}

Table = Sequence[tuple["re.Pattern[str]", Call]]

log = logging.getLogger("forewarn.api")


def api_routes(
    api: Api, access: Access, streams: Streams, calls: Sequence[Call] = CALLS
) -> tuple[list[Route], ASGIApp]:
    """The pages everybody may read, for what the API is like is no secret, and what answers everything else."""
    table = [(_pattern(call.path), call) for call in calls]

    @cache
    def described() -> bytes:
        """When it is first asked for: most services, and nearly all emulators, never are."""
        return msgspec.json.encode(openapi(calls))

    async def description(request: Request) -> Response:
        del request
        return Response(described(), media_type=JSON, headers=HEADERS)

    async def docs(request: Request) -> Response:
        name, media_type = DOCS[request.url.path]
        page = (files("forewarn.web.api") / name).read_bytes()
        return Response(page, media_type=media_type, headers=HEADERS | {"content-security-policy": DOCS_POLICY})

    async def everything(request: Request) -> Response:
        try:
            if not request.url.path.startswith("/v1/"):
                raise NotFound(f"there is no {request.url.path}: the API is at /v1/docs")
            return await _answer(request, api, access, streams, table)
        except ForewarnError as error:
            return _told(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("a call of the API failed: %s %s", request.method, request.url.path)
            return _error(500, "internal", "something went wrong on our side: the log of the service says what")

    pages = [Route("/v1/openapi.json", description), *(Route(path, docs) for path in DOCS)]
    return pages, request_response(everything)


async def _answer(request: Request, api: Api, access: Access, streams: Streams, table: Table) -> Response:
    peer = request.client.host if request.client else ""
    who = await run_in_threadpool(access.identify, request.headers, peer)
    if request.url.path == STREAM and request.method == "GET":
        return await _stream(request, who, access, streams)
    call, path = _find(table, request.method, request.url.path, who)
    if "scope" in path:
        who.require_scope(path["scope"])
    query = _query(call, request)
    key = _key(call, request.headers)
    body = await _body(request, call.max_bytes)
    target = f"{request.url.path}?{request.url.query}"
    ask = Ask(
        who=who,
        path=path,
        query=query,
        body=await run_in_threadpool(_said, call, body, request.headers.get("content-type", "")),
        key=key,
        digest=request_digest(request.method, target, body),
        accept=request.headers.get("accept", JSON),
    )
    answer = await run_in_threadpool(_done, api, call, ask)
    if request.method not in ("GET", "HEAD"):
        log.info("%s %s: %d, by %s from %s", request.method, request.url.path, answer.status, who.name, who.origin)
    return Response(
        answer.body,
        answer.status,
        media_type=answer.content_type if answer.status != 204 else None,
        headers=HEADERS,
    )


def _done(api: Api, call: Call, ask: Ask) -> Answer:
    """Done, or told again what was answered before: that comes before anything that may have changed since."""
    try:
        if not getattr(ask.query, "dry_run", False):
            api.control.refuse_repetition(ask.once)
        return call.do(api, ask)
    except Answered as before:
        receipt = before.receipt
        return call.repeat(ask, receipt.body) if call.repeat else Answer(receipt.status, receipt.body.encode())


# -- which call


def _pattern(path: str) -> "re.Pattern[str]":
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


def _find(table: Table, method: str, path: str, who: Asking) -> tuple[Call, dict[str, str]]:
    """The call, if the caller's role may make it: 403 comes before 404 and 405 tell more."""
    found = [(call, match.groupdict()) for pattern, call in table if (match := pattern.fullmatch(path))]
    if path == STREAM and method != "GET":
        raise MethodNotAllowed("the stream is read with GET", allow="GET")
    for call, names in found:
        if call.method == ("GET" if method == "HEAD" else method):
            if who.role not in call.roles:
                raise Forbidden(f"a token with the role {who.role} may not do this: it takes {_either(call.roles)}")
            return call, names
    if not found:
        raise NotFound(f"there is no {path}: the calls are at /v1/docs")
    allowed = ", ".join(sorted({call.method for call, _ in found}))
    raise MethodNotAllowed(f"this takes {allowed}, not {method}", allow=allowed)


def _either(roles: Any) -> str:
    return " or ".join(sorted(roles))


# -- what it says


def _key(call: Call, headers: Mapping[str, str]) -> str:
    key = headers.get("idempotency-key") if call.creates else None
    if key is None:
        return ""
    if len(key) > MAX_KEY_CHARS or not PRINTABLE.fullmatch(key):
        raise Invalid(f"Idempotency-Key: use 1 to {MAX_KEY_CHARS} printable characters without blanks")
    return key


def _query(call: Call, request: Request) -> Any:
    said: dict[str, Any] = {}
    lists = {f.name for f in msgspec.structs.fields(call.query) if get_origin(f.type) is tuple}
    for name, value in request.query_params.multi_items():
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


async def _body(request: Request, max_bytes: int) -> bytes:
    """Within the limits on size and time; what is too large is refused before it is read, where it says so."""
    claimed = request.headers.get("content-length", "0")
    if claimed.isdigit() and int(claimed) > max_bytes:
        raise TooLarge(f"the body is {claimed} bytes: at most {max_bytes} are taken")
    body = bytearray()
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise TooLarge(f"the body is more than {max_bytes} bytes long")
    except TimeoutError:
        raise TooSlow(f"the body was not complete within {READ_WITHIN_S:g} s") from None
    return bytes(body)


def _said(call: Call, body: bytes, content_type: str) -> Any:
    if call.takes is None:
        if body.strip() not in (b"", b"{}"):
            raise Invalid("this call takes no body: leave it out")
        return None
    if call.takes is shapes.Fleet and content_type.partition(";")[0].strip().lower() == TOML:
        try:
            return parse_fleet(body.decode(), "the fleet")
        except UnicodeDecodeError as error:
            raise Invalid(f"the fleet: this is not UTF-8 text: {error}") from None
    hint = f"; a fleet file goes with Content-Type: {TOML}" if call.takes is shapes.Fleet else ""
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


# -- errors


def _told(error: ForewarnError) -> Response:
    extra = {"www-authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    if isinstance(error, MethodNotAllowed):
        extra = {"allow": error.allow}
    if error.status == 503:
        extra = {"retry-after": "1"}
    return _error(error.status, error.code, str(error), extra)


def _error(status: int, code: str, message: str, extra: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode(shapes.Error(error=shapes.Problem(code=code, message=message)))
    return Response(body, status, media_type=JSON, headers=HEADERS | dict(extra or {}))


# -- the stream


async def _stream(request: Request, who: Asking, access: Access, streams: Streams) -> Response:
    last = request.headers.get("last-event-id", "")
    if last and not (last.isascii() and last.isdecimal() and len(last) < 19):
        raise Invalid(f"Last-Event-ID: {last[:40]!r} is not the id of an entry: use the last one you were sent")
    if request.query_params:
        raise Invalid("the stream takes no parameters: say where to begin with Last-Event-ID")
    lines, give_up = await streams.open(who, int(last) if last else None, lambda: access.still_known(who))
    return Timely(lines, give_up)


class Timely(StreamingResponse):
    """A stream whose place is given up however it ends; a reader that does not read loses it."""

    def __init__(self, lines: AsyncIterator[bytes], give_up: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers=HEADERS)
        self._give_up = give_up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_up()

    async def stream_response(self, send: Send) -> None:
        async def timely(message: Message) -> None:
            async with asyncio.timeout(WRITE_WITHIN_S):
                await send(message)

        with suppress(TimeoutError):
            await super().stream_response(timely)
