"""The operator listener: the API under `/v1`, and what watches over the service.

`/healthz` says that the process lives, `/readyz` that every part of the service works, `/metrics` what
it did and how it is. The latter two need no token while the listener is on loopback. `/healthz` needs none anywhere, for it
says nothing of the fleet, and waits neither for the threads that work nor for the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from forewarn import __version__
from forewarn.core.errors import ForewarnError
from forewarn.operator.metrics import Facts, GuestCounts, GuestMetrics, NodeMetrics, OperatorMetrics, registry_of

# A ticker that has not completed a cycle for so long is stuck; it looks at its store at least once a second.
TICKER_SILENT_S = 5.0


def _in_our_shape(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses: another method than a page has."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = "method_not_allowed" if status == 405 else "error"
    headers = error.headers if isinstance(error, HTTPException) else None
    message = f"{request.method} is not for this page: look at it with GET, send its forms with POST"
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def operator_app(
    *,
    ticked_at_s: Callable[[], float | None],
    store_works: Callable[[], str],
    guests_accepted: Callable[[], bool],
    guest_counts: Callable[[], GuestCounts],
    warnings: Callable[[], Mapping[str, str]] = dict,
    facts: Callable[[], Facts] | None = None,
    pages: Sequence[Route] = (),
    rest: ASGIApp | None = None,
    guard: Callable[[Mapping[str, str], str], object] | None = None,
) -> Starlette:
    """`ticked_at_s` is when the ticker last completed a cycle (monotonic); `store_works` answers "" or what is wrong.

    What `warnings` tells does not make it unready; `facts` are for the metrics.
    `rest` answers what no page does. `guard`, where given, raises for whoever may not look at readiness and metrics.
    """

    def checks() -> dict[str, str]:
        ticked_s = ticked_at_s()
        ticking = ticked_s is not None and time.monotonic() - ticked_s < TICKER_SILENT_S
        return {
            "store": store_works() or "ok",
            "ticker": "ok" if ticking else "no cycle lately",
            "guest": "ok" if guests_accepted() else "the listener does not accept",
        }

    answers = OperatorMetrics()
    registry = registry_of(GuestMetrics(guest_counts), answers, NodeMetrics(checks, facts))

    def healthz(request: Request) -> JSONResponse:
        del request
        return JSONResponse({"status": "ok", "version": __version__})

    def readyz(request: Request) -> JSONResponse:
        del request
        found = checks()
        ready = all(result == "ok" for result in found.values())
        told = {"ready": ready, "checks": found}
        if warned := warnings():
            told["warnings"] = dict(warned)
        return JSONResponse(told, status_code=200 if ready else 503)

    def metrics(request: Request) -> Response:
        del request
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    def guarded(look: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                if guard is not None and look is not healthz:
                    # In asyncio's own threads: those of the API may all be busy.
                    await asyncio.to_thread(guard, request.headers, request.client.host if request.client else "")
            except ForewarnError as error:
                return JSONResponse({"error": {"code": error.code, "message": str(error)}}, error.status)
            return look(request) if look is healthz else await run_in_threadpool(look, request)

        return endpoint

    watching = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
    app = Starlette(
        routes=[*(Route(path, guarded(look)) for path, look in watching.items()), *pages],
        middleware=[Middleware(answers.around)],
        exception_handlers={HTTPException: _in_our_shape},
    )
    app.router.redirect_slashes = False
    if rest is not None:
        app.router.default = rest
    return app
