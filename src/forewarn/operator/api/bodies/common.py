"""What the bodies of all calls share: their base classes, a page of a list, an error, and the types of names and numbers."""

from typing import Annotated, Generic, TypeVar

import msgspec

from forewarn.core.selectors import MAX_PATTERN_CHARS

MAX_LIST = 10_000
Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="a name of 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit",
    ),
]
HostPattern = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9*?\[][A-Za-z0-9._*?\[\]!-]{0,63}$",
        description="a name, or a pattern of names with `*`, `?` or `[ab]`",
    ),
]
MachinePattern = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        pattern=r"^[A-Za-z0-9._*?\[\]!/-]{1,129}$",
        description="a pattern of names, or of `scope/name`, with `*`, `?` or `[ab]`",
    ),
]
MachineName = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=129, description="`scope/name`, or the name alone where only one machine has it"
    ),
]
Text = Annotated[str, msgspec.Meta(max_length=1_024)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2_592_000)]
Domain = Annotated[int, msgspec.Meta(ge=0, le=999)]

T = TypeVar("T")


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request's body or its query parameters."""


class ResponseBody(msgspec.Struct, kw_only=True):
    """A response's body, or a part of it."""


class Page(ResponseBody, Generic[T]):
    """One page of a list; `next_cursor` is the cursor of the next page, null at the end."""

    items: list[T]
    next_cursor: str | None = None


class Problem(ResponseBody):
    """What is wrong, or may surprise: a stable code for programs, a sentence for people."""

    code: str
    message: str


class Error(ResponseBody):
    """The body of every error."""

    error: Problem
