"""Strict-Transport-Security: browsers that have reached the service over TLS once never use it without TLS again."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.operator.host_header import host_of, is_loopback


def require_tls_of_browsers(app: ASGIApp, max_age_s: int) -> ASGIApp:
    """Return the application with the header in every response; 0 leaves the application as it is.

    A browser applies the header to all ports of a host. So it is not sent to a browser that uses a loopback name: other
    programs listen there without TLS.
    """
    if not max_age_s:
        return app

    async def adding(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["strict-transport-security"] = f"max-age={max_age_s}"
            await send(message)

        here = is_loopback(host_of(Headers(scope=scope).get("host", "")))
        await app(scope, receive, send if here else sent)

    return adding
