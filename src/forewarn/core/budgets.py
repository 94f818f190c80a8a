"""Budgets: how many machines of a scope may be unavailable at once, across all maintenances.

Owns what counts as unavailable, and when a planned wave finds room. A machine is unavailable while it is in a Started event,
or in a published one: its agent may have drained it. Budgets hold back the publication of Platform Freeze, Reboot and
Redeploy. Other events and emergencies count, but never wait. These predicates change nothing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from forewarn.core.amounts import parse_amount
from forewarn.core.draft import Draft
from forewarn.core.formatting import count
from forewarn.core.model import VISIBLE, Event, Maintenance, OrderState, Scope
from forewarn.core.reason import Waiting

# A reason names at most this many events.
MAX_NAMED = 10
_UNRESOLVED = frozenset({OrderState.FAILED, OrderState.IN_DOUBT})


def scope_limit(scope: Scope, machines: int) -> int | None:
    """Return how many machines of a scope may be unavailable at once, or None for any number; it has this many machines."""
    return parse_amount(scope.max_unavailable).of(machines) if scope.max_unavailable else None


def budget_waits(draft: Draft, _: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return the budgets that have no room for a planned wave."""
    return [shortage.reason for shortage in _shortages(draft, wave)]


def budgets_only_an_operator_frees(draft: Draft, wave: list[Event]) -> list[Waiting]:
    """Return the budgets that have no room for a planned wave until an operator acts.

    Only failed orders and orders in doubt use them, or they are smaller than the wave.
    """
    return [shortage.reason for shortage in _shortages(draft, wave) if shortage.is_stuck]


@dataclass(frozen=True, slots=True)
class _Shortage:
    """A budget without room for a wave, as a reason to wait; `is_stuck` says that only an operator can end the wait."""

    reason: Waiting
    is_stuck: bool


def _shortages(draft: Draft, wave: Iterable[Event]) -> list[_Shortage]:
    bound: dict[str, list[Event]] = defaultdict(list)
    for event in wave:
        if event.one_domain_at_a_time and draft.scopes[event.scope].max_unavailable:
            bound[event.scope].append(event)
    found = (_scope_shortage(draft, draft.scopes[name], events) for name, events in sorted(bound.items()))
    return [shortage for shortage in found if shortage is not None]


def _scope_shortage(draft: Draft, scope: Scope, events: list[Event]) -> _Shortage | None:
    """Return the shortage for the planned events of a wave in one scope."""
    limit = scope_limit(scope, draft.before.machine_counts.get(scope.name, 0)) or 0
    needed = {name for event in events for name in event.resources}
    users = [event for event in draft.events_in(scope.name) if event.status in VISIBLE]
    unavailable = {name for event in users for name in event.resources}
    more = len(needed - unavailable)
    if not more or len(unavailable) + more <= limit:
        return None
    allowed = f"max_unavailable allows {count(limit, 'machine')} of {scope.name} at once"
    if len(needed) > limit:
        message = f"{allowed}, and this wave has {len(needed)}: it cannot be published before the budget is raised"
        return _Shortage(Waiting(code="budget", message=message, events=_ids(events)), is_stuck=True)
    users.sort(key=lambda event: not _is_unresolved(draft, event))
    message = f"{allowed}: {len(unavailable)} in use, and this wave needs {more} more"
    if unresolved := [event.id for event in users if _is_unresolved(draft, event)]:
        message += f"; event {unresolved[0]} keeps its share until its failure is resolved"
    reason = Waiting(code="budget", message=message, events=_ids(users))
    return _Shortage(reason, is_stuck=len(unresolved) == len(users))


def _is_unresolved(draft: Draft, event: Event) -> bool:
    order = draft.orders.get(event.id)
    return order is not None and order.state in _UNRESOLVED


def _ids(events: list[Event]) -> tuple[str, ...]:
    return tuple(event.id for event in events[:MAX_NAMED])
