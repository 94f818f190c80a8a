"""The handler `windows_service` with a service that Wine has."""

import sys
from pathlib import Path
from typing import Any

import pytest

assert sys.platform == "win32"

from forewarn.guest.clock import Time
from forewarn.guest.config import load
from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers import windows_service
from forewarn.guest.steps import Run
from forewarn.guest.system import system, windows_api, windows_service_host
from tests.support.fake_endpoint import event

SPOOLER = windows_service.Spec(("Spooler",))


def new_run() -> Run:
    return Run(step="one", phase="prepare", event=event(), share_s=60.0, time=Time())


def test_a_service_is_started_and_stopped() -> None:
    """The step returns when the service manager says so; a second time changes nothing."""
    assert windows_service.check(SPOOLER) == []
    for _ in range(2):
        windows_service.recover(SPOOLER, new_run())
        assert system.service_state("Spooler") == "RUNNING"
    assert windows_service.verify(SPOOLER, new_run()) is False
    for _ in range(2):
        windows_service.prepare(SPOOLER, new_run())
        assert system.service_state("Spooler") == "STOPPED"
    assert windows_service.verify(SPOOLER, new_run()) is True


def test_an_unknown_service_is_reported() -> None:
    """`check` names it, and the step fails."""
    unknown = windows_service.Spec(("no-such-service",))
    (problem,) = windows_service.check(unknown)
    assert problem.startswith("service no-such-service: ")
    with pytest.raises(OSError):
        windows_service.prepare(unknown, new_run())


def test_a_service_that_does_not_start_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have stopped again when it is looked at."""
    monkeypatch.setattr(system, "service_state", lambda _: "STOPPED")
    with pytest.raises(StepFailed, match="Spooler has stopped again"):
        windows_service.recover(SPOOLER, new_run())


def test_the_error_that_ends_the_agent_is_in_the_event_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wine accepts an event and shows it nowhere, so the test reads what the agent passes to Windows."""
    events: list[tuple[object, ...]] = []
    monkeypatch.setattr(windows_api, "set_service_status", lambda *_: True)
    monkeypatch.setattr(windows_api, "register_service_handler", lambda *_: 1)
    monkeypatch.setattr(windows_api, "start_service_dispatcher", start_main)
    report_event = windows_api.report_event

    def report(log: int, *event: Any) -> int:
        events.append((event[0], list(event[6])))
        return int(report_event(log, *event))

    def end(code: int) -> None:
        assert code == 1

    monkeypatch.setattr(windows_api, "report_event", report)
    monkeypatch.setattr(windows_service_host.os, "_exit", end)
    windows_service_host.run_as_service("forewarn-agent", lambda: load(Path("C:\\no-such.toml"), {}))
    ((kind, texts),) = events
    assert kind == 1
    assert str(texts).startswith("['forewarn-agent ends: C:\\\\no-such.toml")


def start_main(entries: Any) -> bool:
    """Call the service's main function, as the service manager does."""
    entries._obj[0].main(0, None)
    return True
