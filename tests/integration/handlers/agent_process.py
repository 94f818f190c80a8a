"""An agent as a process that can be killed, and a `Run` of a step without an agent."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.guest.clock import Time
from forewarn.guest.journal import read
from forewarn.guest.sockets import Deadline
from forewarn.guest.state import fold_records
from forewarn.guest.steps import Run
from forewarn.guest.transport import Response, Transport
from tests.support.agent_command import agent_command, recording_pid
from tests.support.fake_endpoint import StepTime, event
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]


class UnhurriedRun(Run):
    """A Run on a clock of the test: each answer may take as long as it needs, because only pauses take time."""

    def timeout_s(self, most_s: float) -> float:
        return PATIENCE_S

    def last_timeout_s(self, most_s: float) -> float:
        return PATIENCE_S

    def time_for(self, most_s: float) -> float:
        super().time_for(most_s)
        return PATIENCE_S

    def pause(self, seconds: float) -> None:
        self._time.sleep(super().time_for(seconds))
        self._poll_and_check()


def new_run(
    share_s: float = 20.0,
    health: tuple[str, ...] = (),
    *,
    time: Time | None = None,
    hangs: bool = False,
    **kept: object,
) -> Run:
    """Return a Run without an agent. If something hangs, or time is real, a request has only the time that an agent gives it."""
    announced, clock = event(NotBefore="soon"), time or StepTime()
    kind = Run if hangs or type(clock) is Time else UnhurriedRun
    return kind(step="one", phase="prepare", event=announced, share_s=share_s, time=clock, kept=kept, health=health)


@contextmanager
def recorded_timeouts_s() -> Iterator[list[float]]:
    """Yield the time-outs of all connections and requests, in order."""
    given: list[float] = []
    connecting, requesting = Deadline.__init__, Transport.request

    def connect(self: Deadline, seconds: float) -> None:
        given.append(seconds)
        connecting(self, seconds)

    def request(self: Transport, *words: str, timeout_s: float, **more: Any) -> Response:
        given.append(timeout_s)
        return requesting(self, *words, timeout_s=timeout_s, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadline, "__init__", connect)
        patch.setattr(Transport, "request", request)
        yield given


def fast_run(health: tuple[str, ...] = (), *, hangs: bool = False, **kept: object) -> Run:
    """Return a Run for a condition that never holds: its ten seconds of pauses take one."""
    return new_run(10.0, health, time=StepTime(rate=10), hangs=hangs, **kept)


def cancelled_run(needed: Callable[[], bool] = lambda: False) -> Run:
    """Return a Run that no event needs, or none once `needed` returns false."""
    return UnhurriedRun(step="one", phase="prepare", event=event(), share_s=20.0, time=StepTime(), needed=needed)


class Agent:
    """An agent process; `settings` is the text of its agent.toml after the endpoint, and `folder` exists."""

    def __init__(self, folder: Path, endpoint: str, settings: str) -> None:
        self.folder = folder
        (folder / "boot").write_text("boot-1")
        config = folder / "agent.toml"
        config.write_text(f'endpoint = "{endpoint}"\nstate_dir = "state"\nboot_id_file = "boot"\n{settings}')
        config.chmod(0o600)
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        command = recording_pid(
            "agent.pid", agent_command("run", "--config", "agent.toml")
        )  # what an approval starts reads it
        with (self.folder / "log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            self.process = subprocess.Popen(command, cwd=self.folder, stderr=log, env=environment)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def records(self) -> list[dict[str, object]]:
        return read(self.folder / "state" / "journal.jsonl")[0]

    @property
    def kinds(self) -> list[object]:
        return [record["kind"] for record in self.records]

    def ended(self, phase: str) -> list[dict[str, object]]:
        return [record for record in self.records if record["kind"] == "end" and record["phase"] == phase]

    def outcomes(self, phase: str) -> list[bool]:
        """Return whether each run of this phase succeeded."""
        return [bool(record["ok"]) for record in self.ended(phase)]

    def wait_until(self, true: Callable[[], bool]) -> None:
        until(true, detail=lambda: self.log)

    def wait_until_back(self) -> None:
        """Wait until the machine is back in service since it was last out of it."""
        self.wait_until(self._is_back)

    def _is_back(self) -> bool:
        records = self.records
        return any(record["kind"] == "in-service" for record in records) and not fold_records(records).out_of_service
