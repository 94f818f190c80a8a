"""Runs one service: its threads and listeners, from start to orderly stop."""

import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from forewarn.app.guest_server import GuestServer
from forewarn.app.operator_token import environment_token, findable
from forewarn.app.service import Service
from forewarn.core.fleet_difference import Difference
from forewarn.endpoint.connection import Connection, ConnectionFactory
from forewarn.endpoint.listener import host_in_url
from forewarn.operator.bound_socket import STOP_WITHIN_S, bound
from forewarn.service.private_files import check_tls
from forewarn.service.settings import Settings
from forewarn.service.ticker import Ticker

if TYPE_CHECKING:
    from forewarn.operator.api.calls import Call

# How long a thread that computes may keep the others waiting; Python's default is 5 ms.
SWITCH_S = 0.0005
MAX_FLEET_LINES = 50
# How often a node that stops counts the orders it waits for.
DRAINED_EVERY_S = 0.2

log = logging.getLogger("forewarn.app.server")


class StopSignal:
    """Waits for a signal to stop.

    Python writes a byte to the pipe, whichever thread gets the signal: a signal just before the wait is not missed.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._received = False
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self._received = True

    def wait(self, within_s: float | None = None) -> bool:
        """Wait for the next signal; return False if none comes in time."""
        ready, _, _ = select.select([self._reader], [], [], within_s)
        return bool(ready and os.read(self._reader, 1))

    def is_set(self) -> bool:
        return self._received


def serve(settings: Settings, print_line: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT: apply the fleet, start the ticker and the listeners, print that all is ready."""
    stopping = StopSignal(signal.SIGTERM, signal.SIGINT)
    service = Service(settings)
    try:
        if settings.fleet is not None:
            _print_difference(service.apply_fleet_file(settings.fleet, print_line), print_line)
        with running(service) as (guest_server, operator_url):
            tune_process()
            print_line(f"ready guest={','.join(guest_server.listener.urls) or 'none'} operator={operator_url}")
            stopping.wait()
            _wait_for_orders(service.ticker, settings.stop_grace_s, stopping)
            log.info("stopping")
    finally:
        service.close()


def _wait_for_orders(ticker: Ticker, grace_s: float, stopping: StopSignal) -> None:
    """Wait for the orders under way on this node, at most `grace_s`, or until a second signal. They continue in any case."""
    if grace_s:
        ticker.drain()  # first: an order that the ticker hands out just now is at work after it
        if count := ticker.at_work():
            log.info("waiting up to %g s for %d order(s)", grace_s, count)
        deadline_s = time.monotonic() + grace_s
        while ticker.at_work() and (left_s := deadline_s - time.monotonic()) > 0:
            if stopping.wait(min(left_s, DRAINED_EVERY_S)):
                break
    if count := ticker.at_work():
        log.info("%d order(s) stay at work: a node with this state directory continues them", count)


@contextmanager
def running(
    service: Service,
    *,
    connection: ConnectionFactory = Connection,
    more_calls: "Callable[[], Sequence[Call]] | None" = None,
    write_address: bool = True,
    stop_within_s: float = STOP_WITHIN_S,
) -> Iterator[tuple[GuestServer, str]]:
    """Run the guest listener, the follower, the ticker and the operator listener.

    Yield the guest server and the URL of the operator listener. An emulator passes its own connection class and `more_calls`
    of the API; what answers operators then starts at their first connection. With `write_address` the command line on this
    machine finds the service by itself. At the end of the block each thread has `stop_within_s` to end, one after the other.
    """
    check_tls(service.settings)
    token = "" if service.settings.token_free else environment_token()
    follower, sender, inventory = service.follower, service.hook_sender, service.inventory
    in_thread = partial(_in_thread, stop_within_s=stop_within_s)
    with (
        _guest_server(service, connection, stop_within_s) as guest_server,
        # The follower starts after the endpoint has loaded its documents and listens for changes.
        in_thread("follower", follower.run, follower.stop) if follower is not None else nullcontext(),
        ticking(service, stop_within_s),
        in_thread("hooks", sender.run, sender.stop) if service.settings.role != "guest" else nullcontext(),
        in_thread("inventory", inventory.run, inventory.stop) if inventory is not None else nullcontext(),
        _operator_listener(service, guest_server, token, more_calls, stop_within_s) as operator_url,
        findable(service, operator_url) if write_address and service.settings.role != "guest" else nullcontext(),
    ):
        yield guest_server, operator_url


