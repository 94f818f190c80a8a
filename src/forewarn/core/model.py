"""The things that exist: scopes, machines, maintenances, events, approvals, orders, requests.

Frozen data that validates itself: this module says what a value may be, `lifecycle` says how values change. Times are
aware UTC datetimes on the service clock. A name in `_s` is a number of seconds: a duration, or a reading of the monotonic
clock. The durations in this module are whole seconds.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import repeat
from typing import ClassVar

from forewarn.core.amounts import parse_amount
from forewarn.core.errors import Invalid
from forewarn.core.event_types import EVENT_TYPES, TERMINATE_NOTICE_RANGE_S
from forewarn.core.event_types import EventType as EventType
from forewarn.core.event_types import HostMode as HostMode
from forewarn.core.event_types import ScopeKind as ScopeKind
from forewarn.core.event_types import Source as Source
from forewarn.core.fast_init import fast_init, maker_of_checked
from forewarn.core.lazy_dataclass import dataclass

# A name with one of these is a pattern of the shell.
WILDCARDS = frozenset("*?[")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# In the form in which `ipaddress` writes it, which takes ten times as long to find out.
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")
NO_LABELS: Mapping[str, str] = {}
MAX_ADDRESSES_PER_MACHINE = 16
MAX_CHECKED_NAMES = 100_000
MAX_DOMAIN = 999
MAX_LABELS = 32
MAX_LABEL_CHARS = 128
MAX_CONNECTION_CHARS = 512
MAX_TEXT_CHARS = 1_024
MAX_NOTICE_S = 30 * 86_400
MAX_DURATION_S = 30 * 86_400
MAX_BAKE_S = 30 * 86_400
MAX_GROUPS_AT_ONCE = 10_000
MAX_WAVE = 100_000
MAX_DRILL_HOLD_S = 3_600
MAX_MACHINES_PER_SCOPE = 1_000
MAX_WINDOW_NAMES = 20
MAX_HOSTS_PER_MAINTENANCE = 10_000
MAX_MACHINES_PER_MAINTENANCE = 100_000
# Later times are refused: times are added to them, and the calendar of Python ends with the year 9999.
LATEST_TIME = datetime(9000, 1, 1, tzinfo=UTC)
# Of one scope. Clients read at least 1,000 events, and half of them are left to the platform.
MAX_OPEN_USER_EVENTS = 500


class Status(StrEnum):
    """An event's status. Guests see Scheduled and Started only."""

    PLANNED = "Planned"
    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"
    ABANDONED = "Abandoned"


VISIBLE = frozenset({Status.SCHEDULED, Status.STARTED})
UNSTARTED = frozenset({Status.PLANNED, Status.SCHEDULED})
OPEN = UNSTARTED | VISIBLE
ENDED = frozenset(Status) - OPEN


class ApprovalMode(StrEnum):
    """Who must approve an event to bring it forward: any machine of the scope, each machine of the event, or an operator."""

    ANY = "any"
    ALL = "all"
    OPERATOR = "operator"


class OnFailure(StrEnum):
    HOLD = "hold"
    CANCEL = "cancel"
    CONTINUE = "continue"


class MaintenanceStatus(StrEnum):
    PLANNED = "Planned"
    RUNNING = "Running"
    PAUSED = "Paused"
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


UNFINISHED = (MaintenanceStatus.PLANNED, MaintenanceStatus.RUNNING, MaintenanceStatus.PAUSED)


class OrderState(StrEnum):
    """The state of an order. In doubt: its work may have begun, and no node knows how it ended.

    A planned order is not ready yet: it waits for earlier hosts, for machines to leave, or for the work on the host. Only the
    order of a host is cancelled or abandoned.
    """

    PLANNED = "planned"
    OPEN = "open"
    RUNNING = "running"
    IN_DOUBT = "in-doubt"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


# Of the order of a host: its work has ended, or will not be done.
OVER = frozenset({OrderState.DONE, OrderState.CANCELLED, OrderState.ABANDONED})


