"""The pytest plugin: the fixture `scheduled_events`, which gives a test its own emulator.

pytest loads this module in every run where forewarn is installed, so it imports the emulator only when a test uses the fixture.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forewarn.testing.emulator import Emulator

FIXTURE = "scheduled_events"
MARKER = (
    f"{FIXTURE}(machines=1, faults=None, seed=None, clock='manual', fleet=None, scenario=None, **settings): arguments for the"
    " emulator of this test, the same as those of forewarn.testing.emulator.Emulator, and a scenario to play on it"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forewarn", "scheduled events (forewarn)")
    group.addoption("--scheduled-events-faults", metavar="FILE", help="a file of faults for every emulator")
    group.addoption(
        "--scheduled-events-seed", metavar="N", type=int, help="fixes the ids and the random choices of faults"
    )
    parser.addini("scheduled_events_machines", "the number of machines of an emulator", default="1")
    parser.addini("scheduled_events_faults", "a file of faults for every emulator, relative to the root folder")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def scheduled_events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An emulator for one test, on a clock that stands still until `advance`.

    FOREWARN_ENDPOINT and FOREWARN_SERVER point to it while the test runs.
    """
    try:
        from forewarn.testing.emulator import Emulator
    except ModuleNotFoundError as error:
        pytest.fail(
            f"{FIXTURE} needs more than the base install ({error}): pip install 'forewarn[server]'", pytrace=False
        )
    arguments = _arguments(request)
    scenario = arguments.pop("scenario", None)
    with _emulator_of(scenario, arguments) if scenario is not None else Emulator(**arguments) as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(
            "FOREWARN_TOKEN", raising=False
        )  # it would be a token of another server; this one needs none
        yield emulator
        emulator.expect_no_more()
        if emulator.scenario is not None and emulator.scenario.error is not None:
            raise emulator.scenario.error


@contextmanager
def _emulator_of(name: str, arguments: dict[str, Any]) -> Iterator[Emulator]:
    """Run an emulator that plays a scenario; its steps are in the timeline."""
    from forewarn.testing.scenarios import scenario
    from forewarn.testing.scenarios.player import emulator_for, play_on

    for other in arguments.keys() & {"fleet", "replay", "enabled"}:
        raise pytest.UsageError(f"scenario: the scenario defines the machines and the events: leave out {other}")
    played = scenario(str(name)).with_machines(arguments.pop("machines"))
    with emulator_for(played, **arguments) as emulator:
        emulator.scenario = play_on(emulator.service, played, say=emulator.log.add_note)
        yield emulator


def _arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the emulator. The marker overrides the command line, which overrides the ini file."""
    config = request.config
    machines = str(config.getini("scheduled_events_machines"))
    if not machines.isdecimal():
        raise pytest.UsageError(f"scheduled_events_machines: {machines!r} is not a number of machines")
    arguments: dict[str, Any] = {"machines": int(machines)}
    if file := config.getini("scheduled_events_faults"):
        arguments["faults"] = config.rootpath / file
    if file := config.getoption("--scheduled-events-faults"):
        arguments["faults"] = config.invocation_params.dir / file
    if (seed := config.getoption("--scheduled-events-seed")) is not None:
        arguments["seed"] = seed
    marker = request.node.get_closest_marker(FIXTURE)
    if marker is None:
        return arguments
    if marker.args:
        raise pytest.UsageError(f"@pytest.mark.{FIXTURE} takes its arguments by name, like machines=3")
    _check_names(marker.kwargs)
    if "fleet" in marker.kwargs:
        del arguments["machines"]
    return {**arguments, **marker.kwargs}


def _check_names(given: Iterable[str]) -> None:
    from forewarn.core.errors import InvalidSettings
    from forewarn.testing.emulator_settings import ARGUMENTS, check_settings

    arguments = (*ARGUMENTS, "scenario")
    try:
        check_settings(set(given) - set(arguments), arguments)
    except InvalidSettings as error:
        raise pytest.UsageError(f"@pytest.mark.{FIXTURE}: {error}") from None


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test whose callback for approvals has failed, also if the test waited for nothing afterwards."""
    emulator = getattr(item, "funcargs", {}).get(FIXTURE)
    if emulator is not None:
        emulator.approvals.wait_returned()
        emulator.approvals.raise_failure()


@pytest.hookimpl(hookwrapper=True)  # not `wrapper`, which older versions of pytest do not know
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add the timeline to the report of a failed test, unless a failed expectation has shown it already."""
    report = (yield).get_result()
    emulator = getattr(item, "funcargs", {}).get(FIXTURE)
    if call.when == "call" and report.failed and emulator is not None:
        emulator.expectations.forget()  # one failure per test is enough
        if (failure := emulator.approvals.take_failure()) is not None:
            report.sections.append((f"{FIXTURE}: on_approval", "".join(traceback.format_exception(failure))))
        if not hasattr(call.excinfo and call.excinfo.value, "timeline"):
            report.sections.append((FIXTURE, emulator.timeline()))
