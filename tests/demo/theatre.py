"""A real `forewarn demo` in a process of its own, with a temporary folder of its own to leave nothing behind in."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S

FOREWARN = [sys.executable, "-m", "forewarn"]
LAST_LINE = "event watch"
# A quarter of an hour takes 3 s, the work 2: quick, and slow enough for a busy machine.
SPEED = "300x"


def environment(folder: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return {**clean, "TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}


class Demo:
    """Running; `said` is all it said."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        with (folder / "stderr").open("w") as complaints:
            self.process = subprocess.Popen(
                [*FOREWARN, "demo", "--port", "0", "--speed", SPEED, *arguments],
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env=environment(folder),
            )
        lines = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line)
            if LAST_LINE in line:
                break
        self.said = "".join(lines)
        assert lines, (folder / "stderr").read_text()
        told = re.match(r"ready guest=(http://127\.0\.0\.1:\d+) operator=(http://127\.0\.0\.1:\d+)\n", self.said)
        assert told is not None, self.said
        self.guest, self.operator = told.groups()

    def pasted(self, beginning: str, nth: int = 0) -> str:
        """The command that begins so, as one would paste it: a line, and the next where it ends with a pipe."""
        found: list[str] = re.findall(rf"(?m)^  ({re.escape(beginning)}(?:.*\|\n)*.*)$", self.said)
        return found[nth]

    def shell(self, *lines: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["/bin/sh", "-ec", "\n".join(lines)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(self.folder),
            check=False,
        )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.operator + path, timeout=10) as answer:
            return json.load(answer)

    def events(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.get("/v1/events?limit=200")["items"]
        return items

    def processes(self) -> list[int]:
        """Whoever names the demo's temporary folder on the command line."""
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdecimal():
                try:
                    line = (each / "cmdline").read_bytes()
                except OSError:
                    continue
                if f"{self.folder}/forewarn-demo-".encode() in line:
                    found.append(int(each.name))
        return found

    def left(self) -> list[Path]:
        return list(self.folder.glob("forewarn-demo-*"))

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Ctrl-C, unless it has ended; it ends well and leaves no folder."""
        if self.process.poll() is None:
            assert self.end(signal.SIGINT) == 0
            assert self.left() == []
        assert self.process.stdout is not None
        self.process.stdout.close()
