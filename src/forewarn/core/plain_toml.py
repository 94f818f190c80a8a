"""Read large TOML texts fast if they are plain: arrays of tables whose strings have no escapes, as programs write them.

The tables of such a text have few shapes: without the contents of their strings, most are equal. `tomllib` reads each shape
once, with a mark in place of each string; a table is then its shape and its strings. Other texts raise NotPlain, also texts
that are not TOML: the caller leaves them to `tomllib`, which takes ten times as long and explains what is wrong.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

MAX_SHAPES = 4_096
CHUNK_CHARS = 1 << 18
# No text outside of strings contains it.
MARK = "\ue000"
COMMENT_LINES = re.compile(r"^[ \t]*#[^\n]*$", re.MULTILINE)
QUOTED_KEY = re.compile(rf'"{MARK}[0-9]+"\s*[=.]')
HEADER = re.compile(r"\n\s*\[")
# What TOML does not allow in a string or a comment, apart from line feeds.
CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), 127)]

T = TypeVar("T")
# Makes something of the strings of a table, which are every second part of its text.
Make = Callable[[list[str]], T]


class NotPlain(Exception):
    """The text is not plain TOML, or not TOML at all."""


class PlainTables(Generic[T]):
    """Reads the tables of a text. `learn` gets the name and the marked table of a shape, and returns what makes its things."""

    def __init__(self, learn: Callable[[str, dict[str, Any]], Make[T]]) -> None:
        self._learn = learn
        # With the number of line feeds, none of which is in a string.
        self._shapes: dict[tuple[str, ...], tuple[Make[T], int]] = {}

    def read(self, text: str) -> Iterator[T]:
        """Yield what each table makes; raise NotPlain at the first that is not plain."""
        shapes = self._shapes
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        for table in chain.from_iterable(map(_tables, _chunks(text))):
            parts = table.split('"')
            shape = tuple(parts[::2])
            known = shapes.get(shape)
            make, line_feeds = known if known is not None else self._new_shape(shape)
            # A string without its end, or over several lines.
            if not len(parts) % 2 or table.count("\n") != line_feeds:
                raise NotPlain
            yield make(parts)

    def _new_shape(self, shape: tuple[str, ...]) -> tuple[Make[T], int]:
        marked = "[[" + "".join(f'{part}"{MARK}{2 * index + 1}"' for index, part in enumerate(shape[:-1])) + shape[-1]
        try:
            document = tomllib.loads(marked)
        except (ValueError, RecursionError):
            raise NotPlain from None
        # Quoted keys may be equal, which the marks would hide.
        if "#" in marked or QUOTED_KEY.search(marked) or len(self._shapes) >= MAX_SHAPES:
            raise NotPlain
        name, tables = document.popitem()
        # An indented header, a quoted name, or a table within the table.
        if document or MARK in name or not isinstance(tables, list) or HEADER.search(marked):
            raise NotPlain
        known = self._shapes[shape] = self._learn(name, tables[0]), marked.count("\n")
        return known


def _chunks(text: str) -> Iterator[str]:
    """Yield the text in pieces of whole tables, so that no copy of the whole text is made."""
    start = 0
    while start < len(text):
        end = text.find("\n[[", start + CHUNK_CHARS)
        end = end if end >= 0 else len(text)
        yield text[start:end]
        start = end + 1


def _tables(chunk: str) -> list[str]:
    """Return the texts of the tables, each without its first two brackets."""
    if '"""' in chunk:
        raise NotPlain
    if any(control in chunk for control in CONTROLS):
        raise NotPlain
    if "#" in chunk:
        chunk = COMMENT_LINES.sub("", chunk)
    if "'" in chunk or "\\" in chunk or MARK in chunk:
        raise NotPlain
    before, *tables = f"\n{chunk}".split("\n[[")
    if before.strip(" \t\n"):
        raise NotPlain
    return tables


def filled(marked: Any, parts: list[str]) -> Any:
    """Return a marked value with the strings of a table in place of the marks."""
    if isinstance(marked, str):
        return parts[int(marked[1:])] if marked.startswith(MARK) else marked
    if isinstance(marked, dict):
        return {filled(key, parts): filled(value, parts) for key, value in marked.items()}
    if isinstance(marked, list):
        return [filled(value, parts) for value in marked]
    return marked
