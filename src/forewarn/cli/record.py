"""`forewarn record`: what an endpoint tells this machine, written down to be replayed."""

import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, BinaryIO

import typer

from forewarn.cli.output import Output
from forewarn.cli.session import usage
from forewarn.core.document import NEWEST, VERSIONS
from forewarn.core.durations import duration_text, parse_duration
from forewarn.core.errors import ForewarnError, Invalid

STOPPED = "it was told to stop"


def record(
    endpoint: Annotated[
        str, typer.Option(metavar="URL", help="Where to ask [default: found as the agent finds it]")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A new file to write to [default: standard output]", show_default=False),
    ] = None,
    for_: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long, like `1h` [default: until SIGTERM or Ctrl-C]")
    ] = "",
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Replace every name, the same one always by the same.", show_default=False)
    ] = False,
    api_version: Annotated[
        str, typer.Option(metavar="VERSION", help="The version of the protocol to ask for.")
    ] = NEWEST,
) -> None:
    """Write down what this machine is told of maintenance, for `emulate --replay`. Only reads: it approves nothing.

    Each change of the document is a line of JSON as it came, with failures and the time since the beginning. Asking enables
    the machine's scope, as any guest's asking does.
    """
    if api_version not in VERSIONS:
        raise usage(f"--api-version: {api_version!r} is not one of {', '.join(VERSIONS)}")
    from forewarn.guest.discovery import normal_endpoint
    from forewarn.guest.errors import ConfigError
    from forewarn.service import logs
    from forewarn.testing.recorder import Recorder
    from forewarn.testing.recording_file import Line

    try:
        for_s = parse_duration(for_) if for_ else None
        if endpoint:
            normal_endpoint(endpoint)
    except (Invalid, ConfigError) as error:
        raise usage(str(error)) from None
    file = _opened(output)
    logs.set_up("error")  # each failure is told below, as a line of the recording
    out = Output()
    # Why it ends; a queue's `put` may interrupt itself, as two signals at once do.
    ended: SimpleQueue[tuple[str, bool]] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.put((STOPPED, True)))

    def said(line: Line) -> None:
        out.aside(f"+{duration_text(int(line.at_s)):<7} {line}")

    with file as writable:
        recorder = Recorder(
            endpoint,
            writable,
            api_version=api_version,
            scrub=scrub,
            on_line=said,
            on_end=lambda reason: ended.put((reason or "it is as long as a recording may be", not reason)),
        )
        recorder.start()
        try:
            reason, well = ended.get(timeout=for_s)
        except Empty:
            reason, well = "the time is up", True
        recorder.stop()
    if not well:
        raise ForewarnError(f"the recording ends after {recorder.lines} line(s): {reason}")
    out.aside(f"recorded {recorder.lines} line(s) to {output or 'standard output'}: {reason}")


def _opened(output: Path | None) -> "BinaryIO | nullcontext[BinaryIO]":
    """A file that is there already may be a recording: it stays as it is."""
    if output is None:
        return nullcontext(sys.stdout.buffer)
    try:
        return output.open("xb")
    except FileExistsError:
        raise usage(f"{output}: it is there already: name a new file, or move it away") from None
    except OSError as error:
        raise usage(f"{output}: cannot be written: {error.strerror}") from None
