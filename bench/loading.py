"""A guest of the first scope polls without pause while `forewarn serve` starts: how soon it is answered, and how fast."""

import http.client
import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from bench.fleet import scope_name
from bench.processes import serve_command
from bench.report import Verdict, milliseconds, print_table
from bench.subjects import reserved_port

POLL = "/metadata/scheduledevents?api-version=2020-07-01"
PAUSE_S = 0.02


def measure_loading(database: Path) -> list[Verdict]:
    """One start. Every caller counts as a machine of the first scope, which is loaded first."""
    with reserved_port() as port:
        return _measure(database, port)


def _measure(database: Path, port: int) -> list[Verdict]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    environment = clean | {"FOREWARN_EVERY_CALLER": f"{scope_name(0)}/vm-00", "FOREWARN_RATE_LIMIT": "0"}
    answers: list[tuple[float, float]] = []  # when, and how long it took
    ready = threading.Event()
    began_s = time.perf_counter()
    command = serve_command(database, f"127.0.0.1:{port}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        polling = threading.Thread(target=_poll, args=(port, ready, answers))
        polling.start()
        try:
            line = process.stdout.readline() if process.stdout else ""
            ready_s = time.perf_counter() - began_s
        finally:
            ready.set()
            polling.join(PATIENCE_S)
            process.terminate()
            process.wait(PATIENCE_S)
    if not line.startswith("ready"):
        raise RuntimeError(f"the process said {line!r} instead of ready")
    before = [took_s for at_s, took_s in answers if at_s - began_s < ready_s]
    first_s = f"{answers[0][0] - began_s:.2f} s" if before else "after ready"
    row = [f"{ready_s:.2f} s", first_s, str(len(before)), milliseconds(max(before, default=0.0))]
    title = "A guest of the first scope polls while the service loads the fleet"
    print_table(title, ["ready after", "its first answer after", "answers before ready", "longest of them"], [row])
    target = "answers to a guest of a loaded scope before the service is ready, at least 1"
    return [Verdict(target, str(len(before)), met=bool(before))]


def _poll(port: int, ready: threading.Event, answers: list[tuple[float, float]]) -> None:
    while not ready.wait(PAUSE_S):
        asked_s = time.perf_counter()
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("GET", POLL, headers={"Metadata": "true", "Connection": "close"})
            status = connection.getresponse().status
            connection.close()
            if status == 200:
                answers.append((time.perf_counter(), time.perf_counter() - asked_s))
