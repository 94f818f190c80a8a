"""The API on HTTP: identify the caller, find the call, read the request, perform it. Every error has one shape.

Calls run in threads: the event loop only reads, writes and waits.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp

from forewarn.core.errors import (
    ForewarnError,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    TooManyAttempts,
    TooSlow,
    Unauthorized,
)
from forewarn.operator.api import bodies
from forewarn.operator.api.access import Access, Identity
from forewarn.operator.api.calendar import CALENDAR, calendar_of, token_in
from forewarn.operator.api.calls import CALLS, Call
from forewarn.operator.api.context import HEADERS, JSON, Api, CallContext, Result, request_digest
from forewarn.operator.api.dispatch import STREAM, Table, find_call, perform, read_body, read_key, read_query, table_of
from forewarn.operator.api.failed_attempts import FAILURES_WITHIN_S
from forewarn.operator.api.openapi import openapi
from forewarn.operator.api.request_shares import RequestShares
from forewarn.operator.api.stream import Streams
from forewarn.operator.request_path import path_of, target_of

READ_WITHIN_S = 60.0
CALENDAR_FRESH_S = 300
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
DOCS = {
    "/v1/docs": ("docs.html", "text/html; charset=utf-8"),
    "/v1/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/v1/docs.css": ("docs.css", "text/css; charset=utf-8"),
}

log = logging.getLogger("forewarn.api")


def api_routes(
    api: Api,
    access: Access,
    streams: Streams,
    calls: Sequence[Call] = CALLS,
    *,
    shares: RequestShares,
    no_page: Callable[[Request], Awaitable[Response]],
) -> tuple[list[Route], ASGIApp]:
    """Return the pages that need no token, which describe the API, and the application for every other path.

    `no_page` makes the page for a browser that requests a path that does not exist.
    """
    table = table_of(calls)

    @cache
    def description() -> bytes:
        """Make the description when it is first requested: most services never need it."""
        return msgspec.json.encode(openapi(calls))

    async def openapi_json(_: Request) -> Response:
        return Response(description(), media_type=JSON, headers=HEADERS)

    async def docs(request: Request) -> Response:
        name, media_type = DOCS[path_of(request)]
        page = (files("forewarn.operator.api") / name).read_bytes()
        return Response(page, media_type=media_type, headers=HEADERS | {"content-security-policy": DOCS_POLICY})

    async def any_path(request: Request) -> Response:
        try:
            if not path_of(request).startswith("/v1/"):
                if "text/html" in request.headers.get("accept", ""):
                    return await no_page(request)
                raise NotFound(f"there is no {path_of(request)}: the API is at /v1/docs")
            peer = request.client.host if request.client else ""
            if path_of(request) == CALENDAR:
                return await run_in_threadpool(_calendar, request, api, access, shares, peer)
            caller = await run_in_threadpool(access.identify, request.headers, peer)
            if path_of(request) == STREAM and request.method == "GET":
                return await streams.respond(request, caller, lambda: access.still_known(caller))
            with shares.take(caller):
                return await _respond(request, api, access, caller, table)
        except ForewarnError as error:
            return _error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("a call of the API failed: %s %s", request.method, path_of(request))
            return _error(500, "internal", "the service failed: its log says why")

    pages = [Route("/v1/openapi.json", openapi_json), *(Route(path, docs) for path in DOCS)]
    return pages, request_response(any_path)


async def _respond(request: Request, api: Api, access: Access, caller: Identity, table: Table) -> Response:
    call, names = find_call(request.method, path_of(request), caller, table)
    query = read_query(call, request.query_params.multi_items())
    key = read_key(call, request.headers.get("idempotency-key"))
    body = await read_bytes(request, call.max_bytes)
    access.check_body(body, request.headers.get("content-type", ""))
    context = CallContext(
        caller=caller,
        path=names,
        query=query,
        body=await run_in_threadpool(read_body, call, body, request.headers.get("content-type", "")),
        key=key,
        digest=request_digest(request.method, target_of(request), body),
        accept=request.headers.get("accept", JSON),
    )

    def perform_and_encode() -> tuple[Result, bytes]:
        result = perform(api, call, context)
        return result, result.encoded()

    result, content = await run_in_threadpool(perform_and_encode)
    if request.method not in ("GET", "HEAD"):
        log.info(
            "%s %s: %d, by %s from %s", request.method, path_of(request), result.status, caller.name, caller.origin
        )
    return Response(
        content,
        result.status,
        media_type=result.content_type if result.status != 204 else None,
        headers=HEADERS,
    )


def _calendar(request: Request, api: Api, access: Access, shares: RequestShares, peer: str) -> Response:
    """Return the calendar. Its token is in the query, which nothing logs."""
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed("the calendar is read with GET", allow="GET")
    caller = access.identify_calendar(token_in(request.scope["query_string"]), request.headers, peer)
    with shares.take(caller):
        content = calendar_of(api.store, caller.within, api.clock.now())
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = HEADERS | {"cache-control": f"private, max-age={CALENDAR_FRESH_S}", "etag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="text/calendar; charset=utf-8", headers=headers)


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """Read the body within the limits on size and time; refuse one whose Content-Length is too large unread."""
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


# -- errors


def _error_response(error: ForewarnError) -> Response:
    extra = {"www-authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    if isinstance(error, MethodNotAllowed):
        extra = {"allow": error.allow}
    if isinstance(error, TooManyAttempts):
        extra = {"retry-after": f"{FAILURES_WITHIN_S:.0f}"}
    if error.status == 503:
        extra = {"retry-after": "1"}
    return _error(error.status, error.code, str(error), extra)


def _error(status: int, code: str, message: str, extra: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode(bodies.Error(error=bodies.Problem(code=code, message=message)))
    return Response(body, status, media_type=JSON, headers=HEADERS | dict(extra or {}))
