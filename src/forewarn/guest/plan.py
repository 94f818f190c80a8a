"""What the agent is configured to do, as data: rules, steps, health. `config` reads it from TOML; `decide` obeys it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

from forewarn.guest.document import Event

APPROVE_WHEN = ("when-ready", "first-in-resources", "never")
DO = ("approve", "prepare", "prepare-only", "ignore")
# Handlers that are told of changes instead of being prepared and undone.
TELLERS = ("log", "notify")
# Handlers whose work is good for one event only: prepared once for each, also while it is prepared for another.
EACH_EVENT = ("checkpoint",)


@dataclass(frozen=True)
class When:
    """Which events a rule or step is for; what is not said matches everything."""

    types: Tuple[str, ...] = ()
    sources: Tuple[str, ...] = ()
    max_duration_s: Optional[float] = None

    def matches(self, event: Event) -> bool:
        if self.types and event.type not in self.types:
            return False
        if self.sources and event.source not in self.sources:
            return False
        # A duration that nobody knows may be a long one.
        return self.max_duration_s is None or 0 <= event.duration_s <= self.max_duration_s


@dataclass(frozen=True)
class Rule:
    when: When
    do: str


@dataclass(frozen=True)
class Step:
    """One thing to do before an event and to undo after it; `spec` is the handler's own."""

    name: str
    handler: str
    spec: Any
    when: When = When()
    timeout_s: float = 60.0
    required: bool = False
    repeatable: bool = True

    @property
    def tells(self) -> bool:
        return self.handler in TELLERS

    @property
    def each_event(self) -> bool:
        return self.handler in EACH_EVENT


@dataclass(frozen=True)
class Health:
    command: Tuple[str, ...]
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Plan:
    approve: str = "when-ready"
    reserve_s: float = 30.0
    rules: Tuple[Rule, ...] = ()
    steps: Tuple[Step, ...] = ()
    health: Optional[Health] = None

    def do(self, event: Event) -> str:
        """What the first rule that matches says; `prepare` when none does."""
        return next((rule.do for rule in self.rules if rule.when.matches(event)), "prepare")

    def wanted(self, event: Event) -> Tuple[Step, ...]:
        """The steps that prepare for this event, in order."""
        return tuple(step for step in self.steps if not step.tells and step.when.matches(event))

    def tellers(self, event: Event) -> Tuple[Step, ...]:
        return tuple(step for step in self.steps if step.tells and step.when.matches(event))

    def step(self, name: str) -> Optional[Step]:
        return next((step for step in self.steps if step.name == name), None)
