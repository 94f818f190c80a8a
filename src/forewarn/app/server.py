"""Runs one service: its threads and listeners, from the first line to an orderly end."""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from forewarn.app.guest_server import GuestServer
from forewarn.app.operator_server import operator_listener
from forewarn.app.operator_token import environment_token, findable
from forewarn.app.service import Service
from forewarn.core.fleet_difference import Difference
from forewarn.endpoint.connection import Connection, NewConnection
from forewarn.operator.api.calls import CALLS, Call
from forewarn.service.private_files import check_tls
from forewarn.service.settings import Settings

# SIGTERM to exit within 5 s: guest listener, ticker and operator listener stop one after the other, each within this.
STOP_WITHIN_S = 1.3
# How long a thread that computes may keep the others waiting; Python's default is 5 ms.
SWITCH_S = 0.0005
MAX_FLEET_LINES = 50

log = logging.getLogger("forewarn.app.server")


class Stopping:
    """Waits for a signal to stop.

    Python writes a byte to the pipe, whichever thread got the signal and whenever it came: a signal just before the wait
    is not missed.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._came = False
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._take)

    def _take(self, *_: object) -> None:
        self._came = True

    def wait(self) -> None:
        os.read(self._reader, 1)

    def is_set(self) -> bool:
        return self._came


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT: apply the fleet, start the ticker and the listeners, print that all is ready."""
    stopping = Stopping(signal.SIGTERM, signal.SIGINT)
    service = Service(settings)
    try:
        if settings.fleet is not None:
            _say_difference(service.apply_fleet_file(settings.fleet), say)
        with running(service) as (guests, operator_url):
            calm()
            say(f"ready guest={','.join(guests.listener.urls) or 'none'} operator={operator_url}")
            stopping.wait()
            log.info("stopping")
    finally:
        service.close()


@contextmanager
def running(
    service: Service,
    *,
    connection: NewConnection = Connection,
    calls: Sequence[Call] = CALLS,
    write_address: bool = True,
) -> Iterator[tuple[GuestServer, str]]:
    """Run the guest listener, the follower, the ticker and the operator listener; yield the first and the last one's URL.

    `connection` handles guests and `calls` are the API's: an emulator has more of both. With `write_address` the command
    line on this machine finds the service by itself.
    """
    check_tls(service.settings)
    token = "" if service.settings.token_free else environment_token()
    with (
        _guest_listener(service, connection) as guests,
        # The follower starts after the endpoint has loaded its documents and listens for changes.
        _follower(service),
        ticking(service),
        operator_listener(service, guests, token, calls) as operator_url,
        findable(service, operator_url) if write_address and service.settings.role != "guest" else nullcontext(),
    ):
        yield guests, operator_url


def calm() -> None:
    """Prepare a process that answers guests: no thread may make another wait for long."""
    # The garbage collector need not look at the loaded fleet again.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


@contextmanager
def _guest_listener(service: Service, connection: NewConnection) -> Iterator[GuestServer]:
    guests = GuestServer(service, connection)
    guests.listener.start()
    try:
        yield guests
    finally:
        guests.stop()


@contextmanager
def _follower(service: Service) -> Iterator[None]:
    follower = service.follower
    if follower is None:
        yield
        return
    thread = threading.Thread(target=follower.run, name="follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        follower.stop()
        thread.join(timeout=STOP_WITHIN_S)


@contextmanager
def ticking(service: Service, stop_within_s: float = STOP_WITHIN_S) -> Iterator[None]:
    """Run the ticker in a thread."""

    def tick() -> None:
        service.ticker.run()
        service.ticker.leave()

    thread = threading.Thread(target=tick, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        service.ticker.stop()
        # Its current work is one transaction, which ends soon or is safely not saved. Its lease ends by itself.
        thread.join(timeout=stop_within_s)


def _say_difference(difference: Difference, say: Callable[[str], None]) -> None:
    for line in difference.lines[:MAX_FLEET_LINES]:
        say(line)
    if len(difference.lines) > MAX_FLEET_LINES:
        say(f"  and {len(difference.lines) - MAX_FLEET_LINES} more")
    for warning in difference.warnings[:MAX_FLEET_LINES]:
        say(f"! {warning}")
    count = len(difference.lines)
    say(f"fleet: {count} difference(s) applied" if count else "fleet: no difference")
