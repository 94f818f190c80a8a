"""The file format of recordings: JSON lines with the answers of an endpoint to one machine. Only this module knows it.

The first line describes the recording. Each other line has the answer of the endpoint from its time on, until the next line.
A file may come from any source, so every line is checked. A last line without a line end is ignored, because a kill of the
recorder may have cut it off.
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
from forewarn.testing.faults import NO_BODY

FORMAT = 1
MAX_LINES = 100_000
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_AT_S = 3_650 * 86_400
MAX_HEADER_CHARS = 256
# The headers that guests use. `Connection` is recorded only if it says that the endpoint closes the connection.
HEADERS = ("Date", "ETag", "Retry-After", "Connection")

Failure = Literal["unreachable", "no-answer", "cut"]
T = TypeVar("T")


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The first line. `machine` is the recorded machine's name from the endpoint, or "" if the endpoint has none."""

    forewarn_recording: int
    api_version: str
    began: str = ""
    endpoint: str = ""
    machine: Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z")] = ""
    scrubbed: bool = False

    def __post_init__(self) -> None:
        if self.forewarn_recording != FORMAT:
            raise ValueError(
                f"format {self.forewarn_recording} is unknown: this version of forewarn reads format {FORMAT}"
            )
        if self.api_version not in VERSIONS:
            raise ValueError(f"api_version {self.api_version!r} is not one of {', '.join(VERSIONS)}")


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The answer from `at_s` on, byte for byte, or the failure to answer. A body that is not UTF-8 is base64."""

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
            raise ValueError(f"status {self.status} cannot be replayed")
        if (self.body and self.body_base64) or len(self.raw) > MAX_BODY_BYTES:
            raise ValueError(f"a line has one body, of at most {MAX_BODY_BYTES} bytes")
        for name, value in self.headers.items():
            if error := header_error(name, value):
                raise ValueError(error)

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
    def closes(self) -> bool:
        """Whether the endpoint closed the connection after the answer."""
        return "Connection" in self.headers

    @property
    def event_ids(self) -> frozenset[str]:
        """The ids of the events in the document, in upper case, if the body is a document."""
        if self.status != 200:
            return frozenset()
        try:
            return frozenset(event.key for event in parse_document(self.raw).events)
        except BadDocument:
            return frozenset()

    def equals(self, other: "Line | None") -> bool:
        """Whether both lines have the same outcome, at any time."""
        return other is not None and (self.status, self.failure, self.etag, self.raw) == (
            other.status,
            other.failure,
            other.etag,
            other.raw,
        )

    def __str__(self) -> str:
        return self.failure or f"{self.status}, {len(self.raw)} bytes"


def header_error(name: str, value: str) -> str:
    """Return why a line cannot have this header, or "" if it can."""
    if name not in HEADERS:
        return f"header {name!r} is not one of {', '.join(HEADERS)}"
    if len(value) > MAX_HEADER_CHARS or not value.isascii() or not value.isprintable():
        return f"header {name} is not a line of plain text of up to {MAX_HEADER_CHARS} characters"
    if name == "Connection" and value.lower() != "close":
        return f"Connection {value!r} is not close"
    if name == "Date" and parse_moment(value) is None:
        return f"Date {value!r} is not like Mon, 19 Sep 2016 18:29:47 GMT"
    return ""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording with at least one line, ordered by time."""

    head: Head
    lines: tuple[Line, ...]

    @property
    def event_ids(self) -> frozenset[str]:
        return frozenset[str]().union(*(line.event_ids for line in self.lines))


def body_fields(raw: bytes) -> dict[str, str | bytes]:
    """Return the arguments of a Line for this body."""
    try:
        return {"body": raw.decode()}
    except UnicodeDecodeError:
        return {"body_base64": raw}


def encode(line: Head | Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_recording(path: Path, *, max_lines: int = MAX_LINES, max_bytes: int = MAX_FILE_BYTES) -> Recording:
    """Read a recording; raise InvalidSettings with the file, the line and the reason if it is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise InvalidSettings(f"{path}: larger than {max_bytes} bytes, the limit for recordings")
    *texts, _ = data.split(b"\n")
    if not 2 <= len(texts) <= max_lines + 1:
        raise InvalidSettings(
            f"{path}: a recording has a first line and 1 to {max_lines} others: this has {len(texts)} whole line(s)"
        )
    head = _parse(texts[0], Head, f"{path}: line 1")
    lines = tuple(_parse(text, Line, f"{path}: line {number}") for number, text in enumerate(texts[1:], 2))
    for number, (before, after) in enumerate(pairwise(lines), 3):
        if after.at_s < before.at_s:
            raise InvalidSettings(f"{path}: line {number}: at_s {after.at_s:g} is earlier than the line before it")
    return Recording(head, lines)


def _parse(text: bytes, kind: type[T], position: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidSettings(f"{position}: {error}: write it with `forewarn record`") from None
