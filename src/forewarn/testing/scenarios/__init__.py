"""Scenarios: the maintenance that happens in real life, as stories that can be played on a service or an emulator.

A scenario begins with comments (what happens, when it happens, and what a machine should do), then optionally `service` with
settings, then `fleet`. This module owns the shipped files and the rules for their content; `player` plays them.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError, Invalid, NotFound
from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine
from forewarn.executors.registry import find
from forewarn.testing.stories import UNTIL, Player
from forewarn.testing.story_text import MAX_BYTES, Step, parse_fleet_lines, parse_story, setting

MAX_MACHINES = 250  # each has its own address, 127.0.0.N
UPDATE_DOMAINS = 5
# A scenario may come from any source, so no setting may run a program, write a file or open a listener.
SETTINGS = frozenset(
    {
        "executor",
        "disable_after_s",
        "first_call_delay_s",
        "order_timeout_s",
        "simulated_work_s",
        "simulated_freeze_work_s",
        "rate_limit",
    }
)
EXCLUDED_COMMANDS = ("ticker",)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A parsed scenario. `steps` are those after the settings and the fleet, `description` the comments after the title."""

    name: str
    text: str
    title: str
    description: tuple[str, ...]
    settings: dict[str, object]
    fleet: Fleet
    steps: tuple[Step, ...]

    def with_machines(self, count: int) -> "Scenario":
        """Return the scenario with at least `count` machines; vm-0, vm-1 … are added to its first scope."""
        if not isinstance(count, int) or not 1 <= count <= MAX_MACHINES:
            raise Invalid(f"{count!r} machines: write a number from 1 to {MAX_MACHINES}")
        scope = next(iter(self.fleet.scopes))
        machines = dict(self.fleet.machines)
        for number in range(count):
            if len(machines) < count and (scope, f"vm-{number}") not in machines:
                machines[scope, f"vm-{number}"] = Machine(
                    scope=scope, name=f"vm-{number}", update_domain=number % UPDATE_DOMAINS
                )
        return replace(self, fleet=replace(self.fleet, machines=machines))

    def fleet_with_addresses(self) -> Fleet:
        """Return the fleet with an address for each machine: 127.0.0.1 for the first, 127.0.0.2 for the second …"""
        machines = {
            key: replace(machine, addresses=(f"127.0.0.{number}",))
            for number, (key, machine) in enumerate(self.fleet.machines.items(), start=1)
        }
        return replace(self.fleet, machines=machines)


def parse_scenario(text: str, name: str) -> Scenario:
    """Parse a scenario; raise Invalid with the line of an error."""
    steps, _ = parse_story(text, name)
    if not steps:
        raise Invalid(f"{name}: it has no steps: docs/guide/scenarios.md shows how to write one")
    comments = [line.removeprefix("#").strip() for line in steps[0].lead.splitlines() if line.startswith("#")]
    settings: dict[str, object] = {}
    fleet: Fleet | None = None
    rest: list[Step] = []
    for step in steps:
        try:
            word = step.command.split()[0]
            if word == "service" and fleet is None and not rest:
                settings |= _settings(step.command)
            elif word == "fleet" and fleet is None and not rest:
                fleet = _fleet(step)
            else:
                _check_command(word, step)
                rest.append(step)
        except (ForewarnError, ValueError) as error:
            raise Invalid(f"{name}: line {step.line}: {error}") from None
    if fleet is None or not fleet.machines:
        raise Invalid(f"{name}: line {steps[0].line}: it has no machine: begin with `fleet`, a scope and its machines")
    return Scenario(
        name=name,
        text=text,
        title=comments[0] if comments else name,
        description=tuple(comments[1:]),
        settings=settings,
        fleet=fleet,
        steps=tuple(rest),
    )


def _fleet(step: Step) -> Fleet:
    fleet = parse_fleet_lines(step.body)
    if len(fleet.machines) > MAX_MACHINES:
        raise ValueError(f"{len(fleet.machines)} machines: a scenario has at most {MAX_MACHINES}")
    return fleet


def _settings(command: str) -> dict[str, object]:
    settings: dict[str, object] = {}
    for pair in command.split()[1:]:
        key, _, value = pair.partition("=")
        name, parsed = setting(key, value)
        if name not in SETTINGS or (name == "executor" and find(str(parsed)).needs_token):
            raise ValueError(f"a scenario cannot set {pair!r}: it may set {', '.join(sorted(SETTINGS))}")
        settings[name] = parsed
    return settings


def _check_command(word: str, step: Step) -> None:
    """Raise ValueError for errors that can be found before the scenario is played."""
    if word in ("service", "fleet"):
        raise ValueError(f"`{word}` must be at the beginning of a scenario, before the service runs")
    if word in EXCLUDED_COMMANDS or not hasattr(Player, f"_do_{word.replace('-', '_')}"):
        raise ValueError(f"there is no command {word!r} for scenarios: docs/contributing/stories.md lists them")
    if word == "advance":
        parse_duration(" ".join(step.command.split()[1:]))
    if word == "until" and (len(step.command.split()) != 3 or step.command.split()[2] not in UNTIL):
        raise ValueError(f"{step.command!r}: write it like `until E1 Started`, with one of {', '.join(UNTIL)}")


# -- sources


@cache
def scenario_names() -> tuple[str, ...]:
    """Return the names of the shipped scenarios."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".txt") for file in files if file.name.endswith(".txt")))


def scenario(name: str) -> Scenario:
    """Return a shipped scenario by its name, or a file's by its path."""
    if name in scenario_names():
        return parse_scenario(resources.files(__name__).joinpath(f"{name}.txt").read_text("utf-8"), name)
    path = Path(name)
    if not (path.suffix or "/" in name or path.is_file()):
        raise NotFound(f"there is no scenario {name!r}: {', '.join(scenario_names())}, or the path of a file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return parse_scenario(data.decode("utf-8"), name)
    except OSError as error:
        raise NotFound(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"{name}: this is not UTF-8 text") from None
