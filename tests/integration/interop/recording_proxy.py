"""A small TCP proxy that connects from an address of its choice and records what the client sends."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

CHUNK_BYTES = 65_536


class RecordingProxy:
    """Listens on a fixed port of 127.0.0.1; its connections to the service come from `address`, that of a machine."""

    def __init__(self, port: int, upstream: tuple[str, int], address: str) -> None:
        self._upstream = upstream
        self._address = address
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{port}"
        self.connections: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "RecordingProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                recorded = bytearray()
                self.connections.append(recorded)
                server = socket.create_connection(self._upstream, source_address=(self._address, 0))
                threading.Thread(target=_pump, args=(client, server, recorded), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client, None), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, recorded: bytearray | None) -> None:
    """Copy bytes until the source ends."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            if recorded is not None:
                recorded += data
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def split_requests(recorded: bytes) -> list[bytes]:
    """Split one connection into its requests, whose bodies all have a Content-Length."""
    requests = []
    while recorded:
        head, end, _ = recorded.partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        size = len(head) + len(end) + sum(lengths)
        requests.append(recorded[:size])
        recorded = recorded[size:]
    return requests
