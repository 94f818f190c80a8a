"""A laboratory of network namespaces: hosts, machines and the links between them, removed when it is closed.

A machine is a namespace with one link `eth0`; its other end is in the host's namespace, with the name a hypervisor would give
it. Names are random: a laboratory conflicts with none beside it, and with none that a killed run left. A laboratory that cannot
be built fails the test.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_S, until

URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
NO_ANSWER = 0
ANSWER_WITHIN_S = 10
# How long a test waits to be sure that there is no answer.
SILENCE_S = 0.6


@dataclass(frozen=True)
class Reply:
    """The answer to a machine; status 0 means no answer."""

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
    """Return our environment, with the programs of this virtual environment first and without forewarn's settings."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    path = f"{Path(sys.executable).parent}:{clean.get('PATH', '')}:/usr/sbin:/sbin"
    return {**clean, "PATH": path, **more}


@dataclass(frozen=True)
class Namespace:
    """One network namespace, and the programs in it."""

    name: str
    folder: Path

    def run(self, script: str) -> str:
        """Run a shell script, which must succeed; return its output."""
        result = self._exec(["sh", "-eu"], script)
        assert result.returncode == 0, f"in {self.name}:\n{script}\n{result.stdout}{result.stderr}"
        return result.stdout

    def python(self, program: str) -> str:
        result = self._exec([sys.executable, "-"], program)
        assert result.returncode == 0, f"in {self.name}: {result.stderr}"
        return result.stdout

    def ask(self, *options: str, url: str = URL, user: int = 0, within_s: float = ANSWER_WITHIN_S) -> Reply:
        """Return the answer to a program of this user in the namespace."""
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "curl", "--silent"]
        command += ["--noproxy", "*", "--max-time", str(within_s), "--write-out", "\n%{http_code}"]
        result = self._exec([*command, "-H", "Metadata:true", *options, url])
        body, _, status = result.stdout.rpartition("\n")
        return Reply(int(status), body, result.returncode)

    def approve(self, *event_ids: str) -> Reply:
        return self.ask("--data", json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]}))

    def until_up(self, *interfaces: str) -> None:
        """Wait until links are up: the kernel drops packets until a moment after a link was set up."""
        for each in interfaces:
            until(lambda each=each: self.run(f"cat /sys/class/net/{each}/operstate").strip() == "up")  # type: ignore[misc]

    @contextmanager
    def open_request(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a program that sends a request and waits for its answer until the end of the block."""
        with self.start(["curl", "--silent", "--noproxy", "*", "-H", "Metadata:true", *options, URL]) as curl:
            try:
                yield curl
            finally:
                curl.kill()

    def silent(self, *options: str) -> bool:
        """Whether a request from here gets no answer."""
        return self.ask(*options, within_s=SILENCE_S).status == NO_ANSWER

    def start(self, command: list[str], **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment(**variables),
            start_new_session=True,
        )

    def _exec(self, command: list[str], standard_input: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            input=standard_input,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment(),
            timeout=PATIENCE_S,
            check=False,
        )


@dataclass
class Lab:
    """Namespaces and processes that are removed together."""

    folder: Path
    spaces: list[Namespace] = field(default_factory=list)
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def namespace(self, name: str) -> Namespace:
        space = Namespace(f"forewarn-{uuid.uuid4().hex[:12]}-{name}", self.folder)
        result = subprocess.run(
            ["ip", "netns", "add", space.name], capture_output=True, text=True, env=environment(), check=False
        )
        if result.returncode != 0:
            pytest.fail(f"these tests need root and network namespaces: {result.stderr}")
        self.spaces.append(space)
        space.run("ip link set lo up")
        return space

    def machine(self, host: Namespace, port: str, address: str, *, mac: str = "") -> Namespace:
        """Make a machine whose eth0 ends in the host as `port`."""
        space = self.namespace(port)
        # Without IPv6 a machine sends no packets of its own.
        space.run("sysctl --quiet --write net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        host.run(f"ip link add {port} type veth peer name eth0 netns {space.name}")
        space.run(f"ip link set eth0 {f'address {mac}' if mac else ''} up\nip address add {address} dev eth0")
        return space

    def serve(self, host: Namespace, command: list[str], **variables: str) -> "subprocess.Popen[str]":
        """Start a service without a rate limit and wait until it is ready."""
        state = {"XDG_STATE_HOME": str(self.folder / "state")}
        process = self.start(host, command, FOREWARN_RATE_LIMIT="0", **{**state, **variables})
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if line.startswith("ready "):
                return process
        pytest.fail(f"the service ended before it was ready: {''.join(output)}")

    def start(self, space: Namespace, command: list[str], **variables: str) -> "subprocess.Popen[str]":
        process = space.start(command, **variables)
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
