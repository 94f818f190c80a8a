"""Plays a scenario on a service: runs each step at its time on the service's clock, and prints it.

The ticker calls the scenario when its next step is due, so it works with every clock. When a manual clock is moved, the steps in
between run at their own times; on a scaled or system clock they run as time passes.
"""

import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from textwrap import indent
from typing import Any

from forewarn.app.server import ticking
from forewarn.app.service import Service
from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError, Refused
from forewarn.core.model import Actor
from forewarn.service.settings import from_values
from forewarn.store import Focus
from forewarn.store.memory import MemoryStore
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_settings import emulator_clock
from forewarn.testing.scenarios import Scenario
from forewarn.testing.stories import Player, advance_until, play, story_ids
from forewarn.testing.story_text import Step, parse_story

CHECK_EVERY_S = 0.5
NEXT_STEP = "its next step"

Say = Callable[[str], None]


def play_on(service: Service, scenario: Scenario, *, say: Say, attended: bool = True) -> "ScenarioRun":
    """Start a scenario on a service whose fleet has the scenario's machines. It continues as the service's clock does.

    If `attended`, there are real guests, and `enable` waits for their first poll. Otherwise `enable` acts in their place.
    """
    scenario_run = ScenarioRun(service, scenario, say=say, attended=attended)
    service.ticker.call_periodically(scenario_run)
    service.ticker.nudge()
    return scenario_run


def play_alone(scenario: Scenario, *, clock: str = "manual", new_id: Callable[[], str] | None = None, say: Say) -> None:
    """Play a scenario to its end on its own service, in memory and without a listener. No machine approves."""
    if clock == "system":
        raise Refused("on the system clock a scenario takes as long as in reality: use --clock manual or a rate")
    settings = from_values({"store": "memory:", "executor": "external", **scenario.settings})
    service = Service(
        settings,
        clock=emulator_clock(clock, seeded=True),
        store=MemoryStore(),
        new_id=new_id or story_ids(),
        node="here",
    )
    try:
        service.control.apply_fleet(scenario.fleet, Actor("operator", "scenario"))
        scenario_run = play_on(service, scenario, say=say, attended=False)
        if clock == "manual":
            advance_until(service, scenario_run.ended.is_set, lambda: scenario_run.waits_for)
        else:
            _tick_until_ended(service, scenario_run)
    finally:
        service.close()
    if scenario_run.error is not None:
        raise scenario_run.error


def differences(scenario: Scenario) -> list[str]:
    """Return the steps whose result is not the expected one, with their lines. Without an expected result only errors count."""
    steps, _ = parse_story(scenario.text, scenario.name)
    played, _ = parse_story(play(scenario.text, MemoryStore(), scenario.name), scenario.name)
    return [
        f"{scenario.name}: line {step.line}: {step.command}\n{indent(step.expected, '- ')}{indent(result, '+ ')}".rstrip()
        for step, result in zip(steps, (step.expected for step in played), strict=True)
        if (result != step.expected if step.expected else result.startswith("error "))
    ]


def _tick_until_ended(service: Service, scenario_run: "ScenarioRun") -> None:
    with ticking(service):
        idle = 0
        while not scenario_run.ended.wait(CHECK_EVERY_S):
            # The ticker's thread may be late, so do here what is due. Check twice in a row, because time passes in between.
            service.ticker.cycle_until_idle()
            idle = idle + 1 if service.ticker.next_wakeup() is None else 0
            if idle > 1:
                raise Refused(f"the story waits for {scenario_run.waits_for}, but nothing is due that could cause it")


def emulator_for(scenario: Scenario, **options: Any) -> Emulator:
    """Return an emulator with the scenario's fleet and settings, and with further options. Its scopes wait for their guests."""
    settings = {name: str(value) for name, value in scenario.settings.items()}
    flags = {name.removesuffix("_s"): f"{value}s" if name.endswith("_s") else value for name, value in settings.items()}
    return Emulator(
        fleet=scenario.fleet_with_addresses(), enabled=False, **{"executor": "external", **flags, **options}
    )