class GroupBy(StrEnum):
    """What the machines of a group have in common. `label:KEY` is another way to form groups: the value of a label."""

    UPDATE_DOMAIN = "update-domain"
    HOST = "host"
    FAULT_DOMAIN = "fault-domain"
    SCOPE = "scope"


LABEL_GROUP = "label:"


class Phase(StrEnum):
    """What an order of in-place maintenance does now: shut its machines down, or start them again. Other orders have none."""

    NONE = ""
    STOP = "stop"
    START = "start"


def require(condition: bool, message: str) -> None:
    """Raise Invalid with this message unless the condition holds."""
    if not condition:
        raise Invalid(message)


def check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise _not_a_name(what, name)


def _not_a_name(what: str, name: object) -> Invalid:
    return Invalid(
        f"{what} {name!r} is not a name: use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
    )


@lru_cache(maxsize=4_096)
def _shared_name(what: str, name: str) -> str:
    check_name(what, name)
    return name


def shared_name(what: str, name: object) -> str:
    """Check a name; return the same object for the same name."""
    if not isinstance(name, str):  # perhaps it cannot be cached at all
        raise _not_a_name(what, name)
    return _shared_name(what, name)


def check_text(what: str, text: str, max_chars: int = MAX_TEXT_CHARS) -> None:
    require(len(text) <= max_chars, f"{what} is {len(text)} characters long: at most {max_chars} are allowed")
    # Controls and separators would break a line of a log, unpaired surrogates would break UTF-8.
    plain = not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text)
    require(plain, f"{what} holds control characters or unpaired surrogates: use plain text")


def check_moment(key: str, moment: datetime) -> None:
    """Refuse a time that is not in UTC, or so late that no other time can be computed from it."""
    require(moment.utcoffset() == timedelta(0), f"{key} must be a time in UTC, like 2030-01-01T12:00:00Z")
    require(moment < LATEST_TIME, f"{key} must be before the year {LATEST_TIME.year}: choose an earlier time")


def check_window_names(windows: tuple[str, ...]) -> None:
    if not windows:
        return
    require(len(windows) <= MAX_WINDOW_NAMES, f"{len(windows)} windows: at most {MAX_WINDOW_NAMES} are allowed")
    require(len(set(windows)) == len(windows), "windows: a window is named twice")
    for name in windows:
        check_name("window", name)


def check_labels(labels: Mapping[str, str]) -> None:
    require(len(labels) <= MAX_LABELS, f"{len(labels)} labels: at most {MAX_LABELS} are allowed")
    for key, value in labels.items():
        check_name("label", key)
        check_text(f"label {key}", value, MAX_LABEL_CHARS)


