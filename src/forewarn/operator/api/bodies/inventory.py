"""Bodies about scopes, machines, hosts and the fleet, and what a name may mean."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.core.hosts import HostState
from forewarn.core.model import (
    MAX_CONNECTION_CHARS,
    MAX_LABEL_CHARS,
    MAX_LABELS,
    MAX_WINDOW_NAMES,
    ApprovalMode,
    EventType,
    ScopeKind,
)
from forewarn.operator.api.bodies.common import Domain, Name, RequestBody, ResponseBody, Whole
from forewarn.operator.api.bodies.orders import OrderOut
from forewarn.operator.api.resolver import Kind

Labels = Annotated[
    dict[Name, Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)]], msgspec.Meta(max_length=MAX_LABELS)
]


class ScopeIn(RequestBody):
    """A scope's settings, as in the fleet file."""

    kind: ScopeKind
    approval: ApprovalMode = ApprovalMode.ANY
    approve_user_events: bool = False
    max_user_operations: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    terminate_notice_s: Annotated[int, msgspec.Meta(ge=300, le=900)] = 300
    minimum_notice_s: dict[EventType, Whole] = {}
    windows: Annotated[list[Name], msgspec.Meta(max_length=MAX_WINDOW_NAMES)] = []
    approval_opens_window: bool = False
    max_unavailable: Annotated[str, msgspec.Meta(max_length=10)] = ""


class MachineIn(RequestBody):
    """A machine's domains, host, identity and labels, as in the fleet file."""

    update_domain: Domain = 0
    fault_domain: Domain = 0
    host: Annotated[str, msgspec.Meta(max_length=64)] = ""
    addresses: Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=16)] = []
    interface: Annotated[str, msgspec.Meta(max_length=64)] = ""
    instance_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    labels: Labels = {}


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
    labels: Labels = {}
    fault_domain: Domain = 0
    connection: Annotated[str, msgspec.Meta(max_length=MAX_CONNECTION_CHARS)] = ""


class Fleet(RequestBody):
    """A whole fleet."""

    scopes: list[FleetScope]
    machines: list[FleetMachine]
    hosts: list[FleetHost] = []


class ScopeOut(ResponseBody):
    """A scope: its settings, and the state of its document. A change of its settings also returns warnings."""

    name: str
    kind: ScopeKind
    approval: ApprovalMode
    approve_user_events: bool
    max_user_operations: int
    terminate_notice_s: int
    minimum_notice_s: dict[EventType, int]
    windows: list[str]
    approval_opens_window: bool
    max_unavailable: str
    enabled: bool
    epoch: int
    incarnation: int
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


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
    labels: dict[str, str]
    last_seen: datetime | None = None


class HostOut(ResponseBody):
    """A host, and the number of machines on it that the caller may see. An owner sees only the name and the number.

    `listed` says that the fleet lists it, so that forewarn may send machines to it. `cordoned_by` is the maintenance that
    cordoned it, or "" if an operator did; `cordon_left` says that this maintenance has ended. One host also has its `orders`
    that have not ended.
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
    cordon_left: bool | msgspec.UnsetType = msgspec.UNSET
    orders: list[OrderOut] | msgspec.UnsetType = msgspec.UNSET


class FleetChange(ResponseBody):
    """What applying a fleet changed, or with dry_run would change; ask before you apply a `large_removal`."""

    lines: list[str]
    warnings: list[str]
    dry_run: bool
    removed_scopes: int = 0
    removed_machines: int = 0
    removed_hosts: int = 0
    large_removal: bool = False


class CountsOut(ResponseBody):
    """The number of open events by status, of those whose order failed or is in doubt, of scopes and of machines."""

    planned: int
    scheduled: int
    started: int
    failed: int
    in_doubt: int
    scopes: int
    machines: int


class MatchOut(ResponseBody):
    """One match; a machine's id is `scope/name`."""

    kind: Kind
    id: str


class MatchesOut(ResponseBody):
    """What a text may mean, exact matches first; `more` says whether there are more matches than these."""

    matches: list[MatchOut]
    more: bool
