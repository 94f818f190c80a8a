"""What `decide` may choose, as data, and what it knows from outside when it chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple, Union

from forewarn.guest.document import Document, Event
from forewarn.guest.plan import Step
from forewarn.guest.state import Message


@dataclass(frozen=True)
class Note:
    """Write a record to the journal; nothing happens outside the agent."""

    record: Mapping[str, Any]


@dataclass(frozen=True)
class Prepare:
    step: Step
    event: Event
    share_s: float


@dataclass(frozen=True)
class Recover:
    step: Step
    event: Optional[Event]


@dataclass(frozen=True)
class Approve:
    event: Event
    left_s: Optional[float]
    # The agent verifies each of these once more, and approves only if all are still prepared.
    required: Tuple[Step, ...] = ()


@dataclass(frozen=True)
class CheckHealth:
    event: Optional[Event]


@dataclass(frozen=True)
class Notify:
    """Hand a message to a step that notifies."""

    message: Message
    step: Step


@dataclass(frozen=True)
class Wait:
    """Do nothing until the document changes, or until so many seconds have passed."""

    seconds: Optional[float] = None


Action = Union[Note, Prepare, Recover, Approve, CheckHealth, Notify, Wait]


@dataclass(frozen=True)
class View:
    """The last document, the monotonic clock, when each failed action may be retried, and which clients to wait for."""

    now_s: float
    document: Optional[Document] = None
    not_before_s: Mapping[str, float] = field(default_factory=dict)
    # The longest time for which the last change can have gone unseen; only recorded.
    delay_s: float = 0.0
    # The local clients to wait for, and for how many seconds longer each is waited for if it stays silent.
    awaited: Mapping[str, float] = field(default_factory=dict)

    def left_s(self, event: Event) -> Optional[float]:
        """Return the seconds to NotBefore by the current document, or None when they are not known."""
        if self.document is None:
            return None
        now = self.document.event(event.id)
        return self.document.time_left_s(event if now is None or now.started else now, self.now_s)

    def due(self, action: str) -> bool:
        return self.not_before_s.get(action, 0.0) <= self.now_s
