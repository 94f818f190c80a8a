"""The operator listener: one ASGI application on uvicorn, in a thread of its own, behind `http_limits`."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from forewarn.core.errors import ForewarnError
from forewarn.operator.bound_socket import STOP_WITHIN_S
from forewarn.operator.http_limits import LimitedProtocol, LimitedServer
from forewarn.operator.open_connections import LimitedSocket, OpenConnections

START_WITHIN_S = 60.0
CHECK_EVERY_S = 0.001
ACCEPTED_AT_ONCE = 16


@contextmanager
def listening(
    app: ASGIApp,
    bound: socket.socket,
    *,
    tls_cert: Path | None,
    tls_key: Path | None,
    trusted_proxies: list[str] | None,
    open_connections: OpenConnections,
    stop_within_s: float = STOP_WITHIN_S,
) -> Iterator[None]:
    """Serve the application on the socket `bound` inside the block. The block begins once the listener accepts connections.

    The listener takes over the socket. `trusted_proxies` may set the caller's address and scheme by headers; with None, no
    header counts. `open_connections` limits the connections. The end of the block waits up to `stop_within_s` for the
    listener's thread. That thread closes the socket: a thread that is late still uses it.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
        loop="asyncio",
        http=partial(LimitedProtocol, open_connections),  # type: ignore[arg-type] # uvicorn only calls it
        ws="none",
        # How many connections the event loop accepts at once, before it reads from those it has.
        backlog=ACCEPTED_AT_ONCE,
        # Always set: by default uvicorn trusts the headers of callers on loopback, and of those in its own variable.
        proxy_headers=trusted_proxies is not None,
        forwarded_allow_ips=trusted_proxies or [],
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    server = LimitedServer(config, open_connections)
    listener = LimitedSocket(bound.family, bound.type, fileno=bound.detach())
    listener.open_connections = open_connections

    def serve() -> None:
        with listener:
            server.run([listener])

    thread = threading.Thread(target=serve, name="operator", daemon=True)
    thread.start()
    try:
        _wait_until(lambda: server.started, thread)
        yield
    finally:
        server.end()
        thread.join(timeout=stop_within_s)


def _wait_until(ready: Callable[[], bool], thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while not ready():
        if not thread.is_alive() or time.monotonic() > deadline_s:
            raise ForewarnError("the operator listener did not start: see the log above")
        time.sleep(CHECK_EVERY_S)
