"""`forewarn record`: write what an endpoint answers to a file that the emulator can replay."""

import math
import signal
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, BinaryIO

import typer

from forewarn.cli.options import cannot_write, seconds, usage
from forewarn.cli.output import Output
from forewarn.core.document import NEWEST, VERSIONS
from forewarn.core.durations import duration_text
from forewarn.core.errors import ForewarnError
from forewarn.core.model import NAME

STOPPED = "it was stopped"
WAKE_EVERY_S = 0.5


def record(
    endpoint: Annotated[str, typer.Option(metavar="URL", help="The endpoint [default: as the agent finds it]")] = "",
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A new file to write to [default: standard output]", show_default=False),
    ] = None,
    for_: Annotated[
        str,
        typer.Option(
            "--for", metavar="DURATION", help="How long to record, like `1h` [default: until SIGTERM or Ctrl-C]"
        ),
    ] = "",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The machine's name in the recording [default: as the endpoint says]")
    ] = "",
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Replace every name, each name always by the same one.", show_default=False)
    ] = False,
    api_version: Annotated[
        str, typer.Option(metavar="VERSION", help="The version of the protocol to request.")
    ] = NEWEST,
) -> None:
    """Record what the endpoint answers this machine, for `emulate --replay`. It approves nothing.

    Each change of the document, and each failure, becomes a line of JSON with the time since the beginning. Its polls enable
    the machine's scope, as the polls of any guest do.
    """
    if api_version not in VERSIONS:
        raise usage(f"--api-version: {api_version!r} is not one of {', '.join(VERSIONS)}")
    if name and not NAME.fullmatch(name):
        raise usage(f"--name: {name!r} is not a name of a machine: use up to 64 letters, digits, '.', '_' and '-'")
    _check_endpoint(endpoint)
    from forewarn.service import logs
    from forewarn.testing.recorder import Recorder

    for_s = seconds("--for", for_) if for_ else None
    file = _open(output)
    logs.set_up("error")  # failures are lines of the recording, which are printed below
    out = Output()
    ended = _ends()
    with file as writable:
        recorder = Recorder(
            endpoint,
            writable,
            api_version=api_version,
            name=name,
            scrub=scrub,
            on_line=lambda line: out.aside(f"+{duration_text(int(line.at_s)):<7} {line}"),
            on_end=lambda reason: ended.put((reason or "it has reached the largest size of a recording", not reason)),
        )
        recorder.start()
        reason, ok = _wait_for(ended, for_s)
        recorder.stop()
    if not ok:
        raise ForewarnError(f"the recording ends after {recorder.lines} line(s): {reason}")
    out.aside(f"recorded {recorder.lines} line(s) to {output or 'standard output'}: {reason}")


def _check_endpoint(endpoint: str) -> None:
    from forewarn.guest.discovery import normal_endpoint
    from forewarn.guest.errors import ConfigError

    try:
        if endpoint:
            normal_endpoint(endpoint)
    except ConfigError as error:
        raise usage(str(error)) from None


def _ends() -> SimpleQueue[tuple[str, bool]]:
    """Return the queue of reasons to end the recording, each with whether the command succeeds; with a signal it does."""
    ended: SimpleQueue[tuple[str, bool]] = SimpleQueue()  # two signals at once may interrupt a `put` with another
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.put((STOPPED, True)))
    return ended


def _wait_for(ended: "SimpleQueue[tuple[str, bool]]", for_s: float | None) -> tuple[str, bool]:
    """Return the first reason to end, or that the time is up.

    Python handles a signal in this thread, which does not wake up if another thread received the signal.
    """
    ends_at_s = math.inf if for_s is None else time.monotonic() + for_s
    while (left_s := ends_at_s - time.monotonic()) > 0:
        with suppress(Empty):
            return ended.get(timeout=min(left_s, WAKE_EVERY_S))
    return "the time is up", True


def _open(output: Path | None) -> "BinaryIO | nullcontext[BinaryIO]":
    """Open a new file. Do not overwrite an existing one: it may be a recording."""
    if output is None:
        return nullcontext(sys.stdout.buffer)
    try:
        return output.open("xb")
    except FileExistsError:
        raise usage(f"{output}: the file exists: name another file, or move it away") from None
    except OSError as error:
        raise cannot_write(output, error) from None
