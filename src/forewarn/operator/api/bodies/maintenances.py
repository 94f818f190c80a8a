"""Bodies about maintenances, their waves and their events."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.model import (
    MAX_BAKE_S,
    MAX_GROUPS_AT_ONCE,
    MAX_WAVE,
    MAX_WINDOW_NAMES,
    EventType,
    HostMode,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    Source,
    Status,
)
from forewarn.core.selectors import MAX_PATTERNS
from forewarn.operator.api.bodies.common import (
    MAX_LIST,
    Domain,
    HostPattern,
    MachineName,
    MachinePattern,
    Name,
    Problem,
    RequestBody,
    ResponseBody,
    Text,
)


class TargetsIn(RequestBody):
    """Exactly one of machines, a scope (with or without an update domain), scopes, hosts, everything.

    `labels` (a selector like `rack=a3,!gpu`) and `names` (patterns, of which one must match) choose among the machines of the
    scope or scopes, or of the whole fleet. `hosts` may be patterns; `host_labels` chooses among them, or among all hosts.
    """

    machines: Annotated[list[MachineName], msgspec.Meta(max_length=MAX_LIST)] = []
    scope: Annotated[str, msgspec.Meta(max_length=64)] = ""
    update_domain: Domain | None = None
    scopes: Annotated[list[Name], msgspec.Meta(max_length=MAX_LIST)] = []
    hosts: Annotated[list[HostPattern], msgspec.Meta(max_length=MAX_LIST)] = []
    labels: Text = ""
    names: Annotated[list[MachinePattern], msgspec.Meta(max_length=MAX_PATTERNS)] = []
    everything: bool = False
    host_labels: Text = ""


class StrategyIn(RequestBody):
    """How to go through the machines. `group_by` is update-domain, host, fault-domain, scope or label:KEY.

    A wave has up to `max_parallel` groups, the first one `canary` groups if this is not 0. A wave is published at least `bake_s`
    after the one before it has ended. At `max_failures`, a number ("3") or a share of the orders ("5%"), a maintenance with
    on_failure continue holds. After the wave `pause_after` it waits until an operator lets it continue. It starts only while
    one of its `windows`, and one of the scope, is open.
    """

    group_by: Annotated[str, msgspec.Meta(max_length=80)] = "update-domain"
    max_parallel: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS_AT_ONCE)] = 1
    canary: Annotated[int, msgspec.Meta(ge=0, le=MAX_GROUPS_AT_ONCE)] = 0
    bake_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_BAKE_S)] = 0
    max_failures: Annotated[str, msgspec.Meta(max_length=10)] = ""
    pause_after: Annotated[int, msgspec.Meta(ge=0, le=MAX_WAVE)] = 0
    windows: Annotated[list[Name], msgspec.Meta(max_length=MAX_WINDOW_NAMES)] = []


class MaintenanceIn(RequestBody):
    """A maintenance to schedule. With a `host_mode` the hosts of its targets are worked on, one after another.

    `evacuate` moves their machines away first, to `to_host` if it is given; `return_machines` brings them back. `in-place` shuts
    them down and starts them again. What has not started by `not_after` is cancelled.
    """

    type: EventType
    targets: TargetsIn
    source: Source = Source.PLATFORM
    not_before: datetime | None = None
    earliest: datetime | None = None
    duration_s: Annotated[int, msgspec.Meta(ge=-1, le=2_592_000)] = -1
    description: Text = ""
    emergency: bool = False
    on_failure: OnFailure = OnFailure.HOLD
    host_mode: HostMode | None = None
    return_machines: bool = False
    to_host: Annotated[str, msgspec.Meta(max_length=64)] = ""
    strategy: StrategyIn = msgspec.field(default_factory=StrategyIn)
    not_after: datetime | None = None


class RescheduleIn(RequestBody):
    """The time at which the event, or the host, may start at the earliest."""

    not_before: datetime


class WaitingOut(ResponseBody, omit_defaults=True):
    """One reason why an event or a host has not moved on. `orders` are orders of hosts that failed or are in doubt."""

    code: str
    message: str
    until: datetime | None = None
    machines: list[str] = []
    events: list[str] = []
    orders: list[str] = []


class ApprovedBy(ResponseBody):
    who: str
    when: datetime


class TimelineEntry(ResponseBody, omit_defaults=True):
    """One entry of an event's timeline: published, seen, approved, started, order …, its end."""

    at: datetime
    what: str
    who: str = ""
    detail: str = ""


