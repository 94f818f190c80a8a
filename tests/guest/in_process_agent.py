"""An agent that runs inside the test process: steps are real programs, endpoint and clock are fake."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.config import parse
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.journal import Journal
from forewarn.guest.state import EventState
from tests.support.fake_endpoint import E1, FakeEndpoint, ManualTime

# A shell, and a command that does nothing.
SHELL, NOTHING = ("'cmd.exe', '/c'", "ver>NUL") if os.name == "nt" else ("'/bin/sh', '-c'", "true")


def noted(folder: Path, text: str) -> list[str]:
    """Return a command that appends a line to the file `did`."""
    return ["/bin/sh", "-c", f"echo {text} >> {folder}/did"]


def step(folder: Path, name: str, *, more: str = "", prepare: str = "", recover: str = "") -> str:
    """Return the TOML of a step that records what it does; `prepare` and `recover` are shell to run before that."""
    lines = [
        "[[steps]]",
        f'name = "{name}"',
        more,
        "[steps.command]",
        f"prepare = [{SHELL}, '{prepare or NOTHING} && echo prepare {name}>>{folder / 'did'}']",
        f"recover = [{SHELL}, '{recover or NOTHING} && echo recover {name}>>{folder / 'did'}']",
    ]
    return "\n".join(lines) + "\n"


class AgentHarness:
    """An agent in this process on a manual clock; keyword arguments replace functions of the `command` handler."""

    def __init__(
        self,
        folder: Path,
        toml: str,
        *,
        endpoint: FakeEndpoint | None = None,
        boot: str = "boot-1",
        on_change: Callable[[Agent], None] = lambda _: None,
        journal_type: type[Journal] = Journal,
        **command: Callable[..., object],
    ) -> None:
        self.folder, self.toml, self.on_change, self.journal_type = folder, toml, on_change, journal_type
        self.handlers = {**HANDLERS, "command": SimpleNamespace(**{**vars(HANDLERS["command"]), **command})}
        self.endpoint = endpoint or FakeEndpoint(ManualTime())
        self.clock = self.endpoint.time
        self.start(boot)

    def start(self, boot: str = "boot-1", *, dry: bool = False) -> None:
        """Start a new agent on the same journal."""
        config = parse(tomllib.loads(self.toml), dict(os.environ))
        self.client = Client("10.0.0.1", transport=self.endpoint.transport, time=self.clock)
        self.journal = self.journal_type(self.folder / "state", self.clock)
        self.agent = Agent(
            config.plan,
            self.client,
            self.journal,
            boot=boot,
            time=self.clock,
            dry_run=dry,
            handlers=self.handlers,
            on_change=self.on_change,
        )
        self.wait_s: float | None = None

    def restart(self, boot: str = "boot-1") -> None:
        """Start a new agent as after a kill: only the journal is left."""
        self.journal.close()
        self.start(boot)

    def run(self, until: Callable[[], bool] = lambda: False, *, for_s: float = 5.0) -> None:
        """Run until `until` returns true, or for so long on the manual clock."""
        end_s = self.clock.now_s + for_s
        while not until() and self.clock.now_s < end_s:
            left_s = end_s - self.clock.now_s
            self.agent.poll(left_s if self.wait_s is None else min(self.wait_s, left_s))
            self.wait_s = self.agent.turn()

    @property
    def actions(self) -> list[str]:
        path = self.folder / "did"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def kinds(self) -> list[str]:
        from forewarn.guest.journal import read

        return [str(record["kind"]) for record in read(self.folder / "state" / "journal.jsonl")[0]]

    def known(self, event_id: str = E1) -> EventState:
        return self.agent.state.events[event_id]

    def in_service(self) -> bool:
        return not self.agent.state.out_of_service
