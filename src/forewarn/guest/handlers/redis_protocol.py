"""The part of Redis' protocol that the handler needs: one command, one reply, one deadline for both, on its own connection.

Replies are read within limits. An error reply raises ErrorReply; every other failure raises OSError. A password appears in the
request and nowhere else.
"""

from __future__ import annotations

import re
import socket
from typing import Dict, List, Sequence, Union

from forewarn.guest.sockets import Deadline, connect

MAX_ANSWER_BYTES = 1024 * 1024
MAX_DEPTH = 4
_CHUNK_BYTES = 64 * 1024
# An address may come from another server, so it is checked.
_PORT = re.compile("[0-9]{1,5}")

Reply = Union[str, int, None, List["Reply"]]


class ErrorReply(Exception):
    """An error reply, with its text."""


def query(address: str, arguments: Sequence[str], *, login: Sequence[str] = (), seconds: float) -> Reply:
    """Return the reply of `host:port`; `login` is the password, or user and password."""
    deadline = Deadline(seconds)
    host, _, port = address.rpartition(":")
    if not (_PORT.fullmatch(port) and host.isprintable()):
        raise OSError(f"{address[:100]!r} is not an address")
    with connect(host.strip("[]"), int(port), deadline) as connection:
        parser = _ReplyParser(connection, deadline)
        if login:
            _send(connection, ("AUTH", *login), deadline)
            try:
                parser.reply()
            except ErrorReply as error:
                raise ErrorReply(f"the login is refused: {str(error).partition(' ')[0]}") from None
        _send(connection, arguments, deadline)
        return parser.reply()


def parse_info(info: Reply) -> Dict[str, str]:
    """Return the `key:value` lines of an INFO reply."""
    if not isinstance(info, str):
        raise OSError("its INFO is not a text")
    pairs = (line.partition(":") for line in info.splitlines() if not line.startswith("#"))
    return {key: value.strip() for key, colon, value in pairs if colon}


def _send(connection: socket.socket, arguments: Sequence[str], deadline: Deadline) -> None:
    parts = [f"*{len(arguments)}\r\n".encode()]
    for argument in arguments:
        data = argument.encode()
        parts += [f"${len(data)}\r\n".encode(), data, b"\r\n"]
    connection.settimeout(deadline.left_s())
    connection.sendall(b"".join(parts))


class _ReplyParser:
    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection, self._deadline = connection, deadline
        self._buffer, self._read_bytes = b"", 0

    def reply(self, depth: int = 0) -> Reply:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == "+":
            return rest
        if kind == "-":
            raise ErrorReply(rest[:200])
        if kind == ":":
            return self._number(rest)
        if kind == "$":
            size = self._number(rest)
            return None if size < 0 else self._take(size + 2)[:-2].decode("utf-8", "replace")
        if kind == "*" and depth < MAX_DEPTH:
            count = self._number(rest)
            return None if count < 0 else [self.reply(depth + 1) for _ in range(min(count, MAX_ANSWER_BYTES))]
        raise OSError("this is not Redis: its reply cannot be read")

    def _number(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise OSError("this is not Redis: its reply cannot be read") from None

    def _line(self) -> str:
        while b"\r\n" not in self._buffer:
            self._receive()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line.decode("utf-8", "replace")

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _receive(self) -> None:
        self._connection.settimeout(self._deadline.left_s())
        chunk = self._connection.recv(_CHUNK_BYTES)
        self._read_bytes += len(chunk)
        if not chunk:
            raise OSError("its answer broke off")
        if self._read_bytes > MAX_ANSWER_BYTES:
            raise OSError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        self._buffer += chunk
