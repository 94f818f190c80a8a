"""The entries of a run's history, in order: everything the judge knows about the run."""

from typing import NamedTuple

from forewarn.core.change import Change


class Committed(NamedTuple):
    """The store saved a change, whether or not the node learned of it. `life` names a node between start and crash."""

    at_ms: int
    life: str
    change: Change


class NodeStarted(NamedTuple):
    """A node has started and read the clock. It knows only what is saved in the store and in its state folder.

    A restart of its machine loses the reading in the state folder. `boot` names the machine and how often it was started; the
    life itself if it is not given.
    """

    at_ms: int
    life: str
    boot: str = ""


class FailedOver(NamedTuple):
    """The database failed over: the new server lacks these last commits and this many agreements.

    It also lacks the other writes of the last `lost_ms`.
    """

    at_ms: int
    lost: tuple[Change, ...]
    agreements: int = 0
    lost_ms: int = 0


class Adopted(NamedTuple):
    """The nodes agreed on the new server, `steps` timelines later, and all scopes started a new epoch."""

    at_ms: int
    steps: int = 1


class Acknowledged(NamedTuple):
    """The node learned that the change is saved."""

    at_ms: int
    life: str
    change: Change


class Answered(NamedTuple):
    """A node answered that a request succeeded: from now on it must show these (scope, epoch, incarnation)."""

    at_ms: int
    life: str
    stages: tuple[tuple[str, int, int], ...]


class Shown(NamedTuple):
    """A node answered a guest's poll with a document, or with 304 and no body."""

    at_ms: int
    life: str
    scope: str
    machine: str
    if_none_match: str
    etag: str
    body: bytes


class Unanswered(NamedTuple):
    """A guest polled and got no document."""

    at_ms: int
    scope: str
    machine: str


class Approved(NamedTuple):
    """A guest's approvals and the status of the answer."""

    at_ms: int
    life: str
    scope: str
    machine: str
    event_ids: tuple[str, ...]
    status: int


class Submitted(NamedTuple):
    """A node answered an operator that the request with this key became this maintenance."""

    at_ms: int
    key: str
    maintenance_id: str


class StatusRequested(NamedTuple):
    """A node requested the status of an order from its executor."""

    at_ms: int
    life: str
    order_id: str
    attempt: int
    unknown: bool


class ExecutorCalled(NamedTuple):
    """A node called its executor for an order; `performed` unless the executor already knew the order.

    `hosts` are the hosts to which the executor then moves machines.
    """

    at_ms: int
    life: str
    order_id: str
    attempt: int
    performed: bool
    hosts: tuple[str, ...] = ()


class Forgotten(NamedTuple):
    """The executor lost all memory of an order."""

    at_ms: int
    order_id: str
    attempt: int


class ClockMoved(NamedTuple):
    """The wall clock that all nodes use was set."""

    at_ms: int
    by_ms: int


class Alarm(NamedTuple):
    """A node raised an error that must not happen."""

    at_ms: int
    life: str
    text: str


Entry = (
    NodeStarted
    | FailedOver
    | Adopted
    | Committed
    | Acknowledged
    | Answered
    | Shown
    | Unanswered
    | Approved
    | Submitted
    | StatusRequested
    | ExecutorCalled
    | Forgotten
    | ClockMoved
    | Alarm
)
