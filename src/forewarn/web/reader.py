"""Bytes in, requests out: a parser (httptools) with our limits around it. Knows nothing of callers or documents.

The parser is strict about headers and framing but speaks more than HTTP/1: what it lets through beyond the grammar is
refused here. A request either reads exactly as the grammar has it, or the connection ends with an error.
"""

from typing import Any

import httptools

from forewarn.web import answers
from forewarn.web.answers import Answer, Request

# The parser gets its bytes in pieces of at most this size: by so much a head may exceed its limit before it is noticed.
PIECE_BYTES = 4 * 1024
# A chunked body in the smallest chunks, "1\r\nx\r\n", costs six bytes a byte; whoever sends more is not sending a body.
RAW_BYTES_PER_BODY_BYTE = 8
BLANKS = " \t"


class Reader:
    """One connection's parser. After `feed`: `requests` that are complete, `problem` if the rest cannot be read."""

    __slots__ = (
        "_began", "_body", "_body_bytes", "_expects", "_head_done", "_headers", "_line_from", "_max_body_bytes",
        "_max_head_bytes", "_max_headers", "_owed", "_owed_bytes", "_parser", "_raw_bytes", "_target", "_window",
        "partial", "problem", "requests",
    )  # fmt: skip

    def __init__(self, *, max_head_bytes: int, max_headers: int, max_body_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._max_headers = max_headers
        self._max_body_bytes = max_body_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self.requests: list[Request] = []
        self.problem: Answer | None = None
        self.partial = False
        self._expects = False
        self._window = b""
        self._owed: Request | None = None
        self._owed_bytes = 0
        self._clear()

    def feed(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if self.problem is None:
                self._feed(data[start : start + PIECE_BYTES])

    def _feed(self, piece: bytes) -> None:
        self._began = False
        self._window, self._line_from = self._window + piece if self.partial and not self._head_done else piece, 0
        rest = piece
        while rest and self.problem is None:
            rest = self._taken(rest, self._owed) if self._owed is not None else self._parsed(rest)
        if self.partial and not self._began:
            # What comes in pieces is counted by the piece: neither a head nor a body's wrapping may grow for ever.
            self._raw_bytes += len(piece)
            if not self._head_done and self._raw_bytes > self._max_head_bytes:
                self.problem = self.problem or answers.HEADERS_TOO_LARGE
            elif self._raw_bytes > self._max_head_bytes + RAW_BYTES_PER_BODY_BYTE * self._max_body_bytes:
                self.problem = self.problem or answers.TOO_LARGE

    def _parsed(self, data: bytes) -> bytes:
        """Whatever the parser left over."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # "A server MAY ignore a received Upgrade header field": the next request, or this one's body, follows.
            return data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self.problem = self.problem or answers.MALFORMED
        return b""

    def _taken(self, data: bytes, request: Request) -> bytes:
        """The parser believes that nothing of ours follows an Upgrade: the body of such a request is counted here."""
        taken, rest = data[: self._owed_bytes], data[self._owed_bytes :]
        self._owed_bytes -= len(taken)
        request.body += taken
        if not self._owed_bytes:
            self._owed = None
            self._complete(request)
        return rest

    def wants_continue(self) -> bool:
        """Once: the client waits for `100 Continue` before it sends the body."""
        wants = self._expects and self.partial and self.problem is None
        self._expects = False
        return wants

    # -- called by the parser

    def on_message_begin(self) -> None:
        self._clear()
        self.partial = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer comes too late to say anything: a Metadata header after the body is none.
        if not self._head_done:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip(BLANKS)))

    def on_headers_complete(self) -> None:
        self._head_done = True
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._max_head_bytes or len(self._headers) > self._max_headers:
            self._stop(answers.HEADERS_TOO_LARGE)
        version = self._parser.get_http_version()
        self._check_line(version)
        for name, value in self._headers:
            if name == "content-length" and int(value) > self._max_body_bytes:
                self._too_large()
            if name == "transfer-encoding" and (
                value.lower() != "chunked" or version != "1.1" or self._parser.should_upgrade()
            ):
                self._stop(answers.MALFORMED)
            if name == "expect":
                self._expects = value.lower() == "100-continue" and version == "1.1"

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            self._too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = self._request(b"".join(self._body))
        lengths = request.values("content-length") if self._parser.should_upgrade() else []
        if lengths and int(lengths[0]):
            self._owed, self._owed_bytes = request, int(lengths[0])
        else:
            self._complete(request)

    # -- behind it

    def _check_line(self, version: str) -> None:
        """`GET /path HTTP/1.1`, one space each: the parser also knows RTSP, Icecast, HTTP/0.9 and longer gaps."""
        line = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._target, version.encode())
        found = self._window.find(line, self._line_from)
        if found < 0 or version not in ("1.0", "1.1") or b"#" in self._target:
            self._stop(answers.MALFORMED)
        self._line_from = found + len(line)

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

    def _too_large(self) -> None:
        """The request is answered as far as it can be judged without its body, and the connection ends."""
        request = self._request(b"")
        request.too_large, request.keep_alive = True, False
        self.requests.append(request)
        self.partial = False
        self._stop(answers.TOO_LARGE)

    def _stop(self, problem: Answer) -> None:
        self.problem = self.problem or problem
        raise ValueError("stop")  # the parser turns it into its own error and stops

    def _clear(self) -> None:
        self._began = True
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._raw_bytes = 0
        self._head_done = False
