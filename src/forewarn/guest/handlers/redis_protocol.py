"""Redis' protocol as far as a handler needs it: one question, one answer, one deadline for both, on a connection of its own.

Whatever the other side sends is read within limits. An error it answers with is Complaint; anything else that goes wrong is
OSError. A password goes over the wire and nowhere else.
"""

from __future__ import annotations

import re
import socket
from typing import Dict, List, Sequence, Union

from forewarn.guest.sockets import Deadline, connect

MAX_ANSWER_BYTES = 1024 * 1024
MAX_DEPTH = 4
_CHUNK_BYTES = 64 * 1024
# An address may come from another server: it need not be one.
_PORT = re.compile("[0-9]{1,5}")

Reply = Union[str, int, None, List["Reply"]]


class Complaint(Exception):
    """An error reply, in its own words."""


def ask(address: str, words: Sequence[str], *, login: Sequence[str] = (), seconds: float) -> Reply:
    """What `host:port` answers; `login` is the password, or user and password."""
    deadline = Deadline(seconds)
    host, _, port = address.rpartition(":")
    if not (_PORT.fullmatch(port) and host.isprintable()):
        raise OSError(f"{address[:100]!r} is no address")
    with connect(host.strip("[]"), int(port), deadline) as talking:
        reader = _Reader(talking, deadline)
        if login:
            _send(talking, ("AUTH", *login), deadline)
            try:
                reader.reply()
            except Complaint as error:
                raise Complaint(f"the login is refused: {str(error).partition(' ')[0]}") from None
        _send(talking, words, deadline)
        return reader.reply()


def facts(info: Reply) -> Dict[str, str]:
    """The lines `key:value` that INFO answers with."""
    if not isinstance(info, str):
        raise OSError("its INFO makes no sense")
    pairs = (line.partition(":") for line in info.splitlines() if not line.startswith("#"))
    return {key: value.strip() for key, colon, value in pairs if colon}


def _send(talking: socket.socket, words: Sequence[str], deadline: Deadline) -> None:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts += [f"${len(data)}\r\n".encode(), data, b"\r\n"]
    talking.settimeout(deadline.left_s())
    talking.sendall(b"".join(parts))


class _Reader:
    def __init__(self, talking: socket.socket, deadline: Deadline) -> None:
        self._talking, self._deadline = talking, deadline
        self._ahead, self._read_bytes = b"", 0

    def reply(self, depth: int = 0) -> Reply:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == "+":
            return rest
        if kind == "-":
            raise Complaint(rest[:200])
        if kind == ":":
            return self._number(rest)
        if kind == "$":
            size = self._number(rest)
            return None if size < 0 else self._exactly(size + 2)[:-2].decode("utf-8", "replace")
        if kind == "*" and depth < MAX_DEPTH:
            count = self._number(rest)
            return None if count < 0 else [self.reply(depth + 1) for _ in range(min(count, MAX_ANSWER_BYTES))]
        raise OSError("this is no Redis: its answer makes no sense")

    def _number(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise OSError("this is no Redis: its answer makes no sense") from None

    def _line(self) -> str:
        while b"\r\n" not in self._ahead:
            self._more()
        line, _, self._ahead = self._ahead.partition(b"\r\n")
        return line.decode("utf-8", "replace")

    def _exactly(self, size: int) -> bytes:
        while len(self._ahead) < size:
            self._more()
        found, self._ahead = self._ahead[:size], self._ahead[size:]
        return found

    def _more(self) -> None:
        self._talking.settimeout(self._deadline.left_s())
        chunk = self._talking.recv(_CHUNK_BYTES)
        self._read_bytes += len(chunk)
        if not chunk:
            raise OSError("its answer broke off")
        if self._read_bytes > MAX_ANSWER_BYTES:
            raise OSError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        self._ahead += chunk
