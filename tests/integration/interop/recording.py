"""A small TCP proxy that passes everything on from an address of its own and keeps what the client said."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

CHUNK_BYTES = 65_536


class RecordingProxy:
    """Listens on a fixed port of 127.0.0.1; upstream, its connections come from `address`, so it is that machine's."""

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
                said = bytearray()
                self.connections.append(said)
                server = socket.create_connection(self._upstream, source_address=(self._address, 0))
                threading.Thread(target=_pump, args=(client, server, said), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client, None), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, said: bytearray | None) -> None:
    """Until the source says no more."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            if said is not None:
                said += data
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def split_requests(said: bytes) -> list[bytes]:
    """The requests of one connection; their bodies all have a Content-Length."""
    requests = []
    while said:
        head, end, _ = said.partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        size = len(head) + len(end) + sum(lengths)
        requests.append(said[:size])
        said = said[size:]
    return requests
