"""The application of the operator listener: health, readiness and metrics, with the API and the portal beside them.

`/healthz` says that the process lives, `/readyz` whether every part of the service works, `/metrics` gives figures for
Prometheus. The latter two need no token on loopback, unless a proxy passes requests on. `/healthz` never needs one, because
it says nothing about the fleet; it waits neither for the worker threads nor for the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

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
from forewarn.operator.metrics import GuestMetrics, NodeMetrics, OperatorMetrics, registry_of
from forewarn.operator.node_facts import Facts, GuestCounts
from forewarn.operator.open_connections import OpenConnections
from forewarn.operator.request_path import check_paths
from forewarn.operator.transport_security import require_tls_of_browsers

# A ticker that has not completed a cycle for this long is stuck: a cycle takes place at least once a second.
TICKER_SILENT_S = 5.0

# Raises for a caller with these headers, from this address, who may not read.
Guard = Callable[[Mapping[str, str], str], object]


def _framework_error(request: Request, error: Exception) -> JSONResponse:
    """Give an error of the framework, such as a wrong method, the shape of all errors."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = "method_not_allowed" if status == 405 else "error"
    headers = error.headers if isinstance(error, HTTPException) else None
    message = f"{request.method} is not for this page: read it with GET, send its forms with POST"
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


async def _healthz(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok", "version": __version__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether every part of the service works.

    `ticked_at_s` is when the ticker last completed a cycle (monotonic). `store_problem` returns "" if the store works,
    `executor_problem` if the executor can carry out orders. `warnings` do not make the service unready.
    """

    ticked_at_s: Callable[[], float | None]
    store_problem: Callable[[], str]
    executor_problem: Callable[[], str]
    guests_accepted: Callable[[], bool]
    warnings: Callable[[], Mapping[str, str]] = dict

    def checks(self) -> dict[str, str]:
        ticked_s = self.ticked_at_s()
        ticking = ticked_s is not None and time.monotonic() - ticked_s < TICKER_SILENT_S
        return {
            "store": self.store_problem() or "ok",
            "ticker": "ok" if ticking else "no cycle lately",
            "executor": self.executor_problem() or "ok",
            "guest": "ok" if self.guests_accepted() else "the listener does not accept",
        }

    def readyz(self, _: Request) -> JSONResponse:
        results = self.checks()
        ready = all(result == "ok" for result in results.values())
        body = {"ready": ready, "checks": results}
        if active := self.warnings():
            body["warnings"] = dict(active)
        return JSONResponse(body, status_code=200 if ready else 503)


def operator_app(
    readiness: Readiness,
    *,
    guest_counts: Callable[[], GuestCounts],
    open_connections: OpenConnections | None = None,
    facts: Callable[[], Facts] | None = None,
    pages: Sequence[Route] = (),
    rest: ASGIApp | None = None,
    guard: Guard | None = None,
    failed_authentications: Callable[[], int] = lambda: 0,
    delay: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    hsts_s: int = 0,
) -> Starlette:
    """Build the application.

    `facts` and `open_connections` are for the metrics. `rest` answers every path that no page has. `guard` raises for a caller
    who may not read readiness and metrics. `delay` lets requests with a wrong token wait. `hsts_s` is how long browsers must
    use TLS; 0 where there is none.
    """
    requests = OperatorMetrics(open_connections or OpenConnections(), failed_authentications)
    registry = registry_of(GuestMetrics(guest_counts), requests, NodeMetrics(readiness.checks, facts))

    def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    app = Starlette(
        routes=[
            Route("/healthz", _healthz),
            Route("/readyz", _guarded(readiness.readyz, guard)),
            Route("/metrics", _guarded(metrics, guard)),
            *pages,
        ],
        middleware=[
            Middleware(requests.count),
            Middleware(require_tls_of_browsers, max_age_s=hsts_s),
            Middleware(check_paths),
            Middleware(delay),
        ],
        exception_handlers={HTTPException: _framework_error},
    )
    app.router.redirect_slashes = False
    if rest is not None:
        app.router.default = rest
    return app


def _guarded(page: Callable[[Request], Response], guard: Guard | None) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            if guard is not None:
                # In asyncio's own threads: the API's threads may all be busy.
                await asyncio.to_thread(guard, request.headers, request.client.host if request.client else "")
        except ForewarnError as error:
            return JSONResponse({"error": {"code": error.code, "message": str(error)}}, error.status)
        return await run_in_threadpool(page, request)

    return endpoint
