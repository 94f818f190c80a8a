"""Every body that the API reads or writes. The OpenAPI document is made from these classes.

Unknown keys are refused. Times are RFC 3339 in UTC, durations whole seconds in names that end in `_s`.
"""

from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from forewarn.core.durations import MAX_DURATION_S
from forewarn.core.hooks import ALL_KINDS
from forewarn.core.hosts import HostState
from forewarn.core.model import (
    MAX_CONNECTION_CHARS,
    MAX_HOOK_URL_CHARS,
    MAX_LABEL_CHARS,
    MAX_LABELS_PER_HOST,
    ApprovalMode,
    EventType,
    HoldCause,
    HookShape,
    HostMode,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    Phase,
    Role,
    ScopeKind,
    Source,
    Status,
)
from forewarn.operator.api.resolver import Kind

MAX_LIST = 10_000
Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="a name of 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit",
    ),
]
MachineName = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=129, description="`scope/name`, or the name alone where only one machine has it"
    ),
]
Text = Annotated[str, msgspec.Meta(max_length=1_024)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2_592_000)]
Domain = Annotated[int, msgspec.Meta(ge=0, le=999)]

Attempt = Annotated[
    Annotated[int, msgspec.Meta(ge=1)] | None,
    msgspec.Meta(
        description="the attempt that is reported, as returned when the order was taken; an earlier attempt is refused"
    ),
]

T = TypeVar("T")


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request's body or its query parameters."""


class ResponseBody(msgspec.Struct, kw_only=True):
    """A response's body, or a part of it."""


# -- requests


class ScopeIn(RequestBody):
    """A scope's settings, as in the fleet file."""

    kind: ScopeKind
    approval: ApprovalMode = ApprovalMode.ANY
    approve_user_events: bool = False
    max_user_operations: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    terminate_notice_s: Annotated[int, msgspec.Meta(ge=300, le=900)] = 300
    minimum_notice_s: dict[EventType, Whole] = {}


class MachineIn(RequestBody):
    """A machine's domains, host and identity, as in the fleet file."""

    update_domain: Domain = 0
    fault_domain: Domain = 0
    host: Annotated[str, msgspec.Meta(max_length=64)] = ""
    addresses: Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=16)] = []
    interface: Annotated[str, msgspec.Meta(max_length=64)] = ""
    instance_id: Annotated[str, msgspec.Meta(max_length=128)] = ""


class FleetScope(ScopeIn, kw_only=True):
    """A scope of a fleet."""

    name: Name


class FleetMachine(MachineIn, kw_only=True):
    """A machine of a fleet."""

    name: Name
    scope: Name


class FleetHost(RequestBody):
    """A host of a fleet."""

    name: Name
    labels: Annotated[
        dict[Name, Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)]],
        msgspec.Meta(max_length=MAX_LABELS_PER_HOST),
    ] = {}
    fault_domain: Domain = 0
    connection: Annotated[str, msgspec.Meta(max_length=MAX_CONNECTION_CHARS)] = ""


class Fleet(RequestBody):
    """A whole fleet."""

    scopes: list[FleetScope]
    machines: list[FleetMachine]
    hosts: list[FleetHost] = []


class TargetsIn(RequestBody):
    """Exactly one of machines, a scope (with or without an update domain), scopes, hosts."""

    machines: Annotated[list[MachineName], msgspec.Meta(max_length=MAX_LIST)] = []
    scope: Annotated[str, msgspec.Meta(max_length=64)] = ""
    update_domain: Domain | None = None
    scopes: Annotated[list[Name], msgspec.Meta(max_length=MAX_LIST)] = []
    hosts: Annotated[list[Name], msgspec.Meta(max_length=MAX_LIST)] = []


class MaintenanceIn(RequestBody):
    """A maintenance to schedule."""

    type: EventType
    targets: TargetsIn
    source: Source = Source.PLATFORM
    not_before: datetime | None = None
    earliest: datetime | None = None
    duration_s: Annotated[int, msgspec.Meta(ge=-1, le=2_592_000)] = -1
    description: Text = ""
    emergency: bool = False
    on_failure: OnFailure = OnFailure.HOLD
    host_mode: Annotated[
        HostMode | None,
        msgspec.Meta(
            description="work on the hosts of the targets, one after another, without their machines or in place"
        ),
    ] = None
    return_machines: bool = False
    to_host: Annotated[str, msgspec.Meta(max_length=64)] = ""


