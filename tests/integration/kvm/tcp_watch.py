"""A TCP connection that a guest keeps open, and the pauses in it as both ends saw them."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from scripts.kvm_bed.bed import Bed

from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.support.waiting import until

PORT = 7000
EVERY_S = 0.02

# The guest connects once. If the connection breaks, it ends with an error and sends nothing more.
PROGRAM = f"""\
import socket, time

connection = socket.create_connection(("10.88.0.1", {PORT}))
last, longest = time.monotonic(), 0.0
while True:
    time.sleep({EVERY_S})
    now = time.monotonic()
    last, longest = now, max(longest, now - last)
    connection.sendall(b"%.3f\\n" % longest)
"""


class TcpWatch:
    """Receives what the guest sends. `longest_gap_s` is the longest time between two receipts since `restart`."""

    def __init__(self, bed: Bed) -> None:
        with bed.network():
            self._listener = socket.create_server(("10.88.0.1", PORT))
        self.connections = 0
        self.receipts = 0
        self.longest_gap_s = 0.0
        self._last_s = 0.0
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def until_it_goes_on(self, detail: Callable[[], object] = lambda: "") -> None:
        """Wait for ten receipts from now on: what came before this call tells nothing about the guest's state now."""
        wanted = self.receipts + 10
        until(lambda: self.receipts >= wanted, GUEST_PATIENCE_S, detail)

    def restart(self) -> None:
        self._last_s = time.monotonic()
        self.longest_gap_s = 0.0
        self.receipts = 0

    def close(self) -> None:
        """Listen no more; a second call does nothing."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _receive(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._drain, args=(connection,), daemon=True).start()
        except OSError:
            return

    def _drain(self, connection: socket.socket) -> None:
        with connection:
            self._last_s = time.monotonic()
            while connection.recv(4096):
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
                self._last_s = now_s
                self.receipts += 1
