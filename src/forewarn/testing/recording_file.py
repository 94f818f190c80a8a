"""Recordings: what an endpoint answered a machine, as a file of JSON lines that is written and read here and nowhere else.

The first line says what is recorded; each other one what the endpoint answers from that moment on, until the next. A file may
come from anywhere, or have been cut off by a kill: a last line without an end is left out, all else must be as it should.
"""

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from forewarn.core.document import VERSIONS
from forewarn.core.errors import InvalidSettings
from forewarn.guest.document import parse_document, parse_moment
from forewarn.guest.errors import BadDocument

FORMAT = 1
MAX_LINES = 100_000
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_BODY_BYTES = 1024 * 1024
MAX_AT_S = 3_650 * 86_400
MAX_HEADER_CHARS = 256
# What a guest acts on; the rest is the server's own.
HEADERS = ("Date", "ETag", "Retry-After")
# These cannot be answers with a body.
NO_BODY = (204, 205, 304)

Failure = Literal["unreachable", "no-answer", "cut"]
T = TypeVar("T")


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The first line. `machine` is who asked, as the endpoint has it; "" where it did not say."""

    forewarn_recording: int
    api_version: str
    began: str = ""
    endpoint: str = ""
    machine: Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z")] = ""
    scrubbed: bool = False

    def __post_init__(self) -> None:
        if self.forewarn_recording != FORMAT:
            raise ValueError(f"format {self.forewarn_recording} is not known: this forewarn reads {FORMAT}")
        if self.api_version not in VERSIONS:
            raise ValueError(f"api_version {self.api_version!r} is not one of {', '.join(VERSIONS)}")


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """From `at_s` on: an answer, byte for byte, or a failure to answer. A body that is no text is base64."""

    at_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_AT_S)]
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    failure: Failure | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: str = ""
    body_base64: bytes = b""

    def __post_init__(self) -> None:
        if (self.status is None) == (self.failure is None):
            raise ValueError("a line has either a status or a failure")
        if self.failure is not None and (self.headers or self.raw):
            raise ValueError("a failure has no headers and no body")
        if self.status in NO_BODY:
            raise ValueError(f"status {self.status} is no answer to replay")
        if (self.body and self.body_base64) or len(self.raw) > MAX_BODY_BYTES:
            raise ValueError(f"a line has one body, of at most {MAX_BODY_BYTES} bytes")
        for name, value in self.headers.items():
            if complaint := header_complaint(name, value):
                raise ValueError(complaint)

    @property
    def raw(self) -> bytes:
        return self.body_base64 or self.body.encode()

    @property
    def date(self) -> datetime | None:
        return parse_moment(self.headers.get("Date", ""))

    @property
    def etag(self) -> str:
        return self.headers.get("ETag", "")

    @property
    def event_ids(self) -> frozenset[str]:
        """Of the document, if it is one."""
        if self.status != 200:
            return frozenset()
        try:
            return frozenset(event.id for event in parse_document(self.raw).events)
        except BadDocument:
            return frozenset()

    def says_the_same(self, other: "Line | None") -> bool:
        """At whatever time."""
        return other is not None and (self.status, self.failure, self.etag, self.raw) == (
            other.status,
            other.failure,
            other.etag,
            other.raw,
        )

    def __str__(self) -> str:
        return self.failure or f"{self.status}, {len(self.raw)} bytes"


def header_complaint(name: str, value: str) -> str:
    """ "" or why a line cannot have it."""
    if name not in HEADERS:
        return f"header {name!r} is not one of {', '.join(HEADERS)}"
    if len(value) > MAX_HEADER_CHARS or not value.isascii() or not value.isprintable():
        return f"header {name} is not a line of plain text of up to {MAX_HEADER_CHARS} characters"
    if name == "Date" and parse_moment(value) is None:
        return f"Date {value!r} is not like Mon, 19 Sep 2016 18:29:47 GMT"
    return ""


@dataclass(frozen=True, slots=True)
class Recording:
    """At least one line, in the order of time."""

    head: Head
    lines: tuple[Line, ...]

    @property
    def event_ids(self) -> frozenset[str]:
        return frozenset[str]().union(*(line.event_ids for line in self.lines))


def body_fields(raw: bytes) -> dict[str, str | bytes]:
    """A body as the arguments of a Line."""
    try:
        return {"body": raw.decode()}
    except UnicodeDecodeError:
        return {"body_base64": raw}


def written(line: Head | Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_recording(path: Path) -> Recording:
    """The recording, or InvalidSettings with the file, the line and what is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidSettings(f"{path}: larger than {MAX_FILE_BYTES} bytes: this is no recording to replay")
    *texts, _ = data.split(b"\n")  # what comes after the last end of a line was cut off while it was written
    if not 2 <= len(texts) <= MAX_LINES + 1:
        raise InvalidSettings(
            f"{path}: a recording has a first line and 1 to {MAX_LINES} others: this has {len(texts)} whole line(s)"
        )
    head = _parsed(texts[0], Head, f"{path}: line 1")
    lines = tuple(_parsed(text, Line, f"{path}: line {number}") for number, text in enumerate(texts[1:], 2))
    for number, (before, after) in enumerate(pairwise(lines), 3):
        if after.at_s < before.at_s:
            raise InvalidSettings(f"{path}: line {number}: at_s {after.at_s:g} is earlier than the line before it")
    return Recording(head, lines)


def _parsed(text: bytes, kind: type[T], place: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidSettings(f"{place}: {error}: write it with `forewarn record`") from None
