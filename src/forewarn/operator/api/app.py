"""The API on HTTP: who asks comes first, then where, then what; every answer and every error has one shape.

The work itself runs in threads: the event loop only reads, writes and waits.
"""

import asyncio
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
    TooSlow,
    Unauthorized,
)
from forewarn.operator.api import bodies
from forewarn.operator.api.access import Access
from forewarn.operator.api.calls import CALLS, Call
from forewarn.operator.api.context import HEADERS, JSON, Api, CallContext, request_digest
from forewarn.operator.api.dispatch import STREAM, Table, do, find, read_body, read_key, read_query, table_of
from forewarn.operator.api.openapi import openapi
from forewarn.operator.api.stream import Streams

READ_WITHIN_S = 60.0
DOCS_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'"
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
    no_page: Callable[[Request], Awaitable[Response]],
) -> tuple[list[Route], ASGIApp]:
    """The pages everybody may read, for what the API is like is no secret, and what answers everything else.

    `no_page` tells a browser that there is no such page.
    """
    table = table_of(calls)

    @cache
    def described() -> bytes:
        """When it is first asked for: most services, and nearly all emulators, never are."""
        return msgspec.json.encode(openapi(calls))

    async def description(request: Request) -> Response:
        del request
        return Response(described(), media_type=JSON, headers=HEADERS)

    async def docs(request: Request) -> Response:
        name, media_type = DOCS[request.url.path]
        page = (files("forewarn.operator.api") / name).read_bytes()
        return Response(page, media_type=media_type, headers=HEADERS | {"content-security-policy": DOCS_POLICY})

    async def everything(request: Request) -> Response:
        try:
            if not request.url.path.startswith("/v1/"):
                if "text/html" in request.headers.get("accept", ""):
                    return await no_page(request)
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
        return await streams.answer(request, who, lambda: access.still_known(who))
    call, path = find(request.method, request.url.path, who, table)
    query = read_query(call, request.query_params.multi_items())
    key = read_key(call, request.headers.get("idempotency-key"))
    body = await body_of(request, call.max_bytes)
    target = f"{request.url.path}?{request.url.query}"
    context = CallContext(
        caller=who,
        path=path,
        query=query,
        body=await run_in_threadpool(read_body, call, body, request.headers.get("content-type", "")),
        key=key,
        digest=request_digest(request.method, target, body),
        accept=request.headers.get("accept", JSON),
    )
    answer = await run_in_threadpool(do, api, call, context)
    if request.method not in ("GET", "HEAD"):
        log.info("%s %s: %d, by %s from %s", request.method, request.url.path, answer.status, who.name, who.origin)
    return Response(
        answer.body,
        answer.status,
        media_type=answer.content_type if answer.status != 204 else None,
        headers=HEADERS,
    )


async def body_of(request: Request, max_bytes: int) -> bytes:
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


# -- errors


def _told(error: ForewarnError) -> Response:
    extra = {"www-authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    if isinstance(error, MethodNotAllowed):
        extra = {"allow": error.allow}
    if error.status == 503:
        extra = {"retry-after": "1"}
    return _error(error.status, error.code, str(error), extra)


def _error(status: int, code: str, message: str, extra: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode(bodies.Error(error=bodies.Problem(code=code, message=message)))
    return Response(body, status, media_type=JSON, headers=HEADERS | dict(extra or {}))
