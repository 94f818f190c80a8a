"""The operator listener: so far its health. `/healthz` says the process lives, `/readyz` that the service works."""

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forewarn import __version__

# A ticker that has not completed a cycle for so long is stuck; it looks at its store at least once a second.
TICKER_SILENT_S = 5.0


def operator_app(*, ticked_at_s: Callable[[], float | None], store_works: Callable[[], str]) -> Starlette:
    """`ticked_at_s` is when the ticker last completed a cycle (monotonic); `store_works` answers "" or what is wrong."""

    def healthz(request: Request) -> JSONResponse:
        del request
        return JSONResponse({"status": "ok", "version": __version__})

    def readyz(request: Request) -> JSONResponse:
        del request
        ticked_s = ticked_at_s()
        ticking = ticked_s is not None and time.monotonic() - ticked_s < TICKER_SILENT_S
        checks = {"store": store_works() or "ok", "ticker": "ok" if ticking else "no cycle lately"}
        ready = all(result == "ok" for result in checks.values())
        return JSONResponse({"ready": ready, "checks": checks}, status_code=200 if ready else 503)

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])