def is_pattern(text: str) -> bool:
    return not WILDCARDS.isdisjoint(text)


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A VM, known as scope/name."""

    scope: str
    name: str
    update_domain: int = 0
    fault_domain: int = 0
    host: str = ""
    addresses: tuple[str, ...] = ()
    interface: str = ""
    instance_id: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)

    def __post_init__(self) -> None:
        # There may be very many machines: they share the objects of names, and no message is made for each.
        object.__setattr__(self, "scope", shared_name("scope", self.scope))
        object.__setattr__(self, "name", shared_name("machine", self.name))
        if self.labels:
            check_labels(self.labels)
        elif self.labels is not NO_LABELS:
            object.__setattr__(self, "labels", NO_LABELS)
        if not (0 <= self.update_domain <= MAX_DOMAIN and 0 <= self.fault_domain <= MAX_DOMAIN):
            update_domain_ok = 0 <= self.update_domain <= MAX_DOMAIN
            key, value = (
                ("fault_domain", self.fault_domain) if update_domain_ok else ("update_domain", self.update_domain)
            )
            raise Invalid(f"{key} is {value}: use a whole number from 0 to {MAX_DOMAIN}")
        if self.host:
            object.__setattr__(self, "host", shared_name("host", self.host))
        if self.interface:
            check_text("interface", self.interface, 64)
        if self.instance_id:
            check_text("instance_id", self.instance_id, 128)
        if self.addresses:
            if len(self.addresses) > MAX_ADDRESSES_PER_MACHINE:
                raise Invalid(f"{len(self.addresses)} addresses: at most {MAX_ADDRESSES_PER_MACHINE} are allowed")
            known = tuple(map(_address, self.addresses))
            object.__setattr__(self, "addresses", known if len(known) == 1 else tuple(sorted(set(known))))

    @property
    def key(self) -> tuple[str, str]:
        return (self.scope, self.name)

    @property
    def identities(self) -> tuple[tuple[str, str], ...]:
        """The (interface, address) pairs that identify a caller as this machine; address "" means every address."""
        if self.interface and not self.addresses:
            return ((self.interface, ""),)
        return tuple(zip(repeat(self.interface), self.addresses))

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"


def _address(text: str) -> str:
    if IPV4.fullmatch(text):
        return text
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise Invalid(f"addresses: {text!r} is not an IP address: write it like 10.0.0.4 or fd00::4") from None


class CheckedNames(dict[str, str]):
    """The names of one kind in a fleet file: each is checked when it is looked up first, and machines share its object."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __missing__(self, name: str) -> str:
        check_name(self._what, name)
        if len(self) >= MAX_CHECKED_NAMES:
            self.clear()
        self[name] = name
        return name


