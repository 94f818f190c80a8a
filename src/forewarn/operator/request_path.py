"""The path of a request: decoded once from the bytes of the request line, and refused if programs may read it differently.

A proxy in front of the service may deny paths. Its rules hold only if the proxy and the service read a path in the same way:
so the service changes nothing about a path except to decode it once, and compares the result exactly.
"""

from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.core.errors import Invalid


def check_paths(app: ASGIApp) -> ASGIApp:
    """Return the application behind a check of each path; a path that passes is in the scope's `path`."""

    async def checking(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["path"] = decoded_path(scope.get("raw_path") or scope["path"].encode())
        except Invalid as error:
            problem = {"error": {"code": error.code, "message": str(error)}}
            await JSONResponse(problem, error.status)(scope, receive, send)
            return
        await app(scope, receive, send)

    return checking


def decoded_path(raw: bytes) -> str:
    """Return the path with its percent signs decoded once."""
    if b"%2f" in raw.lower():
        raise Invalid("path: %2F is refused, because no name contains a slash")
    try:
        path = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Invalid("path: it is not UTF-8") from None
    if not path.isprintable():
        raise Invalid("path: it contains a control character, or another character that is not printable")
    return path


def path_of(request: Request) -> str:
    """Return the path of a request.

    `request.url.path` is another one: it is made of the Host header and the path, without tabs and line ends.
    """
    return str(request.scope["path"])


def target_of(request: Request) -> str:
    """Return the path and the query of a request."""
    return f"{path_of(request)}?{request.scope['query_string'].decode('latin-1')}"
