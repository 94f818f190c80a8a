"""A running service for each module of tests, and servers that answer as a test scripts them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.command_line import Command, CommandLine, serving
from tests.cli.scripted_server import ScriptedServer
from tests.support.commands import run_here
from tests.support.running_service import RunningService


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A service on a manual clock. Machines of `shop` and `db` have polled, so these get notice; `quiet` gets none."""
    with serving(tmp_path_factory.mktemp("service"), "--clock", "manual") as running:
        for address in ("127.0.1.1", "127.0.2.1"):
            running.poll(address)
        yield running


@pytest.fixture
def planned(cli: CommandLine) -> Iterator[dict[str, Any]]:
    """A reboot of the shop's second update domain, scheduled for two hours from now; cancelled after the test."""
    options = ["--type", "Reboot", "--scope", "shop", "--update-domain", "1", "--not-before", "+2h", "--yes"]
    maintenance = cli.json("maintenance", "schedule", *options, "--description", "a new kernel", "--duration", "5m")
    yield maintenance
    cli.run("maintenance", "cancel", maintenance["id"])


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(*responses: bytes) -> ScriptedServer:
        servers.append(ScriptedServer(*responses))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def forewarn(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command for the module's service, in this process; return its exit code, output and errors."""
    monkeypatch.setenv("FOREWARN_SERVER", service.url)
    monkeypatch.setenv("FOREWARN_TOKEN", service.token)

    def command(*arguments: str) -> tuple[int, str, str]:
        done = run_here(*arguments)
        return done.returncode, done.stdout, done.stderr

    return command
