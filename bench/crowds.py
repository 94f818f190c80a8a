"""Ten thousand guests at once: what idle, polling, waiting and returning crowds cost, and how long they wait."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S

from bench.clients import load
from bench.load import Task
from bench.subjects import LOAD_CORE, Subject, pinned, reserved_port, serving

SETTLE_S = 0.5
PER_SCOPE = 20


@dataclass(frozen=True, slots=True)
class FanOut:
    """One change to very many waiters: from the bell and from the call to the last answer, and who polled meanwhile."""

    last_s: float
    asked_s: float
    batch_s: float
    probe_s: float
    waited_batches: int


@dataclass(frozen=True, slots=True)
class Storm:
    """All guests come back after a restart: when 99.9 % and when all were answered, since the listener accepted again."""

    most_s: float
    all_s: float
    down_s: float


class Inside:
    """The process that takes orders."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith("ready "):
            raise RuntimeError(f"the service inside the bench printed {line!r} instead of ready")
        self.ports = [int(port) for port in line.split()[1:]]
        self.port = self.ports[0]

    def order(self, what: str) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the service inside the bench cannot be told anything")
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply


@contextmanager
def inside(what: str, number: int = 0) -> Iterator[Inside]:
    command = pinned([sys.executable, "-m", "bench.inside", what, str(number)])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Inside(process)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def crowd(mode: str, port: int, connections: int, seconds: float = 0.0, **more: int) -> Task:
    sources = more.pop("sources", connections)
    return Task(mode=mode, port=port, core=LOAD_CORE, connections=connections, sources=sources, seconds=seconds, **more)


def idle_bytes(subject: Subject, connections: int) -> float:
    """Resident memory for each connection that polled once and now is silent."""
    with load(crowd("idle", subject.port, min(connections, 100))):
        before = subject.resident_bytes()
    with load(crowd("idle", subject.port, connections)):
        time.sleep(SETTLE_S)
        return (subject.resident_bytes() - before) / connections


def paced_cpu(subjects: Sequence[Subject], connections: int, seconds: float, rounds: int) -> dict[str, list[float]]:
    """CPU seconds a second while each connection polls once a second, in turns."""
    spent: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            with load(crowd("paced", subject.port, connections, seconds)) as client:
                before_s = subject.cpu_s()
                answered = client.run()["answered"]
                # By the answers, should the load have fallen behind.
                spent[subject.name].append((subject.cpu_s() - before_s) / answered * connections)
    return spent


def fan_out(server: Inside, waiters: int, *, probed: bool) -> FanOut:
    probe = {"probe_source": PER_SCOPE} if probed else {}
    with load(crowd("wait", server.port, waiters, sources=PER_SCOPE, **probe)) as client:
        deadline_s = time.monotonic() + PATIENCE_S
        while server.order("waiting")["waiting"] < waiters:
            if time.monotonic() > deadline_s:
                raise RuntimeError("not every long poll came to wait")
            time.sleep(0.05)
        client.begin()
        time.sleep(SETTLE_S)
        reply = server.order("change")
        seen = client.result()
    if seen["left"]:
        raise RuntimeError(f"{seen['left']} waiters were not answered")
    inside: dict[str, Any] = server.order("batches") if probed else {"batches_s": [0.0], "most_begun": 0}
    return FanOut(
        last_s=seen["last_s"] - reply["rung_s"],
        asked_s=seen["last_s"] - reply["asked_s"],
        batch_s=max(inside["batches_s"]),
        probe_s=max(seen["probes_s"], default=0.0),
        waited_batches=inside["most_begun"],
    )


def storm(database: Path, connections: int) -> Storm:
    """Restart the service under its guests, who all come back at once."""
    with reserved_port() as port, ExitStack() as guests:
        with serving(database, port):
            coming = guests.enter_context(load(crowd("storm", port, connections)))
            coming.begin()
            stopped_s = time.monotonic()
        with serving(database, port):
            seen = coming.result()
    answered_s = sorted(seen["answered_s"])
    if len(answered_s) < connections:
        raise RuntimeError(f"{connections - len(answered_s)} guests were never answered again")
    most = answered_s[min(connections - 1, int(connections * 0.999))]
    return Storm(most_s=most, all_s=answered_s[-1], down_s=seen["up_s"] - stopped_s)