class HookIn(RequestBody):
    """A hook to create. Without a scope it is for the whole fleet; without `on` it gets the usual kinds of entries."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HOOK_URL_CHARS)]
    scope: Annotated[str, msgspec.Meta(max_length=64)] = ""
    on: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=20)]],
        msgspec.Meta(max_length=len(ALL_KINDS), description=f"some of {', '.join(ALL_KINDS)}"),
    ] = []
    shape: HookShape = HookShape.CLOUDEVENTS


class RotateIn(RequestBody):
    """How long the secret before signs too, besides the new one."""

    keep_s: Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400)] = 86_400


class ReplayIn(RequestBody):
    """The audit entry to go on with: an earlier one is sent again with all that follow, a later one skips entries."""

    from_entry: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class FinishIn(RequestBody):
    """Where the machines of a finished order are now: `{"new_hosts": {"shop/web-0": "rack2-b"}}`."""

    new_hosts: dict[MachineName, Name] = {}
    attempt: Attempt = None
    output: Annotated[str, msgspec.Meta(max_length=65_536)] = ""


class FailIn(RequestBody):
    """Why an order failed."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
    attempt: Attempt = None
    output: Annotated[str, msgspec.Meta(max_length=65_536)] = ""


class StoreHoldIn(RequestBody):
    """Why an operator holds the store, for the audit log."""

    reason: Text = ""


class ResumeIn(RequestBody):
    """The time of the hold that the operator was shown: `held` of what would happen."""

    held: Annotated[datetime, msgspec.Meta(tz=True)]


class TokenIn(RequestBody):
    """A token to create. An owner's token names its scopes; one for the calendar may, and else reads the whole fleet.

    Without `valid_for_s` it is valid until it is revoked.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    role: Role
    scopes: Annotated[list[Name], msgspec.Meta(max_length=32)] = []
    valid_for_s: Annotated[int, msgspec.Meta(ge=60, le=MAX_DURATION_S)] | None = None


class AdvanceIn(RequestBody):
    """How far to move the clock."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]


# -- responses


class Page(ResponseBody, Generic[T]):
    """One page of a list; `next_cursor` is the cursor of the next page, null at the end."""

    items: list[T]
    next_cursor: str | None = None


class Problem(ResponseBody):
    """What is wrong, or may surprise: a stable code for programs, a sentence for people."""

    code: str
    message: str


class Error(ResponseBody):
    """The body of every error."""

    error: Problem


class ScopeOut(ResponseBody):
    """A scope: its settings, and the state of its document."""

    name: str
    kind: ScopeKind
    approval: ApprovalMode
    approve_user_events: bool
    max_user_operations: int
    terminate_notice_s: int
    minimum_notice_s: dict[EventType, int]
    enabled: bool
    epoch: int
    incarnation: int


class Document(ResponseBody, rename="pascal"):
    """What guests see: the scheduled and started events, with the fields of the requested api-version."""

    document_incarnation: int
    events: list[dict[str, str | int | list[str]]]


class MachineOut(ResponseBody):
    """A machine of the inventory."""

    scope: str
    name: str
    update_domain: int
    fault_domain: int
    host: str
    addresses: list[str]
    interface: str
    instance_id: str
    last_seen: datetime | None = None


class HostOut(ResponseBody):
    """A host, and the number of machines on it that the caller may see. An owner sees only the name and the number.

    `listed` says that the fleet lists it, so that forewarn may send machines to it. `cordoned_by` is the maintenance that
    cordoned it, or "" if an operator did.
    """

    name: str
    machines: int
    state: HostState | msgspec.UnsetType = msgspec.UNSET
    fault_domain: int | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    connection: str | msgspec.UnsetType = msgspec.UNSET
    listed: bool | msgspec.UnsetType = msgspec.UNSET
    cordoned: datetime | msgspec.UnsetType | None = msgspec.UNSET
    cordoned_by: str | msgspec.UnsetType = msgspec.UNSET


class FleetChange(ResponseBody):
    """What applying a fleet changed, or with dry_run would change; ask before you apply a `large_removal`."""

    lines: list[str]
    warnings: list[str]
    dry_run: bool
    removed_scopes: int = 0
    removed_machines: int = 0
    removed_hosts: int = 0
    large_removal: bool = False