class ScenarioRun:
    """A scenario that is being played. The ticker calls it, and it runs each step at its time, after everything else due."""

    def __init__(self, service: Service, scenario: Scenario, *, say: Say, attended: bool) -> None:
        self._service, self._name, self._say, self._attended = service, scenario.name, say, attended
        self._player = Player(service.store, service=service)
        self._steps = deque(scenario.steps)
        self._due = service.clock.now()
        self._reached: Callable[[], bool] = lambda: True
        self._awaited_event = ""
        self._waited_for_guests = self._begun = False
        self._announced: set[str] = set()
        self.waits_for = NEXT_STEP
        self.error: ForewarnError | None = None
        self.ended = threading.Event()

    def event_id(self, name: str) -> str | None:
        """Return the id of the event that the scenario calls by this name, such as E1."""
        return next((event_id for event_id, each in self._player.names.items() if each == name), None)

    def next_due(self) -> datetime | None:
        return None if self.ended.is_set() or not self._reached() else self._due

    def do(self, now: datetime) -> int:
        """Run the steps that are due; return how many."""
        count = 0
        while not self.ended.is_set() and now >= self._due and self._reached() and self._service_is_idle(now):
            count += 1
            if self._waited_for_guests and not self._begun:
                # Times count from the first poll, however late that came.
                self._begun = True
                self._player.begin(now)
            if self._awaited_event:
                result, self._awaited_event = self._player.play(f"events {self._awaited_event}"), ""
                self._say_result(result)
            if not self._steps:
                self.ended.set()
                break
            self._run_step(self._steps.popleft(), now)
        return count

    def _service_is_idle(self, now: datetime) -> bool:
        """Whether the service has done all that is due, so that a step sees the effects of the previous one."""
        moments = (self._service.store.next_wakeup(), self._service.executor.next_report())
        return all(moment is None or moment > now for moment in moments)

    def _run_step(self, step: Step, now: datetime) -> None:
        """Run the step before it is printed, so that it happens even if `say` fails."""
        try:
            result = self._perform(step, now)
        except ForewarnError as error:
            result, self.error = "", type(error)(f"{self._name}: line {step.line}: {error}")
            self.ended.set()
        for line in step.lead.splitlines():
            if line.startswith("#"):
                self._say(line)
        self._say(f"{self._player.since(now):<8} {step.command}")
        self._say_result(result)
        if self.error is not None:
            self._say(f"{self.error}: the scenario ends here")
        for event_id, name in self._player.names.items():
            if name not in self._announced and name.startswith("E"):
                self._say_result(f"{name} is {event_id}")
            self._announced.add(name)

    def _say_result(self, result: str) -> None:
        for line in result.splitlines():
            if line != "ok":
                self._say(f"{'':<8} {line}")

    def _perform(self, step: Step, now: datetime) -> str:
        """Run the command, or set what to wait for; return the result."""
        word, *rest = step.command.split()
        self._reached, self._due, self.waits_for = (lambda: True), now, NEXT_STEP
        if word == "advance":
            self._due = now + timedelta(seconds=parse_duration(" ".join(rest)))
            return ""
        if word == "until":
            name, status = rest
            self._player.has_reached(name, status)  # raises an error now if there is no such event
            self._reached, self._awaited_event = (lambda: self._player.has_reached(name, status)), name
            self.waits_for = f"{name} to be {status}"
            return ""
        if word == "enable" and self._attended:
            self._waited_for_guests = True
            self._reached = lambda: all(self._enabled(scope) for scope in rest)
            return "" if self._reached() else f"waiting for a machine of {', '.join(rest)} to poll\n"
        return self._player.play(step.command, step.body)

    def _enabled(self, scope: str) -> bool:
        known = self._service.store.snapshot(Focus(scopes=(scope,))).scopes
        return scope not in known or known[scope].enabled
