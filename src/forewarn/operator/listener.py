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

from forewarn.core.errors import ForewarnError, InvalidSettings
from forewarn.operator.http_limits import LimitedProtocol, LimitedServer
from forewarn.operator.open_connections import LimitedSocket, OpenConnections

START_WITHIN_S = 10.0
# SIGTERM to exit within 5 s: guest listener, ticker and operator listener stop one after the other, each within this.
STOP_WITHIN_S = 1.3
CHECK_EVERY_S = 0.001
ACCEPTED_AT_ONCE = 16


@contextmanager
def listening(
    app: ASGIApp,
    address: str,
    *,
    tls_cert: Path | None,
    tls_key: Path | None,
    trusted_proxies: list[str] | None,
    open_connections: OpenConnections,
) -> Iterator[int]:
    """Serve the application on HOST:PORT and yield the port once it accepts.

    `trusted_proxies` may set the caller's address and scheme; None: no header is believed. `open_connections` limits them.
    """
    host, _, port = address.rpartition(":")
    config = uvicorn.Config(
        app,
        host=host.strip("[]"),
        port=int(port),
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
        # Always given: by default uvicorn believes callers on loopback and those its own variable names.
        proxy_headers=trusted_proxies is not None,
        forwarded_allow_ips=trusted_proxies or [],
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    with _bound(config, address, open_connections) as listener:
        server = LimitedServer(config, open_connections)
        thread = threading.Thread(target=server.run, args=([listener],), name="operator", daemon=True)
        thread.start()
        _wait_until(lambda: server.started, thread)
        try:
            yield listener.getsockname()[1]
        finally:
            server.end()
            thread.join(timeout=STOP_WITHIN_S)


@contextmanager
def _bound(config: uvicorn.Config, address: str, open_connections: OpenConnections) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = LimitedSocket(family, socket.SOCK_STREAM)
    listener.open_connections = open_connections
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: an answer in two pieces must not wait for the first to be acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((config.host, config.port))
        except OSError as error:
            raise InvalidSettings(
                f"operator: cannot listen on {address}: {error.strerror}; choose another with --operator HOST:PORT"
            ) from None
        yield listener
    finally:
        listener.close()


def _wait_until(ready: Callable[[], bool], thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while not ready():
        if not thread.is_alive() or time.monotonic() > deadline_s:
            raise ForewarnError("the operator listener did not start: see the log above")
        time.sleep(CHECK_EVERY_S)