class WaitingOut(ResponseBody, omit_defaults=True):
    """One reason why an event has not moved on."""

    code: str
    message: str
    until: datetime | None = None
    machines: list[str] = []
    events: list[str] = []


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

    An event that is being submitted, or would be, also has the hosts of its machines.
    """

    id: str | None
    maintenance_id: str | None
    wave: int
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
    hosts: list[str] | msgspec.UnsetType = msgspec.UNSET


class WaveOut(ResponseBody):
    number: int
    events: list[EventOut]


class TargetsOut(ResponseBody, omit_defaults=True):
    """What was asked for: machines, scopes (of one scope perhaps only an update domain), or hosts.

    `count` is the number of names. A list of maintenances shows the first 20. An owner sees machines and scopes of their own.
    """

    count: int
    machines: list[str] = []
    scopes: list[str] = []
    update_domain: int | None = None
    hosts: list[str] = []


class ProgressOut(ResponseBody):
    """The number of events, each counted once.

    `done` are Completed, `left` have not started, `undone` are Cancelled or Abandoned. `failed` and `in_doubt` are Started events
    whose order failed or is in doubt, `running` are the other Started events.
    """

    done: int
    running: int
    failed: int
    in_doubt: int
    left: int
    undone: int


class HostWorkOut(ResponseBody):
    """The work on one host of a maintenance, in its turn: the state of its order, and what it waits for."""

    host: str
    order_id: str | None
    state: OrderState
    attempt: int
    reason: str
    waiting_for: list[WaitingOut]


class MaintenanceOut(ResponseBody):
    """A maintenance, and how far it is.

    `targets` is null if the maintenance is older than stored targets, `estimated_end` if it cannot be known. It is `held` while
    failed orders stop the events that have not started. `needs_operator` says why only an operator can move it; it is empty
    while anything else can, and for a pause.
    """

    id: str | None
    type: EventType
    source: Source
    status: MaintenanceStatus
    paused: bool
    held: bool
    needs_operator: list[WaitingOut]
    description: str
    duration_s: int
    emergency: bool
    on_failure: OnFailure
    created: datetime | None
    created_by: str
    not_before: datetime | None
    earliest: datetime | None
    ended: datetime | None
    targets: TargetsOut | None
    progress: ProgressOut
    estimated_end: datetime | None
    event_counts: dict[Status, int]
    waves: list[WaveOut]
    host_mode: HostMode | None = None
    return_machines: bool = False
    to_host: str = ""
    hosts: list[HostWorkOut] = []


class SubmittedMaintenance(MaintenanceOut):
    """A maintenance just submitted, or with dry_run its plan; `warnings` says what may surprise."""

    warnings: list[Problem] = []


class SubmittedEvent(EventOut):
    """The event of a restart or redeploy just requested, or with dry_run its plan; `warnings` says what may surprise."""

    warnings: list[Problem] = []


class MaintenanceRow(ResponseBody):
    """A maintenance in a list, without its waves. It is Paused if an operator `paused` it, or if failures have it `held`."""

    id: str
    type: EventType
    source: Source
    status: MaintenanceStatus
    paused: bool
    held: bool
    description: str
    duration_s: int
    emergency: bool
    on_failure: OnFailure
    created: datetime
    created_by: str
    not_before: datetime | None
    earliest: datetime | None
    ended: datetime | None
    targets: TargetsOut | None
    progress: ProgressOut
    estimated_end: datetime | None
    host_mode: HostMode | None = None
    return_machines: bool = False
    to_host: str = ""


class OrderOut(ResponseBody):
    """The work of one started event, whose id it has, or the work on one host: then it has no scope and no machines.

    `hosts` are the hosts of its machines now. What resuming the store would do is listed without them. `phase` says whether an
    order of in-place maintenance shuts its machines down or starts them again.
    """

    id: str
    maintenance_id: str
    state: OrderState
    scope: str
    type: EventType
    machines: list[str]
    issued: datetime
    deadline: datetime | None
    attempt: int
    node: str
    taken: datetime | None
    ended: datetime | None
    reason: str
    output: str
    host: str = ""
    phase: Phase = Phase.NONE
    hosts: list[str] | msgspec.UnsetType = msgspec.UNSET


class AuditOut(ResponseBody):
    """Who did what, when and from where."""

    id: int
    at: datetime
    who: str
    action: str
    origin: str
    scope: str
    maintenance_id: str
    event_id: str
    detail: str
    hash: str


class ChainMarkOut(ResponseBody):
    """An entry of the audit and its hash."""

    id: int
    hash: str


class AuditChainOut(ResponseBody):
    """Where the hash chain of the audit begins and ends.

    Entries up to `start` were pruned, or are older than the chain. `head` is the newest entry.
    """

    start: ChainMarkOut
    head: ChainMarkOut


class TokenOut(ResponseBody):
    """A token, without its secret. `last_used` may be a minute old; both times are null where there is none."""

    id: str
    name: str
    role: Role
    scopes: list[str]
    created: datetime
    created_by: str
    expires: datetime | None = None
    last_used: datetime | None = None


class NewToken(TokenOut, kw_only=True):
    """A new token, with its secret, which is shown only once."""

    token: str


class HookGap(ResponseBody):
    """Audit entries after `after`, up to `until`, that were deleted before they could be delivered."""

    after: int
    until: int


class HookOut(ResponseBody):
    """A hook, without its secret. Entries up to `cursor` are delivered, or not of the kinds in `on`.

    `failing_since`, `failures` and `error` are about the attempts since the last delivery, which was at `delivered`.
    `next_attempt` is known for a failing hook, on the node that sends. `old_secrets_until` may be in the past.
    """

    id: str
    url: str
    scope: str
    on: list[str]
    shape: HookShape
    state: Literal["active", "failing", "disabled"]
    created: datetime
    created_by: str
    cursor: int
    delivered: datetime | None
    failing_since: datetime | None
    failures: int
    error: str
    disabled: datetime | None
    gap: HookGap | None
    old_secrets_until: datetime | None
    next_attempt: datetime | None = None


class NewHook(HookOut, kw_only=True):
    """A hook with its new secret, which is shown only once."""

    secret: str


class HookTestOut(ResponseBody):
    """How the attempt to send a test message ended. `status` is 0 if the receiver did not answer."""

    delivered: bool
    status: int
    error: str
    took_ms: int


class HookDeliveryOut(ResponseBody):
    """The last attempt to deliver an audit entry."""

    entry: int
    type: str
    at: datetime
    attempts: int
    delivered: bool
    status: int
    error: str
    took_ms: int


class HeldOut(ResponseBody):
    """The clock jumped forward: unapproved starts wait until an operator confirms it."""

    trusted: datetime
    noticed: datetime
    jumped_s: int


class StoreHoldOut(ResponseBody):
    """Why the store is held and since when: nothing starts and no order is handed out until an operator resumes it."""

    cause: HoldCause
    detail: str
    who: str
    held: datetime


class StoreOut(ResponseBody):
    """Whether the store is held."""

    held: StoreHoldOut | None


class StartOut(ResponseBody):
    """An event that would start."""

    id: str
    maintenance_id: str
    scope: str
    update_domain: int
    type: EventType
    resources: list[str]
    not_before: datetime | None


class ResumeEffectsOut(ResponseBody):
    """What would happen at once if the store were resumed.

    The events in `starts` would start. Of the `orders`, the open ones would be handed out. Executors would be asked about the
    running ones: an order that its executor does not know is left in doubt, or begins again if it may be repeated.
    `more` says that the lists are not complete.
    """

    held: StoreHoldOut | None
    starts: list[StartOut]
    orders: list[OrderOut]
    more: bool


class MatchOut(ResponseBody):
    """One match; a machine's id is `scope/name`."""

    kind: Kind
    id: str


class MatchesOut(ResponseBody):
    """What a text may mean, exact matches first; `more` says whether there are more matches than these."""

    matches: list[MatchOut]
    more: bool


class CallerOut(ResponseBody):
    """The holder of the token of this request; `scopes` are those of an owner, null for everyone else."""

    name: str
    role: Role
    scopes: list[str] | None


class CountsOut(ResponseBody):
    """The number of open events by status, of those whose order failed or is in doubt, of scopes and of machines."""

    planned: int
    scheduled: int
    started: int
    failed: int
    in_doubt: int
    scopes: int
    machines: int


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


class ClockOut(ResponseBody):
    """The service's time."""

    now: datetime
    kind: Literal["system", "manual", "scaled"]
    held: HeldOut | None = None
