"""Values of options and arguments: files, durations and times. A wrong value ends the command with exit code 2."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.formatting import iso

NewTime = Annotated[
    str,
    typer.Option(
        "--not-before", help="The new time: 2030-01-31T22:00:00Z, or +2h.", metavar="TIME", show_default=False
    ),
]


def usage(message: str) -> InvalidSettings:
    """Return the error for wrong usage."""
    return InvalidSettings(message)


def cannot_read(path: Path | str, error: OSError) -> InvalidSettings:
    return usage(f"{path}: cannot be read: {error.strerror}")


def cannot_write(path: Path, error: OSError) -> InvalidSettings:
    return usage(f"{path}: cannot be written: {error.strerror}")


def seconds(option: str, text: str) -> int:
    """Return a duration in seconds; `option` is named in the error."""
    try:
        return parse_duration(text)
    except Invalid as error:
        raise usage(f"{option}: {error}") from None


def moment(option: str, text: str | None, now: str) -> str | None:
    """Return a time as the API reads it; a distance such as `+2h` counts from `now`, the service's time."""
    if text is None:
        return None
    try:
        return iso(_parse_time(text, datetime.fromisoformat(now)))
    except (Invalid, OverflowError) as error:
        raise usage(f"{option}: {error}") from None


def _parse_time(text: str, now: datetime) -> datetime:
    """Read RFC 3339, or a distance from now: `+2h`, `-12h`."""
    if text[:1] in ("+", "-"):
        distance = timedelta(seconds=parse_duration(text[1:]))
        return now + distance if text[0] == "+" else now - distance
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a time: write it like 2030-01-31T22:00:00Z, or +2h from now") from None
    if parsed.tzinfo is None:
        raise Invalid(f"{text!r} has no time zone: write it like {parsed.isoformat()}Z, or +2h from now")
    return parsed.astimezone(UTC)
