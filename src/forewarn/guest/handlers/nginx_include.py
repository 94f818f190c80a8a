"""The file of an upstream's `server` lines that nginx includes: which are down, and writing it whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import List, NamedTuple, Tuple

from forewarn.guest.errors import StepFailed

MAX_BYTES = 64 * 1024
# One a line, as in `server 10.0.0.4:80 weight=2;`; what stands in a comment does not begin with `server`.
_LINE = re.compile(r"(?m)^[ \t]*server[ \t]+([^\s;#]+)([^;#\n]*);")


class Upstream(NamedTuple):
    """The text of the file; bytes that are no UTF-8 survive."""

    text: str

    def is_down(self, servers: Tuple[str, ...]) -> bool:
        """Whether each of these is there and down in every line it has."""
        lines = self._lines()
        return all(any(name == each for name, _ in lines) for each in servers) and not any(
            name in servers and not down for name, down in lines
        )

    def marked(self, servers: Tuple[str, ...]) -> Upstream:
        """With these down; StepFailed when one is not there."""
        there = {name for name, _ in self._lines()}
        for each in servers:
            if each not in there:
                raise StepFailed(f"no line `server {each} …;` is in the include file")

        def mark(found: re.Match[str]) -> str:
            if found[1] not in servers or "down" in found[2].split():
                return found[0]
            return f"{found[0][:-1].rstrip()} down;"

        return Upstream(_LINE.sub(mark, self.text))

    def others_up(self, servers: Tuple[str, ...]) -> int:
        return sum(name not in servers and not down for name, down in self._lines())

    def _lines(self) -> List[Tuple[str, bool]]:
        return [(found[1], "down" in found[2].split()) for found in _LINE.finditer(self.text)]


def read(file: str) -> Upstream:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise StepFailed(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise StepFailed(f"{file} is larger than {MAX_BYTES} bytes: give the `server` lines a file of their own")
    return Upstream(data.decode("utf-8", "surrogateescape"))


def write(file: str, upstream: Upstream) -> None:
    """On the disk when this returns, with the owner and mode that the file had; whoever reads meanwhile reads all of one."""
    path = Path(file).resolve()  # a link stays one
    beside = path.with_name(f".{path.name}.forewarn")  # a name that no `include *.conf` takes
    try:
        was = path.stat()
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(opened, "wb") as out:
            out.write(upstream.text.encode("utf-8", "surrogateescape"))
            out.flush()
            os.fchmod(opened, was.st_mode & 0o7777)
            with contextlib.suppress(PermissionError):
                os.fchown(opened, was.st_uid, was.st_gid)
            os.fsync(opened)
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise StepFailed(f"{file} cannot be written: {error.strerror}") from None
