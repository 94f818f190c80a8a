"""Reads requests of one connection: HTTP/1.1 with limits on every part. Knows nothing of paths and documents."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import List, Optional, Tuple

from forewarn.guest.errors import GuestError
from forewarn.guest.sockets import Deadline

MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 64
MAX_BODY_BYTES = 64 * 1024
# Time for one whole request, from its first byte on.
REQUEST_TIMEOUT_S = 10.0
# A connection without a request for so long is closed.
IDLE_TIMEOUT_S = 120.0
_CHUNK_BYTES = 16 * 1024
_MAX_CHUNK_LINE_BYTES = 256
_REQUEST_LINE = re.compile(rb'([A-Za-z]+) ([!"$-~]+) HTTP/1\.([01])')
# Blanks around a value are stripped afterwards: an expression for them would take very long on a value of many blanks.
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


class BadRequest(GuestError):
    """The bytes are no request that can be read; the connection ends after the response."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


@dataclass(frozen=True)
class Request:
    """One request; header names are in lower case. `body` is None if it is too large: then it was not read."""

    method: str
    target: str
    headers: Tuple[Tuple[str, str], ...] = ()
    body: Optional[bytes] = b""
    http_1_0: bool = False

    def values(self, name: str) -> List[str]:
        return [value for key, value in self.headers if key == name]

    @property
    def keeps_open(self) -> bool:
        """Whether the client wants the connection to stay open, and its rest can be read."""
        tokens = {token.strip().lower() for value in self.values("connection") for token in value.split(",")}
        return self.body is not None and ("keep-alive" in tokens if self.http_1_0 else "close" not in tokens)


class RequestReader:
    """Reads the requests of a connection one after another."""

    def __init__(
        self, connection: socket.socket, *, idle_s: float = IDLE_TIMEOUT_S, request_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        """`idle_s` is the longest wait for a request, `request_s` the longest time from its first byte to its last."""
        self._connection = connection
        self._idle_s, self._request_s = idle_s, request_s
        self._received = b""
        self._deadline = Deadline(idle_s)

    def next(self) -> Optional[Request]:
        """Return the next request, or None when the client closed; raise BadRequest, or OSError for a slow client."""
        self._deadline = Deadline(self._idle_s)
        while not self._received.lstrip(b"\r\n"):
            self._received = b""
            if not self._receive():
                return None
        self._deadline = Deadline(self._request_s)
        head = self._until(b"\r\n\r\n", MAX_HEAD_BYTES, status=431)
        line, *lines = head.lstrip(b"\r\n").split(b"\r\n")
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            raise BadRequest(400)
        if len(lines) > MAX_HEADERS:
            raise BadRequest(431)
        headers = tuple(_header(each) for each in lines)
        request = Request(match[1].decode(), match[2].decode(), headers, b"", match[3] == b"0")
        return Request(request.method, request.target, headers, self._body(request), request.http_1_0)

    def _body(self, request: Request) -> Optional[bytes]:
        """Return the body, or None if it is too large to be read."""
        lengths, encodings = request.values("content-length"), request.values("transfer-encoding")
        if encodings and (lengths or request.http_1_0 or [each.lower() for each in encodings] != ["chunked"]):
            raise BadRequest(400)
        if lengths and not (len(lengths) == 1 and lengths[0].isdecimal() and lengths[0].isascii()):
            raise BadRequest(400)
        size = int(lengths[0][:20]) if lengths else 0
        if size > MAX_BODY_BYTES:
            return None
        if (size or encodings) and [each.lower() for each in request.values("expect")] == ["100-continue"]:
            self._connection.settimeout(self._deadline.left_s())
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._chunks() if encodings else self._exactly(size)

    def _chunks(self) -> Optional[bytes]:
        body = b""
        while True:
            match = _CHUNK_SIZE.fullmatch(self._until(b"\r\n", _MAX_CHUNK_LINE_BYTES, status=400))
            if match is None:
                raise BadRequest(400)
            size = int(match[1], 16)
            if len(body) + size > MAX_BODY_BYTES:
                return None
            if size == 0:
                break
            body += self._exactly(size)
            if self._exactly(2) != b"\r\n":
                raise BadRequest(400)
        for _ in range(MAX_HEADERS):  # trailers, which are not headers
            if not self._until(b"\r\n", MAX_HEAD_BYTES, status=431):
                return body
        raise BadRequest(431)

    def _until(self, end: bytes, max_bytes: int, *, status: int) -> bytes:
        """Return what comes before `end`; raise BadRequest with this status when that is too long."""
        while True:
            before, found, after = self._received.partition(end)
            if len(before) > max_bytes:
                raise BadRequest(status)
            if found:
                self._received = after
                return before
            self._receive_more()

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            self._receive_more()
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _receive_more(self) -> None:
        if not self._receive():
            raise ConnectionResetError("the client closed in the middle of a request")

    def _receive(self) -> bool:
        self._connection.settimeout(self._deadline.left_s())
        data = self._connection.recv(_CHUNK_BYTES)
        self._received += data
        return bool(data)


def _header(line: bytes) -> Tuple[str, str]:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise BadRequest(400)
    return match[1].decode("latin-1").lower(), match[2].strip(b" \t").decode("latin-1")