def machine_maker(
    update_domain: int, fault_domain: int, names: Mapping[str, CheckedNames]
) -> Callable[[str, str, str, str | None], Machine]:
    """Return a function that checks a scope, a name, a host and an address, and makes a machine in these domains.

    It takes a third of the time of `Machine`, for very many machines. Row of the bench: seconds to apply a fleet file.
    """
    Machine(scope="x", name="x", update_domain=update_domain, fault_domain=fault_domain)  # checks the domains
    new = maker_of_checked(Machine)
    scopes, machines, hosts = names["scope"], names["machine"], names["host"]

    def make(scope: str, name: str, host: str, address: str | None) -> Machine:
        return new(
            scopes[scope],
            machines[name],
            update_domain,
            fault_domain,
            hosts[host] if host else "",
            (_address(address),) if address is not None else (),
            "",
            "",
            NO_LABELS,
        )

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A physical machine that carries machines. A host that only machines name has no row and counts as `Host(name=...)`.

    `listed` says that the fleet lists it, so that machines may be sent to it. `connection` is how an executor reaches it: a
    libvirt URI. `cordoned_by` is the id of the maintenance that cordoned it, or "" if an operator did.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    fault_domain: int = 0
    connection: str = ""
    listed: bool = False
    cordoned: datetime | None = None
    cordoned_by: str = ""
    version: int = 0

    def __post_init__(self) -> None:
        check_name("host", self.name)
        require(
            0 <= self.fault_domain <= MAX_DOMAIN,
            f"fault_domain is {self.fault_domain}: use a whole number from 0 to {MAX_DOMAIN}",
        )
        check_labels(self.labels)
        check_text("connection", self.connection, MAX_CONNECTION_CHARS)


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Machines that share one document: the settings, and the epoch and incarnation of the document.

    Maintenance starts in one of its `windows`, if it has any, or when approved, with `approval_opens_window`.
    `max_unavailable` is how many machines may be down at once: a number ("2"), a share ("10%") or "" for no limit.
    """

    name: str
    kind: ScopeKind
    approval: ApprovalMode = ApprovalMode.ANY
    approve_user_events: bool = False
    max_user_operations: int = 0
    terminate_notice_s: int = TERMINATE_NOTICE_RANGE_S[0]
    minimum_notice_s: Mapping[EventType, int] = field(default_factory=dict)
    enabled: bool = False
    epoch: int = 0
    incarnation: int = 1
    version: int = 0
    changed: datetime | None = None
    windows: tuple[str, ...] = ()
    max_unavailable: str = ""
    approval_opens_window: bool = False
    # `__post_init__` checks none of these: a copy that differs only in them is not checked again. Row of the bench: one event
    # per commit.
    unchecked_fields: ClassVar[frozenset[str]] = frozenset({"epoch", "incarnation", "version", "changed"})

    def __post_init__(self) -> None:
        check_name("scope", self.name)
        if not 0 <= self.max_user_operations <= 1_000_000:  # no message is made for each of very many scopes
            raise Invalid(
                f"max_user_operations is {self.max_user_operations}: use 0 (the general limit) or a positive number"
            )
        if self.windows:
            check_window_names(self.windows)
        if self.max_unavailable:
            try:
                parse_amount(self.max_unavailable)
            except Invalid as error:
                raise Invalid(f"max_unavailable: {error}") from None
        low_s, high_s = TERMINATE_NOTICE_RANGE_S
        if not low_s <= self.terminate_notice_s <= high_s:
            raise Invalid(f"terminate_notice is {self.terminate_notice_s}s: it must lie between 5m and 15m")
        for type_, seconds in self.minimum_notice_s.items():
            rules, floor_s = EVENT_TYPES[type_], EVENT_TYPES[type_].minimum_notice_s
            require(
                not rules.own_notice_setting,
                f"minimum_notice does not take {type_}: set {rules.own_notice_setting} instead",
            )
            require(
                floor_s <= seconds <= MAX_NOTICE_S,
                f"minimum_notice of {type_} is {seconds}s: it can only be raised above the protocol's {floor_s}s,"
                f" up to {MAX_NOTICE_S}s",
            )

    def notice_s(self, type_: EventType) -> int:
        """Return the minimum notice that events of this type give the scope while it is enabled."""
        rules = EVENT_TYPES[type_]
        if rules.own_notice_setting:
            return int(getattr(self, f"{rules.own_notice_setting}_s"))
        return self.minimum_notice_s.get(type_, rules.minimum_notice_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A fact recorded on an event: this machine approved it, or an operator did if `machine` is empty."""

    event_id: str
    machine: str
    who: str
    at: datetime
    origin: str = ""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Maintenance of machines of one scope. It holds everything that guests see of it.

    `host` is the host whose maintenance it belongs to, if its maintenance works on hosts. `to_host` is where its machines must
    go, if an operator named a host, or the host itself if it brings them back. `group` names the machines that the strategy
    of the maintenance keeps together. A rescheduled event `replaces` an earlier one, was moved `reschedules` times, and starts
    at `requested_not_before` or later. `replaced_by` is the event that replaces a rescheduled one; if its host was
    rescheduled, it is the maintenance, which plans other events of the host later.
    """

    id: str
    maintenance_id: str
    wave: int
    position: int
    scope: str
    update_domain: int
    type: EventType
    source: Source
    resources: tuple[str, ...]
    description: str = ""
    duration_s: int = -1
    emergency: bool = False
    status: Status = Status.PLANNED
    born_approved: bool = False
    # Fixed at publication:
    needs_approval: bool = True  # False: it may start before NotBefore without an approval
    approval_mode: ApprovalMode = ApprovalMode.ANY
    sequence: int = 0
    published: datetime | None = None
    not_before: datetime | None = None
    minimum_notice_s: int = 0
    # Set later:
    started: datetime | None = None
    ended: datetime | None = None
    reason: str = ""
    approvals: tuple[Approval, ...] = ()
    host: str = ""
    to_host: str = ""
    group: str = ""
    replaces: str = ""
    reschedules: int = 0
    requested_not_before: datetime | None = None
    replaced_by: str = ""

    @property
    def returns(self) -> bool:
        """Whether the event brings machines back to the host that they left."""
        return bool(self.host) and self.host == self.to_host

    @property
    def one_domain_at_a_time(self) -> bool:
        """Whether the event may only start while no other update domain of its scope has a started event."""
        rules = EVENT_TYPES[self.type]
        return rules.one_domain_at_a_time and self.source is Source.PLATFORM and not self.emergency


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The targets of a maintenance: machines (scope, name), one scope or update domain of it, scopes, hosts, or everything.

    `labels` (a selector) and `names` (patterns, of which one must match) choose among the machines of the scopes, or of the
    whole fleet. `hosts` may be patterns, and `host_labels` chooses among all hosts, or among those that the patterns match.
    """

    machines: tuple[tuple[str, str], ...] = ()
    scope: str = ""
    update_domain: int | None = None
    scopes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    labels: str = ""
    names: tuple[str, ...] = ()
    everything: bool = False
    host_labels: str = ""

    def __post_init__(self) -> None:
        require(
            self.update_domain is None or bool(self.scope),
            "update_domain needs a scope: name the scope that contains it",
        )
        given = [bool(self.machines), self.on_hosts, self.everything, bool(self.scope), bool(self.scopes)]
        if self.labels or self.names:
            require(not any(given[:3]), "labels and names choose among scopes, or the whole fleet: leave out the rest")
        require(
            sum(given) == 1 or (not any(given) and bool(self.labels or self.names)),
            "targets must be exactly one of machines, a scope, scopes, hosts, or everything, or be chosen by labels or names",
        )

    @property
    def on_hosts(self) -> bool:
        return bool(self.hosts or self.host_labels)

    @property
    def selects(self) -> bool:
        """Whether the fleet decides which machines or hosts these are, and not names alone."""
        chosen = self.labels or self.names or self.everything or self.host_labels
        return bool(chosen) or any(is_pattern(host) for host in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How a maintenance goes through its machines.

    `group_by` is one of `GroupBy`, or label:KEY. A wave has up to `max_parallel` groups, the first one `canary` groups if
    this is not 0. A wave is published at least `bake_s` after the one before it has ended. `max_failures` is a number ("3") or
    a share of the orders ("5%"): with on_failure = continue, the maintenance holds at this limit. After the wave `pause_after`
    an operator must let it continue. `windows` are the names of windows to start in.
    """

    group_by: str = GroupBy.UPDATE_DOMAIN
    max_parallel: int = 1
    canary: int = 0
    bake_s: int = 0
    max_failures: str = ""
    pause_after: int = 0
    windows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.group_by.startswith(LABEL_GROUP):
            check_name("label", self.group_by.removeprefix(LABEL_GROUP))
        else:
            known = [*GroupBy, f"{LABEL_GROUP}KEY"]
            require(self.group_by in known[:-1], f"group_by is {self.group_by!r}: use {', '.join(known)}")
        for key, number, least, most in (
            ("max_parallel", self.max_parallel, 1, MAX_GROUPS_AT_ONCE),
            ("canary", self.canary, 0, MAX_GROUPS_AT_ONCE),
            ("bake_s", self.bake_s, 0, MAX_BAKE_S),
            ("pause_after", self.pause_after, 0, MAX_WAVE),
        ):
            require(least <= number <= most, f"{key} is {number}: use a whole number from {least} to {most}")
        require(
            self.group_by != GroupBy.UPDATE_DOMAIN or (self.max_parallel == 1 and self.canary <= 1),
            "with group_by update-domain, one update domain of a scope is worked on after another: use max_parallel 1 and"
            " canary 0 or 1, or another group_by",
        )
        if self.max_failures:
            parse_amount(self.max_failures)
        check_window_names(self.windows)


DEFAULT_STRATEGY = Strategy()


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """What an operator submitted. Its events form its waves; `wake_at` is when a tick could next move it.

    `observed_published_at` is when a tick first read the current wave as published. Guests could see the wave by then.
    `targets` is None for a maintenance that was submitted before targets were kept. With a `host_mode` it works on the hosts
    of its targets, one after another. Evacuated machines go to `to_host`, if given; `return_machines` brings them back. What
    has not started by `not_after` is cancelled. A drill has a `drill_hold_s`: its events end so long after their start, and
    nothing touches the machines. `continued_after` is the last wave after which an operator let it continue. While it
    `waits_for_budget`, the store wakes it when something in the fleet is up again.
    """

    id: str
    type: EventType
    source: Source
    created: datetime
    created_by: str
    not_before: datetime | None = None
    earliest: datetime | None = None
    duration_s: int = -1
    description: str = ""
    emergency: bool = False
    on_failure: OnFailure = OnFailure.HOLD
    paused: bool = False
    cancelled: bool = False
    status: MaintenanceStatus = MaintenanceStatus.PLANNED
    wake_at: datetime | None = None
    observed_published_at: datetime | None = None
    version: int = 0
    ended: datetime | None = None
    targets: Targets | None = None
    host_mode: HostMode | None = None
    return_machines: bool = False
    to_host: str = ""
    strategy: Strategy = DEFAULT_STRATEGY
    not_after: datetime | None = None
    drill_hold_s: int = 0
    continued_after: int = 0
    waits_for_budget: bool = False

    @property
    def ticks_need_all_events(self) -> bool:
        """Whether a tick must read every event: it may end all of them, or must know which wave is the last.

        A tick reads only the current wave of any other maintenance.
        """
        may_end = self.not_after is not None or self.on_failure is OnFailure.CANCEL or self.drill_hold_s > 0
        return may_end or self.host_mode is not None or self.strategy.pause_after > self.continued_after


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The work of one started event, or the work on one host in a maintenance.

    The order of an event has the event's id, so an event cannot have two orders. The order of a host has an id of its own, names
    its `host` and its maintenance, and has a `position`: the hosts of a maintenance are worked on in this order. A host that
    was rescheduled `reschedules` times has its turn at `requested_not_before` or later.
    """

    id: str
    issued: datetime
    deadline: datetime | None = None
    state: OrderState = OrderState.OPEN
    attempt: int = 1
    node: str = ""
    taken: datetime | None = None
    ended: datetime | None = None
    reason: str = ""
    output: str = ""
    host: str = ""
    maintenance_id: str = ""
    position: int = 0
    phase: Phase = Phase.NONE
    reschedules: int = 0
    requested_not_before: datetime | None = None


@fast_init
@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a request, and from where, for the audit."""

    name: str
    origin: str = ""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit: who did what, when, and from where. The store assigns `id` and `hash`."""

    at: datetime
    who: str
    action: str
    origin: str = ""
    scope: str = ""
    maintenance_id: str = ""
    event_id: str = ""
    detail: str = ""
    id: int = 0
    hash: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockHold:
    """A jump of the clock. Until an operator confirms it, no event starts because of time that passed after `trusted`."""

    trusted: datetime
    noticed: datetime
    jumped_s: int
    node: str = ""
    confirmed: datetime | None = None


class HoldCause(StrEnum):
    """Why a store is held: a backup was restored, the database was replaced, or an operator requested it."""

    RESTORED = "restored"
    REPLACED = "replaced"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHold:
    """A hold of the whole store. Until an operator resumes it, no event starts and no order is handed out."""

    cause: HoldCause
    detail: str
    who: str
    held: datetime
    resumed: datetime | None = None


def _check_source(type_: EventType, source: Source) -> None:
    allowed = [known for known, rules in EVENT_TYPES.items() if source in rules.sources]
    require(type_ in allowed, f"a {source} event can be of type {' or '.join(allowed)}, not {type_}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """A maintenance as an operator submits it. `resolved` are the names that the selectors of its targets choose."""

    type: EventType
    targets: Targets
    source: Source = Source.PLATFORM
    not_before: datetime | None = None
    earliest: datetime | None = None
    duration_s: int = -1
    description: str = ""
    emergency: bool = False
    on_failure: OnFailure = OnFailure.HOLD
    host_mode: HostMode | None = None
    return_machines: bool = False
    to_host: str = ""
    strategy: Strategy = DEFAULT_STRATEGY
    not_after: datetime | None = None
    drill_hold_s: int = 0
    resolved: Targets | None = None

    @property
    def named_targets(self) -> Targets:
        return self.resolved or self.targets

    def __post_init__(self) -> None:
        check_text("description", self.description)
        self._check_drill()
        self._check_host_mode()
        self._check_strategy()
        require(
            -1 <= self.duration_s <= MAX_DURATION_S,
            f"duration_s is {self.duration_s}: use -1 (unknown), 0 (no interruption) or up to {MAX_DURATION_S}",
        )
        _check_source(self.type, self.source)
        if self.emergency:
            allowed = [type_ for type_, rules in EVENT_TYPES.items() if rules.may_be_emergency]
            require(
                self.source is Source.PLATFORM and self.type in allowed,
                f"an emergency must be a Platform event of type {' or '.join(allowed)}, not {self.source} {self.type}",
            )
            require(
                self.not_before is None and self.earliest is None,
                "an emergency starts at once: leave out not_before and earliest",
            )
        self._check_times()

    def _check_drill(self) -> None:
        require(
            0 <= self.drill_hold_s <= MAX_DRILL_HOLD_S,
            f"drill_hold_s is {self.drill_hold_s}: use 0 (no drill) or up to {MAX_DRILL_HOLD_S}",
        )
        if self.drill_hold_s:
            allowed = [type_ for type_, rules in EVENT_TYPES.items() if rules.one_domain_at_a_time]
            require(
                self.source is Source.PLATFORM and self.type in allowed,
                f"a drill must be a Platform event of type {' or '.join(allowed)}, not {self.source} {self.type}",
            )
            require(not self.emergency, "a drill is no emergency: leave out one of them")
            require(self.host_mode is None, "a drill touches no host: leave out host_mode")

    def _check_times(self) -> None:
        starts = (("not_before", self.not_before), ("earliest", self.earliest))
        for key, moment in (*starts, ("not_after", self.not_after)):
            if moment is not None:
                check_moment(key, moment)
        for key, moment in starts:
            require(
                moment is None or self.not_after is None or moment < self.not_after,
                f"not_after must be later than {key}: nothing starts at not_after or later",
            )

    def _check_host_mode(self) -> None:
        evacuates = self.host_mode is HostMode.EVACUATE
        require(
            evacuates or not self.return_machines,
            "machines come back only after an evacuation: evacuate the hosts, or do not ask for their return",
        )
        require(
            evacuates or not self.to_host,
            "machines go to a named host only in an evacuation: evacuate the hosts, or name no host to go to",
        )
        if self.host_mode is None:
            return
        work = f"work on hosts ({self.host_mode})"
        require(self.targets.on_hosts, f"{work} needs hosts as targets")
        require(self.source is Source.PLATFORM, f"{work} needs source {Source.PLATFORM}")
        allowed = [type_ for type_, rules in EVENT_TYPES.items() if self.host_mode in rules.host_modes]
        require(self.type in allowed, f"{work} needs type {' or '.join(allowed)}, not {self.type}")
        if self.to_host:
            check_name("host", self.to_host)
            require(
                self.to_host not in self.named_targets.hosts,
                f"machines cannot go to {self.to_host}: it is one of the hosts to evacuate",
            )

    def _check_strategy(self) -> None:
        """A maintenance of one wave has no strategy. The hosts of a host maintenance are worked on one after another."""
        if self.strategy == DEFAULT_STRATEGY:
            return
        rules = EVENT_TYPES[self.type]
        require(
            self.source is Source.PLATFORM and rules.one_domain_at_a_time and not self.emergency,
            "a strategy needs several waves: use it with a Platform Freeze, Reboot or Redeploy that is not an emergency",
        )
        strategy = self.strategy
        require(
            self.host_mode is None or (strategy.group_by, strategy.canary) == (GroupBy.UPDATE_DOMAIN, 0),
            f"host_mode {self.host_mode} works on one host after another: leave out group_by, max_parallel and canary",
        )
        require(
            not strategy.max_failures or self.on_failure is OnFailure.CONTINUE,
            f"max_failures needs on_failure {OnFailure.CONTINUE}: otherwise the first failure stops the maintenance",
        )
