"""The strategy of a maintenance: how its machines form groups and the groups form waves, and what a next wave waits for.

Owns the groups, the steps of a group, which of them share a wave, and the bake time. `planning` makes events of the planned
waves, after other rules have split them: a splitter turns one planned wave into one or several, in order, and loses no event.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import zip_longest

from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.durations import duration_text
from forewarn.core.errors import Refused
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import LABEL_GROUP, Event, GroupBy, Host, Machine, Maintenance, Strategy
from forewarn.core.reason import Waiting


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """The machines of one planned event: of one group, one scope and one update domain."""

    group: str
    scope: str
    update_domain: int
    machines: tuple[Machine, ...]


PlannedWave = list[PlannedEvent]
Splitter = Callable[[Snapshot, Maintenance, PlannedWave], list[PlannedWave]]


def planned_waves(strategy: Strategy, machines: Iterable[Machine], hosts: Mapping[str, Host]) -> list[PlannedWave]:
    """Return the waves in which the strategy goes through these machines.

    The k-th targeted update domains (ascending) of the scopes in a group are its step k. The groups are taken in the order of
    their names: first the canary groups together, then up to `max_parallel` at once. A wave is one step of these groups. An
    event whose scope already has another update domain in the wave moves to the next wave.
    """
    groups: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        groups[group_of(strategy, machine, hosts)].append(machine)
    names = sorted(groups, key=_group_order)
    canary, size = strategy.canary, strategy.max_parallel
    batches = [names[:canary], *(names[first : first + size] for first in range(canary, len(names), size))]
    return [wave for batch in batches for wave in _waves([_steps(name, groups[name]) for name in batch])]


def refuse_unknown_label(strategy: Strategy, waves: list[PlannedWave]) -> None:
    """Refuse to group by a label that no machine has, neither itself nor from its host: all would be in one group."""
    if strategy.group_by.startswith(LABEL_GROUP) and waves and not any(e.group for wave in waves for e in wave):
        key = strategy.group_by.removeprefix(LABEL_GROUP)
        raise Refused(f"group_by: none of these machines has a label {key}, and no host of them has it: check the name")


def group_of(strategy: Strategy, machine: Machine, hosts: Mapping[str, Host]) -> str:
    """Return the name of the machine's group; "" if the machine has no host, or no such label."""
    match strategy.group_by:
        case GroupBy.UPDATE_DOMAIN:
            return ""
        case GroupBy.HOST:
            return machine.host
        case GroupBy.FAULT_DOMAIN:
            return str(machine.fault_domain)
        case GroupBy.SCOPE:
            return machine.scope
    key = strategy.group_by.removeprefix(LABEL_GROUP)
    inherited = hosts[machine.host].labels if machine.host in hosts else {}
    return machine.labels.get(key, inherited.get(key, ""))


def _group_order(name: str) -> tuple[bool, list[tuple[int, str]], str]:
    """Sort numbers in names by value, so that r2 comes before r10. The group without a name comes last."""
    parts = re.findall("[0-9]+|[^0-9]+", name)
    return not name, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], name


def _steps(group: str, machines: Iterable[Machine]) -> list[PlannedWave]:
    domains: dict[str, dict[int, list[Machine]]] = defaultdict(lambda: defaultdict(list))
    for machine in machines:
        domains[machine.scope][machine.update_domain].append(machine)
    of_scopes = (
        [PlannedEvent(group, scope, domain, tuple(found)) for domain, found in sorted(by_domain.items())]
        for scope, by_domain in sorted(domains.items())
    )
    return [[event for event in step if event is not None] for step in zip_longest(*of_scopes)]


def _waves(groups: Iterable[list[PlannedWave]]) -> list[PlannedWave]:
    """Return the waves of some groups that are worked on together, given the steps of each group."""
    waves: list[PlannedWave] = []
    steps = [[event for step in same_step for event in step or ()] for same_step in zip_longest(*groups)]
    moved: PlannedWave = []
    while steps or moved:
        candidates = [*moved, *(steps.pop(0) if steps else ())]
        wave, moved, domains = PlannedWave(), [], dict[str, int]()
        for event in candidates:
            fits = domains.setdefault(event.scope, event.update_domain) == event.update_domain
            (wave if fits else moved).append(event)
        waves.append(wave)
    return waves


def bake_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Hold back a wave until the bake time has passed since the last event of the earlier waves ended or failed."""
    bake_s = maintenance.strategy.bake_s
    if not bake_s:
        return []
    earlier = [e for e in draft.events_of(maintenance.id) if e.wave < wave[0].wave and e.started is not None]
    ends = [end for e in earlier if (end := e.ended or draft.orders[e.id].ended) is not None]
    unread = draft.before.unread.get(maintenance.id)
    if unread is not None and unread.last_ended is not None:
        ends.append(unread.last_ended)
    if not ends:
        return []
    until = max(ends) + timedelta(seconds=bake_s)
    if all(draft.trusted_in(event.scope) >= until for event in wave):
        return []
    last = max((e.wave for e in earlier), default=wave[0].wave - 1)
    message = f"the bake time of {duration_text(bake_s)} after wave {last} runs"
    return [Waiting(code="bake", message=message, until=until)]
