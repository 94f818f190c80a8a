"""An agent in this process with a fake endpoint, and real sockets for its clients."""

import os
import socket
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.config import parse
from forewarn.guest.journal import Journal
from forewarn.guest.serving.answers import Answers
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.listener import Listener
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.serving.upstream import Upstream
from tests.guest.in_process_agent import AgentHarness
from tests.support.fake_endpoint import FakeEndpoint, ManualTime
from tests.support.guest_service import Client as RawClient

API_VERSION = "2020-07-01"


class ServingHarness(AgentHarness):
    """An agent on a manual clock with clients on real sockets; time passes only when a test lets it."""

    def __init__(
        self,
        folder: Path,
        *clients: ServedClient,
        toml: str = "",
        endpoint: FakeEndpoint | None = None,
        api_version: str = API_VERSION,
        journal_type: type[Journal] = Journal,
        **limits: float,
    ) -> None:
        self._limits = limits
        self.served, self.api_version = clients, api_version
        self.closing = ExitStack()
        super().__init__(folder, toml, endpoint=endpoint, journal_type=journal_type)

    def start(self, boot: str = "boot-1", *, dry: bool = False) -> None:
        config = parse(tomllib.loads(self.toml), dict(os.environ))
        self.client = Client(
            "10.0.0.1", transport=self.endpoint.transport, time=self.clock, api_version=self.api_version
        )
        self.journal = self.journal_type(self.folder / "state", self.clock)
        self.clients = Clients(self.served, self.clock)
        self.agent = Agent(
            config.plan, self.client, self.journal, boot=boot, time=self.clock, dry_run=dry, clients=self.clients
        )
        upstream = Upstream(lambda: "http://10.0.0.1", self.endpoint.transport, self.clock)
        answers = Answers(self.clients, upstream, self.agent.record_client_approval, self.api_version)
        self.listener = Listener(self.clients, answers, **self._limits)
        self.listener.start()
        self.wait_s: float | None = None

    def connect(self, name: str) -> RawClient:
        client = RawClient(self.listener.ports()[name], "127.0.0.1")
        self.closing.callback(client.socket.close)
        return client

    def sdk(self, name: str) -> Client:
        """Return an SDK client in real time."""
        client = Client(f"http://127.0.0.1:{self.listener.ports()[name]}")
        self.closing.callback(client.close)
        return client


@contextmanager
def harness(folder: Path, *clients: ServedClient, **options: object) -> Iterator[ServingHarness]:
    made = ServingHarness(folder, *clients, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.closing.close()
        made.listener.close()
        made.journal.close()


def approving(*names: str, timeout_s: float = 300.0) -> list[ServedClient]:
    """Return clients that approve; the system chooses their ports."""
    return [ServedClient(name, port=0, approves=True, timeout_s=timeout_s) for name in names]


def endpoint(*, long_poll: bool = True) -> FakeEndpoint:
    return FakeEndpoint(ManualTime(), long_poll=long_poll)


def unix_connection(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection
