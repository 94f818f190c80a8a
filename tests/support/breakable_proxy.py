"""A proxy in front of a service whose connections a test can break."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class BreakableProxy:
    """Forwards connections to a service; can break them, and can hold responses back. Its `url` stays the same."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._target = (str(address.hostname), int(address.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._broken = False
        self._broken_lock = threading.Lock()
        self._responses_flow = threading.Event()
        self._responses_flow.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_connections(self) -> None:
        with self._broken_lock:
            self._broken = True
            for each in list(self._open):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def repair(self) -> None:
        with self._broken_lock:
            self._broken = False

    @contextmanager
    def responses_held(self) -> Iterator[None]:
        """Forward requests, but hold responses back until the end of the block."""
        self._responses_flow.clear()
        try:
            yield
        finally:
            self._responses_flow.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.break_connections()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                with self._broken_lock:
                    if self._broken:
                        near.close()
                        far.close()
                        continue
                    self._open |= {near, far}
                for source, target, is_response in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pump, args=(source, target, is_response), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_response: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(65_536):
                if is_response:
                    self._responses_flow.wait()
                target.sendall(piece)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
