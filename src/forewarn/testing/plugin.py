"""The pytest plugin: the fixture `scheduled_events`, an emulator for each test that asks for one.

Loaded into every pytest run of whoever installed forewarn, so nothing of it is imported before a test wants it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forewarn.testing.emulator import Emulator

FIXTURE = "scheduled_events"
MARKER = (
    f"{FIXTURE}(machines=1, faults=None, seed=None, clock='manual', fleet=None, **settings): how the emulator of this"
    " test is made; the same arguments as forewarn.testing.emulator.Emulator"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forewarn", "scheduled events (forewarn)")
    group.addoption("--scheduled-events-faults", metavar="FILE", help="a playbook of faults for every emulator")
    group.addoption("--scheduled-events-seed", metavar="N", type=int, help="fixes the ids and the dice of the faults")
    parser.addini("scheduled_events_machines", "how many machines an emulator has", default="1")
    parser.addini("scheduled_events_faults", "a playbook of faults for every emulator, from the root folder")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def scheduled_events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A Scheduled Events endpoint of this test's own, on a clock that stands still until `advance`.

    FOREWARN_ENDPOINT and FOREWARN_SERVER lead to it while the test runs.
    """
    try:
        from forewarn.testing.emulator import Emulator
    except ModuleNotFoundError as error:
        pytest.fail(
            f"{FIXTURE} needs more than the base install ({error}): pip install 'forewarn[server]'", pytrace=False
        )
    with Emulator(**_arguments(request)) as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("FOREWARN_TOKEN", raising=False)  # it needs none, and another server's is not its business
        yield emulator
        emulator.expect_no_more()


def _arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The marker's over the command line's over the ini file's."""
    config = request.config
    machines = str(config.getini("scheduled_events_machines"))
    if not machines.isdecimal():
        raise pytest.UsageError(f"scheduled_events_machines: {machines!r} is no number of machines")
    arguments: dict[str, Any] = {"machines": int(machines)}
    file = config.getini("scheduled_events_faults")
    if file:
        arguments["faults"] = config.rootpath / file
    if named := config.getoption("--scheduled-events-faults"):
        arguments["faults"] = config.invocation_params.dir / named
    if (seed := config.getoption("--scheduled-events-seed")) is not None:
        arguments["seed"] = seed
    marker = request.node.get_closest_marker(FIXTURE)
    if marker is None:
        return arguments
    if marker.args:
        raise pytest.UsageError(f"@pytest.mark.{FIXTURE} takes its arguments by name, like machines=3")
    if "fleet" in marker.kwargs:
        del arguments["machines"]
    return {**arguments, **marker.kwargs}


@pytest.hookimpl(hookwrapper=True)  # and not `wrapper`: it is loaded by whatever pytest is there
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """A test that failed shows what guests and service did; an expectation that failed has said so itself."""
    report = (yield).get_result()
    emulator = getattr(item, "funcargs", {}).get(FIXTURE)
    if call.when == "call" and report.failed and emulator is not None:
        emulator.expectations.forget()  # one failure says enough
        if not hasattr(_raised(call), "timeline"):
            report.sections.append((FIXTURE, emulator.timeline()))


def _raised(call: pytest.CallInfo[None]) -> BaseException | None:
    return call.excinfo.value if call.excinfo is not None else None
