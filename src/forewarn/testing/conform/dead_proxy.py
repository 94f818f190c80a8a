"""A proxy that answers no request, to see whether an agent uses it."""

import socket
from contextlib import suppress

MAX_CONNECTIONS = 16
MAX_HEAD_BYTES = 4_096
READ_WITHIN_S = 1.0


class DeadProxy:
    """Counts the requests for the endpoint and closes every connection."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.removeprefix("http://").encode()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._requests = 0

    def count_requests(self) -> int:
        """Read and close the connections since the last call; return the number of requests so far."""
        for _ in range(MAX_CONNECTIONS):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                break
            with connection, suppress(OSError):
                connection.settimeout(READ_WITHIN_S)
                self._requests += self._endpoint in connection.recv(MAX_HEAD_BYTES)
        return self._requests

    def close(self) -> None:
        self._socket.close()
