"""The file with an upstream's `server` lines that nginx includes: which servers are down, and how to replace it atomically."""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Tuple

from forewarn.guest.errors import StepFailed
from forewarn.guest.safe_files import open_regular, read_regular, replace_file

MAX_BYTES = 64 * 1024
# One server per line, as in `server 10.0.0.4:80 weight=2;`. A commented line does not begin with `server`.
_LINE = re.compile(r"(?m)^[ \t]*server[ \t]+([^\s;#]+)([^;#\n]*);")


class Upstream(NamedTuple):
    """The text of the file; bytes that are not UTF-8 are preserved."""

    text: str

    def is_down(self, servers: Tuple[str, ...]) -> bool:
        """Return whether each of these servers is there and down in all of its lines."""
        lines = self._server_lines()
        return all(any(name == each for name, _ in lines) for each in servers) and not any(
            name in servers and not down for name, down in lines
        )

    def with_down(self, servers: Tuple[str, ...]) -> Upstream:
        """Return the text with these servers down; raise StepFailed when one is not there."""
        there = {name for name, _ in self._server_lines()}
        for each in servers:
            if each not in there:
                raise StepFailed(f"the include file has no line `server {each} …;`")

        def mark(match: re.Match[str]) -> str:
            if match[1] not in servers or "down" in match[2].split():
                return match[0]
            return f"{match[0][:-1].rstrip()} down;"

        return Upstream(_LINE.sub(mark, self.text))

    def count_others_up(self, servers: Tuple[str, ...]) -> int:
        return sum(name not in servers and not down for name, down in self._server_lines())

    def _server_lines(self) -> List[Tuple[str, bool]]:
        return [(match[1], "down" in match[2].split()) for match in _LINE.finditer(self.text)]


def read(file: str) -> Upstream:
    try:
        data = read_regular(file, MAX_BYTES + 1, follow=True)
    except OSError as error:
        raise StepFailed(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise StepFailed(f"{file} is larger than {MAX_BYTES} bytes: give the `server` lines a file of their own")
    return Upstream(data.decode("utf-8", "surrogateescape"))


def write(file: str, upstream: Upstream) -> None:
    """Replace the file atomically, synced to the disk, with its owner and mode; keep a symbolic link to it.

    Until then the new content has a name that no `include *.conf` matches.
    """
    try:
        opened = open_regular(file, follow=True)
        try:
            before = os.fstat(opened)
        finally:
            os.close(opened)
        data = upstream.text.encode("utf-8", "surrogateescape")
        replace_file(file, data, before.st_mode & 0o7777, owner=before, follow=True, sync=True)
    except OSError as error:
        raise StepFailed(f"{file} cannot be written: {error.strerror}") from None
