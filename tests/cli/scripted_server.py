"""A server that sends prepared bytes, one response per connection, and keeps the requests."""

import contextlib
import json
import socket
import threading

from forewarn.cli.client import Client
from forewarn.cli.server_lookup import Server
from tests.support.waiting import PATIENCE_S

SECRET = "fw_not-to-be-shown"


def response(status: int, body: object, content_type: str = "application/json") -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + text


class ScriptedServer:
    """Answers each connection with the next response; b"" closes the connection without one."""

    def __init__(self, *responses: bytes) -> None:
        self.requests: list[str] = []
        self._responses = list(responses)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for prepared in self._responses:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.requests.append(_read_request(connection))
                connection.sendall(prepared)

    def client(self, token: str = SECRET, unused_token: str = "") -> Client:
        source = "FOREWARN_TOKEN" if token else ""
        return Client(Server(url=self.url, token=token, token_from=source, unused_token=unused_token))

    def close(self) -> None:
        """End the thread first. A thread that still accepts could take a connection of the next server with the same number."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._socket.close()


def _read_request(connection: socket.socket) -> str:
    received = b""
    while b"\r\n\r\n" not in received:
        received += _receive(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0)
    while len(body) < length:
        body += _receive(connection)
    return (head + b"\r\n\r\n" + body).decode()


def _receive(connection: socket.socket) -> bytes:
    if not (received := connection.recv(65_536)):
        raise ConnectionError("the client hung up")
    return received
