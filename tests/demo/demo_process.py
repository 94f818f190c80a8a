"""A real `forewarn demo` in its own process, with its own temporary folder."""

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
# On a busy machine the demo becomes ready before all agents have polled, with a warning and without some of the first events.
# The tests' demo waits for all of them; else it runs as `python -m forewarn` does.
PATIENT_FOREWARN = """
import math, runpy
from forewarn.demo import run
run.FIRST_EVENTS_WITHIN_S = math.inf
runpy.run_module("forewarn", run_name="__main__", alter_sys=True)
"""
LAST_LINE = "event watch"
# A quarter of an hour takes 3 s and the work less than 2 s, which is slow enough for a busy machine.
SPEED = "300x"


def environment(folder: Path) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return {**inherited, "TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}


class DemoProcess:
    """A running demo that has scheduled its first events; `output` is what it has printed."""

    def __init__(self, folder: Path, *arguments: str, speed: str = SPEED) -> None:
        self.folder = folder
        with (folder / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PATIENT_FOREWARN, "demo", "--port", "0", "--speed", speed, *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(folder),
            )
        lines = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line)
            if LAST_LINE in line:
                break
        self.output = "".join(lines)
        assert lines, (folder / "stderr").read_text()
        ready = re.match(r"ready guest=(http://127\.0\.0\.1:\d+) operator=(http://127\.0\.0\.1:\d+)\n", self.output)
        assert ready is not None, self.output
        self.guest, self.operator = ready.groups()

    def printed_command(self, beginning: str, index: int = 0) -> str:
        """Return a printed command that begins so. It continues on the next line if a line ends with a pipe."""
        commands: list[str] = re.findall(rf"(?m)^  ({re.escape(beginning)}(?:.*\|\n)*.*)$", self.output)
        return commands[index]

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
        with urllib.request.urlopen(self.operator + path, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def events(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.get("/v1/events?limit=200")["items"]
        return items

    def processes(self) -> list[int]:
        """Return the processes that have the demo's temporary folder in their command line."""
        pids = []
        for each in Path("/proc").iterdir():
            if each.name.isdecimal():
                try:
                    line = (each / "cmdline").read_bytes()
                except OSError:
                    continue
                if f"{self.folder}/forewarn-demo-".encode() in line:
                    pids.append(int(each.name))
        return pids

    def folders(self) -> list[Path]:
        """Return the temporary folders of the demo that still exist."""
        return list(self.folder.glob("forewarn-demo-*"))

    def end(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End the demo with Ctrl-C, and check that it exits with 0 and removes its folder."""
        if self.process.poll() is None:
            assert self.end(signal.SIGINT) == 0
            assert self.folders() == []
        assert self.process.stdout is not None
        self.process.stdout.close()
