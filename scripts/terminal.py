"""Runs a short terminal session, `make run` and the commands that it prints, and draws it as docs/images/terminal.svg.

Needs the demo's default ports. `make screenshots` calls it.
"""

import io
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS = 108
WITHIN_S = 60.0
LAST_LINE = "print every change"
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)


class Terminal:
    """A terminal that runs commands and records their text."""

    def __init__(self) -> None:
        self._console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        # Without what `make screenshots` hands down, so that `make run` prints no folders.
        ours = ("FOREWARN_", "MAKE", "MFLAGS")
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        self._environment |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "NO_PROXY": "*"}

    def comment(self, text: str) -> None:
        self._console.print(Text(f"\n# {text}", style="dim italic"))

    def run(self, command: str) -> str:
        """Run a command to its end and return its output."""
        process, screen = self._open(command)
        output = _read(screen, lambda _: process.poll() is not None)
        if process.wait(WITHIN_S):
            sys.exit(f"{command}: ended with {process.returncode}:\n{output}")
        self._record(command, output)
        return output

    def start(self, command: str, last_line: str) -> "tuple[subprocess.Popen[bytes], str]":
        """Start a command and return it with its output when that has `last_line`. The command continues."""
        process, screen = self._open(command)
        output = _read(screen, lambda text: last_line in text or process.poll() is not None)
        if process.poll() is not None:
            sys.exit(f"{command}: ended with {process.returncode}:\n{output}")
        self._record(command, output)
        return process, output

    def export(self, line: str) -> None:
        """Set the variable of an `export` for the following commands."""
        name, _, value = shlex.split(line)[1].partition("=")
        self._environment[name] = value
        self._record(line, "")

    def draw(self, title: str) -> str:
        svg = self._console.export_svg(title=title, unique_id="terminal")
        # The picture loads no fonts from other sites.
        return COMMENT.sub("", FONT.sub("", svg)).replace("Fira Code", "ui-monospace, Menlo, Consolas")

    def _open(self, command: str) -> "tuple[subprocess.Popen[bytes], int]":
        screen, command_side = pty.openpty()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=command_side,
            stderr=command_side,
            cwd=ROOT,
            env=self._environment,
            start_new_session=True,
        )
        os.close(command_side)
        return process, screen

    def _record(self, command: str, output: str) -> None:
        prompt = Text.assemble(("$ ", "bold green"), (command, "bold bright_white"))
        for line in (*prompt.split(), *map(Text.from_ansi, output.rstrip().splitlines())):
            # A terminal breaks lines at its width, not between words.
            for part in line.divide(range(COLUMNS, len(line), COLUMNS)):
                self._console.print(part, highlight=False)


def _read(screen: int, is_complete: Callable[[str], bool]) -> str:
    output = b""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        complete = is_complete(output.decode("utf-8", "replace"))
        if select.select([screen], [], [], 0.1)[0]:
            try:
                output += os.read(screen, 65_536)
            except OSError:  # the last writer has closed it
                break
        elif complete:
            break
    return output.decode("utf-8", "replace").replace("\r\n", "\n")


def printed_command(output: str, beginning: str, index: int = 0) -> str:
    """Return a command that the demo prints, without its comment. It continues on the next line after a pipe."""
    commands: list[str] = re.findall(rf"(?m)^  ({re.escape(beginning)}(?:.*\|\n)*.*)$", output)
    return commands[index].partition("   #")[0].rstrip()


def main() -> None:
    terminal = Terminal()
    demo, output = terminal.start("make run", LAST_LINE)
    try:
        terminal.comment("in another terminal, as the machine web-0, and as its operator")
        terminal.run(printed_command(output, "curl"))
        terminal.export(printed_command(output, "export"))
        (program,) = re.findall(r"(?m)^  (\S+) status\b", output)
        listed = terminal.run(f"{program} event list --scope shop --status Scheduled")
        event = re.search(r"\b[0-9A-F]{8}\b", listed)
        terminal.run(printed_command(output, "curl", 1))
        if event is None:
            sys.exit(f"the list has no event:\n{listed}")
        terminal.run(f"{program} event show {event.group()}")
    finally:
        os.killpg(demo.pid, signal.SIGTERM)
        demo.wait(WITHIN_S)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(terminal.draw("forewarn"), "utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