def tune_process() -> None:
    """Tune a process that answers guests: no thread may make another wait for long."""
    # The garbage collector need not visit the loaded modules and the loaded fleet.
    gc.freeze()
    gc.enable()
    sys.setswitchinterval(SWITCH_S)


@contextmanager
def _guest_server(service: Service, connection: ConnectionFactory, stop_within_s: float) -> Iterator[GuestServer]:
    guest_server = GuestServer(service, connection, stop_within_s=stop_within_s)
    try:
        guest_server.start()
        yield guest_server
    finally:
        guest_server.stop()


@contextmanager
def _operator_listener(
    service: Service,
    guest_server: GuestServer,
    token: str,
    more_calls: "Callable[[], Sequence[Call]] | None",
    stop_within_s: float,
) -> Iterator[str]:
    """Listen for operators, and yield the URL."""

    def answer(on: socket.socket) -> AbstractContextManager[None]:
        from forewarn.app.operator_server import answering_operators  # importing it takes as long as all the rest

        more = more_calls() if more_calls else ()
        return answering_operators(service, guest_server, token, on, more, stop_within_s=stop_within_s)

    settings = service.settings
    with bound(settings.operator) as listener:
        scheme = "https" if settings.tls_cert is not None else "http"
        host = host_in_url(settings.operator.rpartition(":")[0].strip("[]"))
        url = f"{scheme}://{host}:{listener.getsockname()[1]}"
        with answer(listener) if more_calls is None else _at_first_connection(listener, answer, stop_within_s):
            yield url


@contextmanager
def _at_first_connection(
    listener: socket.socket, answer: Callable[[socket.socket], AbstractContextManager[None]], stop_within_s: float
) -> Iterator[None]:
    """Accept connections now, and call `answer`, which answers them, at the first one: many tests never make one."""
    listener.listen()
    stopped, stop = socket.socketpair()
    own = listener.dup()  # a thread that is late still uses it when the block has ended and `listener` is closed

    def run() -> None:
        with stopped, own:
            try:
                if stopped.fileno() not in _readable(own, stopped):
                    with answer(own):
                        _readable(stopped)
            finally:
                listener.close()  # a caller must not wait for an answer if `answer` failed

    with _in_thread("operator listener", run, stop.close, stop_within_s):
        yield


def _readable(*sockets: socket.socket) -> set[int]:
    """Wait until one of the sockets can be read; return the descriptors of those that can."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}


def ticking(service: Service, stop_within_s: float = STOP_WITHIN_S) -> AbstractContextManager[None]:
    """Run the ticker in a thread."""

    def tick() -> None:
        service.ticker.run()
        service.ticker.leases.release_ticker()

    # Its current work is one transaction, which ends soon or is safely not saved. Its lease ends by itself.
    return _in_thread("ticker", tick, service.ticker.stop, stop_within_s)


@contextmanager
def _in_thread(name: str, run: Callable[[], None], stop: Callable[[], None], stop_within_s: float) -> Iterator[None]:
    """Run `run` in a thread. At the end of the block call `stop` and wait for the thread."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(timeout=stop_within_s)


def _print_difference(difference: Difference, print_line: Callable[[str], None]) -> None:
    for line in difference.lines[:MAX_FLEET_LINES]:
        print_line(line)
    if len(difference.lines) > MAX_FLEET_LINES:
        print_line(f"  and {len(difference.lines) - MAX_FLEET_LINES} more")
    for warning in difference.warnings[:MAX_FLEET_LINES]:
        print_line(f"! {warning}")
    count = len(difference.lines)
    print_line(f"fleet: {count} difference(s) applied" if count else "fleet: no difference")
