"""What happened in a run, in order, as far as somebody outside could have written it down: the judge's only evidence."""

from typing import NamedTuple

from forewarn.core.change import Change


class Committed(NamedTuple):
    """The store saved it, whether or not the node learned of that. `life` is one life of one node."""

    at_ms: int
    life: str
    change: Change


class Born(NamedTuple):
    """A life begins: of what was before it knows what is saved."""

    at_ms: int
    life: str


class FailedOver(NamedTuple):
    """Another server goes on without these commits, the last there were, and so many agreements on a server."""

    at_ms: int
    lost: tuple[Change, ...]
    agreements: int = 0


class Adopted(NamedTuple):
    """The nodes agree on that server, so many timelines further, and all scopes begin a new epoch."""

    at_ms: int
    steps: int = 1


class Acknowledged(NamedTuple):
    """The node was told that it is saved."""

    at_ms: int
    life: str
    change: Change


class Answered(NamedTuple):
    """Whoever asked a node for a change was told yes: from now on this node shows it. (scope, epoch, incarnation) each."""

    at_ms: int
    life: str
    stages: tuple[tuple[str, int, int], ...]


class Shown(NamedTuple):
    """A guest was answered a poll: its document, or (304, no body) that nothing is new."""

    at_ms: int
    life: str
    scope: str
    machine: str
    if_none_match: str
    etag: str
    body: bytes


class Unanswered(NamedTuple):
    """A guest asked and got no document."""

    at_ms: int
    scope: str
    machine: str


class Approved(NamedTuple):
    """A guest's StartRequests and the status of the answer."""

    at_ms: int
    life: str
    scope: str
    machine: str
    event_ids: tuple[str, ...]
    status: int


class Submitted(NamedTuple):
    """An operator was told that the request under this key became this maintenance."""

    at_ms: int
    key: str
    maintenance_id: str


class Asked(NamedTuple):
    """A node asked its executor what became of an order."""

    at_ms: int
    life: str
    order_id: str
    attempt: int
    unknown: bool


class Begun(NamedTuple):
    """A node told its executor to begin; `performed` unless the executor knew the order already."""

    at_ms: int
    life: str
    order_id: str
    attempt: int
    performed: bool


class Forgotten(NamedTuple):
    """The executor lost all memory of an order."""

    at_ms: int
    order_id: str
    attempt: int


class ClockMoved(NamedTuple):
    """The wall clock everybody goes by jumped."""

    at_ms: int
    by_ms: int


class Alarm(NamedTuple):
    """A node met an error that no rule foresees."""

    at_ms: int
    life: str
    text: str


Entry = (
    Born
    | FailedOver
    | Adopted
    | Committed
    | Acknowledged
    | Answered
    | Shown
    | Unanswered
    | Approved
    | Submitted
    | Asked
    | Begun
    | Forgotten
    | ClockMoved
    | Alarm
)