class EventOut(ResponseBody):
    """An event of one scope, and what happened to it. A dry run's event has no ids and no times.

    `group` names the machines that the strategy keeps together; an owner sees none. An event that is being submitted, or would
    be, also has the hosts of its machines. An event that was rescheduled is
    `replaced_by` another one, and that event `replaces` it: it was moved `reschedules` times, and starts at
    `requested_not_before` or later. The events of a rescheduled host are planned later, so no event replaces them.
    """

    id: str | None
    maintenance_id: str | None
    wave: int
    group: str
    scope: str
    update_domain: int
    type: EventType
    status: Status
    source: Source
    resources: list[str]
    description: str
    duration_s: int
    published: datetime | None
    not_before: datetime | None
    notice_s: int | None
    approved_by: list[ApprovedBy]
    started: datetime | None
    ended: datetime | None
    reason: str
    waiting_for: list[WaitingOut]
    timeline: list[TimelineEntry]
    replaces: str
    replaced_by: str
    reschedules: int
    requested_not_before: datetime | None
    hosts: list[str] | msgspec.UnsetType = msgspec.UNSET


class WaveOut(ResponseBody):
    number: int
    events: list[EventOut]


class TargetsOut(ResponseBody, omit_defaults=True):
    """The requested targets: machines, scopes (of one scope perhaps only an update domain), hosts, or everything.

    `labels` and `names` chose among the machines of the scopes or of the fleet, `host_labels` among the hosts. `count` is the
    number of machines, scopes and hosts that are named. A list of maintenances shows the first 20. An owner sees machines and
    scopes of their own, and the labels.
    """

    count: int
    machines: list[str] = []
    scopes: list[str] = []
    update_domain: int | None = None
    hosts: list[str] = []
    labels: str = ""
    names: list[str] = []
    everything: bool = False
    host_labels: str = ""


class ProgressOut(ResponseBody):
    """The number of events, each counted once.

    `done` are Completed, `left` have not started, `undone` are Cancelled or Abandoned. `failed` and `in_doubt` are Started events
    whose order failed or is in doubt, `running` are the other Started events. Hosts are counted by their orders in the same way:
    `left` are planned, `running` can be taken or were taken, `undone` were skipped or abandoned.
    """

    done: int
    running: int
    failed: int
    in_doubt: int
    left: int
    undone: int


class HostWorkOut(ResponseBody):
    """The work on one host of a maintenance; hosts come one after another. A rescheduled host has a `requested_not_before`.

    `machines` are on the host now, until its work is over; `targets` are the hosts that each may go to, in a plan. A plan has no
    `order_id`. `executor` is the setting `host_executor` of the node that answers: with `external`, other tools take the order.
    """

    host: str
    order_id: str | None
    state: OrderState
    attempt: int
    node: str
    deadline: datetime | None
    ended: datetime | None
    reason: str
    machines: list[str]
    waiting_for: list[WaitingOut]
    reschedules: int
    requested_not_before: datetime | None
    executor: str = ""
    targets: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET


class StrategyOut(ResponseBody):
    """How the maintenance goes through its machines, as it was requested."""

    group_by: str
    max_parallel: int
    canary: int
    bake_s: int
    max_failures: str
    pause_after: int
    windows: list[str]


