"""Plays a short session at a terminal for real, `make run` and what it says to try, and draws it: docs/images/terminal.svg.

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
    """What was typed and what came, as it looked."""

    def __init__(self) -> None:
        self._console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")}
        self._environment |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "NO_PROXY": "*"}

    def remark(self, text: str) -> None:
        self._console.print(Text(f"\n# {text}", style="dim italic"))

    def run(self, command: str) -> str:
        """To its end."""
        process, screen = self._begin(command)
        came = _read(screen, lambda _: process.poll() is not None)
        if process.wait(WITHIN_S):
            sys.exit(f"{command}: ended with {process.returncode}:\n{came}")
        self._show(command, came)
        return came

    def begin(self, command: str, last: str) -> "tuple[subprocess.Popen[bytes], str]":
        """Until it says `last`; it goes on."""
        process, screen = self._begin(command)
        came = _read(screen, lambda text: last in text or process.poll() is not None)
        if process.poll() is not None:
            sys.exit(f"{command}: ended with {process.returncode}:\n{came}")
        self._show(command, came)
        return process, came

    def setting(self, line: str) -> None:
        """An `export` for the commands that follow."""
        name, _, value = shlex.split(line)[1].partition("=")
        self._environment[name] = value
        self._show(line, "")

    def draw(self, title: str) -> str:
        drawn = self._console.export_svg(title=title, unique_id="terminal")
        # Nothing from elsewhere: the reader's own fonts will do.
        return COMMENT.sub("", FONT.sub("", drawn)).replace("Fira Code", "ui-monospace, Menlo, Consolas")

    def _begin(self, command: str) -> "tuple[subprocess.Popen[bytes], int]":
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env=self._environment,
            start_new_session=True,
        )
        os.close(theirs)
        return process, ours

    def _show(self, command: str, came: str) -> None:
        typed = Text.assemble(("$ ", "bold green"), (command, "bold bright_white"))
        for line in (*typed.split(), *map(Text.from_ansi, came.rstrip().splitlines())):
            # As a terminal breaks lines: where they end, not between words.
            for part in line.divide(range(COLUMNS, len(line), COLUMNS)):
                self._console.print(part, highlight=False)


def _read(screen: int, enough: Callable[[str], bool]) -> str:
    came = b""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        over = enough(came.decode("utf-8", "replace"))
        if select.select([screen], [], [], 0.1)[0]:
            try:
                came += os.read(screen, 65_536)
            except OSError:  # the last writer has hung up
                break
        elif over:
            break
    return came.decode("utf-8", "replace").replace("\r\n", "\n")


def pasted(said: str, beginning: str, nth: int = 0) -> str:
    """A command of those it says to try, without its remark; it may go on after a pipe."""
    found: list[str] = re.findall(rf"(?m)^  ({re.escape(beginning)}(?:.*\|\n)*.*)$", said)
    return found[nth].partition("   #")[0].rstrip()


def main() -> None:
    terminal = Terminal()
    demo, said = terminal.begin("make run", LAST_LINE)
    try:
        terminal.remark("in another terminal, as the machine web-0, and as its operator")
        terminal.run(pasted(said, "curl"))
        terminal.setting(pasted(said, "export"))
        (program,) = re.findall(r"(?m)^  (\S+) status\b", said)
        listed = terminal.run(f"{program} event list --scope shop --status Scheduled")
        event = re.search(r"\b[0-9A-F]{8}\b", listed)
        terminal.run(pasted(said, "curl", 1))
        if event is None:
            sys.exit(f"no event was listed:\n{listed}")
        terminal.run(f"{program} event show {event.group()}")
    finally:
        os.killpg(demo.pid, signal.SIGTERM)
        demo.wait(WITHIN_S)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(terminal.draw("forewarn"), "utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
