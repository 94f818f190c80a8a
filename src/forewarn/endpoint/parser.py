"""Turns bytes into requests: httptools with our limits around it. Knows nothing of callers or documents.

httptools is strict about headers and framing but speaks more than HTTP/1; this module refuses what lies beyond the grammar. A
request follows the grammar exactly, or the connection ends with an error.
"""

from collections.abc import Callable
from typing import Any

import httptools

from forewarn.endpoint import protocol
from forewarn.endpoint.protocol import Request, Response

END_OF_HEAD = b"\r\n\r\n"
# A body in the smallest chunks, "1\r\nx\r\n", takes six bytes per byte; more than this is no body.
RAW_BYTES_PER_BODY_BYTE = 8
BLANKS = " \t"


class Parser:
    """The parser of one connection. After `feed`, `requests` are complete; `problem` is set if the rest cannot be read."""

    __slots__ = (
        "_body", "_body_bytes", "_expects", "_head", "_head_done", "_headers", "_left_bytes", "_max_body_bytes",
        "_max_head_bytes", "_max_headers", "_parser", "_raw_bytes", "_reads_body", "_tail", "_target", "_upgraded", "partial",
        "problem", "requests",
    )  # fmt: skip

    def __init__(
        self, *, max_head_bytes: int, max_headers: int, max_body_bytes: int, reads_body: Callable[[], bool]
    ) -> None:
        """`reads_body` is called at the end of a head that announces a body; if False, the body is not read."""
        self._max_head_bytes = max_head_bytes
        self._max_headers = max_headers
        self._max_body_bytes = max_body_bytes
        self._reads_body = reads_body
        self._parser: Any = httptools.HttpRequestParser(self)
        self.requests: list[Request] = []
        self.problem: Response | None = None
        self.partial = False
        self._expects = False
        self._tail = b""
        self._upgraded: Request | None = None
        self._clear()

    def feed(self, data: bytes) -> None:
        """Parse bytes, request by request: httptools never gets bytes of two requests at once, so we know where each begins."""
        while data and self.problem is None:
            size = self._size_of_next(data)
            self._feed(data[:size])
            data = data[size:]

    def _size_of_next(self, data: bytes) -> int:
        """Return the size up to the end of a head or of chunks, both ended by an empty line, or of a body of known length."""
        if self._left_bytes:
            return min(self._left_bytes, len(data))
        end = (self._tail + data).find(END_OF_HEAD)
        if end < 0:
            self._tail = (self._tail + data)[-3:]
            return len(data)
        size = end + len(END_OF_HEAD) - len(self._tail)
        self._tail = b""
        return size

    def _feed(self, piece: bytes) -> None:
        if not self.partial:
            self._clear()
        self._raw_bytes += len(piece)
        if not self._head_done:
            self._head += piece
            if self._raw_bytes > self._max_head_bytes:
                self.problem = protocol.HEADERS_TOO_LARGE
        elif self._raw_bytes > self._max_head_bytes + RAW_BYTES_PER_BODY_BYTE * self._max_body_bytes:
            self.problem = protocol.TOO_LARGE
        if self.problem is not None:
            return
        if self._left_bytes:
            self._left_bytes -= len(piece)
        if self._upgraded is not None:
            self._take_body(piece, self._upgraded)
        else:
            self._parse(piece)

    def _parse(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # "A server MAY ignore a received Upgrade header field": this request's body or the next one follows
        except httptools.HttpParserError:
            self.problem = self.problem or protocol.MALFORMED

    def _take_body(self, piece: bytes, request: Request) -> None:
        """Take the body of a request with Upgrade, which httptools does not read."""
        self._body += piece
        if not self._left_bytes:
            self._upgraded = None
            request.body = bytes(self._body)
            self._complete(request)

    def wants_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body; true once."""
        wants = self._expects and self.partial and self.problem is None
        self._expects = False
        return wants

    # -- called by httptools

    def on_message_begin(self) -> None:
        self.partial = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer does not count: a Metadata header after the body is none.
        if not self._head_done:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip(BLANKS)))

    def on_headers_complete(self) -> None:
        self._head_done = True
        if len(self._headers) > self._max_headers:
            self._stop(protocol.HEADERS_TOO_LARGE)
        version = self._parser.get_http_version()
        self._check_request_line(version)
        chunked = False
        for name, value in self._headers:
            if name == "content-length":
                self._left_bytes = int(value)
                if self._left_bytes > self._max_body_bytes:
                    self._end_without_body()
            if name == "transfer-encoding" and (
                value.lower() != "chunked" or version != "1.1" or self._parser.should_upgrade()
            ):
                self._stop(protocol.MALFORMED)
            chunked = chunked or name == "transfer-encoding"
            if name == "expect":
                self._expects = value.lower() == "100-continue" and version == "1.1"
        if (self._left_bytes or chunked) and not self._reads_body():
            self._end_without_body()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            self._end_without_body()
        self._body += body

    def on_message_complete(self) -> None:
        request = self._request(bytes(self._body))
        if self._left_bytes and self._parser.should_upgrade():
            self._upgraded = request
        else:
            self._complete(request)

    # -- helpers

    def _check_request_line(self, version: str) -> None:
        """Refuse all but `GET /path HTTP/1.1` with single spaces: httptools also takes RTSP, HTTP/0.9 and more spaces."""
        line = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._target, version.encode())
        exact = self._head.lstrip(b"\r\n").startswith(line)
        if not exact or version not in ("1.0", "1.1") or b"#" in self._target:
            self._stop(protocol.MALFORMED)

    def _request(self, body: bytes) -> Request:
        version = self._parser.get_http_version()
        return Request(
            method=self._parser.get_method().decode("latin-1"),
            target=self._target.decode("latin-1"),
            headers=self._headers,
            body=body,
            http_1_0=version == "1.0",
            keep_alive=bool(self._parser.should_keep_alive()),
        )

    def _complete(self, request: Request) -> None:
        self.requests.append(request)
        self.partial = False
        self._expects = False

    def _end_without_body(self) -> None:
        """Complete a request without its body, which is too large or not wanted; the connection ends after its response."""
        request = self._request(b"")
        request.too_large, request.keep_alive = True, False
        self.requests.append(request)
        self.partial = False
        self._stop(protocol.TOO_LARGE)

    def _stop(self, problem: Response) -> None:
        self.problem = self.problem or problem
        raise ValueError("stop")  # httptools turns it into its own error and stops

    def _clear(self) -> None:
        self._target = self._head = b""
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()  # joined at once: very many objects of a few bytes would take far more memory
        self._body_bytes = self._raw_bytes = self._left_bytes = 0
        self._head_done = False
