"""Kinds of events: what an agent may handle differently, by type, source and duration."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from forewarn.core.durations import duration_text, parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.event_types import EVENT_TYPES, EventType, Source

KEYS = ("type", "source", "duration")
EXAMPLE = "type=Freeze,source=Platform,duration=5s"
UNKNOWN_DURATION_S = -1

Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class EventKind:
    """Events that an agent sees as equal, except for their ids, machines and times."""

    type: EventType
    source: Source = Source.PLATFORM
    duration_s: int = UNKNOWN_DURATION_S

    def __str__(self) -> str:
        """Return text like `Reboot`, `Reboot by User` or `Freeze of 5s`."""
        by = f" by {self.source}" if self.source is not Source.PLATFORM else ""
        of = f" of {duration_text(self.duration_s)}" if self.duration_s != UNKNOWN_DURATION_S else ""
        return f"{self.type}{by}{of}"

    @property
    def published_source(self) -> Source:
        """The source with which the service publishes the event; it publishes some types only for the platform."""
        return self.source if self.source in EVENT_TYPES[self.type].sources else Source.PLATFORM

    def may_name_several_machines(self) -> bool:
        return self.source is Source.PLATFORM and not EVENT_TYPES[self.type].one_event_per_machine

    def may_start_without_notice(self) -> bool:
        return self.source is Source.PLATFORM and EVENT_TYPES[self.type].may_be_emergency

    def leaves_the_machine(self) -> bool:
        """Whether the machine still exists after the event."""
        return not EVENT_TYPES[self.type].removes_machines

    def may_be_repeated(self) -> bool:
        """Whether a machine can have two open events of this kind: a user can request each type once."""
        return self.published_source is Source.PLATFORM

    def is_from_the_platform(self) -> bool:
        return self.source is Source.PLATFORM


def parse_event(text: str) -> EventKind:
    """Return the kind that an option like `type=Reboot,source=User` declares; raise Invalid if it is wrong."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in KEYS or not equals or key in values:
            raise Invalid(f"{text!r} is not a kind of event: write it like {EXAMPLE}; only the type is required")
        values[key] = value
    if "type" not in values:
        raise Invalid(f"{text!r} has no type: write it like {EXAMPLE}")
    return EventKind(
        _member(EventType, "type", values["type"]),
        _member(Source, "source", values.get("source", Source.PLATFORM)),
        parse_duration(values["duration"]) if "duration" in values else UNKNOWN_DURATION_S,
    )


def _member(choices: type[Choice], key: str, text: str) -> Choice:
    """Return the member of this name, in any letter case."""
    for each in choices:
        if each.casefold() == text.casefold():
            return each
    raise Invalid(f"{key}: {text!r} is not one of {', '.join(choices)}")


# All types and sources, and a Freeze that is known to be short, which many agents approve at once.
# The behaviours use the first kind that the agent handles.
CATALOGUE = tuple(
    map(
        parse_event,
        (
            "type=Reboot",
            "type=Freeze",
            "type=Freeze,duration=5s",
            "type=Redeploy",
            "type=Reboot,source=User",
            "type=Redeploy,source=User",
            "type=Preempt",
            "type=Terminate",
            "type=Terminate,source=User",
        ),
    )
)
