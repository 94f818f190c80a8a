"""What each event type means: one row per type, read by every rule that depends on the type.

CONTRIBUTING.md lists what a new type needs besides its member of `EventType` and its row of `EVENT_TYPES`. The rules of the
service name no type elsewhere; `tests/core/test_event_types.py` checks this and lists the modules that do, with their reasons.
"""

from collections.abc import Mapping
from enum import StrEnum

from forewarn.core.lazy_dataclass import dataclass


class EventType(StrEnum):
    """What the event does to a machine."""

    FREEZE = "Freeze"
    REBOOT = "Reboot"
    REDEPLOY = "Redeploy"
    PREEMPT = "Preempt"
    TERMINATE = "Terminate"


class Source(StrEnum):
    PLATFORM = "Platform"
    USER = "User"


class ScopeKind(StrEnum):
    CLOUD_SERVICE = "cloud-service"
    AVAILABILITY_SET = "availability-set"
    PLACEMENT_GROUP = "placement-group"
    STANDALONE = "standalone"


class HostMode(StrEnum):
    """How the hosts of a maintenance are worked on: without their machines, or with the machines shut down on them."""

    EVACUATE = "evacuate"
    IN_PLACE = "in-place"


# The range of a scope's setting `terminate_notice`; its lower end is the default.
TERMINATE_NOTICE_RANGE_S = (300, 900)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRules:
    """One row: the rules for all events of a type. The defaults are those of rolling platform maintenance."""

    # "Each event is scheduled a minimum amount of time in the future based on the event type."
    minimum_notice_s: int
    # The scope's setting that holds the notice of this type alone; without one, `minimum_notice` can raise the notice.
    own_notice_setting: str = ""
    # The oldest api-version whose documents show the type.
    first_api_version: str = "2017-03-01"
    sources: frozenset[Source] = frozenset({Source.PLATFORM})
    # The kinds of scope whose machines the type may target.
    scope_kinds: frozenset[ScopeKind] = frozenset(ScopeKind)
    may_be_emergency: bool = True
    # Platform events without emergency start in one update domain of a scope at a time.
    one_domain_at_a_time: bool = True
    # Each machine gets an event of its own, all in one wave. User events are split in this way whatever their type.
    one_event_per_machine: bool = False
    # Completing the event removes its machines from the inventory.
    removes_machines: bool = False
    # The events that prepare the work on a host may be of this type. The first type with a mode is its default.
    host_modes: frozenset[HostMode] = frozenset()
    # The machines of the event always go to another host. Those of other types do so, running, only to empty their host.
    changes_host: bool = False


EVENT_TYPES: Mapping[EventType, TypeRules] = {
    EventType.FREEZE: TypeRules(minimum_notice_s=900, host_modes=frozenset({HostMode.EVACUATE})),
    EventType.REBOOT: TypeRules(
        minimum_notice_s=900, sources=frozenset(Source), host_modes=frozenset({HostMode.IN_PLACE})
    ),
    EventType.REDEPLOY: TypeRules(
        minimum_notice_s=600, sources=frozenset(Source), host_modes=frozenset({HostMode.EVACUATE}), changes_host=True
    ),
    EventType.PREEMPT: TypeRules(
        minimum_notice_s=30,
        first_api_version="2017-11-01",
        may_be_emergency=False,
        one_domain_at_a_time=False,
        one_event_per_machine=True,
    ),
    EventType.TERMINATE: TypeRules(
        minimum_notice_s=TERMINATE_NOTICE_RANGE_S[0],
        own_notice_setting="terminate_notice",
        first_api_version="2019-01-01",
        scope_kinds=frozenset({ScopeKind.PLACEMENT_GROUP}),
        may_be_emergency=False,
        one_domain_at_a_time=False,
        one_event_per_machine=True,
        removes_machines=True,
    ),
}
