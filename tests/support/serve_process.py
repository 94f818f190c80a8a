"""Runs `forewarn` as a real process: to its end, or as a service for the length of a test."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S, first_accepted, until

# The longest time between two samples that counts as waiting.
MAX_SEEN_S = 0.1
# Far more CPU time than a stop takes; a service that computes or serves on, instead of ending, uses it up.
MAX_STOP_CPU_S = 20.0


def forewarn(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", *arguments]


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, without settings from the environment."""
    with clean_environment() as clean:
        return subprocess.run(
            forewarn(*arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**clean, **environment},
            check=False,
        )


@contextmanager
def clean_environment() -> Iterator[dict[str, str]]:
    """Yield our environment without settings of forewarn; a temporary folder has the default state directory."""
    with tempfile.TemporaryDirectory() as folder:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")}
        yield {**clean, "XDG_STATE_HOME": folder}


def is_waiting(pid: int) -> bool:
    """Whether every thread of a process sleeps until something happens: none computes, and nobody has stopped the process."""
    states = set()
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states == {"S"}


def cpu_s(pid: int) -> float:
    """Return the CPU time that all threads of a process have used; 0 if somebody has waited for its end already."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Served:
    """A running service: its lines up to `ready`, and its operator address."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("ready "):
                break
        else:
            said = process.stderr.read() if process.stderr is not None else ""
            pytest.fail(f"the service ended before it was ready: {said}")
        urls = dict(pair.split("=", 1) for pair in self.lines[-1].split()[1:])
        self.guest, self.operator = urls["guest"], urls["operator"]

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(self.operator + path, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def until_ready(self) -> dict[str, object]:
        """Wait until `/readyz` answers 200 and return its body: the first cycle may come after the line `ready`."""
        return first_accepted(lambda: self.get("/readyz"), lambda answer: answer[0] == 200)[1]

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit code, and for how many seconds the process waited for something until it ended.

        These seconds do not depend on the machine: while the process computes, or stands still on a busy machine, it does not
        wait. The CPU time that it uses until it ends is limited, and does not depend on the machine either.
        """
        most_s = cpu_s(self.process.pid) + MAX_STOP_CPU_S
        self.process.send_signal(signal.SIGTERM)
        waited_s, seen_s, waiting = 0.0, time.monotonic(), False

        def ended() -> bool:
            nonlocal waited_s, seen_s, waiting
            waited_before, before_s = waiting, seen_s
            waiting, seen_s = is_waiting(self.process.pid), time.monotonic()
            if waiting and waited_before:
                waited_s += min(seen_s - before_s, MAX_SEEN_S)
            assert cpu_s(self.process.pid) < most_s, f"it computes for more than {MAX_STOP_CPU_S:g} s before it ends"
            return self.process.poll() is not None

        until(ended)
        self.process.communicate()
        return self.process.returncode, waited_s


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """Run `forewarn serve` on free ports until the end of the block."""
    with clean_environment() as clean:
        process = subprocess.Popen(
            forewarn("serve", "--operator", "127.0.0.1:0", "--guest", "127.0.0.1:0", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean,
        )
        try:
            yield Served(process)
        finally:
            process.kill()
            process.communicate()