class MaintenanceOut(ResponseBody):
    """A maintenance, and how far it is. `hosts` is the work on its hosts, if it has a `host_mode`; an owner sees none.

    `targets` is null if the maintenance is older than stored targets, `estimated_end` if it cannot be known. It is `held`
    while failed orders stop the events that have not started; `failed_hosts` counts those of hosts, `host_progress` all orders of
    hosts. It `awaits_continue` after the wave at which its strategy stopped it. `needs_operator` says why only an operator can
    move it; it is empty while anything else can, and for a pause that an operator made. A drill has a `drill_hold_s`.
    """

    id: str | None
    type: EventType
    source: Source
    status: MaintenanceStatus
    paused: bool
    held: bool
    awaits_continue: bool
    needs_operator: list[WaitingOut]
    description: str
    duration_s: int
    emergency: bool
    on_failure: OnFailure
    created: datetime | None
    created_by: str
    not_before: datetime | None
    earliest: datetime | None
    not_after: datetime | None
    drill_hold_s: int
    ended: datetime | None
    targets: TargetsOut | None
    progress: ProgressOut
    estimated_end: datetime | None
    event_counts: dict[Status, int]
    waves: list[WaveOut]
    host_mode: HostMode | None
    return_machines: bool
    to_host: str
    failed_hosts: int
    host_progress: ProgressOut | None
    strategy: StrategyOut
    hosts: list[HostWorkOut]


class CalendarWave(ResponseBody):
    """When a wave may start. A time is null if the wave would wait for something that no passing of time ends.

    `may_wait_for` are codes of reasons to wait. A wave that `returns` brings machines back to their host.
    """

    wave: int
    groups: list[str]
    events: int
    machines: int
    hosts: list[str]
    earliest: datetime | None
    latest: datetime | None
    may_wait_for: list[str]
    returns: bool


class CalendarHost(ResponseBody):
    """The turn of a host that carries this many machines now: when the work on it may begin, and when the turn may end."""

    turn: int
    host: str
    machines: int
    earliest: datetime | None
    latest: datetime | None
    earliest_end: datetime | None
    latest_end: datetime | None
    may_wait_for: list[str]


class CalendarOut(ResponseBody):
    """The whole maintenance if it were scheduled now, nothing failed, and an operator let it continue at once.

    Earliest: every event is approved when it is published, and work takes no time. Latest: no event is approved, and the work of
    each takes `work_s`: the requested duration, or what is assumed without one. The work on each of the `hosts` takes as long;
    in place, machines are shut down and started in no time. The events of a host are planned in its turn: the waves are
    those of the machines that are on the hosts now, and machines that leave go to hosts that have no turn. In a drill, `work_s`
    is the time after its start at which each event ends, also at the earliest.
    """

    work_s: int
    waves: list[CalendarWave]
    hosts: list[CalendarHost]
    earliest_end: datetime | None
    latest_end: datetime | None


class SubmittedMaintenance(MaintenanceOut):
    """A maintenance just submitted, or with dry_run its plan; `warnings` says what may surprise. Only a plan has a `calendar`."""

    warnings: list[Problem] = []
    calendar: CalendarOut | None = None


class SubmittedEvent(EventOut):
    """The event of a restart or redeploy just requested, or with dry_run its plan; `warnings` says what may surprise."""

    warnings: list[Problem] = []


class MaintenanceRow(ResponseBody):
    """A maintenance in a list, without its waves.

    It is Paused if an operator `paused` it, if failures have it `held`, or if it `awaits_continue`.
    """

    id: str
    type: EventType
    source: Source
    status: MaintenanceStatus
    paused: bool
    held: bool
    awaits_continue: bool
    description: str
    duration_s: int
    emergency: bool
    on_failure: OnFailure
    created: datetime
    created_by: str
    not_before: datetime | None
    earliest: datetime | None
    not_after: datetime | None
    drill_hold_s: int
    ended: datetime | None
    targets: TargetsOut | None
    progress: ProgressOut
    estimated_end: datetime | None
    host_mode: HostMode | None
    return_machines: bool
    to_host: str
    failed_hosts: int
    host_progress: ProgressOut | None
    strategy: StrategyOut


class OpenWaveOut(ResponseBody):
    """The number of events of a wave that have this status, and what its maintenance is."""

    maintenance_id: str
    type: EventType
    description: str
    created: datetime
    wave: int
    status: Status
    events: int


class OpenWavesOut(ResponseBody):
    """The waves with open events that match, newest first, and the number of these events by status.

    `more` says that there are more waves than these; all of their events are counted.
    """

    counts: dict[Status, int]
    waves: list[OpenWaveOut]
    more: bool
