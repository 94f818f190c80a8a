"""A laboratory of network namespaces: hosts, machines and the links between them, gone when it is closed.

A machine is a namespace with one link `eth0`; the other end is in the host's namespace under the name a hypervisor would
give it. Names are unique for the process, so that laboratories do not meet. A laboratory that cannot be built is a failure.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until

URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
NO_ANSWER = 0
ANSWER_WITHIN_S = 10
# How long we wait to be sure that nothing comes.
SILENCE_S = 0.6
RUN_WITHIN_S = 30

_numbers = itertools.count()


@dataclass(frozen=True)
class Reply:
    """What a machine was answered; status 0 is no answer at all."""

    status: int
    body: str
    curl_code: int = 0

    @property
    def document(self) -> dict[str, Any]:
        assert self.status == 200, self
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def event_ids(self) -> list[str]:
        return [event["EventId"] for event in self.document["Events"]]


def environment(**more: str) -> dict[str, str]:
    """Ours, with the programs of this virtual environment first and without settings that others left there."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    path = f"{Path(sys.executable).parent}:{clean.get('PATH', '')}:/usr/sbin:/sbin"
    return {**clean, "PATH": path, **more}


@dataclass(frozen=True)
class Namespace:
    """One network namespace, and what is run in it."""

    name: str
    folder: Path

    def run(self, script: str) -> str:
        """A shell script, which must succeed; what it printed."""
        result = self._exec(["sh", "-eu"], script)
        assert result.returncode == 0, f"in {self.name}:\n{script}\n{result.stdout}{result.stderr}"
        return result.stdout

    def python(self, program: str) -> str:
        result = self._exec([sys.executable, "-"], program)
        assert result.returncode == 0, f"in {self.name}: {result.stderr}"
        return result.stdout

    def ask(self, *options: str, url: str = URL, user: int = 0, within_s: float = ANSWER_WITHIN_S) -> Reply:
        """What a program of this user is answered here."""
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "curl", "--silent"]
        words += ["--noproxy", "*", "--max-time", str(within_s), "--write-out", "\n%{http_code}"]
        told = self._exec([*words, "-H", "Metadata:true", *options, url])
        body, _, status = told.stdout.rpartition("\n")
        return Reply(int(status), body, told.returncode)

    def approve(self, *event_ids: str) -> Reply:
        return self.ask("--data", json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]}))

    def until_up(self, *interfaces: str) -> None:
        """Wait for the kernel, which drops what is sent over a link until a moment after the link was set up."""
        for each in interfaces:
            until(lambda each=each: self.run(f"cat /sys/class/net/{each}/operstate").strip() == "up")  # type: ignore[misc]

    @contextmanager
    def asking(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """A program that asks and waits for its answer until the end of the block."""
        with self.start(["curl", "--silent", "--noproxy", "*", "-H", "Metadata:true", *options, URL]) as curl:
            try:
                yield curl
            finally:
                curl.kill()

    def silent(self, *options: str) -> bool:
        """Whether nobody answers here."""
        return self.ask(*options, within_s=SILENCE_S).status == NO_ANSWER

    def start(self, words: list[str], **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment(**variables),
            start_new_session=True,
        )

    def _exec(self, words: list[str], standard_input: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *words],
            input=standard_input,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment(),
            timeout=RUN_WITHIN_S,
            check=False,
        )


@dataclass
class Lab:
    """Namespaces and processes that end together."""

    folder: Path
    spaces: list[Namespace] = field(default_factory=list)
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def namespace(self, name: str) -> Namespace:
        space = Namespace(f"forewarn-{os.getpid()}-{next(_numbers)}-{name}", self.folder)
        made = subprocess.run(
            ["ip", "netns", "add", space.name], capture_output=True, text=True, env=environment(), check=False
        )
        if made.returncode != 0:
            pytest.fail(f"these tests need root and network namespaces: {made.stderr}")
        self.spaces.append(space)
        space.run("ip link set lo up")
        return space

    def machine(self, host: Namespace, port: str, address: str, *, mac: str = "") -> Namespace:
        """A machine whose eth0 ends in the host as `port`."""
        space = self.namespace(port)
        # Without IPv6 a machine sends nothing but what the tests have it send.
        space.run("sysctl --quiet --write net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        host.run(f"ip link add {port} type veth peer name eth0 netns {space.name}")
        space.run(f"ip link set eth0 {f'address {mac}' if mac else ''} up\nip address add {address} dev eth0")
        return space

    def serve(self, host: Namespace, words: list[str], **variables: str) -> "subprocess.Popen[str]":
        """Start a service and wait until it is ready; tests ask more often than a machine may."""
        process = self.start(host, words, FOREWARN_RATE_LIMIT="0", **variables)
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if line.startswith("ready "):
                return process
        pytest.fail(f"it ended before it was ready: {''.join(told)}")

    def start(self, space: Namespace, words: list[str], **variables: str) -> "subprocess.Popen[str]":
        process = space.start(words, **variables)
        self.processes.append(process)
        return process

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def stop_all(self) -> None:
        """End every process with its children."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            with process:
                pass
        self.processes.clear()

    def close(self) -> None:
        self.stop_all()
        for space in reversed(self.spaces):
            subprocess.run(["ip", "netns", "delete", space.name], env=environment(), check=False)


@contextmanager
def laboratory(folder: Path) -> Iterator[Lab]:
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.close()
