"""Plays a scenario on a service: each step at its own time on the service's clock, told as it happens.

A scenario under way is a chore of the ticker, so every clock will do. On a manual clock whoever moves it finds that the
steps on the way have happened, each at its own moment; on a scaled one or the system's they come by themselves.
"""

import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from textwrap import indent
from typing import Any

from forewarn.app.service import Service
from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError, Refused
from forewarn.core.model import Actor
from forewarn.service.clock import ManualClock, clock_for
from forewarn.service.settings import from_values
from forewarn.store import Focus
from forewarn.store.memory import MemoryStore
from forewarn.testing.emulator import Emulator
from forewarn.testing.scenarios import Scenario
from forewarn.testing.stories import START, Player, play, to_end
from forewarn.testing.story_text import Step, parse_story

LOOK_EVERY_S = 0.5

Say = Callable[[str], None]


def play_on(service: Service, scenario: Scenario, *, say: Say, attended: bool = True) -> "Play":
    """Begin a scenario on a service whose fleet has the scenario's machines; it goes on as the service's clock does.

    `attended`: guests are really there, and `enable` waits for them to ask. Else it asks in their place.
    """
    playing = Play(service, scenario, say=say, attended=attended)
    service.ticker.add_chore(playing)
    service.ticker.nudge()
    return playing


def play_alone(scenario: Scenario, *, clock: str = "manual", new_id: Callable[[], str] | None = None, say: Say) -> None:
    """Play it to the end on a service of its own, in memory and with no listener; nobody approves."""
    if clock == "system":
        raise Refused("a scenario that is played alone would take as long as it says: use --clock manual or a rate")
    settings = from_values({"store": "memory:", "executor": "external", **scenario.settings})
    service = Service(
        settings,
        clock=ManualClock(START) if clock == "manual" else clock_for(clock),
        store=MemoryStore(),
        new_id=new_id or story_ids(),
        node="here",
    )
    try:
        service.control.apply_fleet(scenario.fleet, Actor("operator", "scenario"))
        playing = play_on(service, scenario, say=say, attended=False)
        if clock == "manual":
            to_end(service, playing.over.is_set, lambda: playing.waits_for)
        else:
            _tick_until_over(service, playing)
    finally:
        service.close()
    if playing.error is not None:
        raise playing.error


def differences(scenario: Scenario) -> list[str]:
    """Where what is seen is not what the file says, each with its line. Where it says nothing, an error is one."""
    steps, _ = parse_story(scenario.text, scenario.name)
    played, _ = parse_story(play(scenario.text, MemoryStore(), scenario.name), scenario.name)
    return [
        f"{scenario.name}: line {step.line}: {step.command}\n{indent(step.expected, '- ')}{indent(seen.expected, '+ ')}".rstrip()
        for step, seen in zip(steps, played, strict=True)
        if (seen.expected != step.expected if step.expected else seen.expected.startswith("error "))
    ]


def _tick_until_over(service: Service, playing: "Play") -> None:
    ticking = threading.Thread(target=service.ticker.run, name="ticker", daemon=True)
    ticking.start()
    try:
        idle = 0
        while not playing.over.wait(LOOK_EVERY_S):
            # All that can be done now is done, however late the ticker's thread is; twice in a row, for time goes on meanwhile.
            service.ticker.cycle_until_idle()
            idle = idle + 1 if service.ticker.next_wakeup() is None else 0
            if idle > 1:
                raise Refused(f"the story waits for {playing.waits_for}, and nothing is due that could bring it")
    finally:
        service.ticker.stop()
        ticking.join()


def emulator_for(scenario: Scenario, **options: Any) -> Emulator:
    """An emulator with the scenario's fleet and settings, waiting for its guests; `options` are the emulator's own."""
    settings = {name: str(value) for name, value in scenario.settings.items()}
    stated = {
        name.removesuffix("_s"): f"{value}s" if name.endswith("_s") else value for name, value in settings.items()
    }
    return Emulator(fleet=scenario.addressed(), enabled=False, **{"executor": "external", **stated, **options})


def story_ids() -> Callable[[], str]:
    """The same ids every time."""
    numbers = count(1)
    return lambda: f"{next(numbers):08X}-0000-4000-8000-000000000000"


class Play:
    """A chore of the ticker: does the next step when its moment has come and nothing else is due before it."""

    def __init__(self, service: Service, scenario: Scenario, *, say: Say, attended: bool) -> None:
        self._service, self._name, self._say, self._attended = service, scenario.name, say, attended
        self._player = Player(service.store, service=service)
        self._steps = deque(scenario.steps)
        self._due = service.clock.now()
        self._until: Callable[[], bool] = lambda: True
        self._awaited = ""
        self._begins = self._begun = False
        self._told: set[str] = set()
        self.waits_for = "its next moment"
        self.error: ForewarnError | None = None
        self.over = threading.Event()

    def next_due(self) -> datetime | None:
        return None if self.over.is_set() or not self._until() else self._due

    def do(self, now: datetime) -> int:
        """As many steps as the moment has; how many."""
        done = 0
        while not self.over.is_set() and now >= self._due and self._until() and self._quiet(now):
            done += 1
            if self._begins and not self._begun:
                # Its times count from when the machines are there, however long that took.
                self._begun = True
                self._player.begin(now)
            if self._awaited:
                seen, self._awaited = self._player.play(f"events {self._awaited}"), ""
                self._tell(seen)
            if not self._steps:
                self.over.set()
                break
            self._do_and_tell(self._steps.popleft(), now)
        return done

    def _quiet(self, now: datetime) -> bool:
        """What is due by the service's own rules comes first: a step sees what the one before it led to."""
        moments = (self._service.store.next_wakeup(), self._service.executor.next_report())
        return all(moment is None or moment > now for moment in moments)

    def _do_and_tell(self, step: Step, now: datetime) -> None:
        """In this order: whoever cannot be told does not keep it from happening."""
        try:
            seen = self._do(step, now)
        except ForewarnError as error:
            seen, self.error = "", type(error)(f"{self._name}: line {step.line}: {error}")
            self.over.set()
        for line in step.lead.splitlines():
            if line.startswith("#"):
                self._say(line)
        self._say(f"{self._player.since(now):<8} {step.command}")
        self._tell(seen)
        if self.error is not None:
            self._say(f"{self.error}: the scenario ends here")
        for event_id, name in self._player.names.items():
            if name not in self._told and name.startswith("E"):
                self._tell(f"{name} is {event_id}")
            self._told.add(name)

    def _tell(self, seen: str) -> None:
        for line in seen.splitlines():
            if line != "ok":
                self._say(f"{'':<8} {line}")

    def _do(self, step: Step, now: datetime) -> str:
        word, *rest = step.command.split()
        self._until, self._due, self.waits_for = (lambda: True), now, "its next moment"
        if word == "advance":
            self._due = now + timedelta(seconds=parse_duration(" ".join(rest)))
            return ""
        if word == "until":
            name, status = rest
            self._player.has_come(name, status)  # an event nobody knows is told now
            self._until, self._awaited = (lambda: self._player.has_come(name, status)), name
            self.waits_for = f"{name} to be {status}"
            return ""
        if word == "enable" and self._attended:
            self._begins = True
            self._until = lambda: all(self._enabled(scope) for scope in rest)
            return "" if self._until() else f"waiting for a machine of {', '.join(rest)} to ask\n"
        return self._player.play(step.command, step.body)

    def _enabled(self, scope: str) -> bool:
        known = self._service.store.snapshot(Focus(scopes=(scope,))).scopes
        return scope not in known or known[scope].enabled
