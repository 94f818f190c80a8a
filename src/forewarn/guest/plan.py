"""What the agent is configured to do, as data: rules, steps, health. `config` reads it from TOML; `decide` follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

from forewarn.guest.document import Event

APPROVE_WHEN = ("when-ready", "first-in-resources", "never")
DO = ("approve", "prepare", "prepare-only", "ignore")
# Handlers that report changes instead of preparing something and undoing it.
NOTIFIERS = ("log", "notify")
# Handlers that prepare once for each event, even while they are prepared for another.
EACH_EVENT = ("checkpoint",)


@dataclass(frozen=True)
class When:
    """Which events a rule or step applies to; an empty field matches every event."""

    types: Tuple[str, ...] = ()
    sources: Tuple[str, ...] = ()
    max_duration_s: Optional[float] = None

    def matches(self, event: Event) -> bool:
        if self.types and event.type not in self.types:
            return False
        if self.sources and event.source not in self.sources:
            return False
        # An unknown duration may be a long one.
        return self.max_duration_s is None or 0 <= event.duration_s <= self.max_duration_s


@dataclass(frozen=True)
class Rule:
    when: When
    do: str


@dataclass(frozen=True)
class Step:
    """One thing to do before an event and to undo after it; `spec` is what the handler's `parse` returned."""

    name: str
    handler: str
    spec: Any
    when: When = When()
    timeout_s: float = 60.0
    required: bool = False
    repeatable: bool = True
    # It goes on to its end even if no event needs it any more.
    finish: bool = False

    @property
    def notifies(self) -> bool:
        return self.handler in NOTIFIERS

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
    # None: prepare as soon as an event is seen.
    prepare_within_s: Optional[float] = None
    rules: Tuple[Rule, ...] = ()
    steps: Tuple[Step, ...] = ()
    health: Optional[Health] = None

    def do(self, event: Event) -> str:
        """Return what the first matching rule says, or `prepare` when no rule matches."""
        return next((rule.do for rule in self.rules if rule.when.matches(event)), "prepare")

    def preparing(self, event: Event) -> Tuple[Step, ...]:
        """Return the steps to prepare for this event, in order."""
        return tuple(step for step in self.steps if not step.notifies and step.when.matches(event))

    def notifying(self, event: Event) -> Tuple[Step, ...]:
        """Return the steps that report changes of this event."""
        return tuple(step for step in self.steps if step.notifies and step.when.matches(event))

    def step(self, name: str) -> Optional[Step]:
        return next((step for step in self.steps if step.name == name), None)
